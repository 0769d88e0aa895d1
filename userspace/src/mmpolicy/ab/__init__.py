# SPDX-License-Identifier: GPL-2.0
"""Experiments. Running one needs no more than the command; a report needs the extra `ab`."""
