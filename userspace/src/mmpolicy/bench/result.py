# SPDX-License-Identifier: GPL-2.0
"""The result of a bench: each arm as a ratio to the first arm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp, isfinite
from statistics import fmean, median
from typing import Any

from mmpolicy.ab.design import ALPHA, least_pairs
from mmpolicy.ab.report.stats import Effect, analyse, analyse_median, holm
from mmpolicy.bench.arms import Arm
from mmpolicy.bench.events import AFTER, BEFORE, EVENTS, TROUBLES
from mmpolicy.bench.programs import COUNTERS, Values
from mmpolicy.bench.rounds import pairs_of, rounds_of
from mmpolicy.figures import figure
from mmpolicy.render import table

# for each figure of a run: name, title, size of the unit, digits after the point, name of the unit
METRICS = {
    "cpu": ("CPU", 1e-3, 1, "ms"),
    "wall": ("TIME", 1e-3, 1, "ms"),
    "user": ("USER", 1e-3, 1, "ms"),
    "system": ("SYSTEM", 1e-3, 1, "ms"),
    "faults": ("FAULTS", 1, 0, ""),
    "peak_rss": ("PEAK RSS", 1 << 20, 1, "MiB"),
    "large_folios": ("IN LARGE FOLIOS", 1 << 20, 1, "MiB"),
    "collapsed": ("COLLAPSED", 1 << 20, 1, "MiB"),
    "cycles": ("CYCLES", 1e6, 1, "M"),
    "instructions": ("INSTRUCTIONS", 1e6, 1, "M"),
    "tlb_misses": ("TLB MISSES", 1e3, 1, "k"),
}
# figures that are not compared, as they belong to the whole host or to one arm only
NOT_COMPARED = ("large_folios", "collapsed")


@dataclass(frozen=True)
class Compared:
    """The comparison of one metric of an arm with that of the first arm."""

    effect: Effect | None  # None for the first arm, or if there are too few rounds
    median: float | None  # median of the ratios of all rounds

    def ratio(self) -> str:
        """Return the ratio with its 95 % interval as text; "-" if there is no ratio."""
        if not self.effect or self.effect.scale == "difference":
            return "-"
        text = f"{exp(self.effect.estimate):.3f}"
        if not isfinite(self.effect.low):
            return text
        return f"{text} ({exp(self.effect.low):.3f} .. {exp(self.effect.high):.3f})"

    def data(self) -> dict[str, Any] | None:
        """Return the comparison for JSON; unknown ends of an interval are null."""
        if not self.effect:
            return None
        ratio = self.effect.scale != "difference"
        ends = (self.effect.estimate, self.effect.low, self.effect.high)
        names = ("estimate", "low", "high")
        shown = [exp(each) if ratio else each for each in ends]
        numbers = shown if all(map(isfinite, ends)) else [shown[0], None, None]
        return {"scale": self.effect.scale, **dict(zip(names, numbers)),
                "median": self.median, "p": self.effect.p}  # fmt: skip


def _cell(metric: str, value: float) -> str:
    _, scale, digits, unit = METRICS[metric]
    return f"{value / scale:,.{digits}f} {unit}".strip()


def _to_compare(names: Sequence[str]) -> list[str]:
    return [name for name in names if name not in NOT_COMPARED]


class Result:
    """The result of all runs of `bench`. by_median: medians of ratios are compared, by the sign
    test.
    """

    def __init__(
        self,
        arms: Sequence[Arm],
        runs: Sequence[dict[str, Values]],
        metric: str,
        seed: int,
        by_median: bool = False,
    ) -> None:
        self.arms = arms
        self.runs = runs
        self.metric = metric
        self.seed = seed
        self.by_median = by_median
        self.known, self.events = (
            [name for name in names if all(name in run for each in runs for run in each.values())]
            for names in (METRICS, EVENTS)
        )
        self.compared = {arm.name: self._compare(arm) for arm in arms}
        found = [self.compared[arm.name][metric].effect for arm in arms[1:]]
        corrected = holm([each.p if each else 1.0 for each in found]) if found else []
        names = [arm.name for arm in arms[1:]]
        self.corrected = dict(zip(names, corrected))

    def _compare(self, arm: Arm) -> dict[str, Compared]:
        found: dict[str, Compared] = {}
        effect_of = analyse_median if self.by_median else analyse
        for name in _to_compare(self.known):
            pairs = pairs_of(self.runs, self.arms[0], arm, name)
            enough = arm is not self.arms[0] and len(pairs) > 1
            ratios = [after / before for before, after in pairs if before > 0]
            found[name] = Compared(
                effect_of(pairs, self.seed) if enough else None,
                median(ratios) if enough and ratios else None,
            )
        return found

    def means(self, arm: Arm, other: Arm) -> dict[str, float]:
        """Return the mean of each figure of `arm`, over the rounds in which `other` ran."""
        rounds = rounds_of(self.runs, other)
        names = [*self.known, *self.events]
        return {name: fmean(each[arm.name][name] for each in rounds) for name in names}

    def tables(self) -> list[tuple[list[str], list[list[str]]]]:
        """Return head and rows of each table: measurements, ratios, counters, and events that
        explain them.
        """
        groups = [[name for name in self.known if (name in COUNTERS) == last] for last in (0, 1)]
        found = [each for names in groups if names for each in self._tables(names)]
        return [*found, *self._explaining()]

    def _explaining(self) -> Iterator[tuple[list[str], list[list[str]]]]:
        """Yield the table of events, if there were compaction stalls or fallbacks in any run."""
        means = {arm.name: self.means(arm, arm) for arm in self.arms}
        some = {name for name in self.events if any(mean[name] for mean in means.values())}
        if some.isdisjoint(TROUBLES):
            return
        names = [name for name in self.events if name in some or name in (BEFORE, AFTER)]
        rows = [[arm, *(f"{mean[name]:,.1f}" for name in names)] for arm, mean in means.items()]
        yield ["ON THE HOST", *(EVENTS[name] for name in names)], rows

    def _tables(self, names: Sequence[str]) -> Iterator[tuple[list[str], list[list[str]]]]:
        means = {arm.name: self.means(arm, arm) for arm in self.arms}
        rows = [[arm, *(_cell(name, mean[name]) for name in names)] for arm, mean in means.items()]
        yield ["ARM", *(METRICS[name][0] for name in names)], rows
        first, *others = self.arms
        both = _to_compare(names)
        rows = [[arm.name, *(self.compared[arm.name][name].ratio() for name in both)]
                for arm in others]  # fmt: skip
        if rows:
            yield [f"OF {first.name}", *(METRICS[name][0] for name in both)], rows

    def lines(self) -> Iterator[str]:
        """Yield all tables, and a sentence about each arm."""
        for head, rows in self.tables():
            yield from table(head, rows)
            yield ""
        of = "medians of the ratios" if self.by_median else "ratios"
        numbers = sorted({len(rounds_of(self.runs, arm)) for arm in self.arms})
        runs = " to ".join(str(each) for each in dict.fromkeys((numbers[0], numbers[-1])))
        yield (
            f"the tables show means of {runs} runs of each arm; {of} have their 95 % "
            "interval in brackets"
        )
        yield from (self.sentence(arm) for arm in self.arms[1:])

    def found(self, arm: Arm) -> bool:
        """Return whether the arm differs from the first one in the metric that --metric names."""
        return self.corrected[arm.name] < ALPHA

    def sentence(self, arm: Arm) -> str:
        """Return the result of an arm as a sentence."""
        title = METRICS[self.metric][0]
        effect = self.compared[arm.name][self.metric].effect
        need = least_pairs(len(self.arms) - 1)
        rounds = len(rounds_of(self.runs, arm))
        if not effect or rounds < need:
            return (
                f"{arm.name}: {rounds} rounds are too few to show a difference; give "
                f"--runs {need} or more"
            )
        p = f"p = {self.corrected[arm.name]:.2g}"
        if not self.found(arm):
            return f"{arm.name}: no difference in {title} was found ({p})"
        if effect.scale == "difference":
            return f"{arm.name}: {title} differs by {figure(effect.estimate, 3)} ({p})"
        change = 100 * (exp(effect.estimate) - 1)
        word = "less" if change < 0 else "more"
        return f"{arm.name}: {abs(change):.1f} % {word} {title} than {self.arms[0].name} ({p})"

    def data(self) -> dict[str, Any]:
        """Return the result for JSON; sizes are in bytes, times in seconds.

        mean_of_first: the mean of the first arm, over the rounds of this arm.
        """
        return {
            "metric": self.metric,
            "statistic": "median" if self.by_median else "mean",
            "rounds": len(self.runs),
            "arms": [
                {
                    "name": arm.name,
                    "settings": arm.told(),
                    "rounds": len(rounds := rounds_of(self.runs, arm)),
                    "runs": [each[arm.name] for each in rounds],
                    "mean": self.means(arm, arm),
                    "mean_of_first": self.means(self.arms[0], arm),
                    "ratio": {name: each.data() for name, each in self.compared[arm.name].items()},
                    "p_corrected": self.corrected.get(arm.name),
                    "found": arm is not self.arms[0] and self.found(arm),
                }
                for arm in self.arms
            ],
        }
