# SPDX-License-Identifier: GPL-2.0
"""A plugin of pytest: an interrupted run continues where it stopped.

MMPOLICY_RESUME names a file with the tests that have passed before, which are left out. FILE.now
gets those that pass now. The end of a complete run removes both.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest


class LeftOut:
    """Deselects the tests that an interrupted run has passed, in workers of pytest-xdist, too."""

    def __init__(self, path: Path) -> None:
        self.passed = set(path.read_text().splitlines()) if path.exists() else set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Deselect the tests that have passed before, ahead of other plugins."""
        done = [item for item in items if item.nodeid in self.passed]
        config.hook.pytest_deselected(items=done)
        items[:] = [item for item in items if item not in done]


class Kept:
    """Writes the name of each test that passes to FILE.now, for the run that continues."""

    def __init__(self, path: Path) -> None:
        self.path, self.now = path, path.with_name(f"{path.name}.now")
        self.others: set[str] = set()  # failed or skipped

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a test when its teardown has passed, if nothing in it failed or was skipped."""
        name = report.nodeid
        if report.outcome != "passed":
            self.others.add(name)
        elif report.when == "teardown" and name not in self.others:
            with self.now.open("a") as file:
                file.write(f"{name}\n")

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Remove FILE and FILE.now at the end of a run that was not interrupted."""
        ends = (
            pytest.ExitCode.OK,
            pytest.ExitCode.TESTS_FAILED,
            pytest.ExitCode.NO_TESTS_COLLECTED,
        )
        if exitstatus in ends:
            self.path.unlink(missing_ok=True)
            self.now.unlink(missing_ok=True)


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugins; only the session that starts the workers receives all results."""
    if path := os.environ.get("MMPOLICY_RESUME"):
        config.pluginmanager.register(LeftOut(Path(path)))
        if not hasattr(config, "workerinput"):
            config.pluginmanager.register(Kept(Path(path)))
