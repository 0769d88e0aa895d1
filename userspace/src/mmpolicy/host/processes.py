# SPDX-License-Identifier: GPL-2.0
"""Processes: when they began, their cgroup, and memory that can be trusted.

Pages freed by MADV_FREE stay in RSS until they are reused or memory is short. smaps_rollup
counts both, see Documentation/filesystems/proc.rst in the kernel.
"""

from __future__ import annotations

import os
import re
from errno import ENOENT, ESRCH
from typing import NamedTuple

from mmpolicy.errors import Error, Exit
from mmpolicy.host.cgroups import cgroup_pids, hierarchies, name_of, unified_of
from mmpolicy.host.files import Tree
from mmpolicy.render import table

FIELDS = re.compile(r"^(Rss|LazyFree): +(\d+) kB$", re.MULTILINE)


class Memory(NamedTuple):
    """What of some processes is resident, and what of that is lazily freed."""

    what: str
    processes: int
    rss_kib: int
    lazily_freed_kib: int
    rss_minus_lazily_freed_kib: int


def check_process(tree: Tree, pid: int | str) -> None:
    """Fail if there is no such process."""
    if not tree.is_dir(f"/proc/{pid}"):
        raise Error(f"no process {pid}", Exit.USAGE, "ps lists processes")


def printable(name: str) -> str:
    """Return a name that somebody has chosen, without what would move the cursor."""
    return "".join(each if each.isprintable() else "?" for each in name)


def start_of(tree: Tree, pid: int) -> int | None:
    """Return when a process began, in ticks since boot; None if it has ended."""
    try:
        stat = tree.read(f"/proc/{pid}/stat")
    except Error:
        return None
    # The name, which is in parentheses, may have spaces and parentheses itself.
    fields = stat.rpartition(")")[2].split()
    start = fields[19] if len(fields) > 19 else ""
    return int(start) if start.isdigit() else None


def cgroup_of(tree: Tree, pid: int) -> str:
    """Return the name of the cgroup of a process that policies go by; empty without cgroup v2."""
    lines = os.fsdecode(tree.read_bytes(f"/proc/{pid}/cgroup")).splitlines()
    path = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "")
    found = unified_of(hierarchies(tree)) if path else None
    return name_of(found.below(path) if found else path)


def _sum(what: str, found: list[dict[str, str]]) -> Memory:
    rss, lazy = (sum(int(each[name]) for each in found) for name in ("Rss", "LazyFree"))
    return Memory(what, len(found), rss, lazy, rss - lazy)


def _fields(tree: Tree, pid: int | str) -> dict[str, str]:
    """Return what smaps_rollup says, or nothing of a kernel thread or one that has ended."""
    try:
        return dict(FIELDS.findall(tree.read(f"/proc/{pid}/smaps_rollup")))
    except Error as err:
        if err.errno in (ENOENT, ESRCH):
            return {}
        raise


def memory_of_process(tree: Tree, pid: int | str) -> Memory:
    """Return the memory of a process."""
    check_process(tree, pid)
    return _sum(f"process {pid}", [found for found in [_fields(tree, pid)] if found])


def memory_of_cgroup(tree: Tree, path: str) -> Memory:
    """Return the sum over the processes of a cgroup and those below it.

    A page that several of them map counts for each, as in any sum of RSS.
    """
    found = [fields for pid in cgroup_pids(tree, path) if (fields := _fields(tree, pid))]
    return _sum(f"cgroup {path}", found)


def memory_lines(memory: list[Memory]) -> list[str]:
    """Return a table, nothing without any memory."""
    return table([name.upper() for name in Memory._fields], memory) if memory else []
