# SPDX-License-Identifier: GPL-2.0
"""Progress of a run, and the interface of displays for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


def clock(seconds: float) -> str:
    """Return a duration as M:SS."""
    return f"{int(seconds // 60)}:{int(seconds % 60):02}"


@dataclass(frozen=True)
class Progress:
    """How far a run is after a block."""

    done: int  # blocks
    total: int
    phase: str
    left_s: float
    estimates: list[str]  # the estimate of each metric so far

    def line(self) -> str:
        """Return the position as one line."""
        where = f"block {self.done} of {self.total} ({self.phase}), {clock(self.left_s)} left"
        return "; ".join([where, *self.estimates])


class Display(Protocol):
    """Shows the progress of a run."""

    def say(self, line: str) -> None:
        """Show a line once."""

    def report(self, progress: Progress) -> None:
        """Show the position of the run."""

    def tick(self, left_s: float) -> None:
        """Show the remaining time; called several times a second."""
