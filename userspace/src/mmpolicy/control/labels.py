# SPDX-License-Identifier: GPL-2.0
"""Names of the entries of a state, for people and for programs."""

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

DIGITS = 12  # of a SHA-256, for people


def cgroups_of(tree: Tree, keys: Iterable[Key]) -> dict[str, str]:
    """Return the paths of cgroups by id; they are only looked for if a key needs one.

    Where cgroup v2 is not mounted, there are none, and numbers have to do.
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
    """Return what people call a key; paths are those of cgroups by id, if they are known."""
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
    """Return what JSON calls a key: its path, where it has one of its own."""
    if isinstance(key, (CgroupBinding, ProcessBinding, AbsentCgroup, Profile, LoadedPolicy)):
        return label_of(key, paths)
    return key.path


def shown(key: Key, value: str | None) -> str:
    """Return a value as people read it."""
    if value is None:
        return "-"
    if isinstance(key, LoadedPolicy):
        return value[:DIGITS]
    return "exists" if isinstance(key, Profile) else value


def telling_keys(before: State, after: State) -> list[Key]:
    """Return the keys that changed, without the settings of profiles that came or went."""
    keys = changed_keys(before, after)
    whole = {key.name for key in keys if isinstance(key, Profile)}
    return [key for key in keys if not (isinstance(key, Setting) and key.profile in whole)]
