# SPDX-License-Identifier: GPL-2.0
"""Record signals that would end the command, so that it ends at a safe moment."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from mmpolicy.errors import Error

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SHELL = 128  # added to a signal's number for the exit code, as shells do


@contextmanager
def noted() -> Iterator[list[int]]:
    """Collect signals in a list instead of ending the process; signals that are ignored, as under
    nohup, stay ignored.
    """
    caught: list[int] = []

    def note(number: int, _frame: object) -> None:
        caught.append(number)

    heeded = [each for each in SIGNALS if signal.getsignal(each) != signal.SIG_IGN]
    old = {each: signal.signal(each, note) for each in heeded}
    try:
        yield caught
    finally:
        for each, handler in old.items():
            signal.signal(each, handler)


def interrupted(number: int) -> Error:
    """Return the error for a command that a signal has ended."""
    name = signal.Signals(number).name
    return Error(f"the command was interrupted by {name}", SHELL + number, "give the command again")
