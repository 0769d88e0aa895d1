# SPDX-License-Identifier: GPL-2.0
"""The guest itself: what the other tests rely on."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from common import ran, workload
from vm import cache_dir

from .conftest import Machines

PAGE = 4096


def functions(path: Path, first: int, pages: int) -> Path:
    """A file of which each page is a function that returns a number of its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    code = (struct.pack("<BIB", 0xB8, n, 0xC3) for n in range(first, first + pages))
    path.write_bytes(b"".join(function.ljust(PAGE, b"\xcc") for function in code))
    return path


@pytest.mark.parametrize("cpus", (1, 2))
@pytest.mark.flavor("patched")
def test_code_that_is_read_again(machines: Machines, cpus: int) -> None:
    """The emulator translates anew what the host has written to the guest's memory."""
    folder = cache_dir() / "vm"
    files = [functions(folder / f"functions-{n}", n << 16, 512) for n in (1, 2)]
    guest = machines.get("patched", mem="1G", cpus=cpus)
    found = ran(guest, f"{workload('reread')} 4 {files[0]} {files[1]}")
    assert found == {"calls": 4096, "stale": 0}
