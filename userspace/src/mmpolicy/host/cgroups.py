# SPDX-License-Identifier: GPL-2.0
"""Cgroups as operators name them, and as the kernel does: by inode number.

Memory is charged in one hierarchy: that of cgroup v2, or on older and hybrid hosts that of the v1
controller `memory`. Policies are bound in cgroup v2 alone. A name is the path below the mount, in
printable text; each verb accepts what another one prints.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from mmpolicy.errors import Error, Exit
from mmpolicy.host.files import Tree
from mmpolicy.host.systemd import HOSTS_OWN, Units, missing_unit

MOUNTS = "/proc/self/mountinfo"
ESCAPED = re.compile(rb"\\x([0-9a-f]{2})")
OCTAL = re.compile(r"\\([0-7]{3})")
ROOT = "/"
LONGEST = 1 << 16  # bytes of /proc/PID/cgroup


class Hierarchy(NamedTuple):
    """A mounted hierarchy of cgroups."""

    mount: str
    root: str  # the cgroup that is mounted, seen from our cgroup namespace
    controllers: frozenset[str]  # of version 1; none for version 2

    @property
    def unified(self) -> bool:
        """Tell if it is that of cgroup v2."""
        return not self.controllers

    def folder(self, path: str) -> str:
        """Return the directory of a cgroup."""
        return f"{self.mount}{path.rstrip('/')}"

    def below(self, path: str) -> str:
        """Return a path of /proc/PID/cgroup as it is below the mount."""
        inside = path.removeprefix(self.root) if self.root != ROOT else path
        return (inside or ROOT) if inside != path and inside[:1] in ("", "/") else path


class Cgroup(NamedTuple):
    """A cgroup as it was found in one walk."""

    name: str
    number: int
    hierarchy: Hierarchy
    path: str

    @property
    def folder(self) -> str:
        """Return its directory."""
        return self.hierarchy.folder(self.path)


def name_of(path: str) -> str:
    """Return a path as text that a terminal shows and a user can type: odd bytes as \\xHH."""
    if path.isprintable():
        return path
    return "".join(
        each if each.isprintable() else "".join(f"\\x{byte:02x}" for byte in os.fsencode(each))
        for each in path
    )


def path_of(name: str) -> str:
    """Return the path that a name was made from; `\\x2d` and the like stay, as systemd has it."""
    if "\\x" not in name:
        return name

    def plain(found: re.Match[bytes]) -> bytes:
        byte = bytes.fromhex(found[1].decode())
        return found[0] if 0x20 <= byte[0] < 0x7F else byte

    return os.fsdecode(ESCAPED.sub(plain, os.fsencode(name)))


def hierarchies(tree: Tree) -> list[Hierarchy]:
    """Return all mounted hierarchies; a whole one goes before a mounted part."""
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
    """Return that of cgroup v2."""
    return next((each for each in found if each.unified), None)


def charged_in(found: Sequence[Hierarchy]) -> list[Hierarchy]:
    """Return where a name of a cgroup is looked for: first where memory is charged."""
    of_v1 = [each for each in found if "memory" in each.controllers][:1]
    of_v2 = unified_of(found)
    return of_v1 + ([of_v2] if of_v2 else [])


def unified(tree: Tree) -> Hierarchy:
    """Return the hierarchy of cgroup v2, or fail."""
    known = hierarchies(tree)
    found = unified_of(known)
    if found:
        return found
    hint = "mount -t cgroup2 none /sys/fs/cgroup"
    if known:  # which would be hidden
        hint = "boot with systemd.unified_cgroup_hierarchy=1, or mount cgroup2 elsewhere"
    raise Error(f"{tree.real(MOUNTS)} has no cgroup v2 hierarchy", Exit.LACKING, hint)


def charging(tree: Tree) -> list[Hierarchy]:
    """Return the hierarchies that account for memory, or fail."""
    found = charged_in(hierarchies(tree))
    if not found:
        text = f"{tree.real(MOUNTS)} has no hierarchy of cgroups that accounts for memory"
        raise Error(text, Exit.LACKING, "mount -t cgroup2 none /sys/fs/cgroup")
    return found


def cgroup_mount(tree: Tree) -> str:
    """Return where the cgroup v2 hierarchy is mounted."""
    return unified(tree).mount


def walk(tree: Tree, hierarchy: Hierarchy, top: str = "") -> Iterator[Cgroup]:
    """Yield a cgroup and all below it.

    Only directories are looked at, as a cgroup has dozens of files.
    """
    ahead = [(top.rstrip("/"), tree.inode(hierarchy.mount, top.strip("/")))]
    while ahead:
        path, number = ahead.pop()
        yield Cgroup(name_of(path or ROOT), number, hierarchy, path or ROOT)
        try:
            below = tree.inodes(hierarchy.folder(path))
        except Error:  # it has just been removed
            continue
        ahead += [(f"{path}/{name}", below[name]) for name in sorted(below, reverse=True)]


def cgroup_paths(tree: Tree) -> dict[str, str]:
    """Return the name of each cgroup that a policy can be bound to, by its id."""
    return {str(each.number): each.name for each in walk(tree, unified(tree))}


def cgroup_id(tree: Tree, name: str) -> int:
    """Return the id of the cgroup with this name in cgroup v2, 0 if there is none."""
    return _number(tree, unified(tree), name)[0]


def cgroup_folder(tree: Tree, name: str) -> str:
    """Return the directory of a cgroup in cgroup v2, be it there or not."""
    found = unified(tree)
    return found.folder(_number(tree, found, name)[1])


def cgroup_folders(tree: Tree, name: str) -> list[str]:
    """Return the directory of a cgroup in each hierarchy that has it, where memory is first."""
    known = hierarchies(tree)
    first = charged_in(known)
    places = [*first, *(each for each in known if each not in first)]
    found = [(each, _number(tree, each, name)) for each in places]
    return [each.folder(path) for each, (number, path) in found if number]


def _number(tree: Tree, hierarchy: Hierarchy, name: str) -> tuple[int, str]:
    """Return id and path of a named cgroup: as written, or with its bytes escaped."""
    for path in dict.fromkeys((name, path_of(name))):
        number = tree.inode(hierarchy.mount, path.strip("/"))
        if number:
            return number, f"/{path.strip('/')}"
    return 0, f"/{path_of(name).strip('/')}"


class Charged:
    """Tells which cgroup the memory of a process is charged to."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        try:
            known = hierarchies(tree)
        except Error:
            known = []
        self._v2 = unified_of(known)
        self._v1 = next((each for each in known if "memory" in each.controllers), None)
        self._domains: dict[str, str] = {}  # by path

    def name(self, pid: int | str) -> str:
        """Return the name of the cgroup, `/` for the root or a process that has ended.

        In version 2 a threaded cgroup has no memory of its own: it is charged to the domain above.
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
    """Tell if a cgroup holds threads, whose memory belongs to a cgroup above."""
    try:
        return tree.read(f"{folder}/cgroup.type") == "threaded"
    except Error:  # the root has no type, nor has version 1
        return False


def cgroup_pids(tree: Tree, name: str) -> Iterator[str]:
    """Yield the processes whose memory is charged to a cgroup or to one below it.

    For a threaded cgroup, those with a thread in it.
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
            except Error:  # it has just been removed, or holds threads alone
                continue
            for pid in found:
                # On a hybrid host, memory may be charged to another cgroup in version 1.
                if pid in seen or (place and not f"{owner.name(pid)}/".startswith(f"{inside}/")):
                    continue
                seen.add(pid)
                yield pid


def bound_pids(tree: Tree, name: str) -> Iterator[str]:
    """Yield the processes that a binding of a cgroup of version 2 is about."""
    hierarchy = unified(tree)
    for each in walk(tree, hierarchy, _number(tree, hierarchy, name)[1]):
        try:
            if is_threaded(tree, each.folder):
                yield from _processes_of_threads(tree, each.folder)
            else:
                yield from tree.read(f"{each.folder}/cgroup.procs").split()
        except Error:  # it has just been removed
            continue


def _processes_of_threads(tree: Tree, folder: str) -> Iterator[str]:
    """Yield the processes that have a thread in a threaded cgroup, each once."""
    found = dict[str, None]()
    for thread in tree.read(f"{folder}/cgroup.threads").split():
        try:
            status = tree.read(f"/proc/{thread}/status")
        except Error:  # it has just ended
            continue
        group = re.search(r"^Tgid:\s+(\d+)", status, re.MULTILINE)
        found[group[1] if group else thread] = None
    yield from found


class Finder:
    """Finds cgroups as operators name them. It walks the tree once, and only for a bare name."""

    def __init__(self, tree: Tree, among: Sequence[Hierarchy] | None = None) -> None:
        self.tree = tree
        self._among = among
        self._by_name: dict[str, list[Cgroup]] = {}

    def find(self, given: str) -> Cgroup:
        """Return a cgroup.

        It is given as a directory, as a path below the mount, or as the name of a systemd unit.
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
        err = Error(f"no cgroup '{given}' in {where}", Exit.USAGE, hint)
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
        # The host's own goes before that of a user or a container, which is below a service or
        # scope.
        found = [each for each in found if HOSTS_OWN.fullmatch(each.name)] or found
        if len(found) > 1:
            text = f"'{unit}' may be any of these cgroups: {', '.join(each.name for each in found)}"
            raise Error(text, Exit.USAGE, "give the path of one of them")
        return found[0] if found else None


def find_cgroup(tree: Tree, given: str) -> Cgroup:
    """Return the cgroup that has memory, by a name that an operator gives or a verb prints."""
    return Finder(tree, charging(tree)).find(given)


def find_bindable(tree: Tree, given: str) -> Cgroup:
    """Return the cgroup of version 2 to which a policy can be bound."""
    try:
        return Finder(tree).find(given)
    except Error as err:
        if err.exit_code == Exit.LACKING:
            raise
        try:
            other = find_cgroup(tree, given)
        except Error:
            raise err from None
    text = f"cgroup {other.name} is one of cgroup v1, and policies are bound in cgroup v2"
    hint = f"mmpolicy bind --pid N binds each process of {other.folder}/cgroup.procs by itself"
    raise Error(text, Exit.LACKING, hint)


def cgroup_list(tree: Tree) -> list[str]:
    """Return the names of all cgroups, each once."""
    found = (each.name for hierarchy in charging(tree) for each in walk(tree, hierarchy))
    return list(dict.fromkeys(found))
