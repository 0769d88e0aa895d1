# SPDX-License-Identifier: GPL-2.0
"""`list` and `show`: print hook points, their policies and their knobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import click

from mmpolicy.control.bindings import profile_of
from mmpolicy.control.model import Control, Point, check_loaded, lacking, lacking_policies
from mmpolicy.control.state import read_state
from mmpolicy.host.cgroups import Charged
from mmpolicy.host.files import CONTROL, Tree
from mmpolicy.host.hooked import hooked_functions
from mmpolicy.host.machine import Host
from mmpolicy.host.processes import cgroup_of, check_memory
from mmpolicy.memory.holds import Holds
from mmpolicy.memory.lazily import Memory, memory_lines, memory_of_cgroup, memory_of_process
from mmpolicy.render import emit, paint, table
from mmpolicy.verbs.options import (
    PID,
    complete_pid,
    hold_option,
    json_option,
    pass_host,
    point_argument,
    profile_option,
)

NOT_LOADED = "the module is not loaded, so no policy decides"
KNOB_COLUMNS = ("POINT", "POLICY", "KNOB", "VALUE", "RANGE", "DEFAULT", "UNIT", "MEANING")


def _reasons(lacks: dict[str, str]) -> str:
    """Return as text the policies that this kernel lacks, grouped by reason; lacks: reason by
    name.
    """
    names: dict[str, list[str]] = {}
    for name, reason in lacks.items():
        names.setdefault(reason, []).append(name)
    return "; ".join(f"{' '.join(some)}: {reason}" for reason, some in names.items())


def _point_rows(tree: Tree, points: Iterable[Point]) -> list[str]:
    rows = []
    for point in points:
        lacks = lacking_policies(tree, point)
        others = " ".join(name for name in point.policies if name not in (point.active, *lacks))
        if reason := lacking(tree, point.name):
            others = f"(none: {reason})"
        elif lacks:
            others += f" (not {_reasons(lacks)})"
        active = "stock" if point.active == "stock" else paint(point.active, "green")
        rows.append((point.profile, point.name, active, others or "-"))
    return table(("PROFILE", "POINT", "ACTIVE", "OTHERS"), rows)


def _point_data(tree: Tree, points: Iterable[Point]) -> dict[str, dict[str, Any]]:
    data: dict[str, dict[str, Any]] = {}
    for point in points:
        entry: dict[str, Any] = {"active": point.active, "policies": point.policies}
        if reason := lacking(tree, point.name):
            entry["unavailable"] = reason
        elif lacks := lacking_policies(tree, point):
            entry["unavailable_policies"] = lacks
        data.setdefault(point.profile, {})[point.name] = entry
    return data


def emit_points(command: str, want_json: bool, tree: Tree, **more: Any) -> None:
    """Print all hook points of all profiles, each with its active policy and the other policies
    that it could have. more: further facts for JSON.
    """
    control = Control(tree)
    points = [point for profile in control.profiles() for point in control.points(profile)]
    data = {**more, "state": control.state, "profiles": _point_data(tree, points)}
    emit(command, want_json, data, lambda: [*_point_rows(tree, points), f"state: {control.state}"])


def _emit_hooks(want_json: bool, tree: Tree) -> None:
    check_loaded(tree)
    found = hooked_functions(tree)
    data = {"hooked_functions": [each._asdict() for each in found]}
    lines = (
        table(("POINT", "FUNCTION"), found)
        if found
        else ["the module hooks no function by ftrace, as this kernel has hooks of its own"]
    )
    emit("list", want_json, data, lines)


@click.command("list")
@click.option(
    "--hooks", is_flag=True,
    help="List instead the kernel's functions that the module hooks while a policy is chosen.",
)  # fmt: skip
@json_option
@pass_host
def list_points(host: Host, hooks: bool, want_json: bool) -> None:
    """List the points of every profile, with their policies."""
    if hooks:
        _emit_hooks(want_json, host.tree)
    else:
        emit_points("list", want_json, host.tree)


def _knob_data(control: Control, point: Point) -> dict[str, Any]:
    policies = {name: control.values(point.knobs.get(name, {})) for name in point.policies}
    told = {name: {**each._asdict()} for name, each in point.about(control.tree).items()}
    values = control.values(point.common)
    return {"active": point.active, "knobs": values, "policies": policies, "about": told}


def _knob_rows(name: str, data: dict[str, Any]) -> Iterator[tuple[object, ...]]:
    about = data["about"]
    for knob, value in data["knobs"].items():
        yield name, "(any)", knob, value, *_about(about.get(knob))
    for policy, knobs in data["policies"].items():
        mark = paint(f"[{policy}]", "green") if policy == data["active"] else policy
        for knob, value in (knobs or {"-": "-"}).items():
            yield name, mark, knob, value, *_about(about.get(f"{policy}/{knob}"))


def _about(told: dict[str, Any] | None) -> tuple[object, ...]:
    if not told:
        return ("-",) * 4
    return f"{told['min']}..{told['max']}", told["default"], told["unit"], told["meaning"]


def _memory(tree: Tree, pid: int, holds: Holds) -> list[Memory]:
    """Return the memory of a process, and of the cgroup that the memory is charged to, if any."""
    own, cgroup = memory_of_process(tree, pid, holds), Charged(tree).name(pid)
    memory = [own]
    if cgroup != "/" or cgroup_of(tree, pid):
        memory.append(memory_of_cgroup(tree, cgroup, holds, {str(pid): own}))
    return memory


def _process(tree: Tree, pid: int, holds: Holds) -> tuple[dict[str, Any], list[Memory]]:
    """Return the data about a process: its profile, its memory, and the memory of its cgroup. The
    second value is this memory as a list.
    """
    memory = _memory(tree, pid, holds)
    profile = profile_of(tree, read_state(tree), pid)
    data = {"pid": pid, "profile": profile, "memory": [each.as_data() for each in memory]}
    return data, memory


@click.command()
@point_argument
@profile_option
@click.option(
    "--pid", type=PID, metavar="N", shell_complete=complete_pid,
    help="Show the profile that decides for this process, and its memory.",
)  # fmt: skip
@hold_option
@json_option
@pass_host
def show(
    host: Host, point: str | None, profile: str, pid: int | None, hold_ms: float, want_json: bool
) -> None:
    """Show the knobs of each policy: value, range, default, unit and meaning.

    [Brackets] mark the active policy. With --pid also shows RSS, the lazily freed part of it, and
    RSS without that part, for the process and for its cgroup; this needs no module. It ignores
    experiments, because only the kernel knows the arm of a process.
    """
    holds, command = Holds(host.tree, hold_ms / 1000), f"mmpolicy show --pid {pid}"
    if pid:
        check_memory(host.tree, pid, "mmpolicy show --pid")
    if pid and not host.tree.is_dir(CONTROL):
        found = _memory(host.tree, pid, holds)
        told = {"pid": pid, "memory": [each.as_data() for each in found]}
        emit("show", want_json, told, lambda: [*memory_lines(found, command), "", NOT_LOADED])
        return
    control = Control(host.tree)
    process, memory = _process(host.tree, pid, holds) if pid else ({}, [])
    profile = process.get("profile", profile)
    points = [control.point(profile, point)] if point else control.points(profile)
    data = {each.name: _knob_data(control, each) for each in points}

    def lines() -> Iterator[str]:
        if pid:
            yield from [f"profile: {profile}", "", *memory_lines(memory, command), ""]
        rows = [row for name, entry in data.items() for row in _knob_rows(name, entry)]
        yield from table(KNOB_COLUMNS, rows)

    emit("show", want_json, {"profile": profile, **process, "points": data}, lines)
