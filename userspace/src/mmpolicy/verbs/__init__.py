# SPDX-License-Identifier: GPL-2.0
"""One module for each group of verbs; cli.py adds them to the command."""
