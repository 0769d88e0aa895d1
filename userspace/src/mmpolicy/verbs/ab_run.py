# SPDX-License-Identifier: GPL-2.0
"""`ab run`: experiments."""

import os
import platform
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import click

from mmpolicy import __version__
from mmpolicy.ab.arms import PROFILES, STOCK, settings_of_arm, split_arm
from mmpolicy.ab.changes import Changes
from mmpolicy.ab.design import DIRTY, MAX_SEED, Design, least_pairs
from mmpolicy.ab.guards import Guard
from mmpolicy.ab.keeper import put_back
from mmpolicy.ab.knobs import Knobs
from mmpolicy.ab.lab import Lab
from mmpolicy.ab.metrics import FORMS, Metric
from mmpolicy.ab.preflight import check_sources, wants_times
from mmpolicy.ab.progress import clock
from mmpolicy.ab.runner import Length, Runner
from mmpolicy.ab.samples import VERSION
from mmpolicy.ab.scope import scope_of
from mmpolicy.control.change import Done
from mmpolicy.control.journal import read_journal
from mmpolicy.control.keys import DEFAULT
from mmpolicy.control.model import Control
from mmpolicy.control.state import read_state
from mmpolicy.errors import Error, Exit
from mmpolicy.host.files import CONTROL
from mmpolicy.host.knobs import read_knobs
from mmpolicy.host.machine import Host
from mmpolicy.render import emit
from mmpolicy.verbs.commit import keep_change
from mmpolicy.verbs.options import FILE, Seconds, dry_run_option, json_option, pass_host
from mmpolicy.verbs.progress import display

LOCK = "/run/mmpolicy/ab.lock"
PAIRS, MOST_PAIRS = 12, 200
UNJUDGED = "--margin needs a metric that says what is better, `lower` or `higher`"
MARGIN = click.option(
    "--margin", type=click.FloatRange(0, 100, min_open=True, max_open=True), metavar="PERCENT",
    help="Ask whether the run shows that the treatment is no worse than this.",
)  # fmt: skip


@dataclass(frozen=True)
class RunOptions:
    """What `ab run` is asked for; times are in seconds."""

    design: str
    control: str
    treatment: str | None
    metric: tuple[str, ...]
    guard: tuple[str, ...]
    unit: str
    cgroup: str | None
    block: float
    washout: float
    interval: float
    aa: int | None
    pairs: int | None
    duration: float | None
    detect: float | None
    margin: float | None
    cmd_timeout: float
    at_switch: str | None
    lease: float
    seed: int | None

    def arms(self) -> dict[str, str]:
        """Return what each arm is given as."""
        return dict(zip(PROFILES, (self.control, self.treatment or self.control), strict=True))


def _design(given: RunOptions) -> Design:
    if given.washout >= given.block:
        raise click.UsageError("the wash-out has to be shorter than the block")
    seed = secrets.randbelow(MAX_SEED) if given.seed is None else given.seed
    return Design(given.design, given.block, given.washout, given.interval, seed)


def _length(given: RunOptions, design: Design, metrics: Sequence[Metric]) -> Length:
    """Return how long to go on, or say that so short a run can show nothing."""
    if given.pairs and given.duration:
        raise click.UsageError("--pairs and --duration both say how long: give one")
    aa = _aa_pairs(given, len(metrics))
    pairs = given.pairs or (MOST_PAIRS if given.detect else PAIRS)
    if given.duration:
        left = given.duration - design.seconds(aa)
        pairs = int(left // design.seconds(1))
    least = least_pairs(len(metrics))
    if pairs < least:
        many = "s" * (len(metrics) > 1)
        text = f"{max(pairs, 0)} pairs can show nothing with {len(metrics)} metric{many}"
        need = clock(design.seconds(aa + least))
        raise click.UsageError(f"{text}: it takes {least} pairs, {need} with the A/A phase")
    if given.detect and aa < 4:
        raise click.UsageError("--detect learns the noise from the A/A phase: give --aa 4 or more")
    return Length(aa, pairs, given.detect or 0.0)


def _aa_pairs(given: RunOptions, metrics: int) -> int:
    """Return how many pairs of A/A there are; warn of too few to be of use."""
    need = least_pairs(metrics, DIRTY)
    if given.aa is None:
        return need
    if given.aa < need:
        text = f"{given.aa} pairs of A/A cannot show that equal arms differ; it takes {need}"
        click.echo(f"warning: {text}", err=True)
    return given.aa


def _changes(host: Host, given: RunOptions, timing: bool) -> Changes:
    """Return what the arms are made of; refuse what cannot be."""
    now = read_knobs(host.tree)
    parts = {arm: split_arm(host.tree, now, text) for arm, text in given.arms().items()}
    own = {arm: knobs for arm, (_, knobs) in parts.items()}
    texts = {arm: text for arm, (text, _) in parts.items()}
    if any(own.values()) and given.design == "split":
        text = "knobs are of the whole host, where both arms run at once"
        raise Error(text, Exit.USAGE, "take --design switchback")
    knobs = Knobs(host.tree, now, own, given.lease, partial(_tell, host))
    if not _has_policies(host, texts, any(own.values())):
        _check_alone(given, timing)
        return Changes(None, knobs)
    return Changes(_lab(host, given, texts, timing), knobs)


def _has_policies(host: Host, texts: dict[str, str], has_knobs: bool) -> bool:
    """Tell if the module takes part; knobs alone leave it as it is."""
    loaded = host.tree.is_dir(CONTROL)
    as_it_is = ("", DEFAULT) if loaded else ("", DEFAULT, STOCK)
    return not set(texts.values()) <= set(as_it_is) or (loaded and not has_knobs)


def _check_alone(given: RunOptions, timing: bool) -> None:
    """Refuse what only policies have."""
    if given.design == "split" or given.cgroup or timing:
        what = "--cgroup" if given.cgroup else "fault_ns" if timing else "--design split"
        text = f"{what} is for arms with policies, of a module that is loaded"
        raise Error(text, Exit.USAGE, "take --design switchback, and knobs as arms")


def _lab(host: Host, given: RunOptions, texts: dict[str, str], timing: bool) -> Lab:
    control, state = Control(host.tree), read_state(host.tree)
    arms = {arm: settings_of_arm(control, state, text or STOCK) for arm, text in texts.items()}
    scope = scope_of(host.tree, given.cgroup)
    lab = Lab(host.tree, arms, int(given.lease * 1000), scope, timing)
    for warning in scope.warnings(state):
        click.echo(f"warning: {warning}", err=True)
    return lab


def _header(
    host: Host, given: RunOptions, design: Design, length: Length, changes: Changes
) -> dict[str, Any]:
    """Return all that a report has to know beside the samples."""
    arms = {
        arm: {"given": text, "settings": changes.settings(arm)}
        for arm, text in given.arms().items()
    }
    machine = {"kernel": host.release(), "machine": platform.machine(), "cpus": os.cpu_count()}
    return {
        "version": VERSION,
        "tool": __version__,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "design": design.kind,
        "block_s": design.block_s,
        "washout_s": design.washout_s,
        "interval_s": design.interval_s,
        "seed": design.seed,
        "rule": length.rule(),
        "aa_pairs": length.aa_pairs,
        "pairs": length.pairs,
        "margin": given.margin,
        "unit": given.unit,
        "cgroup": changes.scope.number,
        "cgroup_path": changes.scope.path,
        "at_switch": given.at_switch,
        "cmd_timeout_s": given.cmd_timeout,
        "runs_this_week": 1 + _runs_before(host, given),
        "metrics": given.metric,
        "guards": given.guard,
        "host": machine,
        **arms,
    }


def _schedule(design: Design, length: Length) -> Iterator[tuple[str, str]]:
    total = length.aa_pairs + length.pairs
    yield "rule", length.rule()
    yield "blocks", f"{total * design.blocks_of_pair} of {design.block_s:g} s"
    yield "time", clock(design.seconds(total))


def _dry_run(design: Design, length: Length, changes: Changes, unit: str, json: bool) -> None:
    writes = list(changes.rehearsal(unit))
    schedule = dict(_schedule(design, length))
    lines = [f"{path} <- {value}" for path, value in writes]
    lines += [f"{name}: {value}" for name, value in schedule.items()]
    pairs = [{"path": path, "value": value} for path, value in writes]
    data = {"dry_run": True, "writes": pairs, **schedule}
    emit("ab run", json, data, lines)


def _finish(runner: Runner, file: Path, want_json: bool) -> None:
    end, pairs = runner.end, runner.pairs
    back = end["note"] or f"the state from before is back, in {end['restore_s']:.2f} s"
    data = {"dry_run": False, "file": str(file), "pairs": pairs, **end}
    data["blocks"] = len(runner.recording.blocks)
    lines = [f"{end['status']}: {end['reason']}", back, f"next: mmpolicy ab report {file}"]
    if want_json or end["status"] == "done":
        emit("ab run", want_json, data, lines)
    if runner.failure:
        runner.failure.message += f"; {back}"
        raise runner.failure
    if end["status"] != "done":
        text = f"{end['status']}: {end['reason']}; {back}"
        raise Error(text, Exit.FAILED, f"mmpolicy ab report {file} says what there is so far")


@click.command()
@click.option(
    "--design", type=click.Choice(["split", "switchback"]), default="split", show_default=True,
    help="Compare units side by side, or the whole host in turns.",
)  # fmt: skip
@click.option(
    "--control", default="default", show_default=True, metavar="ARM",
    help="A profile, `stock`, POINT=POLICY[,KNOB=VALUE ...], or knobs of the kernel itself.",
)  # fmt: skip
@click.option(
    "--treatment", metavar="ARM", help="As --control; if not given, both arms are the control."
)
@click.option(
    "--metric", multiple=True, required=True, metavar="METRIC",
    help="What to compare; may be repeated: [NAME=]SOURCE[/s] [/ SOURCE] [lower|higher]; "
    f"a SOURCE is one of {FORMS}.",
)  # fmt: skip
@click.option(
    "--guard", multiple=True, metavar="GUARD",
    help="Stop and restore the state if this is not true: `METRIC < NUMBER`, or <=, >, >=.",
)  # fmt: skip
@click.option(
    "--unit", type=click.Choice(["process", "cgroup"]), default="process", show_default=True,
    help="The unit that is assigned to an arm.",
)  # fmt: skip
@click.option("--cgroup", metavar="CGROUP", help="Only processes in this cgroup take part.")
@click.option(
    "--block", type=Seconds(), default="30s", show_default=True, help="Length of a block."
)
@click.option(
    "--washout", type=Seconds(), default="5s", show_default=True,
    help="The first part of a block, which is not measured.",
)  # fmt: skip
@click.option(
    "--interval", type=Seconds(), default="1s", show_default=True, help="Time between two samples."
)
@click.option(
    "--aa", type=click.IntRange(min=0), metavar="PAIRS",
    help="Number of pairs with equal arms at first, which show the noise.  "
    "[default: as many as can show that they differ]",
)  # fmt: skip
@click.option(
    "--pairs", type=click.IntRange(min=1), help=f"Number of pairs after that.  [default: {PAIRS}]"
)
@click.option("--duration", type=Seconds(), help="Length of the whole run, instead of --pairs.")
@click.option(
    "--detect", type=click.FloatRange(min=0.01), metavar="PERCENT",
    help="Take as many pairs as find such a change, given the noise of A/A.",
)  # fmt: skip
@MARGIN
@click.option(
    "--cmd-timeout", type=Seconds(), default="10s", show_default=True,
    help="The run ends if a command takes longer.",
)  # fmt: skip
@click.option(
    "--at-switch", metavar="COMMAND",
    help="Run at the beginning of each block, against carry-over: a restart, a flush, a reclaim.",
)  # fmt: skip
@click.option(
    "--lease", type=Seconds(), default="10s", show_default=True,
    help="The kernel goes back to stock if this command is silent for so long.",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(0, MAX_SEED - 1), help="Seed of all random choices.")
@click.option(
    "--out", type=FILE, metavar="FILE", help="File for the samples.  [default: ab-TIME.jsonl]"
)
@dry_run_option
@json_option
@pass_host
def run(host: Host, dry_run: bool, want_json: bool, out: Path | None, **options: Any) -> None:
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
    given = RunOptions(**options)
    metrics, guards = [*map(Metric.parse, given.metric)], [*map(Guard.parse, given.guard)]
    design = _design(given)
    if given.margin and not any(metric.better for metric in metrics):
        raise click.UsageError(UNJUDGED)
    length = _length(given, design, metrics)
    check_sources(host.tree, metrics, guards, design.kind)
    timing = wants_times(metrics, guards)
    if dry_run:
        _dry_run(design, length, _changes(host, given, timing), given.unit, want_json)
        return
    file = out or Path(f"ab-{datetime.now():%Y%m%d-%H%M%S}.jsonl")
    with host.tree.locked(LOCK, f"ab run, pid {os.getpid()}, which writes {file.absolute()}"):
        if note := put_back(host.tree):
            click.echo(f"warning: {note}", err=True)
        changes = _changes(host, given, timing)
        header = _header(host, given, design, length, changes)
        with _opened(file) as stream, display() as shown:
            runner = Runner(host, design, length, metrics, guards, changes, header, stream, shown)
            _tell(host, _note(given))
            runner.run()
        _tell(host, f"ends: {runner.end['status']}, {runner.end['reason']}")
        _finish(runner, file, want_json)


def _note(given: RunOptions) -> str:
    """Return what the journal says of a run."""
    return f"begins: {', '.join(given.arms().values())}"


def _runs_before(host: Host, given: RunOptions) -> int:
    """Return how many runs with the same arms this host has had within a week."""
    since = datetime.now(UTC) - timedelta(weeks=1)
    try:
        entries = read_journal(host.tree)
    except Error:
        return 0
    notes = [entry.note for entry in entries if datetime.fromisoformat(entry.time) > since]
    return notes.count(_note(given))


def _tell(host: Host, note: str) -> None:
    keep_change(host, Done({}, {}), note)


def _opened(file: Path) -> TextIO:
    try:
        return file.open("x", encoding="utf-8")
    except OSError as err:
        raise Error(f"cannot write {file}: {err.strerror}", Exit.FAILED, "give --out") from err
