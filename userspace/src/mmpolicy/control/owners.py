# SPDX-License-Identifier: GPL-2.0
"""Cgroup bindings that another program owns, such as an agent for containers.

Each owner has a file, which only this owner writes, with a line `ID PROFILE PATH` for each cgroup
that it binds. `apply` does not change these bindings, unless a manifest names the cgroup itself.
The files are on a file system that is empty after a boot, as ids of cgroups are not valid then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from typing import NamedTuple

from mmpolicy.control.keys import PROFILE_NAME, CgroupBinding, State
from mmpolicy.errors import Error, Exit
from mmpolicy.host.cgroups import cgroup_id
from mmpolicy.host.files import Tree

OWNERS = "/run/mmpolicy/owners"
HOST = "host"  # name that stands for the manifests of the host, in place of an owner


class Owned(NamedTuple):
    """A binding of a cgroup to a profile, which another program, its owner, wants as long as the
    cgroup exists.
    """

    owner: str
    number: int
    profile: str
    path: str

    def line(self) -> str:
        """Return the line for this binding in the owner's file."""
        return f"{self.number} {self.profile} {self.path}\n"

    def lives(self, tree: Tree) -> bool:
        """Return whether the cgroup still exists."""
        return cgroup_id(tree, self.path) == self.number


def check_owner(name: str) -> str:
    """Return the name of an owner; raise an error for an invalid name."""
    if not PROFILE_NAME.fullmatch(name) or name == HOST:
        hint = (
            f"use at most 31 characters of a-z, 0-9, _ and -, and not '{HOST}', which "
            "stands for the manifests"
        )
        raise Error(f"{name!r} is not a valid name of an owner", Exit.USAGE, hint)
    return name


def _read(tree: Tree, owner: str) -> list[Owned]:
    """Return the bindings in an owner's file; skip lines that are not bindings."""
    found = []
    for line in tree.read(f"{OWNERS}/{owner}").splitlines():
        with suppress(ValueError):
            number, profile, path = line.split(" ", 2)
            found.append(Owned(owner, int(number), profile, path))
    return found


def read_owned(tree: Tree) -> dict[CgroupBinding, Owned]:
    """Return the bindings of all owners for cgroups that exist."""
    names = tree.names(OWNERS) if tree.is_dir(OWNERS) else []
    found = [each for name in names if PROFILE_NAME.fullmatch(name) for each in _read(tree, name)]
    if not found:
        return {}
    return {CgroupBinding(each.number): each for each in found if each.lives(tree)}


def check_free(tree: Tree, key: CgroupBinding, owner: str | None) -> None:
    """Raise an error if another owner than `owner` (None: the user) owns this binding."""
    found = read_owned(tree).get(key)
    if found and found.owner != owner:
        text = f"the binding of cgroup {found.path} belongs to the owner '{found.owner}'"
        raise Error(text, Exit.REFUSED, f"give --owner {found.owner} to act as that owner")


def keep_owned(tree: Tree, owner: str, key: CgroupBinding, new: Owned | None) -> None:
    """Record that an owner has bound a cgroup; if `new` is None, that it has unbound the cgroup."""
    kept = [each for each in read_owned(tree).values() if each.owner == owner]
    kept = [each for each in kept if each.number != key.number] + ([new] if new else [])
    tree.keep(f"{OWNERS}/{owner}", "".join(each.line() for each in kept), 0o644)


def lost(now: State, target: State, owned: Collection[Owned]) -> dict[str, int]:
    """Return for each owner how many of its bindings of existing cgroups are not in force; under
    HOST, count those bindings of the target state that no owner has.
    """
    counts = Counter({HOST: 0})
    for each in owned:
        counts[each.owner] += now.get(CgroupBinding(each.number)) != each.profile
    named = {CgroupBinding(each.number) for each in owned}
    wanted = [key for key in target if isinstance(key, CgroupBinding) and key not in named]
    counts[HOST] += sum(now.get(key) != target[key] for key in wanted)
    return dict(counts)
