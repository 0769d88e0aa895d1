# SPDX-License-Identifier: GPL-2.0
"""Cgroups as operators name them, and as the kernel does: by inode number."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mmpolicy.errors import Error, Exit
from mmpolicy.host.files import Tree

MOUNTS = "/proc/self/mounts"
HOSTS_OWN = re.compile(r"(?:/[^/]+\.slice)*/[^/]+")


def cgroup_mount(tree: Tree) -> str:
    """Return where the cgroup v2 hierarchy is mounted."""
    mounts = [line.split() for line in tree.read(MOUNTS).splitlines()]
    for fields in (fields for fields in mounts if len(fields) > 2):
        if fields[2] == "cgroup2":
            return fields[1].replace("\\040", " ")
    hint = "mount -t cgroup2 none /sys/fs/cgroup"
    if any("cgroup" in fields[2:3] for fields in mounts):  # which would be hidden
        hint = "boot with systemd.unified_cgroup_hierarchy=1, or mount cgroup2 elsewhere"
    raise Error(f"{tree.real(MOUNTS)} has no cgroup v2 hierarchy", Exit.LACKING, hint)


def walk(tree: Tree, top: str = "") -> Iterator[tuple[str, int]]:
    """Yield path and id of a cgroup and of all below it, the first one as `/` if it is the root.

    Only directories are looked at, as a cgroup has dozens of files.
    """
    mount = cgroup_mount(tree)
    ahead = [(top, tree.inode(mount, top.strip("/")))]
    while ahead:
        path, number = ahead.pop()
        yield path or "/", number
        try:
            below = tree.inodes(f"{mount}{path}")
        except Error:  # it has just been removed
            continue
        ahead += [(f"{path}/{name}", below[name]) for name in sorted(below, reverse=True)]


def cgroup_paths(tree: Tree) -> dict[str, str]:
    """Return the path, below the mount, of each cgroup by its id.

    One whose name is no text, which no manifest and no metric can have, goes by its id.
    """
    return {str(number): path for path, number in walk(tree) if is_text(path)}


def is_text(path: str) -> bool:
    """Tell if a path is text, which a name of a cgroup need not be."""
    return not any("\udc80" <= each <= "\udcff" for each in path)


def cgroup_pids(tree: Tree, path: str) -> Iterator[str]:
    """Yield the processes of a cgroup and of all below it."""
    mount = cgroup_mount(tree)
    for each, _ in walk(tree, path.rstrip("/")):
        try:
            yield from tree.read(f"{mount}{each}/cgroup.procs").split()
        except Error:  # it has just been removed, or holds threads alone
            continue


class Finder:
    """Finds cgroups as operators name them. It walks the tree once, and only for a bare name."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self._by_name: dict[str, list[tuple[str, int]]] = {}

    def find(self, given: str) -> str:
        """Return the id of a cgroup.

        It is given as a directory, as a path below the mount, or as the name of a systemd unit.
        """
        mount = cgroup_mount(self.tree)
        below = "" if given.rstrip("/") == mount else given.removeprefix(f"{mount}/").strip("/")
        number = self.tree.inode(mount, below) if given else 0
        if given and not number and "/" not in below:
            number = self._find_unit(given)
        if not number:
            hint = f"give a directory below {mount}, or the name of a running systemd unit"
            raise Error(f"no cgroup '{given}' in {self.tree.real(mount)}", Exit.USAGE, hint)
        return str(number)

    def _find_unit(self, unit: str) -> int:
        if not self._by_name:
            for path, number in walk(self.tree):
                name = path.rpartition("/")[2]
                self._by_name.setdefault(name, []).append((path, number))
        found = [each for name in (unit, f"{unit}.service") for each in self._by_name.get(name, ())]
        # The host's own goes before that of a user or a container, which is below a service or
        # scope.
        found = [each for each in found if HOSTS_OWN.fullmatch(each[0])] or found
        if len(found) > 1:
            text = f"'{unit}' may be any of these cgroups: {', '.join(path for path, _ in found)}"
            raise Error(text, Exit.USAGE, "give the path of one of them")
        return found[0][1] if found else 0


def find_cgroup(tree: Tree, given: str) -> str:
    """Return the id of one cgroup."""
    return Finder(tree).find(given)


def cgroup_list(tree: Tree) -> list[str]:
    """Return the paths of all cgroups."""
    return [path for path, _ in walk(tree)]
