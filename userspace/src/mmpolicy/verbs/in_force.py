# SPDX-License-Identifier: GPL-2.0
"""Apply settings while a command measures, and restore the former ones afterwards, however the
command ends.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Protocol

import click

from mmpolicy.ab.run.keeper import put_back
from mmpolicy.ab.run.policy_arms import StoppedError
from mmpolicy.control.experiment import BENCH, LOCK
from mmpolicy.errors import Error, Exit
from mmpolicy.host.machine import Host

PATIENCE_S = 0.5  # seconds to wait for a process that is just giving up the lock


class Settings(Protocol):
    """Settings that in_force() applies, and then restores."""

    def set_up(self) -> None:
        """Apply the settings."""

    def restore(self) -> str:
        """Restore the former settings; return a warning as text, or ""."""


@contextmanager
def in_force(host: Host, settings: Settings, alone: bool) -> Iterator[None]:
    """Apply settings for the time of a `with` block, and restore the former values at its end.

    alone: True if the settings apply to the whole host; then take the lock that allows only one
    experiment at a time. Raise Error if another program changes one of the settings meanwhile.
    """
    holder = f"{BENCH}{os.getpid()}"
    with host.tree.locked(LOCK, holder, PATIENCE_S) if alone else nullcontext():
        if alone:
            _warn(put_back(host.tree))
        try:
            settings.set_up()
            yield
        except StoppedError as err:
            raise Error(err.reason, Exit.FAILED, "give the command again") from err
        finally:
            _warn(settings.restore())


def _warn(note: str | None) -> None:
    if note:
        click.echo(f"warning: {note}", err=True)
