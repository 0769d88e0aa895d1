# SPDX-License-Identifier: GPL-2.0
"""Examine a kernel that is not running: its image, types and symbols."""
