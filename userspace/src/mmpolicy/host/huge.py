# SPDX-License-Identifier: GPL-2.0
"""Find how much memory of cgroups and of virtual machines is in huge pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from mmpolicy.errors import Error, Exit
from mmpolicy.host.cgroups import charging, walk
from mmpolicy.host.files import Tree
from mmpolicy.host.processes import printable

# kinds of memory with a line for huge pages in memory.stat
KINDS = ("anon", "shmem", "file")
# names in memory.stat of cgroup v1, where the figures include descendants, and their meaning
V1 = {
    "total_rss": "anon", "total_rss_huge": "anon_thp",
    "total_shmem": "shmem", "total_cache": "file",
}  # fmt: skip
# an open file that shows that a process runs a virtual machine, and the beginning of the name of
# such a process
VM, VMM = "anon_inode:kvm-vm", "qemu"
SMALL = 1024  # a process with fewer pages is not taken for a virtual machine
# a function that returns the resident memory of a process in kB, and the part of it in huge pages,
# or None if that is not known
HugeOf = Callable[[Tree, int], "tuple[int, int | None]"]


class Huge(NamedTuple):
    """Memory of a cgroup, and the part in huge pages, in bytes by kind."""

    memory: dict[str, int]
    huge: dict[str, int]

    @property
    def coverage(self) -> float | None:
        """Return the share of anonymous and shared memory that is in huge pages; None without such
        memory.
        """
        memory = self.memory["anon"] + self.memory["shmem"]
        return (self.huge["anon"] + self.huge["shmem"]) / memory if memory else None


class Machine(NamedTuple):
    """A process that runs a virtual machine, and its memory in kB."""

    pid: int
    name: str
    rss_kib: int
    huge_kib: int | None  # None if measuring it would stop the process for too long
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
    """Return the lines of a cgroup's memory.stat by name; skip malformed lines."""
    pairs = (line.split() for line in tree.read(path).splitlines())
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def huge_of_cgroups(tree: Tree) -> dict[str, Huge]:
    """Return the memory in huge pages of each cgroup that accounts for memory, by the cgroup's
    name.
    """
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
        except Error:  # the cgroup was removed meanwhile
            continue
    return found


class Machines(NamedTuple):
    """The virtual machines of a host, and the errors for processes that could not be read."""

    found: list[Machine]
    denied: list[Error]

    def note(self) -> str:
        """Return how many processes could not be read, and why; "" if all could."""
        if not self.denied:
            return ""
        first = self.denied[0]
        told = (
            f"{len(self.denied)} processes could not be read, and are missing here: {first.message}"
        )
        return f"note: {told}; next: {first.next_step}"


def machines(tree: Tree, huge_of: HugeOf) -> Machines:
    """Return the virtual machines of the host; huge_of() measures the memory of each."""
    result = Machines([], [])
    for name in filter(str.isdigit, tree.inodes("/proc")):
        try:
            if _runs_machine(tree, name):
                result.found.append(_machine(tree, int(name), huge_of))
        except Error as err:
            if err.exit_code == Exit.DENIED:
                result.denied.append(err)  # other errors mean that the process has ended
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
