# SPDX-License-Identifier: GPL-2.0
"""The statistics of a report; needs numpy and scipy.

The unit of analysis is the pair: two adjacent blocks in switchback, or the two arms of one block
in split. A coin toss decided which of the two got the treatment. If the treatment has no effect,
the difference of each pair could as well have the other sign. Test and interval rest on this
alone, without assumptions about distributions or independence in time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from mmpolicy.ab.anytime import in_turn, p_against, p_anytime, sequence
from mmpolicy.ab.design import ALPHA, POWER, differences, with_lost

EXACT_PAIRS = 16  # most pairs for which all 2^n assignments are enumerated
RESAMPLES = 9999  # number of random assignments for more pairs
REDRAWS = 999  # number of random assignments in tests where each one takes longer
AT_ONCE = 1 << 16  # values of units that are processed together, to bound memory
# the effect of the order within pairs is subtracted only if its t value is at least this
PLACE = 4.0
# Order statistics that widen the interval of a median at each end. Runs end when this interval is
# narrow, which makes it narrower than it should be.
SPARE = 1
ROUNDING = 1e-12  # sums count as equal if they differ by less than this share of the summands

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Effect:
    """The effect on one metric. Its numbers are logarithms, unless the scale is "difference"."""

    scale: str  # see differences()
    pairs: int  # number of pairs
    estimate: float
    low: float  # lower end of the 95 % interval
    high: float
    p: float
    deviation: float  # standard deviation of the pairs' differences
    d: Vector = field(default_factory=lambda: np.zeros(0))  # differences of the pairs


def analyse(pairs: Sequence[tuple[float, float]], seed: int, first: Sequence[bool] = ()) -> Effect:
    """Return estimate, 95 % interval and p-value of at least two pairs (control, treatment).

    first: in switchback, whether the first block of each pair has the treatment.
    """
    scale, found = differences(pairs)
    d = np.asarray(found)
    rest = without_place(d, np.asarray(first)) if len(set(first)) > 1 else None
    if rest is not None and scale != "totals":
        d = rest
    p = p_value(d, seed)
    if scale == "totals":
        estimate, low, high = totals(pairs, seed)
        control, treatment = (side / side.sum() for side in np.asarray(pairs, float).T)
        deviation = float((treatment - control).std(ddof=1)) * len(d)
        return Effect(scale, len(d), estimate, low, high, p, deviation, d)
    low, high = interval(d, seed)
    return Effect(scale, len(d), float(d.mean()), low, high, p, float(d.std(ddof=1)), d)


def analyse_anytime(pairs: Sequence[tuple[float, float]], seed: int) -> Effect:
    """Return the effect with an interval and a p-value that are valid even if the run is stopped
    because of them, however often one looks.
    """
    _, estimate, low, high = sequence(list(pairs))
    d = in_turn(list(pairs))
    return replace(
        analyse(pairs, seed), estimate=estimate, low=low, high=high, p=p_anytime(d), d=np.asarray(d)
    )


def against(effect: Effect, lost: int, seed: int, anytime: bool) -> Effect:
    """Return the effect with the p-value that it has if `lost` lost pairs are taken as results
    against it.

    If the lost pairs outweigh the effect, p is 1: they are no evidence for the other direction.
    """
    shown = effect.d.tolist()
    d = np.asarray(with_lost(shown, lost))
    p = p_against(shown, lost) if anytime else p_value(d, seed)
    return replace(effect, p=p if d.sum() * effect.d.sum() > 0 else 1.0)


@lru_cache(maxsize=4)
def _tosses(octets: int, seed: int) -> Vector:
    """Return RESAMPLES rows of random 0 and 1, with 8 * octets in each."""
    drawn = np.frombuffer(np.random.default_rng(seed).bytes(RESAMPLES * octets), np.uint8)
    return np.unpackbits(drawn).reshape(RESAMPLES, -1).astype(float)


def _subsets(d: Vector, seed: int) -> tuple[Vector, Vector]:
    """Return the sum and the size of each subset of d: of all 2^n subsets, or, if d has more than
    EXACT_PAIRS values, of RESAMPLES random ones.
    """
    if len(d) > EXACT_PAIRS:
        chosen = _tosses(-(-len(d) // 8), seed)[:, : len(d)]
        return chosen @ d, chosen.sum(axis=1)
    sums = sizes = np.zeros(1)
    for value in d:
        sums, sizes = np.concatenate([sums, sums + value]), np.concatenate([sizes, sizes + 1])
    return sums, sizes


def _share(hits: NDArray[np.bool_], pairs: int) -> float:
    """Return the share of assignments that are hits, which is a p-value. If the assignments are
    random, the observed one is added as a hit, so that p is never 0.
    """
    more = int(pairs > EXACT_PAIRS)
    return float((hits.sum() + more) / (len(hits) + more))


def p_value(d: Vector, seed: int) -> float:
    """Return the two-sided p-value of the randomisation test, which redraws the signs of the
    pairs.

    It is exact for up to 16 pairs. For more, it comes from 9,999 random draws.
    """
    total, slack = d.sum(), ROUNDING * np.abs(d).sum()
    return _share(np.abs(total - 2 * _subsets(d, seed)[0]) >= abs(total) - slack, len(d))


def without_place(d: Vector, first: NDArray[np.bool_]) -> Vector | None:
    """Return the differences d of pairs without the effect of the order of the two blocks in a
    pair; None if that effect is small.

    first: whether the first block of each pair had the treatment. The difference between second and
    first block does not depend on the random assignment, so it can be used without making the test
    inexact. Its mean shows a load with the period of a pair. The assignments are redrawn over the
    remainder.
    """
    signs = np.where(first, -1.0, 1.0)
    later = d * signs
    apart = later.mean() ** 2 * len(d)
    if apart < PLACE**2 * later.var(ddof=1):
        return None
    rest: Vector = signs * (later - later.mean()) / (1 - signs.mean() ** 2)
    return rest


def p_below(d: Vector, seed: int) -> float:
    """Return the one-sided p-value of the randomisation test, small if the mean is below 0."""
    total, slack = d.sum(), ROUNDING * np.abs(d).sum()
    return _share(total - 2 * _subsets(d, seed)[0] <= total + slack, len(d))


def interval(d: Vector, seed: int, differ: bool = True) -> tuple[float, float]:
    """Return the 95 % interval: all effects that the randomisation test does not reject.

    Its ends are order statistics of the means of subsets of pairs (Hartigan 1969): of all subsets
    if p is exact, else of random ones. This assumes the same effect in all pairs. If some pairs
    have a far larger effect, the end on their side is too near, so it is moved outward as in BCa
    (Efron 1987), but not past 0: p alone decides whether there is an effect. differ: allow for
    effects that differ between pairs.
    """
    sums, sizes = _subsets(d, seed)
    means = sums[sizes > 0] / sizes[sizes > 0]
    low, high = ends_of(means)
    lean = _lean(d) if differ else 0.0
    moved = max(_moved(abs(lean)), 2 / (len(means) + 1))
    if lean > 0 and np.isfinite(high):
        far = ends_of(means, moved)[1]
        high = min(far, 0.0) if high < 0 else far
    elif lean < 0 and np.isfinite(low):
        far = ends_of(means, moved)[0]
        low = max(far, 0.0) if low > 0 else far
    return low, high


def _lean(d: Vector) -> float:
    """Return a sixth of the skewness of the mean of d: positive if large values are far from the
    mean.
    """
    rest = d - d.mean()
    most = float(np.abs(rest).max())
    if not most:
        return 0.0
    rest = rest / most
    return float((rest**3).sum() / (rest @ rest) ** 1.5 / 6)


def _moved(lean: float) -> float:
    """Return the two-sided level for the end of the interval that the BCa method moves outward; a
    smaller level means a wider interval. lean: the skewness from _lean().
    """
    z = lean + stats.norm.isf(ALPHA / 2)
    return float(2 * stats.norm.sf(lean + z / (1 - lean * z)))


def ends_of(means: Vector, alpha: float = ALPHA) -> tuple[float, float]:
    """Return the order statistics that cut off alpha / 2 of the means at each end."""
    place = int(alpha / 2 * (len(means) + 1))
    if place < 1:  # there are too few pairs to reject anything
        return -np.inf, np.inf
    ends = np.partition(means, [place - 1, len(means) - place])
    return float(ends[place - 1]), float(ends[-place])


def analyse_median(pairs: Sequence[tuple[float, float]], seed: int) -> Effect:
    """Return the median of the ratios, with 95 % interval and p of the sign test.

    Like those of analyse(), interval and p rest on the random assignment alone; outlying pairs
    move them little. SPARE makes both more cautious, see median_interval(). If the pairs have no
    ratios, return the result of analyse().
    """
    scale, found = differences(pairs)
    if scale != "ratio":
        return analyse(pairs, seed)
    d = np.asarray(found)
    more, less = int((d > 0).sum()), int((d < 0).sum())
    p = min(2 * binomial_tail(max(more, less) - SPARE, more + less), 1.0)
    low, high = median_interval(d)
    return Effect(scale, len(d), float(np.median(d)), low, high, p, float(d.std(ddof=1)), d)


def median_interval(d: Sequence[float] | Vector) -> tuple[float, float]:
    """Return the 95 % interval of the median: all values that the sign test does not reject.

    It is for runs that stop when this interval is narrow enough. Such runs stop more often when
    chance makes the interval narrow, so it has SPARE more values on each side than for a fixed
    length.
    """
    ordered = np.sort(d)
    place = int(stats.binom.ppf(ALPHA / 2, len(ordered), 0.5)) - SPARE
    return (float(ordered[place - 1]), float(ordered[-place])) if place > 0 else (-np.inf, np.inf)


def spread_p(pairs: Sequence[tuple[float, float]], seed: int, more: bool) -> float:
    """Return the one-sided p-value for the hypothesis that the treatment's logarithms vary no more
    than the control's (or, if more is False, no less).

    If both arms vary equally, the difference of a pair is not correlated with its sum (Pitman and
    Morgan 1939), so their product could as well have the other sign.
    """
    control, treatment = np.log(np.asarray(pairs, float).T)
    return p_below(-apart(treatment - control, treatment + control) * (1 if more else -1), seed)


def apart(d: Vector, sums: Vector) -> Vector:
    """Return a number for each pair: positive if the pair suggests that the treatment varies more
    than the control, negative if it suggests less. d, sums: difference and sum of both arms'
    logarithms, by pair.
    """
    found: Vector = (d - d.mean()) * (sums - sums.mean())
    return found


def totals(
    pairs: Sequence[tuple[float, float]], seed: int, alpha: float = ALPHA
) -> tuple[float, float, float]:
    """Return the logarithm of the ratio of the arms' totals, and its interval.

    A stall in a few blocks has the same weight here as for the user; in the mean of the pairs'
    differences of logarithms it is one pair among others. The interval contains each ratio r for
    which treatment and r * control could have been swapped: it uses the subsets of interval(),
    with the ratio of totals in place of the mean.
    """
    control, treatment = np.asarray(pairs, float).T / np.max(pairs)
    below, above = _subsets(control, seed)[0], _subsets(treatment, seed)[0]
    with np.errstate(divide="ignore"):
        known = (below > 0) | (above > 0)
        low, high = ends_of(np.log(above[known]) - np.log(below[known]), alpha)
        return float(np.log(treatment.sum()) - np.log(control.sum())), low, high


def rise_of_mean(d: Vector, sums: Vector, alpha: float) -> tuple[float, float, float]:
    """Return by how much the variances raise the logarithm of the ratio of means, and the errors of
    this downward and upward.

    The mean of lognormal values exceeds their geometric mean by half the variance of their
    logarithms. d, sums: difference and sum of both arms' logarithms. The errors downward and
    upward, each with the risk alpha, come from the intervals of both variances (MOVER; Zou, Huo
    and Taleban 2009). Drift that both arms share correlates them.
    """
    treatment, control = (sums + d) / 2, (sums - d) / 2
    sizes = np.asarray([treatment.var(ddof=1), control.var(ddof=1)]) / 2
    freedom = len(d) - 1
    ends = freedom / stats.chi2.ppf([1 - alpha, alpha], freedom) - 1
    below, above = -ends[0] * sizes, ends[1] * sizes
    product = float(np.prod(sizes))
    related = float(np.cov(treatment, control)[0, 1] / 2) ** 2 / product if product else 0.0

    def off(first: float, second: float) -> float:
        return float(np.sqrt(max(first**2 + second**2 - 2 * related * first * second, 0.0)))

    rise = float(sizes[0] - sizes[1])
    return rise, off(below[0], above[1]), off(above[0], below[1])


def means_by_logs(d: Vector, sums: Vector, alpha: float) -> tuple[float, float, float]:
    """Return the logarithm of the ratio of means, and both ends, each with the risk alpha.

    This assumes lognormal blocks. A short run rarely contains one of the few large blocks that
    dominate the mean, so its totals understate their own error.
    """
    rise, down, up = rise_of_mean(d, sums, alpha)
    error = float(stats.t.ppf(1 - alpha, len(d) - 1) * d.std(ddof=1) / np.sqrt(len(d)))
    mean = float(d.mean()) + rise
    return mean, mean - float(np.hypot(error, down)), mean + float(np.hypot(error, up))


def left_over(y: Vector, first: NDArray[np.bool_], seed: int) -> tuple[float, float]:
    """Return the share of the effect that is seen in the next block, and its p-value.

    y: the values of all blocks in order, after one block without the treatment; nan for missing
    values. first: whether the first block of a pair had the treatment. Differences of adjacent
    blocks remove drift. The assignments are redrawn over the noise that is left if there is no
    carry-over.
    """
    coins = np.random.default_rng(seed).integers(0, 2, (REDRAWS, len(first))) == 1
    blocks = _in_turns(first)
    d = (y[1:] * (2 * blocks - 1)).reshape(len(first), 2).sum(axis=1)
    mean = float(np.nanmean(d))
    own, left = _regress(y, blocks)
    noise = y - np.concatenate([[0.0], blocks * mean])
    tossed = _in_turns(coins)
    means = mean + np.nanmean(
        (noise[1:] * (2 * tossed - 1)).reshape(REDRAWS, len(first), 2).sum(axis=2), axis=1
    )
    by_chance = _regress(noise, tossed)[1] * np.sign(means)
    hits = int((by_chance >= left * np.sign(mean) - _slack(y)).sum())
    return float(left / own) if own else 0.0, (1 + hits) / (1 + REDRAWS)


def _slack(y: Vector) -> float:
    """Return the tolerance for rounding errors when results of redrawn assignments are compared
    with the observed one. Without it, the observed result might count as less extreme than itself.
    """
    return ROUNDING * float(np.nanmax(np.abs(y)))


def _in_turns(first: NDArray[np.bool_]) -> Vector:
    """Return the arm of each block of a switchback in order: 1 for the treatment, 0 for the
    control. first: for each pair, whether its first block has the treatment.
    """
    blocks = np.repeat(first, 2, axis=-1).astype(float)
    blocks[..., 1::2] = 1 - blocks[..., 1::2]
    return blocks


def _regress(y: Vector, blocks: Vector) -> tuple[Any, Any]:
    """Return by least squares how the value of a block depends on its own arm, and how it depends
    on the arm of the block before (the carry-over).
    """
    rises = np.diff(y)
    known = np.isfinite(rises)
    now = np.diff(blocks, axis=-1, prepend=0.0)
    before = np.concatenate([np.zeros_like(now[..., :1]), now[..., :-1]], axis=-1)
    a, b, c = now * known, before * known, np.where(known, rises, 0.0)
    aa, bb, ab = (a * a).sum(axis=-1), (b * b).sum(axis=-1), (a * b).sum(axis=-1)
    base = np.maximum(aa * bb - ab * ab, ROUNDING)
    return (bb * (a @ c) - ab * (b @ c)) / base, (aa * (b @ c) - ab * (a @ c)) / base


def left_in_units(y: Vector, treated: NDArray[np.bool_], seed: int) -> tuple[float, float]:
    """Return the share of the effect that lasts into the next block, and its p-value, for split.

    y, treated: a row for each block, a column for each unit. The means of units and of blocks are
    subtracted. The assignments of the blocks are redrawn: they decide which of two groups of units
    has the treatment.
    """
    rng, arms = np.random.default_rng(seed), treated.astype(float)
    (now,) = _regress_units(y, arms)
    own, left = _regress_units(y[1:], arms[1:], arms[:-1])
    least = left * np.sign(now) - _slack(y)
    noise, hits = y - now * arms, 0
    tosses = rng.integers(0, 2, (REDRAWS, len(y), 1)) == 1
    step = max(AT_ONCE // y.size, 1)
    for place in range(0, REDRAWS, step):
        coins = tosses[place : place + step]
        tossed = np.where(coins, 1 - arms, arms)
        by_chance = _regress_units(noise[1:], tossed[:, 1:], tossed[:, :-1])[..., 1]
        hits += int((by_chance * np.sign(now) >= least).sum())
    return float(left / own) if own else 0.0, (1 + hits) / (1 + REDRAWS)


def _regress_units(y: Vector, *causes: Vector) -> Vector:
    """Return by least squares the effect of each cause on the values y, after the mean of each unit
    and of each block is removed.

    causes: tables with a row for each block and a column for each unit; or stacks of tables, with a
    result for each.
    """
    rest = [_centred(each) for each in causes]
    of_all = np.stack([each.reshape(*each.shape[:-2], -1) for each in rest], axis=-2)
    both = np.linalg.pinv(of_all @ np.swapaxes(of_all, -1, -2), rcond=1e-9, hermitian=True)
    found: Vector = (both @ (of_all @ _centred(y).ravel())[..., None])[..., 0]
    return found


def _centred(values: Vector) -> Vector:
    """Return values (rows: blocks, columns: units) from which the means of rows and of columns are
    subtracted.
    """
    by_block, by_unit = values.mean(axis=-1, keepdims=True), values.mean(axis=-2, keepdims=True)
    centred: Vector = values - by_unit - by_block + by_block.mean(axis=-2, keepdims=True)
    return centred


def growth_p(first: Vector, second: Vector, seed: int) -> float:
    """Return the p-value for the claim that an effect is larger in the second half of the blocks
    than in the first: small if it is.

    If the effect has no delay, its two halves differ only by noise, whose sign the random
    assignment decides.
    """
    return p_below((first - second) * np.sign((first + second).sum()), seed)


def holm(p: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number (Holm 1979)."""
    order = np.argsort(p)
    scaled = np.asarray(p)[order] * np.arange(len(p), 0, -1)
    result = np.empty(len(p))
    result[order] = np.minimum(np.maximum.accumulate(scaled), 1)
    return [float(value) for value in result]


def detectable(deviation: float, pairs: int, metrics: int) -> float:
    """Return the smallest effect that this many pairs find with 80 % probability; deviation: of the
    differences of pairs.
    """
    t = stats.t(pairs - 1)
    return float((t.ppf(1 - ALPHA / metrics / 2) + t.ppf(POWER)) * deviation / pairs**0.5)


def floor(aa: Effect, pairs: int) -> float:
    """Return the A/A floor: how far apart the means of this many pairs may lie although the arms
    are equal. aa: the result of the A/A phase, in which they are.

    This is the difference in that phase, plus the spread around it that 95 % of runs do not exceed.
    """
    spread = stats.t(aa.pairs - 1).ppf(1 - ALPHA / 2) * aa.deviation / pairs**0.5
    return abs(aa.estimate) + float(spread)


def binomial_tail(hits: int, number: int) -> float:
    """Return the probability that `number` fair coin tosses have this many hits or more."""
    return float(stats.binom.sf(hits - 1, number, 0.5)) if number else 1.0


def binomial_tail_of(hits: int, number: int, rate: float) -> float:
    """Return the probability of at least `hits` hits in `number` trials, each of which hits with
    the probability `rate`.
    """
    return float(stats.binom.sf(hits - 1, number, rate))


def imbalance(control: int, treatment: int) -> float:
    """Return the chi-square p-value of two numbers of units that differ so much, if each unit had
    equal chances for both arms.
    """
    return float(stats.chisquare([control, treatment]).pvalue) if control + treatment else 1.0
