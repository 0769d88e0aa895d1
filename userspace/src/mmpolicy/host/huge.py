# SPDX-License-Identifier: GPL-2.0
"""How much memory of cgroups and of virtual machines is in huge pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from mmpolicy.errors import Error, Exit
from mmpolicy.host.cgroups import charging, walk
from mmpolicy.host.files import Tree
from mmpolicy.host.processes import printable

KINDS = ("anon", "shmem", "file")  # of memory.stat, each with a line for its huge pages
V1 = {  # what cgroup v1 calls them, together with those below
    "total_rss": "anon", "total_rss_huge": "anon_thp",
    "total_shmem": "shmem", "total_cache": "file",
}  # fmt: skip
VM, VMM = "anon_inode:kvm-vm", "qemu"  # an open file of a virtual machine monitor; part of its name
SMALL = 1024  # pages: a process with less is no virtual machine
HugeOf = Callable[[Tree, int], "tuple[int, int | None]"]  # kB resident, and in huge pages


class Huge(NamedTuple):
    """What memory.stat of a cgroup tells, in bytes by kind."""

    memory: dict[str, int]
    huge: dict[str, int]

    @property
    def coverage(self) -> float | None:
        """Return the part of anonymous and shared memory in huge pages, if there is any."""
        memory = self.memory["anon"] + self.memory["shmem"]
        return (self.huge["anon"] + self.huge["shmem"]) / memory if memory else None


class Machine(NamedTuple):
    """A program that runs a virtual machine, and its memory in kB."""

    pid: int
    name: str
    rss_kib: int
    huge_kib: int | None  # None where finding out would stop it for too long
    huge_percent: float | None


def huge_in(stat: dict[str, str]) -> Huge:
    """Return the memory in huge pages, from the lines of memory.stat."""
    found = {name: int(value) for name, value in stat.items() if value.isdigit()}
    found = {V1.get(name, name): value for name, value in found.items()}
    return Huge(
        {kind: found.get(kind, 0) for kind in KINDS},
        {kind: found.get(f"{kind}_thp", 0) for kind in KINDS},
    )


def read_stat(tree: Tree, path: str) -> dict[str, str]:
    """Return memory.stat of a cgroup by the names in it; a line that is no pair is left out."""
    pairs = (line.split() for line in tree.read(path).splitlines())
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def huge_of_cgroups(tree: Tree) -> dict[str, Huge]:
    """Return it for each cgroup that accounts for memory, by its name."""
    found = {}
    try:
        hierarchy = charging(tree)[0]
    except Error:
        return {}
    for each in walk(tree, hierarchy):
        file = f"{each.folder}/memory.stat"
        try:
            if tree.exists(file):
                found[each.name] = huge_in(read_stat(tree, file))
        except Error:  # it has just been removed
            continue
    return found


class Machines(NamedTuple):
    """The virtual machines of a host, and which processes could not be looked at."""

    found: list[Machine]
    denied: list[Error]

    def note(self) -> str:
        """Return how many were not looked at and why, empty if all were."""
        if not self.denied:
            return ""
        first = self.denied[0]
        told = f"{len(self.denied)} processes could not be looked at: {first.message}"
        return f"note: {told}; next: {first.next_step}"


def machines(tree: Tree, huge_of: HugeOf) -> Machines:
    """Return the virtual machines of the host; it is asked how much memory of each is huge."""
    result = Machines([], [])
    for name in filter(str.isdigit, tree.inodes("/proc")):
        try:
            if _runs_machine(tree, name):
                result.found.append(_machine(tree, int(name), huge_of))
        except Error as err:
            if err.exit_code == Exit.DENIED:
                result.denied.append(err)  # else it has just ended
    return result


def _runs_machine(tree: Tree, pid: str) -> bool:
    pages = tree.read(f"/proc/{pid}/statm").split()
    if len(pages) < 2 or not pages[1].isdigit() or int(pages[1]) < SMALL:
        return False
    return tree.read(f"/proc/{pid}/comm").startswith(VMM) or VM in tree.links(f"/proc/{pid}/fd")


def _machine(tree: Tree, pid: int, huge_of: HugeOf) -> Machine:
    rss, huge = huge_of(tree, pid)
    percent = None if huge is None else round(100 * huge / rss, 1) if rss else 0.0
    return Machine(pid, printable(tree.read(f"/proc/{pid}/comm")), rss, huge, percent)
