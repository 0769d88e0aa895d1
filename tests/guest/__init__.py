# SPDX-License-Identifier: GPL-2.0
"""Tests in guests: by effect, on the kernels that ./dev kernel builds."""

import sys
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TREE / folder) for folder in ("tests/vm", "bench", "tests")]
