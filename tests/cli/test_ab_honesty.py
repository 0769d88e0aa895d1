# SPDX-License-Identifier: GPL-2.0
"""Are the statistics honest? Simulated experiments on noise that a guest really made.

tests/cli/data/ab_noise.json says how it was recorded. A pair of a simulated experiment is a
stretch of that record, from a random place on, so that it has the noise of the record and its
dependence in time. A coin decides which side is the treatment; its counters rise by the effect.
"""

import json
from collections.abc import Iterator
from math import log
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from mmpolicy.ab.design import differences, suggest_pairs
from mmpolicy.ab.stats import interval, p_value

RECORD = json.loads((Path(__file__).parent / "data/ab_noise.json").read_text())
RUNS = 1000
PILOT = 12  # pairs of A/A that the suggested length is made of
PERCENT = 5
LENGTH = {"split": 20, "switchback": 16}  # recorded blocks that make a simulated one

Vector = NDArray[np.float64]
Rng = np.random.Generator


def stretches(values: Vector, length: int) -> Vector:
    """Return the sums of so many values from each place on, around the end."""
    ring = np.concatenate([np.zeros(1), np.cumsum(np.concatenate([values, values[:length]]))])
    return np.asarray(ring[length : length + len(values)] - ring[: len(values)])


def sides(design: str) -> tuple[Vector, Vector]:
    """Return the values of the two sides of a pair that begins at each place."""
    length = LENGTH[design]
    if design == "switchback":
        first = stretches(np.asarray(RECORD[design], float), length)
        return first, np.roll(first, -length)
    sums = [stretches(column, length) for column in np.asarray(RECORD[design], float).T]
    return sums[0] / sums[1], sums[2] / sums[3]


def experiment(design: str, pairs: int, rng: Rng, percent: float = 0) -> list[float]:
    """Return the differences of the pairs of one simulated experiment."""
    one, other = sides(design)
    places = rng.integers(0, len(one), pairs)
    coins = rng.integers(0, 2, pairs) == 1
    control = np.where(coins, one[places], other[places])
    treatment = np.where(coins, other[places], one[places]) * (1 + percent / 100)
    scale, found = differences(list(zip(control, treatment, strict=True)))
    assert scale == "ratio"
    return found


@pytest.mark.parametrize("design", LENGTH)
def test_false_findings(design: str) -> None:
    """Of A/A experiments, 3.5 to 6.5 % find something at 5 %."""
    rng = np.random.default_rng(5)
    found = [experiment(design, PILOT, rng) for _ in range(RUNS)]
    rate = np.mean([p_value(np.asarray(d), 1) < 0.05 for d in found])
    print(f"{design}: {rate:.1%} of {RUNS} A/A experiments find something")
    assert 0.035 <= rate <= 0.065


def outcomes(design: str) -> Iterator[tuple[int, bool, bool]]:
    """Yield of each A/B experiment the suggested length; is it found, and in the interval?"""
    rng = np.random.default_rng(6)
    for seed in range(RUNS):
        pairs = suggest_pairs(experiment(design, PILOT, rng), PERCENT)
        d = np.asarray(experiment(design, pairs, rng, PERCENT))
        low, high = interval(d, seed)
        yield pairs, p_value(d, seed) < 0.05, low <= log(1 + PERCENT / 100) <= high


@pytest.mark.parametrize("design", LENGTH)
def test_power_and_coverage(design: str) -> None:
    """At the suggested length 5 % are found in 80 %, and 95 % of intervals hold them."""
    pairs, found, covered = np.asarray(list(outcomes(design)), float).T
    power, coverage = found.mean(), covered.mean()
    print(f"{design}: {np.median(pairs):g} pairs, found {power:.1%}, covered {coverage:.1%}")
    assert power >= 0.8
    assert 0.93 <= coverage <= 0.97
