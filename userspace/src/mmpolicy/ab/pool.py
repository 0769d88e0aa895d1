# SPDX-License-Identifier: GPL-2.0
"""One experiment on many hosts: on these, and on the next one. Needs numpy and scipy.

On these hosts: nothing is assumed, the coins of all pairs of all hosts are tossed anew. Each
host counts the same. On the next host: hosts differ, so their effects are a sample. Random
effects, with the variance between hosts of Paule and Mandel (1982), the interval of Hartung
and Knapp (2001), and the prediction interval of Higgins, Thompson and Spiegelhalter (2009).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log
from typing import Any

import numpy as np
from scipy import optimize, special, stats

from mmpolicy.ab.design import ALPHA, at_margin, differences, in_percent
from mmpolicy.ab.metrics import Metric
from mmpolicy.ab.report import Report
from mmpolicy.ab.samples import Recording
from mmpolicy.ab.stats import Vector, without_place
from mmpolicy.errors import Error, Exit

TOSSES = 9999  # of the coins of all hosts
LEAST_PAIRS = 3  # of a host, to know its noise
LEAST_NOISE = 1e-17  # a variance


@dataclass(frozen=True)
class HostEffect:
    """The differences of the pairs of a host, of logarithms."""

    name: str
    d: Vector

    @property
    def mean(self) -> float:
        """Return its effect."""
        return float(self.d.mean())

    @property
    def noise(self) -> float:
        """Return the variance of its pairs."""
        return max(float(self.d.var(ddof=1)), LEAST_NOISE)


@dataclass(frozen=True)
class Pooled:
    """What hosts say together; effects are logarithms."""

    here: float  # mean of these hosts
    p_here: float
    mean: float  # of all hosts that there may be
    low: float
    high: float
    p: float
    tau: float  # deviation between hosts
    heterogeneity_p: float
    i2: float  # share of the variance that is due to hosts
    next_low: float  # where the effect on the next host is, in 95 %
    next_high: float


def weighted(effects: Vector, variances: Vector) -> tuple[float, float, float]:
    """Return the mean by inverse variance, Q about it, and the sum of the weights."""
    weights = 1 / variances
    mean = (weights * effects).sum() / weights.sum()
    return float(mean), float((weights * (effects - mean) ** 2).sum()), float(weights.sum())


def variances_of(hosts: Sequence[HostEffect]) -> Vector:
    """Return the variance of the effect of each host.

    Few pairs know the noise of their host badly. Its logarithm is moved towards the mean of
    all hosts, by the part of what they differ by that chance explains.
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
    """Return the variance between hosts by Paule and Mandel: it makes Q what is expected."""

    def excess(tau2: float) -> float:
        return weighted(effects, variances + tau2)[1] - (len(effects) - 1)

    if excess(0.0) <= 0:
        return 0.0
    far = float(np.ptp(effects) ** 2)  # there, Q is a fourth of the number of hosts at most
    return float(optimize.brentq(excess, 0.0, far, xtol=1e-15))


def pooled(hosts: Sequence[HostEffect], seed: int = 1, tosses: int = TOSSES) -> Pooled:
    """Return both answers of two hosts or more."""
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
    return Pooled(
        here=float(effects.mean()),
        p_here=_p_of_coins(hosts, seed, tosses),
        mean=mean,
        low=mean - t * error,
        high=mean + t * error,
        p=float(2 * stats.t.sf(abs(mean) / error, freedom)),
        tau=float(np.sqrt(tau2)),
        heterogeneity_p=float(stats.chi2.sf(total, freedom)),
        i2=max(0.0, 1 - freedom / total) if total else 0.0,
        next_low=mean - spread,
        next_high=mean + spread,
    )


def _p_of_coins(hosts: Sequence[HostEffect], seed: int, tosses: int) -> float:
    """Return the p of the mean of these hosts, of which all coins are tossed anew."""
    rng = np.random.default_rng(seed)
    seen = abs(sum(host.mean for host in hosts))
    sums = np.zeros(tosses)
    for host in hosts:
        d = host.d / len(host.d)
        sums += 2.0 * (rng.integers(0, 2, (tosses, len(d)), np.int8) @ d) - d.sum()
    return float((1 + (np.abs(sums) >= seen * (1 - 1e-12)).sum()) / (1 + tosses))


# Files


def _span(recording: Recording) -> tuple[str, str]:
    """Return when a run began and ended, as text that can be compared (UTC)."""
    start: str = recording.header["started"]
    return start, max([start, *(each["at"] for each in recording.blocks.values() if "at" in each)])


def label_of(path: str, recording: Recording) -> str:
    """Return what a host is called in the table."""
    host = recording.header["host"]
    labels = " ".join(f"{key}={value}" for key, value in host.get("labels", {}).items())
    return f"{host.get('name') or path} {labels}".strip()


@dataclass(frozen=True)
class HostRun:
    """What a pool keeps of a file: a fleet has thousands, and each has all samples of its run."""

    path: str
    digest: str
    seed: int
    span: tuple[str, str]
    label: str
    effects: dict[str, HostEffect]  # by metric; one with too few pairs is left out
    doubts: list[str]
    stopped: bool

    @classmethod
    def of(cls, path: str, recording: Recording) -> HostRun:
        """Return what a file says."""
        if not recording.header.get("digest"):
            text = f"{path} has version 1, and does not say which host it is of"
            raise Error(text, Exit.USAGE, "run it again with this version")
        label = label_of(path, recording)
        found = {each.name: _effect(label, recording, each) for each in recording.metrics()}
        return cls(
            path, recording.header["digest"], recording.header["seed"], _span(recording), label,
            {name: effect for name, effect in found.items() if effect},
            Report(recording).doubts, recording.stopped_in_treatment,
        )  # fmt: skip


def _effect(label: str, recording: Recording, metric: Metric) -> HostEffect | None:
    """Return the effect on a host, if it has enough pairs."""
    by_pair, firsts = recording.by_pair(metric, "ab"), recording.firsts()
    scale, d = differences(list(by_pair.values()))
    if scale != "ratio" or len(d) < LEAST_PAIRS:
        return None
    values = np.asarray(d)
    first = np.asarray([firsts[pair] for pair in by_pair if firsts], bool)
    rest = without_place(values, first) if len(set(first.tolist())) > 1 else None
    return HostEffect(label, values if rest is None else rest)


def _check_same(first: HostRun, other: HostRun) -> None:
    """Refuse files of different experiments."""
    if other.digest != first.digest:
        text = f"{other.path} is of another experiment than {first.path}"
        hint = "pool files of the same command, see ab.md"
        raise Error(f"{text}: arms, metrics or design differ", Exit.USAGE, hint)


def _check_own(runs: Sequence[HostRun]) -> None:
    """Refuse two files with the same coins at the same time."""
    ordered = sorted(runs, key=lambda run: (run.seed, run.span))
    for first, then in zip(ordered, ordered[1:]):
        if first.seed == then.seed and then.span[0] <= first.span[1]:
            one, other = sorted((first.path, then.path))
            text = f"{one} and {other} have the same seed and overlap in time"
            hint = "leave one out; each host needs an /etc/machine-id of its own"
            raise Error(f"{text}: their coins are the same", Exit.USAGE, hint)


class Pool:
    """Files of one experiment on many hosts."""

    def __init__(self, recordings: Iterable[tuple[str, Recording]]) -> None:
        self.runs: list[HostRun] = []
        for path, recording in recordings:  # one at a time
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

    def stopped(self) -> list[str]:
        """Return the hosts on which a guard broke in the treatment; they are never dropped."""
        return [run.label for run in self.runs if run.stopped]

    def left_out(self, metric: Metric) -> int:
        """Return how many hosts have too few pairs, or no ratio."""
        return len(self.runs) - len(self.effects[metric.name])

    @cached_property
    def exit(self) -> Exit:
        """Return 0 if it is better on these hosts and the next, and no guard is open or broke."""
        if len(self.results) < len(self.metrics):
            return Exit.INCONCLUSIVE
        wanted = [metric for metric in self.metrics if not metric.guard]
        level = ALPHA / max(len(wanted), 1)
        better = 0
        for metric in self.metrics:
            found = self.results[metric.name]
            fell = found.mean < 0
            shown = found.p < level and found.p_here < level
            good = shown and (not metric.better or fell == (metric.better == "lower"))
            if metric.better and not good and not self._within(metric, found):
                return Exit.WORSE if shown else Exit.INCONCLUSIVE
            better += good and not metric.guard
        return Exit.DONE if better and not self.stopped() else Exit.INCONCLUSIVE

    def _within(self, metric: Metric, found: Pooled) -> bool:
        """Tell if the mean of all hosts is shown to be no worse than the margin."""
        margin = metric.margin or self.margin
        if not margin:
            return False
        lower = metric.better == "lower"
        limit = log(at_margin(lower, margin))
        return found.high < limit if lower else found.low > limit

    def lines(self) -> list[str]:
        """Return it as text."""
        lines = []
        for metric in self.metrics:
            hosts = self.effects[metric.name]
            lines += [f"{metric.text}", *_forest(hosts)]
            found = self.results.get(metric.name)
            if not found:
                lines += ["  fewer than 2 hosts have enough pairs", ""]
                continue
            lines += [
                f"  on these {len(hosts)} hosts: {_percent(found.here)} (p = {found.p_here:.2g}, "
                "all coins tossed anew)",
                f"  on hosts like these: {_percent(found.mean)} ({_percent(found.low)} .. "
                f"{_percent(found.high)}), p = {found.p:.2g}",
                f"  on the next host: {_percent(found.next_low)} .. {_percent(found.next_high)}; "
                f"hosts differ by {100 * found.tau:.2g} % (I2 {100 * found.i2:.0f} %, "
                f"p = {found.heterogeneity_p:.2g})",
            ]
            if self.left_out(metric):
                lines.append(f"  {self.left_out(metric)} hosts have too few pairs, or values of 0")
            lines.append("")
        lines += [f"doubt: {run.label}: {doubt}" for run in self.runs for doubt in run.doubts]
        stopped = self.stopped()
        lines.append(f"stopped in the treatment by a guard: {', '.join(stopped) or 'none'}"
                     f" ({len(stopped)} of {len(self.runs)} hosts)")  # fmt: skip
        return [*lines, f"verdict: {self.verdict()}"]

    def verdict(self) -> str:
        """Return the one sentence that counts."""
        if self.stopped() and self.exit != Exit.WORSE:
            return f"inconclusive: a guard broke in the treatment on {', '.join(self.stopped())}"
        words = {Exit.DONE: "better on these hosts, and on hosts like these",
                 Exit.WORSE: "worse on these hosts, and on hosts like these"}  # fmt: skip
        return words.get(self.exit, "inconclusive: not shown for all metrics that have to be")

    def data(self) -> dict[str, Any]:
        """Return it for JSON; effects in percent."""
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
        return {"verdict": self.verdict(), "exit": int(self.exit), "metrics": metrics,
                "stopped": self.stopped()}  # fmt: skip


def _percent(effect: float) -> str:
    return f"{in_percent(effect):+.3g} %"


def _forest(hosts: Sequence[HostEffect], width: int = 41) -> list[str]:
    """Return a line for each host, with its 95 % interval drawn about 0."""
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
