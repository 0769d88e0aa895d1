# SPDX-License-Identifier: GPL-2.0
"""The stored result of `calibrate`: CPU time of a page fault, by the size of the folio that it
maps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mmpolicy.errors import Error
from mmpolicy.host.files import Tree
from mmpolicy.host.pagemap import PAGE as PAGE

FILE = "/var/lib/mmpolicy/calibration.json"


class FaultCost(NamedTuple):
    """The CPU time of a fault that maps a folio of one size, in nanoseconds."""

    size: int  # size of the folio in bytes
    ns: float
    # `low` is computed from the shortest times of the pieces of memory, `high` from the medians
    low: float
    high: float


class Together(NamedTuple):
    """CPU time of a fault of one size while several CPUs fault at once, in nanoseconds."""

    cpus: int
    size: int  # size of the folio in bytes
    # median over the turns of the measurement; `low` and `high` are the smallest and the largest
    ns: float
    low: float
    high: float


def dear_in(rows: Sequence[Together], size: int) -> Together | None:
    """Return the row with the fewest CPUs for which a folio of this size costs more than its pages
    one by one; None if there is none.
    """
    pages = {each.cpus: each.ns / PAGE for each in rows if each.size == PAGE}
    found = (each for each in rows if each.size == size and each.ns > pages[each.cpus] * size)
    return min(found, default=None)


class Calibration:
    """The measured costs of faults by size; costs of sizes in between are interpolated."""

    def __init__(self, costs: Sequence[FaultCost], together: Sequence[Together] = ()) -> None:
        self.costs = sorted(costs)
        self.together = sorted(together)

    def at(self, busy: float) -> Calibration:
        """Return the costs measured with the largest number of CPUs that is at most `busy`; without
        such a measurement, the costs on one CPU.
        """
        known = max((each.cpus for each in self.together if 1 < each.cpus <= busy), default=0)
        if not known:
            return self
        rows = [FaultCost(*each[1:]) for each in self.together if each.cpus == known]
        return Calibration(rows, self.together)

    def ns(self, order: int = 0) -> float:
        """Return the nanoseconds of a fault that maps a folio of this order.

        A size that was not measured is interpolated; if only single pages were measured, the cost
        is proportional to the size.
        """
        size, costs = PAGE << order, self.costs
        if not self.has_folios:
            return costs[0].ns * size / costs[0].size
        pairs = list(zip(costs, costs[1:]))
        below, above = next((pair for pair in pairs if size <= pair[1].size), pairs[-1])
        slope = (above.ns - below.ns) / (above.size - below.size)
        return below.ns + slope * (size - below.size)

    @property
    def has_folios(self) -> bool:
        """Return whether larger sizes than single pages were measured."""
        return len(self.costs) > 1

    def saved_ns(self, order: int) -> float:
        """Return the most that a folio of this order saves for each single-page fault that it
        replaces.

        If only single pages were measured, that is the whole cost of a single-page fault.
        """
        folio = self.ns(order) / (1 << order) if self.has_folios else 0.0
        return max(self.ns() - folio, 0.0)

    def percent(self, faults_per_second: float) -> tuple[float, float]:
        """Return the share of a CPU that single-page faults at this rate take, and its error."""
        page = self.costs[0]
        error = max(page.high - page.ns, page.ns - page.low)
        return faults_per_second * page.ns / 1e7, faults_per_second * error / 1e7

    def bounds(self) -> tuple[Calibration, Calibration]:
        """Return the costs with which large folios save the least, and those with which they save
        the most.
        """
        page, *folios = self.costs
        least = [page._replace(ns=page.low), *(each._replace(ns=each.high) for each in folios)]
        most = [page._replace(ns=page.high), *(each._replace(ns=each.low) for each in folios)]
        return Calibration(least), Calibration(most)

    def saved_s(self, spared: float, folios: Mapping[int, int]) -> float:
        """Return the CPU time in seconds that large folios would save.

        spared: number of single-page faults that would not happen. folios: number of folios of
        each order that would be mapped, each in place of a single page.
        """
        more = sum(count * (self.ns(order) - self.ns()) for order, count in folios.items())
        return (spared * self.ns() - more) / 1e9


def read_calibration(tree: Tree, busy: float | None = None) -> Calibration | None:
    """Return the stored calibration if it was made on this kernel, else None.

    busy: number of CPUs that fault at once; if None, it is estimated from the host's load.
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
    """Return the average number of busy CPUs during the last minute."""
    try:
        return float(tree.read("/proc/loadavg").split()[0])
    except (Error, ValueError, LookupError):
        return 0.0


def keep_calibration(
    tree: Tree, kernel: str, costs: Sequence[FaultCost], together: Sequence[Together] = ()
) -> None:
    """Store the measured costs, with the release of the kernel that they are valid for."""
    kept = {
        "version": 1, "kernel": kernel, "faults": [each._asdict() for each in costs],
        "together": [each._asdict() for each in together],
    }  # fmt: skip
    tree.keep(FILE, json.dumps(kept, indent=1), 0o644)
