# SPDX-License-Identifier: GPL-2.0
"""Distribution of guest tests by pytest-xdist, in the pieces of schedule.py."""

from __future__ import annotations

import json
import os
from functools import cached_property
from pathlib import Path

from xdist.scheduler.loadscope import LoadScopeScheduling  # type: ignore[import-untyped]

from .schedule import PIECES


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Assigns pieces (groups of tests, from schedule.py) to workers of pytest-xdist.

    Each worker collects all tests; one of them has written the pieces to a file.
    """

    @cached_property
    def pieces(self) -> dict[str, str]:
        """Return the name of the piece of each test, by node id."""
        found: dict[str, str] = json.loads(Path(os.environ[PIECES]).read_text())
        return found

    def _split_scope(self, nodeid: str) -> str:
        return self.pieces[nodeid]
