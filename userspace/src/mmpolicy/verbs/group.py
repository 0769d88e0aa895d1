# SPDX-License-Identifier: GPL-2.0
"""The command as a group of verbs. With --json, it prints errors as JSON, too."""

from __future__ import annotations

import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from errno import ENOENT, ENOSPC
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from mmpolicy.errors import LOAD, Error, Exit, as_data, explain, pick
from mmpolicy.host.disk import KEEP_REMEDIES
from mmpolicy.host.signals import SHELL
from mmpolicy.render import emit_error
from mmpolicy.verbs.former import FORMER_VERBS, say

JSON = "--json"
# The help shows the whole first sentence of a verb; click would cut it and end it with "...".
LONG = 1000
PACKAGE = Path(__file__).parents[1]
SIGPIPE = SHELL + signal.SIGPIPE
OUTPUT_REMEDIES = KEEP_REMEDIES | {  # exit code and next step if output fails, by errno
    ENOSPC: (Exit.FAILED, "free space where the output goes; the work of the command is done"),
}


def _imported(name: str) -> ModuleType:
    """Import a Python module. The garbage collector is switched off for the import, to save
    start-up time: the objects of the module live until the process ends anyway.
    """
    gc.disable()
    try:
        return import_module(name)
    finally:
        gc.freeze()
        gc.enable()


class Group(click.Group):
    """A group of verbs, which the help shows in titled sections.

    The Python file of a verb is imported when the verb is first used: imports take most of the
    start-up time.
    """

    def __init__(
        self, *args: Any, groups: Mapping[str, Mapping[str, str]], **attributes: Any
    ) -> None:
        super().__init__(*args, **attributes)
        self.groups = groups
        # Python module in verbs/, by name of the verb
        self.verbs = {name: file for verbs in groups.values() for name, file in verbs.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self.verbs)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Return a verb, imported if necessary; None if there is no verb of that name."""
        if name in self.verbs and name not in self.commands:
            module = _imported(f"mmpolicy.verbs.{self.verbs[name]}")
            commands = [each for each in vars(module).values() if isinstance(each, click.Command)]
            self.commands |= {str(each.name): each for each in commands if each.name == name}
        return self.commands.get(name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of verbs by section, each with its whole first sentence."""
        width = max(map(len, self.verbs))
        for title, verbs in self.groups.items():
            found = [(name, self.get_command(ctx, name)) for name in verbs]
            with formatter.section(title):
                formatter.write_dl(
                    [
                        (name.ljust(width), command.get_short_help_str(LONG))
                        for name, command in found
                        if command
                    ]
                )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the verb that the first word names; raise an error with a similar name if there is
        none. A former name works, with a warning.
        """
        if args[0] in FORMER_VERBS:
            former, args = args[0], [FORMER_VERBS[args[0]], *args[1:]]
            say(former, args[0])
        if not args[0].startswith("-") and args[0] not in self.verbs:
            pick("verb", args[0], self.verbs)
        return super().resolve_command(ctx, args)


class Verbs(Group):
    """The whole command. With --json, it prints errors as JSON, too."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb, and flush its output here, so that an error of printing is handled here."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except Error as err:
            if err.next_step == LOAD:
                _say_what_can_be(ctx, err)
            raise
        except BrokenPipeError:
            _print_no_more()
            ctx.exit(SIGPIPE)
        return result

    def main(self, args: Sequence[str] | None = None, *rest: Any, **more: Any) -> Any:
        """Run the whole command as click does, but print every error as one or two lines, or as
        JSON, and end the process with its exit code.
        """
        for name in ("stdout", "stderr"):
            if getattr(sys, name) is None:  # the file was closed before this command started
                setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 (until the end)
        words = list(sys.argv[1:] if args is None else args)
        run: Callable[..., Any] = super().main
        if not more.get("standalone_mode", True):
            return run(words, *rest, **more)
        try:
            named = {} if rest else {"prog_name": "mmpolicy"}
            code = run(words, *rest, **{**named, **more, "standalone_mode": False})
            sys.stdout.flush()
        except click.ClickException as err:
            code = self._tell(words, err)
        except click.Abort:
            click.echo("mmpolicy: interrupted", err=True)
            code = SHELL + signal.SIGINT
        except OSError as err:
            code = self._tell(words, _incomplete(err) or _of_output(err))
        except ImportError as err:
            from mmpolicy.verbs.libraries import lacking

            code = self._tell(words, lacking(err) or _internal(err))
        except Exception as err:  # a bug: users see one line of text, and no traceback
            code = self._tell(words, _internal(err))
        code = code if isinstance(code, int) else 0
        if args is None:
            _end(code)
        sys.exit(code)

    def _tell(self, words: Sequence[str], err: click.ClickException) -> int:
        if JSON in words:
            emit_error(self._name_of(words), as_data(err))
        else:
            err.show()
        return err.exit_code

    def _name_of(self, words: Sequence[str]) -> str:
        """Return the full name of the verb in a command line, such as `profile create`."""
        names: list[str] = []
        group: click.Command = self
        for word in words:
            found = isinstance(group, click.Group) and group.get_command(click.Context(group), word)
            if found:
                names.append(word)
                group = found
        return " ".join(names)


def _say_what_can_be(ctx: click.Context, err: Error) -> None:
    """If this host can never load the module, extend the error "the module is not loaded": say why
    it cannot, and what works without the module.
    """
    from mmpolicy.verbs.here import without_module

    verdict = without_module(ctx.obj)
    if verdict.next_step != LOAD:
        err.message = f"{err.message}. {verdict.text}"
        err.next_step = verdict.next_step


def _end(code: int) -> None:
    """End this process at once; a normal end would first free all objects, which takes 10 ms."""
    os._exit(code)


def _print_no_more() -> None:
    """Send further output to /dev/null, because the reader of standard output has closed
    the pipe.
    """
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.__stdout__.fileno() if sys.__stdout__ else 1)
    os.close(null)


def _incomplete(err: OSError) -> Error | None:
    """Return the error for a file of this package that is missing; None for any other error."""
    if err.errno != ENOENT or not Path(str(err.filename)).is_relative_to(PACKAGE):
        return None
    text = f"the installation of mmpolicy is incomplete: there is no {err.filename}"
    return Error(text, Exit.LACKING, "reinstall mmpolicy")


def _of_output(err: OSError) -> Error:
    """Return the error for output that failed, and send further output to /dev/null."""
    _print_no_more()
    what = f"use {err.filename}" if err.filename else "print"
    return explain(err.errno or 0, what, OUTPUT_REMEDIES)


def _internal(err: Exception) -> Error:
    """Return the error that reports a bug in this command, with its file and line."""
    place = traceback.extract_tb(err.__traceback__)[-1]
    text = f"internal error: {type(err).__name__}: {err} (in {place.filename}:{place.lineno})"
    return Error(
        text, Exit.INTERNAL, "mmpolicy status shows what is set; please report this line as a bug"
    )
