# SPDX-License-Identifier: GPL-2.0
"""Find cgroups by the names that users give, and by the kernel's id, which is the inode number.

The kernel charges memory in one hierarchy: cgroup v2, or on older and hybrid hosts the v1
controller `memory`. Profiles can be bound only in cgroup v2. The name of a cgroup is its path
below the mount, in printable text, and every verb accepts the names that other verbs print.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from mmpolicy.errors import Error, Exit, UnknownError
from mmpolicy.host.files import Tree
from mmpolicy.host.systemd import HOSTS_OWN, Units, missing_unit

MOUNTS = "/proc/self/mountinfo"
ESCAPED = re.compile(rb"\\x([0-9a-f]{2})")
OCTAL = re.compile(r"\\([0-7]{3})")
ROOT = "/"
LONGEST = 1 << 16  # largest number of bytes that are read from /proc/PID/cgroup


class Hierarchy(NamedTuple):
    """One mounted hierarchy of cgroups."""

    mount: str
    root: str  # path of the mounted cgroup, in the cgroup namespace of this process
    controllers: frozenset[str]  # controllers of a version 1 hierarchy; empty for version 2

    @property
    def unified(self) -> bool:
        """Return whether this is the hierarchy of cgroup v2."""
        return not self.controllers

    def folder(self, path: str) -> str:
        """Return the directory of a cgroup."""
        return f"{self.mount}{path.rstrip('/')}"

    def below(self, path: str) -> str:
        """Convert a path from /proc/PID/cgroup to a path below the mount."""
        inside = path.removeprefix(self.root) if self.root != ROOT else path
        return (inside or ROOT) if inside != path and inside[:1] in ("", "/") else path


class Cgroup(NamedTuple):
    """A cgroup found by walking its hierarchy."""

    name: str
    number: int
    hierarchy: Hierarchy
    path: str

    @property
    def folder(self) -> str:
        """Return the directory of the cgroup."""
        return self.hierarchy.folder(self.path)


def name_of(path: str) -> str:
    r"""Return a path as text that can be shown and typed; other bytes are written as \xHH."""
    if path.isprintable():
        return path
    return "".join(
        each if each.isprintable() else "".join(f"\\x{byte:02x}" for byte in os.fsencode(each))
        for each in path
    )


def path_of(name: str) -> str:
    r"""Return the path from which name_of() made a name; escapes by systemd such as `\x2d` stay."""
    if "\\x" not in name:
        return name

    def plain(found: re.Match[bytes]) -> bytes:
        byte = bytes.fromhex(found[1].decode())
        return found[0] if 0x20 <= byte[0] < 0x7F else byte

    return os.fsdecode(ESCAPED.sub(plain, os.fsencode(name)))


def hierarchies(tree: Tree) -> list[Hierarchy]:
    """Return all mounted hierarchies; one whose root is mounted comes before partial mounts."""
    found = []
    for line in tree.read(MOUNTS).splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or kind[:1] not in (["cgroup"], ["cgroup2"]):
            continue
        options = kind[2].split(",") if len(kind) > 2 and kind[0] == "cgroup" else ["-"]
        root, mount = (OCTAL.sub(lambda each: chr(int(each[1], 8)), each) for each in fields[3:5])
        controllers = frozenset(options) if kind[0] == "cgroup" else frozenset[str]()
        found.append(Hierarchy(mount, root, controllers))
    return sorted(found, key=lambda each: each.root != ROOT)


def unified_of(found: Sequence[Hierarchy]) -> Hierarchy | None:
    """Return the hierarchy of cgroup v2; None if it is not mounted."""
    return next((each for each in found if each.unified), None)


def charged_in(found: Sequence[Hierarchy]) -> list[Hierarchy]:
    """Return the hierarchies to search for a name, first the one in which memory is charged."""
    of_v1 = [each for each in found if "memory" in each.controllers][:1]
    of_v2 = unified_of(found)
    return of_v1 + ([of_v2] if of_v2 else [])


def unified(tree: Tree) -> Hierarchy:
    """Return the hierarchy of cgroup v2; raise an error if it is not mounted."""
    known = hierarchies(tree)
    found = unified_of(known)
    if found:
        return found
    text = f"no cgroup v2 hierarchy is mounted, by {tree.real(MOUNTS)}"
    raise Error(text, Exit.LACKING, _how_to_mount(known))


def _how_to_mount(known: Sequence[Hierarchy]) -> str:
    """Return how to mount cgroup v2. A mount at /sys/fs/cgroup would hide the version 1 hierarchies
    below it.
    """
    if known:
        return "boot with systemd.unified_cgroup_hierarchy=1, or mount cgroup2 elsewhere"
    return "mount -t cgroup2 none /sys/fs/cgroup"


def charging(tree: Tree) -> list[Hierarchy]:
    """Return the hierarchies that account for memory; raise an error if there are none."""
    known = hierarchies(tree)
    found = charged_in(known)
    if not found:
        text = f"no mounted cgroup hierarchy accounts for memory, by {tree.real(MOUNTS)}"
        raise Error(text, Exit.LACKING, _how_to_mount(known))
    return found


def cgroup_mount(tree: Tree) -> str:
    """Return where the cgroup v2 hierarchy is mounted."""
    return unified(tree).mount


def walk(tree: Tree, hierarchy: Hierarchy, top: str = "") -> Iterator[Cgroup]:
    """Yield a cgroup and all its descendants.

    Only directories are listed, as each cgroup has dozens of files.
    """
    ahead = [(top.rstrip("/"), tree.inode(hierarchy.mount, top.strip("/")))]
    while ahead:
        path, number = ahead.pop()
        yield Cgroup(name_of(path or ROOT), number, hierarchy, path or ROOT)
        try:
            below = tree.inodes(hierarchy.folder(path))
        except Error:  # the cgroup was removed during the walk
            continue
        ahead += [(f"{path}/{name}", below[name]) for name in sorted(below, reverse=True)]


def cgroup_paths(tree: Tree) -> dict[str, str]:
    """Return the names of all cgroups to which a profile can be bound, by the cgroup's id."""
    return {str(each.number): each.name for each in walk(tree, unified(tree))}


def cgroup_id(tree: Tree, name: str) -> int:
    """Return the id of a cgroup in cgroup v2, by its name; 0 if it does not exist."""
    return _number(tree, unified(tree), name)[0]


def cgroup_folder(tree: Tree, name: str) -> str:
    """Return the directory of a named cgroup in cgroup v2, whether or not it exists."""
    found = unified(tree)
    return found.folder(_number(tree, found, name)[1])


def cgroup_folders(tree: Tree, name: str) -> list[str]:
    """Return the directories of a cgroup in all hierarchies, first the one in which memory is
    charged.
    """
    known = hierarchies(tree)
    first = charged_in(known)
    places = [*first, *(each for each in known if each not in first)]
    found = [(each, _number(tree, each, name)) for each in places]
    return [each.folder(path) for each, (number, path) in found if number]


def _number(tree: Tree, hierarchy: Hierarchy, name: str) -> tuple[int, str]:
    """Return id and path of a cgroup; its name may have escaped bytes."""
    for path in dict.fromkeys((name, path_of(name))):
        number = tree.inode(hierarchy.mount, path.strip("/"))
        if number:
            return number, f"/{path.strip('/')}"
    return 0, f"/{path_of(name).strip('/')}"


class Charged:
    """Finds the cgroup that the memory of a process is charged to."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        try:
            known = hierarchies(tree)
        except Error:
            known = []
        self._v2 = unified_of(known)
        self._v1 = next((each for each in known if "memory" in each.controllers), None)
        # path of the cgroup to which memory is charged, by path of a process's cgroup
        self._domains: dict[str, str] = {}

    def name(self, pid: int | str) -> str:
        """Return the name of the cgroup that a process is charged to; `/` for the root cgroup, or
        if the process has ended.

        In version 2, a threaded cgroup has no memory accounting: its memory is charged to an
        ancestor.
        """
        try:
            text = os.fsdecode(self._tree.read_at(f"/proc/{pid}/cgroup", LONGEST))
        except Error:
            return ROOT
        found = [line.split(":", 2) for line in text.splitlines() if line.count(":") > 1]
        v1 = next((path for _, what, path in found if "memory" in what.split(",")), ROOT)
        v1 = self._v1.below(v1) if self._v1 else v1
        if v1 != ROOT:
            return name_of(v1)
        return name_of(self._domain(next((path for _, what, path in found if not what), ROOT)))

    def _domain(self, path: str) -> str:
        if not self._v2:
            return path
        if path not in self._domains:
            at = self._v2.below(path)
            while at != ROOT and is_threaded(self._tree, self._v2.folder(at)):
                at = at.rpartition("/")[0] or ROOT
            self._domains[path] = at
        return self._domains[path]


def is_threaded(tree: Tree, folder: str) -> bool:
    """Return whether a cgroup is threaded, so that its memory is charged to an ancestor."""
    try:
        return tree.read(f"{folder}/cgroup.type") == "threaded"
    except Error:  # the root cgroup and those of version 1 have no file `cgroup.type`
        return False


def cgroup_pids(tree: Tree, name: str) -> Iterator[str]:
    """Yield the processes whose memory is charged to a cgroup or to one of its descendants.

    For a threaded cgroup, yield the processes that have a thread in it.
    """
    inside = name.rstrip("/")
    owner, seen = Charged(tree), set[str]()
    for place, hierarchy in enumerate(charging(tree)):
        number, path = _number(tree, hierarchy, name)
        if not number:
            continue
        if is_threaded(tree, hierarchy.folder(path)):
            yield from _processes_of_threads(tree, hierarchy.folder(path))
            return
        for each in walk(tree, hierarchy, path):
            try:
                found = tree.read(f"{each.folder}/cgroup.procs").split()
            # the cgroup was removed, or it is threaded and has no processes of its own
            except Error:
                continue
            for pid in found:
                # on a hybrid host, the memory may be charged to another cgroup in version 1
                if pid in seen or (place and not f"{owner.name(pid)}/".startswith(f"{inside}/")):
                    continue
                seen.add(pid)
                yield pid


def bound_pids(tree: Tree, name: str) -> Iterator[str]:
    """Yield the processes that a binding of a version 2 cgroup applies to."""
    hierarchy = unified(tree)
    for each in walk(tree, hierarchy, _number(tree, hierarchy, name)[1]):
        try:
            if is_threaded(tree, each.folder):
                yield from _processes_of_threads(tree, each.folder)
            else:
                yield from tree.read(f"{each.folder}/cgroup.procs").split()
        except Error:  # the cgroup was removed during the walk
            continue


def _processes_of_threads(tree: Tree, folder: str) -> Iterator[str]:
    """Yield each process that has a thread in a threaded cgroup once."""
    found = dict[str, None]()
    for thread in tree.read(f"{folder}/cgroup.threads").split():
        try:
            status = tree.read(f"/proc/{thread}/status")
        except Error:  # the process has just ended
            continue
        group = re.search(r"^Tgid:\s+(\d+)", status, re.MULTILINE)
        found[group[1] if group else thread] = None
    yield from found


class Finder:
    """Finds cgroups by name. The whole tree is walked at most once, and only for a name that is
    not a path.
    """

    def __init__(self, tree: Tree, among: Sequence[Hierarchy] | None = None) -> None:
        self.tree = tree
        self._among = among
        self._by_name: dict[str, list[Cgroup]] = {}

    def find(self, given: str) -> Cgroup:
        """Return the cgroup that the user means.

        given: a directory, a path below the mount, or the name of a systemd unit.
        """
        among = self._among or [unified(self.tree)]
        found = next(filter(None, (self._at(each, given) for each in among)), None)
        if not found and given and "/" not in given:
            found = self._find_unit(given, among)
        if found:
            return found
        places = ", ".join(each.mount for each in among)
        hint = f"give a directory below {places}, or the name of a running systemd unit"
        where = ", ".join(str(self.tree.real(each.mount)) for each in among)
        err = UnknownError(f"there is no cgroup '{given}' in {where}", Exit.USAGE, hint)
        raise missing_unit(Units(self.tree, partial(cgroup_paths, self.tree)), given) or err

    def _at(self, hierarchy: Hierarchy, given: str) -> Cgroup | None:
        if not given:
            return None
        mount = hierarchy.mount
        inside = ROOT if given.rstrip("/") == mount else given.removeprefix(f"{mount}/")
        number, path = _number(self.tree, hierarchy, inside)
        return Cgroup(name_of(path), number, hierarchy, path) if number else None

    def _find_unit(self, unit: str, among: Sequence[Hierarchy]) -> Cgroup | None:
        if not self._by_name:
            for hierarchy in among:
                names = dict[str, list[Cgroup]]()
                for each in walk(self.tree, hierarchy):
                    names.setdefault(each.name.rpartition("/")[2], []).append(each)
                self._by_name = names | self._by_name
        found = [each for name in (unit, f"{unit}.service") for each in self._by_name.get(name, ())]
        # a unit of the host's systemd takes precedence over a unit of a user or a container
        found = [each for each in found if HOSTS_OWN.fullmatch(each.name)] or found
        if len(found) > 1:
            text = (
                f"several cgroups have the name '{unit}': {', '.join(each.name for each in found)}"
            )
            raise Error(text, Exit.USAGE, "give the path of one of these cgroups")
        return found[0] if found else None


def find_cgroup(tree: Tree, given: str) -> Cgroup:
    """Return the cgroup with memory accounting that the user names."""
    return Finder(tree, charging(tree)).find(given)


def find_bindable(tree: Tree, given: str) -> Cgroup:
    """Return the version 2 cgroup that the user names, so that a profile can be bound to it; raise
    an error for another cgroup.
    """
    try:
        return Finder(tree).find(given)
    except Error as err:
        if err.exit_code == Exit.LACKING:
            raise
        try:
            other = find_cgroup(tree, given)
        except Error:
            raise err from None
    text = f"cgroup {other.name} is in the cgroup v1 hierarchy, and policies are bound in cgroup v2"
    hint = (
        f"mmpolicy bind --pid N binds a single process; {other.folder}/cgroup.procs lists "
        "those of this cgroup"
    )
    raise Error(text, Exit.LACKING, hint)


def cgroup_list(tree: Tree) -> list[str]:
    """Return the names of all cgroups without duplicates."""
    found = (each.name for hierarchy in charging(tree) for each in walk(tree, hierarchy))
    return list(dict.fromkeys(found))
