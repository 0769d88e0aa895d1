# SPDX-License-Identifier: GPL-2.0
"""Policies of the hook point compact in fragmented memory: how many pages the kernel scans, and how
many huge pages programs get.
"""

from __future__ import annotations

import re

import pytest

from bench import compact as bench
from bench.thp_gfp import MADVISED
from lab.counting import Results, counters
from lab.guest import Guest
from lab.programs import must, ran, workload

from .conftest import Machines
from .tools import THP, TRACING, back_to_boot

SECONDS = 20.0  # rough duration of each test, for the schedule
EVENTS = (
    "compaction/mm_compaction_try_to_compact_pages",
    "mmpolicy/mmpolicy_compact_try",
    "mmpolicy/mmpolicy_compact_done",
)
CASES = {case.name: case for case in bench.CASES}


# Compaction lowers its priority after failed attempts; at the last priority, the module asks no
# policy.
# Free memory of the second NUMA node is in holes of three pages between pinned pages, of which
# swappable pages fill some. Pages that are touched there get pinned, so reclaim frees no whole
# block. The order of 32 kB is not a costly one: the kernel retries at lower priorities, and finally
# calls the OOM killer.
SCATTERED = f"crumbs -10 1 4 hold 30 1 map 300 {MADVISED} mbind 2 2 touch_pinned"
SIZES = f"{THP}/hugepages"
SMALL_FOLIOS = f"echo never >{SIZES}-2048kB/enabled; echo madvise >{SIZES}-32kB/enabled"
# Knobs with which `budget` overdraws the budget of a zone for ever by one failed attempt.
SPENT = "scan_ahead_percent=1 scan_per_ms=0 forget_freed_percent=100"


def trace(guest: Guest, command: str) -> list[tuple[str, dict[str, str]]]:
    """Run a command in the guest, and record trace events; return the name and the fields of each
    event.
    """
    switch = "".join(f"echo {{0}} >{TRACING}/events/{event}/enable\n" for event in EVENTS)
    must(
        guest,
        f"echo 20000 >{TRACING}/buffer_size_kb; echo >{TRACING}/trace\n{switch.format(1)}",
    )
    must(guest, command)
    must(guest, switch.format(0))
    found = re.findall(r"\d: (mm\w+): (.*)", must(guest, f"cat {TRACING}/trace"))
    return [(name, dict(re.findall(r"(\w+)=(\S+)", text))) for name, text in found]


def asked(guest: Guest, command: str) -> dict[str, list[dict[str, str]]]:
    """Return the answers of the policy while a command runs: under "last" those at the last
    priority of compaction, under "earlier" those at priorities before it.
    """
    seen: dict[str, list[dict[str, str]]] = {"last": [], "earlier": []}
    when = "earlier"
    for name, said in trace(guest, command):
        if "priority" in said:
            when = "last" if said["priority"] == "0" else "earlier"
        else:
            seen[when].append({"event": name, **said})
    return seen


def check_last_priority(machines: Machines, *flavor: str) -> None:
    """Check that the module does not ask the policy at the last priority of compaction. The budget
    of the policy is overdrawn there, so it would refuse the attempt.

    If the kernel itself has deferred a zone, the policy is not asked at earlier priorities either,
    so a round may show nothing; on a busy host, three rounds may be too few.
    """
    machines.end()
    guest = machines.get(*flavor, mem="800M", cpus=1, nodes=2, swap="1G")
    back_to_boot(guest)
    must(guest, f"modprobe mmpolicy; {SMALL_FOLIOS}; {bench.policy('budget', SPENT)}")
    command = f"{workload('nodes')} {SCATTERED} || [ $? = 137 ]"
    earlier = list[dict[str, str]]()
    rounds = 0
    while rounds < 3 or (rounds < 9 and not any("answer" in event for event in earlier)):
        rounds += 1
        seen = asked(guest, command)
        assert any(int(event.get("migrate_scanned", 0)) for event in seen["last"])
        assert not any("answer" in event for event in seen["last"])
        earlier += seen["earlier"]
    assert any(event.get("answer") == "defer" for event in earlier)


def test_last_priority_is_never_held_back(machines: Machines) -> None:
    """On a kernel with the hooks, no policy makes the kernel skip an attempt at the last priority
    of compaction.
    """
    check_last_priority(machines)


def deferrals(machines: Machines, policy: str) -> int:
    """Return how often the kernel has deferred compaction of a zone, or extended the deferral, in
    memory where compaction hardly succeeds.
    """
    machines.end()
    guest = machines.get(mem=bench.MEM, cpus=1, nodes=bench.NODES)
    must(guest, "echo 0 >/proc/sys/vm/compaction_proactiveness")
    must(guest, f"modprobe mmpolicy compact={policy}")
    event = f"{TRACING}/events/compaction/mm_compaction_defer_compaction"
    must(guest, f"echo 20000 >{TRACING}/buffer_size_kb; echo 1 >{event}/enable")
    must(guest, f"{CASES['hopeless'].command(1)} >/dev/null; echo 0 >{event}/enable")
    return int(must(guest, f"grep -c mm_compaction_defer_compaction: {TRACING}/trace || true"))


def test_eager_does_not_defer_others(machines: Machines) -> None:
    """Under `eager`, a failed attempt to compact a zone defers the zone for others only if the
    kernel would have made this attempt at stock, too.
    """
    stock = deferrals(machines, "stock")
    assert stock > 5
    assert deferrals(machines, "eager") <= stock * 1.2


# Figures from new guests that count instructions


def compare(machines: Machines, name: str, arms: tuple[str, ...], seeds: int = 1) -> Results:
    """Return the figures of some arms in a case of the benchmark; each arm runs in a new guest."""
    machines.end()
    return bench.run([arm for arm in bench.ARMS if arm.name in arms], [CASES[name]], seeds)


def test_hopeless(machines: Machines) -> None:
    """In memory where compaction hardly succeeds, `budget` soon makes no more attempts, while
    `eager` goes on.
    """
    results = compare(machines, "hopeless", ("stock", *bench.POLICIES))
    assert results.value("stock", "hopeless", "scanned") > 1_000_000
    assert results.ratio("budget", "stock", "hopeless", "scanned") <= 0.1
    assert results.ratio("eager", "stock", "hopeless", "scanned") > 1.5
    for policy in bench.POLICIES:
        assert results.ratio(policy, "stock", "hopeless", "large") > 0.8
        assert results.value(policy, "hopeless", "damaged") == 0


def test_eager_does_not_wait(machines: Machines) -> None:
    """If a program requests all free memory as huge pages, it gets more of them under `eager` than
    at stock, where the kernel defers attempts.
    """
    results = compare(machines, "idle, short", ("stock", "eager"), seeds=2)
    assert results.ratio("eager", "stock", "idle, short", "large") >= 1.06


# The number of large folios differs by 2 % between guests, and by 3 % on a busy host, so the ratio
# of two means over 8 guests differs by 1 to 1.5 %.


@pytest.mark.full
@pytest.mark.parametrize("name", ["idle", "busy"])
def test_asked_for_too_much_in_full(machines: Machines, name: str) -> None:
    """If programs request more memory in large folios than is free, they get as many under both
    policies as at stock, and `budget` scans fewer pages.
    """
    results = compare(machines, name, ("stock", *bench.POLICIES), seeds=8)
    assert results.value("stock", name, "large") > 200
    assert results.ratio("budget", "stock", name, "scanned") <= 0.5
    for policy in bench.POLICIES:
        assert results.ratio(policy, "stock", name, "large") >= 0.96


@pytest.mark.full
@pytest.mark.parametrize("name", ["idle, short", "busy, short"])
def test_asked_for_what_is_free_in_full(machines: Machines, name: str) -> None:
    """If programs request all free memory in large folios, they get more under `eager` than at
    stock, and as many under `budget` as at stock.
    """
    results = compare(machines, name, ("stock", *bench.POLICIES), seeds=8)
    assert results.ratio("budget", "stock", name, "large") >= 0.96
    assert results.ratio("eager", "stock", name, "large") >= 1.06


# Switching

SWITCHES = """
while [ ! -e /run/stop ]; do
	for policy in budget eager stock budget stock eager; do
		echo $policy >{point}/policy || exit
		echo $((RANDOM % 100 + 1)) >{point}/budget/scan_ahead_percent || exit
		sleep 0.0$((RANDOM % 10))
	done
done
"""


@pytest.mark.full
@pytest.mark.flavor("debug")
def test_switching_under_load(machines: Machines) -> None:
    """If the policy of compact changes again and again while four processes fault, free and
    compact, all data stays intact, and the kernel's checkers report no bug.
    """
    guest = machines.get("debug", mem="1G", cpus=2, nodes=2, swap="1G")
    must(guest, "modprobe mmpolicy")
    switching = guest.start(f"rm -f /run/stop; {SWITCHES.format(point=bench.POINT)}")
    found = ran(guest, f"{workload('highalloc')} 700 50 70 9 200 1 3 1", timeout=1800)
    must(guest, "touch /run/stop")
    assert switching.wait().rc == 0
    assert found["damaged"] == 0
    assert counters(guest, "compact")["attempts"] > 10
    guest.check()
