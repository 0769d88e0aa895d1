# SPDX-License-Identifier: GPL-2.0
"""One write that a dry run prints."""

from __future__ import annotations

from typing import NamedTuple


class Step(NamedTuple):
    """A write that a dry run only reports, with the current and the new value."""

    path: str
    value: str
    now: str
    wanted: str

    def line(self) -> str:
        """Return the step as a line of text."""
        return f"{self.path} <- {self.value}  ({self.now} -> {self.wanted})"
