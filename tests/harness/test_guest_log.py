# SPDX-License-Identifier: GPL-2.0
"""Whose kernel log cannot be read to its end has not passed. Guests are played by the host."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from guest import machines, tools
from guest.machines import Machines
from lab import guest as vm
from lab.guest import Guest, Result, Splat, VmError
from lab.programs import BenchError

BUG = "BUG: planted in the log"
ON = "kmemleak: Kernel memory leak detector initialized (mem pool available: 15772)"


class Planted(Guest):
    """A guest whose commands run on the host, with files in a folder in place of the kernel's."""

    def __init__(self, files: Path, log: str = "") -> None:
        super().__init__()
        self.files, self.closed = files, False
        self.log = self.folder = files / "log"
        self.log.write_text(log)
        (files / "kmsg").symlink_to("log")
        (files / "kmemleak").touch()

    def run(self, command: str, timeout: float | None = 60, **_: Any) -> Result:
        """Run it without waiting for kmemleak; what is said to the kernel goes to the log."""
        for path in "/dev/kmsg", "/sys/kernel/debug/kmemleak":
            command = command.replace(f">{path}", f">>{path}").replace(
                path, str(self.files / Path(path).name)
            )
        argv = ["sh", "-c", command.replace("sleep 6", ":")]
        ended = subprocess.run(argv, stdout=-1, stderr=subprocess.STDOUT, check=False)
        return Result(ended.returncode, ended.stdout)

    def close(self) -> None:
        """Remember that it is over."""
        self.closed = True


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planted:
    """A healthy guest; nobody waits a minute for a log that does not come."""
    monkeypatch.setattr(vm, "LOG_WAIT_S", 0.1)
    return Planted(tmp_path)


def no_longer(planted: Planted, file: str) -> None:
    """From now on, writes to a file fail."""
    (planted.files / file).unlink()
    (planted.files / file).symlink_to("/dev/full")


# The mark of a check


def test_a_healthy_guest_passes(planted: Planted) -> None:
    """As often as it is looked at, and each bug is told once."""
    planted.check()
    planted.run(f"echo '{BUG}' >/dev/kmsg")
    with pytest.raises(Splat, match=BUG):
        planted.check()
    planted.check()


def test_a_guest_that_cannot_write_to_its_log(planted: Planted) -> None:
    """Its command fails, and that is told."""
    no_longer(planted, "kmsg")
    with pytest.raises(VmError, match=r"(?s)written with status [12].*echo: "):
        planted.check()


def test_a_guest_whose_log_stands_still(planted: Planted) -> None:
    """The command succeeds, but its line gets nowhere."""
    (planted.files / "kmsg").unlink()
    (planted.files / "kmsg").symlink_to("/dev/null")
    with pytest.raises(VmError, match="has not arrived"):
        planted.check()


def test_a_guest_that_answers_too_late(planted: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its command was killed."""
    monkeypatch.setattr(planted, "run", lambda *_, **__: Result(vm.TIMED_OUT, b"", True))
    with pytest.raises(VmError, match="written with status 124"):
        planted.check()


# kmemleak


def test_a_kernel_without_kmemleak_has_nothing_to_scan(planted: Planted) -> None:
    """Nor one in which it was off from the beginning."""
    no_longer(planted, "kmemleak")
    planted.scan_leaks()
    planted.log.write_text("kmemleak: Kernel memory leak detector disabled\n")
    planted.scan_leaks()


@pytest.mark.parametrize("said", [ON, "kmemleak: Memory pool empty, consider increasing it"])
def test_kmemleak_that_has_turned_itself_off(planted: Planted, said: str) -> None:
    """It was meant to look for leaks: a leak would not be seen."""
    planted.log.write_text(f"[    1.2] {said}\n")
    no_longer(planted, "kmemleak")
    with pytest.raises(VmError, match="does not scan any more"):
        planted.scan_leaks()


def test_leaks(planted: Planted) -> None:
    """What kmemleak lists fails."""
    planted.log.write_text(f"{ON}\n")
    with pytest.raises(Splat, match="scan"):  # the file gives back what was written to it
        planted.scan_leaks()


# Guests that the tests end


@pytest.fixture
def ours(planted: Planted, monkeypatch: pytest.MonkeyPatch) -> Machines:
    """With the guest that they would boot."""
    monkeypatch.setattr(machines, "new_guest", lambda **_: Planted(planted.files / "next"))
    ours = Machines()
    ours.guest, ours.needs = planted, {"flavor": "patched"}
    return ours


def test_a_guest_is_looked_at_before_it_is_closed(planted: Planted, ours: Machines) -> None:
    """A test that ends it by itself cannot leave a bug behind in its log."""
    planted.run(f"echo '{BUG}' >/dev/kmsg")
    with pytest.raises(Splat, match=BUG):
        ours.end()
    assert planted.closed and ours.guest is None
    ours.end()


def test_a_guest_is_looked_at_before_another_takes_its_place(
    planted: Planted, ours: Machines
) -> None:
    """Also where the log does not come any more."""
    no_longer(planted, "kmsg")
    with pytest.raises(VmError, match="has not arrived"):
        ours.get("debug")
    assert planted.closed and ours.guest is None


def test_a_guest_that_cannot_be_tidied_up_is_not_used_again(
    planted: Planted, ours: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next test boots one."""

    def fails(_: Guest) -> None:
        raise BenchError("rmmod: busy")

    monkeypatch.setattr(tools, "back_to_boot", fails)
    with pytest.raises(BenchError, match="busy"):
        ours.tidy()
    assert planted.closed and ours.guest is None


def test_a_guest_that_logged_a_bug_is_not_used_again(
    planted: Planted, ours: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KASAN and lockdep tell of one bug for each boot; the test that met it has told."""
    monkeypatch.setattr(tools, "back_to_boot", lambda _: None)
    monkeypatch.setattr(Planted, "_boot", lambda _: None)
    assert ours.get("patched") is planted
    planted.run(f"echo '{BUG}' >/dev/kmsg")
    with pytest.raises(Splat, match=BUG):
        planted.check()
    (planted.files / "next").mkdir()
    ours.tidy()
    assert ours.get("patched") is not planted and planted.closed
