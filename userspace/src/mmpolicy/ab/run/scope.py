# SPDX-License-Identifier: GPL-2.0
"""The cgroup under test, and bindings that override the experiment in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from mmpolicy.ab.run.units import units_of
from mmpolicy.control.keys import CgroupBinding, State
from mmpolicy.errors import Error, Exit
from mmpolicy.host.cgroups import cgroup_id, cgroup_paths, find_bindable
from mmpolicy.host.files import Tree

HOST = "/"
NOWHERE = "0"  # the id 0, which for the kernel means the whole host


@dataclass(frozen=True)
class Scope:
    """A cgroup by its path below the mount, and by its id when the run began."""

    tree: Tree
    path: str = HOST
    number: str = NOWHERE

    def now(self) -> str:
        """Return the id of the cgroup that is at the path now."""
        if self.number == NOWHERE:
            return self.number
        return str(cgroup_id(self.tree, self.path))

    @property
    def gone(self) -> bool:
        """Tell if the cgroup was removed, or removed and recreated."""
        return self.now() != self.number

    def again(self) -> Scope:
        """Return the scope with the id of the cgroup that is at the path now."""
        return replace(self, number=self.now())

    def units(self, state: State) -> dict[str, int]:
        """Return path and id of each cgroup with processes that takes part."""
        return units_of(self.tree, self.path, [path for path, _ in self._bound(state)])

    def refuse_bound(self, state: State) -> None:
        """Refuse a cgroup that is bound, or inside a bound one: bindings win over experiments."""
        for path, profile in self._bound(state):
            if PurePosixPath(self.path).is_relative_to(path):
                text = f"cgroup {path} is bound to {profile}, and a binding overrides an experiment"
                hint = f"mmpolicy unbind --cgroup {path}"
                raise Error(f"{text}: no arm would decide for {self.path}", Exit.USAGE, hint)

    def warnings(self, state: State) -> Iterator[str]:
        """Yield the bound cgroups in the scope, which take no part."""
        for path, profile in self._bound(state):
            if PurePosixPath(path).is_relative_to(self.path):
                yield f"cgroup {path} takes no part, as it is bound to {profile}"

    def _bound(self, state: State) -> Iterator[tuple[str, str]]:
        bound = {key.number: state[key] for key in state if isinstance(key, CgroupBinding)}
        if bound:
            for number, path in cgroup_paths(self.tree).items():
                if int(number) in bound:
                    yield path, bound[int(number)]


def scope_of(tree: Tree, given: str | None) -> Scope:
    """Return the scope that an operator has named; without a name, the host."""
    if not given:
        return Scope(tree)
    found = find_bindable(tree, given)
    return Scope(tree, found.name, str(found.number))
