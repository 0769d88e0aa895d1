# SPDX-License-Identifier: GPL-2.0
"""Threads fault while, round after round, the module is loaded, switches all policies, and is
unloaded.
"""

from __future__ import annotations

import pytest

from bench import bulk
from bench.thp_gfp import ALWAYS
from lab.guest import Guest, Splat
from lab.programs import ran, workload

from .conftest import Machines
from .tools import checkers, must

SECONDS = 20.0  # rough duration of each test, for the schedule
AT_ONCE = 4
TRIES = 4
PLACE = "/run"  # a tmpfs, as reads of the host's files are slow in a guest whose clock jumps
PRESSED = ("pswpout", "pgscan_direct", "compact_stall")


def storm(
    guest: Guest, rounds: int, processes: int, threads: int, hog_mib: int, *more: str
) -> dict[str, int]:
    """Run the workload storm for some rounds, in which processes fault while policies change: no
    page may get data of another process, and the kernel's checkers must report no bug. Return for
    each event in how many rounds it occurred.
    """
    must(guest, f"cp {workload('storm')} $(modinfo -n mmpolicy) {PLACE} && {ALWAYS}")
    words = [f"{PLACE}/mmpolicy.ko", rounds, processes, threads, hog_mib, *more]
    command = " ".join(map(str, [f"exec {PLACE}/{workload('storm').name}", *words]))
    found = ran(guest, command, max(1500, 40 * rounds))
    assert found["rounds"] == rounds
    assert found["status"] == found["mismatches"] == 0
    assert found["touched"] > 10_000 * AT_ONCE
    assert 0 < found["refused"] < found["writes"]
    guest.check()
    guest.scan_leaks()
    seen: dict[str, int] = found["seen"]
    return seen


@checkers("rounds", 60, 200, kasan=20, kcsan=100)
def test_storm(machines: Machines, flavor: str, rounds: int) -> None:
    """In a storm of faults by the threads of one process, with enough memory, no page has wrong
    data.
    """
    storm(machines.get(flavor, mem="2G", cpus=2), rounds, 1, AT_ONCE, hog_mib=0)


def small(machines: Machines, flavor: str, **needs: str) -> Guest:
    """Return a guest with two NUMA nodes, which has less memory than a storm uses."""
    return machines.get(flavor, mem="640M", cpus=2, nodes=2, swap="1G", **needs)


def storm_under_pressure(guest: Guest, rounds: int, *more: str) -> dict[str, int]:
    """Run a storm of processes on two NUMA nodes with too little memory, so that the kernel swaps,
    compacts and reclaims. Return for each event in how many rounds it occurred.

    If a storm is short, kswapd may keep up, so that no process reclaims: then repeat it.
    """
    free = int(must(guest, "sed -n 's/^MemAvailable: *\\([0-9]*\\) kB/\\1/p' /proc/meminfo"))
    seen: dict[str, int] = {}
    for _ in range(TRIES):
        seen = storm(guest, rounds, AT_ONCE, 1, free // 1024, *more)
        if all(seen[key] for key in PRESSED):
            break
    assert all(seen[key] for key in PRESSED), seen
    return seen


@checkers("rounds", 5, kasan=6, kcsan=6)
def test_storm_under_pressure(machines: Machines, flavor: str, rounds: int) -> None:
    """In a storm under memory pressure, no page has wrong data, on kernels with checkers."""
    storm_under_pressure(small(machines, flavor), rounds)


@pytest.mark.full
@pytest.mark.flavor("kcsan")
def test_planted_race(machines: Machines) -> None:
    """KCSAN reports a data race that the test plants between two threads. If it did not, silence of
    KCSAN in the storms would prove little.
    """
    guest = machines.get("kcsan", mem="2G", cpus=2)
    must(guest, "modprobe mmpolicy_race; sleep 20; rmmod mmpolicy_race")
    with pytest.raises(Splat, match=r"KCSAN: data-race in race_count \[mmpolicy_race\]"):
        guest.check()


@pytest.mark.full
@pytest.mark.config("PAGE_POOL_STATS")
def test_a_thousand_loads(machines: Machines) -> None:
    """The module can be loaded and unloaded a thousand times without a bug while page pools refill
    and processes fault, free, swap, compact and reclaim.
    """
    guest = small(machines, "patched")
    must(guest, f"modprobe mmpolicy_page_pool && {bulk.parameters('single=0 rounds=20')}")
    refill = f"cat {bulk.RUN} || exit; sleep 0.2"
    refills = guest.start(f"touch /run/go; while [ -e /run/go ]; do {refill}; done")
    for _ in range(8):
        storm_under_pressure(guest, 125)
    must(guest, "rm /run/go")
    assert refills.wait(300).rc == 0
    must(guest, "rmmod mmpolicy_page_pool")
