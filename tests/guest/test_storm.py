# SPDX-License-Identifier: GPL-2.0
"""Faulting threads while the module comes, switches everything, and goes, again and again."""

from __future__ import annotations

import pytest
from common import ran, workload

from .conftest import Machines
from .tools import must

LONG = True
THREADS = 4


@pytest.mark.parametrize(
    ("flavor", "rounds"),
    [
        pytest.param("debug", 200, marks=pytest.mark.flavor("debug")),
        pytest.param("kasan", 20, marks=pytest.mark.flavor("kasan")),
    ],
)
def test_storm(machines: Machines, flavor: str, rounds: int) -> None:
    """No page holds what nobody wrote, and the kernel's checkers see nothing.

    The debug kernel has lockdep, PROVE_RCU and DEBUG_ATOMIC_SLEEP, the other
    one also KASAN and kmemleak. The tests' end looks at the kernel log.
    """
    guest = machines.get(flavor, mem="2G", cpus=2)
    module = must(guest, "modinfo -n mmpolicy").strip()
    found = ran(guest, f"{workload('storm')} {module} {rounds} {THREADS}", timeout=1500)
    assert found["rounds"] == rounds
    assert found["status"] == found["mismatches"] == 0
    assert found["touched"] > 10_000 * THREADS
    assert 0 < found["refused"] < found["writes"]
    guest.check()
    guest.scan_leaks()
