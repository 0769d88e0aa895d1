# SPDX-License-Identifier: GPL-2.0
"""The verb `try --watch`: continue to test a kept setting, and undo the setting if it does harm.

Each cycle runs one pair of blocks at a random moment, one at stock and one with the setting; a coin
decides their order. At all other times the setting is in force. However the process ends, it tries
to leave the setting in force.
"""

from __future__ import annotations

import os
import random
import re
import secrets
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import datetime, timezone
from math import isfinite, log
from pathlib import Path
from typing import Any, NamedTuple

import click

from mmpolicy.ab.anytime import excess_in_turn, sequence
from mmpolicy.ab.design import MAX_SEED, at_margin, differences, in_percent
from mmpolicy.ab.metrics import Metric
from mmpolicy.ab.run.bound import Bound, bind_again
from mmpolicy.ab.run.runner import Length
from mmpolicy.ab.run.scope import scope_of
from mmpolicy.ab.samples import load
from mmpolicy.control.change import StateChange
from mmpolicy.control.experiment import LOOK_AGAIN_S, PATIENCE_S
from mmpolicy.control.experiment import running as experiment_of
from mmpolicy.control.journal import boot_of
from mmpolicy.control.keys import CgroupBinding, Profile, Setting, UnitBinding
from mmpolicy.control.manifest import undeclare
from mmpolicy.control.state import bindings_of, plan, read_state
from mmpolicy.control.trials import (
    AT_STOCK,
    BACK,
    KEPT,
    Trial,
    file_of,
    read_trials,
    standing,
)
from mmpolicy.control.watched import (
    ENDED,
    GOING_BACK,
    ON,
    RUN,
    WENT_BACK,
    Ends,
    Watch,
    Watched,
    add_pair,
    read_watched,
    watch_command,
    watched_of,
)
from mmpolicy.errors import Error, Exit
from mmpolicy.figures import figure
from mmpolicy.host.files import Tree
from mmpolicy.host.machine import Host, tell_ready
from mmpolicy.host.service import Watch as ServiceWatch
from mmpolicy.host.signals import SHELL, noted
from mmpolicy.memory.findings import option_of
from mmpolicy.render import emit
from mmpolicy.verbs.ab_jobs import start_own_unit
from mmpolicy.verbs.ab_plan import Plan
from mmpolicy.verbs.ab_run import planned, run_planned
from mmpolicy.verbs.commit import change, exclusive, keep_change
from mmpolicy.verbs.options import ask
from mmpolicy.verbs.try_now import not_now
from mmpolicy.verbs.try_run import CPU, MEMORY, WORK

DAY_S, WEEK_S = 86400.0, 7 * 86400.0
# shortest and longest sleep in seconds; a signal that arrives in a sleep is handled after it
LEAST_S, STEP_S = 0.01, 5.0
HARM = {"cpu": CPU, "memory": MEMORY, "work": WORK}
# promise_line() prints after how many days harm of HARMED times the margin is found.
HARMED = 2
RESTARTED = ("Restart=on-failure", "RestartSec=30s", "RestartPreventExitStatus=8")
STOPPED = "by try --stop"


# What the test costs


def cost_lines(percent: float, block_s: float) -> Iterator[str]:
    """Yield lines about the continued test of a kept setting: how it works, and which share of the
    gain it costs. percent: share of the blocks at stock.
    """
    cycle = block_s * 100 / percent
    yield (
        f"watch: one block of {figure(block_s)} s in {figure(cycle / 60, 3)} min is at stock, as "
        f"long as the setting is kept; this costs {percent:g} % of the gain at most"
    )
    yield (
        "watch: the setting is taken back if its gain is shown to have turned into a loss, or "
        "another metric to be worse by more than its margin; false alarms: in 5 % of years at most"
    )


def promise_line(record: Watched) -> str:
    """Return as text, for each metric, after how many days the test finds harm if the setting does
    some.
    """
    known = [f"{name} in {days:.1f} days" for name, days in record.days.items() if days]
    late = [name for name, days in record.days.items() if not days]
    said = [f"found with 80 % probability: {', '.join(known)}"] * bool(known)
    said += [f"not found: {', '.join(late)}"] * bool(late)
    return (
        f"watch: harm of {HARMED} times the margin, with noise as in the trial: "
        f"{'; '.join(said) or 'the samples of the trial are gone, so not known'}"
    )


def begin_lines(record: Watched) -> Iterator[str]:
    """Yield the lines that are printed before the test of a kept setting: its cost, and after how
    many days it finds harm.
    """
    yield from cost_lines(record.percent, record.block_s)
    yield promise_line(record)


# How a test begins


def new_record(tree: Tree, trial: Trial, percent: float) -> Watched:
    """Return the record of a test that is about to begin. It has the metrics and block lengths of
    the trial whose setting is tested; raise an error if the samples of that trial are gone.
    """
    try:
        recording = load(Path(trial.file))
    except OSError as err:
        text = f"the samples of the trial are gone: {err}"
        hint = f"mmpolicy try {option_of(trial.cgroup)} runs a new trial"
        raise Error(text, Exit.FAILED, hint) from err
    header = recording.header
    record = Watched(
        trial=trial.name, cgroup=trial.cgroup, profile=trial.profile, percent=percent,
        metrics=tuple(header["metrics"]), guards=tuple(header["guards"]),
        block_s=header["block_s"], washout_s=header["washout_s"],
        interval_s=header["interval_s"],
        began=datetime.now(timezone.utc).isoformat(timespec="seconds"), boot=boot_of(tree),
    )  # fmt: skip
    pairs = {each.name: recording.pairs(each, "ab") for each in recording.metrics()}
    return replace(record, days=_promised(record, pairs))


def _promised(record: Watched, found: dict[str, list[tuple[float, float]]]) -> dict[str, float]:
    """Return for each metric after how many days the test finds harm; 0 means that it would not
    find it. found: the pairs of values that the trial measured, by metric.
    """
    from mmpolicy.ab.report.drift import days_to_find

    metrics, days = _metrics(record), {}
    a_day = DAY_S / record.block_s * record.percent / 100
    for metric in metrics:
        scale, noise = differences(found[metric.name]) if found[metric.name] else ("", [])
        if scale == "ratio" and len(noise) > 1:
            lower, own = metric.better == "lower", metric.margin or HARM.get(metric.name, MEMORY)
            allowed = log(at_margin(lower, metric.margin))
            harm = abs(log(at_margin(lower, HARMED * own)) - allowed)
            time_ = days_to_find(noise, harm, a_day, len(metrics))
            days[metric.name] = time_ if isfinite(time_) else 0.0
    return days


def _metrics(record: Watched) -> list[Metric]:
    return [metric for metric in map(Metric.parse, record.metrics) if metric.better]


def begin_watch(host: Host, record: Watched) -> None:
    """Start a systemd unit that continues to test a kept setting. systemd starts it again after a
    failure.
    """
    words = ["try", "--watch", f"{record.percent:g}%", "--trial", record.trial, "--yes"]
    start_own_unit(
        host,
        unit_of(record),
        "mmpolicy test of a kept setting",
        [*words, "--foreground"],
        RESTARTED,
    )


def unit_of(record: Watched) -> str:
    """Return the name of the systemd unit that tests the setting."""
    return f"mmpolicy-watch-{record.profile}"


class How(NamedTuple):
    """The options that say how `try --watch` starts the test of a kept setting."""

    yes: bool
    foreground: bool
    dry_run: bool
    want_json: bool


def watch_kept(ctx: click.Context, percent: float, name: str | None, how: How) -> None:
    """Print the cost of testing a kept setting, ask the user, and run the test in this process or
    as a systemd unit. name: a trial; None means the last one whose setting is kept.
    """
    host: Host = ctx.obj
    trial = _trial_of(host.tree, name)
    known = watched_of(host.tree, trial.name)
    if known and (who := known.running(host.tree)):
        raise Error(
            f"the setting is already being tested: {who}", Exit.EXPERIMENT, "mmpolicy try --status"
        )
    going_on = known and known.phase in (ON, GOING_BACK) and known.percent == percent
    record = known if known and going_on else new_record(host.tree, trial, percent)
    if known:
        record = replace(record, at_stock=known.at_stock)
    lines = [*begin_lines(record)]
    data = {"watch": asdict(record), "dry_run": how.dry_run}
    if how.dry_run:
        emit("try", how.want_json, data, lines)
        return
    for line in lines:
        click.echo(line, err=True)
    ask(how.yes, ", or --dry-run to look")
    if how.foreground:
        _run(ctx, trial, record, how.want_json)
        return
    begin_watch(host, record)
    told = f"{unit_of(record)}.service goes on testing the setting"
    emit("try", how.want_json, data, [told, "next: mmpolicy try --status; mmpolicy try --stop"])


def _trial_of(tree: Tree, name: str | None) -> Trial:
    """Return the trial whose setting `try --watch` is to test: the one with this name, or, without
    a name, the last one that has kept a setting. Raise an error if its setting is neither in force
    nor can be put in force again.
    """
    for trial in reversed(read_trials(tree)):
        named = trial.name == name if name else trial.profile
        if named and standing(tree, trial) in (KEPT, AT_STOCK):
            return trial
        record = watched_of(tree, trial.name)
        if name == trial.name and record and record.phase in (ON, GOING_BACK):
            return trial  # its setting may be missing only while the module is reloaded
    text = "no setting that try has kept is in force"
    if name:
        text = f"no setting that {name} has kept is in force"
    raise Error(text, Exit.FAILED, "mmpolicy try --list")


def _run(ctx: click.Context, trial: Trial, record: Watched, want_json: bool) -> None:
    """Continue, in this process, to test whether the kept setting does harm, and end the process.

    The exit code is 8 if the setting did harm and is back at stock, 0 after try --stop or if
    another program has changed the setting, and 128 and its number after a signal.
    """
    host: Host = ctx.obj
    with host.tree.locked(record.lock, f"{RUN}{os.getpid()}", 0.5), noted() as caught:
        if host.tree.exists(record.stop):
            host.tree.drop(record.stop)
        record = record.keep(host.tree, boot=boot_of(host.tree))
        watcher = Watcher(ctx, trial, record, caught)
        watcher.run()
    record = watcher.record
    emit("try", want_json, {"watch": asdict(record)}, [*watch_lines(host.tree, record)])
    if record.phase != ENDED and caught:
        ctx.exit(SHELL + caught[0])
    ctx.exit(int(Exit.WORSE if record.phase == WENT_BACK else Exit.DONE))


def watch_trial(host: Host, trial: Trial, percent: float) -> None:
    """Start the test of a setting that a trial has just kept. If the start fails, print a warning;
    the setting is still kept.
    """
    try:
        record = new_record(host.tree, trial, percent)
        begin_watch(host, record)
    except Error as err:
        click.echo(
            f"warning: the setting is kept, but cannot be tested further: {err.message}; next: "
            + watch_command(percent, trial.name),
            err=True,
        )
        return
    for line in (*begin_lines(record), f"{unit_of(record)}.service goes on testing the setting"):
        click.echo(line, err=True)


# The running test


class Watcher:
    """Tests one kept setting: each cycle runs one pair of blocks, and then judges all pairs."""

    def __init__(
        self, ctx: click.Context, trial: Trial, record: Watched, caught: list[int]
    ) -> None:
        self.host: Host = ctx.obj
        self.trial = trial
        self.record = record
        self._ctx, self._caught = ctx, caught
        self._changed = 0  # number of checks in a row that have found the setting not in force
        self._offset = time.time() - self.host.clock()

    @property
    def _over(self) -> bool:
        """Return whether the test of the setting is over: it has ended, a signal has arrived, or
        `try --stop` asks for its end.
        """
        if self.record.phase == ON and self.host.tree.exists(self.record.stop):
            self._keep(phase=ENDED, reason=STOPPED)
        return bool(self._caught) or self.record.phase in (ENDED, WENT_BACK)

    def run(self) -> None:
        """Until the test of the setting is over, run one pair of blocks in each cycle, at a random
        moment of the cycle.
        """
        self._keep(skipped="")
        self._mend()
        tell_ready()
        cycle = self.record.block_s * 100 / self.record.percent
        while not self._over:
            end = self.host.clock() + cycle
            self._rest(random.uniform(0, cycle - 2 * self.record.block_s))
            if not self._over:
                self._look()
            self._rest(end - self.host.clock())

    def _rest(self, seconds: float) -> None:
        end = self.host.clock() + seconds
        while (left := end - self.host.clock()) > LEAST_S and not self._over:
            self.host.sleep(min(left, STEP_S))

    def _keep(self, **changes: Any) -> None:
        """Change fields of the record of the test, and write it to its file. If that fails, as on a
        full disk, the test goes on.
        """
        new = replace(self.record, **changes)
        with suppress(Error):
            new.keep(self.host.tree)
        self.record = new

    def _tell(self, note: str) -> None:
        keep_change(self.host, StateChange({}, {}), f"{self.record.cgroup}: {note}")

    def _mend(self) -> None:
        """Bind the service to its profile again, if this test was killed in a block at stock and
        so left the service at stock.
        """
        if self.record.at_stock:
            note = mend(self.host.tree, self.record) or "bound again"
            self._tell(f"a block at stock was interrupted: {note}")
            self._keep(at_stock=0, lost=self.record.lost + 1)

    def _look(self) -> None:
        """Run a pair of blocks, one of them at stock, and decide whether the setting does harm. If
        an error prevents this, the next cycle tries again.
        """
        try:
            if self.record.phase == GOING_BACK:
                self._go_back()
                return
            self._mend()
            if self._gone():
                return
            if why := self._why_not():
                self._keep(skipped=why)
            elif pair := self._pair():
                self._decide(pair)
            else:
                self._keep(lost=self.record.lost + 1)
        except Error as err:
            self._keep(skipped=err.message)

    def _gone(self) -> bool:
        """Return whether the setting is not in force, so that no pair can run. The test ends at
        the second check in a row that finds this: at the first, the module may be reloading.
        """
        if standing(self.host.tree, self.trial) == KEPT:
            self._changed = 0
            return False
        self._changed += 1
        if self._changed > 1:
            self._keep(phase=ENDED, reason="the setting is no longer in force")
            self._tell(f"the test of the kept setting ends: {self.record.reason}")
        else:
            self._keep(skipped="the setting is not in force now")
        return True

    def _why_not(self) -> str:
        if who := experiment_of(self.host.tree):
            return f"an experiment runs: {who}"
        return not_now(self.host, self.trial.unit)

    def _pair(self) -> Watch | None:
        """Run one pair of blocks; return its values, or None if the run was interrupted."""
        tree, record = self.host.tree, self.record
        file = tree.real(f"/run/mmpolicy/watch-{record.trial}.jsonl")
        file.unlink(missing_ok=True)
        scope = scope_of(tree, record.cgroup)
        own = Bound(tree, scope, record.profile, self._note_stock)
        also = ServiceWatch(self.host.show_units, self.host.clock, self.trial.unit)
        try:
            runner = run_planned(self.host, self._plan(), file, also, own)
        finally:
            file.unlink(missing_ok=True)
        self._caught += runner.caught
        if runner.failure:
            raise runner.failure
        found = {each.name: runner.recording.pairs(each, "ab") for each in runner.metrics}
        if runner.end["status"] != "done" or not all(found.values()):
            self._keep(skipped=f"cut short: {runner.end['reason']}")
            return None
        at = self._offset + self.host.clock()
        return Watch(at, {name: pairs[0] for name, pairs in found.items()})

    def _note_stock(self, number: int) -> None:
        """Record the id of the cgroup before a block at stock, and 0 after it. If the test is
        killed in between, _mend() sees the id and binds the service again. An error in the first
        call prevents the block.
        """
        self.record = self.record.keep(self.host.tree, at_stock=number)

    def _plan(self) -> Plan:
        """Return the plan of a switchback experiment with one pair of blocks, and a new random
        seed.
        """
        record = self.record
        words = ["--design", "switchback", "--treatment", record.profile]
        words += ["--cgroup", record.cgroup, "--aa-pairs", "0", "--stop", "anytime"]
        words += [word for each in record.metrics for word in ("--metric", each)]
        words += [word for each in record.guards for word in ("--guard", each)]
        for name in "block", "washout", "interval":
            words += [f"--{name}", f"{getattr(record, f'{name}_s'):g}"]
        found = planned(self._ctx, words)
        design = replace(found.design, seed=secrets.randbelow(MAX_SEED))
        return found._replace(design=design, length=Length(0, 1, stretches=False))

    # The decision, and how the setting is undone

    def _decide(self, pair: Watch) -> None:
        pairs = add_pair(self.host.tree, self.record.trial, pair)
        recent = [each for each in pairs if each.at > pair.at - WEEK_S]
        effects = dict(_effects(self.record, recent))
        self._keep(effects=effects, pairs=len(recent), skipped="")
        if reason := harm(self.record, pairs):
            self._keep(phase=GOING_BACK, reason=reason)
            self._go_back()

    def _go_back(self) -> None:
        take_back(self.host, self.trial)
        line = f"decision   set back to stock by try --watch: {self.record.reason}"
        now = next((each for each in read_trials(self.host.tree)
                    if each.name == self.trial.name), self.trial)  # fmt: skip
        self._keep(phase=WENT_BACK, at_stock=0)
        now.keep(self.host.tree, phase=BACK, exit=int(Exit.WORSE), page=(*now.page, line))
        self._tell(f"back at stock: {self.record.reason}")


def harm(record: Watched, pairs: Sequence[Watch]) -> str:
    """Return as text which metric is shown to be worse by more than its margin; "" if none is."""
    from mmpolicy.ab.report.drift import evidence_of, is_harm

    metrics = _metrics(record)
    for metric in metrics:
        values = [each.values[metric.name] for each in pairs if metric.name in each.values]
        days = [int(each.at // DAY_S) for each in pairs if metric.name in each.values]
        over = excess_in_turn(values, metric.better == "lower", metric.margin) if values else []
        if is_harm(evidence_of(over, days), len(metrics)):
            more = f" by more than {metric.margin:g} %" if metric.margin else " than at stock"
            last = record.effects.get(metric.name)
            seen = f"; in the last week {_ends(last)}" if last else ""
            return f"{metric.name} is shown to be worse{more}{seen}"
    return ""


def _effects(record: Watched, pairs: Sequence[Watch]) -> Iterator[tuple[str, Ends]]:
    """Yield for each metric its name, and its effect in percent: the estimate and both ends of its
    interval. A metric with too few pairs for an interval is left out.
    """
    for metric in _metrics(record):
        values = [each.values[metric.name] for each in pairs if metric.name in each.values]
        scale, *ends = sequence(values) if len(values) > 1 else ("difference", 0.0)
        if scale != "difference" and all(map(isfinite, ends)):
            middle, low, high = map(in_percent, ends)
            yield metric.name, (middle, low, high)


def _ends(ends: Ends) -> str:
    middle, low, high = ends
    return f"{figure(middle, 3, '+')} % (95 %: {figure(low, 3, '+')} .. {figure(high, 3, '+')} %)"


def take_back(host: Host, trial: Trial) -> None:
    """Undo the setting that a trial has kept: its manifest, its bindings, and its profile if
    nothing else is bound to that. Changes that other commands have made since then stay.
    """
    tree, name = host.tree, trial.profile
    with exclusive(host, dry_run=False):
        if tree.exists(file_of(name)):
            tree.drop(file_of(name))
        old = read_state(tree)
        new = {key: value for key, value in old.items() if not _is_kept(key, value, name, trial)}
        if not bindings_of(new, name):
            new = {key: value for key, value in new.items() if not _is_of(key, name)}
        change(host, plan(old, new))
        undeclare(tree, name)


def _is_kept(key: Any, value: str, profile: str, trial: Trial) -> bool:
    """Return whether an entry of the module's state binds the service of the trial to the profile
    that the trial has kept.
    """
    if isinstance(key, UnitBinding):
        return key.unit == trial.unit and value == profile
    return isinstance(key, CgroupBinding) and value == profile


def _is_of(key: Any, profile: str) -> bool:
    """Return whether an entry of the state is this profile itself, or one of its settings."""
    if isinstance(key, Setting):
        return key.profile == profile
    return isinstance(key, Profile) and key.name == profile


def mend(tree: Tree, record: Watched) -> str:
    """Bind a service to its profile again after the test was killed in a block at stock. Return "",
    or as text why this failed.
    """
    return bind_again(tree, record.at_stock, scope_of(tree, record.cgroup), record.profile)


# Reports


def watch_lines(tree: Tree, record: Watched) -> Iterator[str]:
    """Yield as text the progress of the test of a kept setting, and the effects it has measured so
    far.
    """
    yield f"watch      {_where(tree, record)}"
    for metric in _metrics(record):
        if ends := record.effects.get(metric.name):
            yield f"watch      {metric.name}: {_ends(ends)}; {_judged(metric, ends)}"
    if record.phase == ON and not record.effects:
        yield "watch      no effect known yet: it takes 7 pairs of blocks or more"


def _where(tree: Tree, record: Watched) -> str:
    if record.phase != ON:
        return f"{record.phase}: {record.reason}"
    lost = f", {record.lost} lost" * bool(record.lost)
    share = f"{record.percent:g} % of the blocks at stock"
    where = f"{record.pairs} pairs in the last week{lost}, {share}"
    if record.running(tree):
        stock = "; at stock now, for comparison" * bool(record.at_stock)
        last = f"; the last pair was skipped: {record.skipped}" * bool(record.skipped)
        return f"goes on: {where}{stock}{last}"
    if record.at_stock:
        return (
            "the test was killed while the service was at stock, which is in force; next: "
            f"{record.goes_on} applies the setting again, and continues the test; mmpolicy try "
            "--stop applies the setting again, and ends the test"
        )
    why = "a boot" if boot_of(tree) != record.boot else "its process"
    return f"the test ended with {why}; the setting stays; {where}; next: {record.goes_on}"


def _judged(metric: Metric, ends: Ends) -> str:
    """Return the verdict on a metric as text, from the ends of its interval in percent."""
    low, high = (ends[1], ends[2]) if metric.better == "lower" else (-ends[2], -ends[1])
    if metric.guard:
        return f"within its margin of {metric.margin:g} %" if high < metric.margin else "not clear"
    return "it pays" if high < 0 else "worse" if low > 0 else "not shown to pay"


def stop_watches(host: Host) -> list[Watched]:
    """End all tests of kept settings on this host, and note that the user knows of the settings
    that a test has undone. Return the records that changed.
    """
    stopped = []
    for record in read_watched(host.tree):
        if record.phase == WENT_BACK and not record.known:
            stopped.append(record.keep(host.tree, known=True))
        elif record.phase in (ON, GOING_BACK):
            stopped.append(_stop(host, record))
    return stopped


def _stop(host: Host, record: Watched) -> Watched:
    """Ask the process of a test to end, and wait until its setting is in force. If no process runs
    the test, and it was killed in a block at stock, bind the service in this process.
    """
    tree, who = host.tree, record.running(host.tree)
    pid = re.fullmatch(rf"{RUN}(\d+)", who)
    tree.keep(record.stop, "")
    end = host.clock() + PATIENCE_S
    if pid:
        with suppress(ProcessLookupError):
            os.kill(int(pid[1]), signal.SIGTERM)
    while who and record.running(tree) == who:
        if host.clock() > end:
            raise Error(
                f"the continued test does not stop: {who}", Exit.EXPERIMENT, "mmpolicy try --status"
            )
        host.sleep(LOOK_AGAIN_S)
    record = watched_of(tree, record.trial) or record
    if record.at_stock and not mend(tree, record):
        record = replace(record, at_stock=0)
    tree.drop(record.stop)
    return record if record.phase == WENT_BACK else record.keep(tree, phase=ENDED, reason=STOPPED)
