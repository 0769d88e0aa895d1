# SPDX-License-Identifier: GPL-2.0
"""One Python module for each group of verbs; cli.py adds the verbs to the command."""
