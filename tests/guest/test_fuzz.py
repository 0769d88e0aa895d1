# SPDX-License-Identifier: GPL-2.0
"""After random writes by several processes at once, the files of the module have the values that a
model predicts.
"""

from __future__ import annotations

import secrets
from typing import Any

import pytest

from lab.guest import Guest

from .conftest import Machines
from .fuzz import fuzz

SECONDS = 20.0  # rough duration of each test, for the schedule


def clean(guest: Guest, seed: int, writes: int) -> dict[str, Any]:
    """Make random writes to the module's files, and check that no file differs from what the model
    predicts, and that the kernel's checkers report no bug. Return counts of the writes.
    """
    found = fuzz(guest, seed, writes)
    print(found)
    assert found["writes"] >= writes
    assert found["chaotic"] and found["resets"]
    assert 0 < found["refused"] < found["writes"]
    guest.check()
    guest.scan_leaks()
    return found


@pytest.mark.parametrize("seed", (1, None))
def test_fuzz(machines: Machines, seed: int | None) -> None:
    """After random writes, all files of the module have the values that a model predicts, with a
    fixed seed and with a new one.
    """
    guest = machines.get(mem="2G", cpus=2, swap="1G")
    clean(guest, secrets.randbits(32) if seed is None else seed, 4000)


@pytest.mark.parametrize(
    ("flavor", "writes"),
    [
        pytest.param("debug", 1500, marks=pytest.mark.flavor("debug")),
        pytest.param("cloud", 1500, marks=pytest.mark.flavor("cloud")),
        pytest.param("debug", 100_000, marks=[pytest.mark.flavor("debug"), pytest.mark.full]),
        pytest.param("kasan", 100_000, marks=[pytest.mark.flavor("kasan"), pytest.mark.full]),
        pytest.param("kcsan", 50_000, marks=[pytest.mark.flavor("kcsan"), pytest.mark.full]),
        pytest.param("patched", 1_000_000, marks=[pytest.mark.flavor("patched"), pytest.mark.full]),
        pytest.param("cloud", 1_000_000, marks=[pytest.mark.flavor("cloud"), pytest.mark.full]),
    ],
)
def test_fuzz_on(machines: Machines, flavor: str, writes: int) -> None:
    """After random writes, all files of the module have the values that a model predicts: on
    kernels with checkers, on kernels without hooks, and in long runs.
    """
    found = clean(machines.get(flavor, mem="2G", cpus=2), secrets.randbits(32), writes)
    assert writes < 100_000 or (found["expiries"] and found["loads"])
