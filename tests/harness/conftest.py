# SPDX-License-Identifier: GPL-2.0
"""What pytest has to know of the harness's own tests."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Say what the marker means."""
    config.addinivalue_line("markers", "full: takes long; only for ./dev test --full")
