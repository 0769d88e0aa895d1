# SPDX-License-Identifier: GPL-2.0
"""Inference for experiments that stop as soon as the result is clear: an e-process over the random
assignments, valid however often one looks, and a stopping rule.

In each pair, a coin toss decided which block got the treatment, and so the sign of the difference
d. If the treatment has no effect, the signs are fair coin tosses whatever the sizes |d| are. So
exp(k d) / cosh(k d) has mean 1, even if k is chosen from the sizes. The product over all pairs is
then a martingale: the probability that it ever reaches 1 / alpha is at most alpha (Ville 1939),
however often one looks. This needs no distribution, no moments and no independence in time. The
inverse of the product is a p-value for any moment, and the effects that it does not reject form a
confidence sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import exp, inf, log, log1p, sqrt
from types import MappingProxyType

from mmpolicy.ab.design import ALPHA, Pairs, at_margin, differences, log_of_ratio, with_lost
from mmpolicy.ab.metrics import Metric

# Rates k of the bets whose product is the evidence; each is in units of the root mean square of the
# differences so far. The best rate is not known, so the evidence is the mean over all rates.
RATES = (0.15, 0.3, 0.6, 1.0, 1.6, 2.5)
STEPS = 12  # bisection steps of _end()
# An end of an interval is searched up to this multiple of the spread of the pairs; if it is not
# found, it is infinite.
FAR = 8.0
MOST = 100.0  # largest effect that is searched for, as a logarithm
ROOT_STEPS = 60  # bisection steps of _root()
HALF = log(2)


def evidence(d: Sequence[float], signs: Sequence[int] = (1, -1)) -> float:
    """Return the evidence for an effect: the largest value that the e-process of the differences d
    has reached. Its inverse is a p-value that is valid however often one looks.

    signs: the directions of an effect to test: +1, -1 or both.
    """
    most, squares = 1.0, 0.0
    sums = [0.0] * (len(RATES) * len(signs))
    ways = [rate * sign for sign in signs for rate in RATES]
    for number, each in enumerate(d, start=1):
        squares += each * each
        if not squares:
            continue
        size = each / sqrt(squares / number)
        for place, way in enumerate(ways):
            x = way * size
            sums[place] += x - abs(x) - log1p(exp(-2 * abs(x))) + HALF
        most = max(most, sum(map(exp, sums)) / len(sums))
    return most


def p_anytime(d: Sequence[float]) -> float:
    """Return the two-sided p-value of the differences d of pairs. It is valid even if the run is
    stopped because of it, however often one looks.
    """
    return 1 / evidence(d)


def p_against(d: Sequence[float], lost: int) -> float:
    """Return the two-sided p-value of the differences d if each of `lost` lost pairs is taken as a
    result against the effect.

    The lost pairs are put first, with the sign opposite to sum(d), so they can only delay the
    evidence. Only the direction of sum(d) is tested.
    """
    if not lost:
        return p_anytime(d)
    return min(2 / evidence(with_lost(d, lost), (1 if sum(d) > 0 else -1,)), 1.0)


def p_below_anytime(d: Sequence[float]) -> float:
    """Return the one-sided p-value for the claim that the mean of d is below 0: small if it is. It
    is valid however often one looks.
    """
    return 1 / evidence(d, (-1,))


def in_turn(pairs: Pairs, effect: float = 0.0) -> list[float]:
    """Return the differences of pairs, less a given effect, on one scale for the whole run.

    They are differences of logarithms up to the first pair with a value of 0 or below, and from
    then on differences of values, rescaled by the sizes seen until then. Neither depends on a
    later coin toss, so all of them form one e-process, and the change of scale is no second test.
    effect: a logarithm.
    """
    logs = next((n for n, pair in enumerate(pairs) if min(pair) <= 0), len(pairs))
    d = [log_of_ratio([pair]) for pair in pairs[:logs]]
    squares = sum((treatment - control) ** 2 for control, treatment in pairs[:logs])
    unit = sqrt(sum(each * each for each in d) / squares) if squares else 1.0
    times = exp(min(effect, MOST))
    rest = [(treatment - times * control) * unit for control, treatment in pairs[logs:]]
    return [each - effect for each in d] + rest


def excess_in_turn(pairs: Pairs, lower: bool, margin: float) -> list[float]:
    """Return for each pair by how much the treatment is worse than the margin allows; a negative
    number means that the pair is within the margin. margin: percent. lower: whether lower values
    are better.
    """
    sign = 1 if lower else -1
    return [sign * each for each in in_turn(pairs, log(at_margin(lower, margin)))]


def sequence(pairs: Pairs, alpha: float = ALPHA) -> tuple[str, float, float, float]:
    """Return the scale of the effect, its estimate, and both ends of its interval. With probability
    1 - alpha, the intervals at all looks during a run contain the true effect.
    """
    scale, d = differences(pairs)
    if scale == "totals":
        middle = _root(pairs)
        spread = min(max(abs(each) for each in d), MOST / FAR)

        def rest(effect: float) -> list[float]:
            return in_turn(pairs, effect)
    else:
        middle = sum(d) / len(d)
        spread = max(abs(each - middle) for each in d)

        def rest(effect: float) -> list[float]:
            return [each - effect for each in d]

    if not spread:
        return scale, middle, *((middle, middle) if 2 ** len(d) * alpha >= 2 else (-inf, inf))
    low, high = (_end(rest, middle, way * FAR * spread, alpha) for way in (-1, 1))
    return scale, middle, low, high


def _root(pairs: Pairs) -> float:
    """Return the effect (a logarithm) with which the differences of the pairs, less this effect,
    have the sum 0: the estimate for a run that may be stopped at any look.

    If the first pair has a value of 0 or below, return the logarithm of the ratio of totals
    instead.
    """
    if all(min(pair) <= 0 for pair in pairs[:1]):
        return log_of_ratio(pairs)
    low, high = -MOST, MOST
    for _ in range(ROOT_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(in_turn(pairs, middle)) > 0 else (low, middle)
    return (low + high) / 2


def answered(
    metrics: Sequence[Metric], pairs_of: Mapping[str, Pairs], margin: float | None,
    lost: Mapping[str, int] = MappingProxyType({}),
) -> bool:  # fmt: skip
    """Return whether the run may stop: an effect was found, and every other metric is shown to be
    no worse than its margin.

    margin: percentage for metrics without their own. lost: by metric, the number of lost pairs
    that count as results against the effect.
    """
    wanted = [metric for metric in metrics if not metric.guard]
    found, shown = set(), set()
    for metric in metrics:
        pairs, allowed = pairs_of[metric.name], metric.margin or margin
        if not pairs:
            continue
        against, d = lost.get(metric.name, 0), in_turn(pairs)
        if metric in wanted and p_against(d, against) * len(wanted) < ALPHA:
            found.add(metric)
        if not (allowed and metric.better):
            continue
        over = excess_in_turn(pairs, metric.better == "lower", allowed)
        over = with_lost(over, against, 1.0)
        if p_below_anytime(over) < ALPHA:
            shown.add(metric)
    rest = {metric for metric in metrics if metric.better} - found - shown
    return bool(found or not wanted or (margin and shown == set(metrics))) and not rest


def _end(rest: Callable[[float], list[float]], middle: float, far: float, alpha: float) -> float:
    """Return an end of the interval: by bisection the rejected effect that is nearest to the
    estimate `middle`, on the side of `far`; infinite if none up to `far` is rejected.
    """
    if evidence(rest(middle + far)) < 1 / alpha:
        return inf if far > 0 else -inf
    near = 0.0
    for _ in range(STEPS):
        half = (near + far) / 2
        rejected = evidence(rest(middle + half)) >= 1 / alpha
        near, far = (near, half) if rejected else (half, far)
    return middle + far
