# SPDX-License-Identifier: GPL-2.0
"""The names of the entries of a state, as text and in JSON."""

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

DIGITS = 12  # digits of a SHA-256 that are shown


def cgroups_of(tree: Tree, keys: Iterable[Key]) -> dict[str, str]:
    """Return the paths of all cgroups by id; {} if none of the keys is about a cgroup, as a walk of
    the cgroup tree takes time.

    Without cgroup v2, the result is empty, too, and ids are shown in place of paths.
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
    """Return the name of a key as text. paths: paths of cgroups by id, if known."""
    if isinstance(key, CgroupBinding):
        gone = f"{key.number} (gone)" if paths is not None else str(key.number)
        return f"cgroup {(paths or {}).get(str(key.number), gone)}"
    if isinstance(key, AbsentCgroup):
        return f"cgroup {key.given} (does not exist)"
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
    """Return the name of a key in JSON: its path in the control tree, or its name as text if other
    keys share that path.
    """
    if isinstance(key, (CgroupBinding, ProcessBinding, AbsentCgroup, Profile, LoadedPolicy)):
        return label_of(key, paths)
    return key.path


def shown(key: Key, value: str | None) -> str:
    """Return a value of a state as it is shown to people: "-" for a missing entry, "exists" for a
    profile, a short SHA-256 for a BPF program, else the value itself.
    """
    if value is None:
        return "-"
    if isinstance(key, LoadedPolicy):
        return value[:DIGITS]
    return "exists" if isinstance(key, Profile) else value


def telling_keys(before: State, after: State) -> list[Key]:
    """Return the changed keys, without the settings of a profile that was created or deleted as a
    whole.
    """
    keys = changed_keys(before, after)
    whole = {key.name for key in keys if isinstance(key, Profile)}
    return [key for key in keys if not (isinstance(key, Setting) and key.profile in whole)]
