# SPDX-License-Identifier: GPL-2.0
"""Memory charged to cgroups, and the cgroup that a page is charged to."""

from __future__ import annotations

from typing import NamedTuple

from mmpolicy.errors import Error
from mmpolicy.host.cgroups import cgroup_folders, charging, walk
from mmpolicy.host.files import Tree
from mmpolicy.host.huge import read_stat

UNKNOWN = -1  # stands for the usage of the root cgroup, which has no memory.current


class Account(NamedTuple):
    """The memory charged to a cgroup itself, without its descendants, in kB."""

    memory: int  # memory.current, which also includes kernel memory
    private: int
    shared: int
    file: int
    zswapped: int = 0  # size before compression; `memory` includes the compressed size


def _of_version_1(tree: Tree, folder: str) -> Account:
    """Return the account of a v1 cgroup; only `memory` includes its descendants."""
    stat = _stat(tree, folder)
    usage, shared = int(tree.read(f"{folder}/memory.usage_in_bytes")) >> 10, stat.get("shmem", 0)
    return Account(usage, stat.get("rss", 0), shared, stat.get("cache", 0) - shared)


def _of_version_2(tree: Tree, folder: str) -> Account:
    """Return the account of a v2 cgroup with its descendants."""
    stat = _stat(tree, folder)
    current, shared = f"{folder}/memory.current", stat.get("shmem", 0)
    memory = int(tree.read(current)) >> 10 if tree.exists(current) else UNKNOWN
    file, zswapped = stat.get("file", 0) - shared, stat.get("zswapped", 0)
    return Account(memory, stat.get("anon", 0), shared, file, zswapped)


def _stat(tree: Tree, folder: str) -> dict[str, int]:
    lines = read_stat(tree, f"{folder}/memory.stat")
    return {name: int(value) >> 10 for name, value in lines.items() if value.isdigit()}


def account_of(tree: Tree, name: str) -> Account | None:
    """Return the memory charged to a cgroup itself; None if it has no memory controller."""
    try:
        read = _of_version_2 if charging(tree)[0].unified else _of_version_1
        folder = cgroup_folders(tree, name)[0]
        whole, below = read(tree, folder), tree.inodes(folder)
    except (Error, ValueError, IndexError):
        return None
    children = []
    for each in below:
        try:
            children.append(read(tree, f"{folder}/{each}"))
        except (Error, ValueError):  # the cgroup has no memory controller, or was just removed
            continue
    # the files change while they are read one after another, so a difference may be negative
    alone = Account(*(max(mine - sum(theirs), 0) for mine, *theirs in zip(whole, *children)))
    if whole.memory == UNKNOWN:
        alone = alone._replace(memory=alone.private + alone.shared + alone.file)
    return alone if read is _of_version_2 else whole._replace(memory=alone.memory)


class Owners:
    """Maps the cgroup numbers of /proc/kpagecgroup to names."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._names: dict[int, str] = {}
        self._missing: set[int] = set()

    def name(self, number: int) -> str | None:
        """Return the name of a cgroup by its number; None if it no longer exists."""
        if number not in self._names and number not in self._missing:
            try:
                found = walk(self._tree, charging(self._tree)[0])
                self._names = {each.number: each.name for each in found}
            except Error:
                pass
            if number not in self._names:
                self._missing.add(number)
        return self._names.get(number)
