# SPDX-License-Identifier: GPL-2.0
"""What a dry run tells of a write."""

from __future__ import annotations

from typing import NamedTuple


class Step(NamedTuple):
    """A write that a dry run leaves out: the current and the new value."""

    path: str
    value: str
    now: str
    wanted: str

    def line(self) -> str:
        """Return it for people."""
        return f"{self.path} <- {self.value}  ({self.now} -> {self.wanted})"
