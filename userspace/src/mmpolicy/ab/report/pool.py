# SPDX-License-Identifier: GPL-2.0
"""Pool one experiment over many hosts: the effect on these hosts, and on further ones. Needs numpy
and scipy.

On these hosts, nothing is assumed: the random assignments of all pairs of all hosts are redrawn,
and each host counts equally. For further hosts, the effects of these hosts are taken as a sample:
random effects, with the variance between hosts of Paule and Mandel (1982), the interval of Hartung
and Knapp (2001), and the prediction interval of Higgins, Thompson and Spiegelhalter (2009). These
methods assume that hosts are independent. If an event hits a pair on several hosts at once, the
assignments may by chance push all effects in one direction. So the interval is never narrower than
that by the redrawn assignments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from math import log
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize, special, stats

from mmpolicy.ab.design import (
    ALPHA,
    DIRTY,
    at_margin,
    differences,
    few_lost,
    in_percent,
    planned_so_far,
    with_lost,
)
from mmpolicy.ab.metrics import Metric
from mmpolicy.ab.report.pool_means import Means, sides_of, spread_of
from mmpolicy.ab.report.report import AA, CARRY, OWN, Doubt, Report
from mmpolicy.ab.report.stats import Vector, binomial_tail_of, ends_of, without_place
from mmpolicy.ab.samples import Recording
from mmpolicy.errors import Error, Exit
from mmpolicy.figures import figure

TOSSES = 9999  # number of times that the assignments of all hosts are redrawn
LEAST_PAIRS = 3  # fewest pairs of a host from which its noise is estimated
LEAST_NOISE = 1e-17  # lower bound of variances, to divide by them
STANDS_OUT = 5.0  # a pair is an outlier above this multiple of the median size on its host
NAMED = 3  # most hosts that a verdict names
# Even without a fault, chance raises a doubt of this kind on this share of hosts. Doubts of the
# kind count only if significantly more hosts have them.
BY_CHANCE = {AA: DIRTY, CARRY: ALPHA}
NOTHING = np.zeros(0)


@dataclass(frozen=True)
class HostEffect:
    """The effect of one metric on one host: its pairs, as differences of logarithms."""

    name: str
    d: Vector
    sums: Vector = field(default_factory=lambda: NOTHING)  # sum of both arms' logarithms, by pair
    moments: Vector = field(default_factory=lambda: NOTHING)  # start of each pair, in seconds
    against: int = 0  # number of lost pairs that count as results against the effect

    def opposed(self, sign: float) -> HostEffect:
        """Return a copy of this host with its lost pairs added. Each gets the given sign and the
        size of the largest pair.
        """
        return replace(self, d=np.asarray(with_lost(self.d.tolist(), self.against, sign)))

    @property
    def mean(self) -> float:
        """Return the mean difference of the pairs, which is the effect on this host."""
        return float(self.d.mean())

    @property
    def off(self) -> float:
        """Return by how much lost pairs may have moved the mean of this host, if each lies as far
        from it as the farthest pair; 0 if no lost pair counts.
        """
        if not self.against:
            return 0.0
        farthest = float(np.abs(self.d - self.mean).max())
        return farthest * self.against / (self.against + len(self.d))

    @property
    def noise(self) -> float:
        """Return the variance of the differences of the pairs."""
        return max(float(self.d.var(ddof=1)), LEAST_NOISE)


@dataclass(frozen=True)
class Pooled:
    """The pooled effects, as logarithms."""

    here: float  # mean effect on these hosts
    p_here: float
    mean: float  # mean effect on all hosts from which these are a sample
    low: float
    high: float
    p: float
    tau: float  # standard deviation between hosts
    heterogeneity_p: float
    i2: float  # share of the variance of effects that lies between hosts
    next_low: float  # 95 % prediction interval for the next host
    next_high: float


def weighted(effects: Vector, variances: Vector) -> tuple[float, float, float]:
    """Return the mean of the effects weighted by inverse variance, Cochran's Q about this mean, and
    the sum of the weights.
    """
    weights = 1 / variances
    mean = (weights * effects).sum() / weights.sum()
    return float(mean), float((weights * (effects - mean) ** 2).sum()), float(weights.sum())


def variances_of(hosts: Sequence[HostEffect]) -> Vector:
    """Return the variance of the effect of each host.

    A few pairs estimate the noise of a host badly. So the logarithm of its variance is shrunk
    towards the mean over all hosts, by the part of the differences that chance explains.
    """
    pairs = np.asarray([len(host.d) for host in hosts])
    freedom = (pairs - 1) / 2
    logs = np.log([host.noise for host in hosts]) - special.psi(freedom) + np.log(freedom)
    chance = special.polygamma(1, freedom)
    real = max(0.0, float(logs.var(ddof=1) - chance.mean()))
    near = logs.mean() + real / (real + chance) * (logs - logs.mean())
    variances: Vector = np.exp(near) / pairs
    return variances


def tau_squared(effects: Vector, variances: Vector) -> float:
    """Return the variance between hosts by Paule and Mandel: the value with which Cochran's Q
    equals its expectation.
    """

    def excess(tau2: float) -> float:
        return weighted(effects, variances + tau2)[1] - (len(effects) - 1)

    if excess(0.0) <= 0:
        return 0.0
    # If the variance between hosts had this value, Q would be at most a fourth of the number of
    # hosts, so the solution is below it.
    far = float(np.ptp(effects) ** 2)
    return float(optimize.brentq(excess, 0.0, far, xtol=1e-15))


def pooled(hosts: Sequence[HostEffect], seed: int = 1, tosses: int = TOSSES) -> Pooled:
    """Return the pooled effect on these hosts, and the effect to expect on further hosts; there
    must be two hosts or more.

    Lost pairs count as results against the effect. For these hosts, each lost pair is as large as
    the largest pair of its host, as in a report. For further hosts, lost pairs may move the mean by
    HostEffect.off, so the interval is wider by that at both ends (bounds of Horowitz and Manski,
    1998).
    """
    effects = np.asarray([host.mean for host in hosts])
    variances = variances_of(hosts)
    freedom = len(hosts) - 1
    tau2 = tau_squared(effects, variances)
    mean, q, weight = weighted(effects, variances + tau2)
    error = float(np.sqrt(max(q / freedom / weight, LEAST_NOISE)))
    t = float(stats.t.ppf(1 - ALPHA / 2, freedom))
    _, total, _ = weighted(effects, variances)
    spread = float(stats.t.ppf(1 - ALPHA / 2, max(freedom - 1, 1))) * float(
        np.sqrt(tau2 + error**2)
    )
    coins = Coins.of(hosts, seed, tosses)
    offs = np.asarray([host.off for host in hosts])
    off, off_here = weighted(offs, variances + tau2)[0], float(offs.mean())
    return Pooled(
        here=float(effects.mean()),
        p_here=max(coins.p, _p_against(hosts, seed, tosses)),
        mean=mean,
        low=min(mean - t * error - off, coins.low - off_here),
        high=max(mean + t * error + off, coins.high + off_here),
        p=float(2 * stats.t.sf(max(abs(mean) - off, 0.0) / error, freedom)),
        tau=float(np.sqrt(tau2)),
        heterogeneity_p=float(stats.chi2.sf(total, freedom)),
        i2=max(0.0, 1 - freedom / total) if total else 0.0,
        next_low=mean - spread - off,
        next_high=mean + spread + off,
    )


def _p_against(hosts: Sequence[HostEffect], seed: int, tosses: int) -> float:
    """Return the p-value of the effect on these hosts if all lost pairs count as results against
    it, computed by redrawing the assignments. 0 if no pair is lost, 1 if the lost pairs reverse the
    effect.
    """
    if not any(host.against for host in hosts):
        return 0.0
    sign = -1.0 if sum(host.mean for host in hosts) > 0 else 1.0
    opposed = [host.opposed(sign) for host in hosts]
    turned = sum(host.mean for host in opposed) * sign >= 0
    return 1.0 if turned else Coins.of(opposed, seed, tosses).p


@dataclass(frozen=True)
class Coins:
    """Inference from redrawing the random assignments of all pairs of these hosts."""

    p: float
    low: float  # interval of the effects that the redrawn assignments do not reject
    high: float
    total: float = 0.0  # logarithm of the ratio of totals, with each host scaled to the same mean
    totals: tuple[float, float] = (0.0, 0.0)  # interval of `total`

    @classmethod
    def of(
        cls, hosts: Sequence[HostEffect], seed: int, tosses: int, with_totals: bool = False
    ) -> Coins:
        """Redraw the assignments of all pairs `tosses` times. Each redraw gives the mean over a
        random subset of the pairs; these means yield the p-value and the interval.
        """
        rng = np.random.default_rng(seed)
        seen = sum(host.mean for host in hosts)
        turned, weight = np.zeros(tosses), np.zeros(tosses)
        sides, sums = np.zeros((2, tosses)), np.zeros(2)
        for host in hosts:
            chosen = rng.integers(0, 2, (tosses, len(host.d)), np.int8).astype(float)
            turned += chosen @ (host.d / len(host.d))
            weight += chosen @ np.ones(len(host.d)) / len(host.d)
            if with_totals:
                both = np.stack(sides_of(host.d, host.sums))
                sides += (chosen @ both.T).T
                sums += both.sum(axis=1)
        some = weight > 0
        p = (1 + (np.abs(2 * turned - seen) >= abs(seen) * (1 - 1e-12)).sum()) / (1 + tosses)
        low, high = ends_of(turned[some] / weight[some])
        if not with_totals:
            return cls(float(p), low, high)
        treatment, control = np.log(sides[:, some])
        total = float(np.log(sums[0]) - np.log(sums[1]))
        return cls(float(p), low, high, total, ends_of(treatment - control))


def means_of(hosts: Sequence[HostEffect], seed: int = 1, tosses: int = TOSSES) -> Means:
    """Return the ratio of means and the totals over these hosts, by which the pool checks the
    effect that the pairs show.
    """
    known = [host for host in hosts if len(host.sums) == len(host.d)]
    coins = Coins.of(known, seed, tosses, with_totals=True)
    spread = spread_of([(host.d, host.sums) for host in known])
    ends = (coins.low, coins.high)
    return Means(**spread, pairs=ends, total=coins.total, totals=coins.totals)


def shared_jump(hosts: Sequence[HostEffect]) -> list[str]:
    """Return the hosts on which an outlying pair began at about the same time as one on another
    host, as if both had one cause.

    Only the sizes of the pairs are compared, as the random assignment decided their signs.
    """
    moments: list[tuple[float, float, str]] = []
    for host in hosts:
        sizes = np.abs(host.d)
        if len(host.moments) == len(sizes) > 1:
            place = int(sizes.argmax())
            if sizes[place] > STANDS_OUT * max(float(np.median(sizes)), LEAST_NOISE):
                length = float(np.median(np.diff(host.moments)))
                moments.append((float(host.moments[place]), length, host.name))
    return [
        name for at, length, name in moments
        if any(abs(at - then) < length and name != other for then, _, other in moments)
    ]  # fmt: skip


# Files


def _span(recording: Recording) -> tuple[str, str]:
    """Return when a run began and ended, in UTC, as texts whose order is that of time."""
    start: str = recording.header["started"]
    return start, max([start, *(each["at"] for each in recording.blocks.values() if "at" in each)])


def label_of(path: str, recording: Recording) -> str:
    """Return the name of a host in the table: its name, or else the path of its file, and its
    labels.
    """
    host = recording.header["host"]
    labels = " ".join(f"{key}={value}" for key, value in host.get("labels", {}).items())
    return f"{host.get('name') or path} {labels}".strip()


class Left(NamedTuple):
    """The reason why a host is left out for a metric."""

    reason: str


@dataclass(frozen=True)
class HostRun:
    """The results of one file. The samples are dropped, as a fleet may have thousands of files."""

    path: str
    digest: str
    seed: int
    span: tuple[str, str]
    label: str
    effects: dict[str, HostEffect]  # by metric
    doubts: list[Doubt]
    stopped: bool
    # the reason why there is no effect, by metric
    left: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, path: str, recording: Recording) -> HostRun:
        """Return the results of a recording; raise an error if it does not identify its host."""
        if not recording.header.get("digest"):
            text = (
                f"{path} was written by an old version of mmpolicy, which did not record the host"
            )
            raise Error(text, Exit.USAGE, "run the experiment again with this version")
        label = label_of(path, recording)
        found = {each.name: _effect(label, recording, each) for each in recording.metrics()}
        return cls(
            path, recording.header["digest"], recording.header["seed"], _span(recording), label,
            {name: each for name, each in found.items() if isinstance(each, HostEffect)},
            Report(recording).reasons, recording.stopped_in_treatment,
            {name: each.reason for name, each in found.items() if isinstance(each, Left)},
        )  # fmt: skip


def _effect(label: str, recording: Recording, metric: Metric) -> HostEffect | Left:
    """Return the effect of a metric on a host, or the reason why there is none."""
    by_pair, firsts = recording.by_pair(metric, "ab"), recording.firsts()
    pairs = list(by_pair.values())
    scale, d = differences(pairs)
    if len(d) < LEAST_PAIRS:
        return Left(f"{len(d)} pairs have a value in both blocks, and ab pool needs {LEAST_PAIRS}")
    if scale != "ratio":
        return Left("ab pool compares ratios, and some values are 0 or less")
    values = np.asarray(d)
    first = np.asarray([firsts[pair] for pair in by_pair if firsts], bool)
    rest = without_place(values, first) if len(set(first.tolist())) > 1 else None
    planned = planned_so_far(recording.end, recording.planned, by_pair)
    lost, against = recording.lost_pairs(metric, planned)
    return HostEffect(
        label, values if rest is None else rest, np.log(np.asarray(pairs)).sum(axis=1),
        _moments(recording, by_pair), against if few_lost(lost, planned) else lost,
    )  # fmt: skip


def _moments(recording: Recording, pairs: Iterable[int]) -> Vector:
    """Return when each pair began, in seconds since 1970, or since the run began if the header has
    no time of day.
    """
    started = recording.header["started"]
    start = datetime.fromisoformat(started).timestamp() if started else 0.0
    began: dict[int, float] = {}
    for number, pair, _ in recording.of_phase("ab"):
        began.setdefault(pair, float(recording.blocks[number]["began"]))
    return np.asarray([start + began[pair] for pair in pairs])


def _check_same(first: HostRun, other: HostRun) -> None:
    """Raise an error if two samples files are not of the same experiment, as their digests show."""
    if other.digest != first.digest:
        text = f"{other.path} and {first.path} are not of the same experiment"
        hint = "give the files of one `mmpolicy ab run` command that ran on each host, see ab.md"
        raise Error(f"{text}: their arms, metrics or designs differ", Exit.USAGE, hint)


def _check_own(runs: Sequence[HostRun]) -> None:
    """Raise an error if two files have the same seed and overlap in time: their assignments are
    then the same, so they do not count as two hosts.
    """
    ordered = sorted(runs, key=lambda run: (run.seed, run.span))
    for first, then in zip(ordered, ordered[1:]):
        if first.seed == then.seed and then.span[0] <= first.span[1]:
            one, other = sorted((first.path, then.path))
            text = f"{one} and {other} have the same seed and overlap in time"
            hint = (
                "leave one of the two files out, and give each host an /etc/machine-id of its own"
            )
            raise Error(
                f"{text}: they assigned the arms by the same random choices, so they do "
                "not count as two hosts",
                Exit.USAGE,
                hint,
            )


class Pool:
    """The result of one experiment over the files of many hosts."""

    def __init__(self, recordings: Iterable[tuple[str, Recording]]) -> None:
        self.runs: list[HostRun] = []
        for path, recording in recordings:  # only one recording is in memory at a time
            if not self.runs:
                self.metrics = recording.metrics()
                self.margin = recording.header.get("margin") or 0.0
            self.runs.append(HostRun.of(path, recording))
            _check_same(self.runs[0], self.runs[-1])
        _check_own(self.runs)
        self.effects = {
            metric.name: [run.effects[metric.name] for run in self.runs
                          if metric.name in run.effects]
            for metric in self.metrics
        }  # fmt: skip
        self.results = {
            name: pooled(hosts) for name, hosts in self.effects.items() if len(hosts) > 1
        }
        self.means = {name: means_of(self.effects[name]) for name in self.results}

    # Reasons for doubt

    def stopped(self) -> list[str]:
        """Return the hosts on which a guard ended the run during the treatment. Such a host always
        counts, even if it has too few pairs.
        """
        return [run.label for run in self.runs if run.stopped]

    @cached_property
    def open_doubts(self) -> list[tuple[str, str]]:
        """Return the doubts that make the result of the pool inconclusive, each with its host.

        A contradiction between totals and pairs is not among them: Means tests it over all hosts
        together.
        """
        kinds = {OWN}
        for kind, rate in BY_CHANCE.items():
            hosts = sum(any(each.kind == kind for each in run.doubts) for run in self.runs)
            if binomial_tail_of(hosts, len(self.runs), rate) < DIRTY:
                kinds.add(kind)
        return [(run.label, doubt.text)
                for run in self.runs for doubt in run.doubts if doubt.kind in kinds]  # fmt: skip

    @property
    def left_out(self) -> list[tuple[str, str]]:
        """Return (host, reason) for each host that is left out of the result of a metric."""
        return [(run.label, f"{name}: {reason}") for run in self.runs
                for name, reason in run.left.items()]  # fmt: skip

    # The result

    @cached_property
    def exit(self) -> Exit:
        """Return the exit code: WORSE if any metric is worse; DONE if the result holds on every
        host; else INCONCLUSIVE.

        DONE needs one metric that is better on these hosts and on further ones, all others within
        their margins, and no host that is in doubt, left out, or stopped by a guard.
        """
        known = [metric for metric in self.metrics if metric.name in self.results]
        if any(self._worse(metric) for metric in known):
            return Exit.WORSE
        if len(known) < len(self.metrics) or self.stopped() or self.open_doubts or self.left_out:
            return Exit.INCONCLUSIVE
        good = {metric for metric in known if self._good(metric)}
        if any(each.better and each not in good and not self._within(each) for each in known):
            return Exit.INCONCLUSIVE
        better = any(not metric.guard for metric in good)
        return Exit.DONE if better else Exit.INCONCLUSIVE

    def _shown(self, metric: Metric) -> bool:
        """Return whether an effect was found on these hosts and on further ones, and the means
        confirm it.
        """
        wanted = sum(not each.guard for each in self.metrics)
        found, level = self.results[metric.name], ALPHA / max(wanted, 1)
        lower = found.mean < 0
        return found.p < level and found.p_here < level and self._bear(metric, lower, 0.0)

    def _good(self, metric: Metric) -> bool:
        lower = self.results[metric.name].mean < 0
        wanted = not metric.better or lower == (metric.better == "lower")
        return wanted and self._shown(metric)

    def _worse(self, metric: Metric) -> bool:
        """Return whether a metric is shown to be worse, and not to be within its margin."""
        if not metric.better or not self._shown(metric):
            return False
        return not self._good(metric) and not self._within(metric)

    def _bear(self, metric: Metric, lower: bool, limit: float) -> bool:
        """Return whether the means over all hosts confirm that the effect is below a limit (or, if
        lower is False, above it).
        """
        found = self.results[metric.name]
        end = found.high if lower else found.low
        return self.means[metric.name].bear(lower, limit, found.mean, end)

    def _within(self, metric: Metric) -> bool:
        """Return whether the treatment is shown to be worse by less than the margin, or to be
        better; False if no margin is given.
        """
        margin = metric.margin or self.margin
        if not margin:
            return False
        lower, found = metric.better == "lower", self.results[metric.name]
        limit = log(at_margin(lower, margin))
        shown = found.high < limit if lower else found.low > limit
        return shown and self._bear(metric, lower, limit)

    def lines(self) -> list[str]:
        """Return the result as lines of text."""
        lines = []
        for metric in self.metrics:
            hosts = self.effects[metric.name]
            lines += [f"{metric.text}", *_forest(hosts)]
            found = self.results.get(metric.name)
            if not found:
                lines += ["  no result: fewer than 2 hosts have enough pairs", ""]
                continue
            lines += [
                (
                    f"  effect on these {len(hosts)} hosts: {_percent(found.here)} (p = "
                    f"{found.p_here:.2g}, by redrawing all random assignments)"
                ),
                (
                    f"  effect on hosts like these: {_percent(found.mean)} "
                    f"({_percent(found.low)} .. {_percent(found.high)}), p = {found.p:.2g}"
                ),
                (
                    "  effect on the next host, as a rough guide: "
                    f"{_percent(found.next_low)} .. {_percent(found.next_high)}; the "
                    f"effect differs between hosts by {figure(100 * found.tau, 2)} % (I2 "
                    f"{100 * found.i2:.0f} %, p = {found.heterogeneity_p:.2g})"
                ),
            ]
            lines += self._of_jump(hosts)
            if lost := _lost(hosts):
                lines.append(
                    f"  pairs without a value are counted against the result: {_some(lost)}"
                )
            lines.append("")
        lines += [f"host left out: {host}: {why}" for host, why in self.left_out]
        lines += self._doubt_lines()
        stopped = self.stopped()
        names = f"{', '.join(stopped) or 'none'} ({len(stopped)} of {len(self.runs)})"
        lines.append(f"hosts where a guard stopped the run in the treatment: {names}")
        return [*lines, f"verdict: {self.verdict()}"]

    def _doubt_lines(self) -> Iterator[str]:
        for run in self.runs:
            for doubt in run.doubts:
                counts = (run.label, doubt.text) in self.open_doubts
                yield f"{'doubt' if counts else 'note'}: {run.label}: {doubt.text}"

    def _of_jump(self, hosts: Sequence[HostEffect]) -> Iterator[str]:
        shared = shared_jump(hosts)
        if shared:
            yield (
                f"  the values of {_some(shared)} jump at the same time, so these "
                "hosts are not independent; the interval for hosts like these was therefore "
                "widened to contain that of the redrawn assignments"
            )

    def verdict(self) -> str:
        """Return the verdict, in one sentence."""
        if self.exit == Exit.INCONCLUSIVE:
            if self.stopped():
                return (
                    "inconclusive: a guard stopped the run in the treatment on "
                    f"{_some(self.stopped())}"
                )
            if self.open_doubts:
                return (
                    "inconclusive: the results of these hosts are in doubt: "
                    f"{_some(_by_host(self.open_doubts))}"
                )
            if self.left_out:
                return (
                    "inconclusive: these hosts had to be left out: "
                    f"{_some(_by_host(self.left_out))}"
                )
            lost = _lost(host for hosts in self.effects.values() for host in hosts)
            why = (
                f"; pairs without a value are counted against the result: {_some(lost)}"
                if lost
                else ""
            )
            return (
                "inconclusive: not every metric that needs to get better is shown to be "
                f"better{why}"
            )
        word = "worse" if self.exit == Exit.WORSE else "better"
        return f"the treatment is {word} on these hosts, and on hosts like these"

    def data(self) -> dict[str, Any]:
        """Return the result for JSON; effects are in percent."""
        metrics = []
        for metric in self.metrics:
            hosts = [{"host": host.name, "pairs": len(host.d), "effect": in_percent(host.mean)}
                     for host in self.effects[metric.name]]  # fmt: skip
            found = self.results.get(metric.name)
            numbers = vars(found).copy() if found else {}
            for name in ("here", "mean", "low", "high", "next_low", "next_high"):
                if name in numbers:
                    numbers[name] = in_percent(numbers[name])
            metrics.append({"metric": metric.name, "hosts": hosts, **numbers})
        named = {
            name: [{"host": host, "reason": reason} for host, reason in reasons]
            for name, reasons in (("in_doubt", self.open_doubts), ("left_out", self.left_out))
        }
        return {"verdict": self.verdict(), "exit": int(self.exit), "metrics": metrics,
                "stopped": self.stopped(), **named}  # fmt: skip


def _percent(effect: float) -> str:
    return f"{figure(in_percent(effect), 3, '+')} %"


def _by_host(reasons: Sequence[tuple[str, str]]) -> list[str]:
    """Return each host once, as text with the first of its reasons for being left out or
    in doubt.
    """
    firsts: dict[str, str] = {}
    for host, reason in reasons:
        firsts.setdefault(host, reason)
    return [f"{host} ({reason})" for host, reason in firsts.items()]


def _lost(hosts: Iterable[HostEffect]) -> list[str]:
    """Return each host that has lost pairs, with the largest number over its metrics, as text."""
    most: dict[str, int] = {}
    for host in hosts:
        most[host.name] = max(host.against, most.get(host.name, 0))
    return [f"{name} ({number})" for name, number in most.items() if number]


def _some(texts: Sequence[str]) -> str:
    """Return the first NAMED texts, separated by commas, and say how many more there are."""
    more = len(texts) - NAMED
    return ", ".join(texts[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _forest(hosts: Sequence[HostEffect], width: int = 41) -> list[str]:
    """Return a line for each host, with its 95 % interval drawn around 0."""
    rows = []
    for host in hosts:
        error = np.sqrt(host.noise / len(host.d))
        half = float(stats.t.ppf(1 - ALPHA / 2, len(host.d) - 1) * error)
        rows.append((host, host.mean - half, host.mean + half))
    far = max((abs(end) for _, *ends in rows for end in ends), default=0.0)  # above 0
    names = max((len(host.name) for host in hosts), default=0)
    lines = []
    for host, low, high in rows:
        at = [round((end / far + 1) / 2 * (width - 1)) for end in (low, host.mean, high)]
        cells = ["-" if at[0] <= place <= at[2] else " " for place in range(width)]
        cells[width // 2] = "|"
        cells[at[1]] = "o"
        ends = f"({_percent(low)} .. {_percent(high)})"
        lines.append(f"  {host.name:{names}}  {''.join(cells)}  {_percent(host.mean)} {ends}")
    return lines
