# SPDX-License-Identifier: GPL-2.0
"""Former names of options and verbs. They still work in this version, with a warning on stderr."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import click

FORMER_VERBS = {"host": "thp"}
Command = TypeVar("Command", bound=Callable[..., Any])


def say(former: str, name: str) -> None:
    """Print the new name of an option or verb that was called by its former name."""
    text = f"mmpolicy: {former} is {name} now; the former name works in this version only"
    click.echo(text, err=True)


class _Former(click.Option):
    """A hidden option under a former name, which passes its value to the option with
    the new name.
    """

    def __init__(self, *args: Any, current: str, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.current = current

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        """Store the value under the new option's name; is_eager makes click parse this option
        first.
        """
        values, mine = cast("dict[str, Any]", opts), str(self.name)
        if mine in values:
            say(self.opts[0], self.current)
            value = values.pop(mine)
            if isinstance(self.type, click.Choice):  # the value "skip", or the default
                value = self.type_cast_value(ctx, value) == "skip"
            new = next(str(each.name) for each in ctx.command.params if self.current in each.opts)
            values.setdefault(new, value)
        return None, args


def former_option(former: str, current: str, **attributes: Any) -> Callable[[Command], Command]:
    """Return a decorator by which a command accepts an option by its former name, too.

    attributes: is_flag, or the type of a value that must be converted.
    """
    hidden = {"hidden": True, "expose_value": False, "is_eager": True}
    name = "former_" + former.strip("-").replace("-", "_")
    return click.option(former, name, cls=_Former, current=current, **hidden, **attributes)
