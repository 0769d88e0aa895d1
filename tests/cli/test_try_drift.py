# SPDX-License-Identifier: GPL-2.0
"""How often the continued proof of `try` is wrong in a year, and how soon it finds harm.

A pair of blocks is simulated as its difference of logarithms, with a clock of pairs: 14 a day are
those of one block of two minutes in 50. A rate that fails is one that chance explains in fewer than
one of 10,000 such tests.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log

import numpy as np
import pytest
from scipy.stats import binom

from mmpolicy.ab.design import ALPHA, POWER
from mmpolicy.ab.report.drift import Array, Detector, days_to_find, evidence_of, is_harm

A_DAY, METRICS, UNLIKELY = 14, 2, 1e-4
WEEK, YEAR = 7 * A_DAY, 365 * A_DAY
CPU, MEMORY = 0.07, 0.028  # noise of a pair, by 5 % and 2 % in each block
Years = [pytest.param(20, id="few"), pytest.param(400, marks=pytest.mark.full, id="all")]

Loads = [pytest.param(100, id="few"), pytest.param(4000, marks=pytest.mark.full, id="all")]


def normal(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    return rng.normal(0, 1, shape)


def heavy(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Return noise with tails, of Student's t with 2.5 degrees of freedom."""
    return rng.standard_t(2.5, shape)


def by_day(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Return noise that is ten times as large in one day of five; the coins are as fair."""
    large = np.repeat(rng.random((shape[0], shape[1] // A_DAY + 1)) < 0.2, A_DAY, axis=1)
    return rng.normal(0, 1, shape) * np.where(large[:, : shape[1]], 10, 1)


def alarms(series: list[Array]) -> Array:
    """Return the number of the pair of the first alarm, by any of the metrics; -1 without one."""
    runs, length = series[0].shape
    detectors, first = [Detector(runs) for _ in series], np.full(runs, -1)
    for number in range(length):
        for detector, excess in zip(detectors, series):
            if number % A_DAY == 0:
                detector.begin_day()
            found = detector.add(excess[:, number]) >= len(series) / ALPHA
            first[(first < 0) & found] = number
    return first


@pytest.mark.parametrize("years", Years)
@pytest.mark.parametrize("noise", [normal, heavy, by_day])
def test_false_alarms(
    noise: Callable[[np.random.Generator, tuple[int, int]], Array], years: int
) -> None:
    """A setting that has lost its gain and costs the whole margin, as bad as is allowed, raises as
    few false alarms as promised.
    """
    rng = np.random.default_rng(55)
    shape = (years, YEAR)
    hits = int((alarms([CPU * noise(rng, shape), MEMORY * noise(rng, shape)]) >= 0).sum())
    print(f"{noise.__name__}: false alarms in {hits} of {years} years")
    assert binom.sf(hits - 1, years, ALPHA) > UNLIKELY


@pytest.mark.parametrize("runs", Loads)
@pytest.mark.parametrize(("spread", "gain", "harm"), [
    (CPU, log(0.9), log(1.06)), (MEMORY, log(0.99 / 1.05), log(1.1 / 1.05)),
])  # fmt: skip
def test_a_load_that_changes_after_a_week(
    spread: float, gain: float, harm: float, runs: int
) -> None:
    """If a setting pays for a week and then harms, the harm is found within the days that the trial
    has promised.
    """
    rng = np.random.default_rng(55)
    trial = rng.normal(0, spread, 60)  # the noise that is known beforehand
    promised = days_to_find(list(trial), harm, A_DAY, METRICS)
    begin = WEEK + A_DAY // 2  # in the midst of a day
    length = begin + 28 * A_DAY
    truth = np.where(np.arange(length) < begin, gain, harm)
    found = alarms([rng.normal(0, spread, (runs, length)) + truth, np.zeros((runs, length)) - 1])
    days = (found - begin + 1) / A_DAY
    early, in_time = int((days <= 0).sum()), int(((days > 0) & (days <= promised)).sum())
    print(f"promised within {promised:.1f} days: {in_time} of {runs} found in time; "
          f"half of them in {np.median(days):.1f} days")  # fmt: skip
    assert early == 0
    assert promised < 7
    assert binom.cdf(in_time, runs, POWER) > UNLIKELY


def test_one_series_is_as_many() -> None:
    """One series of pairs in the command gives the same evidence as many in the simulations."""
    rng = np.random.default_rng(1)
    excess = rng.normal(0.05, CPU, 40 * A_DAY)
    days = [number // A_DAY for number in range(len(excess))]
    found = evidence_of(list(excess), days)
    both = Detector(2)
    for number, each in enumerate(excess):
        if number % A_DAY == 0:
            both.begin_day()
        last = both.add([each, 0.0])
    assert found == pytest.approx(last[0])
    assert is_harm(found, METRICS)
    assert not is_harm(float(last[1]), METRICS)
    assert days_to_find([0.5, -0.5, 0.1], 0.01, 1, 2) == float("inf")
