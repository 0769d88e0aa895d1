# SPDX-License-Identifier: GPL-2.0
"""Print a line per check, in the format of ./dev."""

from __future__ import annotations

import pytest


class Lines:
    """Replaces pytest's letter per test."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Suppress the letter."""
        return (report.outcome, "", "") if report.when == "call" else None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Print the line."""
        if report.when == "call":
            check = report.nodeid.partition("[")[2].rstrip("]")
            word = "ok   " if report.passed else "FAIL "
            out = self.config.pluginmanager.getplugin("terminalreporter")
            out.ensure_newline()
            out.write_line(f"{word} lint: {check} ({report.duration:.0f} s)")


def pytest_configure(config: pytest.Config) -> None:
    """Register only in the session that starts workers, which receives all results."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Lines(config))
