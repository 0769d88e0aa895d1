# SPDX-License-Identifier: GPL-2.0
"""The names of the entries of a state, in text for people and in JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mmpolicy.control.keys import (
    AbsentCgroup,
    CgroupBinding,
    Key,
    LoadedPolicy,
    ProcessBinding,
    Profile,
    Setting,
    State,
    UnitBinding,
)
from mmpolicy.control.state import changed_keys
from mmpolicy.errors import Error, Exit
from mmpolicy.host.cgroups import cgroup_paths
from mmpolicy.host.files import CONTROL, Tree

DIGITS = 12  # The number of digits of a SHA-256 that are shown to people.


def cgroups_of(tree: Tree, keys: Iterable[Key]) -> dict[str, str]:
    """Return the paths of cgroups by id; the cgroup tree is walked only if a key needs it.

    Where cgroup v2 is not mounted, the result is empty, and the ids are shown.
    """
    if not any(isinstance(key, CgroupBinding) for key in keys):
        return {}
    try:
        return cgroup_paths(tree)
    except Error as err:
        if err.exit_code != Exit.LACKING:
            raise
        return {}


def label_of(key: Key, paths: Mapping[str, str] | None = None) -> str:
    """Return the name of a key for people; `paths` are those of cgroups by id, if known."""
    if isinstance(key, CgroupBinding):
        gone = f"{key.number} (gone)" if paths is not None else str(key.number)
        return f"cgroup {(paths or {}).get(str(key.number), gone)}"
    if isinstance(key, AbsentCgroup):
        return f"cgroup {key.given} (not there)"
    if isinstance(key, ProcessBinding):
        return f"process {key.number}"
    if isinstance(key, UnitBinding):
        return f"unit {key.unit}"
    if isinstance(key, Profile):
        return f"profile {key.name}"
    if isinstance(key, LoadedPolicy):
        return f"policy {key.name}"
    if isinstance(key, Setting):
        return f"{key.profile}/{key.inside}"
    return key.path.removeprefix(f"{CONTROL}/")


def json_label_of(key: Key, paths: Mapping[str, str]) -> str:
    """Return the name of a key in JSON: its path in the control tree, unless it shares one."""
    if isinstance(key, (CgroupBinding, ProcessBinding, AbsentCgroup, Profile, LoadedPolicy)):
        return label_of(key, paths)
    return key.path


def shown(key: Key, value: str | None) -> str:
    """Return a value as it is shown to people."""
    if value is None:
        return "-"
    if isinstance(key, LoadedPolicy):
        return value[:DIGITS]
    return "exists" if isinstance(key, Profile) else value


def telling_keys(before: State, after: State) -> list[Key]:
    """Return the changed keys, without the settings of profiles that were created or deleted."""
    keys = changed_keys(before, after)
    whole = {key.name for key in keys if isinstance(key, Profile)}
    return [key for key in keys if not (isinstance(key, Setting) and key.profile in whole)]
