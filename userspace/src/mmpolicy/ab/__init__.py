# SPDX-License-Identifier: GPL-2.0
"""Experiments. A run needs only the command's own dependencies; a report needs the extra `ab`."""
