# SPDX-License-Identifier: GPL-2.0
"""`calibrate`: what a page fault costs on this host."""

from __future__ import annotations

import click

from mmpolicy.ab.knobs import Knobs
from mmpolicy.bench.calibrate import MOST_S, measure
from mmpolicy.host.calibration import FILE, PAGE, FaultCost, keep_calibration
from mmpolicy.host.evidence import size_folders
from mmpolicy.host.files import Tree
from mmpolicy.host.knobs import Values, read_knobs
from mmpolicy.host.machine import Host
from mmpolicy.host.step import Step
from mmpolicy.render import emit, progress_line, table
from mmpolicy.verbs.commit import emit_plan
from mmpolicy.verbs.in_force import in_force
from mmpolicy.verbs.options import dry_run_option, json_option, pass_host

WANTED = (16 << 10, 64 << 10, 2 << 20)
LEASE_S = 10.0


def _sizes(tree: Tree, now: Values) -> dict[int, str]:
    """Return the sizes to measure that this kernel has, with the files that enable them."""
    files = {size: f"{folder}/enabled" for size, folder in size_folders(tree).items()}
    return {size: file for size, file in files.items() if size in WANTED and file in now}


def _arms(sizes: dict[int, str]) -> dict[str, Values]:
    """Return for each size what gives it to who asks, and nobody any other of these."""
    off = dict.fromkeys(sizes.values(), "never")
    return {str(size): off | {path: "madvise"} for size, path in sizes.items()} | {str(PAGE): off}


def _measured(host: Host, now: Values, sizes: dict[int, str], writes: bool) -> list[FaultCost]:
    arms = _arms(sizes) if writes else {str(PAGE): {}}
    knobs = Knobs(host.tree, now, arms, LEASE_S, host.log)
    with in_force(host, knobs, writes):
        order = sorted(sizes) if writes else []
        costs = measure([PAGE, *order], lambda size: knobs.take(str(size)), _tell)
    progress_line("done", is_last=True)
    return costs


def _tell(seconds: float) -> None:
    progress_line(f"{seconds:.0f} s of {MOST_S:.0f} at the most", is_last=False)


@click.command()
@dry_run_option
@json_option
@pass_host
def calibrate(host: Host, dry_run: bool, want_json: bool) -> None:
    """Measure what a page fault costs on this host, in three seconds.

    One page, 16 kB, 64 kB and 2 MB are touched once, in turn, on each of the CPUs; for up to ten
    seconds on a busy host. Meanwhile these sizes are given to programs that ask for large folios
    (MADV_HUGEPAGE), and afterwards all is as before. The result is kept in
    /var/lib/mmpolicy/calibration.json, and `top` and `stats` tell by it how much CPU time faults
    take. Without root, only single pages are measured, and nothing is kept.
    """
    now = read_knobs(host.tree)
    sizes = _sizes(host.tree, now)
    writes = bool(sizes) and all(host.tree.writable(path) for path in sizes.values())
    if dry_run:
        arms = _arms(sizes) if writes else {}
        steps = [Step(path, value, now[path], value) for arm in arms.values()
                 for path, value in arm.items() if value != "never"]  # fmt: skip
        emit_plan("calibrate", want_json, steps)
        return
    costs = _measured(host, now, sizes, writes)
    if writes:
        keep_calibration(host.tree, host.release(), costs)
    data = {"faults": [each._asdict() for each in costs], "kept": FILE if writes else None}
    rows = [
        (f"{each.size >> 10} kB", f"{each.ns:,.0f} ns", f"{each.low:,.0f} .. {each.high:,.0f}",
         f"{each.ns * PAGE / each.size:,.0f} ns") for each in costs
    ]  # fmt: skip
    emit("calibrate", want_json, data, table(("FOLIO", "A FAULT", "HALF OF THEM", "A PAGE"), rows))
