# SPDX-License-Identifier: GPL-2.0
"""Test and intervals hold their level, whatever the noise, and if effects differ."""

from __future__ import annotations

from math import log

import numpy as np
import pytest
from scipy import stats
from scipy.stats import binomtest

from mmpolicy.ab.report.stats import analyse, interval, p_below, p_value, totals

from .simulate import Rng, Vector, dependent
from .test_ab_anytime import Noise, between

FULL = pytest.mark.full
LENGTHS = [12, 30]


def stepping(rng: Rng, blocks: int) -> Vector:
    """Return noise about a level that is threefold from half way on."""
    return np.asarray(rng.normal(0, 0.1, blocks) + log(3) * (np.arange(blocks) > blocks / 2))


BLOCKS: dict[str, Noise] = {  # logarithms of their values
    "independent": lambda rng, n: rng.normal(0, 0.1, n),
    "AR(1) 0.5": lambda rng, n: dependent(rng, n, 0.1, 0.5),
    "AR(1) 0.9": lambda rng, n: dependent(rng, n, 0.1, 0.9),
    "day": lambda rng, n: dependent(rng, n, 0.1, 0.5) + 0.3 * np.sin(np.arange(n) / 9),
    "drift": lambda rng, n: rng.normal(0, 0.1, n) + 0.02 * np.arange(n),
    "walk": lambda rng, n: np.cumsum(rng.normal(0, 0.05, n)),
    "lognormal": lambda rng, n: rng.normal(0, 1, n),
    "Pareto values": lambda rng, n: np.log(rng.pareto(1.5, n) + 1),
    "Pareto noise": lambda rng, n: rng.pareto(1.5, n),
    "stalls": lambda rng, n: rng.normal(0, 0.1, n) + log(12) * (rng.random(n) < 0.06),
    "period of a block": lambda rng, n: rng.normal(0, 0.1, n) + 0.2 * (np.arange(n) % 2),
    "period of two pairs": lambda rng, n: rng.normal(0, 0.1, n) + 0.2 * (np.arange(n) % 4 > 1),
    "step": stepping,
}
COUNTS: dict[str, Noise] = {  # the values themselves, some of which are 0
    "Poisson 0.5": lambda rng, n: rng.poisson(0.5, n).astype(float),
    "Poisson 3": lambda rng, n: rng.poisson(3, n).astype(float),
    "zeros in 3 %": lambda rng, n: np.exp(rng.normal(0, 1, n)) * (rng.random(n) > 0.03),
    "Pareto": lambda rng, n: np.floor(rng.pareto(1.5, n)),
}


@pytest.mark.parametrize("runs", [60, pytest.param(4000, marks=FULL)])
@pytest.mark.parametrize("pairs", LENGTHS)
@pytest.mark.parametrize("noise", BLOCKS)
def test_the_level(noise: str, pairs: int, runs: int) -> None:
    """Tests hold their level: equal arms are found in 5 %, and a treatment worse by just a margin
    passes in 5 %.

    The interval holds an effect in 93 to 97 %.
    """
    rng, found, passed, held = np.random.default_rng([24, pairs]), 0, 0, 0
    for _ in range(runs):
        d = between(BLOCKS[noise](rng, 2 * pairs)) * rng.choice([-1, 1], pairs)
        found += p_value(d, 1) < 0.05
        passed += p_below(d, 1) < 0.05
        low, high = interval(d + log(0.9), 1)
        held += low <= log(0.9) <= high
    assert explained(found, runs, 0.05, "two-sided")
    assert explained(passed, runs, 0.05, "two-sided")
    assert explained(held, runs, 0.93)
    assert explained(held, runs, 0.97, "greater")


@pytest.mark.parametrize("runs", [60, pytest.param(4000, marks=FULL)])
@pytest.mark.parametrize("pairs", LENGTHS)
@pytest.mark.parametrize("count", COUNTS)
def test_the_level_of_counters_with_zeros(count: str, pairs: int, runs: int) -> None:
    """With tied values, equal arms are found in less than 5 %."""
    rng, found = np.random.default_rng([25, pairs]), 0
    for _ in range(runs):
        sides = COUNTS[count](rng, 2 * pairs).reshape(2, pairs)
        found += analyse([*zip(*sides.tolist(), strict=True)], 1).p < 0.05
    assert explained(found, runs, 0.05, "greater")


def explained(hits: int, runs: int, rate: float, side: str = "less") -> bool:
    """Return whether chance explains this number of hits at that rate."""
    print(f"{hits} of {runs}, {hits / runs:.2%}; {rate:.1%} should be the limit")
    return bool(binomtest(hits, runs, rate, alternative=side).pvalue > 0.001)


@pytest.mark.parametrize("runs", [200, pytest.param(4000, marks=FULL)])
@pytest.mark.parametrize("pairs", LENGTHS)
def test_the_interval_of_totals(pairs: int, runs: int) -> None:
    """The interval of totals holds the ratio of the totals of both arms in 93 to 97 %."""
    held = 0
    for seed in range(runs):
        rng = np.random.default_rng([21, seed])
        control, treatment = np.exp(rng.normal(0, 0.3, (2, pairs)))
        _, low, high = totals([*zip(control, 0.9 * treatment, strict=True)], 1)
        held += low <= log(0.9) <= high
    assert explained(held, runs, 0.93)
    assert explained(held, runs, 0.97, "greater")


@pytest.mark.parametrize("runs", [200, pytest.param(4000, marks=FULL)])
@pytest.mark.parametrize("pairs", LENGTHS)
def test_effects_that_differ_between_pairs(pairs: int, runs: int) -> None:
    """If effects differ between pairs, normally or with a long tail, the interval holds their mean
    in 93 to 97 %.
    """
    held = dict.fromkeys(("normal", "most have little", "most have much"), 0)
    for seed in range(runs):
        rng = np.random.default_rng([22, seed])
        effects = {"normal": rng.normal(1, 1, pairs)}
        effects["most have little"] = rng.exponential(1, pairs)
        effects["most have much"] = 2 - effects["most have little"]
        for kind, effect in effects.items():
            low, high = interval(-0.1 * effect + rng.normal(0, 0.05, pairs), 1)
            held[kind] += low <= -0.1 <= high
    for count in held.values():
        assert explained(count, runs, 0.93)
        assert explained(count, runs, 0.97, "greater")


def test_the_p_of_scipy() -> None:
    """The permutation test of scipy for paired samples gives an equal p."""
    rng = np.random.default_rng(23)
    for pairs in (6, 9, 12):
        d = rng.normal(0.5, 1, pairs)
        found = stats.permutation_test(
            (d,), lambda x, axis: np.mean(x, axis=axis), permutation_type="samples",
            n_resamples=np.inf, vectorized=True,
        )  # fmt: skip
        assert p_value(d, 1) == pytest.approx(found.pvalue)
