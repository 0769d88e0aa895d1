# SPDX-License-Identifier: GPL-2.0
"""Estimate how much the mean of a series has changed, from values before and after one moment.

Successive values are correlated, so their mean is less certain than their variance suggests, and a
trend looks like a change. So the noise is modelled as an AR(1) process around a linear trend.
Generalised least squares fits trend and change for several correlations. The interval is the union
of the intervals for all correlations that the likelihood does not reject. It also contains the
difference of the means, so that a change of the trend is not taken for a change of the mean.
docs/rates.md shows how often the interval is right. The standard library suffices.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from math import log, sqrt
from statistics import fmean
from sys import float_info
from typing import NamedTuple

# The noise model assumes that each value is correlated with the next one. It is fitted with each of
# these correlations.
CORRELATIONS = (*(each / 20 for each in range(20)), 0.98)
REJECTED = 1.92  # half of the 95 % quantile of chi-square, to compare with log likelihoods
# 97.5 % quantile of t for 48 values and 3 unknowns. The 96 values of a trial would need only 1.986,
# so the interval of a trial is wider by 1.4 %.
STUDENT = 2.014


class Change(NamedTuple):
    """The change of a mean from one measurement to the next, and its 95 % interval."""

    before: float
    estimate: float
    low: float
    high: float

    @classmethod
    def of(cls, before: Sequence[float], after: Sequence[float], gap: float = 1.0) -> Change:
        """Return the change from the mean of the values before to the mean of the values after an
        event, with its 95 % interval.

        gap: time from the last value before to the first value after; 1 is the time between two
        values.
        """
        level = fmean(before)
        estimate = fmean(after) - level
        values = [each - level for each in (*before, *after)]
        fits = [noise.fit(values) for noise in _noises(len(values), len(before), gap)]
        best = max(fit.likelihood for fit in fits)
        found = [fit for fit in fits if fit.likelihood >= best - REJECTED]
        low = min(fit.estimate - STUDENT * fit.error for fit in found)
        high = max(fit.estimate + STUDENT * fit.error for fit in found)
        return cls(level, estimate, min(low, estimate), max(high, estimate))

    @classmethod
    def least(cls, before: Sequence[float], gap: float) -> float:
        """Return how precise a measurement of a change would be: half the width of its 95 %
        interval, if as many values as in `before`, with the same noise, were measured after `gap`.
        """
        number, level = len(before), fmean(before)
        values = [each - level for each in before]
        alone, both = _noises(number, number, gap), _noises(2 * number, number, gap)
        found = [(noise.fit(values), noise.square / whole.square)
                 for noise, whole in zip(alone, both)]  # fmt: skip
        best = max(fit.likelihood for fit, _ in found)
        return STUDENT * max(
            fit.error * sqrt(ratio) for fit, ratio in found if fit.likelihood >= best - REJECTED
        )

    def percent(self, value: float) -> float:
        """Return an absolute change in percent of the mean before; 0 if that mean is 0."""
        return 100 * value / self.before if self.before else 0.0

    def text(self) -> str:
        """Return the change in percent, and its interval, as text."""
        if not self.before:
            return "no ratio, as the value before was 0"
        estimate, low, high = (
            _percent(self.percent(each)) for each in (self.estimate, self.low, self.high)
        )
        return f"{estimate} (95 %: {low} .. {high})"


def _percent(value: float) -> str:
    return f"{value:+.{1 if abs(value) < 10 else 0}f} %"


class _Fit(NamedTuple):
    likelihood: float  # logarithm of the likelihood
    estimate: float  # coefficient of the last cause
    error: float  # standard error of the estimate


class _Noise:
    """A model of a series of values: causes that explain it, and noise in which each value is
    correlated with the next.

    The causes are a constant, a trend and, unless all values are before the moment, a change.
    """

    def __init__(self, number: int, moment: int, correlation: float, gap: float) -> None:
        steps = [gap if each == moment else 1.0 for each in range(number)]
        # _left: share of a value that carries over to the next one. _scales: factor that gives
        # the remainders equal variance, as the gap is longer than the other steps.
        self._left = [0.0, *(correlation**each for each in steps[1:])]
        whole = 1 - correlation**2
        self._scales = [sqrt(whole / (1 - each**2)) for each in self._left]
        after = [float(each >= moment) for each in range(number)]
        self._causes = list[tuple[list[float], float]]()
        causes = ([1.0] * number, list(accumulate(steps)), after)
        for series in causes if moment < number else causes[:-1]:
            rest, _ = self._unexplained(series)
            self._causes.append((rest, _dot(rest, rest)))

    def _unexplained(self, series: Sequence[float]) -> tuple[list[float], float]:
        """Return what the causes leave unexplained of a series, and the coefficient of the last
        cause.
        """
        last, share = [0.0, *series[:-1]], 0.0
        rest = [k * (y - c * x) for k, c, x, y in zip(self._scales, self._left, last, series)]
        for cause, square in self._causes:
            share = _dot(rest, cause) / square
            rest = [y - share * x for x, y in zip(cause, rest)]
        return rest, share

    @property
    def square(self) -> float:
        """Return the sum of squares of the last cause, without the part that the other causes
        explain. The error of its coefficient depends on this.
        """
        return self._causes[-1][1]

    def fit(self, values: Sequence[float]) -> _Fit:
        """Fit the causes to a series of values; return the likelihood, and the coefficient of the
        last cause with its standard error.
        """
        rest, change = self._unexplained(values)
        squares = [square for _, square in self._causes]
        freedom, noise = len(values) - len(squares), max(_dot(rest, rest), float_info.min)
        known = sum(map(log, squares)) + freedom * log(noise)
        likelihood = sum(map(log, self._scales)) - known / 2
        return _Fit(likelihood, change, sqrt(noise / freedom / squares[-1]))


@lru_cache
def _noises(number: int, moment: int, gap: float) -> list[_Noise]:
    return [_Noise(number, moment, each, gap) for each in CORRELATIONS]


def _dot(first: Sequence[float], second: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(first, second))
