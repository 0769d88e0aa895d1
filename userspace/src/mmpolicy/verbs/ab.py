# SPDX-License-Identifier: GPL-2.0
"""`ab report`: what the samples of an experiment say."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mmpolicy.ab.samples import load
from mmpolicy.errors import Error, Exit
from mmpolicy.host.files import save_as
from mmpolicy.render import emit
from mmpolicy.verbs.ab_run import MARGIN, UNJUDGED, run
from mmpolicy.verbs.options import FILE, json_option

if TYPE_CHECKING:
    from mmpolicy.ab.report import Report


@click.group()
def ab() -> None:
    """Compare two settings on this host by experiment."""


ab.add_command(run)


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

    save_as(path, page(report).encode())


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
