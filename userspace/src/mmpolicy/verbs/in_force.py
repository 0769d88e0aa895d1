# SPDX-License-Identifier: GPL-2.0
"""Settings that are in force while a command measures, and the way back whatever ends it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Protocol

import click

from mmpolicy.ab.keeper import put_back
from mmpolicy.control.experiment import BENCH, LOCK
from mmpolicy.host.machine import Host

PATIENCE_S = 0.5  # for somebody else who is about to end


class Settings(Protocol):
    """What can be begun, and taken back."""

    def set_up(self) -> None:
        """Begin."""

    def restore(self) -> str:
        """Go back; return what is to be told about it, if anything is."""


@contextmanager
def in_force(host: Host, settings: Settings, alone: bool) -> Iterator[None]:
    """Have settings; `alone`, as they are of the whole host, with nobody else who changes it."""
    holder = f"{BENCH}{os.getpid()}"
    with host.tree.locked(LOCK, holder, PATIENCE_S) if alone else nullcontext():
        if alone:
            _warn(put_back(host.tree))
        try:
            settings.set_up()
            yield
        finally:
            _warn(settings.restore())


def _warn(note: str | None) -> None:
    if note:
        click.echo(f"warning: {note}", err=True)
