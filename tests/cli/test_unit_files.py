# SPDX-License-Identifier: GPL-2.0
"""The units of the package."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from .fakes import Run

UNITS = sorted((Path(__file__).parents[2] / "debian/units").iterdir())
MMPOLICY = "/usr/bin/mmpolicy"
SERVICES = [path for path in UNITS if path.suffix == ".service"]


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.stem)
def test_commands_are_commands(run: Run, path: Path) -> None:
    """Commands in units are valid: with --help at the end a command is parsed, and not run."""
    lines = [line for line in path.read_text().splitlines() if "=" in line and "/mmpolicy " in line]
    assert lines
    for line in lines:
        words = line.partition("/usr/bin/mmpolicy ")[2].split()
        assert run(*words, "--help").code == 0


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.stem)
def test_a_service_has_few_rights(path: Path, tmp_path: Path) -> None:
    """A service has few rights, by the rating of systemd: 0 is none, 10 is all; the threshold is in
    tenths.
    """
    unit = tmp_path / path.name
    unit.write_text(path.read_text())
    command = ["systemd-analyze", "security", "--offline=yes", "--threshold=45", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.stem)
def test_a_service_ends_by_itself(path: Path) -> None:
    """A service ends by itself: a oneshot service has no time limit unless it sets one; one service
    runs for ever.
    """
    keys = dict(line.split("=", 1) for line in path.read_text().splitlines() if "=" in line)
    if path.stem == "mmpolicy-maintain":
        assert (keys["Type"], keys["Restart"]) == ("exec", "on-failure")
        return
    assert keys["Type"] == "oneshot"
    assert "TimeoutStartSec" in keys or "TimeoutSec" in keys


def test_a_start_that_was_ended_too_early_is_tried_again() -> None:
    """A start that was ended too early is tried again: on a busy host a look took over 60 s; then a
    whole boot was without the policies.
    """
    unit = (Path(__file__).parents[2] / "debian/units/mmpolicy.service").read_text()
    keys = dict(line.split("=", 1) for line in unit.splitlines() if "=" in line)
    assert (keys["TimeoutStartSec"], keys["TimeoutStopSec"]) == ("90s", "60s")
    assert (keys["Restart"], keys["RestartSec"]) == ("on-abnormal", "30s")
    assert "StartLimitBurst" not in keys  # manual restarts would count for it


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_finds_nothing_wrong(path: Path, tmp_path: Path) -> None:
    """systemd finds no key that is unknown, in a wrong section or with an invalid value."""
    for each in UNITS:
        (tmp_path / each.name).write_text(each.read_text().replace(MMPOLICY, "/bin/true"))
    assert complaints(tmp_path / path.name) == []


@pytest.mark.parametrize(
    "wrong",
    ["[Service]\nExecStart=/bin/true\nRestrat=no\n", "[Service]\nType=oneshot\nRestart=always\n"
     "ExecStart=/bin/true\n", "[Service]\nExecStart=/no/such/command\n"],
)  # fmt: skip
def test_what_is_wrong_is_found(tmp_path: Path, wrong: str) -> None:
    """A wrong unit is detected, so the test above can fail."""
    (tmp_path / "wrong.service").write_text(wrong)
    assert complaints(tmp_path / "wrong.service")


def complaints(unit: Path) -> list[str]:
    """Return complaints of systemd about a unit, without those about this machine's units."""
    command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return [line for line in done.stderr.splitlines() if unit.name in line]


def test_the_one_that_collapses_is_not_slowed_down() -> None:
    """The unit that collapses is not slowed down, as a program waits as long as the holder of its
    mmap_lock: no quota, no nice, and real-time.
    """
    unit = (Path(__file__).parents[2] / "debian/units/mmpolicy-maintain.service").read_text()
    assert not any(key in unit for key in ("CPUQuota", "Nice=", "CPUWeight", "RestrictRealtime"))
