# SPDX-License-Identifier: GPL-2.0
"""The options, arguments and completions that verbs share."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from mmpolicy.control.model import Control
from mmpolicy.errors import Error
from mmpolicy.host.cgroups import cgroup_list
from mmpolicy.host.files import Tree
from mmpolicy.host.machine import Host

FILE = click.Path(path_type=Path, dir_okay=False)
Completer = Callable[[click.Context, click.Parameter, str], list[str]]


def _completer(offer: Callable[[Control, dict[str, Any]], list[str]]) -> Completer:
    """Make a completion of what `offer` finds in the tree for the words given so far."""

    def complete(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
        try:
            names = offer(Control(Tree(ctx.find_root().params["root"])), ctx.params)
        except Error:
            return []
        return [name for name in names if name.startswith(incomplete)]

    return complete


def _settings(control: Control, given: dict[str, Any]) -> list[str]:
    """Offer the policies of the point until one is given, and the knobs as they are now."""
    point = control.point(given["profile"], given["point"])
    chosen = [word for word in given.get("settings") or () if "=" not in word]
    knobs = point.common | point.knobs.get(chosen[0] if chosen else point.active, {})
    values = [f"{knob}={value}" for knob, value in control.values(knobs).items()]
    return values if chosen else [*point.policies, *values]


complete_point = _completer(lambda control, given: control.point_names(given["profile"]))
complete_setting = _completer(_settings)
complete_profile = _completer(lambda control, _given: control.profiles())
complete_cgroup = _completer(lambda control, _given: cgroup_list(control.tree))


class Seconds(click.ParamType):
    """A time such as 30, 30s, 10m or 2h."""

    name = "time"

    def __init__(self, least: float = 0.001) -> None:
        self.least = least

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return seconds."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", str(value))
        seconds = float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]] if found else -1
        if seconds < self.least:
            self.fail(f"'{value}' is no time such as 30s, 10m or 2h", param, ctx)
        return seconds


pass_host = click.make_pass_decorator(Host)
json_option = click.option("--json", "want_json", is_flag=True, help="Print JSON.")
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Print the writes that would be made; change nothing."
)
profile_option = click.option(
    "--profile", default="default", show_default=True, metavar="NAME", help="Use this profile.",
    shell_complete=complete_profile,
)  # fmt: skip
point_argument = click.argument("point", required=False, shell_complete=complete_point)
