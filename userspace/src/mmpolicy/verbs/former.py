# SPDX-License-Identifier: GPL-2.0
"""Former names of options and verbs. They still work in this version, with a warning on stderr."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import click

FORMER_VERBS = {"host": "thp"}
Command = TypeVar("Command", bound=Callable[..., Any])


def say(former: str, name: str) -> None:
    """Print a warning that an option or verb was called by its former name, with the new one."""
    text = f"mmpolicy: {former} is {name} now; the former name works in this version only"
    click.echo(text, err=True)


class _Former(click.Option):
    """A hidden option with a former name. Its value goes to the option with the new name."""

    def __init__(self, *args: Any, current: str, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.current = current

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        """Store the value under the new option's name, unless that option was given, too. click
        parses this option first, as it has is_eager.
        """
        values, mine = cast("dict[str, Any]", opts), str(self.name)
        if mine in values:
            say(self.opts[0], self.current)
            value = values.pop(mine)
            if isinstance(self.type, click.Choice):  # former "skip" or "fail" is a flag now
                value = self.type_cast_value(ctx, value) == "skip"
            new = next(str(each.name) for each in ctx.command.params if self.current in each.opts)
            values.setdefault(new, value)
        return None, args


def former_option(former: str, current: str, **attributes: Any) -> Callable[[Command], Command]:
    """Return a decorator that lets a command accept the option `current` also as `former`.

    attributes: as for click.option: is_flag, or the type of a value to convert.
    """
    hidden = {"hidden": True, "expose_value": False, "is_eager": True}
    name = "former_" + former.strip("-").replace("-", "_")
    return click.option(former, name, cls=_Former, current=current, **hidden, **attributes)
