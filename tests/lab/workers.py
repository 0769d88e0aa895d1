# SPDX-License-Identifier: GPL-2.0
"""How pytest-xdist hands out the guest tests: by the pieces of schedule.py."""

from __future__ import annotations

import json
import os
from functools import cached_property
from pathlib import Path

from xdist.scheduler.loadscope import LoadScopeScheduling  # type: ignore[import-untyped]

from .schedule import PIECES


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Workers collect the tests, all the same ones, and have written what belongs together."""

    @cached_property
    def pieces(self) -> dict[str, str]:
        """The piece of each test."""
        found: dict[str, str] = json.loads(Path(os.environ[PIECES]).read_text())
        return found

    def _split_scope(self, nodeid: str) -> str:
        return self.pieces[nodeid]
