# SPDX-License-Identifier: GPL-2.0
"""The options, arguments and completions that verbs share."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import click

from mmpolicy.host.machine import Host
from mmpolicy.memory.holds import LIMIT_S

FILE = click.Path(path_type=Path, dir_okay=False)
Completer = Callable[[click.Context, click.Parameter, str], list[str]]


def completer(kind: str) -> Completer:
    """Return the completion of a kind of words; what it takes is imported when a shell asks."""

    def complete(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
        from mmpolicy.verbs.completion import words_for

        return words_for(kind, ctx, incomplete)

    return complete


complete_point, complete_setting = completer("point"), completer("setting")
complete_profile, complete_cgroup = completer("profile"), completer("cgroup")
complete_unit, complete_pid = completer("unit"), completer("pid")
complete_owner = completer("owner")


class Levels(click.ParamType):
    """Two shares in percent, of which the second is larger."""

    name = "levels"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """Return them as numbers."""
        few, _, many = str(value).partition(",")
        if not (few.isdigit() and many.isdigit() and int(few) < int(many) < 100):
            self.fail(f"'{value}' is not of the form FEW,MANY, such as 10,90", param, ctx)
        return int(few), int(many)


class Preset(click.Choice):
    """The name of a preset; their folder is read when a name is given or help is asked for."""

    case_sensitive = True

    def __init__(self) -> None:
        pass

    @cached_property
    def choices(self) -> Sequence[str]:  # type: ignore[override]
        """Return the names of all presets."""
        from mmpolicy.ab.presets import names

        return names()


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
wait_option = click.option(
    "--wait/--no-wait", default=True, show_default=True,
    help="Wait, 30 s at most, until the kernel has hooked or unhooked its functions.",
)  # fmt: skip
force_option = click.option("--force", is_flag=True, help="End an experiment that is in the way.")
profile_option = click.option(
    "--profile", default="default", show_default=True, metavar="NAME", help="Use this profile.",
    shell_complete=complete_profile,
)  # fmt: skip
point_argument = click.argument("point", required=False, shell_complete=complete_point)
margin_option = click.option(
    "--margin", type=click.FloatRange(0, 100, min_open=True, max_open=True), metavar="PERCENT",
    help="Ask whether the run shows that the treatment is no worse than this.",
)  # fmt: skip

hold_option = click.option(
    "--hold", "hold_ms", type=click.FloatRange(min=0.1), default=LIMIT_S * 1000,
    show_default=True, metavar="MS",
    help="How long one look may hold up mmap() and munmap() of a process.",
)  # fmt: skip
