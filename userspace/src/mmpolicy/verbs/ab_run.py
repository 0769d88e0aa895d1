# SPDX-License-Identifier: GPL-2.0
"""`ab run`: run an experiment."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

import click

from mmpolicy import __version__
from mmpolicy.ab.arms import STOCK, settings_of_arm, split_arm
from mmpolicy.ab.design import MAX_SEED, Design
from mmpolicy.ab.identity import about_host, digest_of, labels_of, roles_of
from mmpolicy.ab.metrics import FORMS, Metric
from mmpolicy.ab.run.changes import Changes
from mmpolicy.ab.run.keeper import put_back
from mmpolicy.ab.run.knobs import Knobs
from mmpolicy.ab.run.outfile import OutFile
from mmpolicy.ab.run.policy_arms import PolicyArms
from mmpolicy.ab.run.progress import clock
from mmpolicy.ab.run.runner import Length, Runner
from mmpolicy.ab.run.scope import scope_of
from mmpolicy.ab.samples import VERSIONS
from mmpolicy.control.change import StateChange
from mmpolicy.control.experiment import LOCK, RESTORE, RUN
from mmpolicy.control.journal import read_journal, whatever
from mmpolicy.control.keys import DEFAULT
from mmpolicy.control.model import Control
from mmpolicy.control.state import read_state
from mmpolicy.errors import Error, Exit
from mmpolicy.figures import figure
from mmpolicy.host.files import CONTROL, PATIENCE_S
from mmpolicy.host.knobs import read_knobs
from mmpolicy.host.machine import Host
from mmpolicy.host.signals import SHELL
from mmpolicy.render import emit
from mmpolicy.verbs.ab_plan import PAIRS, Plan, RunOptions, plan_of
from mmpolicy.verbs.ab_reached import check_arms, check_knobs
from mmpolicy.verbs.commit import emit_plan, keep_change
from mmpolicy.verbs.former import former_option
from mmpolicy.verbs.options import (
    FILE,
    Count,
    Levels,
    Number,
    Preset,
    Seconds,
    complete_cgroup,
    complete_unit,
    completer,
    dry_run_option,
    json_option,
    margin_option,
)
from mmpolicy.verbs.progress import Quiet, display

# Options of `ab run` that say how to run or print; they are not part of the plan of an experiment.
HERE = ("dry_run", "want_json", "out", "detach", "yes")


def _changes(host: Host, given: RunOptions, timing: bool) -> Changes:
    """Return the writes of each arm; raise an error if the arms set knobs that `--design split`
    cannot compare, or if the kernel or the module does not accept a setting.
    """
    now = read_knobs(host.tree)
    parts = {arm: split_arm(host.tree, now, text) for arm, text in given.arms().items()}
    own = {arm: knobs for arm, (_, knobs) in parts.items()}
    texts = {arm: text for arm, (text, _) in parts.items()}
    if any(own.values()) and given.design == "split":
        text = (
            "knobs of the kernel apply to the whole host, and --design split runs both arms at once"
        )
        raise Error(text, Exit.USAGE, "give --design switchback")
    check_knobs(host.tree, [path for each in own.values() for path in each], given.metric)
    knobs = Knobs(host.tree, now, own, given.lease, partial(_tell, host))
    if not _has_policies(host, texts, any(own.values())):
        _check_alone(host, given, timing)
        return Changes(None, knobs)
    return Changes(_policy_arms(host, given, texts, timing), knobs)


def _has_policies(host: Host, texts: dict[str, str], has_knobs: bool) -> bool:
    """Return whether the arms need the module. It is not needed by arms that only set knobs of the
    kernel, nor, while it is not loaded, by the arm `stock`.
    """
    loaded = host.tree.is_dir(CONTROL)
    as_it_is = ("", DEFAULT) if loaded else ("", DEFAULT, STOCK)
    return not set(texts.values()) <= set(as_it_is) or (loaded and not has_knobs)


def _check_alone(host: Host, given: RunOptions, timing: bool) -> None:
    """Raise a usage error for options that only work with policies of the module. Called for arms
    that set only knobs of the kernel.
    """
    if given.cgroup or timing:
        what = "--cgroup" if given.cgroup else "fault_ns"
        instead = f"leave {what} out"
    elif given.design == "split":
        what, instead = "--design split", "give --design switchback"
    else:
        return
    text = f"{what} works only with arms that set policies of the module; these set none"
    load = "" if host.tree.is_dir(CONTROL) else "mmpolicy load, and "
    hint = f"{instead}; or {load}give arms such as anon_order=adaptive"
    raise Error(text, Exit.USAGE, hint)


def _policy_arms(host: Host, given: RunOptions, texts: dict[str, str], timing: bool) -> PolicyArms:
    control, state = Control(host.tree), read_state(host.tree)
    arms = {arm: settings_of_arm(control, state, text or STOCK) for arm, text in texts.items()}
    scope = scope_of(host.tree, given.cgroup)
    check_arms(host.tree, scope.path, arms.values())
    found = PolicyArms(host.tree, arms, int(given.lease * 1000), scope, timing)
    found.levels = given.saturation or found.levels
    for warning in scope.warnings(state):
        click.echo(f"warning: {warning}", err=True)
    return found


def _header(
    host: Host, given: RunOptions, design: Design, length: Length, changes: Changes
) -> dict[str, Any]:
    """Return the header of the samples file: all that `ab report` needs apart from the samples."""
    arms = {
        arm: {"given": text, "settings": changes.settings(arm)}
        for arm, text in given.arms().items()
    }
    header = {
        "version": VERSIONS[-1],
        "tool": __version__,
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "design": design.kind,
        "block_s": design.block_s,
        "washout_s": design.washout_s,
        "interval_s": design.interval_s,
        "seed": design.seed,
        "seed_given": given.seed,
        "rule": length.rule(),
        "length": length.way,
        "detect": given.detect,
        "aa_pairs": length.aa_pairs,
        "pairs": length.pairs,
        "margin": given.margin,
        "rare": given.rare,
        "unit": given.unit,
        "cgroup": changes.scope.number,
        "cgroup_path": changes.scope.path,
        "saturation": given.saturation,
        "at_switch": given.at_switch,
        "cmd_timeout_s": given.cmd_timeout,
        "runs_this_week": 1 + _runs_before(host, given),
        "metrics": given.metric,
        "guards": given.guard,
        "roles": roles_of([*map(Metric.parse, given.metric)], given.margin),
        "host": about_host(host, labels_of(given.label)),
        **arms,
    }
    digest = digest_of(header)
    return header | {"digest": digest, "experiment": given.experiment or digest}


def _schedule(design: Design, length: Length) -> Iterator[tuple[str, str]]:
    blocks = length.blocks(design)
    yield "rule", length.rule()
    yield "blocks", f"{blocks} of {figure(design.block_s)} s"
    yield "time", clock(blocks * design.block_s)


def _dry_run(design: Design, length: Length, changes: Changes, unit: str, json: bool) -> None:
    emit_plan("ab run", json, changes.rehearsal(unit), **dict(_schedule(design, length)))


def _finish(runner: Runner, file: Path, want_json: bool) -> None:
    end, pairs = runner.end, runner.pairs
    blocks = len(runner.recording.blocks)
    back = end["note"] or f"the former state was restored in {end['restore_s']:.2f} s"
    data = {"dry_run": False, "file": str(file), "pairs": pairs, **end}
    data["blocks"] = blocks
    lines = [f"{end['status']}: {end['reason']}", back, f"next: mmpolicy ab report {file}"]
    if want_json or end["status"] == "done":
        emit("ab run", want_json, data, lines)
    if isinstance(runner.failure, Error):
        runner.failure.message += f"; {back}"
    if runner.failure:
        raise runner.failure
    if end["status"] != "done":
        text = f"{end['status']}: {end['reason']}; {back}"
        hint = f"mmpolicy ab report {file} reports the result so far"
        by_signal = end["status"] == "interrupted"
        code = SHELL + runner.caught[0] if by_signal else Exit.FAILED
        raise Error(text, code, hint if blocks else "give the command again")


@click.command()
@click.option(
    "--design", type=click.Choice(["split", "switchback"]),
    help="Compare units side by side, or the whole host in turns.  "
    "[default: split, with knobs switchback]",
)  # fmt: skip
@click.option(
    "--control", default="default", show_default=True, metavar="ARM",
    shell_complete=completer("arm"),
    help=(
        "Settings of this arm: a profile, `stock`, POINT=POLICY[,KNOB=VALUE ...], or knobs "
        "of the kernel itself."
    ),
)  # fmt: skip
@click.option(
    "--treatment",
    metavar="ARM",
    shell_complete=completer("arm"),
    help="Settings as for --control; if not given, both arms are equal.",
)
@click.option(
    "--preset", type=Preset(),
    help="An experiment for a service: arms, metrics, guards and length, which other options "
    "replace.",
)  # fmt: skip
@click.option("--yes", is_flag=True, help="With --preset: start without a question.")
@click.option(
    "--metric", multiple=True, metavar="METRIC", shell_complete=completer("metric"),
    help="Metric to compare; may be repeated: [NAME=]SOURCE[/s] [/ SOURCE] [lower|higher "
    f"[guard PERCENT%]]; a SOURCE is one of {FORMS}.",
)  # fmt: skip
@click.option(
    "--guard", multiple=True, metavar="GUARD", shell_complete=completer("metric"),
    help="Stop the run and restore the state if this is not true: `METRIC < NUMBER`, or <=, >, >=.",
)  # fmt: skip
@click.option(
    "--unit", default="process", show_default=True, metavar="process|cgroup|SERVICE",
    shell_complete=complete_unit,
    help="What is assigned to an arm: processes or cgroups; with --preset, the service to measure.",
)  # fmt: skip
@click.option(
    "--exposure", "saturation", type=Levels(), metavar="FEW,MANY",
    help="With --design split: also compare untreated units while few and while many units are "
    "treated, in percent; that shows effects on neighbours.",
)  # fmt: skip
@click.option(
    "--cgroup", metavar="CGROUP", shell_complete=complete_cgroup,
    help="The experiment is limited to processes in this cgroup.",
)  # fmt: skip
@click.option(
    "--block", type=Seconds(), default="30s", show_default=True, help="Length of a block."
)
@click.option(
    "--washout", type=Seconds(), default="5s", show_default=True,
    help="Time at the start of each block that is not measured.",
)  # fmt: skip
@click.option(
    "--interval", type=Seconds(), default="1s", show_default=True, help="Time between two samples."
)
@click.option(
    "--aa-pairs", "aa", type=Count(min=0), metavar="PAIRS",
    help="Number of pairs with equal arms at first, which show the noise.  "
    "[default: as many as can show that they differ; none with --detect and --stop anytime]",
)  # fmt: skip
@click.option(
    "--pairs", type=Count(),
    help=f"Number of pairs after the A/A phase; lost pairs are replaced.  [default: {PAIRS}]",
)  # fmt: skip
@click.option("--duration", type=Seconds(), help="Length of the whole run, instead of --pairs.")
@click.option(
    "--detect", type=Number(min=0.01), metavar="PERCENT",
    help="Run as many pairs as are needed to find a change of this size.",
)  # fmt: skip
@click.option(
    "--stop", type=click.Choice(["planned", "anytime"]), default="planned", show_default=True,
    help="End the run as planned, or as soon as the result is clear (anytime-valid).",
)  # fmt: skip
@margin_option
@click.option(
    "--detect-rare", "rare", type=Number(0.1, 50), metavar="PERCENT",
    help=(
        "Run enough pairs to see an event that happens in this percentage of the blocks, "
        "such as a stall."
    ),
)  # fmt: skip
@click.option(
    "--cmd-timeout", type=Seconds(), default="10s", show_default=True,
    help="Time limit of a metric's command; a slower one ends the run.",
)  # fmt: skip
@click.option(
    "--at-switch", metavar="COMMAND",
    help="Command to run at the start of each block, against carry-over: a restart, a flush.",
)  # fmt: skip
@click.option(
    "--lease", type=Seconds(least=1), default="10s", show_default=True,
    help="The kernel goes back to stock if this command does not report for this time.",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(0, MAX_SEED - 1), help="Seed of all random choices.")
@click.option(
    "--experiment",
    metavar="NAME",
    help=(
        "Name of the experiment, by which ab pool finds files that belong together.  "
        "[default: a digest]"
    ),
)
@click.option(
    "--label",
    multiple=True,
    metavar="KEY=VALUE",
    help="A label of this host, for ab pool; may be repeated.",
)
@click.option(
    "--out", type=FILE, metavar="FILE", help="File for the samples.  [default: ab-TIME.jsonl]"
)
@click.option(
    "--detach",
    is_flag=True,
    help="Run the experiment as a unit of systemd; see mmpolicy ab status and ab stop.",
)
@former_option("--aa", "--aa-pairs")
@former_option("--rare", "--detect-rare")
@former_option("--saturation", "--exposure")
@dry_run_option
@json_option
@click.pass_context
def run(
    ctx: click.Context, dry_run: bool, want_json: bool, out: Path | None, detach: bool, yes: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Run an experiment, and then restore the state.

    \b
    mmpolicy ab run --treatment anon_order=adaptive,max_order=6 \\
        --metric 'arm.anon_order.fault_ns lower' --guard 'psi.memory.full.avg10 < 5'

    For switchback, an arm can also set knobs of the kernel itself, without the module:
    hugepages-64kB/enabled=always, 'hugepages-*/enabled=never', vm/compaction_proactiveness=0.

    A broken guard, Ctrl-C and every error end the run and restore the state at once. If this
    command is killed, the kernel goes back to stock when the lease expires. A watchdog restores
    knobs of the kernel itself at once.
    """
    preset = options["preset"]
    plan = _plan(ctx, options)
    if preset:
        from mmpolicy.verbs.ab_preset import show

        show(preset, plan, yes or dry_run)
    if dry_run:
        changes = _changes(ctx.obj, plan.given, plan.timing)
        _dry_run(plan.design, plan.length, changes, plan.given.unit, want_json)
    elif detach:
        from mmpolicy.verbs.ab_jobs import run_as_unit

        run_as_unit(ctx.obj, ctx, out, want_json)
    else:
        file = out or Path(f"ab-{datetime.now(timezone.utc):%Y%m%d-%H%M%S}.jsonl")
        _finish(run_planned(ctx.obj, plan, file), file, want_json)


def _plan(ctx: click.Context, options: dict[str, Any]) -> Plan:
    """Return the plan that the options describe. With --preset, the preset fills in the options
    that the user did not give.
    """
    options = dict(options)
    preset = options.pop("preset")
    if preset:
        from mmpolicy.verbs.ab_preset import resolve

        options = resolve(ctx.obj, ctx, preset, options)
        ctx.params |= options
    return plan_of(ctx.obj, options)


def planned(ctx: click.Context, words: Sequence[str]) -> Plan:
    """Return the plan that `ab run` makes of these command-line words; raise its errors."""
    with run.make_context("run", [*words], parent=ctx) as own:
        options = {name: value for name, value in own.params.items() if name not in HERE}
        return _plan(own, options)


def run_planned(
    host: Host, plan: Plan, file: Path, also: Callable[[], str] = lambda: "",
    own: Changes | None = None,
) -> Runner:  # fmt: skip
    """Run a planned experiment under the lock that allows one experiment at a time.

    also(): returns a further reason to end the run, or "". own: changes that the caller has
    prepared; the journal then has no entry for the run, and no progress is shown.
    """
    given, metrics, guards, design, length, timing = plan
    with _locked(host, design, length, file):
        if note := put_back(host.tree):
            click.echo(f"warning: {note}", err=True)
        changes = own or _changes(host, given, timing)
        header = _header(host, given, design, length, changes)
        with _opened(file) as stream, nullcontext(Quiet()) if own else display() as shown:
            runner = Runner(
                host, design, length, metrics, guards, changes, header, stream, shown, also
            )
            if not own:
                _tell(host, _note(given))
            try:
                runner.run()
            finally:
                if runner.end and not own:
                    _tell(host, f"ends: {runner.end['status']}, {runner.end['reason']}")
    return runner


def _locked(
    host: Host, design: Design, length: Length, file: Path
) -> AbstractContextManager[None]:  # fmt: skip
    """Take the lock that allows only one experiment at a time. The lock's text names this process
    and the expected end, for commands that find the lock taken. If `ab restore` holds it, wait up
    to PATIENCE_S.
    """
    seconds = length.blocks(design) * design.block_s
    until = (datetime.now(timezone.utc) + timedelta(seconds=seconds)).astimezone()
    who = f"{RUN}{os.getpid()}, until about {until:%Y-%m-%d %H:%M}, which writes {file.absolute()}"
    restoring = host.tree.holder(LOCK).startswith(RESTORE)
    return host.tree.locked(LOCK, who, PATIENCE_S if restoring else 0.5)


@contextmanager
def _opened(file: Path) -> Iterator[OutFile]:
    """Open a new file for the samples; it is closed at the end of the block."""
    stream = OutFile(file)
    try:
        yield stream
    finally:
        stream.close()


def _note(given: RunOptions) -> str:
    """Return the note about a run for the journal. It lists the arms, by which _runs_before() finds
    earlier runs with the same arms.
    """
    return f"begins: {', '.join(given.arms().values())}"


def _runs_before(host: Host, given: RunOptions) -> int:
    """Return how many runs with these arms have begun on this host in the last seven days."""
    since = datetime.now(timezone.utc) - timedelta(weeks=1)
    entries = read_journal(host.tree, whatever)
    notes = [entry.note for entry in entries if datetime.fromisoformat(entry.time) > since]
    return notes.count(_note(given))


def _tell(host: Host, note: str) -> None:
    keep_change(host, StateChange({}, {}), note)
