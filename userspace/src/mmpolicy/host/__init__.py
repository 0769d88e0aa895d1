# SPDX-License-Identifier: GPL-2.0
"""The host: its files, its kernel module, its cgroups and its processes."""
