# SPDX-License-Identifier: GPL-2.0
"""Switch Linux memory-management policies at run time."""

__version__ = "0.1.0"
