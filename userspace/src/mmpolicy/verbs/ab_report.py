# SPDX-License-Identifier: GPL-2.0
"""`ab report`, `ab pool` and `ab plan`: analysis of the samples of experiments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mmpolicy.ab.samples import load
from mmpolicy.errors import Error, Exit
from mmpolicy.host.disk import save_as
from mmpolicy.render import emit
from mmpolicy.verbs.ab_plan import UNJUDGED
from mmpolicy.verbs.options import FILE, Count, Number, json_option, margin_option

if TYPE_CHECKING:
    from mmpolicy.ab.report.report import Report


def _make(file: Path, detect: float, margin: float) -> Report:
    from mmpolicy.ab.report.report import Report

    recording = load(file)
    report = Report(recording, detect, margin)
    if margin and not report.judged:
        raise click.UsageError(UNJUDGED)
    return report


def write_html(report: Report, path: Path, trial: Sequence[str] = ()) -> None:
    """Write a report as one HTML file; trial: lines of a trial of `try`, printed above it."""
    from mmpolicy.ab.report.html import page

    save_as(path, page(report, trial).encode())


@click.command()
@click.argument("files", type=FILE, nargs=-1, required=True, metavar="FILE...")
@json_option
@click.pass_context
def pool(ctx: click.Context, files: tuple[Path, ...], want_json: bool) -> None:
    """Judge the files of one experiment that ran on several hosts.

    Prints the effect on these hosts, by redrawing their random assignments, and on hosts like
    these, by a model with random effects. Needs the same libraries as `ab report`. Exits with 8 if
    any metric is worse; with 0 if one is better on both, each other one is better or no worse than
    its margin, and no host is in doubt or left out; else with 7.
    """
    if len(set(files)) < 2:
        raise click.UsageError("ab pool needs the files of two hosts or more")
    from mmpolicy.ab.report.pool import Pool

    found = Pool((str(file), load(file)) for file in dict.fromkeys(files))
    emit("ab pool", want_json, found.data(), found.lines())
    ctx.exit(int(found.exit))


@click.command()
@click.argument("files", type=FILE, nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--hosts",
    type=Count(min=2),
    required=True,
    help="Number of hosts that run the experiment.",
)
@click.option(
    "--detect", type=Number(min=0.01), default=5.0, show_default=True,
    metavar="PERCENT", help="The mean change to find, in percent.",
)  # fmt: skip
@click.option(
    "--differ", type=Number(min=0), metavar="PERCENT",
    help="Standard deviation of the change between hosts, in percent.  [default: half of --detect]",
)  # fmt: skip
@json_option
def plan(
    files: tuple[Path, ...], hosts: int, detect: float, differ: float | None, want_json: bool
) -> None:
    """Say how many pairs each of HOSTS hosts needs, by runs with equal arms.

    Each FILE has an A/A phase, or comes from a run without --treatment. Needs the same libraries as
    `ab report`.
    """
    from mmpolicy.ab.report import fleet

    recordings = {str(file): load(file) for file in files}
    apart = detect / 2 if differ is None else differ
    found = fleet.plan_fleet(recordings, hosts, detect, apart)
    if not found:
        text = "none of the files has 3 pairs of blocks with equal arms (A/A) and values above 0"
        raise Error(text, Exit.FAILED, "mmpolicy ab run without --treatment records equal arms")
    data = {"hosts": hosts, "percent": detect, "differ": apart, "metrics": list(map(vars, found))}
    emit("ab plan", want_json, data, fleet.lines(found, hosts, detect, apart))


@click.command()
@click.argument("file", type=FILE)
@click.option("--html", type=FILE, metavar="FILE", help="Also write one HTML file with plots.")
@click.option(
    "--detect", type=Number(min=0.01), default=5.0, show_default=True,
    metavar="PERCENT", help="Print how many pairs find a change of this percentage.",
)  # fmt: skip
@margin_option
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

    Prints effect, interval and p of each metric, and a verdict. Needs numpy and scipy, and for
    --html matplotlib and jinja2, but neither the kernel nor the host of the run. Exits with 0 if an
    effect was shown for the better, and each other metric that says what is better is shown to be
    no worse than its margin; with 8 if the treatment is worse, or was stopped as it does harm; else
    with 7.
    """
    found = _make(file, detect, margin or 0.0)
    if html:
        write_html(found, html)
    emit("ab report", want_json, found.data(), found.lines())
    ctx.exit(int(found.exit))
