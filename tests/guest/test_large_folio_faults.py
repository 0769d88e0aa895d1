# SPDX-License-Identifier: GPL-2.0
"""The optional patches in large-folio-faults/: a write to memory that is mapped already, such as
after fork(), gets a large folio.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from lab.counting import counting_guest
from lab.guest import Guest
from lab.programs import ran, workload

from .conftest import Machines
from .tools import POINT, counters, folios, must, switch, touch

pytestmark = [pytest.mark.flavor("large"), pytest.mark.full]

SECONDS = 20.0  # rough duration of each test, for the schedule
MIB = 64
PAGES = MIB * 256
MADV_DONTNEED = 4
MADV_FREE = 8
POPULATE_READ = 22
RANGES = 1000
# Cases of the workload rewrite, each with its number of rounds.
CASES = {"parent": 3, "child": 3, "sparse": 21, "read": 3, "few": 5, "fresh": 3}
LARGE = ("fixed-4", "vma_size-4", "adaptive-4", "fixed-8")
ARMS: dict[str, tuple[str, dict[str, int]]] = {
    "never": ("never", {}),
    "fixed-2": ("fixed", {"max_order": 2}),
    "fixed-4": ("fixed", {"max_order": 4}),
    "fixed-8": ("fixed", {"max_order": 8}),
    "vma_size-4": ("vma_size", {"max_order": 4}),
    "adaptive-4": ("adaptive", {"max_order": 4}),
}
Found = dict[str, dict[str, dict[str, Any]]]


def rewrite(guest: Guest, case: str) -> dict[str, Any]:
    """Run a case of the workload rewrite, and return its cost. The workload fails if data
    is wrong.
    """
    return ran(guest, f"{workload('rewrite')} {case} {MIB} {CASES[case]}")


def larger(guest: Guest, case: str) -> dict[str, Any]:
    """Run a case twice; return the run with more ticks, as some cases take 1.2 % less in
    some runs.
    """
    return max((rewrite(guest, case) for _ in range(2)), key=lambda run: run["ticks"])


@pytest.fixture(scope="module")
def found(all_machines: Machines) -> Found:
    """Return the cost of each case in each arm, all measured in one guest. In the arm "stock", no
    module is loaded.
    """
    all_machines.end()
    with counting_guest("large", "2G") as guest:
        # This run fills the free lists of the CPUs, so that later runs find them all alike.
        rewrite(guest, "fresh")
        found = {"stock": {case: larger(guest, case) for case in CASES}}
        must(guest, "modprobe mmpolicy")
        for arm, (policy, knobs) in ARMS.items():
            switch(guest, policy, **knobs)
            found[arm] = {case: larger(guest, case) for case in CASES}
        must(guest, f"echo 8 >{POINT}/max_copy_order")
        switch(guest, "fixed", max_order=8)
        found["copy-8"] = {"read": larger(guest, "read")}
    return found


@pytest.mark.parametrize("arm", ARMS)
def test_parent_keeps_its_folios(found: Found, arm: str) -> None:
    """After fork() and the exit of the child, the parent writes to its memory at no more cost under
    any policy than with single pages.
    """
    stock, taken = (found[name]["parent"]["ticks"] for name in ("stock", arm))
    assert taken <= 1.02 * stock, f"{taken / stock:.3f}"


@pytest.mark.parametrize("arm", LARGE)
def test_parent_takes_a_fault_for_each_folio(found: Found, arm: str) -> None:
    """After fork(), the first write of the parent to a folio makes all page-table entries of the
    folio writable, so that the parent takes one fault for each folio.
    """
    stock, taken = (found[name]["parent"] for name in ("stock", arm))
    assert taken["faults"] <= PAGES / 8
    assert taken["ticks"] <= 0.4 * stock["ticks"], f"{taken['ticks'] / stock['ticks']:.3f}"


@pytest.mark.parametrize("case", ["child", "read"])
@pytest.mark.parametrize("arm", LARGE)
def test_blocks_are_copied(found: Found, arm: str, case: str) -> None:
    """If a child writes to all of its memory, or a program reads before it writes, each fault
    copies 64 kB by default.
    """
    stock, taken = (found[name][case] for name in ("stock", arm))
    assert PAGES / 16 <= taken["faults"] <= PAGES / 8
    assert taken["ticks"] <= 0.5 * stock["ticks"], f"{taken['ticks'] / stock['ticks']:.3f}"
    assert taken["kb"] <= 1.01 * stock["kb"]


def test_a_read_before_costs_little(found: Found) -> None:
    """If max_copy_order does not limit the copy, a write to memory that was only read before costs
    little more than a write to memory that was not touched.
    """
    best = min(found[arm]["fresh"]["ticks"] for arm in ARMS if arm.startswith("fixed"))
    taken = found["copy-8"]["read"]["ticks"]
    assert taken <= 1.15 * best, f"{taken / best:.3f}"


@pytest.mark.parametrize("case", ["sparse", "few"])
def test_adaptive_copies_what_is_written(found: Found, case: str) -> None:
    """`adaptive` notices that a program writes to no block completely, and lets each fault copy a
    single page.
    """
    stock, taken = (found[name][case] for name in ("stock", "adaptive-4"))
    for key in ("ticks", "kb"):
        assert taken[key] <= 1.05 * stock[key], f"{key}: {taken[key] / stock[key]:.3f}"


def test_a_read_gets_memory(machines: Machines) -> None:
    """With memory_on_read=1, a read fault allocates memory instead of mapping the zero page, so
    that a later write takes no fault.
    """
    guest = machines.get("large", mem="2G", cpus=2, swap="1G")
    must(guest, "modprobe mmpolicy")
    switch(guest, "fixed", max_order=4)
    for wanted in (0, 1):
        must(guest, f"echo {wanted} >{POINT}/memory_on_read")
        taken = rewrite(guest, "read")
        assert (taken["faults"] < 32) == wanted, taken
    # memory_on_read is 1 here, too, but the kernel reads on behalf of the program, and such a read
    # maps the zero page.
    (shown,) = folios(guest, f"map 1024 madvise 0 1024 {POPULATE_READ} folios 0 1024")
    assert 4 not in shown


def test_a_knob_caps_what_is_copied(machines: Machines) -> None:
    """The knob max_copy_order limits the size that a fault copies, even below the order of the
    policy: 0 means single pages, and 6 (256 kB) is above the default.
    """
    guest = machines.get("large", mem="2G", cpus=2, swap="1G")
    must(guest, "modprobe mmpolicy")
    switch(guest, "fixed", max_order=8)
    for order in (0, 2, 6):
        must(guest, f"echo {order} >{POINT}/max_copy_order")
        assert 1 <= rewrite(guest, "child")["faults"] / (PAGES >> order) < 1.2


@pytest.mark.flavor("patched")
def test_stock_costs_nothing(found: Found, all_machines: Machines) -> None:
    """With all policies at stock, forks and faults cost as much on the kernel with the patches for
    large folios as on a kernel without them.
    """
    all_machines.end()
    with counting_guest("patched", "2G") as guest:
        rewrite(guest, "fresh")
        for case in ("parent", "child", "read", "fresh"):
            taken, without = found["stock"][case]["ticks"], larger(guest, case)["ticks"]
            assert taken <= 1.003 * without, f"{case}: {taken / without:.4f}"


def test_a_small_rest_is_given_back(machines: Machines) -> None:
    """If a folio was partly unmapped, a write after fork() reuses it only if at least half of it is
    still mapped. Else its pages are copied, and the folio is freed.
    """
    guest = machines.get("large", mem="2G", cpus=2, swap="1G")
    must(guest, "modprobe mmpolicy")
    switch(guest, "fixed", max_order=4)
    for gone, kept in ((6, True), (10, False)):
        words = f"map 16 touch 0 16 madvise 0 {gone} {MADV_DONTNEED} fork touch {gone} 16 verify"
        (pages,) = folios(guest, f"{words} folios {gone} 16")
        assert (0 not in pages) == kept, pages


@pytest.mark.parametrize("advice", [MADV_DONTNEED, MADV_FREE])
def test_many_ranges_are_freed_with_one_flush(machines: Machines, advice: int) -> None:
    """If one call frees 1,000 ranges of memory, each CPU with a thread of the program flushes its
    TLB only once.
    """
    guest = machines.get("large", mem="1G", cpus=4)
    result = ran(guest, f"{workload('vector')} {advice}")
    assert result["cpus"] == 4
    for way in ("each", "all"):
        gone, kept = ("lazy", "freed") if advice == MADV_FREE else ("freed", "lazy")
        assert result[way][gone] >= RANGES - 64  # each CPU marks pages as lazy in batches of 31
        assert result[way][kept] == 0
    assert result["each"]["flushed"] >= RANGES
    assert result["all"]["flushed"] <= 12  # it is three if the guest is otherwise idle


# Redis

REDIS = "redis-server --port 0 --save '' --dir /run --unixsocket /run/redis.sock"
GROUP = "/sys/fs/cgroup/redis"
SNAPSHOTS = Path(__file__).with_name("snapshots.py")
WRITES = 200_000


@pytest.fixture(scope="module")
def redis(all_machines: Machines) -> dict[str, dict[str, Any]]:
    """Return the cost of redis while it gets writes and saves snapshots; each arm is measured in a
    guest of its own.
    """
    all_machines.end()
    found = {}
    for arm in ("stock", "fixed-4", "adaptive-4"):
        with counting_guest("large", "2G") as guest:
            if arm in ARMS:
                policy, knobs = ARMS[arm]
                must(guest, "modprobe mmpolicy")
                switch(guest, policy, **knobs)
            must(guest, f"mkdir {GROUP}; echo +memory >{GROUP}/../cgroup.subtree_control")
            start = f"echo $$ >{GROUP}/cgroup.procs; exec {REDIS}"
            job = guest.start(f"sh -c {shlex.quote(start)}")
            must(guest, "until [ -S /run/redis.sock ]; do sleep 0.1; done")
            command = f"/usr/bin/python3 -I {SNAPSHOTS} /run/redis.sock {GROUP} {WRITES}"
            found[arm] = ran(guest, command)
            job.stop()
    return found


@pytest.mark.parametrize("arm", ["fixed-4", "adaptive-4"])
def test_snapshots_of_redis_cost_no_more(redis: dict[str, dict[str, Any]], arm: str) -> None:
    """Under each policy, redis and the children that save its snapshots take no more instructions
    than at stock.
    """
    stock, taken = redis["stock"], redis[arm]
    assert stock["saved"] == taken["saved"] == 4
    assert taken["usec"] <= stock["usec"], f"{taken['usec'] / stock['usec']:.4f}"


def test_snapshots_of_redis_take_no_more_memory(redis: dict[str, dict[str, Any]]) -> None:
    """Under `adaptive`, redis takes no more additional memory for its snapshots than at stock."""
    stock, taken = (redis[arm]["kb"] - redis[arm]["filled_kb"] for arm in ("stock", "adaptive-4"))
    assert taken <= 1.005 * stock, f"{taken / stock:.4f}"


# Fragmented memory


@pytest.fixture(scope="module")
def crumbled(all_machines: Machines) -> dict[str, dict[str, Any]]:
    """Return the cost of two access patterns in each arm, measured in a guest that has no free
    blocks of four pages.
    """
    all_machines.end()
    with counting_guest("large", "512M") as guest:
        must(guest, "modprobe mmpolicy; echo 0 >/proc/sys/vm/compaction_proactiveness")
        must(guest, "echo 1024 >/proc/sys/vm/min_free_kbytes")
        switch(guest, "fixed", max_order=4)
        job = guest.start(f"{workload('crumble')} >/run/crumbled")
        wait = "until [ -s /run/crumbled ]; do sleep 0.1; done; cat /run/crumbled"
        free = json.loads(must(guest, wait))
        assert free["free_kb"] > 3 * MIB * 1024
        # nearly no memory is in free blocks of four pages: the patterns touch 64 MB
        assert free["blocks_kb"] < 1024
        found: dict[str, dict[str, Any]] = {}
        for arm in ("never", "fixed-4", "adaptive-4"):
            policy, knobs = ARMS[arm]
            switch(guest, policy, **knobs)
            before = counters(guest)["singles"]
            found[arm] = {name: touch(guest, name, MIB, 3) for name in ("forward", "every_64k")}
            found[arm]["singles"] = counters(guest)["singles"] - before
        job.stop()
    return found


@pytest.mark.parametrize("arm", ["fixed-4", "adaptive-4"])
def test_single_pages_save_faults(crumbled: dict[str, dict[str, Any]], arm: str) -> None:
    """If no block of four pages is free, a fault maps sixteen single pages at once. So a program
    takes fewer faults, and no more memory.
    """
    small, taken = (crumbled[name]["forward"] for name in ("never", arm))
    assert small["faults"] >= PAGES
    assert taken["faults"] <= PAGES / 14
    assert taken["ticks"] <= 0.65 * small["ticks"], f"{taken['ticks'] / small['ticks']:.3f}"
    assert taken["kb"] <= 1.01 * small["kb"]
    assert crumbled[arm]["singles"] > PAGES / 16


def test_sparse_use_takes_no_more_pages(crumbled: dict[str, dict[str, Any]]) -> None:
    """If `adaptive` decides that a fault gets a single page, the fault maps no further pages."""
    small, taken = (crumbled[name]["every_64k"] for name in ("never", "adaptive-4"))
    assert crumbled["never"]["singles"] == 0
    for key in ("ticks", "kb"):
        assert taken[key] <= 1.05 * small[key], f"{key}: {taken[key] / small[key]:.3f}"


# Safety

DISK = """
disk=zram$(cat /sys/class/zram-control/hot_add) &&
echo 8M >/sys/block/$disk/disksize &&
echo 1 >/sys/kernel/mm/ksm/run &&
echo /dev/$disk
"""
POLICIES = ("adaptive", "fixed")

# Commands that let one allocation of a large folio in three fail, if the kernel supports this.
# Allocations that may wait fail, too, such as memory for a stack.
FAIL_LARGE = """
cd /sys/kernel/debug/fail_page_alloc 2>/run/said || exit 0
echo N >ignore-gfp-highmem
echo Y >ignore-gfp-wait
echo 2 >min-order
echo 0 >verbose
echo 33 >probability
echo -1 >times
"""


def scramble(guest: Guest, disk: str, seed: int, operations: int) -> None:
    """Run the workload scramble on this disk, which fails if a byte of its memory is wrong."""
    command = f"{workload('scramble')} {seed} {operations} {disk}"
    result = ran(guest, command, timeout=operations / 2 + 600)
    assert result["operations"] >= operations
    assert result["pins"] > 0


@pytest.mark.parametrize(
    ("flavor", "operations"),
    [
        pytest.param("large", 10_000, marks=pytest.mark.flavor("large")),
        pytest.param("large-kasan", 20_000, marks=pytest.mark.flavor("large-kasan")),
    ],
)
def test_no_byte_is_lost(machines: Machines, flavor: str, operations: int) -> None:
    """After random forks, writes, reads, madvise(), mremap(), pins, swap and userfaultfd, no byte
    of a program's memory is wrong.
    """
    guest = machines.get(flavor, mem="2G", cpus=2, swap="1G")
    disk = must(guest, DISK).strip()
    must(guest, "modprobe mmpolicy")
    for seed, policy in enumerate(POLICIES):
        switch(guest, policy, max_order=4 + seed)
        before = counters(guest)["reuse"]
        must(guest, f"echo {seed} >{POINT}/memory_on_read; {FAIL_LARGE}")
        scramble(guest, disk, seed, operations // len(POLICIES))
        assert counters(guest)["reuse"] > before + operations / 500
