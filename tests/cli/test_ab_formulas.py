# SPDX-License-Identifier: GPL-2.0
"""The formulas of experiments at their bounds, against a second derivation."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from math import ceil, exp, inf, log, log1p, sqrt
from operator import le
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import special
from scipy import stats as known

from mmpolicy.ab import anytime
from mmpolicy.ab.design import (
    Design,
    at_margin,
    differences,
    excess,
    few_lost,
    in_percent,
    log_of_ratio,
    pairs_by_size,
    pairs_for_lost,
    pairs_to_see,
    suggest_pairs,
    unseen,
    with_lost,
)
from mmpolicy.ab.metrics import Metric
from mmpolicy.ab.report import carry, fleet, pool, stats
from mmpolicy.ab.report.balance import Balance
from mmpolicy.ab.sources import flatten, sum_of_zones, without_zones
from mmpolicy.control.counters import time_of


@pytest.fixture
def rng() -> np.random.Generator:
    """Return a random generator with a fixed seed."""
    return np.random.default_rng(5)


# The design


@pytest.mark.parametrize(
    ("kind", "seconds", "of_pair", "saturation"), [("split", 120, 1, 2), ("switchback", 240, 2, 2)]
)
def test_blocks_of_pairs(kind: str, seconds: float, of_pair: int, saturation: int) -> None:
    design = Design(kind, 30, 6, 5, seed=3)
    assert design.seconds(4) == seconds
    blocks = list(design.blocks("ab", 4, first=7))
    assert [block.number for block in blocks] == list(range(7, 7 + 4 * of_pair))
    assert [block.pair for block in blocks] == [pair for pair in range(4) for _ in range(of_pair)]
    arms = {block.arm for block in blocks}
    assert arms == ({""} if kind == "split" else {"control", "treatment"})
    turns = list(design.blocks("saturation", 2))
    assert len(turns) == 2 * saturation
    assert {(block.pair, block.arm) for block in turns} == set(
        itertools.product(range(2), ("control", "treatment"))
    )
    assert len({block.seed for block in blocks}) == len(blocks) // of_pair
    assert [*design.blocks("ab", 4, 7)] == blocks != [*design.blocks("aa", 4, 7)]
    assert [each.number for each in design.blocks("ab", 1)] == list(range(of_pair))
    assert 2**62 < max(block.seed for block in design.blocks("ab", 40)) < 2**63


@pytest.mark.parametrize(
    ("block", "washout", "interval", "moments"),
    [
        (30, 6, 5, [6, 10.8, 15.6, 20.4, 25.2, 30]),
        (4, 1, 10, [1, 4]),
        (4, 0, 2, [0, 2, 4]),
        (3, 1, 0.5, [1, 1.5, 2, 2.5, 3]),
    ],
)
def test_moments_of_samples(
    block: float, washout: float, interval: float, moments: list[float]
) -> None:
    """The interval between samples is stretched so that a block begins and ends with a sample."""
    assert Design("split", block, washout, interval, 1).moments() == pytest.approx(moments)


def test_what_is_unseen() -> None:
    """n pairs miss a share p of bad blocks with a probability of (1 - p)^n = 5 %."""
    for pairs in (1, 12, 59):
        assert (1 - unseen(pairs) / 100) ** pairs == pytest.approx(0.05)
    assert [pairs_to_see(percent) for percent in (1, 5, 20, 50)] == [299, 59, 14, 5]


@pytest.mark.parametrize(
    ("pairs", "scale", "found"),
    [
        ([(1.0, exp(1)), (exp(2), 1.0)], "ratio", [1, -2]),
        ([(0.0, 2.0), (4.0, 2.0)], "totals", [1, -1]),
        ([(3.0, 0.0), (0.0, 6.0), (3.0, 0.0)], "totals", [-1.5, 3, -1.5]),
        ([(0.0, 2.0), (0.0, 3.0)], "difference", [2, 3]),
        ([(2.0, 0.0), (3.0, 0.0)], "difference", [-2, -3]),
        ([(-1.0, 2.0), (4.0, 3.0)], "difference", [3, -1]),
    ],
)
def test_scales(pairs: list[tuple[float, float]], scale: str, found: list[float]) -> None:
    said, each = differences(pairs)
    assert said == scale
    assert each == pytest.approx(found)


def test_excess_over_a_margin() -> None:
    """Values above 0 are worse than allowed, whichever direction is better."""
    assert (at_margin(True, 5), at_margin(False, 5)) == (1.05, 0.95)
    ratios = [(10.0, 10.5), (10.0, 9.5), (10.0, 12.0)]
    assert excess(ratios, True, 5) == pytest.approx([0, log(9.5 / 10.5), log(12 / 10.5)])
    assert excess(ratios, False, 5) == pytest.approx([log(9.5 / 10.5), 0, log(9.5 / 12)])
    totals = [(0.0, 2.0), (10.0, 8.0)]
    assert excess(totals, True, 10) == pytest.approx([2, -3])
    assert excess(totals, False, 10) == pytest.approx([-2, 1])
    assert log_of_ratio([(1.0, 2.0), (3.0, 10.0)]) == pytest.approx(log(3))


def test_percent() -> None:
    assert in_percent(log(1.25)) == pytest.approx(25)
    assert in_percent(-log(2)) == pytest.approx(-50)
    assert in_percent(699.9) < inf
    assert in_percent(700) == inf


def planned(size: float, percent: float, risk: float) -> float:
    """Return the pairs of a t test that finds percent (Guenther), with known noise."""
    z = known.norm.ppf(1 - risk)
    return float((size * (z + known.norm.ppf(0.8)) / log1p(percent / 100)) ** 2 + z * z / 2)


@pytest.mark.parametrize("metrics", [1, 3])
@pytest.mark.parametrize("percent", [2.0, 5.0])
def test_lengths_by_noise(percent: float, metrics: int, rng: np.random.Generator) -> None:
    """A length is computed from the upper 80 % limit of the noise, by the chi-square
    distribution.
    """
    for number in (4, 9, 30):
        noise = list(rng.normal(0, 0.1, number))
        caution = sqrt((number - 1) / known.chi2.ppf(0.2, number - 1))
        size = float(np.std(noise, ddof=1)) * caution
        expected = planned(size, percent, 0.025 / metrics)
        assert suggest_pairs(noise, percent, metrics) == pytest.approx(expected, rel=0.03, abs=1)
        assert suggest_pairs(noise, -percent, metrics) == suggest_pairs(noise, percent, metrics)
        one_sided = planned(size, percent, 0.05)
        assert suggest_pairs(noise, percent, risk=0.05) == pytest.approx(one_sided, rel=0.03, abs=1)
        by_size = planned(sqrt(np.mean(np.square(noise))), percent, 0.025 / metrics)
        assert pairs_by_size(noise, percent, metrics) == ceil(by_size)
    still = [0.0, 1e-9, -1e-9]
    least = {1: 6, 3: 7}[metrics]
    assert suggest_pairs(still, percent, metrics) == least
    assert suggest_pairs(still, percent, metrics, risk=0.05) == least - 1
    assert pairs_by_size(still, percent, metrics) == least + 2


# The tests and intervals


def signs_of(number: int) -> np.ndarray:
    """Return all outcomes of a number of coins."""
    return np.array(list(itertools.product((-1, 1), repeat=number)))


@pytest.mark.parametrize("size", [3, 6, 16])
def test_one_sided_p_is_exact(size: int, rng: np.random.Generator) -> None:
    d = rng.normal(-0.3, 1, size)
    assert stats.p_below(d, 1) == pytest.approx(np.mean(signs_of(size) @ d <= d.sum() + 1e-9))
    assert stats.p_value(d, 1) == pytest.approx(
        np.mean(np.abs(signs_of(size) @ d) >= abs(d.sum()) - 1e-9)
    )


def test_random_tosses_are_never_sure() -> None:
    """The observed outcome adds one to 9,999 tosses; up to 16 pairs no coin is tossed."""
    assert stats.p_value(np.ones(40), 1) == stats.p_below(-np.ones(40), 1) == 1e-4
    assert stats.p_value(np.ones(16), 1) == 2 / 2**16
    assert stats.p_below(np.ones(40), 1) == 1


@pytest.mark.parametrize("size", [17, 24])
def test_coins_are_the_bits_of_random_octets(size: int, rng: np.random.Generator) -> None:
    """Coins are the bits of random octets: 9,999 rows of three octets each, so a report is
    reproducible.
    """
    d = rng.normal(0.3, 1, size)
    octets = np.frombuffer(np.random.default_rng(7).bytes(9999 * 3), np.uint8)
    sums = np.unpackbits(octets).reshape(9999, 24)[:, :size] @ d
    hits = (np.abs(d.sum() - 2 * sums) >= abs(d.sum())).sum()
    assert stats.p_value(d, 7) == (1 + hits) / 10_000
    hits = (d.sum() - 2 * sums <= d.sum()).sum()
    assert stats.p_below(d, 7) == (1 + hits) / 10_000


@pytest.mark.parametrize("size", [6, 7, 10, 13])
def test_ends_are_means_of_subsets(size: int, rng: np.random.Generator) -> None:
    """The ends of an interval are means of subsets: of n - 1 means, 2.5 % of n are
    beyond each end.
    """
    d = rng.normal(0, 1, size)
    subsets = signs_of(size) > 0
    means = sorted(float(d[chosen].mean()) for chosen in subsets if chosen.any())
    place = int(0.025 * (len(means) + 1))
    ends = means[place - 1], means[-place]
    assert stats.interval(d, 1, differ=False) == pytest.approx(ends)
    pairs = [(1.0, exp(each)) for each in d]
    total, low, high = stats.totals(pairs, 1, 0.1)
    ratios = sorted(log(np.exp(d[chosen]).sum() / chosen.sum()) for chosen in subsets
                    if chosen.any())  # fmt: skip
    place = int(0.05 * (len(ratios) + 1))
    assert (low, high) == pytest.approx((ratios[place - 1], ratios[-place]))
    assert total == pytest.approx(log(np.exp(d).mean()))


def test_ends_of_many_pairs_are_means_of_random_subsets(rng: np.random.Generator) -> None:
    """With many pairs, an end is a mean of random subsets: 250 of 9,999 means are there or beyond,
    2.5 % of one more.
    """
    d = rng.normal(0, 1, 40)
    sums, sizes = stats._subsets(d, 1)
    means = np.sort(sums / sizes)
    ends = means[249], means[-250]
    assert stats.interval(d, 1, differ=False) == pytest.approx(ends, rel=1e-9)


@pytest.mark.parametrize(
    "zero", [[(0.0, 2.0)], [(2.0, 0.0)], [(0.0, 0.0)], [(0.0, 1.0), (2.0, 0.0), (0.0, 0.0)]]
)
def test_the_totals_of_subsets_with_zeros(
    zero: list[tuple[float, float]], rng: np.random.Generator
) -> None:
    """A subset without any control, or treatment, has a ratio beyond all others."""
    pairs = [*zero, *((float(a), float(b)) for a, b in np.exp(rng.normal(0, 0.3, (5, 2))))]
    sums = [np.array(pairs)[chosen].sum(axis=0) for chosen in signs_of(len(pairs)) > 0]
    with np.errstate(divide="ignore"):
        ratios = sorted(float(np.log(after) - np.log(before)) for before, after in sums
                        if before > 0 or after > 0)  # fmt: skip
    place = int(0.1 * (len(ratios) + 1))
    _, low, high = stats.totals(pairs, 1, 0.2)
    assert (low, high) == pytest.approx((ratios[place - 1], ratios[-place]))


@pytest.mark.parametrize("way", [1, -1])
def test_the_farthest_an_end_moves(way: int) -> None:
    """If one pair has nearly all weight, the farthest end is the mean of this pair."""
    d = way * np.array([1.0, 1e-3, 2e-3, 3e-3, 4e-3, 5e-3, 6e-3, 7e-3])
    means = sorted(float(d[chosen].mean()) for chosen in signs_of(8) > 0 if chosen.any())
    near, far = (means[5], means[-1]) if way > 0 else (means[-6], means[0])
    assert far == way
    assert stats.interval(d, 1)[::way] == pytest.approx((near, far))


@pytest.mark.parametrize("way", [1, -1])
def test_an_end_moves_outward_where_pairs_differ(rng: np.random.Generator, way: int) -> None:
    """An end is moved outward by BCa on the side of the long tail, and not past 0."""
    d = way * rng.exponential(1, 12)
    subsets = signs_of(12) > 0
    means = sorted(float(d[chosen].mean()) for chosen in subsets if chosen.any())
    lean = abs(float(known.skew(d))) / 6 / sqrt(12)
    z = lean + known.norm.isf(0.025)
    place = int(known.norm.sf(lean + z / (1 - lean * z)) * (len(means) + 1))
    exact, found = stats.interval(d, 1, differ=False), stats.interval(d, 1)
    assert 1 < place < int(0.025 * len(means))
    far = means[-place] if way > 0 else means[place - 1]
    assert found == pytest.approx((exact[0], far) if way > 0 else (far, exact[1]))
    same = np.array([0.1, 0.3, 0.2, 0.2, 0.1, 0.3, 0.2])
    assert stats.interval(same, 1) == stats.interval(same, 1, differ=False)
    assert stats.interval(np.full(8, 0.2), 1) == pytest.approx((0.2, 0.2))
    tail = way * np.array([-1.0, -1.1, -0.9, -1.0, -1.2, -0.8, -0.001, -1.0])
    found = stats.interval(tail, 1)
    assert max(found) <= 0 if way > 0 else min(found) >= 0


def test_lost_pairs_are_as_clear_as_the_clearest() -> None:
    d = [-0.1, -0.3, 0.05]
    assert with_lost(d, 2) == [0.3, 0.3, *d]
    assert with_lost([-each for each in d], 2) == [-0.3, -0.3, 0.1, 0.3, -0.05]
    assert with_lost([1.0, -1.0], 1) == [1.0, 1.0, -1.0]
    assert with_lost(d, 1, -1.0) == [-0.3, *d]
    assert with_lost(d, 0) == d
    assert with_lost([], 2) == [0, 0]


@pytest.mark.parametrize("anytimes", [False, True])
def test_p_with_lost_pairs_against_it(anytimes: bool) -> None:
    pairs = [(1.0, exp(each)) for each in (-0.1, -0.3, -0.2, -0.2, -0.1, -0.3, -0.2)]
    alone = stats.analyse_anytime(pairs, 1) if anytimes else stats.analyse(pairs, 1)
    found = stats.against(alone, 2, 1, anytimes)
    d = [0.3, 0.3, *alone.d]
    one_sided = min(2 / anytime.evidence(d, (-1,)), 1)
    assert found.p == (one_sided if anytimes else stats.p_value(np.array(d), 1))
    assert (found.low, found.high, found.estimate) == (alone.low, alone.high, alone.estimate)
    assert found.p > alone.p


@pytest.mark.parametrize("way", [1, -1])
@pytest.mark.parametrize("anytimes", [False, True])
def test_lost_pairs_are_no_finding_themselves(
    anytimes: bool, way: int, rng: np.random.Generator
) -> None:
    """If lost pairs outweigh the noise, no effect in the other direction is found, at any look."""
    d = rng.normal(0, 0.1, 20)
    pairs = [(1.0, exp(way * each)) for each in d - d.mean() + 0.001]
    effect = stats.analyse(pairs, 1)
    assert effect.estimate == pytest.approx(way * 0.001)
    for lost in (8, 20):
        assert stats.against(effect, lost, 1, anytimes).p == 1
    metric = Metric.parse("a=vmstat.nr_a")
    assert not anytime.answered([metric], {"a": pairs}, 0.0, {"a": 8})
    assert anytime.p_against([way * 0.1] * 9, 0) == pytest.approx(anytime.p_anytime([0.1] * 9))
    assert anytime.p_against([way * 0.1] * 9, 1) == pytest.approx(
        2 / reached([-0.1, *[0.1] * 9], (1,))
    )


@pytest.mark.parametrize(
    ("lost", "pairs", "few"),
    [(0, 5, True), (1, 5, True), (2, 19, False), (2, 20, True), (4, 40, True), (5, 49, False)],
)
def test_few_lost_pairs(lost: int, pairs: int, few: bool) -> None:
    """Few pairs may be lost: one, or one in ten, which is one in twenty blocks if each is in a pair
    of its own.
    """
    assert few_lost(lost, pairs) == few


@pytest.mark.parametrize(
    ("pairs", "lost", "against", "most", "need"),
    [
        (12, 0, 0, 48, 12),
        (12, 1, 0, 48, 13),
        (12, 1, 1, 48, 19),  # 1 + ceil(1.5 * sqrt(12)) = 6
        (16, 1, 1, 48, 23),  # 1 + 1.5 * 4
        (12, 3, 0, 48, 30),  # one in ten
        (12, 3, 0, 30, 30),
        (12, 3, 0, 29, 12),
    ],
)
def test_pairs_for_lost_ones(pairs: int, lost: int, against: int, most: int, need: int) -> None:
    assert pairs_for_lost(pairs, lost, against, most) == need


def test_the_place_in_the_pair() -> None:
    """A clear difference between first and second blocks is not an effect."""
    first = np.array([True, False, True, True, False, False, True, False])
    signs = np.where(first, -1.0, 1.0)
    noise = np.array([0.02, -0.01, 0.01, 0.0, -0.02, 0.01, 0.0, -0.01])
    d = signs * (0.5 + noise) - 0.1
    rest = stats.without_place(d, first)
    assert rest is not None
    assert rest.mean() == pytest.approx(-0.1, abs=0.01)
    assert rest.std(ddof=1) < 0.03
    late = d * signs
    t = known.ttest_1samp(late, 0).statistic
    shift = late.mean() - late.std(ddof=1) * 4 / sqrt(8)
    assert t > 4
    assert stats.without_place(d - signs * shift * 0.99, first) is not None
    assert stats.without_place(d - signs * shift * 1.01, first) is None
    uneven = np.array([True] * 6 + [False] * 2)
    signs = np.where(uneven, -1.0, 1.0)
    found = stats.without_place(signs * (0.5 + noise) - 0.1, uneven)
    assert found is not None
    assert found.mean() == pytest.approx(-0.1, abs=0.02)
    pairs = [(1.0, exp(each)) for each in d]
    assert stats.analyse(pairs, 1, first.tolist()).estimate == pytest.approx(rest.mean())
    assert stats.analyse(pairs, 1).estimate == pytest.approx(d.mean())
    assert stats.analyse(pairs, 1, [True] * 8).estimate == pytest.approx(d.mean())


def test_the_place_counts_from_four_standard_errors_on() -> None:
    """The place in the pair counts from four standard errors on: of 3 and 5, the mean is 4 and its
    error 1.
    """
    first = np.array([True, False])
    assert stats.without_place(np.array([-5.0, 3.0]), first) == pytest.approx([-1.0, -1.0])
    assert stats.without_place(np.array([-5.0, 2.99]), first) is None


def test_an_effect_has_its_deviation(rng: np.random.Generator) -> None:
    d = rng.normal(0, 1, 9)
    effect = stats.analyse([(1.0, exp(each)) for each in d], 1)
    assert (effect.scale, effect.pairs) == ("ratio", 9)
    assert effect.deviation == pytest.approx(d.std(ddof=1))
    assert effect.d == pytest.approx(d)
    zeros = [(0.0, 2.0), (3.0, 5.0), (5.0, 4.0)]
    effect = stats.analyse(zeros, 1)
    shares = np.array([each[1] / 11 - each[0] / 8 for each in zeros])
    assert effect.scale == "totals"
    assert effect.estimate == pytest.approx(log(11 / 8))
    assert effect.deviation == pytest.approx(3 * shares.std(ddof=1))


def test_blocks_that_are_normal_in_logarithms(rng: np.random.Generator) -> None:
    """The mean of lognormal blocks is exp(m + s^2 / 2), so the ratio of means has half the
    difference of the variances.
    """
    logs = rng.normal([0.0, 0.2], [0.1, 0.6], (20, 2))
    d, sums = logs[:, 1] - logs[:, 0], logs.sum(axis=1)
    control, treatment = (float(np.var(side, ddof=1)) / 2 for side in logs.T)
    rise, down, up = stats.rise_of_mean(d, sums, 0.05)
    assert rise == pytest.approx(treatment - control)
    least, most = (19 / known.chi2.ppf(p, 19) for p in (0.95, 0.05))
    square = float(np.asarray(np.corrcoef(logs.T))[0, 1]) ** 2
    for off, first, second in (
        (down, treatment * (1 - least), control * (most - 1)),
        (up, treatment * (most - 1), control * (1 - least)),
    ):
        assert off**2 == pytest.approx(first**2 + second**2 - 2 * square * first * second)
    mean, low, high = stats.means_by_logs(d, sums, 0.05)
    error = known.t.ppf(0.95, 19) * d.std(ddof=1) / sqrt(20)
    assert mean == pytest.approx(d.mean() + rise)
    assert (mean - low, high - mean) == pytest.approx((np.hypot(error, down), np.hypot(error, up)))
    drift = rng.normal(0, 5, 20)
    shared = stats.rise_of_mean(d, sums + 2 * drift, 0.05)
    alone = stats.rise_of_mean(d + rng.normal(0, 7, 20), sums + 2 * drift, 0.05)
    assert shared[2] < alone[2] / 2
    assert stats.rise_of_mean(np.zeros(5), np.zeros(5), 0.05) == (0, 0, 0)


def test_small_formulas() -> None:
    for pairs, metrics in ((8, 1), (8, 3), (30, 2)):
        limit = known.t.ppf(1 - 0.025 / metrics, pairs - 1)
        least = (limit + known.t.ppf(0.8, pairs - 1)) * 0.3 / sqrt(pairs)
        assert stats.detectable(0.3, pairs, metrics) == pytest.approx(least)
    aa = stats.Effect("ratio", 9, -0.2, 0, 0, 1, 0.3)
    spread = known.t.ppf(0.975, 8) * 0.3 / 4
    assert stats.floor(aa, 16) == pytest.approx(0.2 + spread)
    for hits, number in ((0, 0), (0, 5), (3, 5), (5, 5), (9, 12)):
        chance = sum(special.comb(number, k) for k in range(hits, number + 1)) / 2**number
        assert stats.binomial_tail(hits, number) == pytest.approx(chance)
    assert stats.imbalance(30, 10) == pytest.approx(known.chi2.sf(10, 1))
    assert stats.imbalance(7, 0) == pytest.approx(0.00815, abs=1e-5)
    assert stats.imbalance(0, 0) == 1


def test_both_arms_vary_as_much(rng: np.random.Generator) -> None:
    logs = rng.normal(0, [0.1, 0.5], (12, 2))
    pairs = [(exp(a), exp(b)) for a, b in logs]
    more, less = (stats.spread_p(pairs, 1, way) for way in (True, False))
    assert more < 0.01 < 0.99 < less
    some = rng.normal([0.0, 0.4], [0.1, 0.15], (9, 2))
    d, sums = some[:, 1] - some[:, 0], some.sum(axis=1)
    products = (d - d.mean()) * (sums - sums.mean())
    found = stats.spread_p([(exp(a), exp(b)) for a, b in some], 1, True)
    assert found == pytest.approx(np.mean(signs_of(9) @ products >= products.sum() - 1e-9))
    assert more == pytest.approx(stats.spread_p([(exp(b), exp(a)) for a, b in logs], 1, False))


def test_what_is_left_over_is_tossed_999_times(rng: np.random.Generator) -> None:
    """What is left over is tossed 999 times: the clearest result of all has a p of one in 1,000."""
    first = rng.integers(0, 2, 30) == 1
    treated = np.stack([first, ~first], axis=-1).reshape(-1)
    before = np.concatenate([[False], treated[:-1]])
    y = np.concatenate([[0.0], -1.0 * treated - 0.5 * before + rng.normal(0, 1e-3, 60)])
    share, p = stats.left_over(y, first, 1)
    assert share == pytest.approx(0.5, abs=0.01)
    assert p == 1e-3


def least_squares(y: np.ndarray, *causes: np.ndarray) -> np.ndarray:
    """Return the contribution of each cause, by least squares over known values."""
    there = np.isfinite(y)
    columns = np.stack([cause[there] for cause in causes], axis=1)
    return np.asarray(np.linalg.lstsq(columns, y[there], rcond=None)[0])


@pytest.mark.parametrize("gaps", [[], [0, 3, 8]])
@pytest.mark.parametrize("effect", [-0.2, 0.2])
def test_what_is_left_over_by_least_squares(
    effect: float, gaps: list[int], rng: np.random.Generator
) -> None:
    """What is left over is fitted by least squares to differences of adjacent blocks, by the arms
    of both and of the one before.

    The coins are then tossed again. The observed coins have their exact probability: one in 256,
    despite rounding.
    """
    first = rng.integers(0, 2, 8) == 1
    y = rng.normal(0, 0.1, 17)

    def arms(of: np.ndarray) -> np.ndarray:
        return np.array([[0, one, 1 - one] for one in of], float)[:, 1:].ravel()

    def regress(y: np.ndarray, of: np.ndarray) -> np.ndarray:
        now = np.diff(arms(of), prepend=0)
        return least_squares(np.diff(y), now, np.concatenate([[0], now[:-1]]))

    y[1:] += effect * arms(first)
    y[gaps] = np.nan
    sides = np.where(first[:, None], y[1:].reshape(-1, 2), y[1:].reshape(-1, 2)[:, ::-1])
    mean = np.nanmean(sides[:, 0] - sides[:, 1])
    own, left = regress(y, first)
    noise = y - np.concatenate([[0], arms(first) * mean])
    coins = np.random.default_rng(7).integers(0, 2, (999, 8)) == 1
    chance = np.array([regress(noise, each)[1] for each in coins])
    p = (1 + (chance * np.sign(mean) >= left * np.sign(mean) - 1e-9).sum()) / 1000
    assert stats.left_over(y, first, 7) == pytest.approx((left / own, p))
    assert 0.001 < p < 1


@pytest.mark.parametrize("effect", [-0.2, 0.2])
def test_what_is_left_in_units_by_least_squares(effect: float, rng: np.random.Generator) -> None:
    """What is left in units is fitted with a level for each unit and each block; the coins of
    blocks are tossed.
    """
    treated = np.array([rng.permuted([True, True, False]) for _ in range(7)])
    y = rng.normal(0, 0.1, (7, 3)) + effect * treated
    arms = treated.astype(float)

    def regress(y: np.ndarray, *causes: np.ndarray) -> np.ndarray:
        blocks, units = y.shape
        levels = [np.equal.outer(np.arange(blocks), [n] * units).astype(float)
                  for n in range(blocks)]  # fmt: skip
        own = [np.tile(np.arange(units) == n, (blocks, 1)).astype(float) for n in range(1, units)]
        flat = [each.ravel() for each in (*causes, *levels, *own)]
        return least_squares(y.ravel(), *flat)[: len(causes)]

    (now,) = regress(y, arms)
    own, left = regress(y[1:], arms[1:], arms[:-1])
    noise, hits = y - now * arms, 0
    for coins in np.random.default_rng(7).integers(0, 2, (999, 7, 1)) == 1:
        tossed = np.where(coins, 1 - arms, arms)
        by_chance = regress(noise[1:], tossed[1:], tossed[:-1])[1]
        hits += by_chance * np.sign(now) >= left * np.sign(now) - 1e-9
    assert stats.left_in_units(y, treated, 7) == pytest.approx((left / own, (1 + hits) / 1000))
    assert 0 < hits < 999
    assert stats.left_in_units(np.zeros((7, 3)), treated, 7)[0] == 0


def test_growth_is_one_sided(rng: np.random.Generator) -> None:
    d = rng.normal(-0.2, 0.01, 8)
    assert stats.growth_p(d, 1.5 * d, 1) == stats.growth_p(-d, -1.5 * d, 1) == 2**-8
    assert stats.growth_p(1.5 * d, d, 1) == stats.growth_p(d, d, 1) == 1


# Bounds that hold at any look


RATES = (0.15, 0.3, 0.6, 1.0, 1.6, 2.5)  # bets on each pair, in units of the sizes so far


def reached(d: list[float], signs: tuple[int, ...]) -> float:
    """Return the maximum of the running mean of products of exp(k d) / cosh(k d)."""
    most = 1.0
    for number in range(1, len(d) + 1):
        if not any(d[:number]):
            continue
        products = []
        for sign, rate in itertools.product(signs, RATES):
            product = 1.0
            for place in range(1, number + 1):
                size = sqrt(sum(each * each for each in d[:place]) / place)
                product *= (
                    exp(sign * rate * d[place - 1] / size)
                    / np.cosh(rate * d[place - 1] / size)
                    if size else 1.0
                )  # fmt: skip
            products.append(product)
        most = max(most, float(np.mean(products)))
    return most


def test_evidence_is_the_product_of_fair_games() -> None:
    for d in ([0.0, 1.0, 1.0, 2.0, 1.0], [1.0, -1.0, 1.0], [-1.0, -2.0, -1.0, -3.0, 5.0], [0.0]):
        assert anytime.evidence(d) == pytest.approx(reached(d, (1, -1)))
        assert anytime.p_anytime(d) == pytest.approx(1 / reached(d, (1, -1)))
        assert anytime.p_below_anytime(d) == pytest.approx(1 / reached(d, (-1,)))


def test_the_sequence_has_what_is_not_rejected(rng: np.random.Generator) -> None:
    pairs = [(1.0, exp(each)) for each in rng.normal(-0.3, 0.1, 20)]
    scale, middle, low, high = anytime.sequence(pairs)
    d = differences(pairs)[1]
    assert scale == "ratio"
    assert middle == pytest.approx(np.mean(d))
    for end, inside in ((low, 1), (high, -1)):
        assert anytime.p_anytime([each - end for each in d]) <= 0.05
        assert anytime.p_anytime([each - end - inside * 0.02 for each in d]) > 0.05
    assert low < middle < high
    wide = anytime.sequence(pairs, 0.01)
    assert wide[2] < low
    assert wide[3] > high
    assert anytime.sequence(pairs[:3])[2:] == (-inf, inf)


def bisected(rest: Callable[[float], list[float]], middle: float, far: float) -> float:
    """Return the end of an interval, to 1/4,096 of the range searched."""
    near, ends = 0.0, far
    if reached(rest(middle + far), (1, -1)) < 20:
        return inf if far > 0 else -inf
    for _ in range(12):
        half = (near + ends) / 2
        near, ends = (near, half) if reached(rest(middle + half), (1, -1)) >= 20 else (half, ends)
    return middle + ends


def test_the_ends_of_a_sequence(rng: np.random.Generator) -> None:
    """The ends of a sequence are searched within eight times the farthest pair; beyond, there is
    none.
    """
    for pairs in ([(1.0, exp(each)) for each in rng.normal(-0.3, 0.1, 9)],
                  [(-1.0, each) for each in rng.normal(3, 20, 12)],
                  [(0.0, 4.0), (2.0, 5.0), (3.0, 2.0)] * 3,
                  [(0.5, 1.0), (0.0, 0.3)] * 5):  # fmt: skip
        scale, middle, low, high = anytime.sequence(pairs)
        d = differences(pairs)[1]
        spread = max(abs(each - (0.0 if scale == "totals" else middle)) for each in d)
        first = pairs[0] == (0.5, 1.0)  # of logarithms; the following pairs are as large
        unit = log(2) / 0.5 if first else 1.0

        def rest(
            effect: float, pairs: list[tuple[float, float]] = pairs, d: list[float] = d,
            scale: str = scale, first: bool = first, unit: float = unit,
        ) -> list[float]:  # fmt: skip
            if scale == "totals":
                rest = [unit * (after - exp(effect) * before) for before, after in pairs]
                return [log(2) - effect, *rest[1:]] if first else rest
            return [each - effect for each in d]

        assert abs(sum(rest(middle))) < 1e-9
        ends = [bisected(rest, middle, way * 8 * spread) for way in (-1, 1)]
        assert [low, high] == pytest.approx(ends)
    for size in (0.01, 100.0):
        assert anytime.sequence([(-size, size), (0.0, size)])[2:] == (-inf, inf)


@pytest.mark.parametrize(
    ("texts", "effects", "margin", "lost", "done"),
    [
        (["lower"], [0.5], 0, {}, True),
        (["lower"], [2.0], 0, {}, True),
        (["lower"], [1.0], 0, {}, False),
        (["lower"], [1.0], 5, {}, True),
        (["higher"], [1.0], 5, {}, True),
        (["higher"], [1.0], 0.1, {}, False),
        (["higher"], [0.98], 5, {}, True),
        (["higher"], [0.93], 5, {}, True),  # worse, and found therefore
        ([""], [1.0], 5, {}, False),
        ([""], [0.5], 0, {}, True),
        (["lower", "lower"], [0.5, 1.0], 0, {}, False),
        (["lower", "lower"], [0.5, 1.0], 5, {}, True),
        (["lower", ""], [0.5, 1.0], 0, {}, True),
        (["lower", ""], [1.0, 1.0], 5, {}, False),
        (["lower", "lower"], [1.0, 1.0], 5, {}, True),
        (["lower", "lower guard 5%"], [0.5, 1.0], 0, {}, True),
        (["lower", "lower guard 5%"], [0.5, 2.0], 0, {}, False),
        (["lower", "lower guard 0.1%"], [0.5, 1.0], 5, {}, False),
        (["lower guard 5%"], [1.0], 0, {}, True),
        (["lower guard 5%"], [2.0], 0, {}, False),
        (["lower", "lower guard 5%"], [1.0, 1.0], 0, {}, False),
        (["lower"], [0.5], 0, {"m0": 20}, False),
        (["lower"], [1.0], 5, {"m0": 20}, False),
        (["lower"], [0.5], 0, {"m1": 20}, True),
    ],
)
def test_when_there_is_an_answer(
    texts: list[str], effects: list[float], margin: float, lost: dict[str, int], done: bool
) -> None:
    """24 pairs with noise of 1 %; a metric with a direction must be found or shown."""
    metrics = [Metric.parse(f"m{n}=vmstat.nr_a {text}".strip()) for n, text in enumerate(texts)]
    noise = np.random.default_rng(4).normal(0, 0.01, (len(texts), 24))
    pairs = {each.name: [(1.0, effect * exp(d)) for d in row]
             for each, effect, row in zip(metrics, effects, noise, strict=True)}  # fmt: skip
    assert anytime.answered(metrics, pairs, margin, lost) == done


def test_many_metrics_are_harder_to_answer() -> None:
    """More metrics are harder to answer: p is 0.047 with 7 such pairs, and twice that for two
    metrics.
    """
    pairs = [(1.0, 2.0 + n / 100) for n in range(7)]
    p = anytime.p_anytime(differences(pairs)[1])
    assert 0.025 < p < 0.05
    metrics = [Metric.parse(f"{name}=vmstat.nr_a") for name in "ab"]
    assert anytime.answered(metrics[:1], {"a": pairs}, 0.0)
    assert not anytime.answered(metrics, {"a": pairs, "b": []}, 0.0)


def test_the_sequence_of_equal_pairs() -> None:
    """If no pair varies, the minimum number of pairs gives an answer."""
    assert anytime.sequence([(1.0, 2.0)] * 5, 2 / 2**5)[2:] == pytest.approx((log(2), log(2)))
    for number, ends in ((5, (-inf, inf)), (6, (log(2), log(2)))):
        found = anytime.sequence([(1.0, 2.0)] * number)
        assert found == ("ratio", pytest.approx(log(2)), *map(pytest.approx, ends))
    zeros = [(0.0, 2.0), (2.0, 5.0), (3.0, 3.0)] * 12
    scale, middle, low, high = anytime.sequence(zeros)
    assert scale == "totals"
    assert middle == pytest.approx(log(2))
    assert 0 < low < middle < high < inf


# Hosts


@pytest.mark.parametrize("first", [{}, dict.fromkeys(range(8), True)])
def test_without_both_orders_nothing_is_known_of_the_place(first: dict[int, bool]) -> None:
    """If all pairs of a host have the same order, its differences are not corrected for
    the place.
    """
    pairs = {pair: (1.0, 1.5 + pair / 100) for pair in range(8)}
    recording: Any = SimpleNamespace(
        by_pair=lambda *_: pairs, firsts=lambda: first, lost_pairs=lambda *_: (2, 2),
        end={"status": "done"}, planned=10, header={"started": "2026-01-01T00:00:10+00:00"},
        of_phase=lambda _: [(n, n // 2, "") for n in range(16)],
        blocks={n: {"began": 3.0 * n} for n in range(16)},
    )  # fmt: skip
    found = pool._effect("a", recording, Metric.parse("vmstat.pgfault/s"))
    assert isinstance(found, pool.HostEffect)
    assert found.sums == pytest.approx(found.d)  # as the control is 1
    assert found.moments == pytest.approx(1767225610 + 6.0 * np.arange(8))
    assert found.against == 2
    assert found.d == pytest.approx([log(after) for _, after in pairs.values()])


def test_noise_of_hosts_with_few_pairs(rng: np.random.Generator) -> None:
    """The noise of hosts with few pairs: logarithms of variances are unbiased, and shrink to their
    mean by the share of chance.
    """
    sizes = [0.01, 0.02, 0.3]
    hosts = [pool.HostEffect(str(s), rng.normal(0, s, 6 + n)) for n, s in enumerate(sizes)]
    freedom = np.array([5, 6, 7]) / 2
    logs = np.log([np.var(host.d, ddof=1) for host in hosts])
    logs += np.log(freedom) - special.digamma(freedom)
    chance = special.polygamma(1, freedom)
    real = max(np.var(logs, ddof=1) - chance.mean(), 0)
    near = logs.mean() + real / (real + chance) * (logs - logs.mean())
    assert pool.variances_of(hosts) == pytest.approx(np.exp(near) / [6, 7, 8])


def test_hosts_together(rng: np.random.Generator) -> None:
    """Several hosts have the interval of Hartung and Knapp, Q, I2 and the interval of the next
    host, by their formulas.
    """
    hosts = [pool.HostEffect(str(n), rng.normal(m, 0.1, 10)) for n, m in enumerate((0, 0.3, -0.2))]
    effects, v = np.array([host.d.mean() for host in hosts]), pool.variances_of(hosts)
    tau2 = pool.tau_squared(effects, v)
    w = 1 / (v + tau2)
    mean = (w * effects).sum() / w.sum()
    error = sqrt((w * (effects - mean) ** 2).sum() / 2 / w.sum())
    fixed = (effects / v).sum() / (1 / v).sum()
    q = ((effects - fixed) ** 2 / v).sum()
    found = pool.pooled(hosts, tosses=999)
    coins = pool.Coins.of(hosts, 1, 999)
    half = known.t.ppf(0.975, 2) * error
    assert mean - half < coins.low < coins.high < mean + half
    assert (found.here, found.mean) == pytest.approx((effects.mean(), mean))
    assert (found.low, found.high) == pytest.approx(
        (mean - known.t.ppf(0.975, 2) * error, mean + known.t.ppf(0.975, 2) * error)
    )
    assert found.p == pytest.approx(2 * known.t.sf(abs(mean) / error, 2))
    assert (found.tau, found.i2) == pytest.approx((sqrt(tau2), 1 - 2 / q))
    assert found.heterogeneity_p == pytest.approx(known.chi2.sf(q, 2))
    wide = known.t.ppf(0.975, 1) * sqrt(tau2 + error**2)
    assert (found.next_low, found.next_high) == pytest.approx((mean - wide, mean + wide))


def test_coins_of_two_hosts_can_be_counted() -> None:
    hosts = [pool.HostEffect("a", np.array([0.3, 0.1, 0.2])), pool.HostEffect("b", np.ones(4))]
    one, other = signs_of(3) @ hosts[0].d / 3, signs_of(4) @ hosts[1].d / 4
    sums = np.add.outer(one, other).ravel()
    share = float(np.mean(np.abs(sums) >= 1.2 - 1e-9))
    found = pool.pooled(hosts, tosses=9999).p_here
    assert pool.pooled(hosts, seed=1).p_here == pool.pooled(hosts).p_here == found
    assert found == pytest.approx(share, abs=4 * sqrt(share / 9999))
    assert found * 10_000 == pytest.approx(round(found * 10_000))


def test_power_of_hosts() -> None:
    """The power of a fleet is that of a table of t tests: 5 % is found in 80 % of fleets."""
    for hosts, metrics in ((4, 1), (10, 2)):
        limit = known.t.ppf(1 - 0.025 / metrics, hosts - 1)
        away = 0.2 / 0.1 * sqrt(hosts)
        chance = known.nct.sf(limit, hosts - 1, away)
        assert fleet.power(hosts, 0.1, 0.2, metrics) == pytest.approx(chance)
    assert fleet.power(4, 0.0, 0.1, 1) == fleet.power(40, 1e-9, 0.1, 1) == 1
    for few, first in ((1, 3), (3, 3), (11, 11), (20, 20), (21, None)):
        assert fleet._first(partial(le, few), 3, 20) == first
    for tau in (0.0, 0.02):
        pairs, more = fleet._size(5, 0.1, log1p(0.05), tau, 1)
        assert pairs
        assert more is None
        errors = [sqrt(tau**2 + 0.01 / number) for number in (pairs, pairs - 1)]
        assert [fleet.power(5, each, log1p(0.05), 1) >= 0.8 for each in errors] == [True, False]
    none, least = fleet._size(5, 0.1, log1p(0.05), 0.1, 1)
    assert none is None
    assert least
    enough = [fleet.power(number, 0.1, log1p(0.05), 1) >= 0.8 for number in (least, least - 1)]
    assert enough == [True, False]
    assert fleet._size(5, 0.1, log1p(0.0001), 0.1, 1) == (None, None)


# Signs of faults


@pytest.mark.parametrize(
    ("change", "left", "grows"),
    [
        ({}, False, False),
        ({"share": 0.06, "share_p": 0.02}, True, False),
        ({"share": 0.05, "share_p": 0.02}, False, False),
        ({"share": 0.5, "share_p": 0.021}, False, False),
        ({"first": 0.1, "second": 0.2, "halves_p": 0.021}, False, False),
        ({"first": 19.0, "second": 20.0, "halves_p": 0.02}, False, False),
        ({"first": 18.9, "second": 20.0, "halves_p": 0.02}, False, True),
        ({"first": -0.1, "second": -0.2, "halves_p": 0.02}, False, True),
        ({"first": 0.1, "second": 0.2, "halves_p": 0.021}, False, False),
        ({"first": 19.0, "second": 20.0, "halves_p": 0.02}, False, False),
        ({"first": -0.2, "second": -0.1, "halves_p": 0.02}, False, False),
        ({"first": 0.096, "second": -0.1, "halves_p": 0.02}, False, False),
        ({"first": 0.094, "second": -0.1, "halves_p": 0.02}, False, True),
    ],
)
def test_carry_over_that_matters(change: dict[str, float], left: bool, grows: bool) -> None:
    found = carry.Carry(True, **change)
    assert (found.left, found.grows, found.seen) == (left, grows, left or grows)
    assert len([*found.words(str)]) == left + grows


def test_what_was_not_tested_is_no_carry_over() -> None:
    halves = {"first": 0.0, "second": 0.0, "p": 1.0}
    found = carry.Carry()
    assert found.data(lambda effect: effect) == {
        "tested": False, "seen": False, "left": {"share": 0.0, "p": 1.0}, "halves": halves,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("control", "treatment", "p", "broken", "strained"),
    [
        (10.0, 10.2, 0.0009, True, False),
        (10.2, 10.0, 0.0009, True, False),
        (10.0, 10.2, 0.002, False, False),
        (10.0, 10.05, 0.0001, False, False),
        (10.0, 11.1, 0.5, False, True),
        (11.1, 10.0, 0.5, False, True),
        (10.9, 10.9, 0.5, False, False),
        (10.0, 11.0, 0.5, False, False),
        (10.0, 10.2, 0.001, False, False),
        (0.0, 0.1, 0.0009, False, False),
        (0.0, 0.1001, 0.0009, True, False),
    ],
)
def test_seconds_in_balance(
    control: float, treatment: float, p: float, broken: bool, strained: bool
) -> None:
    found = Balance("seconds", control, treatment, p, planned=10.0)
    assert (found.broken, found.strained) == (broken, strained)


def test_units_in_balance() -> None:
    assert Balance("units", 40, 90, 0.0001).broken
    assert not Balance("units", 40, 60, 0.01).broken
    assert not Balance("units", 40, 900, 0.0001).strained


# Numbers in the kernel's texts


def test_numbers_of_zones() -> None:
    numbers = flatten("a_normal 3\na_movable 4\na 1\nb_dma 2\nb_dma32 5\nb_other 9\n\nbad x")
    assert (len(numbers), numbers["b_dma32"]) == (6, 5)
    assert [sum_of_zones(numbers, key) for key in ("a", "b", "c")] == [1, 7, None]
    assert without_zones(["a_normal", "b_other"]) == ["a_normal", "b_other", "a"]
    assert flatten("8:0 rbytes=10 wbytes=20 x\n") == {"8:0.rbytes": 10, "8:0.wbytes": 20}


@pytest.mark.parametrize(
    ("percentile", "time"), [(0, 100), (25, 150), (50, 200), (75, 450), (100, 500), (None, 300)]
)
def test_times_spread_evenly_in_their_bucket(percentile: float | None, time: float) -> None:
    counts = {(400.0, 500.0): 5.0, (100.0, 200.0): 5.0, (900.0, 990.0): 0.0, (300.0, 400.0): 0.0}
    assert time_of(counts, percentile) == pytest.approx(time)


def test_mean_time_is_exact_where_the_sum_is_known() -> None:
    counts = {(100.0, 200.0): 4.0}
    assert time_of(counts, None, 440.0) == 110
    assert time_of(counts, None, -1.0) == time_of(counts, None) == 150
    assert time_of(counts, None, 0.5) == 0.125
    assert time_of({(100.0, 200.0): 1.0}, 50) == 150
    assert time_of({(1.0, 2.0): 0.0}, None, 5.0) is None
    assert time_of({}, 50) is None
