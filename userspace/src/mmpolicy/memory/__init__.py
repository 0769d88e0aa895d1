# SPDX-License-Identifier: GPL-2.0
"""The memory of processes: survey, advice, collapse, trim, and pictures."""
