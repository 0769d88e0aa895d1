# SPDX-License-Identifier: GPL-2.0
"""Find processes, with their start time and cgroup."""

from __future__ import annotations

import os
import re

from mmpolicy.errors import Error, Exit, UnknownError
from mmpolicy.host.cgroups import (
    cgroup_pids,
    find_cgroup,
    hierarchies,
    name_of,
    unified_of,
)
from mmpolicy.host.files import Tree

MOST_LISTED = 5
NAME_BYTES = 15  # largest length of a name in /proc/PID/comm
NUMBER = re.compile("[1-9][0-9]{0,9}")
KERNEL_THREAD = 0x200000  # flag of a task (PF_KTHREAD)


def check_process(tree: Tree, pid: int | str) -> None:
    """Raise an error if the process does not exist."""
    if not tree.is_dir(f"/proc/{pid}"):
        raise Error(f"there is no process {pid}", Exit.USAGE, "ps -e lists the processes")


def check_memory(tree: Tree, pid: int) -> None:
    """Raise an error if there is no such process, or if it has no memory of its own."""
    check_process(tree, pid)
    fields = stat_fields(tree, pid)
    state, flags = (fields[0], fields[6]) if len(fields) > 6 else ("", "")
    if state in ("Z", "X"):
        why = "has ended, and its parent has not waited for it yet (a zombie)"
    elif flags.isdigit() and int(flags) & KERNEL_THREAD:
        why = "is a kernel thread, which has no memory of its own"
    else:
        return
    name = printable(_name(tree, str(pid)))
    raise Error(f"process {pid} ({name}) {why}", Exit.USAGE, "ps -e lists the processes")


def find_process(tree: Tree, given: str) -> int:
    """Return the PID of a process, given by its PID, by its program's name, or by its service if
    this has one process.

    If several processes match, the error lists them, the largest first.
    """
    if NUMBER.fullmatch(given):
        check_memory(tree, int(given))
        return int(given)
    pids = [int(pid) for pid in tree.inodes("/proc") if pid.isdigit() and _name(tree, pid) == given]
    if not pids:
        try:
            pids = [int(pid) for pid in cgroup_pids(tree, find_cgroup(tree, given).name)]
        except UnknownError as err:
            text = f"there is no process and no service '{given}'"
            raise Error(
                text, Exit.USAGE, "ps -e lists all processes; mmpolicy top also lists services"
            ) from err
    if len(pids) == 1:
        return pids[0]
    if not pids:
        raise Error(
            f"the service '{given}' has no process",
            Exit.USAGE,
            f"systemctl status {given} says whether it runs",
        )
    first = sorted(pids, key=lambda pid: -_pages(tree, pid))[:MOST_LISTED]
    listed = ", ".join(f"{pid} ({_pages(tree, pid) >> 8} MiB)" for pid in first)
    rest = len(pids) - len(first)
    more = f" and {rest} more" if rest else ""
    raise Error(
        f"'{given}' has {len(pids)} processes: {listed}{more}",
        Exit.USAGE,
        "give the number of one of these processes",
    )


def _name(tree: Tree, pid: str) -> str:
    """Return the name of a process, from its command line if the kernel has cut it at 15 bytes."""
    try:
        name = tree.read(f"/proc/{pid}/comm")
        if len(name) < NAME_BYTES:
            return name
        words = tree.read(f"/proc/{pid}/cmdline").split("\0")
        return words[0].rpartition("/")[2] or name
    except Error:  # the process has just ended
        return ""


def _pages(tree: Tree, pid: int) -> int:
    try:
        return int(tree.read(f"/proc/{pid}/statm").split()[1])
    except (Error, ValueError, IndexError):
        return 0


def printable(name: str) -> str:
    """Return a name without control characters, as any user may choose it."""
    if name.isprintable():
        return name
    return "".join(each if each.isprintable() else "?" for each in name)


def stat_fields(tree: Tree, pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on, the third; [] if the process has
    ended.
    """
    try:
        stat = tree.read(f"/proc/{pid}/stat")
    except Error:
        return []
    # the name in parentheses may contain spaces and parentheses, so split after the last one
    return stat.rpartition(")")[2].split()


def start_of(tree: Tree, pid: int) -> int | None:
    """Return a process's start time in ticks since boot; None if it has ended."""
    fields = stat_fields(tree, pid)
    start = fields[19] if len(fields) > 19 else ""
    return int(start) if start.isdigit() else None


def cgroup_of(tree: Tree, pid: int) -> str:
    """Return the cgroup v2 of a process, which decides about its profile; "" without cgroup v2."""
    lines = os.fsdecode(tree.read_bytes(f"/proc/{pid}/cgroup")).splitlines()
    path = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "")
    found = unified_of(hierarchies(tree)) if path else None
    return name_of(found.below(path) if found else path)
