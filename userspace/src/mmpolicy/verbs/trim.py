# SPDX-License-Identifier: GPL-2.0
"""`trim`: give back the empty part of large folios, on a stock kernel; needs no module."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import click

from mmpolicy.control.keys import (
    MANIFESTS,
    NO_SHADOW,
    Binding,
    CgroupBinding,
    Profile,
    Setting,
    choice,
)
from mmpolicy.control.state import plan, process_key, profiles_of, read_state
from mmpolicy.errors import Error, Exit
from mmpolicy.host.cgroups import find_bindable
from mmpolicy.host.evidence import cgroup_figures
from mmpolicy.host.files import CONTROL, SPLIT, Tree, split_text
from mmpolicy.host.machine import Host
from mmpolicy.host.pagemap import PAGE
from mmpolicy.memory.holds import Holds
from mmpolicy.memory.pressure import Pressure
from mmpolicy.memory.space import Space
from mmpolicy.memory.survey import read_usage
from mmpolicy.memory.trim import (
    CAUSES,
    SEALED,
    Finder,
    Splitter,
    check_possible,
    comes_back,
)
from mmpolicy.render import emit, table
from mmpolicy.verbs.commit import change, exclusive
from mmpolicy.verbs.former import former_option
from mmpolicy.verbs.options import (
    dry_run_option,
    hold_option,
    json_option,
    max_pressure_option,
    min_empty_option,
    pass_host,
)
from mmpolicy.verbs.targets import check_one, find_processes, refuse_bare, target_options

POINT, POLICY = "anon_order", "adaptive"
TRIMMED = "trimmed"  # the profile that --bind creates
SHOWN = 10  # number of writes that a dry run prints
WORTH_KIB = 1024  # empty memory that was not given back is not reported below this many kB


@dataclass(frozen=True)
class TrimOptions:
    """The options of `trim`."""

    cgroup: str | None
    pid: int | None
    unit: str | None
    min_empty: float
    include_madvised: bool
    max_pressure: float
    hold_ms: float
    bind: bool
    dry_run: bool
    want_json: bool


@dataclass
class Row:
    """The figures of a process: its memory before and after the run. after_kib is None if the
    process has ended.
    """

    pid: int
    name: str
    empty_kib: int
    before_kib: int
    after_kib: int | None = None
    writes: int = 0
    longest_ms: float = 0.0  # longest time that a read or write held its mmap_lock
    # empty memory that was not given back, in kB by cause
    left_kib: dict[str, int] = field(default_factory=dict)


@click.command()
@click.argument("bare", required=False, metavar="")
@partial(target_options, of_unit="A systemd unit that runs.")
@min_empty_option
@click.option(
    "--include-madvised", is_flag=True,
    help="Also split folios that the program asked for by MADV_HUGEPAGE.",
)  # fmt: skip
@max_pressure_option("Stop when")
@click.option(
    "--bind", is_flag=True,
    help=(
        f"Bind the target to the profile '{TRIMMED}' first, so that the memory stays free; "
        "needs the module."
    ),
)  # fmt: skip
@former_option("--least", "--min-empty")
@former_option("--advised", "--include-madvised", is_flag=True)
@former_option("--psi", "--max-pressure")
@former_option("--keep", "--bind", is_flag=True)
@hold_option
@dry_run_option
@json_option
@pass_host
def trim(host: Host, **options: Any) -> None:
    """Give back the empty part of large folios, now; needs no module.

    Splits the folios that have zero-filled pages, or pages that nobody maps any more; Linux 6.12
    and newer free these pages then. Contents stay the same. It works in short steps with pauses,
    and stops if memory gets short. The price: what is split is no longer a huge page. Without
    --bind the memory may come back, by faults in areas that are new, and by khugepaged.

    Prints what it left alone, and why. Exits with 5 if it gave nothing back for that reason.
    """
    refuse_bare(options.pop("bare"), "trim")
    given = TrimOptions(**options)
    check_one(given.cgroup, given.pid, given.unit)
    cgroup, pids = find_processes(host.tree, "trim", given.cgroup, given.pid, given.unit)
    check_possible(host.tree, not given.dry_run, cgroup)
    if given.dry_run:
        _plan(host, given, cgroup, pids)
        return
    profile = _bind(host, given, cgroup) if given.bind else None
    _trim(host, given, cgroup, pids, profile)


def _before(host: Host, given: TrimOptions, holds: Holds, pid: int) -> tuple[Row, Finder] | None:
    """Return the row of a process with its figures before any change, and the object that finds its
    empty memory; None if the process has no memory or has just ended.
    """
    holds.longest_s = 0.0
    try:
        space, usage = Space(host.tree, pid, holds), read_usage(host.tree, pid)
        sizes = space.sizes()
        if not usage or not sizes.rss:
            return None
        return Row(pid, usage[0], 0, sizes.rss), Finder(
            space, given.min_empty / 100, given.include_madvised
        )
    except Error as err:
        if err.exit_code == Exit.DENIED:
            raise
        return None


def _now(finder: Finder) -> int | None:
    """Return the resident memory of a process in kB now; None if the process has ended."""
    try:
        finder.space.process.check(finder.space.tree)
        return finder.space.sizes().rss or None
    except Error:
        return None


def _current(tree: Tree, cgroup: str) -> int | None:
    """Return memory.current of a cgroup in KiB; None if the cgroup has no such file."""
    try:
        found = cgroup_figures(tree, cgroup).get("memory_kib") if cgroup else None
    except Error:
        return None
    return None if found is None else int(found)


def _note(row: Row, finder: Finder) -> None:
    row.left_kib = {cause: pages * PAGE >> 10 for cause, pages in finder.left.items() if pages}
    row.longest_ms = round(finder.space.holds.longest_s * 1000, 1)


def _plan(host: Host, given: TrimOptions, cgroup: str, pids: list[int]) -> None:
    """Print how much memory a run would give back, and by which writes; change nothing."""
    rows, writes = [], list[dict[str, str]]()
    holds = Holds(host.tree, given.hold_ms / 1000)
    for pid in pids:
        before = _before(host, given, holds, pid)
        if not before:
            continue
        row, finder = before
        rows.append(row)
        try:
            for piece in finder.pieces():
                if piece.empty:
                    row.empty_kib += piece.empty * PAGE >> 10
                    row.writes += 1
                    write = {"path": SPLIT, "value": split_text(pid, piece.start, piece.end)}
                    writes.append(write)
        except Error as err:
            if err.exit_code == Exit.DENIED:
                raise  # any other error means that the process has ended
        _note(row, finder)

    def lines() -> Iterator[str]:
        yield from (f"{each['path']} <- {each['value']}" for each in writes[:SHOWN])
        if len(writes) > SHOWN:
            yield f"and {len(writes) - SHOWN} more of this kind; --json has all"
        yield ""
        found = [(row.pid, row.name, row.empty_kib, row.before_kib, row.longest_ms) for row in rows]
        yield from table(("PID", "NAME", "EMPTY_KIB", "RSS_KIB", "LONGEST_MS"), found)
        yield from _left_lines(rows)
        yield from notes

    notes = [] if host.tree.opens(SPLIT) else [f"note: {SEALED}"]
    data = {
        "dry_run": True, "writes": writes, "cgroup": cgroup, "notes": notes,
        "memory_current_kib": _current(host.tree, cgroup), "processes": [vars(row) for row in rows],
    }  # fmt: skip
    emit("trim", given.want_json, data, lines)
    _check_done(sum(row.empty_kib for row in rows), rows)


def _left(rows: list[Row]) -> dict[str, int]:
    """Return the empty memory that was not given back, in kB by cause; amounts below WORTH_KIB are
    left out.
    """
    sums = {cause: sum(row.left_kib.get(cause, 0) for row in rows) for cause in CAUSES}
    return {cause: kib for cause, kib in sums.items() if kib >= WORTH_KIB}


def _left_lines(rows: list[Row]) -> Iterator[str]:
    for cause, kib in _left(rows).items():
        yield f"memory left as it was: {kib >> 10} MiB: {CAUSES[cause]}"


def _check_done(given_back_kib: int, rows: list[Row]) -> None:
    """Raise an error if the processes have empty memory, but the run gave none of it back."""
    left = _left(rows)
    if left and not given_back_kib:
        text = (
            "nothing was given back, as all empty memory had to be left as it was: "
            f"{sum(left.values()) >> 10} MiB"
        )
        raise Error(
            text, Exit.REFUSED, "the lines above say why, and which option would give it back"
        )


def _trim(
    host: Host, given: TrimOptions, cgroup: str, pids: list[int], profile: str | None
) -> None:
    pressure = Pressure(host, given.max_pressure)
    rows, stopped = [], ""
    holds = Holds(host.tree, given.hold_ms / 1000)
    splitter = Splitter(host, pressure, holds)
    before = _current(host.tree, cgroup)
    for pid in pids:
        found = _before(host, given, holds, pid)
        if not found:
            continue
        row, finder = found
        done = splitter.split(pid, finder.pieces(), finder)
        row.empty_kib, row.writes = done.empty * PAGE >> 10, done.writes
        row.after_kib = None if done.ended else _now(finder)
        _note(row, finder)
        rows.append(row)
        stopped = done.stopped
        if stopped:
            break
    notes = (
        []
        if pressure.known
        else ["note: the kernel has no PSI (CONFIG_PSI): memory pressure does not stop the run"]
    )
    notes += [
        note for note in [comes_back(host.tree, given.include_madvised)] if note and not profile
    ]
    if profile and given.unit:
        save = f"mmpolicy save {MANIFESTS}/50-try.toml; mmpolicy bind --unit {given.unit} {profile}"
        notes.append(f"note: to bind the service at its next start, too: {save}")
    memory = {"before_kib": before, "after_kib": _current(host.tree, cgroup)}
    data = {
        "dry_run": False, "processes": [vars(row) for row in rows],
        "cgroup": cgroup, "memory_current": memory, "profile": profile, "stopped": stopped,
        "notes": notes,
    }  # fmt: skip
    host.log(f"trim {_target(given)}: {_saved(rows)} KiB given back")
    emit("trim", given.want_json, data, lambda: _lines(data, rows))
    if stopped:
        text = f"trim stopped before the end: {stopped}"
        raise Error(
            text,
            Exit.FAILED,
            "/proc/pressure/memory shows the pressure; trim again later, or raise --max-pressure",
        )
    _check_done(sum(row.empty_kib - row.left_kib.get("pinned", 0) for row in rows), rows)


def _target(given: TrimOptions) -> str:
    return given.unit or given.cgroup or f"process {given.pid}"


def _saved(rows: list[Row]) -> int:
    return sum(row.before_kib - row.after_kib for row in rows if row.after_kib is not None)


def _lines(data: dict[str, Any], rows: list[Row]) -> Iterator[str]:
    header = ("PID", "NAME", "EMPTY_KIB", "RSS_KIB", "", "NOW_KIB", "WRITES", "LONGEST_MS")
    found = [
        (row.pid, row.name, row.empty_kib, row.before_kib, "->",
         "ended" if row.after_kib is None else row.after_kib, row.writes, row.longest_ms)
        for row in rows if row.writes
    ]  # fmt: skip
    if found:
        yield from table(header, found)
    elif not _left(rows):
        yield "no large folio has enough empty pages"
    yield from _left_lines(rows)
    memory = data["memory_current"]
    if memory["before_kib"] is not None:
        yield (
            f"memory of cgroup {data['cgroup']}: {memory['before_kib']} KiB -> "
            f"{memory['after_kib']} KiB"
        )
    if data["profile"]:
        yield (
            f"the target is bound to the profile {data['profile']}; mmpolicy revert takes that back"
        )
    yield from data["notes"]


def _bind(host: Host, given: TrimOptions, cgroup: str) -> str:
    """Bind the target to the profile TRIMMED, and create that profile if it is missing. `revert`
    undoes both together. Return the name of the profile.
    """
    if not host.tree.exists(CONTROL):
        hint = (
            "mmpolicy load; or trim without --bind, and set MemoryTHP=disable in the "
            "systemd unit (systemd 260)"
        )
        raise Error("--bind needs the module, which is not loaded", Exit.LACKING, hint)
    key: Binding | None
    if given.pid is not None:
        key = process_key(host.tree, given.pid)
    else:
        key = CgroupBinding(find_bindable(host.tree, cgroup).number)
    with exclusive(host, False):
        old = read_state(host.tree)
        new = dict(old)
        if TRIMMED not in profiles_of(old):
            new |= {Profile(TRIMMED): "", choice(TRIMMED, POINT): POLICY}
            new[Setting(TRIMMED, POINT, "", "override_madvise")] = str(int(given.include_madvised))
            new[Setting(TRIMMED, POINT, "", "shadow")] = NO_SHADOW
        if key:
            new[key] = TRIMMED
        change(host, plan(old, new))
    return TRIMMED
