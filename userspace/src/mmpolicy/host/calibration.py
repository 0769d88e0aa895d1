# SPDX-License-Identifier: GPL-2.0
"""What `calibrate` has found out about this host: the CPU time of a page fault of each size."""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from mmpolicy.errors import Error
from mmpolicy.host.files import Tree

FILE = "/var/lib/mmpolicy/calibration.json"
PAGE = 4096


class FaultCost(NamedTuple):
    """What a fault of one size takes, in nanoseconds of a CPU."""

    size: int  # bytes
    ns: float
    low: float  # half of all pieces lie between these
    high: float


class Calibration:
    """The costs of all sizes that were measured; those between are taken to lie on a line."""

    def __init__(self, costs: Sequence[FaultCost]) -> None:
        self.costs = sorted(costs)

    def ns(self, order: int = 0) -> float:
        """Return the nanoseconds of a fault that gets a folio of an order."""
        size, costs = PAGE << order, self.costs
        if len(costs) == 1:
            return costs[0].ns * size / costs[0].size
        pairs = list(pairwise(costs))
        below, above = next((pair for pair in pairs if size <= pair[1].size), pairs[-1])
        slope = (above.ns - below.ns) / (above.size - below.size)
        return below.ns + slope * (size - below.size)

    def percent(self, faults_per_second: float) -> float:
        """Return the part of a CPU that faults of single pages take."""
        return faults_per_second * self.ns() / 1e7

    def saved(self, spared: float, folios: Mapping[int, int], faults: int) -> float:
        """Return the part of the time of faults that folios would save.

        faults: all, which got single pages. spared: how many of them would not have been. folios:
        how many would have been made of each order, each in the place of a single page.
        """
        more = sum(count * (self.ns(order) - self.ns()) for order, count in folios.items())
        return (spared * self.ns() - more) / (faults * self.ns())


def read_calibration(tree: Tree) -> Calibration | None:
    """Return what was kept, if it is of this kernel; nothing else is believed."""
    try:
        kept = json.loads(tree.read(FILE))
        if kept["kernel"] != tree.read("/proc/sys/kernel/osrelease"):
            return None
        costs = [FaultCost(**each) for each in kept["faults"]]
    except (Error, ValueError, LookupError, TypeError):
        return None
    return Calibration(costs) if costs and costs[0].size == PAGE else None


def keep_calibration(tree: Tree, kernel: str, costs: Sequence[FaultCost]) -> None:
    """Keep it for this kernel."""
    kept = {"version": 1, "kernel": kernel, "faults": [each._asdict() for each in costs]}
    tree.keep(FILE, json.dumps(kept, indent=1), 0o644)
