# SPDX-License-Identifier: GPL-2.0
"""`status`: settings that are not stock, and the cgroups and processes that they apply to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import click

from mmpolicy.control.attach import blockers, describe, point_error
from mmpolicy.control.keys import (
    CONTROL_ARM,
    DEFAULT,
    ENABLED,
    PERCENT,
    TREATMENT_ARM,
    CgroupBinding,
    State,
)
from mmpolicy.control.labels import cgroups_of
from mmpolicy.control.maintained import live
from mmpolicy.control.model import check_loaded, lease_of
from mmpolicy.control.notices import notice_lines
from mmpolicy.control.owners import read_owned
from mmpolicy.control.state import bindings_of, profiles_of, read_state, settings_of
from mmpolicy.errors import Error
from mmpolicy.figures import figure
from mmpolicy.host.files import Tree
from mmpolicy.host.machine import Host
from mmpolicy.memory.reach import INTO_KIB, Reach, reach_of
from mmpolicy.render import emit, paint, table
from mmpolicy.verbs.options import json_option, pass_host
from mmpolicy.verbs.reached import LARGEST, is_asked, overrides, pids_of

MOST_NAMES = 3  # most names in one line, and most lines about one kind of finding
# most bound processes, per profile, for which it is checked whether policies reach their memory
LOOKED_AT = 256


@click.command()
@json_option
@pass_host
def status(host: Host, want_json: bool) -> None:
    """Show everything that is not stock, and for whom, on one screen.

    Shows each policy with its knobs, the cgroups and processes of its profile, the lease and the
    experiment. --json has everything.
    """
    told = notice_lines(host.tree)
    try:
        state = read_state(host.tree)
    except Error:
        # The notices do not depend on the module, so they are printed even if its state cannot be
        # read.
        for line in told if not want_json else ():
            click.echo(line)
        raise
    paths = cgroups_of(host.tree, state)
    data = {
        "state": check_loaded(host.tree),
        "blockers": blockers(host.tree),
        "point_error": point_error(host.tree),
        **lease_of(host.tree),
        "experiment": _experiment(state),
        "notices": told,
        "maintain": live(host.tree) or None,
        "owners": Counter(each.owner for each in read_owned(host.tree).values()),
        "profiles": {name: _profile(state, name, paths) for name in profiles_of(state)},
        "out_of_reach": _out_of_reach(host.tree, state),
    }
    emit("status", want_json, data, lambda: _lines(data))


def _out_of_reach(tree: Tree, state: State) -> list[dict[str, Any]]:
    """Return the bound processes in which policies do not reach all memory, or that could not be
    checked; [] if the host has no cgroup v2.
    """
    found = list[Reach]()
    try:
        for name in (each for each in profiles_of(state) if is_asked(state, each)):
            pids, override = pids_of(tree, bindings_of(state, name)), overrides(state, name)
            pids = pids[:LOOKED_AT]
            found += reach_of(tree, pids, LARGEST, override=override, into_kib=INTO_KIB)
    except Error:  # the host has no cgroup v2
        return []
    told = (each for each in found if each.barriers or each.unknown)
    return [{**each.as_data(), "lines": [*each.lines()]} for each in told]


def _experiment(state: State) -> dict[str, str] | None:
    """Return the profiles of both arms and the percentage of treated units of the running
    experiment; None if no experiment runs.
    """
    if state.get(ENABLED) != "1":
        return None
    return {key.name: state[key] for key in (CONTROL_ARM, TREATMENT_ARM, PERCENT)}


def _profile(state: State, name: str, paths: dict[str, str]) -> dict[str, Any]:
    """Return the policies of a profile that are not stock, with their knobs, and the cgroups and
    processes that are bound to the profile.
    """
    settings = settings_of(state, name)
    shadowed = {key.point for key, value in settings.items() if key.is_shadow and value != key.off}
    points = {
        key.point: {
            "policy": policy,
            "knobs": {
                each.name: value
                for each, value in settings.items()
                if each.point == key.point and each.policy in ("", policy) and value != each.off
                if not each.is_choice
            },
        }
        for key, policy in settings.items()
        if key.is_choice and (policy != key.off or key.point in shadowed)
    }
    bound = bindings_of(state, name)
    cgroups = [str(key.number) for key in bound if isinstance(key, CgroupBinding)]
    pids = [key.number for key in bound if not isinstance(key, CgroupBinding)]
    return {
        "points": points,
        "cgroups": [paths.get(number, number) for number in cgroups],
        "pids": pids,
    }


def _lines(data: dict[str, Any]) -> Iterator[str]:
    left_s = data["lease_left_ms"] / 1000 if data.get("lease_ms") else None
    left = "" if left_s is None else f", back to stock in {figure(left_s)} s"
    yield f"state: {describe(data['state'], data['blockers'])}{left}"
    if data["point_error"]:
        yield f"the module has set a policy back to stock by itself: {data['point_error']}"
    if data["state"] == "expired":
        yield "the lease has expired, so the kernel is at stock: mmpolicy reset acknowledges it"
    running = data["experiment"]
    if running:
        arms = f"{running['treatment']} for {running['percent']} %, {running['control']} for the"
        yield f"experiment: {arms} others"
    rows = [
        (_whom(name, profile), name, point, paint(found["policy"], "green"), _knobs(found["knobs"]))
        for name, profile in data["profiles"].items()
        for point, found in profile["points"].items()
    ]
    yield from data["notices"]
    told = [line for each in data["out_of_reach"] for line in each["lines"]]
    yield from told[:MOST_NAMES]
    if len(told) > MOST_NAMES:
        yield f"and {len(told) - MOST_NAMES} more lines of this kind; --json has all"
    for owner, count in data["owners"].items():
        yield (
            f"the owner {owner} has bound {count} cgroups; mmpolicy apply does not change "
            "these bindings"
        )
    if rows:
        yield ""
        yield from table(("FOR", "PROFILE", "POINT", "POLICY", "KNOBS"), rows)
    idle = [
        f"{name} ({_whom(name, profile)})"
        for name, profile in data["profiles"].items()
        if not profile["points"] and (profile["cgroups"] or profile["pids"])
    ]
    if idle:
        yield f"profiles with all points at stock: {', '.join(idle)}"


def _whom(name: str, profile: dict[str, Any]) -> str:
    names = [*profile["cgroups"], *(f"process {pid}" for pid in profile["pids"])]
    rest = len(names) - MOST_NAMES
    shown = names[:MOST_NAMES] + ([f"{rest} more"] if rest > 0 else [])
    others = ["all others"] if name == DEFAULT else []
    return ", ".join(shown + others) or "nobody"


def _knobs(knobs: dict[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in knobs.items()) or "-"
