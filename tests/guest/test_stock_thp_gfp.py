# SPDX-License-Identifier: GPL-2.0
"""The point thp_gfp on Debian's own kernel, by ftrace: with which flags, and what these do."""

from __future__ import annotations

import re

import pytest
import thp_gfp
from thp_gfp import MADVISED, pages
from vm import Guest

from . import test_stock_kernel, test_thp_gfp
from .conftest import Machines
from .test_thp_gfp import SETTINGS, SPARSE, for_large, reclaimed, switch, touched
from .tools import ROOT, THP, back_to_boot, must, ops_command

pytestmark = pytest.mark.flavor("cloud")
LONG = True

TRACING = "/sys/kernel/tracing"
PROBES = f"{TRACING}/events/kprobes"
guest = test_stock_kernel.guest


@pytest.fixture
def two_nodes(machines: Machines, stock: str) -> Guest:
    """Debian's kernel with two nodes, else as in test_thp_gfp."""
    guest = machines.get(stock, mem="800M", cpus=1, **thp_gfp.NEEDS)
    back_to_boot(guest)
    must(guest, f"{SETTINGS} modprobe mmpolicy")
    return guest


# What holds here too.
test_collapse_on_request = test_thp_gfp.test_collapse_on_request
test_khugepaged = test_thp_gfp.test_khugepaged
test_shmem = test_thp_gfp.test_shmem
enter, in_full_cgroup = test_thp_gfp.enter, test_thp_gfp.in_full_cgroup
test_reclaim_in_a_cgroup_is_counted = test_thp_gfp.test_reclaim_in_a_cgroup_is_counted

ASKED_WITH = "p:asked vma_alloc_folio_noprof gfp=%di:u32 order=%si:u32"
SIZES = f"echo always >{THP}/enabled; echo always >{THP}/hugepages-64kB/enabled"


def test_reclaim_for_huge_pages_is_counted(two_nodes: Guest) -> None:
    """That test_light_reclaims_nothing can fail."""
    switch(two_nodes, "relaxed")
    assert reclaimed(touched(two_nodes, SPARSE))
    assert for_large(two_nodes) > 0


def flags(guest: Guest, defrag: str, advice: int = -1) -> dict[int, set[int]]:
    """With which flags folios of each size are asked for in faults; MADV_HUGEPAGE is 14."""
    program = f"map 1024 madvise 0 1024 {advice}" if advice > 0 else "map 1024"
    must(guest, f"echo {defrag} >{THP}/defrag; echo '{ASKED_WITH}' >{TRACING}/kprobe_events")
    must(guest, f"echo 'order > 0' >{PROBES}/asked/filter; echo 1 >{PROBES}/enable")
    must(guest, f"echo >{TRACING}/trace; {ops_command(f'{program} touch 0 1024')}")
    must(guest, ops_command("map 200 touch 16 16"))
    text = must(guest, f"cat {TRACING}/trace")
    must(guest, f"echo 0 >{PROBES}/enable; echo >{TRACING}/kprobe_events")
    found: dict[int, set[int]] = {}
    for gfp, order in re.findall(r"gfp=(\d+) order=(\d+)", text):
        found.setdefault(int(order), set()).add(int(gfp))
    return found


def test_flags_are_those_of_defrag(loaded: Guest) -> None:
    """Bit for bit: light is as never, relaxed as always, whatever the host's setting is."""
    must(loaded, SIZES)
    never, always = flags(loaded, "never"), flags(loaded, "always")
    assert set(never) == set(always) == {4, 9}
    assert never != always
    for defrag in "always", "defer", "madvise", "never":
        switch(loaded, "light")
        assert flags(loaded, defrag) == never
        switch(loaded, "relaxed")
        assert flags(loaded, defrag) == always
    asking = flags(loaded, "never", MADVISED)
    switch(loaded, "stock")
    assert flags(loaded, "always", MADVISED)[9] == asking[9] != always[9]
    must(loaded, "echo a >/sys/kernel/mmpolicy/profiles/create")
    must(loaded, f"echo relaxed >{ROOT}/profiles/a/thp_gfp/policy")
    assert flags(loaded, "never") == never  # of a neighbour


def test_light_reclaims_nothing(two_nodes: Guest) -> None:
    """What is free above the watermarks is used, and no more than that."""
    switch(two_nodes, "light")
    found = touched(two_nodes, SPARSE)
    assert "pgscan_direct" not in reclaimed(found)
    assert pages(found, least=9) > 0
    assert for_large(two_nodes) == 0


@pytest.mark.parametrize("policy", ("stock", "relaxed", "light"))
def test_memory_policies_win(two_nodes: Guest, policy: str) -> None:
    """As in test_thp_gfp."""
    test_thp_gfp.test_memory_policies_win(two_nodes, policy)
