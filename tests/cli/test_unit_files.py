# SPDX-License-Identifier: GPL-2.0
"""The units of the package."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from .fakes import Run

UNITS = sorted((Path(__file__).parents[2] / "debian/units").iterdir())
SERVICES = [path for path in UNITS if path.suffix == ".service"]


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.stem)
def test_commands_are_commands(run: Run, path: Path) -> None:
    """With --help at the end a command is parsed, and not run."""
    lines = [line for line in path.read_text().splitlines() if "=" in line and "/mmpolicy " in line]
    assert lines
    for line in lines:
        words = line.partition("/usr/bin/mmpolicy ")[2].split()
        assert run(*words, "--help").code == 0


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.stem)
def test_a_service_has_few_rights(path: Path, tmp_path: Path) -> None:
    """By the judgement of systemd: 0 is none, 10 is all; the threshold is in tenths."""
    unit = tmp_path / path.name
    unit.write_text(path.read_text())
    command = ["systemd-analyze", "security", "--offline=yes", "--threshold=45", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.stem)
def test_a_service_ends_by_itself(path: Path) -> None:
    """One that is run to its end has no limit of time, unless it says so; one goes on for ever."""
    keys = dict(line.split("=", 1) for line in path.read_text().splitlines() if "=" in line)
    if path.stem == "mmpolicy-maintain":
        assert (keys["Type"], keys["Restart"]) == ("exec", "on-failure")
        return
    assert keys["Type"] == "oneshot"
    assert "TimeoutStartSec" in keys or "TimeoutSec" in keys


def test_the_one_that_collapses_is_not_slowed_down() -> None:
    """A program waits as long as who holds its mmap_lock: no quota, no nice, and real-time."""
    unit = (Path(__file__).parents[2] / "debian/units/mmpolicy-maintain.service").read_text()
    assert not any(key in unit for key in ("CPUQuota", "Nice=", "CPUWeight", "RestrictRealtime"))
