# SPDX-License-Identifier: GPL-2.0
"""Entry point of `python -m mmpolicy`."""

from __future__ import annotations

from mmpolicy.cli import main

main(prog_name="mmpolicy")
