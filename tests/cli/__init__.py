# SPDX-License-Identifier: GPL-2.0
"""Tests of the command line tool, on a host made of files."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "userspace" / "src"))
