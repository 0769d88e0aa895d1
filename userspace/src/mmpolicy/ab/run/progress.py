# SPDX-License-Identifier: GPL-2.0
"""The progress of a run, and the interface of the displays that show it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


def clock(seconds: float) -> str:
    """Return a duration in seconds as text, M:SS."""
    return f"{int(seconds // 60)}:{int(seconds % 60):02}"


@dataclass(frozen=True)
class Progress:
    """The progress of a run at the end of a block."""

    done: int  # blocks
    total: int
    phase: str
    left_s: float
    estimates: list[str]  # the estimate of each metric so far

    def line(self) -> str:
        """Return position, remaining time and estimates as one line."""
        where = f"block {self.done} of {self.total} ({self.phase}), {clock(self.left_s)} left"
        return "; ".join([where, *self.estimates])


class Display(Protocol):
    """A display of the progress of a run; the run calls these methods."""

    def say(self, line: str) -> None:
        """Show a line of text, such as a warning."""

    def report(self, progress: Progress) -> None:
        """Show how far the run has come; called at the end of each block."""

    def tick(self, left_s: float) -> None:
        """Show the remaining time; called several times a second."""
