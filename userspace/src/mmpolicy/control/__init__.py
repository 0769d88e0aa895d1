# SPDX-License-Identifier: GPL-2.0
"""The control tree of the module: what can be set, what is set, and changes to it."""
