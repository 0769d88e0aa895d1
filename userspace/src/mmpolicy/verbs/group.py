# SPDX-License-Identifier: GPL-2.0
"""The command as a group of verbs, whose errors are JSON if that is wanted."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from mmpolicy.errors import Exit, as_data
from mmpolicy.render import emit_error

JSON = "--json"


class Verbs(click.Group):
    """The command; with --json, its errors are JSON too."""

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
        group: click.Command | None = self
        for word in words:
            if isinstance(group, click.Group) and word in group.commands:
                names.append(word)
                group = group.commands[word]
        return " ".join(names)
