# SPDX-License-Identifier: GPL-2.0
"""The error class that users see: failure, place, and next step."""

from __future__ import annotations

import difflib
import errno
import os
from collections.abc import Iterable
from enum import IntEnum
from typing import IO, Any

import click

# The next step when the module is not loaded; group.py checks whether it can be loaded.
LOAD = "mmpolicy load"


class Exit(IntEnum):
    """Exit codes, shared by all verbs."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    LACKING = 3  # The kernel lacks the module, a hook or a feature.
    DENIED = 4
    REFUSED = 5  # the kernel refused the value
    DRIFT = 6  # The verb `verify` has found that the state differs from the manifest.
    INCONCLUSIVE = 7  # The experiment has not enough samples to show a difference.
    WORSE = 8  # The experiment's treatment is worse, or was stopped for harm.
    EXPERIMENT = 9  # An experiment is running, and the change would end it.
    INTERNAL = 70  # a bug in this command


class Error(click.ClickException):
    """A failure with its exit code and the next step for the user."""

    half = False  # True if a part of the change was made and could not be rolled back.

    def __init__(
        self, message: str, code: int, next_step: str, number: int = 0, path: str = ""
    ) -> None:
        super().__init__(message)
        self.exit_code = int(code)
        self.next_step = next_step
        self.errno = number
        self.path = path

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the message and the next step; click calls this method."""
        click.echo(f"mmpolicy: {self.message}", file=file, err=file is None)
        click.echo(f"next: {self.next_step}", file=file, err=file is None)


Remedies = dict[int, tuple[Exit, str]]


def explain(number: int, action: str, remedies: Remedies, path: str = "") -> Error:
    """Return an error for an errno; `remedies` has exit code and next step by errno."""
    code, hint = remedies.get(number, (Exit.FAILED, "look at the end of dmesg"))
    name = errno.errorcode.get(number, str(number))
    return Error(f"cannot {action}: {name} ({os.strerror(number)})", code, hint, number, path)


def as_data(err: click.ClickException) -> dict[str, Any]:
    """Return an error for JSON, with null for unknown fields."""
    ours = err if isinstance(err, Error) else None
    return {
        "message": err.format_message(),
        "path": (ours and ours.path) or None,
        "errno": ours and errno.errorcode.get(ours.errno),
        "exit": err.exit_code,
        "next": ours.next_step if ours else "give --help",
    }


def pick(kind: str, name: str, names: Iterable[str]) -> str:
    """Return `name` if it is one of `names`, else raise an error that lists them."""
    known = sorted(names)
    if name in known:
        return name
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}?" if close else "take one of these names"
    listed = ", ".join(known) or "none"
    raise Error(f"no {kind} '{name}'; there is: {listed}", Exit.USAGE, hint)
