# SPDX-License-Identifier: GPL-2.0
"""Do intervals hold what they should: of totals, and where the effect differs between pairs?"""

from math import log

import numpy as np
import pytest
from scipy import stats
from scipy.stats import binomtest

from mmpolicy.ab.stats import interval, p_value, totals

FULL = pytest.mark.full
LENGTHS = [12, 30]


def explained(hits: int, runs: int, rate: float, side: str = "less") -> bool:
    """Tell if chance explains so many hits at that rate."""
    print(f"{hits} of {runs}, {hits / runs:.2%}; {rate:.1%} should be the limit")
    return bool(binomtest(hits, runs, rate, alternative=side).pvalue > 0.001)


@pytest.mark.parametrize("runs", [200, pytest.param(4000, marks=FULL)])
@pytest.mark.parametrize("pairs", LENGTHS)
def test_the_interval_of_totals(pairs: int, runs: int) -> None:
    """It holds the ratio of what both arms take in 93 % or more."""
    held = 0
    for seed in range(runs):
        rng = np.random.default_rng([21, seed])
        control, treatment = np.exp(rng.normal(0, 0.3, (2, pairs)))
        _, low, high = totals([*zip(control, 0.9 * treatment, strict=True)], 1)
        held += low <= log(0.9) <= high
    assert explained(held, runs, 0.93)


@pytest.mark.parametrize("runs", [200, pytest.param(4000, marks=FULL)])
@pytest.mark.parametrize("pairs", LENGTHS)
def test_effects_that_differ_between_pairs(pairs: int, runs: int) -> None:
    """Normal ones cost nothing; those as skewed as an exponential cost two points at 12 pairs."""
    held = dict.fromkeys(("normal", "exponential"), 0)
    for seed in range(runs):
        rng = np.random.default_rng([22, seed])
        effects = {"normal": rng.normal(1, 1, pairs), "exponential": rng.exponential(1, pairs)}
        for kind, effect in effects.items():
            low, high = interval(-0.1 * effect + rng.normal(0, 0.05, pairs), 1)
            held[kind] += low <= -0.1 <= high
    assert explained(held["normal"], runs, 0.935)
    assert explained(held["exponential"], runs, 0.92)


def test_the_p_of_scipy() -> None:
    """Its permutation test of paired samples says the same."""
    rng = np.random.default_rng(23)
    for pairs in (6, 9, 12):
        d = rng.normal(0.5, 1, pairs)
        found = stats.permutation_test(
            (d,), lambda x, axis: np.mean(x, axis=axis), permutation_type="samples",
            n_resamples=np.inf, vectorized=True,
        )  # fmt: skip
        assert p_value(d, 1) == pytest.approx(found.pvalue)
