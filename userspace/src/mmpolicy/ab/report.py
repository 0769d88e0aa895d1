# SPDX-License-Identifier: GPL-2.0
"""What a recording says, in numbers and in plain words."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from mmpolicy.ab.balance import balance_of
from mmpolicy.ab.carry import carry_of
from mmpolicy.ab.design import ALPHA, DIRTY, differences, least_pairs, suggest_pairs
from mmpolicy.ab.metrics import Metric
from mmpolicy.ab.row import Row
from mmpolicy.ab.samples import COUNTED, Recording, storable
from mmpolicy.ab.sources import ARMS
from mmpolicy.ab.stats import analyse, holm
from mmpolicy.errors import Exit
from mmpolicy.render import table

HEAD = (
    "METRIC", "PAIRS", "CONTROL", "TREATMENT", "EFFECT", "95 % INTERVAL", "P", "P HOLM",
    "TOTALS", "DETECTABLE", "A/A FLOOR",
)  # fmt: skip


def _row(recording: Recording, metric: Metric, margin: float, metrics: int) -> Row:
    """Return the analysis of a metric for itself."""
    seed = recording.header["seed"]
    pairs, aa_pairs = (recording.pairs(metric, phase) for phase in ("ab", "aa"))
    effect, aa = (analyse(each, seed) if len(each) > 1 else None for each in (pairs, aa_pairs))
    row = Row(
        metric, pairs, aa_pairs, effect, aa, seed, recording.planned, recording.lost(metric),
        margin=margin, metrics=metrics,
    )  # fmt: skip
    return replace(row, carry=carry_of(recording, metric, row.scale, seed))


def rows_of(recording: Recording, margin: float = 0.0) -> list[Row]:
    """Return the analysis of each metric, corrected for their number."""
    metrics = recording.metrics()
    rows = [_row(recording, metric, margin, len(metrics)) for metric in metrics]
    corrected = holm([row.effect.p if row.effect else 1.0 for row in rows])
    aa_corrected = holm([row.aa.p if row.aa else 1.0 for row in rows])
    return [
        replace(row, corrected=p, aa_corrected=aa)
        for row, p, aa in zip(rows, corrected, aa_corrected, strict=True)
    ]


def _told(lengths: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{name}: {pairs} pairs" for name, pairs in lengths) or "not known"


class Report:
    """The whole of it."""

    def __init__(self, recording: Recording, detect: float = 5.0, margin: float = 0.0) -> None:
        self.recording = recording
        self.detect = detect  # percent, of which the length is told
        self.header = recording.header
        self.margin = margin or self.header.get("margin") or 0.0  # percent
        self.rows = rows_of(recording, self.margin)
        self.balance = balance_of(recording)
        self.doubts = list(self._doubts())
        self.judged = [row for row in self.rows if self.margin and row.metric.better]

    @property
    def same(self) -> bool:
        """Tell if both arms have the same settings: a run to see the noise."""
        return bool(self.header["control"]["settings"] == self.header["treatment"]["settings"])

    @property
    def harmed(self) -> bool:
        """Tell if a guard broke in a block with the treatment."""
        end = self.recording.end
        return end.get("status") == "guard" and end.get("arm") == ARMS[1] and not self.same

    # Why not to believe it

    def _doubts(self) -> Iterator[str]:
        """Yield why nothing should be concluded, whatever the numbers are."""
        status = self.recording.end.get("status", "killed")
        if status != "done":
            reason = self.recording.end.get("reason", "the file has no end")
            yield f"the run did not go to its planned end: {status}, {reason}"
        if self.balance.broken:
            text = f"assignment is out of balance: {self.balance.text()}"
            yield f"{text}; find out why before you believe anything"
        if self.header["design"] == "split" and not any(self.recording.units()):
            yield "no unit took part in either arm"
        idle = self.recording.idle()
        if idle:
            yield f"no decision was taken in {' and '.join(idle)}: nothing was compared"
        dirty = [row.metric.name for row in self.rows if row.aa_corrected < DIRTY]
        if dirty:
            yield f"equal arms differed in the A/A phase: {', '.join(dirty)}"
        for row in self.rows:
            yield from self._doubts_of(row)

    def _doubts_of(self, row: Row) -> Iterator[str]:
        name = row.metric.name
        complete = self.recording.end.get("status") == "done"
        if complete and len(row.pairs) < row.planned:
            lost = ", ".join(f"{count} blocks of {arm}" for arm, count in row.lost.items())
            text = f"{name} has a value in {len(row.pairs)} of {row.planned} pairs"
            yield f"{text}; it is missing or no number in {lost}"
        if row.denied and row.totals and row.effect:
            control, treatment = row.worst()
            yield (
                f"{name}: a few blocks outweigh the others: {row.text(row.effect.estimate)} by "
                f"pairs, {row.text(row.totals[0])} by totals ({row.ends(*row.totals[1:])}); the "
                f"largest block has {treatment:.3g} times the mean in treatment, {control:.3g} "
                "times in control"
            )
        if row.no_worse and row.carry.seen:
            yield f"{name}: carry-over hides how much worse the treatment is"

    def notes(self) -> Iterator[str]:
        """Yield what to bear in mind; it does not change the verdict."""
        pairs, need = self.header["aa_pairs"], least_pairs(len(self.rows), DIRTY)
        if pairs < need:
            yield f"{pairs} pairs of A/A cannot show that equal arms differ; it takes {need}"
        for row in self.rows:
            for sign in row.carry.words(row.text):
                yield (
                    f"carry-over of {row.metric.name}: {sign}. What the other arm left behind "
                    "still acts, so the effect is underestimated and the interval may miss it; "
                    "take longer blocks and wash-out, or --at-switch"
                )
        if self.balance.strained:
            yield f"the plan was not kept: {self.balance.text()}; take longer intervals"
        if self.header.get("runs_this_week", 1) > 1:
            text = f"run {self.header['runs_this_week']} with these arms within a week, here"
            yield f"{text}: the more runs, the likelier one of them finds something by chance"

    # What came out

    @property
    def exit(self) -> Exit:
        """Return the exit code: does the run answer, and is the answer that it is worse?"""
        if self.harmed:
            return Exit.WORSE
        if self.doubts:
            return Exit.INCONCLUSIVE
        if self.same or not self.judged:
            if not self.same and any(row.worse for row in self.rows):
                return Exit.WORSE
            return Exit.DONE if any(row.found for row in self.rows) else Exit.INCONCLUSIVE
        failed = [row for row in self.judged if not row.no_worse]
        if not failed:
            return Exit.DONE
        return Exit.WORSE if any(row.worse for row in failed) else Exit.INCONCLUSIVE

    @property
    def conclusive(self) -> bool:
        """Tell if there is an answer."""
        return not self.doubts and self.exit != Exit.INCONCLUSIVE

    def verdict(self) -> str:
        """Return the one sentence that counts."""
        if self.harmed:
            return f"stopped for harm: {self.recording.end['reason']}"
        if self.doubts:
            return f"inconclusive: {self.doubts[0]}"
        found = [f"{row.metric.name} {row.finding()}" for row in self.rows if row.found]
        if self.same:
            text = "both arms are the same, and "
            return text + ("yet: " + "; ".join(found) if found else "no difference was found")
        said = "; ".join([*found, *self._of_margin()])
        if any(row.found and row.carry.seen for row in self.rows):
            said += "; carry-over was seen, the effect is underestimated"
        if self.exit == Exit.INCONCLUSIVE:
            return f"inconclusive: {said or 'no metric shows an effect beyond its noise'}"
        return f"with the treatment, {said}"

    def _of_margin(self) -> Iterator[str]:
        by = {
            shown: ", ".join(row.metric.name for row in self.judged if row.no_worse == shown)
            for shown in (True, False)
        }
        if by[True]:
            yield f"no worse than {self.margin:g} %: {by[True]}"
        if by[False]:
            yield f"not shown to be no worse than {self.margin:g} %: {by[False]}"

    def lengths(self) -> Iterator[tuple[str, int]]:
        """Yield for each metric how many pairs it takes to find the effect asked about."""
        for row, noise in self._noises():
            yield row.metric.name, suggest_pairs(noise, self.detect, len(self.rows))

    def margin_lengths(self) -> Iterator[tuple[str, int]]:
        """Yield how many it takes to show that equal arms are no worse than the margin."""
        for row, noise in self._noises():
            if row in self.judged:
                yield row.metric.name, suggest_pairs(noise, self.margin, risk=ALPHA)

    def _noises(self) -> Iterator[tuple[Row, list[float]]]:
        for row in self.rows:
            scale, noise = differences(row.aa_pairs if len(row.aa_pairs) > 2 else row.pairs)
            if scale == "ratio" and len(noise) > 2:
                yield row, noise

    # For programs and for people

    def data(self) -> dict[str, Any]:
        """Return it for JSON."""
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
            "pairs_to_find": {"percent": self.detect, "pairs": dict(self.lengths())},
        }
        found: dict[str, Any] = storable(data)
        return found

    def facts(self) -> list[tuple[str, str]]:
        """Return what there is to know beside the metrics."""
        header = self.header
        timing = f"blocks of {header['block_s']:g} s, {header['washout_s']:g} s of them wash-out"
        facts = [
            ("control", header["control"]["given"]),
            ("treatment", header["treatment"]["given"]),
            ("design", f"{header['design']}, {timing}, seed {header['seed']}"),
            ("rule", header["rule"]),
            ("balance", self.balance.text()),
            ("carry-over", self._carry()),
            ("guards", ", ".join(header["guards"]) or "none"),
            *self._extras(),
            (f"to find {self.detect:g} %", _told(self.lengths())),
        ]
        if self.judged:
            when = "before the run" if header.get("margin") == self.margin else "after the run"
            need = _told(self.margin_lengths())
            facts.append((f"margin {self.margin:g} %", f"chosen {when}; to show it, {need}"))
        host = ", ".join(f"{key} {value}" for key, value in header["host"].items())
        return [*facts, ("host", host)]

    def _extras(self) -> Iterator[tuple[str, str]]:
        """Yield what not every run has."""
        if self.header.get("at_switch"):
            yield "at switch", self.header["at_switch"]
        names = {"decisions": "decisions", "timed": "timed faults", "missed": "faults missed"}
        for what, name in names.items():
            counts = self.recording.counted(what)
            if counts:
                yield name, ", ".join(f"{count} in {arm}" for arm, count in counts.items())

    def _carry(self) -> str:
        seen = [row.metric.name for row in self.rows if row.carry.seen]
        tested = [row for row in self.rows if row.carry.tested]
        return ", ".join(seen) or ("not seen" if tested else "not tested: too few pairs or samples")

    def table(self) -> tuple[Sequence[str], list[Sequence[str]]]:
        """Return head and lines of the table of metrics."""
        return HEAD, [row.cells() for row in self.rows]

    def lines(self) -> list[str]:
        """Return it as text."""
        width = max(len(name) for name, _ in self.facts())
        lines = [f"{name:{width}}  {value}" for name, value in self.facts()]
        lines += ["", *table(*self.table()), ""]
        lines += [f"{row.metric.name}: {row.verdict()}" for row in self.rows]
        lines += [f"note: {note}" for note in self.notes()]
        lines += [f"doubt: {doubt}" for doubt in self.doubts]
        return [*lines, "", f"verdict: {self.verdict()}"]
