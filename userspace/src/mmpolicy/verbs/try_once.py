# SPDX-License-Identifier: GPL-2.0
"""Candidates of `try` that cannot be undone block by block: `trim`, `collapse` and `maintain`.

A trial measures CPU time and private memory of the service, lets the verbs of the candidate work
once, and measures again. Whatever else has changed between the two measurements is part of the
difference. The verbs change no setting, so a trial that is killed leaves the kernel at stock.
"""

from __future__ import annotations

import io
import json
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from statistics import fmean
from typing import TYPE_CHECKING, Any

from mmpolicy.ab.metrics import Metric
from mmpolicy.ab.run.commands import POLL_S, Commands
from mmpolicy.ab.run.policy_arms import StoppedError
from mmpolicy.ab.shift import Change
from mmpolicy.ab.sources import ARMS, Command, Reader, Sample
from mmpolicy.control.trials import (
    BACK,
    DECISION,
    DONE,
    EFFECT,
    ENABLED,
    KEEPING,
    KEPT,
    MAINTAIN,
    SYSTEMD,
    UNTOUCHED,
    Trial,
    file_of,
)
from mmpolicy.errors import Error, Exit
from mmpolicy.figures import figure
from mmpolicy.host.advice import BLOCK
from mmpolicy.host.cgroups import cgroup_pids
from mmpolicy.host.evidence import TICKS_S
from mmpolicy.host.files import Tree
from mmpolicy.host.machine import Host, hardware_of, tell_ready
from mmpolicy.host.service import Watch
from mmpolicy.host.signals import SHELL, noted
from mmpolicy.memory.findings import LEAST_KIB, LEAST_PERCENT, LEAST_SHARE, option_of
from mmpolicy.memory.holds import Holds
from mmpolicy.memory.pressure import Pressure
from mmpolicy.memory.space import Space
from mmpolicy.memory.survey import read_usage
from mmpolicy.memory.worth import BEFORE_AND_AFTER, ONCE
from mmpolicy.render import duration, own_line, progress_line
from mmpolicy.verbs.explain import profile_name
from mmpolicy.verbs.here import verbs_here
from mmpolicy.verbs.try_look import counters_of, look
from mmpolicy.verbs.try_now import WAITING, not_now
from mmpolicy.verbs.try_run import CPU, MEMORY, WITHOUT_WORK, WORK, Wish, work_lines

if TYPE_CHECKING:
    import click

BLOCK_S = 480.0  # least seconds of one measurement (PARTS parts), if --block is not given
PARTS = 48  # parts of equal length in a measurement, at least; each part gives one value
TIMES = 16  # a measurement with noisy values is doubled, up to this many times PARTS parts
# A measurement is long enough if its expected interval, times this factor, is within the margin:
# the interval of 80 % of trials or more is then narrow enough to decide.
SURE = 1.4
LOOK_S = 10.0  # seconds of the observation before the first measurement
# the report explains the longest stop of the program if it is this many times the stop measured
# before
LONGER = 2.0
GAP = 2.0  # expected time between the two measurements, in parts, for the estimate of noise
COMMAND_S = 30.0  # time limit in seconds for a command of --work


MARGINS = {"cpu": CPU, "memory": MEMORY, "work": WORK}


@dataclass(frozen=True)
class OnceWish(Wish):
    """The options of `try` for a candidate of ONCE: its verbs work once, between two
    measurements.
    """

    @property
    def treatment(self) -> str:
        """Return the verbs that the candidate runs, as text, such as "trim and collapse"."""
        return " and ".join(ONCE[self.candidate].verbs)

    @property
    def gains(self) -> tuple[str, ...]:
        """Return the metrics that may show a gain. If none of them improves, the trial keeps
        nothing.
        """
        return ONCE[self.candidate].gains_with(self.work)

    def rule(self) -> str:
        """Return the rule of the decision as text; it is printed before the first measurement."""
        least = f"by {LEAST_KIB >> 10} MiB or more, and {100 * LEAST_SHARE:g} %"
        gains = {"memory": f"private memory is shown to fall {least}",
                 "cpu": "CPU time per unit of work is shown to fall"}  # fmt: skip
        gain = ", or ".join(gains[name] for name in self.gains)
        margins = {name: f"{name} {margin} %" for name, margin in MARGINS.items()}
        if not self.work:
            margins["cpu"] += f" or {LEAST_PERCENT:g} % of a CPU"
            del margins["work"]
        others = ", ".join(text for name, text in margins.items()
                           if (name,) != self.gains)  # fmt: skip
        return (
            f"kept if {gain}, and each other metric is shown to be worse by less than its margin "
            f"({others})"
        )

    @property
    def name(self) -> str:
        """Return the name of the manifest that a trial writes so that `maintain` works for the
        service for good.
        """
        return f"maintain-{profile_name((self.unit or self.cgroup).rpartition('.')[0], [])}"

    @property
    def seconds(self) -> float:
        """Return how many seconds one of the two measurements takes at least."""
        return self.block or BLOCK_S


@dataclass
class Level:
    """The figures of one measurement: in each list one value for each of its parts."""

    cpu: list[float] = field(default_factory=list)  # CPU seconds per second, or per unit of work
    memory: list[float] = field(default_factory=list)  # KiB
    work: list[float] = field(default_factory=list)  # units a second; empty without --work
    began: float = 0.0  # monotonic seconds; 0: not begun
    ended: float = 0.0


def plan_lines(host: Host, wish: OnceWish) -> Iterator[str]:
    """Yield the plan of a trial as text; raise an error if the trial must not begin now, or if the
    candidate cannot work on this host.
    """
    for verb in verbs_here(host):
        if verb.name == wish.candidate and verb.why_not:
            text = f"{wish.candidate} does not work on this host: {verb.why_not}"
            raise Error(text, Exit.LACKING, verb.next_step)
    if wish.candidate == "maintain" and not host.tree.is_dir(SYSTEMD):
        text = (
            "this host has no systemd, which would run mmpolicy maintain for good if the trial "
            "keeps its result"
        )
        hint = f"without a trial: mmpolicy maintain {option_of(wish.cgroup)}, in the foreground"
        raise Error(text, Exit.LACKING, hint)
    if not wish.gains:
        text = f"{wish.candidate} is kept if CPU time per unit of work falls, so it needs --work"
        hint = f"add --work METRIC, such as requests a second; mmpolicy {wish.candidate} needs none"
        raise Error(text, Exit.USAGE, hint)
    if why := not_now(host, wish.unit):
        raise Error(f"{why}; nothing was changed", Exit.FAILED, "try again when that is over")
    least, most = (2 * each * wish.seconds + LOOK_S for each in (1, TIMES))
    yield (
        f"the trial measures {wish.cgroup} for {figure(wish.seconds)} s, or up to "
        f"{figure(TIMES * wish.seconds)} s if its CPU time or memory varies much, runs "
        f"{wish.treatment} "
        f"on it once, and measures again for as long: {duration(least)} to {duration(most)}, plus "
        f"the time of {wish.treatment}; a shorter --block shortens it, and shows only larger "
        "effects"
    )
    yield (
        f"the trial ends before {wish.treatment} if a metric varies so much that no measurement "
        f"could show whether {wish.treatment} made it worse by more than its margin"
    )
    yield f"proof: {BEFORE_AND_AFTER}"
    yield f"rule: {wish.rule()}"
    yield from work_lines(wish)


def keeps(wish: OnceWish) -> str:
    """Return as text the file or the effect that remains if the trial finds a gain."""
    if wish.candidate == "maintain":
        who = wish.unit or wish.cgroup
        return f"{file_of(wish.name)} names {who}, and {MAINTAIN} works for it, also after a boot"
    return "no setting changes; the effect lasts until the next start of the service"


def carry_out(host: Host, wish: OnceWish, trial: Trial) -> Trial:
    """Run a trial, and return its record: measure, run the candidate's verbs once (trim, collapse,
    or both for maintain), measure again, and decide whether the result is kept.
    """
    trial, verbs = trial.keep(host.tree), wish.treatment
    with noted() as caught:
        run, begun = _Run(host, wish, caught), False
        page = [
            f"tried      {verbs} on {wish.cgroup}, measured before and after",
            f"rule       {wish.rule()}",
        ]
        try:
            tell_ready()
            doing = f"phase 1 of 3, measurement before {verbs} (the time of {verbs} is extra)"
            trial = run.does(trial, doing, LOOK_S + 2 * TIMES * wish.seconds)
            options, before = run.look(), Level()
            more = partial(run.measure, before)
            noisy = measure_enough(wish.gains, before, bool(wish.work), more)
            if prices := prices_of(wish.gains, noisy):
                longest = figure(TIMES * wish.seconds)
                text = f"{prices[0]} varies too much to be judged in {longest} s"
                reason = f"{text}, so {verbs} did not run; a longer --block measures more precisely"
                return _back(host, trial, page, int(Exit.INCONCLUSIVE), reason, begun)
            page += [f"note       {name} varies much: a gain of less than {percent:.0f} % may not "
                     "be shown" for name, percent in noisy.items()]  # fmt: skip
            again_s = len(before.cpu) / PARTS * wish.seconds
            doing = f"phase 2 of 3, {verbs}; the measurement after it takes {duration(again_s)}"
            trial, begun = run.does(trial, doing), True
            for name in ONCE[wish.candidate].verbs:
                page += run.work(name, options)
            trial = run.does(trial, f"phase 3 of 3, measurement after {verbs}", again_s)
            after = run.measure(Level(), len(before.cpu))
        except (StoppedError, Error) as err:
            code = SHELL + caught[0] if caught else int(Exit.FAILED)
            reason = err.message if isinstance(err, Error) else str(err)
            return _back(host, trial, page, code, reason, begun)
    gap = 1 + (after.began - before.ended) / (wish.seconds / PARTS)
    changes = {name: Change.of(getattr(before, name), getattr(after, name), gap)
               for name in MARGINS if getattr(before, name)}  # fmt: skip
    page += [f"{EFFECT}{name}: {change.text()}" for name, change in changes.items()]
    page.append(
        "note       measured before and after: all else that changed meanwhile is part of the "
        "difference"
    )
    if not wish.work:
        page.append(f"note       {WITHOUT_WORK}")
    code, reason = decide(wish.gains, changes, bool(wish.work))
    if code != Exit.DONE:
        return _back(host, trial, page, int(code), reason)
    if wish.candidate == "maintain":
        return _maintain(host, wish, trial, page)
    page += [
        f"{DECISION}kept: {reason}; it lasts until the next start of the service",
        f"repeat     the next start does not repeat the work: {repeated(wish, options)}",
        "undo       restart the service; no setting has changed",
    ]
    return trial.keep(host.tree, phase=DONE, exit=0, page=tuple(page))


def repeated(wish: OnceWish, options: Sequence[str]) -> str:
    """Return as text the commands that repeat what the candidate did, as a restart of the service
    undoes it. options: the options with which `trim` ran.
    """
    target = option_of(wish.cgroup)
    words = [wish.candidate, target, *(options if wish.candidate == "trim" else [])]
    text = f"mmpolicy {' '.join(words)} repeats it once"
    if "--include-madvised" in words:
        return text  # no advice to use `maintain`, which leaves memory with MADV_HUGEPAGE alone
    return f"{text}; mmpolicy try {target} --candidate maintain tries to repeat it for good"


def decide(gains: Sequence[str], changes: dict[str, Change], per_work: bool) -> tuple[Exit, str]:
    """Return the exit code and the reason as text. Exit.DONE means that the result is kept. A
    metric that is worse by more than its margin outweighs any gain.
    """
    worse = dict[str, bool]()
    for name, change in changes.items():
        margin = _margin(name, change.before, per_work)
        low, high = (-change.high, -change.low) if name == "work" else (change.low, change.high)
        if low > margin:
            return Exit.WORSE, f"{name} is shown to be worse by more than its margin"
        worse[name] = high >= margin
    found = [name for name in gains if name in changes and _gains(name, changes[name])]
    if not found:
        return Exit.INCONCLUSIVE, f"{' or '.join(gains)} is not shown to be better"
    doubtful = [name for name, may_be in worse.items() if may_be and name not in found]
    if doubtful:
        text = f"{doubtful[0]} may be worse by more than its margin"
        return Exit.INCONCLUSIVE, f"{text}; a longer --block measures more precisely"
    return Exit.DONE, f"{found[0]} {changes[found[0]].text()}"


def measure_enough(
    gains: Sequence[str], level: Level, per_work: bool, more: Callable[[int], object]
) -> dict[str, float]:
    """Call more(), which adds parts to a measurement, until the values are precise enough or
    TIMES * PARTS parts are measured. Return the metrics that are still too noisy, as too_noisy().

    A check may by chance find too little noise. To make few checks, the loop doubles the number of
    parts between two of them.
    """
    more(PARTS)
    while noisy := too_noisy(gains, level, per_work):
        if len(level.cpu) >= TIMES * PARTS:
            break
        more(len(level.cpu))
    return noisy


def too_noisy(gains: Sequence[str], level: Level, per_work: bool) -> dict[str, float]:
    """Return the metrics that are too noisy for a decision, each with the smallest effect in
    percent that the trial could show.

    A metric is too noisy if its expected interval is wider than its margin. If only one metric can
    show a gain, its interval may be twice as wide as its margin.
    """
    found = {}
    for name in MARGINS:
        if values := getattr(level, name):
            mean, least = fmean(values), SURE * Change.least(values, GAP)
            if least > _margin(name, mean, per_work) * (2 if (name,) == tuple(gains) else 1):
                found[name] = 100 * least / mean if mean else inf
    return found


def prices_of(gains: Sequence[str], noisy: Iterable[str]) -> list[str]:
    """Return those of the noisy metrics that prevent the trial from keeping the change, however
    large the gain is. If only one metric can show a gain, its noise does not: a large gain would
    still show.
    """
    return [name for name in noisy if (name,) != tuple(gains)]


def _margin(name: str, before: float, per_work: bool) -> float:
    margin = MARGINS[name] / 100 * before
    return max(margin, LEAST_PERCENT / 100) if name == "cpu" and not per_work else margin


def _gains(name: str, change: Change) -> bool:
    least = max(LEAST_KIB, LEAST_SHARE * change.before) if name == "memory" else 0.0
    return change.high < 0 and change.estimate <= -least


def _back(
    host: Host, trial: Trial, page: list[str], code: int, reason: str, begun: bool = True
) -> Trial:
    """Record that nothing is kept. begun: whether the verbs of the candidate have begun to work."""
    end = "no setting has changed, so there is nothing to undo"
    page.append(f"{DECISION}not kept: {reason}; {end}")
    return trial.keep(host.tree, phase=BACK if begun else UNTOUCHED, exit=code, page=tuple(page))


def _maintain(host: Host, wish: OnceWish, trial: Trial, page: list[str]) -> Trial:
    """Write a manifest that names the service, and make systemd run `maintain` for it. If systemd
    refuses, remove the manifest, and raise the error.
    """
    import tomli_w

    tree = host.tree
    file = file_of(wish.name)
    also = "" if tree.exists(ENABLED) else f" && systemctl disable --now {MAINTAIN}"
    undo = f"rm {file}{also}"
    trial = trial.keep(tree, phase=KEEPING, profile=wish.name, maintained=True, page=tuple(page))
    data = {"version": 1, "maintain": {"services": {wish.unit or wish.cgroup: True}}}
    tree.keep(file, tomli_w.dumps(data), 0o644)
    try:
        host.enable_unit(MAINTAIN)
    except Error as err:
        tree.drop(file)
        _back(host, trial, page, int(err.exit_code), err.message)
        raise
    page += [f"{DECISION}kept: {MAINTAIN} works for {wish.unit or wish.cgroup}",
             f"undo       {undo}"]  # fmt: skip
    return trial.keep(tree, phase=KEPT, exit=0, page=tuple(page), undo=undo)


def _of_trim(done: dict[str, Any]) -> str:
    kib = sum(row["before_kib"] - (row["after_kib"] or row["before_kib"])
              for row in done["processes"])  # fmt: skip
    return f"{kib >> 10} MiB given back"


def _of_collapse(done: dict[str, Any]) -> str:
    return (
        f"{done['made'] * BLOCK >> 20} MiB in 2 MB pages, in {done['took_s']:.0f} s and "
        f"{figure(done['cpu_s'], 2)} s of CPU; the longest stop {done['longest_ms']:.1f} ms"
    )


def _longer(tree: Tree, done: dict[str, Any]) -> Iterator[str]:
    """Yield a note if a collapse stopped the program for more than LONGER times as long as
    `collapse` had measured before its run.
    """
    told, longest = done.get("one_collapse_ms", 0.0), done.get("longest_ms", 0.0)
    if longest > LONGER * told:
        text = f"the longest stop was {longest:.1f} ms, longer than the {told:.1f} ms measured"
        text += " before the run, on memory that was in use"
        if hardware_of(tree).virtual:
            text += "; memory that this virtual machine has never used takes longer, as the "
            text += "hypervisor has to supply it first"
        yield f"note       {text}"


TOLD: dict[str, Callable[[dict[str, Any]], str]] = {"trim": _of_trim, "collapse": _of_collapse}


class _Run:
    """The steps of one trial, in which verbs work once. A signal, memory pressure or a restart of
    the service ends the trial early, by a StoppedError.
    """

    def __init__(self, host: Host, wish: OnceWish, caught: list[int]) -> None:
        self.host, self.wish, self.caught = host, wish, caught
        self.holds = Holds(host.tree)
        self.pressure = Pressure(host, WAITING)
        self.changed = Watch(host.show_units, host.clock, wish.unit)
        self.metric = Metric.of_work(wish.work) if wish.work else None
        sources = self.metric.sources() if self.metric else ()
        self.reader = Reader(host.tree, sources, {})
        self.asked = [each for each in sources if isinstance(each, Command)]
        self.commands = Commands(COMMAND_S, self.tick)
        self.doing = ""  # name of the current phase, for the progress line

    def does(self, trial: Trial, doing: str, left_s: float = 0.0) -> Trial:
        """Write to the record of the trial which phase it is in. left_s: the most seconds that the
        measurements still take, 0 if unknown.
        """
        self.doing = doing
        until = self.host.clock() + left_s if left_s else 0.0
        return trial.keep(self.host.tree, doing=doing, until=until)

    def tick(self) -> None:
        """Raise StoppedError after a signal, under memory pressure, or if the service was
        restarted.
        """
        if self.caught:
            name = signal.Signals(self.caught[0]).name
            raise StoppedError("interrupted", f"interrupted, by {name}")
        if why := self.changed():
            raise StoppedError("lost", f"{why}; give the command again for a new trial")
        if why := self.pressure.too_high():
            raise StoppedError("guard", why)

    def look(self) -> list[str]:
        """Return the options with which `trim` gives back the most memory of the service; raise an
        error if `trim` is the candidate and can give back none.
        """
        seen = look(self.host, self.wish.cgroup, LOOK_S)
        if self.wish.candidate == "trim" and seen.stays:
            raise StoppedError("failed", seen.stays)
        return seen.trim_options.split()

    def measure(self, level: Level, parts: int) -> Level:
        """Measure for `parts` further parts of equal length, and append one value for each to the
        lists of the level.
        """
        last = self._sample()
        level.began = level.began or last[1].t
        with own_line():
            for left in range(parts, 0, -1):
                left_s = left * self.wish.seconds / PARTS
                progress_line(f"{self.doing}: {left_s:.0f} s of it to go", is_last=False)
                self._pause(self.wish.seconds / PARTS)
                now = self._sample()
                (cpu, first), (then, second) = last, now
                seconds = second.t - first.t
                used = max(then - cpu, 0.0)
                work = self.metric.over([first, second], ARMS[0]) if self.metric else None
                if self.metric and not work:
                    raise StoppedError(
                        "failed",
                        f"--work {self.wish.work} did not rise while the service was measured, or "
                        "gave no number; repeat the trial under load, or with another metric",
                    )
                if work:
                    level.work.append(work)
                level.cpu.append(used / seconds / (work or 1.0))
                level.memory.append(self._private_kib())
                last = now
        level.ended = last[1].t
        return level

    def _pause(self, seconds: float) -> None:
        end = self.host.clock() + seconds
        self.tick()
        while (left := end - self.host.clock()) > 0:
            self.host.sleep(min(left, POLL_S))
            self.tick()

    def _sample(self) -> tuple[float, Sample]:
        numbers = self.commands.numbers([each.command for each in self.asked])
        commands = {each.text: number for each, number in zip(self.asked, numbers)}
        return self._cpu_s(), self.reader.read(self.host.clock(), commands)

    def _pids(self) -> Iterator[int]:
        return map(int, cgroup_pids(self.host.tree, self.wish.cgroup))

    def _cpu_s(self) -> float:
        """Return the CPU seconds that the cgroup of the service has used. If the cgroup has no such
        counter, return the sum over its live processes.
        """
        if (used := counters_of(self.host.tree, self.wish.cgroup).get("cpu_us")) is not None:
            return used / 1e6
        found = (read_usage(self.host.tree, pid) for pid in self._pids())
        return sum(each[1].user + each[1].system for each in found if each) / TICKS_S

    def _private_kib(self) -> float:
        whole = 0
        for pid in self._pids():
            with suppress(Error):  # a process that has ended since _pids() adds nothing
                whole += Space(self.host.tree, pid, self.holds).sizes().anon
        return float(whole)

    def work(self, name: str, options: list[str]) -> list[str]:
        """Run the verb `name` on the service; return the lines of the report about its work."""
        from mmpolicy.verbs.collapse import collapse
        from mmpolicy.verbs.trim import trim

        verbs: dict[str, click.Command] = {"trim": trim, "collapse": collapse}
        words = ["--cgroup", self.wish.cgroup, *(options if name == "trim" else []), "--json"]
        printed, note = io.StringIO(), ""
        with redirect_stdout(printed):
            try:
                verbs[name].main(words, obj=self.host, standalone_mode=False)
            except Error as err:
                note = err.message
        self.tick()
        done = json.loads(printed.getvalue() or "{}")
        text = TOLD[name](done) if done else "nothing"
        text = "; ".join(filter(None, [text, note]))
        return [f"did        {name}: {text}", *_longer(self.host.tree, done)]
