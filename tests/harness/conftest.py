# SPDX-License-Identifier: GPL-2.0
"""Configuration of pytest for the harness's own tests."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", "full: takes long; only for ./dev test --full")
