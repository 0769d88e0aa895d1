# SPDX-License-Identifier: GPL-2.0
"""Options, arguments and completions that several verbs have."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import click

from mmpolicy.errors import Error, Exit
from mmpolicy.host.machine import Host
from mmpolicy.memory.holds import LIMIT_S

FILE = click.Path(path_type=Path, dir_okay=False)
F = TypeVar("F", bound=Callable[..., Any])
Completer = Callable[[click.Context, click.Parameter, str], list[str]]


def completer(kind: str) -> Completer:
    """Return the shell completion for words of a kind, such as "point". The code is imported only
    when a shell asks, as it would slow every start.
    """

    def complete(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
        from mmpolicy.verbs.completion import words_for

        return words_for(kind, ctx, incomplete)

    return complete


complete_point, complete_setting = completer("point"), completer("setting")
complete_profile, complete_cgroup = completer("profile"), completer("cgroup")
complete_unit, complete_pid = completer("unit"), completer("pid")
complete_owner = completer("owner")


class Levels(click.ParamType):
    """A parameter type: two percentages, the second larger than the first."""

    name = "levels"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        few, _, many = str(value).partition(",")
        if not re.fullmatch("[0-9]{1,2},[0-9]{1,2}", str(value)) or int(few) >= int(many):
            self.fail(f"'{value}' is not of the form FEW,MANY, such as 10,90", param, ctx)
        return int(few), int(many)


class Preset(click.Choice):
    """A parameter type: the name of a preset. The names are read from their folder only if the
    option is given, or for help.
    """

    case_sensitive = True

    def __init__(self) -> None:
        pass

    @cached_property
    def choices(self) -> Sequence[str]:  # type: ignore[override]
        from mmpolicy.ab.presets import names

        return names()


class Number(click.FloatRange):
    """A parameter type: a number within bounds; nan and infinity are refused with an error."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"'{value}' is not a finite number", param, ctx)
        return number


class Seconds(click.ParamType):
    """A parameter type: a duration such as 30, 30s, 10m or 2h, of a year at most."""

    name = "time"
    most = 366 * 86400.0

    def __init__(self, least: float = 0.001) -> None:
        self.least = least

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", str(value))
        seconds = float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]] if found else -1
        if seconds < self.least:
            self.fail(f"'{value}' is not a time such as 30s, 10m or 2h", param, ctx)
        if seconds > self.most:
            self.fail(f"'{value}' is longer than a year", param, ctx)
        return seconds


class Share(click.ParamType):
    """A parameter type: a percentage of the blocks between 0.5 and 10, such as 2 or 2%."""

    name = "percent"
    least, most = 0.5, 10.0

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the percentage as a number."""
        found = 0.0
        with suppress(ValueError):
            found = float(str(value).rstrip("%"))
        if not self.least <= found <= self.most:
            self.fail(f"'{value}' is not between {self.least:g}% and {self.most:g}%", param, ctx)
        return found


pass_host = click.make_pass_decorator(Host)
json_option = click.option("--json", "want_json", is_flag=True, help="Print JSON.")
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Print the writes that would be made; change nothing."
)
wait_option = click.option(
    "--wait/--no-wait", default=True, show_default=True,
    help="Wait, 30 s at most, until the kernel has hooked or unhooked its functions.",
)  # fmt: skip
force_option = click.option(
    "--force", is_flag=True, help="If an experiment runs that this would disturb, end it first."
)
profile_option = click.option(
    "--profile", default="default", show_default=True, metavar="NAME", help="Use this profile.",
    shell_complete=complete_profile,
)  # fmt: skip
point_argument = click.argument("point", required=False, shell_complete=complete_point)
margin_option = click.option(
    "--margin", type=Number(0, 100, min_open=True, max_open=True), metavar="PERCENT",
    help="Margin: test whether the treatment is worse by less than this.",
)  # fmt: skip

hold_option = click.option(
    "--hold", "hold_ms", type=Number(min=0.1), default=LIMIT_S * 1000,
    show_default=True, metavar="MS",
    help="How long one read may block mmap() and munmap() of a process.",
)  # fmt: skip

Percent = partial(Number, max=100)
MOST = 1_000_000
Count = partial(click.IntRange, min=1, max=MOST)
PID = click.IntRange(1, 1 << 22)  # as the kernel has it (PID_MAX_LIMIT)
min_empty_option = click.option(
    "--min-empty", type=Percent(min=0), default=10.0, show_default=True, metavar="PERCENT",
    help="Split only folios of which at least PERCENT is empty.",
)  # fmt: skip
reserve_option = click.option(
    "--reserve", type=Percent(min=0), default=1.0, show_default=True, metavar="PERCENT",
    help="The part of a node's memory to leave free, in blocks of 2 MB.",
)  # fmt: skip


def max_pressure_option(reaction: str) -> Callable[[F], F]:
    """Return the option --max-pressure; reaction: the words that begin its help text."""
    return click.option(
        "--max-pressure", type=Percent(min=0), default=10.0, show_default=True,
        metavar="PERCENT",
        help=f"{reaction} tasks wait for memory for a larger share of time (PSI).",
    )  # fmt: skip


def max_stop_option(reaction: str) -> Callable[[F], F]:
    """Return the option --max-stop, the limit of one collapse in ms; reaction: the words that begin
    its help text.
    """
    return click.option(
        "--max-stop", type=Number(min=0, min_open=True), default=20.0,
        show_default=True, metavar="MS",
        help=f"{reaction} one collapse takes longer than this here.",
    )  # fmt: skip


def ask(agreed: bool, other: str = "") -> None:
    """Ask on the terminal whether to begin; raise an error unless the answer is yes. Without a
    terminal, the error names --yes.

    agreed: do not ask. other: further words for that error.
    """
    if agreed:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(
            f"the command asks before it begins, and there is no terminal: give --yes{other}"
        )
    if not click.confirm("Begin?", err=True):
        hint = "answer y to begin; other options make another plan"
        raise Error("the answer was no, so nothing was begun or changed", Exit.FAILED, hint)
