# SPDX-License-Identifier: GPL-2.0
"""Detect that a kept setting has turned into harm, from pairs that arrive without end, a few each
day.

Each day starts an e-process of its own, as in anytime.py, over the pairs from then on. So months of
gain do not hide harm that began yesterday. All e-processes of a year share the weight 1 equally, so
their weighted sum is a martingale that starts at 1 or less: the probability that it ever reaches
1 / ALPHA in that year is at most ALPHA (Ville 1939). Several metrics share ALPHA equally.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mmpolicy.ab.anytime import RATES
from mmpolicy.ab.design import ALPHA, POWER

LOOKED_BACK = 28  # days: the oldest e-process is then replaced by that of the new day
WEIGHT = 1 / (365 + LOOKED_BACK)  # weight of each day's e-process
RUNS, MOST_PAIRS = 100, 2000  # number of simulated runs, and most pairs in each

Array = npt.NDArray[np.float64]


class Detector:
    """Accumulates the evidence that pairs are worse than their margin. It may cover several
    simulated runs at once, with one value for each run.
    """

    def __init__(self, series: int = 1) -> None:
        self._squares = np.zeros((series, LOOKED_BACK))
        self._sums = np.full((series, LOOKED_BACK, len(RATES)), -np.inf)
        self._numbers = np.zeros(LOOKED_BACK)
        self._day = -1

    def begin_day(self) -> None:
        """Start the e-process of a new day in place of the oldest one."""
        self._day += 1
        place = self._day % LOOKED_BACK
        self._squares[:, place] = self._numbers[place] = 0
        self._sums[:, place] = 0

    def add(self, excess: Any) -> Array:
        """Add a pair, and return the evidence so far; excess: by how much the pair exceeds its
        margin, one number for each run.
        """
        x = np.asarray(excess, float).reshape(-1, 1)
        self._squares += x * x
        self._numbers += 1
        with np.errstate(invalid="ignore", divide="ignore"):
            size = np.nan_to_num(x / np.sqrt(self._squares / self._numbers))
        for place, rate in enumerate(RATES):
            # log(exp(k) / cosh(k)) = log(2) - log(1 + exp(-2 k))
            self._sums[:, :, place] += np.log(2) - np.logaddexp(0, -2 * rate * size)
        evidence: Array = WEIGHT * np.exp(self._sums).mean(axis=2).sum(axis=1)
        return evidence


def is_harm(evidence: float, metrics: int) -> bool:
    """Return whether the evidence proves harm; metrics: number of metrics that are tested."""
    return evidence >= metrics / ALPHA


def evidence_of(excess: Sequence[float], days: Iterable[int]) -> float:
    """Return the evidence for harm after a sequence of pairs. excess: for each pair, by how much it
    exceeds its margin. days: the number of the day of each pair.
    """
    detector, last, found = Detector(), None, 0.0
    for each, day in zip(excess, days):
        if day != last:
            detector.begin_day()
        last, found = day, float(detector.add(each)[0])
    return found


def days_to_find(noise: Sequence[float], excess: float, a_day: float, metrics: int) -> float:
    """Return the days within which harm is found in 4 of 5 simulated runs; infinite if that takes
    more than LOOKED_BACK days.

    noise: differences of pairs, from which pairs are simulated. excess: by how much the simulated
    pairs exceed their margin, as a logarithm. a_day: pairs per day.
    """
    rng = np.random.default_rng(1)
    sizes = np.asarray(noise, float) - np.mean(noise)
    detector, open_ = Detector(RUNS), np.ones(RUNS, bool)
    for number in range(min(int(LOOKED_BACK * a_day), MOST_PAIRS)):
        if int(number / a_day) != int((number - 1) / a_day) or not number:
            detector.begin_day()
        drawn = rng.choice(sizes, RUNS) * rng.choice((-1.0, 1.0), RUNS)
        open_ &= detector.add(drawn + excess) < metrics / ALPHA
        if open_.mean() <= 1 - POWER:
            # The harm begins in the middle of a day. The first e-process that sees only harm begins
            # on the next day, which is one day more.
            return 1 + (number + 1) / a_day
    return float("inf")
