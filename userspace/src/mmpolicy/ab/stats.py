# SPDX-License-Identifier: GPL-2.0
"""The statistics of a report; needs numpy and scipy.

The unit of analysis is the pair: two adjacent blocks of switchback, or the two arms of one
block of split. A coin decided which of the two got the treatment. If it had no effect, the
difference of each pair could as well have had the other sign; that alone, and nothing about
distributions or independence in time, makes test and interval valid.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from mmpolicy.ab.design import ALPHA, POWER, differences

RESAMPLES = 9999

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Effect:
    """What the pairs say about one metric. Of scale ratio, numbers are logarithms."""

    scale: str  # ratio or difference
    pairs: int
    estimate: float
    low: float  # of the 95 % interval
    high: float
    p: float
    deviation: float  # of the differences of pairs
    bca: tuple[float, float]  # bootstrap interval, to compare with


def analyse(pairs: Sequence[tuple[float, float]], seed: int) -> Effect:
    """Return estimate, 95 % interval and p of at least two pairs (control, treatment)."""
    scale, found = differences(pairs)
    d = np.asarray(found)
    low, high = interval(d, seed)
    deviation = float(d.std(ddof=1))
    return Effect(
        scale, len(d), float(d.mean()), low, high, p_value(d, seed), deviation, bca(d, seed)
    )


def p_value(d: Vector, seed: int) -> float:
    """Return the two-sided p of the randomisation test: signs of pairs are tossed anew.

    Exact for up to 13 pairs; beyond, from 9,999 random tosses.
    """
    rng = np.random.default_rng(seed)

    def mean(x: Vector, axis: int) -> Any:
        return x.mean(axis=axis)

    if 2 ** len(d) <= RESAMPLES:
        result = stats.permutation_test(
            (d,), mean, permutation_type="samples", vectorized=True, n_resamples=RESAMPLES
        )
    else:
        result = stats.monte_carlo_test(
            d,
            lambda size: rng.choice((-1.0, 1.0), size) * d,
            mean,
            vectorized=True,
            n_resamples=RESAMPLES,
        )
    return float(min(result.pvalue, 1.0))


def interval(d: Vector, seed: int) -> tuple[float, float]:
    """Return the 95 % interval: all effects that the randomisation test does not reject.

    Its ends are order statistics of the means of subsets of pairs (Hartigan 1969): of all
    subsets where p is exact, else of random ones.
    """
    n = len(d)
    if 2**n <= RESAMPLES:
        chosen = (np.arange(1, 2**n)[:, None] >> np.arange(n)) & 1
    else:
        chosen = np.random.default_rng(seed).integers(0, 2, (RESAMPLES, n))
        chosen = chosen[chosen.any(axis=1)]
    means = np.sort(chosen @ d / chosen.sum(axis=1))
    place = int(ALPHA / 2 * (len(means) + 1))
    if place < 1:  # so few pairs that nothing can be rejected
        return -np.inf, np.inf
    return float(means[place - 1]), float(means[-place])


def bca(d: Vector, seed: int) -> tuple[float, float]:
    """Return the 95 % interval of the bootstrap (BCa), which relies on many pairs instead."""
    if np.ptp(d) == 0:
        return float(d[0]), float(d[0])
    rng = np.random.default_rng(seed)
    found: Any = stats.bootstrap((d,), np.mean, n_resamples=RESAMPLES, rng=rng)
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def holm(p: Sequence[float]) -> list[float]:
    """Return p corrected for their number (Holm 1979)."""
    order = np.argsort(p)
    scaled = np.asarray(p)[order] * np.arange(len(p), 0, -1)
    result = np.empty(len(p))
    result[order] = np.minimum(np.maximum.accumulate(scaled), 1)
    return [float(value) for value in result]


def detectable(deviation: float, pairs: int, metrics: int) -> float:
    """Return the smallest effect that so many pairs find with 80 % probability."""
    t = stats.t(pairs - 1)
    return float((t.ppf(1 - ALPHA / metrics / 2) + t.ppf(POWER)) * deviation / pairs**0.5)


def floor(deviation: float, freedom: int, pairs: int) -> float:
    """Return what so many pairs of equal arms differ by, at most, in 95 % of runs."""
    return float(stats.t(freedom).ppf(1 - ALPHA / 2) * deviation / pairs**0.5)


def imbalance(control: int, treatment: int) -> float:
    """Return the p of so uneven numbers where the shares should be equal (chi-square)."""
    return float(stats.chisquare([control, treatment]).pvalue) if control + treatment else 1.0
