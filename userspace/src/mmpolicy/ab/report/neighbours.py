# SPDX-License-Identifier: GPL-2.0
"""Test whether the treatment of some units (processes or cgroups) affects untreated units, by
comparing blocks with few and with many treated units.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mmpolicy.ab.design import ALPHA, SATURATION, in_percent
from mmpolicy.ab.metrics import Metric
from mmpolicy.ab.report.stats import Effect, analyse, holm
from mmpolicy.ab.samples import Recording
from mmpolicy.figures import figure


@dataclass(frozen=True)
class Neighbours:
    """The effect of the treatment on untreated units: a metric of these units, compared between
    blocks with few and blocks with many treated units.
    """

    metric: str  # a metric of untreated units
    levels: tuple[int, int]  # percent of the units that are treated: few, many
    effect: Effect
    corrected: float  # p-value, corrected for the number of metrics

    @property
    def found(self) -> bool:
        """Return whether the metric of untreated units depends on how many others are treated."""
        return self.corrected < ALPHA

    def _shown(self, effect: float) -> float:
        return effect if self.effect.scale == "difference" else in_percent(effect)

    def text(self) -> str:
        """Return the effect in a sentence, with interval and p."""
        few, many = self.levels
        unit = "" if self.effect.scale == "difference" else " %"
        size, *ends = (
            f"{figure(self._shown(each), 3, '+')}{unit}"
            for each in (self.effect.estimate, self.effect.low, self.effect.high)
        )
        size += f" ({' .. '.join(ends)})"
        return (
            f"{self.metric} of untreated units differs by {size} if {many} % of the units are "
            f"treated instead of {few} %, p = {self.corrected:.2g}"
        )

    def doubt(self) -> str:
        """Return as text why the result of a split run is not valid: the treatment affects
        untreated units, too.
        """
        return f"the treatment also acts on untreated units: {self.text()}; use --design switchback"

    def data(self) -> dict[str, Any]:
        """Return the effect for JSON, in percent or in the unit of the metric."""
        ends = {"estimate": self.effect.estimate, "low": self.effect.low, "high": self.effect.high}
        numbers = {name: self._shown(end) for name, end in ends.items()}
        about = {"metric": self.metric, "percent": list(self.levels), "scale": self.effect.scale}
        return about | numbers | {"p": self.corrected, "found": self.found}


def neighbours_of(recording: Recording) -> list[Neighbours]:
    """Return the effect on untreated units for each metric that has at least two pairs of blocks
    with few and many treated units; [] without --exposure.
    """
    levels = recording.header.get("saturation")
    if not levels:
        return []
    effects = {}
    for metric in recording.metrics():
        pairs = recording.pairs(metric, SATURATION)
        if len(pairs) > 1:
            effects[metric.name] = analyse(pairs, recording.header["seed"])
    corrected = holm([effect.p for effect in effects.values()]) if effects else []
    return [
        Neighbours(name, (levels[0], levels[1]), effect, p)
        for (name, effect), p in zip(effects.items(), corrected)
    ]


def unseen_by_split(metrics: Sequence[Metric]) -> Iterator[str]:
    """Yield notes on effects that a split design cannot see, whatever its numbers are."""
    yield (
        "--design split compares units (processes or cgroups) side by side, so it "
        "shows the effect on a unit's own memory, not that on other units (free lists, "
        "compaction, reclaim); run --design switchback before you roll out"
    )
    blind = ", ".join(metric.name for metric in metrics if not metric.of_units)
    if blind:
        yield (
            f"{blind}: memory that a unit keeps from the block before makes the effect "
            "look smaller, and only metrics of unit: show how much; make blocks much "
            "longer than units keep their memory"
        )
