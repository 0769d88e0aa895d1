# SPDX-License-Identifier: GPL-2.0
"""Whole programs under one memory setting after the other: what `mmpolicy bench` does."""
