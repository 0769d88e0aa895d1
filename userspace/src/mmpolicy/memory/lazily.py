# SPDX-License-Identifier: GPL-2.0
"""RSS of processes without lazily freed pages.

Pages freed by MADV_FREE stay in RSS until they are reused or memory is short. Only smaps counts
them, and the kernel walks the page tables under mmap_lock for it. Areas for which this would take
too long are not read, and their memory is reported as not known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from errno import ENOENT, ESRCH
from types import MappingProxyType
from typing import NamedTuple

from mmpolicy.errors import Error, Exit
from mmpolicy.host.cgroups import cgroup_pids
from mmpolicy.host.files import Tree
from mmpolicy.host.pagemap import PAGE
from mmpolicy.host.processes import check_process
from mmpolicy.memory.holds import SURE, Holds
from mmpolicy.memory.space import PRESENT, Space
from mmpolicy.render import table

COLUMNS = 5  # fields of Memory that the table shows
FIELDS = re.compile(r"^(Rss|LazyFree): +(\d+) kB$", re.MULTILINE)


class Memory(NamedTuple):
    """The resident memory of some processes, and its lazily freed part."""

    what: str
    processes: int
    rss_kib: int
    lazily_freed_kib: int  # at least; exact if all is known
    rss_minus_lazily_freed_kib: int  # at most; exact if all is known
    not_known_kib: int = 0  # the part of RSS that was not read
    # the limit (--hold) in ms with which all that may be read would be known; 0 if no limit helps
    hold_ms: int = 0

    @property
    def lazily_freed_most_kib(self) -> int:
        """Return the most that may be lazily freed: all memory that was not read."""
        return min(self.lazily_freed_kib + self.not_known_kib, self.rss_kib)

    @property
    def rss_minus_lazily_freed_least_kib(self) -> int:
        """Return RSS without all that may be lazily freed."""
        return self.rss_kib - self.lazily_freed_most_kib

    def as_data(self) -> dict[str, object]:
        """Return the figures with their bounds for JSON."""
        bounds = ("lazily_freed_most_kib", "rss_minus_lazily_freed_least_kib")
        return self._asdict() | {name: getattr(self, name) for name in bounds}


class Figures(NamedTuple):
    """The RSS of one process in kB, its lazily freed part, and the part that was not read; and the
    limit in ms with which all would be known.
    """

    rss: int
    lazily_freed: int
    not_known: int
    hold_ms: int = 0


def _figures(tree: Tree, pid: int | str, holds: Holds) -> Figures | None:
    """Return the figures of a process; None for a kernel thread or a process that has ended."""
    try:
        space = Space(tree, int(pid), holds)
        walked = _walked(space)
        if holds.allows_smaps(*walked):
            found = dict(FIELDS.findall(tree.read(f"/proc/{pid}/smaps_rollup")))
            return Figures(int(found["Rss"]), int(found["LazyFree"]), 0) if found else None
        found_here = _in_parts(space)
        if not found_here.not_known:
            return found_here
        return found_here._replace(hold_ms=holds.for_smaps_ms(*walked))
    except Error as err:
        if err.errno in (ENOENT, ESRCH) or not tree.is_dir(f"/proc/{pid}"):
            return None
        raise


def _walked(space: Space) -> tuple[int, int]:
    """Return how many pages and page table entries the kernel walks to generate smaps of a process;
    zeroes if the process has ended.
    """
    try:
        sizes = space.sizes()
    except Error:  # the process has ended, which the next read will report
        return 0, 0
    return (sizes.rss + sizes.swap) // 4, sizes.slots


def _in_parts(space: Space) -> Figures:
    """Return the figures of a process from those areas whose smaps may be read within the limit;
    resident pages of the other areas count as not known.
    """
    areas = space.areas()
    details = space.details(areas)
    lazily = sum(each.lazily_freed_kib for each in details.values() if each)
    unread = [each for each in areas if each.anonymous and not details[each.start, each.end]]
    not_known = sum(
        (each.end - each.start) >> 10
        for _, regions in space.regions_of(unread, PRESENT)
        for each in regions
        if each.categories & PRESENT
    )
    return Figures(space.sizes().rss, lazily, not_known)


def _sum(what: str, found: list[Figures]) -> Memory:
    rss, lazily, not_known = (sum(each[at] for each in found) for at in range(3))
    hold_ms = max((each.hold_ms for each in found), default=0)
    return Memory(what, len(found), rss, lazily, rss - lazily, not_known, hold_ms)


def memory_of_process(tree: Tree, pid: int | str, holds: Holds) -> Memory:
    """Return the resident memory of a process, and its lazily freed part."""
    check_process(tree, pid)
    found = _figures(tree, pid, holds)
    return _sum(f"process {pid}", [found] if found else [])


def memory_of_cgroup(
    tree: Tree, name: str, holds: Holds, looked: Mapping[str, Memory] = MappingProxyType({})
) -> Memory:
    """Return the sum over the processes of a cgroup and its descendants.

    looked: memory of processes that was found out already, by PID.

    A page that several processes map counts once for each, as in any sum of RSS. The memory of a
    process that may not be read counts as not known, unless that is so for all of them.
    """
    found, denied = list[Figures](), list[Error]()
    for pid in cgroup_pids(tree, name):
        if not _is_there(tree, pid):
            continue
        if known := looked.get(pid):
            found.append(Figures(*known[2:4], known.not_known_kib, known.hold_ms))
            continue
        try:
            found += filter(None, [_figures(tree, pid, holds)])
        except Error as err:
            if err.exit_code != Exit.DENIED:
                raise
            denied.append(err)
            rss = _resident_kib(tree, pid)
            found += [Figures(rss, 0, rss)] if rss else []
    if denied and not any(each.not_known < each.rss for each in found):
        raise denied[0]
    return _sum(f"cgroup {name}", found)


def _resident_kib(tree: Tree, pid: str) -> int:
    """Return the RSS of a process in kB, from a file that all users may read; 0 if it has ended."""
    try:
        return int(tree.read(f"/proc/{pid}/statm").split()[1]) * PAGE >> 10
    except (Error, ValueError, IndexError):  # the process has just ended
        return 0


def _is_there(tree: Tree, pid: str) -> bool:
    return tree.is_dir(f"/proc/{pid}")


def memory_lines(memory: list[Memory], command: str) -> list[str]:
    """Return a table with a line for each row of `memory`, or [] without rows.

    Where memory was not read, a row has ranges, and the last line says how to get exact figures.
    command: the command that prints these rows, to which --hold can be appended.
    """
    if not memory:
        return []
    names = [name.upper() for name in Memory._fields[:COLUMNS]]
    lines = table(names, [_cells(each) for each in memory])
    if hold_ms := max(each.hold_ms for each in memory):
        lines.append(
            f"next: {command} --hold {hold_ms} shows exact figures, and blocks mmap() of a process "
            f"for about {hold_ms / SURE:.0f} ms"
        )
    return lines


def _cells(each: Memory) -> tuple[object, ...]:
    if not each.not_known_kib:
        return each[:COLUMNS]
    return (
        *each[:3],
        f"{each.lazily_freed_kib} .. {each.lazily_freed_most_kib}",
        f"{each.rss_minus_lazily_freed_least_kib} .. {each.rss_minus_lazily_freed_kib}",
    )
