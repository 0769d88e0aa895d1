# SPDX-License-Identifier: GPL-2.0
"""Experiments: `run` needs click alone; `stats`, `report` and `html` need mmpolicy[ab]."""
