# SPDX-License-Identifier: GPL-2.0
"""The arithmetic of experiments, against known values or exact counts."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from mmpolicy.ab.design import Design, least_pairs, suggest_pairs
from mmpolicy.ab.metrics import Metric
from mmpolicy.ab.report import stats
from mmpolicy.ab.report.stats import (
    Vector,
    analyse,
    analyse_median,
    detectable,
    growth_p,
    holm,
    imbalance,
    interval,
    left_over,
    median_interval,
    p_value,
    totals,
)  # fmt: skip
from mmpolicy.ab.sources import Arm, CgroupFile, Command, Psi, Sample, Units, Vmstat, flatten


def counted_p(d: list[float]) -> float:
    """Return the p of the randomisation test by trying all signs."""
    means = [abs(np.dot(signs, d)) for signs in itertools.product((-1, 1), repeat=len(d))]
    return float(np.mean([mean >= abs(sum(d)) - 1e-12 for mean in means]))


@pytest.mark.parametrize("size", [2, 5, 8])
def test_p_is_exact(size: int) -> None:
    d = np.random.default_rng(size).normal(0.5, 1, size)
    assert p_value(d, 1) == pytest.approx(counted_p(list(d)))


def test_interval_and_p_agree() -> None:
    rng = np.random.default_rng(7)
    for size in (6, 9, 12):
        for _ in range(60):
            d = rng.normal(0.6, 1, size)
            low, high = interval(d, 1)
            assert (low >= 0 or high <= 0) == (p_value(d, 1) <= 0.05)


@pytest.mark.parametrize("size", [6, 7, 20, 61])
def test_interval_of_the_median_is_that_of_the_sign_test(size: int) -> None:
    """The interval of the median holds all values that the sign test does not reject."""
    d = np.sort(np.random.default_rng(size).normal(1, 0.3, size))
    low, high = median_interval(d)
    for value in (d[:-1] + d[1:]) / 2:
        p = analyse_median([(1.0, float(np.exp(each - value))) for each in d], 1).p
        most = max((d > value).sum(), (d < value).sum())
        assert p == pytest.approx(min(2 * binom.sf(most - 2, size, 0.5), 1))  # one to spare
        assert (low < value < high) == (p >= 0.05)


def test_a_median_is_not_moved_by_what_lies_far_out() -> None:
    pairs = [(1.0, 1.1), (1.0, 0.8), *[(1.0, 0.9)] * 11]
    near = analyse_median(pairs, 1)
    assert (near.scale, near.estimate) == ("ratio", np.log(0.9))
    assert near.p == pytest.approx(2 * (78 + 13 + 1) / 2**13)
    assert (near.low, near.high) == (np.log(0.9), np.log(0.9))
    assert analyse_median([(1.0, 1e9), *pairs[1:]], 1).high == near.high
    equal = analyse_median([(2.0, 2.0)] * 7, 1)
    assert (equal.estimate, equal.low, equal.high, equal.p) == (0, -np.inf, np.inf, 1)
    assert median_interval([0.1] * 8) == (-np.inf, np.inf)
    assert median_interval([0.1] * 9) == (0.1, 0.1)
    counts = [(0.0, 2.0), (1.0, 3.0)] * 4
    assert analyse_median(counts, 1).p == analyse(counts, 1).p


def test_interval_of_many_is_that_of_students_t() -> None:
    d = np.random.default_rng(3).normal(0, 1, 80)
    half = 1.99 * d.std(ddof=1) / 80**0.5
    assert interval(d, 1) == pytest.approx((d.mean() - half, d.mean() + half), abs=0.03)


def test_tosses_agree_with_all_outcomes() -> None:
    """Beyond 16 pairs, the p is that of random tosses, which is close to the exact one."""
    for size in (17, 18):
        d = np.random.default_rng(size).normal(0.45, 1, size)
        signs = 2 * ((np.arange(2**size)[:, None] >> np.arange(size)) & 1) - 1
        exact = float(np.mean(np.abs(signs @ d) >= abs(d.sum()) - 1e-9))
        assert p_value(d, 1) == pytest.approx(exact, abs=3 * (exact * (1 - exact) / 9999) ** 0.5)
        low, high = interval(d, 1)
        assert (low >= 0 or high <= 0) == (exact <= 0.05)


def test_totals_weigh_what_a_mean_hides() -> None:
    pairs = [(1.0, 0.7)] * 46 + [(1.0, 12.0)] * 4
    assert analyse(pairs, 1).estimate < 0
    mean, low, high = totals(pairs, 1)
    assert np.exp(mean) == pytest.approx((46 * 0.7 + 48) / 50)
    assert low < 0 < mean < high
    assert totals([(2.0, 3.0)] * 8, 1) == pytest.approx([np.log(1.5)] * 3)
    assert totals([(2e-300, 3e-300)] * 8, 1) == pytest.approx([np.log(1.5)] * 3)


def test_what_is_left_over() -> None:
    """What is left over is none, or a quarter of the effect, in the block after."""
    rng = np.random.default_rng(1)
    first = rng.integers(0, 2, 40) == 1
    treated = np.stack([first, ~first], axis=-1).reshape(-1)
    before = np.concatenate([[False], treated[:-1]])
    for left in (0.0, 0.25):
        y = np.concatenate([[0.0], -0.2 * treated - 0.2 * left * before])
        y += 0.01 * np.arange(81) + rng.normal(0, 0.01, 81)
        share, p = left_over(y, first, 1)
        assert share == pytest.approx(left, abs=0.06)
        assert (p < 0.01) == (left > 0)
        y[[5, 30]] = np.nan
        assert left_over(y, first, 1)[0] == pytest.approx(left, abs=0.06)


def test_growth() -> None:
    d = np.random.default_rng(1).normal(-0.2, 0.01, 12)
    assert growth_p(d, 1.2 * d, 1) == 2.0**-12
    assert growth_p(1.2 * d, d, 1) == 1


def test_too_few_pairs_exclude_nothing() -> None:
    assert interval(np.ones(5), 1) == (-np.inf, np.inf)
    assert [least_pairs(n) for n in (1, 2, 10)] == [6, 7, 9]
    assert [least_pairs(n, 0.01) for n in (1, 2, 3, 5, 10)] == [8, 9, 10, 10, 11]


def test_equal_pairs() -> None:
    effect = analyse([(1.0, 2.0)] * 8, 1)
    found = (effect.low, effect.high, effect.estimate)
    assert found == pytest.approx([np.log(2)] * 3)
    assert analyse([(5.0, 5.0)] * 8, 1).p == 1


def test_holm() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1, 1]


def test_imbalance() -> None:
    assert imbalance(0, 0) == imbalance(500, 500) == 1
    assert imbalance(500, 400) == pytest.approx(0.000858, rel=0.01)


def test_lengths() -> None:
    """Lengths are those of t tests of 5 % with 80 % power, as in any table; more if the noise is
    poorly known.
    """
    assert detectable(1.0, 34, 1) == pytest.approx(0.5, abs=0.005)
    noise = np.random.default_rng(1).normal(0, 1, 400)
    noise *= 2 * np.log(1.05) / noise.std(ddof=1)
    assert suggest_pairs(list(noise), 5) == pytest.approx(36, abs=2)
    assert suggest_pairs(list(noise[:8] * np.std(noise) / np.std(noise[:8])), 5) > 50
    assert suggest_pairs([0.0, 1e-9, 0.0], 5) == 6


def test_schedule() -> None:
    design = Design("switchback", 30, 5, 1, seed=4)
    blocks = list(design.blocks("ab", 400, 12))
    assert [block.number for block in blocks] == list(range(12, 812))
    first = [block.arm for block in blocks[::2]]
    assert first.count("control") == pytest.approx(200, abs=40)
    assert design.moments() == [5 + second for second in range(26)]
    assert len({block.seed for block in Design("split", 30, 5, 1, 4).blocks("ab", 99)}) == 99


def test_files_of_numbers() -> None:
    assert flatten("12\n") == {"": 12}
    assert flatten("anon 4096\nfile 0\nmax max") == {"anon": 4096, "file": 0}
    psi = flatten("some avg10=1.50 total=7\nfull avg10=0.25 total=3")
    assert psi == {
        "some.avg10": 1.5,
        "some.total": 7,
        "full.avg10": 0.25,
        "full.total": 3,
    }


def of_histogram(metric: str, *buckets: Mapping[Any, float]) -> float | None:
    """Return a metric of a histogram over time."""
    arms = [{f"anon_order.fault_ns_log2_{n}": c for n, c in each.items()} for each in buckets]
    window = [Sample(float(t), {}, {"control": arm}) for t, arm in enumerate(arms)]
    return Metric.parse(metric).over(window, "control")


def test_latency() -> None:
    seen = [{9: 5.0}, {9: 5.0, 10: 90.0, 14: 10.0}]
    assert of_histogram("arm.anon_order.fault_ns", *seen) == pytest.approx(
        (90 * 1536 + 10 * 24576) / 100
    )
    assert of_histogram("arm.anon_order.fault_ns.p45", *seen) == pytest.approx(1024 * 1.5)
    assert of_histogram("arm.anon_order.fault_ns.p95", *seen) == pytest.approx(16384 * 1.5)
    assert of_histogram("arm.anon_order.fault_ns", {9: 5.0}, {9: 5.0}) is None
    eighth = of_histogram("arm.anon_order.fault_ns.p50", {}, {"10_2": 10.0})
    assert eighth == pytest.approx(1024 + 2.5 * 128)


def counted(times: Vector, sums: bool = True) -> dict[str, float]:
    """Return the counters that the module has for times, as module/sense/octaves.h does."""
    inside = np.clip(times.astype(np.int64), 1 << 7, (1 << 32) - 1)
    octaves = np.floor(np.log2(inside)).astype(np.int64)
    names = [f"{n}_{(t >> (n - 3)) - 8}" for n, t in zip(octaves, inside, strict=True)]
    found = {f"anon_order.fault_ns_log2_{name}": float(n) for name, n in Counter(names).items()}
    return found | ({"anon_order.fault_ns": float(times.astype(np.int64).sum())} if sums else {})


def times_of(what: str, times: Vector, sums: bool = True) -> float:
    """Return a metric of times."""
    window = [Sample(0.0, {}, {"control": {}}), Sample(1.0, {}, {"control": counted(times, sums)})]
    value = Metric.parse(f"arm.anon_order.fault_ns{what}").over(window, "control")
    assert value
    return value


@pytest.mark.parametrize("place", [0.0, 0.25, 0.5, 0.75])
@pytest.mark.parametrize("deviation", [0.01, 0.1, 0.25, 1.0])
def test_times_are_known_to_an_eighth(deviation: float, place: float) -> None:
    """Times are known to an eighth: if all are 10 % less, the mean is 10 % less, wherever in its
    octave; percentiles nearly so.
    """
    times = 1024 * 2**place * np.exp(np.random.default_rng(3).normal(0, deviation, 20_000))
    change = times_of("", 0.9 * times) / times_of("", times)
    assert change == pytest.approx(0.9, abs=0.001)
    assert times_of("", times) == pytest.approx(times.mean(), rel=0.001)
    for what, percentile in ((".p50", 50), (".p99", 99)):
        assert times_of(what, times) == pytest.approx(np.percentile(times, percentile), rel=0.13)
        less = times_of(what, 0.9 * times) / times_of(what, times)
        off = {".p50": 0.01, ".p99": 0.04}[what] if deviation > 0.05 else 0.07
        assert less == pytest.approx(0.9, abs=off)
    without = times_of("", 0.9 * times, sums=False) / times_of("", times, sums=False)
    assert without == pytest.approx(0.9, abs=0.02)


def test_metrics_are_parsed() -> None:
    metric = Metric.parse("rss=cgroup:/a b/memory.stat:anon lower")
    file = CgroupFile("cgroup:/a b/memory.stat:anon", False, "anon", "/a b/memory.stat")
    assert (metric.name, metric.better, metric.top) == ("rss", "lower", file)
    ratio = Metric.parse("arm.compact.skipped / arm.units")
    assert ratio.top == Arm("arm.compact.skipped", False, "compact", "skipped")
    assert ratio.bottom == Units("arm.units", False)
    command = Metric.parse("cmd:echo 1 / 2")
    assert (command.top, command.bottom) == (Command("cmd:echo 1 / 2", False, "echo 1 / 2"), None)
    mapped = Metric.parse("vmstat.nr_mapped").top
    assert (mapped, mapped.level) == (Vmstat("vmstat.nr_mapped", False, "nr_mapped"), True)
    stalled = Metric.parse("psi.cpu.some.total/s").top
    assert (stalled, stalled.level) == (Psi("psi.cpu.some.total", True, "some.total", "cpu"), False)


@pytest.mark.parametrize("at_once", [1, 7 * 5 * 12, 1 << 20])
def test_tosses_of_units_are_looked_at_together(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tosses of units are computed in batches, whose size changes the speed, but no p."""
    rng = np.random.default_rng(8)
    treated = np.stack([rng.permuted(np.arange(5)) < 2 for _ in range(12)])
    y = rng.normal(0, 0.1, (12, 5)) - 0.3 * treated
    known = stats.left_in_units(y, treated, 1)
    monkeypatch.setattr(stats, "AT_ONCE", at_once)
    assert stats.left_in_units(y, treated, 1) == pytest.approx(known)
