# SPDX-License-Identifier: GPL-2.0
"""Warnings about processes that no policy reaches, for the verbs that bind or compare."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click

from mmpolicy.control.keys import Binding, CgroupBinding, Setting, State
from mmpolicy.control.state import read_state, settings_of
from mmpolicy.errors import Error
from mmpolicy.host.cgroups import bound_pids, cgroup_paths, cgroup_pids
from mmpolicy.host.files import Tree
from mmpolicy.memory.reach import Reach, reach_of

POINT, OVERRIDE = "anon_order", "override_madvise"
LARGEST, SHOWN = 16, 3  # number of processes that are checked, and of lines that are printed


def overrides(state: State, profile: str) -> bool:
    """Return whether a profile's policy also decides for memory that asks for huge pages."""
    return state.get(Setting(profile, POINT, "", OVERRIDE)) == "1"


def is_asked(state: State, profile: str) -> bool:
    """Return whether a profile has a policy or a shadow policy for large folios."""
    settings = settings_of(state, profile)
    return any(
        key.point == POINT and (key.is_choice or key.is_shadow) and value != key.off
        for key, value in settings.items()
    )


def pids_of(tree: Tree, keys: Iterable[Binding]) -> list[int]:
    """Return the PIDs of all processes that some bindings apply to."""
    found, paths = list[int](), dict[str, str]()
    for key in keys:
        if not isinstance(key, CgroupBinding):
            found.append(key.number)
            continue
        paths = paths or cgroup_paths(tree)
        if str(key.number) in paths:
            found += [int(pid) for pid in bound_pids(tree, paths[str(key.number)])]
    return list(dict.fromkeys(found))


def lines_of(found: Iterable[Reach], most: int = SHOWN) -> list[str]:
    """Return a line for each reason in each process, the largest processes first, and a count of
    the rest.
    """
    lines = [line for each in found for line in each.lines()]
    rest = len(lines) - most
    more = f"and {rest} more processes of this kind; mmpolicy explain PID shows those of a process"
    return lines[:most] + [more] * (rest > 0)


def warn_of(tree: Tree, keys: Sequence[Binding], profile: str) -> None:
    """Print warnings about processes just bound that a policy for large folios does not reach."""
    try:
        state = read_state(tree) if keys else {}
        if not is_asked(state, profile):
            return
        override = overrides(state, profile)
        found = reach_of(tree, pids_of(tree, keys), LARGEST, override=override)
    except Error:  # the bound cgroup or process no longer exists
        return
    warn(found)


def reach_in(tree: Tree, scopes: Iterable[str], **more: bool) -> list[Reach]:
    """Return what policies cannot reach in the largest processes of some cgroups."""
    pids: list[int] = []
    try:
        for scope in scopes:
            pids += [int(pid) for pid in cgroup_pids(tree, scope)]
    except Error:  # an invalid name is reported elsewhere
        return []
    return reach_of(tree, pids, LARGEST, **more)


def warn(found: Iterable[Reach]) -> None:
    """Print what policies cannot reach, as warnings."""
    for line in lines_of(found):
        click.echo(f"warning: {line}", err=True)
