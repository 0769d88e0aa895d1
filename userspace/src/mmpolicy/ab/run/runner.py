# SPDX-License-Identifier: GPL-2.0
"""Run an experiment: blocks in their order, samples, guards, and rollback."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from math import inf, isfinite
from typing import Any

from mmpolicy.ab.anytime import answered, sequence
from mmpolicy.ab.design import (
    SATURATION,
    STRETCH,
    Block,
    Design,
    differences,
    few_lost,
    in_percent,
    pairs_by_size,
    pairs_for_lost,
)
from mmpolicy.ab.guards import Guard, Watch
from mmpolicy.ab.metrics import Metric, all_sources
from mmpolicy.ab.run.changes import Changes
from mmpolicy.ab.run.commands import POLL_S, Commands
from mmpolicy.ab.run.decisions import Decisions, risen
from mmpolicy.ab.run.live import Live, place_of
from mmpolicy.ab.run.outfile import OutFile
from mmpolicy.ab.run.policy_arms import StoppedError
from mmpolicy.ab.run.progress import Display, Progress, clock
from mmpolicy.ab.samples import Recording, line_of
from mmpolicy.ab.sources import ARMS, Command, Numbers, Reader
from mmpolicy.errors import Error
from mmpolicy.figures import figure
from mmpolicy.host.machine import Host, tell_ready
from mmpolicy.host.signals import noted

IDLE_PAIRS = 3  # a warning is printed if a policy has decided nothing in this many pairs


def utc_now() -> str:
    """Return the time of day in UTC as text. By it, blocks that ran on different hosts can be
    compared.
    """
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


@dataclass(frozen=True)
class Length:
    """The number of pairs of a run, or the rule that decides it. It is fixed before the first block
    with the treatment.
    """

    aa_pairs: int
    pairs: int  # number of pairs; if the run may end earlier, the most pairs
    # change in percent to find; if not 0, the sizes of the differences decide the number of pairs
    detect: float = 0.0
    anytime: bool = False  # end as soon as the result is clear, by a test that is valid at any look
    # if set, a phase "saturation" follows the A/B phase; the two numbers are its percentages of
    # treated units, few and many
    saturation: tuple[int, int] | None = None
    stretches: bool = True  # whether to add pairs if some are lost

    @property
    def way(self) -> str:
        """Return the name of the rule for the length as it stands in the header of the samples
        file: "anytime", "size", or "" for a fixed length.
        """
        return "anytime" if self.anytime else "size" if self.detect else ""

    @property
    def most(self) -> int:
        """Return the highest number of pairs to run, including those that replace lost pairs."""
        return self.pairs * (STRETCH if self.stretches and not self.way else 1)

    def blocks(self, design: Design, pairs: int = 0) -> int:
        """Return the number of blocks of a run with this number of pairs; 0: the planned ones."""
        pairs = pairs or self.pairs
        more = 2 * pairs if self.saturation else 0
        return (self.aa_pairs + pairs) * design.blocks_of_pair + more

    def rule(self) -> str:
        """Return the rule for the length, as text."""
        if self.saturation:
            few, many = self.saturation
            rest = f"then as many pairs of blocks with {few} and {many} % of the units treated"
            return f"{replace(self, saturation=None).rule()}; {rest}"
        if self.anytime:
            return f"until the result is clear (anytime-valid), at most {self.pairs} pairs"
        if not self.detect:
            more = f"; more if some pairs get no value, at most {self.most}" * (
                self.most > self.pairs
            )
            return f"{self.pairs} pairs after {self.aa_pairs} of A/A, fixed beforehand{more}"
        return (
            f"as many pairs as find {figure(self.detect)} % with 80 % probability by the sizes of "
            f"the differences, whatever their signs, at most {self.pairs}"
        )


@dataclass
class Runner:
    """One run of an experiment, from the first block to the rollback."""

    host: Host
    design: Design
    length: Length
    metrics: Sequence[Metric]
    guards: Sequence[Guard]
    changes: Changes
    header: dict[str, Any]
    out: OutFile
    display: Display
    also: Callable[[], str] = lambda: ""  # returns a reason of the caller to end the run, or ""
    caught: list[int] = field(default_factory=list)  # numbers of the signals that have arrived
    failure: Exception | None = None
    end: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sources = all_sources(self.metrics)
        arms = self.changes.profiles
        self.reader = Reader(self.host.tree, sources, arms)
        self.asked = [source for source in sources if isinstance(source, Command)]
        self.commands = Commands(self.header["cmd_timeout_s"], self.tick)
        self.decisions = Decisions(self.host.tree, self.changes.arms, self.changes.timing)
        guarded = all_sources(guard.metric for guard in self.guards)
        self.guard_reader = Reader(self.host.tree, guarded, arms)
        self.watch = Watch(self.guards)
        self.recording = Recording(self.header)
        self.pairs = self.length.pairs
        self.began = self.renew_at = self.host.clock()
        self.block: Block | None = None
        # True while the command of --at-switch runs, which may create the cgroup again
        self.restarting = False
        # True once warnings about idle arms and counters without /s were due
        self.told = False
        self.begun = 0  # number of blocks that have begun
        self.block_began = 0.0
        self.changes.knobs.look = self.look
        about = {arm: self.header[arm]["given"] for arm in ARMS}
        self.live = Live(self.host.tree, {**about, "file": str(self.out.path.absolute())})

    # Time

    def now(self) -> float:
        """Return the seconds since the run began."""
        return self.host.clock() - self.began

    def tick(self) -> None:
        """Do what is due during a run: renew the leases of the settings, check guards and signals,
        publish the state, show the remaining time.
        """
        if self.host.clock() >= self.renew_at:
            self.changes.renew()
            self.renew_at = self.host.clock() + self.changes.lease_ms / 4000
        self.changes.look_after(self.restarting)
        self.look()
        self.display.tick(self.left())
        self._tell_others()

    def _tell_others(self) -> None:
        """Publish the state of the run in a file for other commands, such as `ab status`."""
        if self.block:
            measured = self.now() - self.block_began >= self.design.washout_s
            told = {**place_of(self.block), "blocks": self.blocks(), "measured": measured}
            self.live.tell(self.now(), **told, left_s=self.left(), guards=dict(self.watch.last))

    def look(self) -> None:
        """Raise StoppedError if the run has to end: after a signal, for a reason that the caller
        gives, or because a guard is broken.
        """
        if self.caught:
            raise StoppedError("interrupted", f"by {signal.Signals(self.caught[0]).name}")
        if why := self.also():
            raise StoppedError("lost", why)
        if self.guards:
            broken = self.watch.look(self.guard_reader.read(self.now()))
            if broken:
                raise StoppedError("guard", *broken)

    def left(self) -> float:
        """Return how many seconds the run is still expected to take."""
        rest = (self.blocks() - self.begun) * self.design.block_s
        here = self.block_began + self.design.block_s - self.now() if self.begun else 0.0
        return rest + max(here, 0.0)

    def blocks(self) -> int:
        """Return the number of blocks that the run is expected to have."""
        return self.length.blocks(self.design, self.pairs)

    def pause(self, until: float) -> None:
        """Wait until a moment, in seconds since the run began, and call tick() meanwhile."""
        self.tick()
        while (left := until - self.now()) > 0:
            self.host.sleep(min(left, POLL_S))
            self.tick()

    # Blocks

    def run(self) -> None:
        """Run all phases. However they end, restore the state, and write the line `end`."""
        end: dict[str, Any] = {"status": "done", "reason": "all pairs are complete"}
        self._write("header", self.header)
        with noted() as self.caught:
            try:
                self._phases()
            except StoppedError as err:
                where = self._where(err.arm)
                place = f", in {where['arm'] or 'both arms'}, block {where['block']}"
                reason = err.reason + place * (err.status == "guard")
                end = {"status": err.status, "reason": reason, **where}
            # An exception of any kind must not prevent that the state is restored; the caller
            # raises it afterwards.
            except Exception as err:
                reason = err.message if isinstance(err, Error) else f"{type(err).__name__}: {err}"
                end, self.failure = {"status": "failed", "reason": reason}, err
            finally:
                end |= self._restore()
                self.end = end
                self.out.write_last(line_of("end", end))

    def _where(self, arm: str) -> dict[str, Any]:
        """Return block, phase and arm at this moment. A block of the A/A phase belongs to the
        control, and a block with both arms to the given arm.
        """
        if not self.block:
            return {"block": None, "phase": "", "arm": ""}
        arm = ARMS[0] if self.block.phase == "aa" else self.block.arm or arm
        after = self.now() - self.block_began
        where = {"block": self.block.number, "phase": self.block.phase, "arm": arm}
        return where | {"after_s": after}

    def _restore(self) -> dict[str, Any]:
        start = self.host.clock()
        self.live.tell(self.now(), phase="restoring", arm="")
        note = self.changes.restore()
        self.live.end()
        return {"restored": not note, "note": note, "restore_s": self.host.clock() - start}

    def _phases(self) -> None:
        self.display.say(f"rule: {self.length.rule()}")
        most = "at most " if self.length.way else ""
        long = f"{self.blocks()} blocks of {figure(self.design.block_s)} s"
        self.display.say(f"time: {most}{clock(self.left())}, {long}")
        self.live.tell(self.now(), phase="beginning", arm="")
        self.changes.set_up(self.header["unit"])
        self.look()  # evaluates each guard once, so that its value is known from the beginning
        tell_ready()
        self.changes.equip("aa")
        for block in self.design.blocks("aa", self.length.aa_pairs):
            self._block(block)
        self.changes.equip("ab")
        for block in self.design.blocks("ab", self.length.most, len(self.recording.blocks)):
            self._tell_of_idleness(block)
            self._block(block)
            if self._is_last(block):
                break
        if self.length.saturation:
            number = len(self.recording.blocks)
            for block in self.design.blocks(SATURATION, self.pairs, number):
                self._block(block)

    def _is_last(self, block: Block) -> bool:
        """Return whether this block is the last one of the A/B phase. The answer can be True only
        at the end of a pair.
        """
        number = block.number - self.length.aa_pairs * self.design.blocks_of_pair + 1
        done, rest = divmod(number, self.design.blocks_of_pair)
        need = inf if rest else self._needed(done)
        if done < need:
            return False
        self.pairs = done
        if self.length.way or done != self.length.pairs:
            self._write("plan", {"pairs": done})
            self.display.say(f"the result is clear after {done} pairs")
        return True

    def _needed(self, done: int) -> float:
        """Return how many pairs the rule for the length requires, judged by the first `done` pairs;
        infinite if they do not tell yet.
        """
        length = self.length
        if not length.way and done < length.pairs:
            return length.pairs
        lost = {each.name: self.recording.lost_pairs(each, done) for each in self.metrics}
        missing, against = (max(each) for each in zip(*lost.values()))
        if length.anytime:
            pairs_of = {metric.name: self.recording.pairs(metric, "ab") for metric in self.metrics}
            bad = {name: each for name, (_, each) in lost.items()}
            margin = self.header["margin"]
            enough = few_lost(missing, done) and answered(self.metrics, pairs_of, margin, bad)
            return done if enough else inf
        need = self._by_size() if length.detect else length.pairs
        if need < length.most:
            need = pairs_for_lost(int(need), missing, against, length.most)
        if not length.way and need > self.pairs:
            self.display.say(
                f"{missing} pairs have no value, so the run takes {need} pairs instead of "
                f"{self.pairs}"
            )
            self.pairs = int(need)
        return need

    def _by_size(self) -> float:
        """Return how many pairs find a change of `detect` percent, estimated from the sizes of the
        differences so far; infinite if there are none.
        """
        wanted = [metric for metric in self.metrics if not metric.guard]
        found = [differences(self.recording.pairs(metric, "ab")) for metric in wanted]
        sizes = [d for scale, d in found if d and scale != "difference"]
        detect, number = self.length.detect, len(wanted)
        return max((pairs_by_size(d, detect, number) for d in sizes), default=inf)

    def _block(self, block: Block) -> None:
        self.block, self.block_began = block, self.now()
        self.begun += 1
        self.changes.enter(block)
        self._switch()
        begin, before = self.now(), self.decisions.read()
        self.block_began = begin
        self._tell_others()
        for moment in self.design.moments():
            self.pause(begin + moment)
            self._sample(block)
        counts = risen(before, self.decisions.read())
        times = {"began": begin, "ended": self.now(), "at": utc_now()}
        own = {"units": self.changes.units} if self.changes.units else {}
        self._write("block", {**block._asdict(), **times, **counts, **own})
        self.display.report(self.progress(block))

    def _switch(self) -> None:
        """Run the command of --at-switch, if it is given, at the beginning of a block."""
        if self.header["at_switch"]:
            self.restarting = True
            self.commands.run(self.header["at_switch"])
            self.changes.look_after(self.restarting)
            self.restarting = False

    def _tell_of_idleness(self, block: Block) -> None:
        """After IDLE_PAIRS pairs, print a warning if the policies of an arm have decided nothing,
        or if a metric without /s looks like a counter: either puts the result in doubt.
        """
        if self.told or block.pair != IDLE_PAIRS:
            return
        self.told = True
        if idle := self.recording.idle():
            text = (
                f"no policy has decided anything yet in {' and '.join(idle)}, after "
                f"{IDLE_PAIRS} pairs"
            )
            self.display.say(f"warning: {text}: does any process in the scope have page faults?")
        for metric in self.metrics:
            if source := self.recording.climbing(metric):
                self.display.say(
                    f"warning: {metric.name} has never decreased: if it is a counter, "
                    f"stop the run and give its rate as the metric: {source}/s"
                )

    def _sample(self, block: Block) -> None:
        numbers = self.commands.numbers([each.command for each in self.asked])
        said: Numbers = {each.text: n for each, n in zip(self.asked, numbers)}
        sample = self.reader.read(self.now(), said, self.changes.units)
        self._write("sample", {"block": block.number, **sample._asdict()})

    def _write(self, kind: str, record: dict[str, Any]) -> None:
        if kind != "header":
            self.recording.add({"kind": kind, **record})
        self.out.write(line_of(kind, record))

    # Display

    def progress(self, block: Block) -> Progress:
        """Return the progress at the end of a block: remaining time, and estimates so far."""
        done, total = len(self.recording.blocks), self.blocks()
        left = (total - done) * self.design.block_s
        shown = [self._estimate(metric, block.phase) for metric in self.metrics]
        return Progress(done, total, block.phase, left, shown)

    def _estimate(self, metric: Metric, phase: str) -> str:
        pairs = self.recording.pairs(metric, phase)
        scale, *ends = sequence(pairs) if len(pairs) > 1 else ("", inf)
        if not all(map(isfinite, ends)):
            return f"{metric.name}: no estimate of the effect yet"
        if scale != "difference":
            ends = [in_percent(end) for end in ends]
        text = "{} ({} .. {})".format(*(figure(end, 3, "+") for end in ends))
        return f"{metric.name}: {text}{' %' * (scale != 'difference')} so far"
