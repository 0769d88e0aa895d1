# SPDX-License-Identifier: GPL-2.0
"""Check the effect of the pairs by the means of many hosts. Needs numpy and scipy.

The effect on a host is a mean of logarithms. That mean is lower where blocks vary more, even if
their plain mean is not lower, and a few very long blocks hardly change it. Users, however, notice
the plain mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot, inf

import numpy as np
from scipy import stats

from mmpolicy.ab.design import ALPHA
from mmpolicy.ab.report.metric_result import UNEVEN
from mmpolicy.ab.report.stats import Vector, apart, rise_of_mean

Ends = tuple[float, float]
Logs = tuple[Vector, Vector]  # difference and sum of both arms' logarithms, by pair


@dataclass(frozen=True)
class Means:
    """The check of a pool's effect by means and totals: how unequal variances of the arms change
    the ratio of means, and the totals over all hosts. All numbers except p-values are logarithms.
    """

    more_p: float = 1.0  # p-value for the hypothesis that the treatment's blocks vary no more
    less_p: float = 1.0
    rise: float = 0.0  # by how much the variances raise the ratio of means
    down: float = 0.0  # error of `rise` downward, and in `up` upward
    up: float = 0.0
    pairs: Ends = (-inf, inf)  # interval of the effect by redrawn assignments
    total: float = 0.0
    totals: Ends = (0.0, 0.0)  # interval of `total` by redrawn assignments

    def bear(self, lower: bool, limit: float, mean: float, end: float) -> bool:
        """Return whether the means over all hosts confirm that the effect is below a limit (or, if
        lower is False, above it). mean: the effect. end: the end of its interval that is nearer to
        the limit.
        """
        if lower:
            uneven, far = self.more_p < UNEVEN, mean + self.rise + hypot(end - mean, self.up)
            denied = self.totals[1] >= limit and self.total > self.pairs[1]
            return not denied and (not uneven or far < limit)
        uneven, far = self.less_p < UNEVEN, mean + self.rise - hypot(mean - end, self.down)
        denied = self.totals[0] <= limit and self.total < self.pairs[0]
        return not denied and (not uneven or far > limit)


def spread_of(hosts: Sequence[Logs]) -> dict[str, float]:
    """Return the fields of Means that come from the variances; each host counts equally.

    A p-value is the probability of a sum over all pairs that is so large, if the arms of each pair
    were swapped at random; it is computed by the normal approximation.
    """
    signs = []
    for d, sums in hosts:
        size = d.std() * sums.std()
        if size > 0:
            signs.append(apart(d, sums) / size)
    z = np.concatenate(signs) if signs else np.zeros(1)
    score = float(z.sum() / np.sqrt((z * z).sum())) if z.any() else 0.0
    rises = np.asarray([rise_of_mean(d, sums, ALPHA / 2) for d, sums in hosts])
    down, up = np.sqrt((rises[:, 1:] ** 2).sum(axis=0)) / len(hosts)
    return {
        "more_p": float(stats.norm.sf(score)), "less_p": float(stats.norm.cdf(score)),
        "rise": float(rises[:, 0].mean()), "down": float(down), "up": float(up),
    }  # fmt: skip


def sides_of(d: Vector, sums: Vector) -> tuple[Vector, Vector]:
    """Return the values of treatment and control in each pair of a host, scaled so that the two
    sums over the pairs have the mean 1. So each host has the same weight.
    """
    treatment, control = np.exp((sums + d) / 2), np.exp((sums - d) / 2)
    usual = (treatment.mean() + control.mean()) / 2
    return treatment / usual / len(d), control / usual / len(d)
