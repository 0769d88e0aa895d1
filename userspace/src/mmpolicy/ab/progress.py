# SPDX-License-Identifier: GPL-2.0
"""What is told while a run goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


def clock(seconds: float) -> str:
    """Return a time as people read it."""
    return f"{int(seconds // 60)}:{int(seconds % 60):02}"


@dataclass(frozen=True)
class Progress:
    """Where a run is after a block."""

    done: int  # blocks
    total: int
    phase: str
    left_s: float
    estimates: list[str]  # one for each metric

    def line(self) -> str:
        """Return it as one line."""
        where = f"block {self.done} of {self.total} ({self.phase}), {clock(self.left_s)} left"
        return "; ".join([where, *self.estimates])


class Display(Protocol):
    """What shows it."""

    def say(self, line: str) -> None:
        """Tell something once."""

    def report(self, progress: Progress) -> None:
        """Tell where the run is."""

    def tick(self, left_s: float) -> None:
        """Tell of the time that is left; this comes several times a second."""
