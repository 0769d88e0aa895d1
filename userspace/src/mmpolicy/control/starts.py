# SPDX-License-Identifier: GPL-2.0
"""Services that were bound as they started, by the drop-in of their unit.

The drop-in has no time for the journal, and its bindings are no change by anybody: it makes again
what a manifest of the host says. It leaves a line for each, which is gone with the boot.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from mmpolicy.control.change import StateChange
from mmpolicy.control.keys import CgroupBinding, Profile, State, UnitBinding
from mmpolicy.control.state import changed_keys
from mmpolicy.control.units import units_of
from mmpolicy.errors import Error
from mmpolicy.host.files import Tree

RECORD = "/run/mmpolicy/bound"


class Start(NamedTuple):
    """A service that was bound."""

    time: str
    cgroup: int  # its id
    profile: str
    path: str


def read_starts(tree: Tree) -> list[Start]:
    """Return those of this boot, the oldest first; a line that is cut off is passed over."""
    found = []
    for file in (path for path in (f"{RECORD}.old", RECORD) if tree.exists(path)):
        for line in tree.read(file).splitlines():
            with suppress(ValueError):
                time, number, profile, path = line.split(" ", 3)
                found.append(Start(time, int(number), profile, path))
    return found


def follow_services(tree: Tree, done: StateChange, now: State, target: State) -> State:
    """Return the target of an undone change with services that have started since.

    Such a service has another cgroup than the change knows, so it goes the way of its unit, and
    is bound to no profile that goes.
    """
    target = dict(target)
    for key in changed_keys(*done):
        before, after = (state.get(key) for state in done)
        for running in _cgroups_of(tree, key) if isinstance(key, UnitBinding) else ():
            if running in done.before | done.after or now.get(running) != after:
                continue
            target.pop(running, None)
            if before is not None:
                target[running] = before
    for start in read_starts(tree):
        key, profile = CgroupBinding(start.cgroup), now.get(CgroupBinding(start.cgroup))
        if profile == start.profile and Profile(profile) not in target:
            target.pop(key, None)
    return target


def _cgroups_of(tree: Tree, key: UnitBinding) -> list[CgroupBinding]:
    try:
        return [*map(CgroupBinding, units_of(tree).running(key.unit).values())]
    except Error:
        return []
