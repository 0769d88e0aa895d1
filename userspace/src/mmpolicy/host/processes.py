# SPDX-License-Identifier: GPL-2.0
"""Find processes, with their start time and cgroup."""

from __future__ import annotations

import os
import re
from errno import ESRCH
from typing import NamedTuple

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
GROUP = re.compile(r"^Tgid:\s+(\d+)", re.MULTILINE)
LISTED = "ps -e lists the processes"


class Process(NamedTuple):
    """A process at the first look. Another program may get its PID once it has ended."""

    pid: int
    start: int | None  # ticks since boot; None if /proc/PID/stat was unreadable

    def loss(self, tree: Tree) -> str:
        """Return as text why the memory of the process can no longer be read; "" if it can."""
        fields = stat_fields(tree, self.pid)
        ended = f"process {self.pid} has ended"
        if _start_in(fields) != self.start or not tree.is_dir(f"/proc/{self.pid}"):
            return ended
        return (headless(tree, self.pid) or ended) if _has_ended(fields) else ""

    def check(self, tree: Tree) -> None:
        """Raise an error if the memory of the process can no longer be read."""
        if loss := self.loss(tree):
            raise Error(loss, Exit.FAILED, LISTED, ESRCH)


def check_process(tree: Tree, pid: int | str) -> None:
    """Raise an error if the process does not exist."""
    if not tree.is_dir(f"/proc/{pid}"):
        raise Error(f"there is no process {pid}", Exit.USAGE, LISTED)


def seen(tree: Tree, pid: int) -> Process:
    """Return a process with its start time."""
    return Process(pid, start_of(tree, pid))


def check_memory(tree: Tree, pid: int, again: str) -> Process:
    """Return the process with this PID; raise an error if there is none, if the PID is that of a
    thread, or if the memory of the process cannot be read. again: the command up to the PID, for
    the next step.
    """
    check_process(tree, pid)
    group = _group(tree, pid)
    if group != pid:
        text = f"{pid} is a thread of process {group}"
        raise Error(text, Exit.USAGE, f"{again} {group}")
    fields = stat_fields(tree, pid)
    flags = fields[6] if len(fields) > 6 else ""
    if _has_ended(fields):
        if threads := live_threads(tree, pid):
            hint = f"cat /proc/{pid}/task/{threads[0]}/smaps_rollup shows its memory"
            raise Error(_headless(pid, threads), Exit.LACKING, hint)
        why = "has ended, and its parent has not waited for it yet (a zombie)"
    elif flags.isdigit() and int(flags) & KERNEL_THREAD:
        why = "is a kernel thread, which has no memory of its own"
    else:
        return seen(tree, pid)
    name = printable(_name(tree, str(pid)))
    raise Error(f"process {pid} ({name}) {why}", Exit.USAGE, LISTED)


def _headless(pid: int, threads: list[str]) -> str:
    run = "1 thread runs" if len(threads) == 1 else f"{len(threads)} threads run"
    return (
        f"the main thread of process {pid} has ended, but {run}; mmpolicy cannot look at the "
        "memory of such a process by its PID"
    )


def _group(tree: Tree, pid: int) -> int:
    """Return the PID of the process that a task belongs to."""
    try:
        found = GROUP.search(tree.read(f"/proc/{pid}/status"))
    except Error:  # the process has just ended
        found = None
    return int(found[1]) if found else pid


def _has_ended(fields: list[str]) -> bool:
    return fields[:1] in (["Z"], ["X"])


def live_threads(tree: Tree, pid: int) -> list[str]:
    """Return the IDs of the threads of a process that have not ended."""
    folder = f"/proc/{pid}/task"
    try:
        threads = sorted(tree.inodes(folder), key=int)
    except (Error, ValueError):  # the process has just ended
        return []
    fields = {each: _fields_in(tree, f"{folder}/{each}") for each in threads}
    return [each for each, some in fields.items() if some and not _has_ended(some)]


def headless(tree: Tree, pid: int) -> str:
    """Return as text that only other threads than the main thread of a process run; "" if that is
    not so.
    """
    threads = live_threads(tree, pid) if _has_ended(stat_fields(tree, pid)) else []
    return _headless(pid, threads) if threads else ""


def find_process(tree: Tree, given: str) -> int:
    """Return the PID of a process, given by its PID, by its program's name, or by its service if
    this has one process.

    If several processes match, the error lists them, the largest first.
    """
    again = "mmpolicy map"
    if NUMBER.fullmatch(given):
        return check_memory(tree, int(given), again).pid
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
        return check_memory(tree, pids[0], again).pid
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
    return _fields_in(tree, f"/proc/{pid}")


def _fields_in(tree: Tree, folder: str) -> list[str]:
    try:
        stat = tree.read(f"{folder}/stat")
    except Error:
        return []
    # the name in parentheses may contain spaces and parentheses, so split after the last one
    return stat.rpartition(")")[2].split()


def start_of(tree: Tree, pid: int) -> int | None:
    """Return a process's start time in ticks since boot; None if it has ended."""
    return _start_in(stat_fields(tree, pid))


def _start_in(fields: list[str]) -> int | None:
    start = fields[19] if len(fields) > 19 else ""
    return int(start) if start.isdigit() else None


def cgroup_of(tree: Tree, pid: int) -> str:
    """Return the cgroup v2 of a process, which decides about its profile; "" without cgroup v2."""
    lines = os.fsdecode(tree.read_bytes(f"/proc/{pid}/cgroup")).splitlines()
    path = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "")
    found = unified_of(hierarchies(tree)) if path else None
    return name_of(found.below(path) if found else path)
