# SPDX-License-Identifier: GPL-2.0
"""The record of services that were bound when they started, by a drop-in of their unit.

Such a binding only repeats an entry of a manifest. So it is recorded here and not in the journal,
as a write to the journal would delay the start of the service. The record is empty after a boot.
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
    """The record of one service that was bound when it started."""

    time: str
    cgroup: int  # its id
    profile: str
    path: str


def read_starts(tree: Tree) -> list[Start]:
    """Return the services that were bound at a start since boot, the oldest first; skip damaged
    lines.
    """
    found = []
    for file in (path for path in (f"{RECORD}.old", RECORD) if tree.exists(path)):
        for line in tree.read(file).splitlines():
            with suppress(ValueError):
                time, number, profile, path = line.split(" ", 3)
                found.append(Start(time, int(number), profile, path))
    return found


def follow_services(tree: Tree, done: StateChange, now: State, target: State) -> State:
    """Return the target state of a rollback, adapted to services that have started since the
    change.

    A service that has started since then has a new cgroup, which is not part of the change. This
    cgroup gets the profile that the rollback gives the unit, or none if the rollback deletes the
    profile.
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
