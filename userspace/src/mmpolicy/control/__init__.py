# SPDX-License-Identifier: GPL-2.0
"""The control tree of the module: which settings there are, which are in force, and how to change
them.
"""
