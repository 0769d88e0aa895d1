# SPDX-License-Identifier: GPL-2.0
"""Plan an experiment on many hosts: how many pairs and hosts it needs, by the noise of runs with
equal arms.

`ab pool` makes a t test on the effects of the hosts. Their variance is the sum of the variance
between hosts and that of the pairs of one host. Needs numpy and scipy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, log1p, sqrt

import numpy as np
from scipy import stats

from mmpolicy.ab.design import ALPHA, POWER, differences
from mmpolicy.ab.metrics import Metric
from mmpolicy.ab.report.pool import LEAST_PAIRS
from mmpolicy.ab.samples import Recording
from mmpolicy.figures import figure

MOST_PAIRS, MOST_HOSTS = 100_000, 10_000
LEAST_HOSTS = 2


@dataclass(frozen=True)
class FleetPlan:
    """The plan of a fleet run for one metric: how many pairs and hosts it needs. pairs or hosts is
    None if no number of them is enough.
    """

    metric: str
    noise: float  # standard deviation of the pairs' differences of logarithms
    files: int
    pairs: int | None  # per host
    hosts: int | None  # fewest hosts, if the given number is too small with any number of pairs

    def text(self, hosts: int, percent: float) -> str:
        """Return the plan as one line; percent: the change that is to be found."""
        files = f"{self.files} file{'s' * (self.files != 1)}"
        noise = f"a single pair varies by {figure(100 * self.noise, 3)} %, estimated from {files}"
        if self.pairs:
            return f"{self.metric}: {self.pairs} pairs on each of {hosts} hosts ({noise})"
        need = f"use {self.hosts} hosts or more" if self.hosts else "no number of hosts is enough"
        return (
            f"{self.metric}: {hosts} hosts cannot show a change of {figure(percent)} %, "
            f"however many pairs each has; {need}"
        )


def power(hosts: int, error: float, effect: float, metrics: int) -> float:
    """Return the probability that an effect is found on `hosts` hosts together. error: standard
    error of the effect on a single host.
    """
    freedom = hosts - 1
    limit = stats.t.ppf(1 - ALPHA / metrics / 2, freedom)
    away = effect / error * sqrt(hosts) if error else inf
    if away > 2 * limit + 40:  # scipy cannot compute the distribution beyond this
        return 1.0
    return float(stats.nct.sf(limit, freedom, away))


def noise_of(recordings: Mapping[str, Recording], metric: Metric) -> list[float]:
    """Return the noise of a metric as variances: for each file with enough pairs of equal arms, the
    variance of the differences of these pairs.
    """
    found = []
    for recording in recordings.values():
        same = recording.header["control"]["settings"] == recording.header["treatment"]["settings"]
        pairs = recording.pairs(metric, "aa") + (recording.pairs(metric, "ab") if same else [])
        scale, d = differences(pairs) if len(pairs) >= LEAST_PAIRS else ("", [])
        if scale == "ratio":
            found.append(float(np.var(d, ddof=1)))
    return found


def plan_fleet(
    recordings: Mapping[str, Recording], hosts: int, percent: float, differ: float
) -> list[FleetPlan]:
    """Return the plan for each metric whose noise is known. percent: the change to find. differ:
    standard deviation of the change between hosts, in percent.
    """
    metrics = next(iter(recordings.values())).metrics()
    wanted = sum(not metric.guard for metric in metrics) or 1
    plans = []
    for metric in metrics:
        variances = noise_of(recordings, metric)
        if variances:
            noise = sqrt(sum(variances) / len(variances))
            size = _size(hosts, noise, log1p(percent / 100), differ / 100, wanted)
            plans.append(FleetPlan(metric.name, noise, len(variances), *size))
    return plans


def _size(
    hosts: int, noise: float, effect: float, tau: float, metrics: int
) -> tuple[int | None, int | None]:
    """Return (pairs, None), where pairs is the fewest pairs per host that suffice on this number of
    hosts. If no number of pairs does, return (None, hosts) with the fewest hosts that suffice, or
    (None, None) if even MOST_HOSTS do not.
    """

    def enough(number: int, pairs: float) -> bool:
        return power(number, sqrt(tau**2 + noise**2 / pairs), effect, metrics) >= POWER

    pairs = _first(lambda n: enough(hosts, n), LEAST_PAIRS, MOST_PAIRS)
    most = _first(lambda n: enough(n, inf), LEAST_HOSTS, MOST_HOSTS) if not pairs else None
    return pairs, most


def _first(holds: Callable[[int], bool], low: int, high: int) -> int | None:
    """Return by bisection the first number from low to high for which holds() is true; None if
    there is none. holds() must be monotonic.
    """
    if not holds(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def lines(plans: Sequence[FleetPlan], hosts: int, percent: float, differ: float) -> list[str]:
    """Return the plans as lines, with the next step if every metric has a plan."""
    head = (
        f"to find a change of {figure(percent)} % with 80 % probability, if the change differs "
        f"between hosts by {figure(differ)} %:"
    )
    known = [plan.pairs for plan in plans if plan.pairs]
    found = [head, *(plan.text(hosts, percent) for plan in plans)]
    if known and len(known) == len(plans):
        found.append(
            f"next: mmpolicy ab run --pairs {max(known)} ... on each host, then mmpolicy ab pool"
        )
    return found
