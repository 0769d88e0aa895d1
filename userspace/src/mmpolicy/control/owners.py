# SPDX-License-Identifier: GPL-2.0
"""Bindings that other programs than the manifests make, such as an agent for containers.

An owner keeps a file with a line for each cgroup that it binds, `ID PROFILE PATH`, which it alone
writes. `apply` leaves these as they are, unless a manifest names the cgroup itself. The files are
gone with the boot, as the ids are.
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
HOST = "host"  # the owner of bindings by manifests


class Owned(NamedTuple):
    """A binding that its owner wants for as long as the cgroup exists."""

    owner: str
    number: int
    profile: str
    path: str

    def line(self) -> str:
        """Return its line in the file of the owner."""
        return f"{self.number} {self.profile} {self.path}\n"

    def lives(self, tree: Tree) -> bool:
        """Tell if the cgroup is still there."""
        return cgroup_id(tree, self.path) == self.number


def check_owner(name: str) -> str:
    """Return the name of an owner; refuse an invalid name."""
    if not PROFILE_NAME.fullmatch(name) or name == HOST:
        hint = f"take a-z, 0-9, _ and -, at most 31; '{HOST}' are the manifests"
        raise Error(f"{name!r} is no name for an owner", Exit.USAGE, hint)
    return name


def _read(tree: Tree, owner: str) -> list[Owned]:
    """Return what an owner has written; a line that is no binding is passed over."""
    found = []
    for line in tree.read(f"{OWNERS}/{owner}").splitlines():
        with suppress(ValueError):
            number, profile, path = line.split(" ", 2)
            found.append(Owned(owner, int(number), profile, path))
    return found


def read_owned(tree: Tree) -> dict[CgroupBinding, Owned]:
    """Return the bindings of all owners, of cgroups that are there."""
    names = tree.names(OWNERS) if tree.is_dir(OWNERS) else []
    found = [each for name in names if PROFILE_NAME.fullmatch(name) for each in _read(tree, name)]
    if not found:
        return {}
    return {CgroupBinding(each.number): each for each in found if each.lives(tree)}


def check_free(tree: Tree, key: CgroupBinding, owner: str | None) -> None:
    """Refuse to change a binding of another owner."""
    found = read_owned(tree).get(key)
    if found and found.owner != owner:
        text = f"cgroup {found.path} is bound by the owner '{found.owner}'"
        raise Error(text, Exit.REFUSED, f"--owner {found.owner} acts in its name")


def keep_owned(tree: Tree, owner: str, key: CgroupBinding, new: Owned | None) -> None:
    """Write down what an owner has bound, or without that, that it has unbound the cgroup."""
    kept = [each for each in read_owned(tree).values() if each.owner == owner]
    kept = [each for each in kept if each.number != key.number] + ([new] if new else [])
    tree.keep(f"{OWNERS}/{owner}", "".join(each.line() for each in kept), 0o644)


def lost(now: State, target: State, owned: Collection[Owned]) -> dict[str, int]:
    """Return how many bindings of each owner are not in force, of cgroups that are there."""
    counts = Counter({HOST: 0})
    for each in owned:
        counts[each.owner] += now.get(CgroupBinding(each.number)) != each.profile
    named = {CgroupBinding(each.number) for each in owned}
    wanted = [key for key in target if isinstance(key, CgroupBinding) and key not in named]
    counts[HOST] += sum(now.get(key) != target[key] for key in wanted)
    return dict(counts)
