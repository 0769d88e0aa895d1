# SPDX-License-Identifier: GPL-2.0
"""What `calibrate` has found out about this host: the CPU time of a page fault of each size."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mmpolicy.errors import Error
from mmpolicy.host.files import Tree

FILE = "/var/lib/mmpolicy/calibration.json"
PAGE = 4096


class FaultCost(NamedTuple):
    """What a fault of one size takes, in nanoseconds of a CPU."""

    size: int  # bytes
    ns: float
    low: float  # the cost by the least times of all pieces; high: by the medians
    high: float


class Together(NamedTuple):
    """What a fault of one size takes while so many CPUs fault at once, in nanoseconds of each."""

    cpus: int
    size: int  # bytes
    ns: float  # the median of the turns; low, high: their ends
    low: float
    high: float


def dear_in(rows: Sequence[Together], size: int) -> Together | None:
    """Return the row of the fewest CPUs on which a size costs more than the pages in its place."""
    pages = {each.cpus: each.ns / PAGE for each in rows if each.size == PAGE}
    found = (each for each in rows if each.size == size and each.ns > pages[each.cpus] * size)
    return min(found, default=None)


class Calibration:
    """The costs of all sizes that were measured; those between are taken to lie on a line."""

    def __init__(self, costs: Sequence[FaultCost], together: Sequence[Together] = ()) -> None:
        self.costs = sorted(costs)
        self.together = sorted(together)

    def at(self, busy: float) -> Calibration:
        """Return the costs that were measured on the most CPUs that are no more than are busy."""
        known = max((each.cpus for each in self.together if 1 < each.cpus <= busy), default=0)
        if not known:
            return self
        rows = [FaultCost(*each[1:]) for each in self.together if each.cpus == known]
        return Calibration(rows, self.together)

    def ns(self, order: int = 0) -> float:
        """Return the nanoseconds of a fault that gets a folio of an order."""
        size, costs = PAGE << order, self.costs
        if len(costs) == 1:
            return costs[0].ns * size / costs[0].size
        pairs = list(zip(costs, costs[1:]))
        below, above = next((pair for pair in pairs if size <= pair[1].size), pairs[-1])
        slope = (above.ns - below.ns) / (above.size - below.size)
        return below.ns + slope * (size - below.size)

    def saved_ns(self, order: int) -> float:
        """Return the most that a folio of an order saves of each fault of a single page.

        Where single pages alone were measured, that is all of the fault.
        """
        folio = self.ns(order) / (1 << order) if len(self.costs) > 1 else 0.0
        return max(self.ns() - folio, 0.0)

    def percent(self, faults_per_second: float) -> tuple[float, float]:
        """Return the part of a CPU that faults of single pages take, and its error."""
        page = self.costs[0]
        error = max(page.high - page.ns, page.ns - page.low)
        return faults_per_second * page.ns / 1e7, faults_per_second * error / 1e7

    def of_a_cpu(self, faults_per_second: float) -> str:
        """Return the cost in words."""
        part, error = self.percent(faults_per_second)
        return f"about {part:.2g} % of a CPU (+- {error:.2g})"

    def bounds(self) -> tuple[Calibration, Calibration]:
        """Return the costs under which large folios save the least, and the most."""
        page, *folios = self.costs
        least = [page._replace(ns=page.low), *(each._replace(ns=each.high) for each in folios)]
        most = [page._replace(ns=page.high), *(each._replace(ns=each.low) for each in folios)]
        return Calibration(least), Calibration(most)

    def saved_s(self, spared: float, folios: Mapping[int, int]) -> float:
        """Return the seconds of a CPU that folios would save.

        spared: how many faults of single pages would not have been. folios: how many would have
        been made of each order, each in the place of a single page.
        """
        more = sum(count * (self.ns(order) - self.ns()) for order, count in folios.items())
        return (spared * self.ns() - more) / 1e9


def read_calibration(tree: Tree, busy: float | None = None) -> Calibration | None:
    """Return the stored calibration if it is of this kernel.

    busy: so many CPUs fault at once; else as many as the host's load says.
    """
    try:
        kept = json.loads(tree.read(FILE))
        if kept["kernel"] != tree.read("/proc/sys/kernel/osrelease"):
            return None
        costs = [FaultCost(**each) for each in kept["faults"]]
        together = [Together(**each) for each in kept.get("together", ())]
    except (Error, ValueError, LookupError, TypeError):
        return None
    if not costs or costs[0].size != PAGE:
        return None
    return Calibration(costs, together).at(_busy(tree) if busy is None else busy)


def _busy(tree: Tree) -> float:
    """Return how many CPUs were busy during the last minute."""
    try:
        return float(tree.read("/proc/loadavg").split()[0])
    except (Error, ValueError, LookupError):
        return 0.0


def keep_calibration(
    tree: Tree, kernel: str, costs: Sequence[FaultCost], together: Sequence[Together] = ()
) -> None:
    """Keep it for this kernel."""
    kept = {
        "version": 1, "kernel": kernel, "faults": [each._asdict() for each in costs],
        "together": [each._asdict() for each in together],
    }  # fmt: skip
    tree.keep(FILE, json.dumps(kept, indent=1), 0o644)
