# SPDX-License-Identifier: GPL-2.0
"""The report on one recording: its analysis as numbers and as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from mmpolicy.ab.design import (
    ALPHA,
    DIRTY,
    differences,
    least_pairs,
    pairs_to_see,
    planned_so_far,
    suggest_pairs,
    unseen,
)
from mmpolicy.ab.metrics import Metric
from mmpolicy.ab.report.balance import balance_of
from mmpolicy.ab.report.carry import carry_of
from mmpolicy.ab.report.metric_result import MetricResult
from mmpolicy.ab.report.neighbours import neighbours_of, unseen_by_split
from mmpolicy.ab.report.stats import against, analyse, analyse_anytime, holm
from mmpolicy.ab.samples import COUNTED, Recording, storable
from mmpolicy.ab.sources import ARMS
from mmpolicy.errors import Exit
from mmpolicy.figures import figure
from mmpolicy.render import table

# Kinds of doubt. A doubt of kind OWN counts for its host alone; a pool judges the others over all
# its hosts together.
OWN, AA, CARRY, TOTALS, LOST = "", "A/A", "carry-over", "totals", "lost"
LOST_OF_HOST = 1 / 3  # if a host has lost a larger share of its pairs, a pool leaves it out


class Doubt(NamedTuple):
    """A reason why the result of a run is not valid."""

    kind: str
    text: str
    metric: str = ""  # the metric that the reason concerns; "" for all


HEAD = (
    "METRIC", "PAIRS", "CONTROL", "TREATMENT", "EFFECT", "95 % INTERVAL", "P", "P HOLM",
    "TOTALS", "DETECTABLE", "A/A FLOOR",
)  # fmt: skip


def _row(recording: Recording, metric: Metric, margin: float, metrics: int) -> MetricResult:
    """Return the analysis of one metric, not corrected for the number of metrics."""
    seed = recording.header["seed"]
    by_pair, aa_pairs = recording.by_pair(metric, "ab"), recording.pairs(metric, "aa")
    pairs, firsts = list(by_pair.values()), recording.firsts()
    way = recording.length
    effect = None
    if len(pairs) > 1 and way == "anytime":
        effect = analyse_anytime(pairs, seed)
    elif len(pairs) > 1:
        effect = analyse(pairs, seed, [firsts[pair] for pair in by_pair if firsts])
    planned = planned_so_far(recording.end, recording.planned, by_pair)
    _, lost = recording.lost_pairs(metric, planned)
    if effect and lost:
        effect = against(effect, lost, seed, way == "anytime")
    aa = analyse(aa_pairs, seed) if len(aa_pairs) > 1 else None
    row = MetricResult(
        metric, pairs, aa_pairs, effect, aa, seed, recording.planned, recording.lost(metric),
        against=lost, margin=metric.margin or margin, metrics=metrics, length=way,
    )  # fmt: skip
    return replace(row, carry=carry_of(recording, metric, row.scale, seed))


def rows_of(recording: Recording, margin: float = 0.0) -> list[MetricResult]:
    """Return the analysis of each metric, with p-values corrected for the number of metrics that
    have the same role (guard or not).
    """
    metrics = recording.metrics()
    number = Counter(metric.guard for metric in metrics)
    rows = [_row(recording, metric, margin, number[metric.guard]) for metric in metrics]
    corrected: dict[str, float] = {}
    for role in number:
        ps = {row.metric.name: row.effect.p if row.effect else 1.0
              for row in rows if row.metric.guard == role}  # fmt: skip
        corrected |= dict(zip(ps, holm([*ps.values()])))
    rows = _carry_corrected(rows)
    aa_corrected = holm([row.aa.p if row.aa else 1.0 for row in rows])
    return [
        replace(row, corrected=corrected[row.metric.name], aa_corrected=aa)
        for row, aa in zip(rows, aa_corrected)
    ]


def _carry_corrected(rows: list[MetricResult]) -> list[MetricResult]:
    """Return the results of the metrics with their p-values of carry-over corrected for the number
    of metrics.
    """
    left = holm([row.carry.share_p for row in rows])
    halves = holm([row.carry.halves_p for row in rows])
    return [
        replace(row, carry=replace(row.carry, share_p=p, halves_p=other))
        for row, p, other in zip(rows, left, halves)
    ]


def _told(lengths: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{name}: {pairs} pairs" for name, pairs in lengths) or "not known"


class Report:
    """The analysis of a recording: metrics, balance, doubts and the verdict."""

    def __init__(self, recording: Recording, detect: float = 5.0, margin: float = 0.0) -> None:
        self.recording = recording
        self.detect = detect  # percent: the report says how many pairs find a change of this size
        self.header = recording.header
        self.margin = margin or self.header.get("margin") or 0.0  # percent
        self.rows = rows_of(recording, self.margin)
        self.balance = balance_of(recording)
        self.neighbours = neighbours_of(recording)
        self.reasons = list(self._reasons())
        self.doubts = [each.text for each in self.reasons]
        self.judged = [row for row in self.rows if row.margin and row.metric.better]

    @property
    def same(self) -> bool:
        """Return whether both arms have the same settings. Such a run shows the noise, and no arm
        can be better.
        """
        return bool(self.header["control"]["settings"] == self.header["treatment"]["settings"])

    @property
    def harmed(self) -> bool:
        """Return whether the treatment did harm: a guard broke during the treatment, and chance
        does not explain why it broke there.
        """
        return self._stopped_in_treatment and self._by_chance < ALPHA

    @property
    def _stopped_in_treatment(self) -> bool:
        return self.recording.stopped_in_treatment and not self.same

    @property
    def _by_chance(self) -> float:
        """Return the probability that chance alone puts the first break of a guard into the
        treatment: the treatment's share of the time, as guards are then equally likely to break at
        any moment.
        """
        control, treatment = self.recording.exposure()
        return float(treatment / (control + treatment))

    # Reasons for doubt

    def _reasons(self) -> Iterator[Doubt]:
        """Yield all reasons for which the result is not valid, however clear its numbers are."""
        for text in self._doubts():
            yield Doubt(OWN, text)
        dirty = [row.metric.name for row in self.rows if row.aa_corrected < DIRTY]
        if dirty:
            yield Doubt(AA, f"equal arms differed in the A/A phase: {', '.join(dirty)}")
        for row in self.rows:
            yield from self._doubts_of(row)
        for each in self.neighbours:
            if each.found:
                yield Doubt(OWN, each.doubt())

    def _doubts(self) -> Iterator[str]:
        """Yield the reasons for doubt that concern the whole run, not a single metric."""
        status = self.recording.end.get("status", "killed")
        if self._stopped_in_treatment and not self.harmed:
            yield (
                "a guard stopped the run while the treatment was active: "
                f"{self.recording.end['reason']}; if it breaks as often in both arms, "
                f"this happens in {100 * self._by_chance:.0f} % of runs"
            )
        elif status != "done" and self.recording.length != "anytime":
            reason = self.recording.end.get("reason", "its file has no last record")
            yield f"the run did not go to its planned end: {status}, {reason}"
        if self.balance.broken:
            text = f"the arms are out of balance: {self.balance.text()}"
            yield f"{text}; find the cause before you use the result"
        if self.header["design"] == "split" and not any(self.recording.units()):
            yield "no unit (process or cgroup) took part in either arm"
        averages = [each.metric.name for each in self.rows if each.metric.averaged]
        if averages:
            text = (
                "metrics with a moving average, which includes earlier blocks: "
                f"{', '.join(averages)}"
            )
            yield f"{text}; use the total instead, such as psi.memory.full.total/s"
        idle = self.recording.idle()
        if idle:
            yield (
                f"no policy decided anything in {' and '.join(idle)}, so nothing was "
                "compared; does any process in the scope have page faults?"
            )
        rare = self.header.get("rare")
        if rare and any(len(row.pairs) < pairs_to_see(rare) for row in self.rows):
            text = f"{self._unseen()}; --detect-rare {rare:g} takes {pairs_to_see(rare)} pairs"
            yield f"there are too few blocks for --detect-rare: {text}"

    def _doubts_of(self, row: MetricResult) -> Iterator[Doubt]:
        name = row.metric.name
        if source := self.recording.climbing(row.metric):
            text = f"{name} never decreases: if it is a counter, give its rate: {source}/s"
            yield Doubt(OWN, text, name)
        if self._lost(row) and row.too_many_lost:
            far = row.uneven_lost or row.planned - len(row.pairs) > LOST_OF_HOST * row.planned
            yield Doubt(OWN if far else LOST, self._lost(row), name)
        elif row.metric.of_units and row.uneven_lost:
            lost = ", ".join(f"{count} in {arm}" for arm, count in row.lost.items())
            text = (
                f"{name}: more units ended within their blocks in one arm than in the other: {lost}"
            )
            yield Doubt(OWN, text, name)
        if row.denied and row.totals and row.effect:
            control, treatment = row.worst()
            text = (
                f"{name}: a few large blocks outweigh the others: the effect is "
                f"{row.text(row.effect.estimate)} by pairs, and "
                f"{row.text(row.totals[0])} by totals ({row.ends(*row.totals[1:])}); "
                f"the largest block has {figure(treatment, 3)} times the mean in treatment, "
                f"{figure(control, 3)} times in control"
            )
            yield Doubt(TOTALS, text, name)
        if row.no_worse and row.carry.seen:
            yield Doubt(CARRY, f"{name}: carry-over hides how much worse the treatment is", name)

    def _lost(self, row: MetricResult) -> str:
        """Return a sentence about pairs without a value; "" if there are none."""
        if self.recording.end.get("status") != "done" or len(row.pairs) == row.planned:
            return ""
        lost = ", ".join(f"{count} blocks of {arm}" for arm, count in row.lost.items())
        text = f"{row.metric.name} has a value in {len(row.pairs)} of {row.planned} pairs"
        return f"{text}; the value is missing or not a number in {lost}"

    def notes(self) -> Iterator[str]:
        """Yield notes about the run; none of them changes the verdict."""
        pairs, need = self.header["aa_pairs"], least_pairs(len(self.rows), DIRTY)
        if self.recording.length == "anytime" and self.recording.end.get("status") != "done":
            yield (
                "the run was interrupted; its result up to then is valid, as --stop "
                "anytime permits to end at any time"
            )
        if 0 < pairs < need:
            yield f"{pairs} A/A pairs are too few to show that equal arms differ; it takes {need}"
        for row in self.rows:
            if self._lost(row) and not row.too_many_lost:
                bad = (
                    f"{row.against} of the pairs without a value are counted as results "
                    "against the effect"
                )
                yield (
                    f"{self._lost(row)}; "
                    f"{bad if row.against else 'both arms have lost as many blocks'}"
                )
            for sign in row.carry.words(row.text):
                yield (
                    f"carry-over of {row.metric.name}: {sign}. The effect is "
                    "underestimated, as memory that the other arm has left behind "
                    "still acts, and the interval may miss it; take longer blocks and "
                    "a longer --washout, or --at-switch"
                )
            if row.found and row.noise and row.effect and abs(row.effect.estimate) < row.noise:
                yield (
                    f"{row.metric.name}: the effect is within the A/A floor of "
                    f"±{row.text(row.noise, '')}, by which equal arms may differ in a "
                    "run of this length; repeat the run"
                )
        if self.header["design"] == "split":
            yield from unseen_by_split(self.recording.metrics())
        if self.balance.strained:
            yield f"blocks took longer than planned: {self.balance.text()}; take longer intervals"
        if self.header.get("runs_this_week", 1) > 1:
            text = (
                f"this is run {self.header['runs_this_week']} with these arms within a "
                "week on this host"
            )
            yield (
                f"{text}: the more runs there are, the likelier one of them shows an "
                "effect by chance"
            )

    # The result

    @property
    def exit(self) -> Exit:
        """Return the exit code: WORSE, INCONCLUSIVE or DONE."""
        if self.harmed or self._worse:
            return Exit.WORSE
        if self.doubts:
            return Exit.INCONCLUSIVE
        if self.same:
            return Exit.DONE if any(row.found for row in self.rows) else Exit.INCONCLUSIVE
        if any(row.open for row in self.rows):
            return Exit.INCONCLUSIVE
        found = any(row.found for row in self.rows if not row.metric.guard)
        return Exit.DONE if found or self.only_margin else Exit.INCONCLUSIVE

    @property
    def _worse(self) -> list[MetricResult]:
        """Return the metrics that are worse and not in doubt; [] if a doubt concerns the whole run,
        or if both arms have the same settings.
        """
        doubted = {each.metric for each in self.reasons}
        if self.same or "" in doubted:
            return []
        return [row for row in self.rows
                if row.worse and not row.no_worse and row.metric.name not in doubted]  # fmt: skip

    @property
    def only_margin(self) -> bool:
        """Return whether the run only tests that the treatment is no worse than a margin, and need
        not show a gain.
        """
        guards = [row.metric.guard for row in self.rows]
        return all(guards) or bool(self.margin and not any(guards))

    @property
    def conclusive(self) -> bool:
        """Return whether the run has a result: it is not inconclusive, and there is no doubt."""
        return not self.doubts and self.exit != Exit.INCONCLUSIVE

    def verdict(self) -> str:
        """Return the verdict, in one sentence."""
        if self.harmed:
            return (
                f"the run was stopped, as the treatment does harm: {self.recording.end['reason']}"
            )
        if self.doubts and not self._worse:
            return f"inconclusive: {self.doubts[0]}"
        doubted = {each.metric for each in self.reasons}
        found = [f"{row.metric.name} {row.finding()}" for row in self.rows
                 if row.found and row.metric.name not in doubted]  # fmt: skip
        if self.same:
            text = "both arms are the same, and "
            return text + ("yet: " + "; ".join(found) if found else "no difference was found")
        said = "; ".join([*found, *self._of_margin()])
        if any(row.found and row.carry.seen for row in self.rows):
            said += "; carry-over from block to block was seen, so the effect is underestimated"
        if self.exit == Exit.INCONCLUSIVE:
            if not found and not self.judged:
                return "inconclusive: no metric shows an effect larger than its noise"
            return f"inconclusive: {said}"
        if self.exit == Exit.DONE:
            said += f"; {self._unseen()}"
        if self.doubts:
            said += f"; in doubt: {self.doubts[0]}"
        return f"with the treatment, {said}"

    def _of_margin(self) -> Iterator[str]:
        """Yield sentences about margins: which metrics are shown to be no worse than their margin
        allows, and which are not.

        Metrics without a margin cannot be shown to be no worse.
        """
        for shown in (True, False):
            for margin in sorted({row.margin for row in self.rows}):
                rows = [row for row in self.rows if row.margin == margin and row.metric.better]
                rows = [row for row in rows if row.no_worse == shown and (margin or row.open)]
                names = ", ".join(row.metric.name for row in rows)
                than = f"than {margin:g} %" if margin else "(no margin was given)"
                if names and not (margin == 0 and all(row.worse for row in rows)):
                    yield f"{'' if shown else 'not shown to be '}no worse {than}: {names}"

    def lengths(self) -> Iterator[tuple[str, int]]:
        """Yield for each metric how many pairs find a change of `detect` percent."""
        for row, noise in self._noises():
            yield row.metric.name, suggest_pairs(noise, self.detect, row.metrics)

    def margin_lengths(self) -> Iterator[tuple[str, int]]:
        """Yield for each judged metric how many pairs show, if the arms are equal, that the
        treatment is no worse than the margin.
        """
        for row, noise in self._noises():
            if row in self.judged:
                yield row.metric.name, suggest_pairs(noise, row.margin, risk=ALPHA)

    def _noises(self) -> Iterator[tuple[MetricResult, list[float]]]:
        for row in self.rows:
            scale, noise = differences(row.aa_pairs if len(row.aa_pairs) > 2 else row.pairs)
            if scale != "difference" and len(noise) > 2:
                yield row, noise

    # For programs and for people

    def data(self) -> dict[str, Any]:
        """Return the report for JSON."""
        balance = self.balance
        data = {
            "verdict": self.verdict(),
            "conclusive": self.conclusive,
            "exit": int(self.exit),
            "doubts": self.doubts,
            "notes": list(self.notes()),
            "margin": self.margin or None,
            "design": self.header["design"],
            "arms": {arm: self.header[arm]["given"] for arm in ARMS},
            "rule": self.header["rule"],
            "balance": vars(balance),
            "counted": {what: self.recording.counted(what) for what in COUNTED},
            "metrics": [row.data() for row in self.rows],
            "neighbours": [each.data() for each in self.neighbours],
            "pairs_to_find": {"percent": self.detect, "pairs": dict(self.lengths())},
        }
        found: dict[str, Any] = storable(data)
        return found

    def facts(self) -> list[tuple[str, str]]:
        """Return the facts about the run as (name, text); results of metrics are elsewhere."""
        header = self.header
        timing = (
            f"blocks of {figure(header['block_s'])} s, the first {figure(header['washout_s'])} s "
            "of each not measured (wash-out)"
        )
        facts = [
            ("control", header["control"]["given"]),
            ("treatment", header["treatment"]["given"]),
            ("design", f"{header['design']}, {timing}, seed {header['seed']}"),
            ("rule", header["rule"]),
            ("balance", self.balance.text()),
            ("carry-over", self._carry()),
            *(("neighbours", each.text()) for each in self.neighbours),
            ("not seen", self._unseen()),
            ("guards", ", ".join(header["guards"]) or "none"),
            *self._extras(),
            (f"to find {figure(self.detect)} %", _told(self.lengths())),
        ]
        if self.judged:
            after = any(self.header.get("margin") != row.margin != row.metric.margin
                        for row in self.judged)  # fmt: skip
            need = _told(self.margin_lengths())
            margins = " and ".join(
                f"{figure(each)} %" for each in sorted({r.margin for r in self.judged})
            )
            when = "after the run" if after else "before the run"
            facts.append(
                (
                    f"margin {margins}",
                    f"on the mean, chosen {when}; to show that the treatment is no worse, {need}",
                )
            )
        if header.get("experiment"):
            facts.append(("experiment", header["experiment"]))
        about = {**header["host"], **header["host"].get("labels", {})}
        about.pop("labels", None)
        host = ", ".join(f"{key} {value}" for key, value in about.items())
        return [*facts, ("host", host)]

    def _extras(self) -> Iterator[tuple[str, str]]:
        """Yield facts that only some runs have: the command of --at-switch, and counts of decisions
        and timed faults.
        """
        if self.header.get("at_switch"):
            yield "at switch", self.header["at_switch"]
        names = {"decisions": "decisions", "timed": "timed faults", "missed": "faults missed"}
        for what, name in names.items():
            counts = self.recording.counted(what)
            if counts:
                yield name, ", ".join(f"{count} in {arm}" for arm, count in counts.items())

    def _unseen(self) -> str:
        """Return as text how frequent an event may be although no block of this run had it."""
        pairs = min((len(row.pairs) for row in self.rows), default=0)
        if not pairs:
            return "anything"
        share = figure(unseen(pairs), 2)
        events = f"events that occur in up to {share} % of blocks"
        return f"these {pairs} blocks may have missed {events}"

    def _carry(self) -> str:
        seen = [row.metric.name for row in self.rows if row.carry.seen]
        tested = [row for row in self.rows if row.carry.tested]
        if self.header["design"] == "split" and not all(row.metric.of_units for row in self.rows):
            within = ", ".join(seen) or "not seen"
            return f"{within}; only metrics of unit: show carry-over from block to block"
        return ", ".join(seen) or ("not seen" if tested else "not tested: too few pairs or samples")

    def table(self) -> tuple[Sequence[str], list[Sequence[str]]]:
        """Return head and rows of the table with one row for each metric."""
        return HEAD, [row.cells() for row in self.rows]

    def lines(self) -> list[str]:
        """Return the report as lines of text; the last one is the verdict."""
        width = max(len(name) for name, _ in self.facts())
        lines = [f"{name:{width}}  {value}" for name, value in self.facts()]
        lines += ["", *table(*self.table()), ""]
        lines += [f"{row.metric.name}: {row.verdict()}" for row in self.rows]
        lines += [f"note: {note}" for note in self.notes()]
        lines += [f"doubt: {doubt}" for doubt in self.doubts]
        return [*lines, "", f"verdict: {self.verdict()}"]
