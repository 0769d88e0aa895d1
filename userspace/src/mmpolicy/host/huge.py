# SPDX-License-Identifier: GPL-2.0
"""How much memory of cgroups and of virtual machines is in huge pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from mmpolicy.errors import Error, Exit
from mmpolicy.host.cgroups import cgroup_mount, is_text, walk
from mmpolicy.host.files import Tree
from mmpolicy.host.processes import printable

KINDS = ("anon", "shmem", "file")  # of memory.stat, each with a line for its huge pages
VM, VMM = "anon_inode:kvm-vm", "qemu"  # what a program has open that runs a machine; its name
SMALL = 1024  # pages: what has less is no machine
ROLLUP = re.compile(r"^(Rss|AnonHugePages|ShmemPmdMapped|FilePmdMapped): +(\d+) kB$", re.MULTILINE)


class Huge(NamedTuple):
    """What memory.stat of a cgroup tells, in bytes by kind."""

    memory: dict[str, int]
    huge: dict[str, int]

    @property
    def coverage(self) -> float | None:
        """Return which part of what is not of files is in huge pages, if there is any."""
        memory = self.memory["anon"] + self.memory["shmem"]
        return (self.huge["anon"] + self.huge["shmem"]) / memory if memory else None


class Machine(NamedTuple):
    """A program that runs a virtual machine, and its memory in kB."""

    pid: int
    name: str
    rss_kib: int
    huge_kib: int
    huge_percent: float


def huge_in(stat: dict[str, str]) -> Huge:
    """Return what is in huge pages, of the lines of memory.stat."""
    found = {name: int(value) for name, value in stat.items() if value.isdigit()}
    return Huge(
        {kind: found.get(kind, 0) for kind in KINDS},
        {kind: found.get(f"{kind}_thp", 0) for kind in KINDS},
    )


def read_stat(tree: Tree, path: str) -> dict[str, str]:
    """Return memory.stat of a cgroup by the names in it; a line that is no pair is left out."""
    pairs = (line.split() for line in tree.read(path).splitlines())
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def huge_of_cgroups(tree: Tree) -> dict[str, Huge]:
    """Return it for each cgroup that accounts for memory, by its path."""
    found = {}
    try:
        mount = cgroup_mount(tree)
    except Error:
        return {}
    for path, _ in walk(tree):
        file = f"{mount}{path.rstrip('/')}/memory.stat"
        try:
            if is_text(path) and tree.exists(file):
                found[path] = huge_in(read_stat(tree, file))
        except Error:  # it has just been removed
            continue
    return found


def machines(tree: Tree) -> Iterator[Machine]:
    """Yield the virtual machines of the host. The kernel walks their page tables for it."""
    for name in tree.inodes("/proc"):
        try:
            if name.isdigit() and _runs_machine(tree, name):
                yield _machine(tree, int(name))
        except Error as err:
            if err.exit_code == Exit.DENIED:
                raise  # else it has just ended


def _runs_machine(tree: Tree, pid: str) -> bool:
    pages = tree.read(f"/proc/{pid}/statm").split()
    if len(pages) < 2 or not pages[1].isdigit() or int(pages[1]) < SMALL:
        return False
    return tree.read(f"/proc/{pid}/comm").startswith(VMM) or VM in tree.links(f"/proc/{pid}/fd")


def _machine(tree: Tree, pid: int) -> Machine:
    found = dict(ROLLUP.findall(tree.read(f"/proc/{pid}/smaps_rollup")))
    sums = {name: int(value) for name, value in found.items()}
    rss = sums.pop("Rss", 0)
    percent = round(100 * sum(sums.values()) / rss, 1) if rss else 0.0
    name = printable(tree.read(f"/proc/{pid}/comm"))
    return Machine(pid, name, rss, sum(sums.values()), percent)
