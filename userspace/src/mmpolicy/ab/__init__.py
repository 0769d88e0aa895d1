# SPDX-License-Identifier: GPL-2.0
"""Experiments. A run works with the command's own dependencies; a report needs the libraries of the
extra `ab`.
"""
