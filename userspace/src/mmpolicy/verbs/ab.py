# SPDX-License-Identifier: GPL-2.0
"""`ab run` and `ab report`: experiments, and what they say."""

import os
import platform
import re
import secrets
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click

from mmpolicy import __version__
from mmpolicy.ab.arms import PROFILES, settings_of
from mmpolicy.ab.design import DIRTY, MAX_SEED, Design, least_pairs
from mmpolicy.ab.guards import Guard
from mmpolicy.ab.lab import Lab
from mmpolicy.ab.metrics import FORMS, Metric, Reader, all_sources
from mmpolicy.ab.runner import Length, Runner, clock
from mmpolicy.ab.samples import VERSION, load
from mmpolicy.app import App, dry_run_option, json_option, pass_app
from mmpolicy.control.model import Control
from mmpolicy.control.state import read_state
from mmpolicy.errors import Error, Exit
from mmpolicy.host.cgroups import find_cgroup
from mmpolicy.render import emit

if TYPE_CHECKING:
    from mmpolicy.ab.report import Report

LOCK = "/run/mmpolicy/ab.lock"
PAIRS, MOST_PAIRS = 12, 200
UNJUDGED = "--margin needs a metric that says what is better, `lower` or `higher`"
MARGIN = click.option(
    "--margin", type=click.FloatRange(0, 100, min_open=True, max_open=True), metavar="PERCENT",
    help="Ask if the treatment is shown to be no worse than that.",
)  # fmt: skip
FILE = click.Path(path_type=Path, dir_okay=False)


class Seconds(click.ParamType):
    """A time such as 30, 30s, 10m or 2h."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return seconds."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", str(value))
        if not found or not float(found[1]):
            self.fail(f"'{value}' is no time such as 30s, 10m or 2h", param, ctx)
        return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


@click.group()
def ab() -> None:
    """Compare two settings on this host by experiment."""


# run


def _design(given: SimpleNamespace) -> Design:
    if given.washout >= given.block:
        raise click.UsageError("the wash-out has to be shorter than the block")
    seed = secrets.randbelow(MAX_SEED) if given.seed is None else given.seed
    return Design(given.design, given.block, given.washout, given.interval, seed)


def _length(given: SimpleNamespace, design: Design, metrics: Sequence[Metric]) -> Length:
    """Return how long to go on, or say that so short a run can show nothing."""
    if given.pairs and given.duration:
        raise click.UsageError("--pairs and --duration both say how long: give one")
    pairs = given.pairs or (MOST_PAIRS if given.detect else PAIRS)
    if given.duration:
        left = given.duration - design.seconds(given.aa)
        pairs = int(left // design.seconds(1))
    least = least_pairs(len(metrics))
    if pairs < least:
        many = "s" * (len(metrics) > 1)
        text = f"{max(pairs, 0)} pairs can show nothing with {len(metrics)} metric{many}"
        need = clock(design.seconds(given.aa + least))
        raise click.UsageError(f"{text}: it takes {least} pairs, {need} with the A/A phase")
    if given.detect and given.aa < 4:
        raise click.UsageError("--detect learns the noise from the A/A phase: give --aa 4 or more")
    return Length(given.aa, pairs, given.detect or 0.0)


def _settle_options(given: SimpleNamespace, metrics: Sequence[Metric]) -> None:
    """Fill in what depends on the metrics, and say what they do not allow."""
    need = least_pairs(len(metrics), DIRTY)
    if given.aa is None:
        given.aa = need
    elif given.aa < need:
        text = f"{given.aa} pairs of A/A cannot show that equal arms differ; it takes {need}"
        click.echo(f"warning: {text}", err=True)
    if given.margin and not any(metric.better for metric in metrics):
        raise click.UsageError(UNJUDGED)


def _lab(app: App, given: SimpleNamespace) -> Lab:
    control, state = Control(app.tree), read_state(app.tree)
    texts = {"control": given.control, "treatment": given.treatment or given.control}
    arms = {arm: settings_of(control, state, text) for arm, text in texts.items()}
    return Lab(app.tree, arms, int(given.lease * 1000))


def _header(
    app: App, given: SimpleNamespace, design: Design, length: Length, lab: Lab
) -> dict[str, Any]:
    """Return all that a report has to know beside the samples."""
    texts = (given.control, given.treatment or given.control)
    arms = {
        arm: {"given": text, "settings": lab.arms[arm]}
        for arm, text in zip(PROFILES, texts, strict=True)
    }
    host = {"kernel": app.release(), "machine": platform.machine(), "cpus": os.cpu_count()}
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
        "cgroup": find_cgroup(app.tree, given.cgroup) if given.cgroup else "0",
        "metrics": given.metric,
        "guards": given.guard,
        "host": host,
        **arms,
    }


def _check_sources(app: App, metrics: Sequence[Metric], guards: Sequence[Guard], kind: str) -> None:
    """Find out what cannot be read before anything is changed."""
    sources = all_sources([*metrics, *(guard.metric for guard in guards)])
    Reader(app.tree, sources, {}).read(0.0)
    strangers = [each.text for each in all_sources(metrics) if each.kind != "arm"]
    if kind == "split" and strangers:
        text = f"'{strangers[0]}' is of the whole host, where both arms run at once"
        raise click.UsageError(f"{text}: take arm.POINT.COUNTER, or --design switchback")


def _schedule(design: Design, length: Length) -> Iterator[tuple[str, str]]:
    total = length.aa_pairs + length.pairs
    yield "rule", length.rule()
    yield "blocks", f"{total * design.blocks_of_pair} of {design.block_s:g} s"
    yield "time", clock(design.seconds(total))


def _dry_run(design: Design, length: Length, lab: Lab, header: dict[str, Any], json: bool) -> None:
    writes = lab.rehearsal(header["unit"], header["cgroup"])
    schedule = dict(_schedule(design, length))
    lines = [f"{path} <- {value}" for path, value in writes]
    lines += [f"{name}: {value}" for name, value in schedule.items()]
    data = {"dry_run": True, "writes": [write._asdict() for write in writes], **schedule}
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


@ab.command()
@click.option(
    "--design", type=click.Choice(["split", "switchback"]), default="split", show_default=True,
    help="Units side by side, or the whole host in turns.",
)  # fmt: skip
@click.option(
    "--control", default="default", show_default=True, metavar="ARM",
    help="A profile, `stock`, or POINT=POLICY[,KNOB=VALUE ...].",
)  # fmt: skip
@click.option("--treatment", metavar="ARM", help="The same; without it, both arms are the control.")
@click.option(
    "--metric", multiple=True, required=True, metavar="METRIC",
    help="What to compare, given again for more: [NAME=]SOURCE[/s] [/ SOURCE] [lower|higher]; "
    f"a SOURCE is one of {FORMS}.",
)  # fmt: skip
@click.option(
    "--guard", multiple=True, metavar="GUARD",
    help="Stop and go back if this does not hold: `METRIC < NUMBER`, or <=, >, >=.",
)  # fmt: skip
@click.option(
    "--unit", type=click.Choice(["process", "cgroup"]), default="process", show_default=True,
    help="What is assigned to an arm.",
)  # fmt: skip
@click.option("--cgroup", metavar="CGROUP", help="Only what is in this cgroup takes part.")
@click.option(
    "--block", type=Seconds(), default="30s", show_default=True, help="Length of a block."
)
@click.option(
    "--washout", type=Seconds(), default="5s", show_default=True,
    help="The part of it that is not measured.",
)  # fmt: skip
@click.option("--interval", type=Seconds(), default="1s", show_default=True, help="Of samples.")
@click.option(
    "--aa", type=click.IntRange(min=0), metavar="PAIRS",
    help="Pairs with equal arms first, which show the noise.  "
    "[default: as many as can show that they differ]",
)  # fmt: skip
@click.option("--pairs", type=click.IntRange(min=1), help=f"Pairs that follow.  [default: {PAIRS}]")
@click.option("--duration", type=Seconds(), help="Of the whole run, instead of --pairs.")
@click.option(
    "--detect", type=click.FloatRange(min=0.01), metavar="PERCENT",
    help="As many pairs as find such a change, by the noise of A/A.",
)  # fmt: skip
@MARGIN
@click.option(
    "--lease", type=Seconds(), default="10s", show_default=True,
    help="Time after which the kernel goes back to stock when this command is killed.",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(0, MAX_SEED - 1), help="Of all that is random.")
@click.option("--out", type=FILE, metavar="FILE", help="The samples.  [default: ab-TIME.jsonl]")
@dry_run_option
@json_option
@pass_app
def run(app: App, dry_run: bool, want_json: bool, out: Path | None, **options: Any) -> None:
    """Run an experiment, and go back to the state before.

    \b
    mmpolicy ab run --treatment anon_order=adaptive,max_order=6 \\
        --metric 'arm.anon_order.fault_ns lower' --guard 'psi.memory.full.avg10 < 5'

    A broken guard, Ctrl-C and every error end it and restore the state before at once.
    If this command is killed, the kernel goes back to stock when the lease is over.
    """
    given = SimpleNamespace(**options)
    metrics, guards = [*map(Metric.parse, given.metric)], [*map(Guard.parse, given.guard)]
    design = _design(given)
    _settle_options(given, metrics)
    length = _length(given, design, metrics)
    _check_sources(app, metrics, guards, design.kind)
    if dry_run:
        lab = _lab(app, given)
        _dry_run(design, length, lab, _header(app, given, design, length, lab), want_json)
        return
    file = out or Path(f"ab-{datetime.now():%Y%m%d-%H%M%S}.jsonl")
    with app.tree.locked(LOCK, f"ab run, pid {os.getpid()}, which writes {file.absolute()}"):
        lab = _lab(app, given)
        header = _header(app, given, design, length, lab)
        with _opened(file) as stream:
            runner = Runner(app, design, length, metrics, guards, lab, header, stream, _progress)
            runner.run()
        _finish(runner, file, want_json)


def _opened(file: Path) -> Any:
    try:
        return file.open("x", encoding="utf-8")
    except OSError as err:
        raise Error(f"cannot write {file}: {err.strerror}", Exit.FAILED, "give --out") from err


def _progress(line: str) -> None:
    """Tell where the run is; on a terminal, in one line."""
    terminal = click.get_text_stream("stderr").isatty()
    width = os.get_terminal_size(2).columns - 1 if terminal else len(line)
    click.echo(f"\r\033[K{line[:width]}" if terminal else line, err=True, nl=not terminal)


# report


def _make(file: Path, detect: float, margin: float) -> "Report":
    recording = load(file)
    try:
        from mmpolicy.ab.report import Report
    except ImportError as err:
        hint = "pip install 'mmpolicy[ab]', here or on any machine that has the file"
        text = f"a report needs scipy, matplotlib and jinja2: {err}"
        raise Error(text, Exit.LACKING, hint) from err
    report = Report(recording, detect, margin)
    if margin and not report.judged:
        raise click.UsageError(UNJUDGED)
    return report


def _write_html(report: "Report", path: Path) -> None:
    from mmpolicy.ab.html import page

    try:
        path.write_text(page(report), encoding="utf-8")
    except OSError as err:
        raise Error(f"cannot write {path}: {err.strerror}", Exit.FAILED, "give --html") from err


@ab.command()
@click.argument("file", type=FILE)
@click.option("--html", type=FILE, metavar="FILE", help="Also write one HTML file with plots.")
@click.option(
    "--detect", type=click.FloatRange(min=0.01), default=5.0, show_default=True,
    metavar="PERCENT", help="Say how many pairs it takes to find such a change.",
)  # fmt: skip
@MARGIN
@json_option
@click.pass_context
def report(
    ctx: click.Context,
    file: Path,
    html: Path | None,
    detect: float,
    margin: float | None,
    want_json: bool,
) -> None:
    """Say what the samples in FILE show.

    That is effect, interval and p of each metric, and a verdict. Needs scipy, matplotlib and
    jinja2 (mmpolicy[ab]), but neither the kernel nor the host of the run. Exits with 0 if an
    effect was shown, with 7 if not, and with 8 if the treatment is worse, or was stopped for
    harm. With a margin: 0 if no metric is worse than that, 8 if one is worse and may be so.
    """
    found = _make(file, detect, margin or 0.0)
    if html:
        _write_html(found, html)
    emit("ab report", want_json, found.data(), found.lines())
    ctx.exit(int(found.exit))
