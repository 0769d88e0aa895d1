# SPDX-License-Identifier: GPL-2.0
"""RSS of processes without lazily freed pages.

Pages freed by MADV_FREE stay in RSS until they are reused or memory is short. Only smaps counts
them, and the kernel walks the page tables under mmap_lock for it. Areas for which this would take
too long are not read, and their memory is reported as not known.
"""

from __future__ import annotations

import re
from errno import ENOENT, ESRCH
from typing import NamedTuple

from mmpolicy.errors import Error, Exit
from mmpolicy.host.cgroups import cgroup_pids
from mmpolicy.host.files import Tree
from mmpolicy.host.pagemap import PAGE
from mmpolicy.host.processes import check_process
from mmpolicy.memory.holds import Holds
from mmpolicy.memory.space import PRESENT, Space
from mmpolicy.render import table

FIELDS = re.compile(r"^(Rss|LazyFree): +(\d+) kB$", re.MULTILINE)


class Memory(NamedTuple):
    """The resident memory of some processes, and its lazily freed part."""

    what: str
    processes: int
    rss_kib: int
    lazily_freed_kib: int
    rss_minus_lazily_freed_kib: int
    not_known_kib: int = 0  # the part of RSS that was not read


class Figures(NamedTuple):
    """The figures of one process, in kB."""

    rss: int
    lazily_freed: int
    not_known: int


def _figures(tree: Tree, pid: int | str, holds: Holds) -> Figures | None:
    """Return the figures of a process; None for a kernel thread or a process that has ended."""
    try:
        space = Space(tree, int(pid), holds)
        if holds.allows_smaps(*_walked(space)):
            found = dict(FIELDS.findall(tree.read(f"/proc/{pid}/smaps_rollup")))
            return Figures(int(found["Rss"]), int(found["LazyFree"]), 0) if found else None
        return _in_parts(space)
    except Error as err:
        if err.errno in (ENOENT, ESRCH) or not tree.is_dir(f"/proc/{pid}"):
            return None
        raise


def _walked(space: Space) -> tuple[int, int]:
    """Return the pages and page table entries that smaps walks."""
    try:
        sizes = space.sizes()
    except Error:  # the process has ended, which the next read will report
        return 0, 0
    return (sizes.rss + sizes.swap) // 4, sizes.slots


def _in_parts(space: Space) -> Figures:
    """Return the sum over those areas for which smaps may be read."""
    areas = [area for area in space.areas() if area.anonymous]
    details = space.details()
    lazily = not_known = 0
    for area in areas:
        told = details.get((area.start, area.end))
        if told:
            lazily += told.lazily_freed_kib
            continue
        regions = space.regions(area.start, area.end, PRESENT)
        not_known += sum((each.end - each.start) >> 10 for each in regions)
    return Figures(space.sizes().rss, lazily, not_known)


def _sum(what: str, found: list[Figures]) -> Memory:
    rss, lazily, not_known = (sum(column) for column in zip(*found)) if found else (0, 0, 0)
    return Memory(what, len(found), rss, lazily, rss - lazily, not_known)


def memory_of_process(tree: Tree, pid: int | str, holds: Holds) -> Memory:
    """Return the memory of a process."""
    check_process(tree, pid)
    found = _figures(tree, pid, holds)
    return _sum(f"process {pid}", [found] if found else [])


def memory_of_cgroup(tree: Tree, name: str, holds: Holds) -> Memory:
    """Return the sum over the processes of a cgroup and its descendants.

    A page that several processes map counts once for each, as in any sum of RSS. The memory of a
    process that may not be read counts as not known, unless that is so for all of them.
    """
    found, denied = list[Figures](), list[Error]()
    for pid in cgroup_pids(tree, name):
        if not _is_there(tree, pid):
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


def memory_lines(memory: list[Memory]) -> list[str]:
    """Return a table, or [] for an empty list; the last column appears only if a row has a figure
    in it.
    """
    if not memory:
        return []
    columns = len(Memory._fields) - (not any(each.not_known_kib for each in memory))
    names = [name.upper() for name in Memory._fields[:columns]]
    return table(names, [each[:columns] for each in memory])
