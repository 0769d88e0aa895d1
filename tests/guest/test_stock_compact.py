# SPDX-License-Identifier: GPL-2.0
"""The hook point compact on Debian's own kernel, where the module hooks functions by ftrace: which
compactions the policy decides about, and what the module counts.
"""

from __future__ import annotations

import pytest

from bench import compact
from lab.counting import counters
from lab.guest import Guest
from lab.programs import ran

from . import test_compact, test_stock_kernel
from .conftest import Machines
from .test_storm import small, storm_under_pressure
from .tools import must, vmstat

pytestmark = pytest.mark.flavor("cloud")
SECONDS = 40.0  # rough duration of each test, for the schedule

guest = test_stock_kernel.guest


def test_budget_stops_scanning(machines: Machines, stock: str) -> None:
    """In memory where compaction hardly succeeds, the kernel scans less than a third as many pages
    under `budget` as at stock. The module's counters agree with those of the kernel.
    """
    command = test_compact.CASES["hopeless"].command(1)
    scanned = {}
    for policy in "stock", "budget":
        machines.end()
        guest = machines.get(stock, mem="1152M", cpus=1, nodes=2)
        must(guest, "echo 0 >/proc/sys/vm/compaction_proactiveness; modprobe mmpolicy")
        must(guest, f"echo {policy} >{compact.POINT}/policy")
        found = compact.values_of(ran(guest, command, timeout=600))
        assert found["damaged"] == 0
        scanned[policy] = found["scanned"]
    counted = counters(guest, "compact")
    assert counted["skipped"] > 0 < counted["failure"]
    for kind in "migrate_scanned", "free_scanned":
        assert counted[kind] == found[kind]
    assert scanned["stock"] > 500_000
    # A rough limit, as the budget grows with time, which is real in this guest; test_compact.py has
    # the exact limit.
    assert scanned["budget"] < scanned["stock"] / 3
    machines.end()


def test_last_priority_is_never_held_back(machines: Machines, stock: str) -> None:
    """On Debian's kernel, no policy makes the kernel skip an attempt at the last priority of
    compaction.
    """
    test_compact.check_last_priority(machines, stock)


def test_others_are_not_asked(loaded: Guest) -> None:
    """Compaction that the administrator starts by /proc/sys/vm/compact_memory asks no policy: it
    works, and no counter of the hook point changes.
    """
    must(loaded, f"echo budget >{compact.POINT}/policy")
    before = vmstat(loaded, "compact_free_scanned")
    must(loaded, "echo 1 >/proc/sys/vm/compact_memory")
    assert vmstat(loaded, "compact_free_scanned") > before
    assert not any(counters(loaded, "compact").values())


@pytest.mark.parametrize(
    "rounds", [pytest.param(3, marks=pytest.mark.long), pytest.param(20, marks=pytest.mark.full)]
)
def test_load_switch_unload_while_others_compact(
    machines: Machines, stock: str, rounds: int
) -> None:
    """The module can be loaded, switched and unloaded while tasks compact inside a hooked function:
    unloading waits for them.
    """
    storm_under_pressure(small(machines, stock), rounds)
