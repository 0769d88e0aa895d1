# SPDX-License-Identifier: GPL-2.0
"""Has the effect changed? Evidence of harm in pairs that come for ever, a few each day.

Each day begins an e-process of its own, as in anytime.py, of the pairs from then on: what was
good for a month does not outweigh what is bad since yesterday. Each has an equal part of the
weight 1, of all that are at work in a year, so the weighted sum is a martingale that begins at 1
or less: that it ever reaches 1 / ALPHA in that year has a chance of ALPHA at most (Ville 1939).
With several metrics, each has an equal part of ALPHA.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mmpolicy.ab.anytime import RATES
from mmpolicy.ab.design import ALPHA, POWER

LOOKED_BACK = 28  # days
WEIGHT = 1 / (365 + LOOKED_BACK)
RUNS, MOST_PAIRS = 100, 2000  # of a simulation

Array = npt.NDArray[np.float64]


class Detector:
    """The evidence that pairs are worse than allowed; of one series, or of several at once."""

    def __init__(self, series: int = 1) -> None:
        self._squares = np.zeros((series, LOOKED_BACK))
        self._sums = np.full((series, LOOKED_BACK, len(RATES)), -np.inf)
        self._numbers = np.zeros(LOOKED_BACK)
        self._day = -1

    def begin_day(self) -> None:
        """Begin a new e-process, in the place of the oldest one."""
        self._day += 1
        place = self._day % LOOKED_BACK
        self._squares[:, place] = self._numbers[place] = 0
        self._sums[:, place] = 0

    def add(self, excess: Any) -> Array:
        """Add a pair: by how much it is worse than allowed; return the evidence so far."""
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
    """Tell if that is enough, where so many metrics are looked at."""
    return evidence >= metrics / ALPHA


def evidence_of(excess: Sequence[float], days: Iterable[int]) -> float:
    """Return the evidence of pairs, the oldest first, each with the number of its day."""
    detector, last, found = Detector(), None, 0.0
    for each, day in zip(excess, days):
        if day != last:
            detector.begin_day()
        last, found = day, float(detector.add(each)[0])
    return found


def days_to_find(noise: Sequence[float], excess: float, a_day: float, metrics: int) -> float:
    """Return the days within which harm is found in 4 of 5 cases; infinite if it takes
    longer than LOOKED_BACK.

    noise: differences of pairs, of which simulated ones are drawn. excess: by how much they are
    worse than allowed, a logarithm as they are. a_day: pairs.
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
            # What begins within a day is seen whole by the process of the next one.
            return 1 + (number + 1) / a_day
    return float("inf")
