# SPDX-License-Identifier: GPL-2.0
"""The verb `collapse`: make 2 MB pages of fully used memory, without the module."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from mmpolicy.errors import Error, Exit
from mmpolicy.figures import figure
from mmpolicy.host.advice import BLOCK
from mmpolicy.host.files import CONTROL, Tree
from mmpolicy.host.machine import Host, hardware_of
from mmpolicy.host.pagemap import PAGE
from mmpolicy.host.processes import printable
from mmpolicy.host.signals import interrupted, noted
from mmpolicy.memory.collapse import (
    FORBIDDEN,
    PAGES,
    Candidates,
    Collapser,
    Done,
    Limits,
    Seen,
    Target,
    check_blocks,
    check_possible,
    time_one,
)
from mmpolicy.memory.holds import Holds
from mmpolicy.memory.pressure import Pressure
from mmpolicy.memory.space import gone
from mmpolicy.render import duration, emit, progress_line, table
from mmpolicy.verbs.options import (
    Percent,
    json_option,
    max_pressure_option,
    max_stop_option,
    pass_host,
    reserve_option,
)
from mmpolicy.verbs.targets import find_processes, target_options, warn_if_slowed

if TYPE_CHECKING:
    from mmpolicy.control.keys import State

POINT, NEVER = "anon_order", "never"
# with this share of the time spent in collapses, or more, a program slows down considerably
FAST = 0.5
SHOWN = 10  # number of areas that a dry run prints
# A lower --min-used is suggested if it would collapse additional memory of at least this share.
WORTH = 0.05
BIND_ANOTHER = "bind the process to another profile first, or give --override-never"
# seconds between two checks, during a run, whether a profile now forbids huge pages for a process
PROFILES_S = 1.0
EVERY_S = 0.2  # seconds between updates of the progress line


@dataclass(frozen=True)
class CollapseOptions:
    """The options of `collapse`."""

    cgroup: str | None
    pid: int | None
    unit: str | None
    min_used: float
    cpu: float
    max_stop: float
    max_growth: float
    reserve: float
    max_pressure: float
    override_never: bool
    dry_run: bool
    want_json: bool


@dataclass
class Row:
    """The figures of a process: its private anonymous memory before and after the run. None stands
    for a figure that is not known.
    """

    pid: int
    name: str
    before_kib: int
    before_huge_kib: int
    after_kib: int | None = None
    after_huge_kib: int | None = None
    made_kib: int = 0
    growth_kib: int = 0


@click.command()
@partial(target_options, of_unit="A systemd unit that runs.")
@click.option(
    "--min-used", type=Percent(min=1), default=100.0, show_default=True, metavar="PERCENT",
    help="Collapse a 2 MB range only if so many of its pages are present, and not all zeroes.",
)  # fmt: skip
@click.option(
    "--cpu", type=Percent(min=0.1), default=3.0, show_default=True, metavar="PERCENT",
    help="The largest part of the time that collapses may take; 100: no pauses.",
)  # fmt: skip
@max_stop_option("Collapse nothing if")
@click.option(
    "--max-growth", type=Percent(min=0), default=10.0, show_default=True, metavar="PERCENT",
    help="The most by which memory may grow, which happens with --min-used below 100.",
)  # fmt: skip
@reserve_option
@max_pressure_option("Stop when")
@click.option(
    "--override-never", is_flag=True,
    help="Collapse even if the profile that decides for the process has the policy 'never'.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Print the plan and its cost; change nothing.")
@json_option
@pass_host
def collapse(host: Host, **options: Any) -> None:
    """Turn memory that is used in full into 2 MB pages, now; needs no module.

    Looks for aligned 2 MB of private anonymous memory in which no page is missing, and asks the
    kernel for one huge page after the other (MADV_COLLAPSE, Linux 6.1), the largest areas first.
    Contents stay the same, and so does the memory in use. The price: each collapse stops the
    program for a few milliseconds where it writes there, maps or unmaps.
    """
    given = CollapseOptions(**options)
    check_possible(host.tree)
    cgroup, pids = find_processes(host.tree, "collapse", given.cgroup, given.pid, given.unit)
    if why := _forbidden(host.tree, given, pids):
        raise Error(f"{why}; collapse would act against this policy", Exit.REFUSED, BIND_ANOTHER)
    holds = Holds(host.tree)
    warn_if_slowed(holds)
    one_s = _time_one(host, holds, given)
    most_missing = int(PAGES * (100 - given.min_used) / 100)
    targets = _targets(host, pids, holds, most_missing)
    before = {pid: target.look() for pid, target in targets.items()}
    if given.dry_run:
        _plan(host, given, cgroup, targets, before, one_s)
    else:
        _collapse(host, given, cgroup, targets, before, one_s)


def _forbidden(tree: Tree, given: CollapseOptions, pids: Iterable[int]) -> str:
    """Return as text which profile forbids huge pages, because its policy is `never`, for one of
    the processes; "" if none does. --override-never turns this check off.
    """
    if given.override_never or not tree.exists(CONTROL):
        return ""
    from mmpolicy.control.state import read_state  # imported late: most hosts have no module

    state = read_state(tree)
    for pid in pids:
        profile = never_of(tree, state, pid)
        if profile:
            return f"the profile '{profile}' decides for process {pid}, with the policy '{NEVER}'"
    return ""


def never_of(tree: Tree, state: State, pid: int) -> str:
    """Return the name of the profile that a process uses if the policy of that profile is `never`;
    else "".
    """
    from mmpolicy.control.bindings import profile_of
    from mmpolicy.control.keys import choice

    try:
        profile = profile_of(tree, state, pid)
    except Error:  # the process has just ended
        return ""
    return profile if state.get(choice(profile, POINT)) == NEVER else ""


def _time_one(host: Host, holds: Holds, given: CollapseOptions) -> float:
    """Return the seconds that one collapse takes on this host, measured on memory of this process;
    raise an error if they exceed --max-stop.
    """
    check_blocks(host.tree, given.reserve / 100)
    one_s = time_one(host, holds)
    if one_s * 1000 > given.max_stop:
        text = f"one collapse stops the program for {one_s * 1000:.1f} ms on this host"
        hint = f"--max-stop {figure(given.max_stop)} ms allows less: raise it, or wait for low load"
        raise Error(f"{text}; nothing was changed", Exit.LACKING, hint)
    return one_s


def _targets(host: Host, pids: list[int], holds: Holds, most_missing: int) -> dict[int, Target]:
    found = {}
    for pid in pids:
        try:
            if pid != os.getpid():
                found[pid] = Target(host, pid, holds, most_missing)
        except Error as err:
            if not gone(err) and host.tree.is_dir(f"/proc/{pid}"):
                raise
    return found


def _name(tree: Tree, pid: int) -> str:
    try:
        return printable(tree.read(f"/proc/{pid}/comm"))
    except Error:
        return "-"


def _rows(host: Host, before: dict[int, Seen]) -> dict[int, Row]:
    return {
        pid: Row(pid, _name(host.tree, pid), _kib(seen.pages), _kib(seen.huge))
        for pid, seen in before.items() if seen.pages
    }  # fmt: skip


def _kib(pages: int) -> int:
    return pages * PAGE >> 10


def _skipped(before: dict[int, Seen], more: Counter[str]) -> dict[str, int]:
    """Return how much memory was not collapsed, in KiB by cause, the largest first. before: what
    was found before the run. more: pages that the run itself skipped, by cause.
    """
    total = sum((seen.skipped for seen in before.values()), Counter[str]()) + more
    return {cause: _kib(pages) for cause, pages in total.most_common()}


def _nearly(before: dict[int, Seen]) -> dict[str, int]:
    """Return how many more KiB a run with --min-used 98 would collapse, and by how many KiB memory
    would grow. Processes that may not have huge pages do not count.
    """
    may = [seen for seen in before.values() if not seen.skipped[FORBIDDEN]]
    lacking = _kib(sum(seen.lacking for seen in may))
    return {"more_kib": _kib(sum(seen.nearly for seen in may)) + lacking, "growth_kib": lacking}


def _cost(host: Host, given: CollapseOptions, blocks: int, one_s: float) -> str:
    """Return as text how long the collapses take together, and how much they slow the program down.

    one_s: seconds of one collapse, measured on memory that this process has just freed. A
    hypervisor has already backed that memory, so a collapse into memory never used before takes
    longer.
    """
    seconds = blocks * one_s * 100 / given.cpu
    text = (
        f"{blocks} ranges of 2 MB; one collapse takes {one_s * 1000:.1f} ms on this "
        f"host and stops the program for as long; with {given.cpu:g} % of the time "
        f"spent on collapses (--cpu), all of them take {duration(seconds)} or more"
    )
    if hardware_of(host.tree).virtual:
        text += ", and several times as long with memory that this virtual machine has never used"
    if given.cpu >= 100 * FAST:
        text += ", and the program may run at a fraction of its speed until then"
    return text


def _plan(
    host: Host, given: CollapseOptions, cgroup: str, targets: dict[int, Target],
    before: dict[int, Seen], one_s: float,
) -> None:  # fmt: skip
    """Print what a run would collapse, and change nothing."""
    rows, more, areas = _rows(host, before), Counter[str](), list[dict[str, Any]]()
    for area in (area for seen in before.values() for area in seen.areas):
        fit, missing = 0, 0
        for start in area.starts:
            verdict = targets[area.pid].verdict(start)
            if verdict and not verdict.cause:
                fit, missing = fit + 1, missing + verdict.missing
            elif verdict:
                more[verdict.cause] += verdict.pages
        if fit:
            rows[area.pid].made_kib += fit * BLOCK >> 10
            rows[area.pid].growth_kib += _kib(missing)
            areas.append({"pid": area.pid, "start": f"{area.starts[0]:x}", "blocks": fit,
                          "growth_kib": _kib(missing)})  # fmt: skip
    areas.sort(key=lambda each: -each["blocks"])
    blocks = sum(each["blocks"] for each in areas)
    skipped = _skipped(before, more)
    data = {
        "dry_run": True, "cgroup": cgroup, "processes": [_row_data(row) for row in rows.values()],
        "areas": areas, "skipped_kib": skipped, "one_collapse_ms": round(one_s * 1000, 2),
        "would_take_s": round(blocks * one_s * 100 / given.cpu, 1), "min_used_98": _nearly(before),
    }  # fmt: skip

    def lines() -> Iterator[str]:
        for each in areas[:SHOWN]:
            yield f"pid {each['pid']}, address {each['start']}: {each['blocks']} ranges of 2 MB"
        if len(areas) > SHOWN:
            yield f"and {len(areas) - SHOWN} more areas; --json has all"
        yield from _table(list(rows.values()), "WOULD_MAKE_MIB", "-")
        yield _cost(host, given, blocks, one_s) if blocks else "there is nothing to collapse"
        yield from _left(skipped)
        yield from _more(data)

    emit("collapse", given.want_json, data, lines)


def _row_data(row: Row) -> dict[str, Any]:
    def percent(part: int | None, whole: int | None) -> float | None:
        return round(100 * part / whole, 2) if part is not None and whole else None

    return {
        **vars(row),
        "before_huge_percent": percent(row.before_huge_kib, row.before_kib),
        "after_huge_percent": percent(row.after_huge_kib, row.after_kib),
    }


def _collapse(
    host: Host, given: CollapseOptions, cgroup: str, targets: dict[int, Target],
    before: dict[int, Seen], one_s: float,
) -> None:  # fmt: skip
    rows = _rows(host, before)
    areas = [area for seen in before.values() for area in seen.areas]
    pages = sum(seen.pages for seen in before.values())
    limits = Limits(
        given.cpu / 100, given.max_stop / 1000, int(pages * given.max_growth / 100),
        given.reserve / 100,
    )  # fmt: skip
    pressure = Pressure(host, given.max_pressure)
    collapser = Collapser(host, limits, pressure)
    blocks = sum(len(area.starts) for area in areas)
    if blocks:
        # "up to": the run skips shared, locked and watched memory, which the look at all areas
        # before it cannot recognise.
        click.echo(f"up to {_cost(host, given, blocks, one_s)}", err=True)
    began = host.clock()
    signal = _run(host, given, collapser, targets, areas, blocks)
    took = host.clock() - began
    done = collapser.done
    _after(rows, targets, done)
    notes = [
        f"note: process {row.pid} ({row.name}) ended during the run, or called exec()"
        for row in rows.values() if row.after_kib is None
    ]  # fmt: skip
    if not pressure.known:
        notes.append(
            "note: the kernel has no PSI (CONFIG_PSI): memory pressure does not stop the run"
        )
    data = {
        "dry_run": False, "cgroup": cgroup, "processes": [_row_data(row) for row in rows.values()],
        "skipped_kib": _skipped(before, done.skipped), "one_collapse_ms": round(one_s * 1000, 2),
        "longest_ms": round(done.longest_s * 1000, 2), "took_s": round(took, 2),
        "cpu_s": round(done.cpu_s, 3), "made": sum(done.made.values()), "tried": done.tried,
        "stopped": done.stopped, "notes": notes, "min_used_98": _nearly(before),
    }  # fmt: skip
    made_mib = sum(done.made.values()) * BLOCK >> 20
    target = given.unit or given.cgroup or f"process {given.pid}"
    host.log(f"collapse {target}: {made_mib} MiB in 2 MB pages")
    emit("collapse", given.want_json, data, lambda: _lines(data, list(rows.values())))
    if signal:
        raise interrupted(signal)
    if done.stopped:
        raise Error(f"collapse stopped before the end: {done.stopped}", Exit.FAILED, done.next_step)


def _run(
    host: Host, given: CollapseOptions, collapser: Collapser, targets: dict[int, Target],
    areas: list[Candidates], blocks: int,
) -> int:  # fmt: skip
    """Collapse the blocks of all areas. Return the number of the signal that ended the run early,
    or 0.

    The run also ends early, with a reason in collapser.done, if a profile with the policy `never`
    is bound to one of the processes during the run.
    """
    began = shown = looked = host.clock()
    with noted() as caught:
        for left in collapser.run(targets, areas):
            now = host.clock()
            if now - looked >= PROFILES_S:
                looked = now
                if why := _forbidden(host.tree, given, targets):
                    collapser.done.stopped, collapser.done.next_step = why, BIND_ANOTHER
                    return 0
            if now - shown >= EVERY_S or not left:
                shown = now
                ahead = (now - began) * left / max(blocks - left, 1)
                text = f"{blocks - left} of {blocks} ranges of 2 MB done, {duration(ahead)} left"
                progress_line(text, is_last=not left)
            if caught:
                return caught[0]
    return 0


def _after(rows: dict[int, Row], targets: dict[int, Target], done: Done) -> None:
    """Read the memory of all processes again after the run, and complete their rows in
    the table.
    """
    for pid, row in rows.items():
        row.made_kib = done.made[pid] * BLOCK >> 10
        row.growth_kib = _kib(done.added[pid])
        try:
            now = targets[pid].look()
        except Error:  # the process has ended: its row says so
            continue
        if pid not in done.ended and now.pages:  # after exec() the old memory has no pages
            row.after_kib, row.after_huge_kib = _kib(now.pages), _kib(now.huge)


def _table(rows: list[Row], made: str, later: str) -> list[str]:
    """Return the table of processes as lines. later: the text in place of the memory after the run,
    for a process of which it is not known.
    """
    header = ("PID", "NAME", "ANON_KIB", "", "NOW_KIB", "IN_2MB", "", "NOW", made, "GROWTH_KIB")
    return table(header, [
        (row.pid, row.name, row.before_kib, "->", later if row.after_kib is None else row.after_kib,
         _percent(row.before_huge_kib, row.before_kib), "->",
         _percent(row.after_huge_kib, row.after_kib), row.made_kib >> 10, row.growth_kib)
        for row in rows
    ])  # fmt: skip


def _percent(part: int | None, whole: int | None) -> str:
    return f"{100 * part / whole:.1f} %" if part is not None and whole else "-"


def _left(skipped: dict[str, int]) -> Iterator[str]:
    """Yield one line with the memory that was not collapsed, by cause."""
    parts = [f"{kib / 1024:.1f} MiB {cause}" for cause, kib in skipped.items() if kib]
    if parts:
        yield f"memory left as it was: {', '.join(parts)}"


def _more(data: dict[str, Any]) -> Iterator[str]:
    """Yield a line about --min-used 98 if it would collapse a considerable share of the memory."""
    more, growth = data["min_used_98"]["more_kib"], data["min_used_98"]["growth_kib"]
    whole = sum(row["before_kib"] for row in data["processes"])
    if more > WORTH * whole:
        yield (
            f"--min-used 98 would collapse {more / 1024:.1f} MiB more, and let memory "
            f"grow by {growth / 1024:.1f} MiB"
        )


def _lines(data: dict[str, Any], rows: list[Row]) -> Iterator[str]:
    yield from _table(rows, "MADE_MIB", "ended")
    if data["tried"]:
        yield (
            f"the run took {data['took_s']:.1f} s and {data['cpu_s']:.2f} s of CPU; "
            f"the longest collapse took {data['longest_ms']:.1f} ms"
        )
    if not data["made"]:
        yield "nothing was collapsed"
    yield from _left(data["skipped_kib"])
    yield from _more(data)
    yield from data["notes"]
