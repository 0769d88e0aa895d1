# SPDX-License-Identifier: GPL-2.0
"""`ab report`: what the samples of an experiment say."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mmpolicy.ab.keeper import left_behind, put_back
from mmpolicy.ab.samples import load
from mmpolicy.control.change import Done
from mmpolicy.errors import Error, Exit
from mmpolicy.host.files import save_as
from mmpolicy.host.machine import Host
from mmpolicy.render import emit, emit_plan
from mmpolicy.verbs.ab_run import LOCK, MARGIN, UNJUDGED, run
from mmpolicy.verbs.commit import keep_change
from mmpolicy.verbs.options import FILE, dry_run_option, json_option, pass_host

if TYPE_CHECKING:
    from mmpolicy.ab.report import Report


@click.group()
def ab() -> None:
    """Compare two settings on this host by experiment."""


ab.add_command(run)


@ab.command()
@dry_run_option
@json_option
@pass_host
def restore(host: Host, dry_run: bool, want_json: bool) -> None:
    """Restore the knobs of a run that was killed together with its watchdog.

    `ab run` also does this before it begins.
    """
    with host.tree.locked(LOCK, f"ab restore, pid {os.getpid()}"):
        if dry_run:
            keeper = left_behind(host.tree)
            emit_plan("ab restore", want_json, keeper.before.items() if keeper else ())
            return
        note = put_back(host.tree)
        if note:
            keep_change(host, Done({}, {}), note)
    data = {"dry_run": False, "restored": note}
    emit("ab restore", want_json, data, [note or "nothing was left"])


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
    metavar="PERCENT", help="Say how many pairs are needed to find such a change.",
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

    Prints effect, interval and p of each metric, and a verdict. Needs scipy, matplotlib and
    jinja2 (mmpolicy[ab]), but neither the kernel nor the host of the run. Exits with 0 if an
    effect was shown, with 7 if not, and with 8 if the treatment is worse, or was stopped for
    harm. With a margin: 0 if no metric is worse than that, 8 if one is worse and may be so.
    """
    found = _make(file, detect, margin or 0.0)
    if html:
        _write_html(found, html)
    emit("ab report", want_json, found.data(), found.lines())
    ctx.exit(int(found.exit))
