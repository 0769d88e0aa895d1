# SPDX-License-Identifier: GPL-2.0
"""Carry-over: test whether the effect of a block lasts into the next block, which has the other
arm.

Carry-over makes a run underestimate the effect, so that the true effect may lie outside the
interval. Two signs of it are tested: a part of the effect is seen in the next block (switchback),
and the effect is smaller in the first half of the blocks than in the second half.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import log1p
from typing import Any

import numpy as np

from mmpolicy.ab.design import differences, least_pairs
from mmpolicy.ab.metrics import Metric
from mmpolicy.ab.panel import logarithms
from mmpolicy.ab.report.stats import growth_p, left_in_units, left_over
from mmpolicy.ab.samples import Recording
from mmpolicy.ab.sources import ARMS

# A sign of carry-over (an effect that outlasts its block) is taken as found if its p-value is below
# this. There are two signs; the risk that chance shows either of them stays below ALPHA, also if
# the values drift.
SEEN = 0.021
LEAST_UNITS = 2  # fewest units with a value in every block
MATTERS = 0.05  # carry-over of a smaller share of the effect is ignored


@dataclass(frozen=True)
class Carry:
    """The result of the test for carry-over, which is an effect that outlasts its block: its two
    signs with their p-values. A p-value is 1 if the run cannot tell.
    """

    tested: bool = False
    share: float = 0.0  # share of the effect that persists in the next block
    share_p: float = 1.0
    first: float = 0.0  # effect in the first half of the blocks
    second: float = 0.0
    halves_p: float = 1.0

    @property
    def left(self) -> bool:
        """Return whether a part of the effect was found to last into the next block."""
        return self.share_p < SEEN and self.share > MATTERS

    @property
    def grows(self) -> bool:
        """Return whether the effect is larger in the second half of the blocks, as if it
        built up.
        """
        more = abs(self.second) - abs(self.first)
        return self.halves_p < SEEN and more > MATTERS * abs(self.second)

    @property
    def seen(self) -> bool:
        """Return whether at least one of the two signs of carry-over was found."""
        return self.left or self.grows

    def words(self, text: Callable[[float], str]) -> Iterator[str]:
        """Yield a sentence for each sign of carry-over that was found. text: returns an effect as
        text.
        """
        if self.left:
            share = (
                f"{100 * self.share:.0f} % of the effect was still there in the next "
                "block, which had the other arm"
            )
            yield f"{share} (p = {self.share_p:.2g})"
        if self.grows:
            halves = (
                f"the effect was {text(self.first)} in the first half of the blocks, "
                f"{text(self.second)}"
            )
            yield f"{halves} in the second (p = {self.halves_p:.2g})"

    def data(self, shown: Callable[[float], float]) -> dict[str, Any]:
        """Return both signs of carry-over for JSON. shown: converts an effect to the unit of the
        report.
        """
        halves = {"first": shown(self.first), "second": shown(self.second), "p": self.halves_p}
        left = {"share": self.share, "p": self.share_p}
        return {"tested": self.tested, "seen": self.seen, "left": left, "halves": halves}


def carry_of(recording: Recording, metric: Metric, scale: str, seed: int) -> Carry:
    """Test a metric for both signs of carry-over, an effect that outlasts its block. scale: the
    scale of the metric's effect, see differences().
    """
    left, halves = _left(recording, metric, scale, seed), _halves(recording, metric, scale, seed)
    return Carry(bool(left or halves), *(left or (0.0, 1.0)), *(halves or (0.0, 0.0, 1.0)))


def _left(
    recording: Recording, metric: Metric, scale: str, seed: int
) -> tuple[float, float] | None:
    """Return the share of the effect that lasts into the next block, and its p-value; None if the
    run cannot tell.
    """
    if recording.header["design"] == "split":
        return _left_in_units(recording, metric, seed) if metric.of_units else None
    if len(recording.by_pair(metric, "ab")) < least_pairs(1):
        return None
    values, first = recording.course(metric)
    y = np.asarray(values, float)
    if scale == "ratio":
        y = np.log(np.where(y > 0, y, np.nan))
    return left_over(y, np.asarray(first), seed)


def _left_in_units(recording: Recording, metric: Metric, seed: int) -> tuple[float, float] | None:
    """Return for a split run the share of the effect that lasts into the next block, and its
    p-value. They come from the units that have a value in every block; None if there are too few.
    """
    blocks = [*recording.cells(metric, "ab").values()]
    units = sorted(set.intersection(*map(set, blocks))) if blocks else []
    if len(blocks) < least_pairs(1) or len(units) < LEAST_UNITS:
        return None
    _, values = logarithms([{unit: block[unit] for unit in units} for block in blocks])
    y = np.asarray([[each[unit] for unit in units] for each in values])
    treated = np.asarray([[block[unit].arm == ARMS[1] for unit in units] for block in blocks])
    return left_in_units(y, treated, seed)


def _halves(
    recording: Recording, metric: Metric, scale: str, seed: int
) -> tuple[float, float, float] | None:
    """Return the effect in the first and in the second half of the blocks, and the p-value of their
    difference; None if there are too few pairs.
    """
    halves = [recording.by_pair(metric, "ab", half) for half in ("first", "second")]
    both = sorted(set(halves[0]) & set(halves[1]))
    if len(both) < least_pairs(1):
        return None
    found = [differences([half[number] for number in both]) for half in halves]
    if any(known != scale for known, _ in found):
        return None
    early, late = (np.asarray(each) for _, each in found)
    means = [float(each.mean()) for each in (early, late)]
    if scale == "totals":
        means = [log1p(max(mean, -0.99)) for mean in means]
    return means[0], means[1], growth_p(early, late, seed)
