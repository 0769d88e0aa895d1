# SPDX-License-Identifier: GPL-2.0
"""A guest whose kernel log cannot be read to its end has not passed. The host plays the guests."""

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
    """A guest whose commands run on the host, on files in a folder instead of the kernel's."""

    def __init__(self, files: Path, log: str = "") -> None:
        super().__init__()
        self.files, self.closed = files, False
        self.log = self.folder = files / "log"
        self.log.write_text(log)
        (files / "kmsg").symlink_to("log")
        (files / "kmemleak").touch()

    def run(self, command: str, timeout: float | None = 60, **_: Any) -> Result:
        """Run a command without waiting for kmemleak; writes to the kernel log go to the file."""
        for path in "/dev/kmsg", "/sys/kernel/debug/kmemleak":
            command = command.replace(f">{path}", f">>{path}").replace(
                path, str(self.files / Path(path).name)
            )
        argv = ["sh", "-c", command.replace("sleep 6", ":")]
        ended = subprocess.run(argv, stdout=-1, stderr=subprocess.STDOUT, check=False)
        return Result(ended.returncode, ended.stdout)

    def close(self) -> None:
        """Record the call."""
        self.closed = True


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planted:
    """Return a healthy guest, with a short wait for lines of the log."""
    monkeypatch.setattr(vm, "LOG_WAIT_S", 0.1)
    return Planted(tmp_path)


def no_longer(planted: Planted, file: str) -> None:
    """Make writes to a file fail from now on."""
    (planted.files / file).unlink()
    (planted.files / file).symlink_to("/dev/full")


# The mark of a check


def test_a_healthy_guest_passes(planted: Planted) -> None:
    """Repeated checks pass, and each bug is reported once."""
    planted.check()
    planted.run(f"echo '{BUG}' >/dev/kmsg")
    with pytest.raises(Splat, match=BUG):
        planted.check()
    planted.check()


def test_a_guest_that_cannot_write_to_its_log(planted: Planted) -> None:
    """The write fails, and the check reports that."""
    no_longer(planted, "kmsg")
    with pytest.raises(VmError, match=r"(?s)written with status [12].*echo: "):
        planted.check()


def test_a_guest_whose_log_stands_still(planted: Planted) -> None:
    """The write succeeds, but its line gets nowhere."""
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
    """A kernel in which kmemleak was off from the beginning has nothing to scan either."""
    no_longer(planted, "kmemleak")
    planted.scan_leaks()
    planted.log.write_text("kmemleak: Kernel memory leak detector disabled\n")
    planted.scan_leaks()


@pytest.mark.parametrize("said", [ON, "kmemleak: Memory pool empty, consider increasing it"])
def test_kmemleak_that_has_turned_itself_off(planted: Planted, said: str) -> None:
    """kmemleak was meant to look for leaks, and now would miss one."""
    planted.log.write_text(f"[    1.2] {said}\n")
    no_longer(planted, "kmemleak")
    with pytest.raises(VmError, match="does not scan any more"):
        planted.scan_leaks()


def test_leaks(planted: Planted) -> None:
    """A leak that kmemleak lists makes the check fail."""
    planted.log.write_text(f"{ON}\n")
    with pytest.raises(Splat, match="scan"):  # the file returns the text written to it
        planted.scan_leaks()


# Guests that the tests end


@pytest.fixture
def ours(planted: Planted, monkeypatch: pytest.MonkeyPatch) -> Machines:
    """Return machines with a fake guest, which also boot fake guests."""
    monkeypatch.setattr(machines, "new_guest", lambda **_: Planted(planted.files / "next"))
    ours = Machines()
    ours.guest, ours.needs = planted, {"flavor": "patched"}
    return ours


def test_a_guest_is_looked_at_before_it_is_closed(planted: Planted, ours: Machines) -> None:
    """A test that ends its guest cannot hide a bug in its log."""
    planted.run(f"echo '{BUG}' >/dev/kmsg")
    with pytest.raises(Splat, match=BUG):
        ours.end()
    assert planted.closed and ours.guest is None
    ours.end()


def test_a_guest_is_looked_at_before_another_takes_its_place(
    planted: Planted, ours: Machines
) -> None:
    """This holds even if the log no longer arrives."""
    no_longer(planted, "kmsg")
    with pytest.raises(VmError, match="has not arrived"):
        ours.get("debug")
    assert planted.closed and ours.guest is None


def test_a_guest_that_cannot_be_tidied_up_is_not_used_again(
    planted: Planted, ours: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next test boots a new one."""

    def fails(_: Guest) -> None:
        raise BenchError("rmmod: busy")

    monkeypatch.setattr(tools, "back_to_boot", fails)
    with pytest.raises(BenchError, match="busy"):
        ours.tidy()
    assert planted.closed and ours.guest is None


def test_a_guest_that_logged_a_bug_is_not_used_again(
    planted: Planted, ours: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KASAN and lockdep report one bug per boot, and the test that met it has reported it."""
    monkeypatch.setattr(tools, "back_to_boot", lambda _: None)
    monkeypatch.setattr(Planted, "_boot", lambda _: None)
    assert ours.get("patched") is planted
    planted.run(f"echo '{BUG}' >/dev/kmsg")
    with pytest.raises(Splat, match=BUG):
        planted.check()
    (planted.files / "next").mkdir()
    ours.tidy()
    assert ours.get("patched") is not planted and planted.closed
