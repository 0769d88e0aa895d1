# SPDX-License-Identifier: GPL-2.0
"""Are the statistics honest? Simulated experiments with a known truth.

Some use noise recorded in a guest: tests/cli/data/ab_noise.json says how. A pair is a stretch of
that record from a random start. The others are whole runs of blocks that depend on each other in
time, as ab run records them by default, and the outcome of the report counts. Seeds are fixed; a
rate must be one that chance explains.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from math import log
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest

from mmpolicy.ab.design import differences, least_pairs, pairs_to_see, suggest_pairs, unseen
from mmpolicy.ab.metrics import Metric
from mmpolicy.ab.report.metric_result import MetricResult
from mmpolicy.ab.report.report import Report
from mmpolicy.ab.report.stats import analyse, interval, p_below, p_value
from mmpolicy.errors import Exit
from mmpolicy.verbs.ab_plan import MOST_PAIRS

from .simulate import DEFAULT_AA, DEFAULT_PAIRS, Rng, Vector, World, dependent

RECORD = json.loads((Path(__file__).parent / "data/ab_noise.json").read_text())
FULL = pytest.mark.full
PERCENT = 5
LENGTH = {"split": 20, "switchback": 16}  # recorded blocks that make a simulated one
UNLIKELY = 0.001


def explained(hits: int, runs: int, rate: float, side: str = "two-sided") -> bool:
    """Return whether chance explains this number of hits at that rate."""
    print(f"{hits} of {runs}, {hits / runs:.1%}, where {rate:.1%} should be")
    return bool(binomtest(hits, runs, rate, alternative=side).pvalue > UNLIKELY)


# Noise of a guest, with the default pilot and the cap of ab run


def stretches(values: Vector, length: int) -> Vector:
    """Return the sums of length consecutive values from each start on, around the end."""
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


@pytest.mark.parametrize("pairs", [8, DEFAULT_PAIRS, 30])
@pytest.mark.parametrize("design", LENGTH)
def test_false_findings_of_a_guest(design: str, pairs: int) -> None:
    rng = np.random.default_rng(5)
    ps = [p_value(np.asarray(experiment(design, pairs, rng)), 1) for _ in range(1000)]
    assert explained(sum(p < 0.05 for p in ps), 1000, 0.05)


def outcomes(design: str, runs: int) -> Iterator[tuple[int, bool, bool]]:
    """Yield for each A/B experiment the requested length; was it found, and in the interval?"""
    rng = np.random.default_rng(6)
    for seed in range(runs):
        asked = suggest_pairs(experiment(design, DEFAULT_AA, rng), PERCENT)
        d = np.asarray(experiment(design, min(asked, MOST_PAIRS), rng, PERCENT))
        low, high = interval(d, seed)
        yield asked, p_value(d, seed) < 0.05, low <= log(1 + PERCENT / 100) <= high


@pytest.mark.parametrize("design", LENGTH)
def test_power_and_coverage_of_a_guest(design: str) -> None:
    """At the suggested length, 5 % are found in 80 % of runs; also at the cap, if it is enough."""
    runs = 400
    pairs, found, covered = np.asarray(list(outcomes(design, runs)), float).T
    print(
        f"{design}: {np.median(pairs):g} pairs asked for; {np.mean(pairs > MOST_PAIRS):.0%} capped"
    )
    assert explained(int(found.sum()), runs, 0.8, "less")
    assert explained(int(covered.sum()), runs, 0.95)


# Whole runs of dependent blocks


def heavy(rng: Rng, blocks: int) -> Vector:
    """Return noise with a heavy tail, and ten times as much in a block out of twenty."""
    return np.asarray(rng.normal(0, 0.3, blocks) + np.log(10) * (rng.random(blocks) < 0.05))


def drifting(rng: Rng, blocks: int) -> Vector:
    """Return dependent noise about a value that rises by 1 % with each block."""
    return np.asarray(dependent(rng, blocks) + 0.01 * np.arange(blocks))


@pytest.mark.parametrize("runs", [500, pytest.param(4000, marks=FULL)])
@pytest.mark.parametrize("noise", [dependent, heavy, drifting])
def test_equal_arms(noise: Callable[[Rng, int], Vector], runs: int) -> None:
    """With equal arms, findings, doubts by the A/A phase and false carry-over are as rare as
    promised.
    """
    world = World()
    found = doubted = carried = 0
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        report = world.report(rng, noise(rng, world.blocks))
        (row,) = report.rows
        found += row.found
        doubted += "A/A" in " ".join(report.doubts)
        carried += row.carry.seen
        assert (report.exit == Exit.INCONCLUSIVE) == (not row.found or bool(report.doubts))
    assert explained(found, runs, 0.05)
    assert explained(doubted, runs, 0.01, "greater")
    assert explained(carried, runs, 0.05, "greater")


def test_an_effect_of_dependent_blocks() -> None:
    """Findings have the right sign, and the intervals hold the truth."""
    runs, world = 300, World(effect=0.9)
    covered = found = 0
    for seed in range(runs):
        report = world.report(np.random.default_rng(seed))
        (row,) = report.rows
        assert row.effect
        covered += row.effect.low <= log(0.9) <= row.effect.high
        found += report.exit == Exit.DONE
        assert not row.worse
    assert explained(covered, runs, 0.95)
    assert found > 0.9 * runs


@pytest.mark.parametrize("aa", [DEFAULT_AA, 6])
def test_the_aa_phase_shows_that_equal_arms_differ(aa: int) -> None:
    """A tenfold difference in each pair of the A/A phase raises a doubt at the default length; in a
    shorter phase, a note and a wide floor.
    """
    world = World(effect=0.9, aa=aa)
    rng = np.random.default_rng(aa)
    run = world.run(rng, dependent(rng, world.blocks))
    for number, _, arm in run.of_phase("aa"):
        for sample in run.windows[number]:
            sample.host["cmd:number"] *= 10 if arm == "treatment" else 1
    report = Report(run)
    (row,) = report.rows
    assert row.noise
    assert row.noise > log(10)
    assert (report.exit == Exit.INCONCLUSIVE) == (aa == DEFAULT_AA)
    said = report.doubts if aa == DEFAULT_AA else list(report.notes())
    assert any("A/A" in text for text in said)
    assert least_pairs(1, 0.01) == DEFAULT_AA


# Effects hidden by a mean


@pytest.mark.parametrize("runs", [150, pytest.param(4000, marks=FULL)])
@pytest.mark.parametrize("pairs", [DEFAULT_PAIRS, 30, pairs_to_see(5)])
def test_rare_stalls_are_never_better(pairs: int, runs: int) -> None:
    """Rare stalls never look better: x 0.7 in 94 % of the blocks, x 12 in the others are 42 % more
    in all.

    If the run happened to have no stall, it cannot be known, and the report says how many there may
    be. With --detect-rare, the run is long enough that this happens in 5 % at most.
    """
    world = World(effect=0.7, stalls=0.06, pairs=pairs)
    without = wrong = better = 0
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        report = world.report(rng, margin=10)
        (row,) = report.rows
        better += report.exit == Exit.DONE
        if report.exit == Exit.DONE:
            rare = f"may have missed events that occur in up to {unseen(pairs):.2g} % of blocks"
            assert rare in report.verdict()
        if max(treated for _, treated in row.pairs) < 5:  # else 12, with noise of 10 %
            without += 1
            continue
        wrong += report.exit == Exit.DONE or "better" in report.verdict()
    seen = runs - without
    print(f"{pairs} pairs: better in {better / runs:.1%}; with a stall, in {wrong} of {seen}")
    assert wrong == 0
    assert explained(without, runs, 0.94**pairs)
    assert explained(better, runs, 0.05, "greater") or pairs < pairs_to_see(5)


def test_totals_do_not_stand_in_the_way_elsewhere() -> None:
    """The check of totals costs few findings with noise of 100 % in both arms: half of the findings
    have p above 0.05.
    """
    runs, world, denied = 100, World(effect=0.5, pairs=60), 0
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        denied += world.report(rng, rng.normal(0, 1, world.blocks)).exit != Exit.DONE
    assert explained(denied, runs, 0.07, "greater")


# Carry-over


@pytest.mark.parametrize(("pairs", "least"), [(DEFAULT_PAIRS, 0.7), (30, 0.95)])
def test_carry_over_is_reported(pairs: int, least: float) -> None:
    """If a fifth of the state is left in the next block, no interval holds the truth, and the
    report says so.
    """
    runs, world = 100, World(effect=0.8, carry=0.2, pairs=pairs)
    seen = covered = 0
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        report = world.report(rng, dependent(rng, world.blocks, 0.03))
        (row,) = report.rows
        assert row.effect
        covered += row.effect.low <= log(0.8) <= row.effect.high
        seen += row.carry.seen
        told = (
            "carry-over from block to block was seen, so the effect is underestimated"
            in report.verdict()
        )
        assert told == (row.carry.seen and not report.doubts)
    assert covered < 0.05 * runs
    assert explained(seen, runs, least, "less")


def test_an_effect_that_builds_up_within_the_blocks() -> None:
    """An effect that builds up within the blocks is revealed by their halves, and a margin is then
    not shown.
    """
    world = World(effect=1.02)
    rng = np.random.default_rng(3)
    run = world.run(rng, dependent(rng, world.blocks, 0.005))
    for number, _, arm in run.of_phase("ab"):
        for place, sample in enumerate(run.windows[number]):
            sample.host["cmd:number"] *= 1.01**place if arm == "treatment" else 1
    report = Report(run, margin=10)
    (row,) = report.rows
    assert row.no_worse
    assert row.carry.halves_p < 0.025
    assert "carry-over hides how much worse" in report.verdict()
    assert report.exit == Exit.INCONCLUSIVE


# The margin


@pytest.mark.parametrize("pairs", [8, DEFAULT_PAIRS, 40])
@pytest.mark.parametrize("better", ["lower", "higher"])
def test_no_worse_than_a_margin(better: str, pairs: int) -> None:
    """Of treatments that are worse by just the margin, 3.5 to 6 % pass; of equal ones, most.

    The rate may be below 5 %, as the means must be within the margin, too, if the arms seem to vary
    differently.
    """
    runs, passed = 4000 if pairs < 40 else 2000, {0.05: 0, 0.0: 0}
    metric = Metric.parse(f"m=cmd:x {better}")
    rng = np.random.default_rng(pairs)
    for worse in passed:
        factor = 1 + worse if better == "lower" else 1 - worse
        for _ in range(runs if worse else 50):
            noise = rng.standard_t(4, (pairs, 2)) / 100 * (pairs / 8) ** 0.5
            values = [(float(np.exp(a)), float(factor * np.exp(b))) for a, b in noise]
            row = MetricResult(metric, values, [], analyse(values, 1), None, 1, pairs, margin=5)
            passed[worse] += row.no_worse
    print(f"{better}, {pairs} pairs: {passed[0.05] / runs:.2%} of {runs} pass at the margin")
    assert 0.035 <= passed[0.05] / runs <= 0.06
    assert passed[0.0] >= 48


def test_one_sided_p_is_half_of_the_two_sided() -> None:
    rng = np.random.default_rng(1)
    for size in (7, 12):
        d = rng.normal(-0.5, 1, size)
        assert d.mean() < 0
        assert p_below(d, 1) == pytest.approx(p_value(d, 1) / 2)
        assert p_below(-d, 1) == pytest.approx(1 - p_value(d, 1) / 2 + 2.0**-size)


# Missing values


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), None])
def test_what_is_no_number_is_no_finding(bad: float | None) -> None:
    """If one reading of a clear effect is not a number, its pair counts as against the effect."""
    world = World(effect=0.5)
    rng = np.random.default_rng(2)
    run = world.run(rng, dependent(rng, world.blocks))
    number = next(number for number, _, arm in run.of_phase("ab") if arm == "treatment")
    run.windows[number][1].host["cmd:number"] = float("nan") if bad is None else bad
    report = Report(run)
    (row,) = report.rows
    assert row.effect
    assert row.effect.p > 5 * p_value(row.effect.d, 1)
    said = (
        "m has a value in 11 of 12 pairs; the value is missing or not a number in "
        "0 blocks of control"
    )
    assert any(said in note for note in report.notes())
    json.dumps(report.data(), allow_nan=False)


def test_lost_pairs_are_never_a_finding() -> None:
    """The treatment looks half as large if its bad blocks are lost."""
    world = World(effect=0.5)
    for seed in range(30):
        rng = np.random.default_rng(seed)
        run = world.run(rng, dependent(rng, world.blocks))
        treated = [number for number, _, arm in run.of_phase("ab") if arm == "treatment"]
        for number in rng.choice(treated, 2 + seed % 6, replace=False):
            del run.windows[int(number)]
        report = Report(run)
        assert report.exit == Exit.INCONCLUSIVE
        assert report.rows[0].cells()[1] == f"{10 - seed % 6} of 12"
