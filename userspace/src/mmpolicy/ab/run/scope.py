# SPDX-License-Identifier: GPL-2.0
"""The cgroup that an experiment is limited to, and the bindings in it, which override the
experiment.
"""

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
NOWHERE = "0"  # the id that stands for no cgroup: the kernel takes 0 for the whole host


@dataclass(frozen=True)
class Scope:
    """The cgroup that an experiment is limited to: its path below the cgroup mount, and its id when
    the run began. The defaults mean the whole host.
    """

    tree: Tree
    path: str = HOST
    number: str = NOWHERE

    def now(self) -> str:
        """Return the id of the cgroup that has this path now, NOWHERE if there is none."""
        if self.number == NOWHERE:
            return self.number
        return str(cgroup_id(self.tree, self.path))

    @property
    def gone(self) -> bool:
        """Return whether the cgroup was removed. If it was created again, its path is the same, but
        its id differs, so it counts as removed.
        """
        return self.now() != self.number

    def again(self) -> Scope:
        """Return a scope with this path and the id of the cgroup that has the path now."""
        return replace(self, number=self.now())

    def units(self, state: State) -> dict[str, int]:
        """Return path and id of each cgroup that takes part as a unit: it has processes, and no
        binding applies to it.
        """
        return units_of(self.tree, self.path, [path for path, _ in self._bound(state)])

    def refuse_bound(self, state: State) -> None:
        """Raise an error if the cgroup of the experiment is bound, or inside a bound one: the
        binding would override the experiment.
        """
        for path, profile in self._bound(state):
            if PurePosixPath(self.path).is_relative_to(path):
                text = f"cgroup {path} is bound to {profile}, and a binding overrides an experiment"
                hint = f"mmpolicy unbind --cgroup {path}"
                raise Error(
                    f"{text}: no arm of the experiment would decide for {self.path}",
                    Exit.USAGE,
                    hint,
                )

    def warnings(self, state: State) -> Iterator[str]:
        """Yield a warning for each cgroup inside the scope that is bound to a profile: such a
        cgroup takes no part in the experiment.
        """
        for path, profile in self._bound(state):
            if PurePosixPath(path).is_relative_to(self.path):
                yield (
                    f"cgroup {path} takes no part in the experiment, as it is bound to the "
                    f"profile {profile}"
                )

    def _bound(self, state: State) -> Iterator[tuple[str, str]]:
        bound = {key.number: state[key] for key in state if isinstance(key, CgroupBinding)}
        if bound:
            for number, path in cgroup_paths(self.tree).items():
                if int(number) in bound:
                    yield path, bound[int(number)]


def scope_of(tree: Tree, given: str | None) -> Scope:
    """Return the scope for the value of --cgroup; None means the whole host."""
    if not given:
        return Scope(tree)
    found = find_bindable(tree, given)
    return Scope(tree, found.name, str(found.number))
