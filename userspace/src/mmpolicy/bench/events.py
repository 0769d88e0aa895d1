# SPDX-License-Identifier: GPL-2.0
"""Events on the host during a run that may explain a ratio: stalls, fallbacks, free 2 MB blocks."""

from __future__ import annotations

from mmpolicy.bench.programs import Values
from mmpolicy.errors import Error
from mmpolicy.host.evidence import events, fallbacks
from mmpolicy.host.files import Tree
from mmpolicy.host.room import read_zones

# titles of the events, by their name in /proc/vmstat or in hugepages-*/stats
COUNTED = {
    "compact_stall": "COMPACTION STALLS",
    "thp_fault_alloc": "2 MB FAULTS",
    "thp_fault_fallback": "2 MB FALLBACKS",
    "anon_fault_fallback": "FALLBACKS OF ALL SIZES",
}
TROUBLES = ("compact_stall", "thp_fault_fallback", "anon_fault_fallback")
BEFORE, AFTER = "free_2mb_blocks_before", "free_2mb_blocks_after"
EVENTS = {**COUNTED, BEFORE: "FREE 2 MB BLOCKS BEFORE", AFTER: "AFTER"}
FREE = "free"


def read_events(tree: Tree) -> dict[str, int]:
    """Return the host's event counters since boot, and its free 2 MB blocks, as far as the kernel
    has them.
    """
    try:
        found = events(tree, every=False)
    except Error:
        found = {}
    if of_sizes := fallbacks(tree):
        found["anon_fault_fallback"] = sum(of_sizes.values())
    known = {name: found[name] for name in COUNTED if name in found}
    zones = read_zones(tree)
    return known | ({FREE: sum(zone.blocks for zone in zones)} if zones else {})


def between(before: dict[str, int], after: dict[str, int]) -> Values:
    """Return the increase of the event counters between two readings, and the free 2 MB blocks at
    both.
    """
    both = [name for name in COUNTED if name in before and name in after]
    found = {name: float(after[name] - before[name]) for name in both}
    ends = ((BEFORE, before), (AFTER, after))
    return found | {name: float(look[FREE]) for name, look in ends if FREE in look}
