# SPDX-License-Identifier: GPL-2.0
"""Estimate from counters what a shadow, a policy that is asked and not obeyed, would have saved."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from mmpolicy.control.counters import Counters
from mmpolicy.figures import figure
from mmpolicy.host.calibration import Calibration

COUNTER = re.compile(r"shadow_(requested|allocated)_order_(\d+)")
# counter of faults for which the shadow has found no room for a folio; an earlier folio of the
# shadow may already contain the page of such a fault, which would avoid the fault
UNSURE = "shadow_reason_no_room"


@dataclass(frozen=True)
class Shadow:
    """The number of faults that a shadow was asked about, and how many it would have avoided."""

    faults: int
    spared_least: int
    spared_most: int
    pages_least: int  # pages that would be allocated in addition to those allocated now
    pages_most: int
    # folios that would be allocated, by order
    folios: Mapping[int, int] = field(default_factory=dict, compare=False)

    def as_data(self) -> dict[str, Any]:
        """Return the figures for JSON, without `folios`."""
        return {name: value for name, value in asdict(self).items() if name != "folios"}

    def saved(self, costs: Calibration) -> list[tuple[float, float]]:
        """Return the least and the most CPU seconds that the shadow would save, each with its share
        of the CPU time that all these faults take.
        """
        spared = (self.spared_least, self.spared_most)
        seconds = [
            (bound.saved_s(each, self.folios), bound) for each, bound in zip(spared, costs.bounds())
        ]
        return [(each, each * 1e9 / (self.faults * bound.ns())) for each, bound in seconds]

    def text(self, costs: Calibration | None = None) -> str:
        """Return the result as text, with CPU time if the costs of faults are known."""
        spared = _between(self.spared_least, self.spared_most)
        low, high = (100 * n / self.faults for n in (self.spared_least, self.spared_most))
        share = _between(f"{low:.0f}", f"{high:.0f}")
        pages = _between(self.pages_least, self.pages_most)
        return (
            f"of {self.faults} page faults, this policy would have avoided {spared} "
            f"({share} %), and it would have taken {pages} pages "
            f"more{self._time(costs)}"
        )

    def _time(self, costs: Calibration | None) -> str:
        if not costs:
            return ""
        seconds, shares = zip(*self.saved(costs))
        share = _between(*(f"{100 * each:.0f}" for each in shares))
        taken = _between(*(figure(each, 2) for each in seconds))
        return (
            f"; the avoided faults are about {share} % of the CPU time of all these faults "
            f"({taken} s)"
        )


def _between(low: object, high: object) -> str:
    return f"{low}" if low == high else f"{low} to {high}"


def shadow_of(counters: Mapping[str, int]) -> Shadow | None:
    """Return the result of a point's shadow from its counters; None if no fault asked the shadow.

    A fault would be avoided if an earlier folio of the shadow already contained its page. The
    shadow's folios would take additional pages: all their pages, less one for each fault with a
    request for a large folio, as such a fault takes a page in any case.
    """
    found = {"requested": {}, "allocated": {}}  # type: dict[str, dict[int, int]]
    for name, value in counters.items():
        match = COUNTER.fullmatch(name)
        if match:
            found[match[1]][int(match[2])] = value
    requested, allocated = found["requested"], found["allocated"]
    faults = sum(requested.values())
    if not faults:
        return None
    large = sum(count for order, count in requested.items() if order)
    spared = large - sum(allocated.values())
    pages = max(sum(count << order for order, count in allocated.items()) - large, 0)
    unsure = counters.get(UNSURE, 0)
    folios = {order: count for order, count in allocated.items() if order}
    return Shadow(faults, spared, spared + unsure, max(pages - unsure, 0), pages, folios)


def shadows_of(counters: Counters) -> dict[str, Shadow]:
    """Return the results of the shadows of all points that have one."""
    found = {point: shadow_of(values) for point, values in counters.items()}
    return {point: shadow for point, shadow in found.items() if shadow}


def shadow_data(counters: Counters) -> dict[str, Any]:
    """Return the results of all shadows for JSON."""
    return {point: shadow.as_data() for point, shadow in shadows_of(counters).items()}


def shadow_lines(counters: Counters, costs: Calibration | None = None) -> list[str]:
    """Return a line for each shadow, after an empty line."""
    found = shadows_of(counters).items()
    lines = [f"shadow of {point}: {each.text(costs)}" for point, each in found]
    return ["", *lines] if lines else []
