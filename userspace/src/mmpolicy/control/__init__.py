# SPDX-License-Identifier: GPL-2.0
"""The control tree of the module: possible settings, current settings, and changes."""
