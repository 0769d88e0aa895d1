# SPDX-License-Identifier: GPL-2.0
"""Access to the host: its files, kernel modules, cgroups and processes."""
