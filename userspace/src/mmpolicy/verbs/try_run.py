# SPDX-License-Identifier: GPL-2.0
"""Run a trial that is a switchback by `ab run`, decide by its report, and keep the setting."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from mmpolicy.ab.arms import settings_of_arm
from mmpolicy.ab.presets import read as read_preset
from mmpolicy.ab.run.keeper import told
from mmpolicy.ab.run.scope import HOST
from mmpolicy.ab.samples import load
from mmpolicy.control.experiment import FOLDER as SAMPLES
from mmpolicy.control.keys import (
    MANIFESTS,
    CgroupBinding,
    Profile,
    State,
    UnitBinding,
)
from mmpolicy.control.manifest import Manifest
from mmpolicy.control.manifest import save as save_state
from mmpolicy.control.model import Control
from mmpolicy.control.state import bind_unit, changed_keys, plan, profiles_of, read_state
from mmpolicy.control.trials import (
    BACK,
    DECISION,
    EFFECT,
    KEEPING,
    KEPT,
    UNTOUCHED,
    Trial,
    file_of,
    undo_of,
)
from mmpolicy.control.units import check_unit, units_of
from mmpolicy.errors import LOAD, Error, Exit
from mmpolicy.figures import figure
from mmpolicy.host.cgroups import cgroup_folders, find_bindable
from mmpolicy.host.files import CONTROL, Tree
from mmpolicy.host.machine import Host
from mmpolicy.host.service import Watch
from mmpolicy.host.signals import SHELL
from mmpolicy.memory.findings import option_of
from mmpolicy.memory.worth import BY_MODULE, SIZES
from mmpolicy.verbs.ab_plan import Plan
from mmpolicy.verbs.ab_preset import plan_lines as experiment_lines
from mmpolicy.verbs.ab_run import planned, run_planned
from mmpolicy.verbs.commit import change, exclusive
from mmpolicy.verbs.explain import profile_name
from mmpolicy.verbs.try_host import RESTORE, change_of, keep_sizes, keeps_sizes, undo_sizes
from mmpolicy.verbs.try_look import options_of, pace
from mmpolicy.verbs.try_now import WAITING, not_now

if TYPE_CHECKING:
    from mmpolicy.ab.report.metric_result import MetricResult
    from mmpolicy.ab.report.report import Report
    from mmpolicy.ab.run.runner import Runner

MEMORY, CPU, WORK = 5, 3, 5  # margins of the metrics: the percentage by which each may get worse
WITHOUT_WORK = "without --work, the trial cannot tell a service that does less from a cheaper one"
# the causes of a gain that the observation before a trial leaves out of its bound
UNCOUNTED = (
    "the look counts page faults alone, not fewer misses of the TLB, nor memory that is cleared in "
    "one piece"
)


class Try(NamedTuple):
    """How a candidate is tried: a preset of `ab run`, a treatment arm that replaces the one of the
    preset ("": none), and the metric that must improve.
    """

    preset: str
    treatment: str
    gains: str  # the metric that must improve for the setting to be kept


TRIES = {
    SIZES: Try(SIZES, "", "cpu"),
    "adaptive": Try("adaptive", "", "cpu"),
    "adaptive-2mb": Try("adaptive", "anon_order=adaptive,max_order=9", "cpu"),
    "madv-free": Try("madv-free", "", "memory"),
    "thp-gfp": Try("thp-gfp", "", "stalled"),
}


@dataclass(frozen=True)
class Wish:
    """The options of one trial; None or "" for an option that the user did not give."""

    candidate: str
    cgroup: str  # the path
    unit: str
    work: str | None
    block: float | None
    pairs: int | None
    lease: float | None
    # the most that the observation found page faults to save, in percent of the CPU time of the
    # service; 0 if unknown
    bound: float = 0.0

    @property
    def words(self) -> list[str]:
        """Return the options of `ab run` for a trial of the candidate."""
        how = TRIES[self.candidate]
        words = ["--preset", how.preset, "--cgroup", self.cgroup]
        words += ["--treatment", how.treatment] if how.treatment else []
        for metric in self.metrics():
            words += ["--metric", metric]
        return words + pace(self.block, self.pairs, self.lease)

    @property
    def options(self) -> list[str]:
        """Return as words the options of `try` that the user gave for this trial."""
        return options_of(self.work, self.block, self.pairs, self.lease)

    @property
    def treatment(self) -> str:
        """Return the treatment arm of the switchback: the setting that is tried."""
        how = TRIES[self.candidate]
        return how.treatment or str(read_preset(how.preset)["treatment"])

    def metrics(self) -> Iterator[str]:
        """Yield the metrics as words for --metric: the one that must improve, and the others as
        guards with their margins.
        """
        gains, at = TRIES[self.candidate].gains, f"cgroup:{self.cgroup}"
        per_work = f" / {self.work}" if self.work else ""
        cpu, memory = f"{at}/cpu.stat:usage_usec/s", f"{at}/memory.current"
        if self.cgroup == HOST:
            cpu, memory = "cpu.busy/s", "vmstat.nr_anon_pages"
        found = {
            "cpu": (f"{cpu}{per_work} lower", CPU),
            "memory": (f"{memory} lower", MEMORY),
        }
        if gains == "stalled":
            found["stalled"] = (f"{at}/memory.pressure:some.total/s lower", 0)
        if self.work:
            found["work"] = (f"{self.work} higher", WORK)
        for name, (text, margin) in found.items():
            yield f"{name}={text}" + (f" guard {margin}%" if name != gains else "")

    def rule(self) -> str:
        """Return the rule of the decision as text; it is printed before the first block."""
        gains = TRIES[self.candidate].gains
        margins = {"cpu": CPU, "memory": MEMORY} | ({"work": WORK} if self.work else {})
        others = ", ".join(f"{name} {margin} %" for name, margin in margins.items()
                           if name != gains)  # fmt: skip
        return (
            f"kept if {gains} is found to be better, and each other metric is shown to be better, "
            f"or worse by less than its margin ({others}); else the former state is restored"
        )


def planned_of(ctx: click.Context, wish: Wish) -> Plan:
    """Return the plan of the trial's experiment. Raise an error if the trial must not begin now,
    for example because the host lacks memory.
    """
    host: Host = ctx.obj
    if why := not_now(host, wish.unit):
        raise Error(f"{why}; nothing was changed", Exit.FAILED, "try again when that is over")
    return planned(ctx, [*wish.words, *_guards(host.tree, wish)])


def check_libraries() -> None:
    """Raise an error if a library for the report is missing. Without this check, the error would
    come only at the end of the trial.
    """
    import mmpolicy.ab.report.report  # noqa: F401


def _guards(tree: Tree, wish: Wish) -> Iterator[str]:
    """Yield options of `ab run` that add a guard on the memory pressure of the service itself.
    Guards given as options replace those of the preset, so the guard of the preset is repeated.
    Nothing is yielded if the cgroup has no memory.pressure, or if that pressure is what the trial
    wants to improve.
    """
    own = f"{wish.cgroup}/memory.pressure"
    has_own = wish.cgroup != HOST and any(tree.exists(f"{folder}/memory.pressure")
                  for folder in cgroup_folders(tree, wish.cgroup))  # fmt: skip
    if has_own and TRIES[wish.candidate].gains != "stalled":
        for guard in (*read_preset(TRIES[wish.candidate].preset)["guard"],
                      f"cgroup:{own}:full.avg10 < {WAITING:g}"):  # fmt: skip
            yield from ("--guard", guard)


def plan_lines(wish: Wish, experiment: Plan) -> Iterator[str]:
    """Yield the plan of the trial as text: arms, duration, and the rule of the decision."""
    yield from experiment_lines(TRIES[wish.candidate].preset, experiment)
    if wish.candidate == SIZES:
        yield "in the blocks of the treatment, all programs of the host get these sizes"
    yield f"rule: {wish.rule()}"
    yield from work_lines(wish)


def work_lines(wish: Wish) -> Iterator[str]:
    """Yield the line of a plan that says what the trial cannot tell without --work."""
    if not wish.work:
        yield (
            f"note: {WITHOUT_WORK}; with --work METRIC, such as requests a second, the answer is "
            "one per unit of work"
        )


def keeps(tree: Tree, wish: Wish) -> str:
    """Return as text what a trial changes for good if it keeps its setting."""
    if wish.candidate == SIZES:
        return keeps_sizes(tree, wish.treatment)
    name = _free_name(read_state(tree), wish)
    start = f", also at each start of {wish.unit}" if wish.unit else ""
    return (
        f"profile {name} is bound to {wish.cgroup}{start}; {file_of(name)} has it for the next boot"
    )


def _free_name(state: State, wish: Wish) -> str:
    stem = wish.cgroup.rpartition("/")[2].rpartition(".")[0] or wish.cgroup.rpartition("/")[2]
    return profile_name(stem, profiles_of(state))


def new_trial(tree: Tree, wish: Wish, file: Path | None) -> Trial:
    """Return the record of a trial that is about to begin. file: where to write the samples; None
    means a new file in SAMPLES, a directory that is created if it is missing.
    """
    name = f"try-{datetime.now(timezone.utc):%Y%m%d-%H%M%S}"
    samples = file or tree.real(f"{SAMPLES}/{name}.jsonl")
    samples.parent.mkdir(parents=True, exist_ok=True)
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return Trial(name, started, wish.cgroup, wish.unit, wish.candidate, wish.treatment,
                 str(samples.absolute()), wish.rule())  # fmt: skip


def carry_out(host: Host, wish: Wish, experiment: Plan, trial: Trial) -> Trial:
    """Run the experiment, decide, and then keep the setting or restore the former state. Return the
    record of the trial, which now has a report and an exit code.
    """
    trial = trial.keep(host.tree)
    try:
        restore = f"{RESTORE}.path" if wish.candidate == SIZES else ""
        also = Watch(host.show_units, host.clock, wish.unit, restore)
        runner = run_planned(host, experiment, Path(trial.file), also)
    except BaseException:
        host.tree.drop(trial.path)  # nothing has been changed
        raise
    if runner.failure and not isinstance(runner.failure, Error):
        raise runner.failure
    report = _report(trial.file)
    code = _exit(runner, report)
    page = list(_page(trial, runner, report, wish.bound))
    if code != Exit.DONE:
        phase = BACK if runner.begun or runner.end["note"] else UNTOUCHED
        page.append(f"{DECISION}{_not_kept(host.tree, wish, runner, report, phase)}")
        return trial.keep(host.tree, phase=phase, exit=code, page=tuple(page))
    try:
        if wish.candidate == SIZES:
            before, sizes = change_of(host.tree, wish.treatment)
            undo, kept = undo_sizes(before), f"{told(sizes)} for the whole host"
            trial = trial.keep(host.tree, phase=KEEPING, sizes=sizes, page=tuple(page), undo=undo)
            keep_sizes(host, trial, before)
        else:
            profile = _free_name(read_state(host.tree), wish)
            trial = trial.keep(host.tree, phase=KEEPING, profile=profile)
            undo = _keep(host, wish, trial)
            kept = f"{wish.cgroup} is bound to the profile {profile}"
    except Error as err:
        gone = _unloaded(host.tree, wish)
        text = f"not kept, the former state is restored: {err.message}"
        page.append(f"{DECISION}{_at_stock(gone) if gone else text}")
        code = int((gone or err).exit_code)
        trial.keep(host.tree, phase=BACK, exit=code, page=tuple(page), undo="")
        raise gone or err from err
    page.append(f"{DECISION}kept: {kept}")
    page.append(f"undo       {undo}")
    return trial.keep(host.tree, phase=KEPT, exit=code, page=tuple(page), undo=undo)


def _unloaded(tree: Tree, wish: Wish) -> Error | None:
    """Return the error for a setting that needs the module, if the module was unloaded while the
    trial ran; else None.
    """
    if wish.candidate not in BY_MODULE or tree.is_dir(CONTROL):
        return None
    words = " ".join(map(shlex.quote, ("--candidate", wish.candidate, *wish.options)))
    text = "the module was unloaded meanwhile, so all is at stock"
    again = f"{LOAD} && mmpolicy try {option_of(wish.cgroup)} {words}"
    return Error(text, Exit.LACKING, again)


def _report(file: str) -> Report:
    from mmpolicy.ab.report.report import Report

    return Report(load(Path(file)))


def _exit(runner: Runner, report: Report) -> int:
    """Return the exit code of a trial: 0 only if the setting is kept; after an interruption, SHELL
    plus the number of the signal.
    """
    if runner.end["status"] == "interrupted":
        return SHELL + runner.caught[0]
    if report.exit == Exit.WORSE:
        return int(Exit.WORSE)
    if runner.end["status"] != "done":
        return int(Exit.FAILED)
    return int(report.exit)


def _not_kept(tree: Tree, wish: Wish, runner: Runner, report: Report, phase: str) -> str:
    """Return the decision of a trial that keeps nothing, with the reason, as text."""
    if runner.end["status"] != "done" and (gone := _unloaded(tree, wish)):
        return _at_stock(gone)
    state = "no block has run" if phase == UNTOUCHED else "the former state is restored"
    return f"not kept, {state}: {_why_back(runner, report)}"


def _at_stock(gone: Error) -> str:
    return f"not kept: {gone.message}; next: {gone.next_step}"


def _why_back(runner: Runner, report: Report) -> str:
    status, reason = runner.end["status"], runner.end["reason"]
    if status == "lost":
        # the text after the semicolon is advice for `ab run`, not for `try`
        own = str(reason).partition(";")[0]
        return f"{own}; give the command again for a new trial"
    if status != "done":
        return str(reason) if status == "guard" else f"{status}, {reason}"
    if report.doubts:
        return f"the result is in doubt, as {report.doubts[0]}"
    return "the trial shows no gain"


def _page(trial: Trial, runner: Runner, report: Report, bound: float) -> Iterator[str]:
    """Yield the lines of the trial's report that come before the decision. bound: that of Wish."""
    blocks = runner.recording.blocks
    against = "the sizes of before" if trial.candidate == SIZES else "stock"
    yield f"tried      {trial.candidate} ({trial.treatment}) on {trial.cgroup}, against {against}"
    yield f"rule       {trial.rule}"
    block_s = figure(runner.design.block_s)
    yield f"ran        {len(blocks)} blocks of {block_s} s, from {trial.started}"
    for row in report.rows:
        effect = "no effect known"
        if row.effect:
            ends = row.ends(row.effect.low, row.effect.high)
            effect = f"{row.text(row.effect.estimate)} (95 %: {ends})"
        yield f"{EFFECT}{row.metric.name}: {effect}; {row.verdict()}"
    yield f"verdict    {report.verdict()}"
    for note in report.notes():
        yield f"note       {note}"
    for row in report.rows:
        if row.metric.name == "cpu" and bound and is_beyond(row, bound):
            most = f"the {figure(bound, 2)} % that the look called the most"
            yield f"note       cpu fell by more than {most}: {UNCOUNTED}"
    if not any(row.metric.name == "work" for row in report.rows):
        yield f"note       {WITHOUT_WORK}"
    yield f"samples    {trial.file}; mmpolicy ab report FILE shows all figures, and plots"
    if runner.end["note"]:
        yield f"state      {runner.end['note']}"


def is_beyond(row: MetricResult, bound: float) -> bool:
    """Return whether a metric is shown to have fallen by more than `bound` percent."""
    return bool(row.effect and row.relative and row.shown(row.effect.high) < -bound)


def _keep(host: Host, wish: Wish, trial: Trial) -> str:
    """Bind the service to a new profile, now and at each start; return as text the commands that
    undo this. If a write fails, remove the manifest and raise the error.
    """
    tree, profile = host.tree, trial.profile
    with exclusive(host, dry_run=False):
        old = read_state(tree)
        settings = settings_of_arm(Control(tree), old, wish.treatment)
        cgroup = CgroupBinding(find_bindable(tree, wish.cgroup).number)
        own: State = {Profile(profile): ""}
        own |= {key.of(profile): value for key, value in settings.items()}
        kept: State = dict(own) if wish.unit else {**own, cgroup: profile}
        clean = _is_as_applied(tree, old)
        tree.keep(file_of(profile), save_state(tree, kept), 0o644)
        try:
            writes = plan(old, {**old, **own, cgroup: profile})
            if wish.unit:
                key = check_unit(units_of(tree), wish.unit, profile, force=False)
                writes.append(bind_unit(key, profile))
            change(host, writes)
        except BaseException:
            tree.drop(file_of(profile))
            raise
        if clean:
            unit_file = [UnitBinding(wish.unit).path] if wish.unit else []
            clean.declare(tree, [file_of(profile), *unit_file])
    undo = undo_of(tree, trial)
    return f"{undo} && mmpolicy apply {MANIFESTS}" if clean else undo


def _is_as_applied(tree: Tree, now: State) -> Manifest | None:
    """Return the manifest that was applied last, if the present state of the module is as it says;
    else None.
    """
    try:
        manifest = Manifest.applied(tree)
        same = manifest and not changed_keys(now, manifest.target(tree, now))
    except Error:
        return None
    return manifest if same else None
