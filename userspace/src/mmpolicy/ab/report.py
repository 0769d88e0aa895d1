# SPDX-License-Identifier: GPL-2.0
"""What a recording says, in numbers and in plain words."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import exp, isfinite
from typing import Any

from mmpolicy.ab.design import ALPHA, in_percent, least_pairs, suggest_pairs
from mmpolicy.ab.design import differences as differences_of
from mmpolicy.ab.metrics import ARMS, Metric
from mmpolicy.ab.samples import Pairs, Recording
from mmpolicy.ab.stats import Effect, analyse, detectable, floor, holm, imbalance
from mmpolicy.render import table

SUSPICIOUS = 0.001  # p below which assignment counts as broken
DIRTY = 0.01  # corrected p below which the A/A phase counts as not equal


@dataclass(frozen=True)
class Row:
    """One metric of a report."""

    metric: Metric
    pairs: Pairs
    aa_pairs: Pairs
    effect: Effect | None  # None with too few pairs
    aa: Effect | None
    corrected: float = 1.0  # p, for the number of metrics
    aa_corrected: float = 1.0
    metrics: int = 1

    @property
    def found(self) -> bool:
        """Tell if there is an effect."""
        return self.effect is not None and self.corrected < ALPHA

    def shown(self, effect: float) -> float:
        """Return a number of the effect as people read it: percent, or the metric's unit."""
        return in_percent(effect) if self.scale == "ratio" else effect

    @property
    def scale(self) -> str:
        """Return ratio or difference."""
        effect = self.effect or self.aa
        return effect.scale if effect else "difference"

    def text(self, effect: float, sign: str = "+") -> str:
        """Return a number of the effect with its unit."""
        value = self.shown(effect)
        if self.scale != "ratio":
            return f"{value:{sign}.4g}"
        return f"{value:{sign}{'.0f' if abs(value) >= 1000 else '.3g'}} %"

    @cached_property
    def smallest(self) -> float:
        """Return the smallest effect that this length finds with 80 % probability."""
        assert self.effect
        return detectable(self.effect.deviation, self.effect.pairs, self.metrics)

    @cached_property
    def noise(self) -> float | None:
        """Return how far apart equal arms may lie over this length; None without A/A phase."""
        aa, scale = self.aa, self.scale
        if not aa or aa.scale != scale:
            return None
        return floor(aa.deviation, aa.pairs - 1, self.effect.pairs if self.effect else aa.pairs)

    def means(self) -> tuple[float, float] | None:
        """Return the mean of each arm."""
        pairs = self.pairs or self.aa_pairs
        if not pairs:
            return None
        control, treatment = (sum(side) / len(pairs) for side in zip(*pairs, strict=True))
        return control, treatment

    def verdict(self) -> str:
        """Return what is to be said about it."""
        if not self.effect:
            return f"no verdict: {len(self.pairs)} pairs, it takes at least 2"
        if self.found:
            return self._finding(self.effect)
        if not any(treatment - control for control, treatment in self.pairs):
            return "no difference in any pair"
        if not isfinite(self.effect.low):
            need = least_pairs(self.metrics)
            return f"inconclusive: {self.effect.pairs} pairs can show nothing, take {need} or more"
        return (
            f"inconclusive: anything between {self.text(self.effect.low)} and "
            f"{self.text(self.effect.high)} is possible; a run like this finds "
            f"{self.text(self.smallest, '')} or more"
        )

    def _finding(self, effect: Effect) -> str:
        lower = effect.estimate < 0
        word = "fell" if lower else "rose"
        good = {"": "", "lower": lower, "higher": not lower}[self.metric.better]
        judged = "" if good == "" else ", which is better" if good else ", which is worse"
        size = self.text(abs(effect.estimate), "")
        if effect.scale == "ratio":
            size = f"{abs(in_percent(effect.estimate)):.3g} %"
            if effect.estimate > 1:
                size = f"to {exp(effect.estimate):.3g} times"
        by = "" if size.startswith("to") else "by "
        return f"{word} {by}{size}{judged}"

    def data(self) -> dict[str, Any]:
        """Return it for JSON."""
        means = self.means() or (None, None)
        data: dict[str, Any] = {
            "metric": self.metric.name,
            "better": self.metric.better or None,
            "control": means[0],
            "treatment": means[1],
            "scale": self.scale,
            "unit": "percent" if self.scale == "ratio" else "unit of the metric",
            "verdict": self.verdict(),
            "found": self.found,
            "noise_floor": self.noise and self.shown(self.noise),
            "aa": self._effect(self.aa, self.aa_corrected),
            "effect": self._effect(self.effect, self.corrected),
        }
        if self.effect:
            data["detectable"] = self.shown(self.smallest)
        return data

    def _effect(self, effect: Effect | None, corrected: float) -> dict[str, Any] | None:
        if effect is None:
            return None
        ends = {"low": effect.low, "high": effect.high}
        ends |= {"bca_low": effect.bca[0], "bca_high": effect.bca[1]}
        return {
            "pairs": effect.pairs,
            "estimate": self.shown(effect.estimate),
            **{key: self.shown(end) if isfinite(end) else None for key, end in ends.items()},
            "p": effect.p,
            "p_corrected": corrected,
            "deviation": effect.deviation,
        }


def rows_of(recording: Recording) -> list[Row]:
    """Return the analysis of each metric, corrected for their number."""
    seed, metrics = recording.header["seed"], recording.metrics()
    rows = []
    for metric in metrics:
        pairs, aa_pairs = (recording.pairs(metric, phase) for phase in ("ab", "aa"))
        effect, aa = (analyse(each, seed) if len(each) > 1 else None for each in (pairs, aa_pairs))
        rows.append(Row(metric, pairs, aa_pairs, effect, aa, metrics=len(metrics)))
    corrected = holm([row.effect.p if row.effect else 1.0 for row in rows])
    aa_corrected = holm([row.aa.p if row.aa else 1.0 for row in rows])
    return [
        replace(row, corrected=p, aa_corrected=aa)
        for row, p, aa in zip(rows, corrected, aa_corrected, strict=True)
    ]


class Report:
    """The whole of it."""

    def __init__(self, recording: Recording, detect: float = 5.0) -> None:
        self.recording = recording
        self.detect = detect  # percent, of which the length is told
        self.header = recording.header
        self.rows = rows_of(recording)
        self.balance = self._balance()

    @property
    def same(self) -> bool:
        """Tell if both arms have the same settings: a run to see the noise."""
        return bool(self.header["control"]["settings"] == self.header["treatment"]["settings"])

    def _balance(self) -> tuple[str, int, int, float]:
        """Return what was counted in each arm, and the p of numbers so uneven."""
        if self.header["design"] == "split" and any(self.recording.units()):
            control, treatment = self.recording.units()
            return "units", control, treatment, imbalance(control, treatment)
        counts = dict.fromkeys(ARMS, 0)
        for block in self.recording.blocks.values():
            for arm in [block["arm"]] if block["arm"] else ARMS:
                counts[arm] += len(self.recording.windows.get(block["number"], []))
        control, treatment = counts.values()
        return "samples", control, treatment, imbalance(control, treatment)

    def doubts(self) -> list[str]:
        """Return why nothing should be concluded, whatever the numbers are."""
        found = []
        status = self.recording.end.get("status", "killed")
        if status != "done":
            reason = self.recording.end.get("reason", "the file has no end")
            found.append(f"the run did not go to its planned end: {status}, {reason}")
        what, control, treatment, p = self.balance
        if p < SUSPICIOUS:
            found.append(
                f"assignment is out of balance: {control} {what} in control, {treatment} in "
                f"treatment (p = {p:.2g}); find out why before you believe anything"
            )
        dirty = [row.metric.name for row in self.rows if row.aa_corrected < DIRTY]
        if dirty:
            found.append(f"equal arms differed in the A/A phase: {', '.join(dirty)}")
        return found

    @property
    def conclusive(self) -> bool:
        """Tell if an effect was shown."""
        return not self.doubts() and any(row.found for row in self.rows)

    def verdict(self) -> str:
        """Return the one sentence that counts."""
        doubts = self.doubts()
        if doubts:
            return f"inconclusive: {doubts[0]}"
        found = [f"{row.metric.name} {row.verdict()}" for row in self.rows if row.found]
        if self.same:
            text = "both arms are the same, and "
            return text + ("yet: " + "; ".join(found) if found else "no difference was found")
        if not found:
            return "inconclusive: no metric shows an effect beyond its noise"
        return f"with the treatment, {'; '.join(found)}"

    def lengths(self) -> Iterator[tuple[str, int]]:
        """Yield for each metric how many pairs it takes to find the effect asked about."""
        for row in self.rows:
            scale, noise = differences_of(row.aa_pairs if len(row.aa_pairs) > 2 else row.pairs)
            if scale == "ratio" and len(noise) > 2:
                yield row.metric.name, suggest_pairs(noise, self.detect, len(self.rows))

    def data(self) -> dict[str, Any]:
        """Return it for JSON."""
        what, control, treatment, p = self.balance
        return {
            "verdict": self.verdict(),
            "conclusive": self.conclusive,
            "doubts": self.doubts(),
            "design": self.header["design"],
            "arms": {arm: self.header[arm]["given"] for arm in ARMS},
            "rule": self.header["rule"],
            "balance": {"of": what, "control": control, "treatment": treatment, "p": p},
            "metrics": [row.data() for row in self.rows],
            "pairs_to_find": {"percent": self.detect, "pairs": dict(self.lengths())},
        }

    def facts(self) -> list[tuple[str, str]]:
        """Return what there is to know beside the metrics."""
        header, (what, control, treatment, p) = self.header, self.balance
        lengths = ", ".join(f"{name}: {n} pairs" for name, n in self.lengths())
        timing = f"blocks of {header['block_s']:g} s, {header['washout_s']:g} s of them wash-out"
        return [
            ("control", header["control"]["given"]),
            ("treatment", header["treatment"]["given"]),
            ("design", f"{header['design']}, {timing}, seed {header['seed']}"),
            ("rule", header["rule"]),
            ("balance", f"{control} {what} in control, {treatment} in treatment (p = {p:.2g})"),
            ("guards", ", ".join(header["guards"]) or "none"),
            (f"to find {self.detect:g} %", lengths or "not known"),
            ("host", ", ".join(f"{key} {value}" for key, value in header["host"].items())),
        ]

    def table(self) -> tuple[Sequence[str], list[Sequence[str]]]:
        """Return head and lines of the table of metrics."""
        head = ("METRIC", "CONTROL", "TREATMENT", "EFFECT", "95 % INTERVAL", "P", "P HOLM")
        return (*head, "DETECTABLE", "A/A FLOOR"), [self._line(row) for row in self.rows]

    def _line(self, row: Row) -> Sequence[str]:
        means = [f"{value:.5g}" for value in row.means() or ()] or ["-", "-"]
        floor = "-" if row.noise is None else f"±{row.text(row.noise, '')}"
        if not row.effect:
            return (row.metric.name, *means, "-", "-", "-", "-", "-", floor)
        effect, ends = row.effect, "any"
        if isfinite(effect.low):
            ends = f"{row.text(effect.low)} .. {row.text(effect.high)}"
        numbers = (row.text(effect.estimate), ends, f"{effect.p:.2g}", f"{row.corrected:.2g}")
        return (row.metric.name, *means, *numbers, row.text(row.smallest, ""), floor)

    def lines(self) -> list[str]:
        """Return it as text."""
        width = max(len(name) for name, _ in self.facts())
        lines = [f"{name:{width}}  {value}" for name, value in self.facts()]
        lines += ["", *table(*self.table()), ""]
        lines += [f"{row.metric.name}: {row.verdict()}" for row in self.rows]
        lines += [f"doubt: {doubt}" for doubt in self.doubts()]
        return [*lines, "", f"verdict: {self.verdict()}"]
