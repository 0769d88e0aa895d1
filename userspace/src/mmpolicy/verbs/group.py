# SPDX-License-Identifier: GPL-2.0
"""The command as a group of verbs, whose errors are JSON if that is wanted."""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import click

from mmpolicy.errors import Exit, as_data
from mmpolicy.render import emit_error

JSON = "--json"


class Verbs(click.Group):
    """The command; with --json, its errors are JSON too.

    A verb is imported when it is asked for: most of the time to start goes into imports.
    """

    def __init__(self, *args: Any, verbs: Mapping[str, str], **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.verbs = verbs  # name -> file in verbs/

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all verbs."""
        return sorted(self.verbs)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Return a verb, None if there is no such one."""
        if name in self.verbs and name not in self.commands:
            module = import_module(f"mmpolicy.verbs.{self.verbs[name]}")
            commands = [each for each in vars(module).values() if isinstance(each, click.Command)]
            self.commands |= {str(each.name): each for each in commands if each.name == name}
        return self.commands.get(name)

    def main(self, args: Sequence[str] | None = None, *rest: Any, **more: Any) -> Any:
        """Run it as click does."""
        words = list(sys.argv[1:] if args is None else args)
        run: Callable[..., Any] = super().main
        if JSON not in words:
            return run(words, *rest, **more)
        try:
            code = run(words, *rest, **more | {"standalone_mode": False})
        except click.ClickException as err:
            emit_error(self._name_of(words), as_data(err))
            code = err.exit_code
        except click.Abort:
            code = int(Exit.FAILED)
        sys.exit(code or 0)

    def _name_of(self, words: Sequence[str]) -> str:
        """Return the words of the verb, such as `profile create`."""
        names: list[str] = []
        group: click.Command = self
        for word in words:
            found = isinstance(group, click.Group) and group.get_command(click.Context(group), word)
            if found:
                names.append(word)
                group = found
        return " ".join(names)
