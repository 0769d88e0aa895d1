# SPDX-License-Identifier: GPL-2.0
"""Tests of the virtual machine (guest) itself, on whose behaviour all other tests rely."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from lab.guest import Guest, Splat, VmError, cache_dir
from lab.programs import BenchError, must, ran, workload

from .conftest import Machines

PAGE = 4096


def functions(path: Path, first: int, pages: int) -> Path:
    """Write a file in which each page is a function in machine code; it returns its own number,
    counted from `first` on. Return the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    code = (struct.pack("<BIB", 0xB8, n, 0xC3) for n in range(first, first + pages))
    path.write_bytes(b"".join(function.ljust(PAGE, b"\xcc") for function in code))
    return path


@pytest.mark.parametrize("cpus", (1, 2))
@pytest.mark.flavor("patched")
def test_code_that_is_read_again(machines: Machines, cpus: int) -> None:
    """If the host writes new code into memory of the guest from which code has run before, the
    emulator runs the new code.
    """
    folder = cache_dir() / "vm"
    files = [functions(folder / f"functions-{n}", n << 16, 512) for n in (1, 2)]
    guest = machines.get("patched", mem="1G", cpus=cpus)
    found = ran(guest, f"{workload('reread')} 4 {files[0]} {files[1]}")
    assert found == {"calls": 4096, "stale": 0}


@pytest.fixture
def own(machines: Machines, stock: str) -> Guest:
    """Return a new guest with Debian's kernel, which no earlier test has used."""
    machines.end()
    return machines.get(stock, mem="512M")


def test_a_bug_in_the_log_of_a_guest_that_is_closed(machines: Machines, own: Guest) -> None:
    """If the kernel of a guest logs a warning, the test that closes the guest fails, even if it has
    not read the kernel log.
    """
    must(own, "echo '<4>WARNING: planted' >/dev/kmsg")
    with pytest.raises(Splat, match="WARNING: planted"):
        machines.end()


def test_a_log_that_warnings_do_not_reach(own: Guest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel warning is noticed even if the console shows only emergencies: check() then fails,
    as the log does not arrive.
    """
    monkeypatch.setattr("lab.guest.LOG_WAIT_S", 1)
    must(own, "echo 1 >/proc/sys/kernel/printk")
    with pytest.raises(VmError, match="has not arrived"):
        own.check()
    must(own, "echo 7 >/proc/sys/kernel/printk")


def test_a_warning_beside_an_answer(own: Guest) -> None:
    """Standard error of a command in the guest is not part of its output; it is shown only if the
    command fails.
    """
    assert ran(own, "echo beside >&2; echo '{}'") == {}
    with pytest.raises(BenchError, match="beside"):
        ran(own, "echo beside >&2; false")
