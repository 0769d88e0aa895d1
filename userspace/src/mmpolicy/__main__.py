# SPDX-License-Identifier: GPL-2.0
"""Let `python -m mmpolicy` do what `mmpolicy` does."""

from __future__ import annotations

from mmpolicy.cli import main

main(prog_name="mmpolicy")
