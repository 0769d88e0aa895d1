# SPDX-License-Identifier: GPL-2.0
"""The TOML parser: Python's own from 3.11 on, else the package tomli."""

from __future__ import annotations

import sys

if sys.version_info >= (3, 11):
    from tomllib import TOMLDecodeError, loads
else:
    from tomli import TOMLDecodeError, loads

__all__ = ["TOMLDecodeError", "loads"]
