# SPDX-License-Identifier: GPL-2.0
"""The hook point thp_gfp on Debian's own kernel, where the module hooks functions by ftrace: the
gfp flags of faults under each policy, and the effect of these flags.
"""

from __future__ import annotations

import re

import pytest

from bench import thp_gfp as bench
from bench.thp_gfp import MADVISED
from lab.guest import ONE_KERNEL, Guest

from . import test_stock_kernel, test_thp_gfp
from .conftest import Machines
from .test_thp_gfp import (
    COMPACT_ONLY,
    SPARSE,
    any_to_stock,
    check_had,
    for_large,
    reclaimed,
    switch,
    touched,
)
from .tools import ROOT, THP, TRACING, must, ops_command

pytestmark = pytest.mark.flavor("cloud")
SECONDS = 20.0  # rough duration of each test, for the schedule

PROBES = f"{TRACING}/events/kprobes"
guest = test_stock_kernel.guest
two_nodes, enter = test_thp_gfp.two_nodes, test_thp_gfp.enter
in_full_cgroup = test_thp_gfp.in_full_cgroup


@pytest.fixture
def kernel(stock: str) -> str:
    """Return the name of the kernel on which the imported tests run: one of Debian's own."""
    return stock


# Imported tests that do not run here: they need the hooks, or guests of their own.
NOT_HERE = {
    "test_missing_callback_is_refused",
    "test_slot_of_another_is_left_alone",
    "test_pinned_node",
    "test_node_full_of_pinned_memory",
    "test_larger_pinned_node",
    "test_overload_in_full",
    "test_reclaim_for_huge_pages_is_counted",
}
names = [name for name in vars(test_thp_gfp) if name.startswith("test_") and name not in NOT_HERE]
globals().update({name: vars(test_thp_gfp)[name] for name in names})


@pytest.mark.full
def test_a_pinned_node(all_machines: Machines, stock: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a kernel without the hooks, as on one with them, a node full of pinned memory causes no
    reclaim under the policies, nearly all huge pages are allocated, and `only_compact_any` costs
    little more than stock.

    Measured: 1.0014 of stock, as a hook by ftrace is a call. The arm legacy needs the hooks, so it
    is not measured.
    """
    all_machines.end()
    monkeypatch.setenv(ONE_KERNEL, stock)
    case = bench.SMALL_PINNED
    results = bench.run([case], ("stock", *COMPACT_ONLY))
    check_had(results, case)
    assert any_to_stock(results, case) <= 1.003


ASKED_WITH = "p:asked vma_alloc_folio_noprof gfp=$arg1:u32 order=$arg2:u32"
SIZES = f"echo always >{THP}/enabled; echo always >{THP}/hugepages-64kB/enabled"


def test_reclaim_for_huge_pages_is_counted(two_nodes: Guest) -> None:
    """Under a policy that reclaims, the module counts reclaim for huge pages. Without this check,
    test_light_reclaims_nothing might pass because nothing is ever counted.
    """
    switch(two_nodes, "relaxed")
    assert reclaimed(touched(two_nodes, SPARSE))
    assert for_large(two_nodes) > 0


def flags(guest: Guest, defrag: str, advice: int = -1) -> dict[int, set[int]]:
    """Return by order the gfp flags with which faults request folios. defrag: the value of the
    kernel's knob. advice: the advice for madvise(), -1 for none.
    """
    program = f"map 1024 madvise 0 1024 {advice}" if advice > 0 else "map 1024"
    must(guest, f"echo {defrag} >{THP}/defrag; echo '{ASKED_WITH}' >{TRACING}/kprobe_events")
    must(guest, f"echo 'order > 0' >{PROBES}/asked/filter; echo 1 >{PROBES}/enable")
    must(guest, f"echo >{TRACING}/trace; {ops_command(f'{program} touch 0 1024')}")
    must(guest, ops_command("map 200 touch 16 32"))
    text = must(guest, f"cat {TRACING}/trace")
    must(guest, f"echo 0 >{PROBES}/enable; echo >{TRACING}/kprobe_events")
    found: dict[int, set[int]] = {}
    for gfp, order in re.findall(r"gfp=(\d+) order=(\d+)", text):
        found.setdefault(int(order), set()).add(int(gfp))
    return found


def test_flags_are_those_of_defrag(loaded: Guest) -> None:
    """Whatever the kernel's knob `defrag` is, faults under `light` have the gfp flags of
    defrag=never, and under `relaxed` those of defrag=always.
    """
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
    assert flags(loaded, "never") == never  # without a policy
