# SPDX-License-Identifier: GPL-2.0
"""Run an experiment: change the arms block by block, sample, restore."""
