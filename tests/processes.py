# SPDX-License-Identifier: GPL-2.0
"""Processes of this machine."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def children(pid: int) -> list[int]:
    """The processes that the first thread of a process has started, and that have not ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    return []
