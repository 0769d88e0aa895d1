# SPDX-License-Identifier: GPL-2.0
"""The memory of a process, and pictures of it."""
