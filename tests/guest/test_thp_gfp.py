# SPDX-License-Identifier: GPL-2.0
"""The policies of thp_gfp, on two NUMA nodes: where memory comes from, and what it costs others."""

from __future__ import annotations

import pytest
import thp_gfp as bench
from common import Results, counters, must, ran, workload
from thp_gfp import MADVISED, NEEDS, NO_HUGE, POLICIES, SMALL_SIZES, pages
from vm import Guest

from .conftest import Machines

COMPACT_ONLY = ("only_compact", "only_compact_any")
CGROUP = "/sys/fs/cgroup/thp_gfp"
MPOL_BIND, MPOL_INTERLEAVE = 2, 3
REMOTE = 1  # the CPU is on node 0

# Little is left on either node, the rest could be swapped out; one page in 2 MiB is touched.
SPARSE = f"hold -40 0 hold -30 1 map 100 {MADVISED} touch 512"
# Free memory is in holes of three pages between pinned ones, but for the reserves.
CRUMBS = f"crumbs -10 0 4 crumbs -10 1 4 map 100 {MADVISED} touch 1"


@pytest.fixture
def two_nodes(machines: Machines) -> Guest:
    """Two nodes of 320 MiB, one CPU, swap; the module is loaded, all stock.

    No CPU keeps more than a few free pages for itself, so that what is left is known,
    and nobody compacts unasked.
    """
    guest = machines.get(mem="640M", cpus=1, **NEEDS)
    must(guest, "echo 1000 >/proc/sys/vm/percpu_pagelist_high_fraction")
    must(guest, "echo 0 >/proc/sys/vm/compaction_proactiveness; modprobe mmpolicy")
    return guest


def switch(guest: Guest, policy: str) -> None:
    """Switch the point."""
    must(guest, f"echo {policy} >/sys/kernel/mmpolicy/profiles/default/{bench.POINT}/policy")


def touched(guest: Guest, words: str, before: str = ":") -> dict[str, int]:
    """Run nodes; each page holds what was written."""
    command = f"echo 3 >/proc/sys/vm/drop_caches && {before} && exec {workload('nodes')} {words}"
    found = ran(guest, f"sh -c '{command}'")
    assert found["mismatches"] == 0
    return found


def reclaimed(found: dict[str, int]) -> dict[str, int]:
    """All that says of memory taken from others: nothing, if it is empty."""
    starts = ("pgscan_", "pgsteal_", "pswpout", "allocstall", "oom_kill")
    return {key: n for key, n in found.items() if key.startswith(starts)}


def for_large(guest: Guest) -> int:
    """How often large folios caused reclaim, as the module counted."""
    return sum(n for key, n in counters(guest, bench.POINT).items() if key.endswith("_large"))


# Nothing is reclaimed for a large folio


@pytest.mark.parametrize("policy", (*COMPACT_ONLY, "light"))
def test_no_reclaim_for_huge_pages(two_nodes: Guest, policy: str) -> None:
    """Not by tasks, not by kswapd; what is free above the watermarks is used."""
    switch(two_nodes, policy)
    found = touched(two_nodes, SPARSE)
    assert reclaimed(found) == {}
    assert pages(found, least=9) > 0
    assert for_large(two_nodes) == 0
    counted = counters(two_nodes, bench.POINT)
    got = counted["local_order_9"] + counted["remote_order_9"]
    assert got * 512 == pages(found, least=9)
    assert counted["attempts"] == got + counted["failed_order_9"] == 50
    assert sum(n for key, n in counted.items() if "stall_ns_log2" in key) == 50
    assert (counted["remote_order_9"] > 0) == (policy == "only_compact_any")


def test_reclaim_for_huge_pages_is_counted(two_nodes: Guest) -> None:
    """The same load with a policy that reclaims: that the test above can fail."""
    switch(two_nodes, "relaxed")
    found = touched(two_nodes, SPARSE)
    assert reclaimed(found)["pswpout"] > 1000
    assert pages(found, least=9) == 25600
    assert for_large(two_nodes) > 0


@pytest.mark.parametrize("policy", COMPACT_ONLY)
def test_no_reclaim_for_small_sizes(two_nodes: Guest, policy: str) -> None:
    """Orders 2 to 4 where there are single pages alone: base pages, and nobody is killed."""
    must(two_nodes, SMALL_SIZES)
    switch(two_nodes, policy)
    found = touched(two_nodes, CRUMBS)
    assert reclaimed(found) == {}
    assert pages(found) == 25600
    assert for_large(two_nodes) == 0
    counted = counters(two_nodes, bench.POINT)
    assert counted["failed_order_2"] > 100
    assert counted["local_order_9"] == counted["failed_order_9"] == 0


@pytest.mark.parametrize("policy", COMPACT_ONLY)
def test_small_sizes_are_had(two_nodes: Guest, policy: str) -> None:
    """Where there is room, all is in folios of the largest size, of the local node."""
    must(two_nodes, SMALL_SIZES)
    switch(two_nodes, policy)
    found = touched(two_nodes, f"map 16 {MADVISED} touch 1")
    assert pages(found, 0, least=4) == pages(found) == 4096


# Cgroups


@pytest.mark.parametrize("policy", COMPACT_ONLY)
def test_cgroup_at_its_limit(two_nodes: Guest, policy: str) -> None:
    """Its page cache and its memory stay, as base pages are enough."""
    must(two_nodes, f"echo +memory >/sys/fs/cgroup/cgroup.subtree_control; mkdir -p {CGROUP}")
    must(two_nodes, f"echo 100M >{CGROUP}/memory.max")
    must(two_nodes, "[ -e /dev/zram1 ] || cat /sys/class/zram-control/hot_add >/run/zram")
    must(two_nodes, "echo 1G >/sys/block/zram1/disksize")
    words = f"hold 30 0 cache 60 0 /dev/zram1 map 100 {MADVISED} touch 512"
    enter = f"echo $$ >{CGROUP}/cgroup.procs"
    try:
        switch(two_nodes, policy)
        found = touched(two_nodes, words, enter)
        assert found["thp_fault_fallback_charge"] > 0
        assert pages(found, least=9) < 10240
        assert reclaimed(found) == {}
        assert for_large(two_nodes) == 0
        switch(two_nodes, "relaxed")
        found = touched(two_nodes, words, enter)
        assert found["pgscan_file"] + found["pgscan_anon"] > 10000
        assert counters(two_nodes, bench.POINT)["memcg_reclaim_large"] > 0
    finally:
        must(two_nodes, f"echo 1 >/sys/block/zram1/reset; rmdir {CGROUP}")


# NUMA policies of the application


@pytest.mark.parametrize("policy", ("stock", *POLICIES))
def test_memory_policies_win(two_nodes: Guest, policy: str) -> None:
    """What is bound to the other node is there, in huge pages; interleaving alternates."""
    switch(two_nodes, policy)
    for words in (f"mbind {MPOL_BIND} 2", f"set_mempolicy {MPOL_BIND} 2"):
        found = touched(two_nodes, f"map 64 {MADVISED} {words} touch 1")
        assert pages(found, REMOTE, least=9) == pages(found) == 16384
    words = f"map 64 {MADVISED} mbind {MPOL_INTERLEAVE} 3 touch 1"
    found = touched(two_nodes, words)
    assert pages(found, 0, least=9) == pages(found, REMOTE, least=9) == 8192


@pytest.mark.parametrize("policy", ("stock", *COMPACT_ONLY, "light"))
def test_full_node_that_is_bound_to(two_nodes: Guest, policy: str) -> None:
    """Base pages of that node then, none of the other one."""
    switch(two_nodes, policy)
    words = f"crumbs -10 1 4 map 100 {MADVISED} mbind {MPOL_BIND} 2 touch 1"
    found = touched(two_nodes, words)
    assert pages(found, REMOTE) == pages(found) == 25600


@pytest.mark.parametrize("policy", POLICIES)
def test_areas_without_huge_pages(two_nodes: Guest, policy: str) -> None:
    """MADV_NOHUGEPAGE stays what it is."""
    switch(two_nodes, policy)
    assert pages(touched(two_nodes, f"map 16 {NO_HUGE} touch 1"), least=1) == 0


# What it costs: fresh guests that count instructions


def ratio(results: Results, case: bench.Case, arm: str, base: str) -> float:
    """Instructions, as a multiple of another arm's."""
    return results.ratio(arm, base, case.name, "ticks")


@pytest.fixture(scope="module")
def pinned(all_machines: Machines) -> Results:
    """More is mapped than a small node full of pinned memory has left."""
    all_machines.end()
    return bench.run([bench.SMALL_PINNED])


def test_pinned_node(pinned: Results) -> None:
    """Local alone: far below legacy. Any node: as stock, at the cost of being asked."""
    case = bench.SMALL_PINNED
    assert ratio(pinned, case, "only_compact", "legacy") <= 0.1
    assert ratio(pinned, case, "only_compact_any", "stock") <= 1.002
    for policy in COMPACT_ONLY:
        assert pinned.value(policy, case.name, "scanned by tasks") == 0
        assert pinned.value(policy, case.name, "scanned by kswapd") == 0
        assert pinned.value(policy, case.name, "swapped out") == 0
    assert pinned.value("only_compact_any", case.name, "huge") == 1.0


@pytest.mark.full
@pytest.mark.parametrize("case", bench.PINNED, ids=lambda case: str(case.name))
def test_pinned_nodes_in_full(all_machines: Machines, case: bench.Case) -> None:
    """The same on larger nodes, with MADV_HUGEPAGE and with defrag=always."""
    all_machines.end()
    arms = ("off", "stock", "legacy", *COMPACT_ONLY)
    results = bench.run([case], arms)
    assert ratio(results, case, "only_compact", "legacy") <= 0.1
    assert ratio(results, case, "only_compact_any", "stock") <= 1.002
    assert results.value("only_compact_any", case.name, "huge") >= 0.95
    for arm in ("off", *COMPACT_ONLY):
        assert results.value(arm, case.name, "swapped out") == 0
    local = results.value("only_compact", case.name, "local")
    assert local / (local + results.value("only_compact", case.name, "left")) >= 0.99


@pytest.mark.full
@pytest.mark.parametrize("policy", COMPACT_ONLY)
def test_overload_in_full(all_machines: Machines, policy: str) -> None:
    """Where base pages have to reclaim anyway, large folios add nothing to it."""
    all_machines.end()
    results = bench.run([bench.TOO_MUCH], ("off", policy))
    off, ours = (
        sum(
            results.value(arm, bench.TOO_MUCH.name, f"scanned by {who}")
            for who in ("tasks", "kswapd")
        )
        for arm in ("off", policy)
    )
    assert off > 100_000
    assert ours <= 1.1 * off  # kswapd stops at one place or the other
    swapped = [results.value(arm, bench.TOO_MUCH.name, "swapped out") for arm in ("off", policy)]
    assert swapped[1] <= 1.05 * swapped[0]
    for kind in ("reclaim", "memcg_reclaim", "kswapd"):
        assert results.value(policy, bench.TOO_MUCH.name, f"{kind}_large") == 0
