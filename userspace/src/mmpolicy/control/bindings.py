# SPDX-License-Identifier: GPL-2.0
"""Find the profile that applies to a process or a cgroup."""

from __future__ import annotations

from pathlib import PurePosixPath

from mmpolicy.control.keys import DEFAULT, CgroupBinding, State
from mmpolicy.control.state import process_key
from mmpolicy.host.cgroups import cgroup_id
from mmpolicy.host.files import Tree
from mmpolicy.host.processes import cgroup_of


def profile_of(tree: Tree, state: State, pid: int) -> str:
    """Return the profile that applies to a process: the one to which the process itself is bound,
    else that of its cgroup, else the default profile.
    """
    key = process_key(tree, pid)
    if key in state:
        return state[key]
    if not _has_cgroups(state):
        return DEFAULT
    return profile_of_cgroup(tree, state, cgroup_of(tree, pid))


def _has_cgroups(state: State) -> bool:
    """Return whether any cgroup is bound to a profile."""
    return any(isinstance(key, CgroupBinding) for key in state)


def profile_of_cgroup(tree: Tree, state: State, cgroup: str) -> str:
    """Return the profile of the nearest bound cgroup, from this one upwards; without one, the
    default profile.
    """
    if not _has_cgroups(state):
        return DEFAULT
    path = PurePosixPath(cgroup)
    keys = (CgroupBinding(cgroup_id(tree, str(each))) for each in (path, *path.parents))
    return next((state[key] for key in keys if key in state), DEFAULT)
