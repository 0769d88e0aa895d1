# SPDX-License-Identifier: GPL-2.0
"""One metric of a report: its numbers, and its verdict as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import exp, isfinite, log
from typing import Any

import numpy as np

from mmpolicy.ab.anytime import excess_in_turn, p_below_anytime
from mmpolicy.ab.design import (
    ALPHA,
    Pairs,
    at_margin,
    excess,
    few_lost,
    in_percent,
    least_pairs,
    with_lost,
)
from mmpolicy.ab.metrics import Metric
from mmpolicy.ab.report.carry import Carry
from mmpolicy.ab.report.stats import (
    Effect,
    Vector,
    binomial_tail,
    detectable,
    floor,
    interval,
    means_by_logs,
    p_below,
    spread_p,
    totals,
)
from mmpolicy.ab.sources import ARMS
from mmpolicy.figures import figure

# Limit for the p-value of a margin test if the sizes of the differences decided the length of the
# run. The sizes are larger if the treatment is worse by the margin, so with this limit 5 % of such
# runs err.
ALPHA_BY_SIZE = 0.035
# If a one-sided test finds unequal variances of the arms with a p-value below this, the result of
# the pairs counts only if the means confirm it. The limit is high because at 5 %, most runs would
# miss variances that differ twofold.
UNEVEN = 0.2
# A check by the means uses only this share of the permitted risk of error, as the intervals of the
# means are slightly too narrow.
OF_MEANS = 0.8
BIG = 700  # above this, exp() overflows


@dataclass(frozen=True)
class MetricResult:
    """The analysis of one metric in one run."""

    metric: Metric
    pairs: Pairs
    aa_pairs: Pairs
    effect: Effect | None  # None if there are too few pairs
    aa: Effect | None
    seed: int
    planned: int  # planned number of pairs
    # number of blocks without a value of this metric, by arm
    lost: Mapping[str, int] = field(default_factory=dict)
    carry: Carry = field(default_factory=Carry)
    margin: float = 0.0  # percentage by which the treatment may be worse
    corrected: float = 1.0  # p-value, corrected for the number of metrics
    aa_corrected: float = 1.0
    metrics: int = 1
    against: int = 0  # number of lost pairs that count as results against the effect
    # rule for the number of pairs: "size" or "anytime"; "" means that it was fixed in advance
    length: str = ""

    @property
    def found(self) -> bool:
        """Return whether an effect was found, after correction for the number of metrics."""
        return self.effect is not None and self.corrected < ALPHA

    @property
    def uneven_lost(self) -> bool:
        """Return whether one arm has lost more blocks than chance explains."""
        lost = sorted(self.lost.get(arm, 0) for arm in ARMS)
        return 2 * binomial_tail(lost[1], sum(lost)) < ALPHA

    @property
    def too_many_lost(self) -> bool:
        """Return whether too many pairs are lost for a result, or one arm has lost more blocks than
        chance explains.
        """
        return self.uneven_lost or not few_lost(self.planned - len(self.pairs), self.planned)

    @property
    def good(self) -> bool | None:
        """Return whether the effect is an improvement; None without an effect, or if the user did
        not say whether lower or higher is better.
        """
        if not self.effect or not self.metric.better:
            return None
        return (self.effect.estimate < 0) == (self.metric.better == "lower")

    @property
    def worse(self) -> bool:
        """Return whether the treatment was found to be worse; False if no effect was found."""
        return self.found and self.good is False

    def shown(self, effect: float) -> float:
        """Return an effect in the unit of the report: percent, or the unit of the metric."""
        return in_percent(effect) if self.relative and isfinite(effect) else effect

    @property
    def scale(self) -> str:
        """Return the scale of the effect: "ratio", "totals" or "difference"."""
        effect = self.effect or self.aa
        return effect.scale if effect else "difference"

    @property
    def relative(self) -> bool:
        """Return whether effects are logarithms, which the report shows in percent."""
        return self.scale != "difference"

    def text(self, effect: float, sign: str = "+") -> str:
        """Return an effect as text, in percent or in the unit of the metric."""
        value = self.shown(effect)
        if not self.relative:
            return figure(value, 4, sign)
        return f"{value:{sign}.0f} %" if abs(value) >= 1000 else f"{figure(value, 3, sign)} %"

    def ends(self, low: float, high: float) -> str:
        """Return an interval as text; "any" if it is infinite."""
        return f"{self.text(low)} .. {self.text(high)}" if isfinite(low) else "any"

    @cached_property
    def smallest(self) -> float:
        """Return the smallest effect that a run of this length finds with 80 % probability."""
        assert self.effect
        return detectable(self.effect.deviation, self.effect.pairs, self.metrics)

    @cached_property
    def noise(self) -> float | None:
        """Return the A/A floor: how far apart two equal arms may lie over this number of pairs by
        chance. None if the run had no A/A phase.
        """
        if not self.aa or (self.aa.scale == "difference") == self.relative:
            return None
        return floor(self.aa, self.effect.pairs if self.effect else self.aa.pairs)

    def means(self) -> tuple[float, float] | None:
        """Return the mean of each arm, control first; None if there is no pair."""
        pairs = self.pairs or self.aa_pairs
        if not pairs:
            return None
        control, treatment = (sum(side) / len(pairs) for side in zip(*pairs))
        return control, treatment

    # Totals, in which a few large blocks can outweigh all others

    @cached_property
    def totals(self) -> tuple[float, float, float] | None:
        """Return the logarithm of the ratio of the arms' totals, and both ends of its interval;
        None if the effect is not a ratio.

        If the variances of the arms differ, this interval would be too narrow, so it is widened by
        means_by_logs().
        """
        if not self.effect or not self.relative:
            return None
        mean, low, high = totals(self.pairs, self.seed)
        if self.scale == "ratio" and 2 * min(self.spread_p) < ALPHA:
            _, *ends = means_by_logs(*self._logs, ALPHA / 2)
            low, high = min(low, ends[0]), max(high, ends[1])
        return mean, low, high

    @property
    def _logs(self) -> tuple[Vector, Vector]:
        """Return the difference and the sum of the logarithms of each pair."""
        control, treatment = np.log(np.asarray(self.pairs, float).T)
        return treatment - control, treatment + control

    def _mean_bears(self, lower: bool, limit: float, alpha: float) -> bool:
        """Return whether the means of the arms confirm that the effect is below a limit (or, if
        lower is False, above it). True if nothing suggests that the variances of the arms differ.

        The mean of logarithms is lower in an arm that varies more, even if its mean is not. So if
        the treatment's blocks vary more, the means must also show that the treatment is lower.
        """
        if self.scale != "ratio" or self.spread_p[not lower] >= UNEVEN:
            return True
        alpha *= OF_MEANS
        ends = [means_by_logs(*self._logs, alpha), totals(self.pairs, self.seed, 2 * alpha)]
        return all((high < limit) if lower else (low > limit) for _, low, high in ends)

    def _denied(self, lower: bool, limit: float) -> bool:
        """Return whether the totals contradict the claim that the effect is below a limit (or, if
        lower is False, above it).

        They do if the interval of their ratio contains the limit, and the ratio lies outside the
        interval of the pairs.
        """
        if not self.totals:
            return False
        mean, low, high = self.totals
        if lower:
            return high >= limit and mean > self._of_pairs[1]
        return low <= limit and mean < self._of_pairs[0]

    @cached_property
    def _of_pairs(self) -> tuple[float, float]:
        """Return the interval of the mean effect over the pairs, if the effect is assumed to be
        equal in all pairs.
        """
        assert self.effect
        if self.scale == "ratio" and self.length != "anytime":
            return interval(self.effect.d, self.seed, differ=False)
        return self.effect.low, self.effect.high

    @cached_property
    def denied(self) -> bool:
        """Return whether totals or means contradict the result of the pairs."""
        if self.no_worse and self._denied(self.metric.better == "lower", self._limit):
            return True
        if not self.found or not self.effect:
            return False
        lower = self.effect.estimate < 0
        return self._denied(lower, 0.0) or not self._mean_bears(lower, 0.0, ALPHA / 2)

    @cached_property
    def spread_p(self) -> tuple[float, float]:
        """Return the p-values of two hypotheses: that the values of the treatment vary no more
        than those of the control, and that they vary no less.
        """
        more, less = (spread_p(self.pairs, self.seed, way) for way in (True, False))
        return more, less

    def worst(self) -> tuple[float, ...]:
        """Return for each arm the value of its largest block, divided by the mean of the arm."""
        sides = [np.asarray(side) for side in zip(*self.pairs)]
        return tuple(float(side.max() / side.mean()) for side in sides)

    # The margin

    @property
    def _limit(self) -> float:
        """Return the effect, as a logarithm, that is worse by exactly the margin."""
        return log(at_margin(self.metric.better == "lower", self.margin))

    @cached_property
    def margin_p(self) -> float | None:
        """Return the p-value for the hypothesis that the treatment is worse by the margin or more.

        None without a margin, without a direction, or without an effect.
        """
        if not (self.margin and self.metric.better and self.effect):
            return None
        if self.scale != "ratio" and (self.means() or (0.0,))[0] <= 0:
            return 1.0  # the control's mean is 0, so no percentage of it exists
        lower = self.metric.better == "lower"
        if self.length == "anytime":
            over = excess_in_turn(self.pairs, lower, self.margin)
            return p_below_anytime(with_lost(over, self.against, 1.0))
        d = with_lost(excess(self.pairs, lower, self.margin), self.against, 1.0)
        return p_below(np.asarray(d), self.seed)

    @property
    def open(self) -> bool:
        """Return whether the treatment may be worse than the margin permits; False if the metric
        has no direction.
        """
        return bool(self.metric.better) and not self.no_worse and not (self.found and self.good)

    @property
    def _margin_alpha(self) -> float:
        return ALPHA_BY_SIZE if self.length == "size" else ALPHA

    @cached_property
    def no_worse(self) -> bool:
        """Return whether the treatment is shown to be worse by less than the margin."""
        shown = self.margin_p is not None and self.margin_p < self._margin_alpha
        return shown and self._mean_allows

    @cached_property
    def _mean_allows(self) -> bool:
        """Return whether the means of the arms are within the margin, as the pairs are. True if
        nothing suggests that the variances of the arms differ.
        """
        return self._mean_bears(self.metric.better == "lower", self._limit, self._margin_alpha)

    # Words

    def verdict(self) -> str:
        """Return the verdict on this metric as text, with that on its margin if it has one."""
        if not self.margin or not self.metric.better:
            return self._verdict()
        word = "shown" if self.no_worse else "not shown"
        p = "" if self.margin_p is None else f" (p = {self.margin_p:.2g})"
        if self.margin_p is not None and self.margin_p < self._margin_alpha and not self.no_worse:
            p = (
                f" (p = {self.margin_p:.2g} by pairs; the values of the two arms spread "
                "differently, so their means may "
            )
            p += "be farther apart than that)"
        return f"{self._verdict()}; no worse than {self.margin:g} %: {word}{p}"

    def _verdict(self) -> str:
        if not self.effect:
            return (
                f"no verdict: {len(self.pairs)} pairs have a value in both blocks, and a "
                "verdict takes at least 2"
            )
        if self.found:
            return self.finding()
        if not any(treatment - control for control, treatment in self.pairs):
            return "no difference between the arms in any pair"
        if not isfinite(self.effect.low):
            need = least_pairs(self.metrics)
            return (
                f"inconclusive: {self.effect.pairs} pairs are too few to show an effect, "
                f"take {need} or more"
            )
        return f"inconclusive: {self._unclear(self.effect)}"

    def _unclear(self, effect: Effect) -> str:
        alone = ""
        if self.against:
            alone = f"{self.against} pairs without a value may contradict it; "
        if effect.p < ALPHA:
            alone = (
                f"there is an effect if this metric is taken alone (p = {effect.p:.2g}), "
                "not after correction for "
            )
            alone += f"{self.metrics} metrics; taken alone, "
        return (
            f"{alone}any effect between {self.text(effect.low)} and "
            f"{self.text(effect.high)} is possible; a run like this shows an effect of "
            f"{self.text(self.smallest, '')} or more"
        )

    def finding(self) -> str:
        """Return the effect that was found as text, such as "fell by 5 %, which is better"."""
        assert self.effect
        estimate, good = self.effect.estimate, self.good
        judged = "" if good is None else ", which is better" if good else ", which is worse"
        size = f"by {self.text(abs(estimate), '')}"
        if self.relative:
            size = f"by {figure(abs(in_percent(estimate)), 3)} %"
            if estimate > 1:
                size = f"to {figure(exp(min(estimate, BIG)), 3)} times"
        return f"{'fell' if estimate < 0 else 'rose'} {size}{judged}"

    def cells(self) -> Sequence[str]:
        """Return the cells of the metric's row in the table; HEAD names the columns."""
        means = [figure(value, 5) for value in self.means() or ()] or ["-", "-"]
        noise = "-" if self.noise is None else f"±{self.text(self.noise, '')}"
        name, pairs = self.metric.name, f"{len(self.pairs)} of {self.planned}"
        if not self.effect:
            return (name, pairs, *means, *["-"] * 6, noise)
        effect, total = self.effect, "-"
        if self.totals:
            total = f"{self.text(self.totals[0])} ({self.ends(*self.totals[1:])})"
        numbers = (self.text(effect.estimate), self.ends(effect.low, effect.high))
        chances = (f"{effect.p:.2g}", f"{self.corrected:.2g}", total, self.text(self.smallest, ""))
        return (name, pairs, *means, *numbers, *chances, noise)

    def data(self) -> dict[str, Any]:
        """Return the analysis for JSON."""
        means = self.means() or (None, None)
        data: dict[str, Any] = {
            "metric": self.metric.name,
            "better": self.metric.better or None,
            "role": "guard" if self.metric.guard else "primary",
            "pairs": {"planned": self.planned, "complete": len(self.pairs), "lost": self.lost},
            "control": means[0],
            "treatment": means[1],
            "scale": self.scale,
            "unit": "percent" if self.relative else "unit of the metric",
            "verdict": self.verdict(),
            "found": self.found,
            "worse": self.worse,
            "noise_floor": self.noise and self.shown(self.noise),
            "aa": self._effect(self.aa, self.aa_corrected),
            "effect": self._effect(self.effect, self.corrected),
            "carry_over": self.carry.data(self.shown),
        }
        if self.margin_p is not None:
            data["margin"] = {"percent": self.margin, "p": self.margin_p, "shown": self.no_worse,
                              "of": "mean"}  # fmt: skip
        if self.totals:
            names = ("estimate", "low", "high")
            data["totals"] = dict(zip(names, map(self.shown, self.totals)))
            data["totals"]["agree"] = not self.denied
            data["largest_block"] = dict(zip(ARMS, self.worst()))
        if self.effect:
            data["detectable"] = self.shown(self.smallest)
        return data

    def _effect(self, effect: Effect | None, corrected: float) -> Any:
        if effect is None:
            return None
        ends = {"low": effect.low, "high": effect.high}
        return {
            "pairs": effect.pairs,
            "estimate": self.shown(effect.estimate),
            **{key: self.shown(end) for key, end in ends.items()},
            "p": effect.p,
            "p_corrected": corrected,
            "deviation": effect.deviation,
        }
