# SPDX-License-Identifier: GPL-2.0
"""Cgroups as operators name them, and as the kernel does: by inode number."""

import re
from collections.abc import Iterator

from mmpolicy.errors import Error, Exit
from mmpolicy.host.files import Tree

MOUNTS = "/proc/self/mounts"
HOSTS_OWN = re.compile(r"(?:/[^/]+\.slice)*/[^/]+")


def cgroup_mount(tree: Tree) -> str:
    """Return where the cgroup v2 hierarchy is mounted."""
    for line in tree.read(MOUNTS).splitlines():
        fields = line.split()
        if len(fields) > 2 and fields[2] == "cgroup2":
            return fields[1].replace("\\040", " ")
    hint = "mount -t cgroup2 none /sys/fs/cgroup"
    raise Error(f"{tree.real(MOUNTS)} has no cgroup v2 hierarchy", Exit.LACKING, hint)


def _walk(tree: Tree, mount: str, path: str = "") -> Iterator[str]:
    """Yield the paths of all cgroups, the root's first, as `/system.slice/x.service`."""
    yield path or "/"
    try:
        names = tree.dirs(f"{mount}{path}")
    except Error:  # it has just been removed
        return
    for name in names:
        yield from _walk(tree, mount, f"{path}/{name}")


def cgroup_paths(tree: Tree) -> dict[str, str]:
    """Return the path, below the mount, of each cgroup by its id."""
    mount = cgroup_mount(tree)
    found = ((tree.inode(mount, path.strip("/")), path) for path in _walk(tree, mount))
    return {str(number): path for number, path in found if number}


def cgroup_pids(tree: Tree, path: str) -> Iterator[str]:
    """Yield the processes of a cgroup and of all below it."""
    mount = cgroup_mount(tree)
    for each in _walk(tree, mount, path.rstrip("/")):
        try:
            yield from tree.read(f"{mount}{each}/cgroup.procs").split()
        except Error:  # it has just been removed, or holds threads alone
            continue


def find_cgroup(tree: Tree, given: str) -> str:
    """Return the id of a cgroup.

    It is given as a directory, as a path below the mount, or as the name of a systemd unit.
    """
    mount = cgroup_mount(tree)
    below = "" if given.rstrip("/") == mount else given.removeprefix(f"{mount}/").strip("/")
    number = tree.inode(mount, below) if given else 0
    if given and not number and "/" not in below:
        number = tree.inode(mount, _find_unit(tree, mount, given).strip("/"))
    if not number:
        hint = f"give a directory below {mount}, or the name of a running systemd unit"
        raise Error(f"no cgroup '{given}' in {tree.real(mount)}", Exit.USAGE, hint)
    return str(number)


def _find_unit(tree: Tree, mount: str, unit: str) -> str:
    names = {unit, f"{unit}.service"}
    found = [path for path in _walk(tree, mount) if path.rpartition("/")[2] in names]
    # The host's own goes before that of a user or a container, which is below a service or scope.
    found = [path for path in found if HOSTS_OWN.fullmatch(path)] or found
    if len(found) > 1:
        text = f"'{unit}' may be any of these cgroups: {', '.join(found)}"
        raise Error(text, Exit.USAGE, "give the path of one of them")
    return found[0] if found else f"/{unit}"


def cgroup_list(tree: Tree) -> list[str]:
    """Return the paths of all cgroups."""
    return list(_walk(tree, cgroup_mount(tree)))
