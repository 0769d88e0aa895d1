# SPDX-License-Identifier: GPL-2.0
"""Switch Linux memory-management policies at run time."""

from __future__ import annotations

__version__ = "0.1.0"
