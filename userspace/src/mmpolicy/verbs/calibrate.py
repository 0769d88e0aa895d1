# SPDX-License-Identifier: GPL-2.0
"""`calibrate`: measure the cost of a page fault on this host."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import click

from mmpolicy.ab.run.knobs import Knobs
from mmpolicy.bench.all_cpus import (
    CPU_S,
    Crew,
    advice,
    crew_of,
    measure_together,
    rows_of,
    unquiet,
)
from mmpolicy.bench.calibrate import MOST_S, measure
from mmpolicy.errors import Error, Exit
from mmpolicy.host.calibration import (
    FILE,
    PAGE,
    FaultCost,
    Together,
    keep_calibration,
    read_calibration,
)
from mmpolicy.host.evidence import STAT, cpu_times, size_folders
from mmpolicy.host.files import Tree
from mmpolicy.host.knobs import Values, read_knobs
from mmpolicy.host.machine import Host
from mmpolicy.host.step import Step
from mmpolicy.memory.pressure import Pressure
from mmpolicy.render import emit, progress_line, table
from mmpolicy.verbs.commit import emit_plan
from mmpolicy.verbs.in_force import in_force
from mmpolicy.verbs.options import ask, dry_run_option, json_option, pass_host

WANTED = (16 << 10, 64 << 10, 2 << 20)  # folio sizes in bytes that are measured, if available
# folio sizes in bytes that are measured with --all-cpus
ALL_WANTED = (16 << 10, 32 << 10, 64 << 10, 128 << 10, 2 << 20)
# if no turn of the measurement reports for this many seconds, the watchdog process restores the
# knobs
LEASE_S = 10.0
MIB_CPU = 64  # most MiB of memory to touch for each CPU
# --all-cpus refuses to start if other processes use more than LOAD percent of all CPUs, measured
# for LOAD_S seconds
LOAD, LOAD_S = 25.0, 0.5
# percentage of the time that tasks may wait for memory (PSI); above it, the measurement ends
WAITING = 10.0
BAR = 30  # columns of the longest bar
NOT_QUIET = "wait until the host is quiet, then give the command again"


def _sizes(tree: Tree, now: Values, wanted: Sequence[int] = WANTED) -> dict[int, str]:
    """Return the wanted folio sizes in bytes that this kernel has, each with the file that enables
    it.
    """
    files = {size: f"{folder}/enabled" for size, folder in size_folders(tree).items()}
    return {size: file for size, file in files.items() if size in wanted and file in now}


def _arms(sizes: dict[int, str]) -> dict[str, Values]:
    """Return by arm the values of all knobs of folio sizes. Each arm gives memory with
    MADV_HUGEPAGE one size; the arm PAGE disables all sizes.
    """
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
    progress_line(f"{seconds:.0f} s of {MOST_S:.0f} s at most", is_last=False)


def _load(host: Host) -> float:
    """Return the load of all CPUs together in percent, measured for LOAD_S seconds."""
    before = _times(host)
    host.sleep(LOAD_S)
    idle, everything = (late - early for early, late in zip(before, _times(host)))
    return 100 * (1 - idle / everything) if everything else 0.0


def _times(host: Host) -> tuple[float, float]:
    """Return the idle time and the total time of all CPUs, in seconds since boot."""
    times = cpu_times(host.tree.read(STAT))
    idle = times["idle"] + times["iowait"]
    return idle, idle + times["busy"] + times["steal"]


def _check(host: Host, cpus: int) -> None:
    """Raise an error if a measurement on all CPUs would be wrong, because other processes use too
    much CPU time or the host has too little memory.
    """
    load = _load(host)
    if load > LOAD:
        text = f"other processes use {load:.0f} % of the CPUs, more than {LOAD:g} %"
        raise Error(text, Exit.REFUSED, NOT_QUIET)
    available = host.tree.read("/proc/meminfo").partition("MemAvailable:")[2].split()
    mib, need = int([*available, "0"][0]) >> 10, 2 * MIB_CPU * cpus
    if mib < need:
        text = f"only {mib} MiB of memory are available, and --all-cpus needs {need} MiB"
        raise Error(
            text,
            Exit.REFUSED,
            "without --all-cpus, mmpolicy calibrate needs memory for one CPU alone",
        )


def _ask_for(cpus: int, agreed: bool) -> None:
    click.echo(
        f"the measurement takes all {cpus} CPUs for about {CPU_S:g} s, and {MIB_CPU} MiB for each "
        "of them; it ends early if tasks wait for memory",
        err=True,
    )
    ask(agreed)


def _together(host: Host, now: Values, sizes: dict[int, str], crew: Crew) -> list[Together]:
    knobs = Knobs(host.tree, now, _arms(sizes), LEASE_S, host.log)
    pressure = Pressure(host, WAITING)

    def tell(share: float) -> None:
        progress_line(f"{100 * share:.0f} %", is_last=False)
        if why := pressure.too_high():
            raise Error(why, Exit.REFUSED, NOT_QUIET)

    with in_force(host, knobs, alone=True):
        sizes_in_turn = [PAGE, *sorted(sizes)]
        turns = measure_together(crew, sizes_in_turn, lambda size: knobs.take(str(size)), tell)
    progress_line("done", is_last=True)
    if why := unquiet(turns):
        raise Error(f"the host is not quiet, so no result is stored: {why}", Exit.DENIED, NOT_QUIET)
    return rows_of(turns)


def _together_lines(rows: Sequence[Together]) -> Iterator[str]:
    """Yield a table with the cost of a fault and of a page, for each folio size and number of CPUs,
    and a line of advice.
    """
    most = max(each.ns * PAGE / each.size for each in rows)
    cells = [
        (f"{each.size >> 10} kB", each.cpus, f"{each.ns:,.0f} ns",
         f"{each.low:,.0f} .. {each.high:,.0f}", f"{each.ns * PAGE / each.size:,.0f} ns",
         "#" * max(round(BAR * each.ns * PAGE / each.size / most), 1))
        for each in sorted(rows, key=lambda each: (each.size, each.cpus))
    ]  # fmt: skip
    yield from table(("FOLIO", "CPUS", "A FAULT", "TURNS", "A PAGE", ""), cells)
    yield advice(rows)


def _of_all_cpus(host: Host, now: Values, agreed: bool, want_json: bool) -> None:
    sizes = _sizes(host.tree, now, ALL_WANTED)
    cpus = sorted(os.sched_getaffinity(0))
    if not all(host.tree.writable(path) for path in sizes.values()):
        raise Error(
            "--all-cpus changes the folio sizes of the kernel while it measures, which needs root",
            Exit.DENIED,
            host.tree.who_may(),
        )
    _check(host, len(cpus))
    _ask_for(len(cpus), agreed)
    with crew_of(cpus, host.tree.killed_first) as crew:
        rows = _together(host, now, sizes, crew)
    before = read_calibration(host.tree, busy=0.0)
    costs = before.costs if before else [FaultCost(*each[1:]) for each in rows if each.cpus == 1]
    keep_calibration(host.tree, host.release(), costs, rows)
    data = {"together": [each._asdict() for each in rows], "advice": advice(rows), "kept": FILE}
    emit("calibrate", want_json, data, list(_together_lines(rows)))


@click.command()
@click.option(
    "--all-cpus", is_flag=True, help="Measure while 1, 2, 4 and so on, and all CPUs fault at once."
)
@click.option("--yes", is_flag=True, help="With --all-cpus: begin without asking.")
@dry_run_option
@json_option
@pass_host
def calibrate(host: Host, all_cpus: bool, yes: bool, dry_run: bool, want_json: bool) -> None:
    """Measure what a page fault costs on this host, in three seconds.

    One page, 16 kB, 64 kB and 2 MB are touched once, in turn, on each of the CPUs; for up to ten
    seconds on a busy host. Meanwhile these sizes are given to programs that ask for large folios
    (MADV_HUGEPAGE), and afterwards all is as before. The result is kept in
    /var/lib/mmpolicy/calibration.json, from which `top` and `stats` compute how much CPU time
    faults take. Without root, only single pages are measured, and nothing is kept.

    With --all-cpus, each size is measured while 1, 2, 4 and so on, and all CPUs fault at once, as
    a size that is fast on one CPU may be slow on all of them. That takes every CPU of the host for
    about two seconds, and 64 MiB for each, so the command asks first. It refuses if other processes
    use more than 25 % of the CPUs, and ends if tasks wait for memory. Exit code 4 means that the
    host was not quiet: then nothing is kept.
    """
    now = read_knobs(host.tree)
    if yes and not all_cpus:
        raise click.UsageError("--yes is for --all-cpus")
    if all_cpus and not dry_run:
        _of_all_cpus(host, now, yes, want_json)
        return
    sizes = _sizes(host.tree, now, ALL_WANTED if all_cpus else WANTED)
    writes = bool(sizes) and all(host.tree.writable(path) for path in sizes.values())
    if dry_run:
        arms = _arms(sizes) if writes else {}
        steps = [Step(path, value, now[path], value) for arm in arms.values()
                 for path, value in arm.items() if value != "never"]  # fmt: skip
        emit_plan("calibrate", want_json, steps)
        return
    costs = _measured(host, now, sizes, writes)
    if writes:
        before = read_calibration(host.tree, busy=0.0)
        keep_calibration(host.tree, host.release(), costs, before.together if before else ())
    data = {"faults": [each._asdict() for each in costs], "kept": FILE if writes else None}
    rows = [
        (f"{each.size >> 10} kB", f"{each.ns:,.0f} ns", f"{each.low:,.0f} .. {each.high:,.0f}",
         f"{each.ns * PAGE / each.size:,.0f} ns") for each in costs
    ]  # fmt: skip
    emit("calibrate", want_json, data, table(("FOLIO", "A FAULT", "HALF OF THEM", "A PAGE"), rows))
