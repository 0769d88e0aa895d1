# SPDX-License-Identifier: GPL-2.0
"""Warnings about processes that policies do not reach, for verbs that bind or compare."""

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
# only this many of the largest processes are checked, and this many lines are printed
LARGEST, SHOWN = 16, 3


def overrides(state: State, profile: str) -> bool:
    """Return whether a profile has override_madvise=1: its policy then also decides for memory with
    MADV_HUGEPAGE.
    """
    return state.get(Setting(profile, POINT, "", OVERRIDE)) == "1"


def is_asked(state: State, profile: str) -> bool:
    """Return whether a profile has an active policy or a shadow policy for large folios. If it has
    none, no policy decides about its processes.
    """
    settings = settings_of(state, profile)
    return any(
        key.point == POINT and (key.is_choice or key.is_shadow) and value != key.off
        for key, value in settings.items()
    )


def pids_of(tree: Tree, keys: Iterable[Binding]) -> list[int]:
    """Return the pids of all processes that the bindings apply to, each once. A binding of a cgroup
    applies to the processes of its descendants, too.
    """
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
    """Return a line for each reason why policies do not reach memory of a process. After `most`
    lines, a last line counts the rest. found: the largest processes first.
    """
    lines = [line for each in found for line in each.lines()]
    rest = len(lines) - most
    more = f"and {rest} more lines of this kind; mmpolicy explain PID shows those of a process"
    return lines[:most] + [more] * (rest > 0)


def warn_of(tree: Tree, keys: Sequence[Binding], profile: str) -> None:
    """Print a warning about each process just bound that the profile's policy for large folios does
    not reach.
    """
    try:
        state = read_state(tree) if keys else {}
        if not is_asked(state, profile):
            return
        override = overrides(state, profile)
        found = reach_of(tree, pids_of(tree, keys), LARGEST, override=override)
    except Error:  # the cgroup or process has ended since it was bound
        return
    warn(found)


def reach_in(tree: Tree, scopes: Iterable[str], **more: bool) -> list[Reach]:
    """Return what policies cannot reach in the largest processes of these cgroups; [] if a name is
    not valid. more: options of reach_of().
    """
    pids: list[int] = []
    try:
        for scope in scopes:
            pids += [int(pid) for pid in cgroup_pids(tree, scope)]
    except Error:  # the caller reports an invalid name itself
        return []
    return reach_of(tree, pids, LARGEST, **more)


def warn(found: Iterable[Reach]) -> None:
    """Print as warnings which memory of the processes policies cannot reach, and why."""
    for line in lines_of(found):
        click.echo(f"warning: {line}", err=True)
