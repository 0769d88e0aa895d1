# SPDX-License-Identifier: GPL-2.0
"""`list` and `show`: what there is and how it is set."""

from collections.abc import Iterable, Iterator
from typing import Any

import click

from mmpolicy.app import App, json_option, pass_app, point_argument, profile_option
from mmpolicy.model import Control, Point
from mmpolicy.render import emit, paint, table
from mmpolicy.sysfs import Tree


def _point_rows(points: Iterable[Point]) -> list[str]:
    rows = []
    for point in points:
        others = " ".join(name for name in point.policies if name != point.active)
        active = "stock" if point.active == "stock" else paint(point.active, "green")
        rows.append((point.profile, point.name, active, others or "-"))
    return table(("PROFILE", "POINT", "ACTIVE", "OTHERS"), rows)


def _point_data(points: Iterable[Point]) -> dict[str, dict[str, Any]]:
    data: dict[str, dict[str, Any]] = {}
    for point in points:
        entry = {"active": point.active, "policies": point.policies}
        data.setdefault(point.profile, {})[point.name] = entry
    return data


def emit_points(command: str, want_json: bool, tree: Tree, **more: Any) -> None:
    """Print the points of every profile, with the active policy and the others."""
    control = Control(tree)
    points = [point for profile in control.profiles() for point in control.points(profile)]
    data = {**more, "state": control.state, "profiles": _point_data(points)}
    emit(command, want_json, data, [*_point_rows(points), f"state: {control.state}"])


@click.command("list")
@json_option
@pass_app
def list_points(app: App, want_json: bool) -> None:
    """List the points of every profile with the active policy and the others."""
    emit_points("list", want_json, app.tree)


def _knob_data(control: Control, point: Point) -> dict[str, Any]:
    policies = {name: control.values(point.knobs.get(name, {})) for name in point.policies}
    return {"active": point.active, "knobs": control.values(point.common), "policies": policies}


def _knob_rows(name: str, data: dict[str, Any]) -> Iterator[tuple[object, ...]]:
    for knob, value in data["knobs"].items():
        yield name, "(any)", knob, value
    for policy, knobs in data["policies"].items():
        mark = paint(f"[{policy}]", "green") if policy == data["active"] else policy
        for knob, value in (knobs or {"-": "-"}).items():
            yield name, mark, knob, value


@click.command()
@point_argument
@profile_option
@json_option
@pass_app
def show(app: App, point: str | None, profile: str, want_json: bool) -> None:
    """Show the knobs of each policy and their values; [brackets] mark the active one."""
    control = Control(app.tree)
    points = [control.point(profile, point)] if point else control.points(profile)
    data = {each.name: _knob_data(control, each) for each in points}
    rows = [row for name, entry in data.items() for row in _knob_rows(name, entry)]
    lines = table(("POINT", "POLICY", "KNOB", "VALUE"), rows)
    emit("show", want_json, {"profile": profile, "points": data}, lines)
