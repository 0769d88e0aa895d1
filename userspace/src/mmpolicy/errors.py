# SPDX-License-Identifier: GPL-2.0
"""The error class for errors that users see: message, place, and next step."""

from __future__ import annotations

import difflib
import errno
import os
from collections.abc import Iterable
from enum import IntEnum
from typing import IO, Any

import click

# next step while the module is not loaded; group.py checks whether it can be loaded
LOAD = "mmpolicy load"
AS_ROOT = "run the command as root"
OUTSIDE = "run the command on the host itself, not in a container or user namespace"


class Exit(IntEnum):
    """Exit codes, shared by all verbs."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    LACKING = 3  # the kernel does not have the module, a hook or a feature
    DENIED = 4
    REFUSED = 5  # the kernel refused the value
    DRIFT = 6  # `verify` found that the state differs from the manifest
    INCONCLUSIVE = 7  # the experiment has too few samples to show a difference
    WORSE = 8  # the treatment of the experiment is worse, or was stopped for harm
    EXPERIMENT = 9  # an experiment is running, and the change would end it
    INTERNAL = 70  # a bug in this command


class Error(click.ClickException):
    """An error that users see, with its exit code and the next step."""

    half = False  # True if a part of the change was made and could not be undone again

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


class UnknownError(Error):
    """An error about a name, of a cgroup or a unit, that nothing on this host has."""


Remedies = dict[int, tuple[Exit, str]]


def explain(number: int, action: str, remedies: Remedies, path: str = "") -> Error:
    """Return the error for an errno of a failed action. remedies: exit code and next step
    by errno.
    """
    code, hint = remedies.get(number, (Exit.FAILED, "dmesg | tail may say why"))
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
    """Return `name` if `names` has it; else raise an error that lists `names`."""
    known = sorted(names)
    if name in known:
        return name
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}?" if close else "give one of these names"
    listed = f"choose from: {', '.join(known)}" if known else "there are none"
    raise Error(f"there is no {kind} '{name}'; {listed}", Exit.USAGE, hint)
