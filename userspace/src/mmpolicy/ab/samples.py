# SPDX-License-Identifier: GPL-2.0
"""The samples file of a run: JSON lines, from which reports can be made at any time.

The first line is the header. Then come `sample` with readings, `block` at the end of each block,
`plan` when the number of pairs was decided, and `end`. A reading that is not a finite number is
null, and a block that needs the reading has no value.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import isfinite, nan
from pathlib import Path
from statistics import median
from typing import Any

from mmpolicy.ab.design import SATURATION, Pairs
from mmpolicy.ab.metrics import Metric
from mmpolicy.ab.panel import Cell, Cells, neighbours, pairs_of
from mmpolicy.ab.sources import ARMS, Command, HostFile, Numbers, Sample, falls
from mmpolicy.errors import Error, Exit

VERSIONS = (1, 2)  # versions of the samples file that can be read; new files get the last one
HUGE = 1e150  # values above this are dropped, as their square overflows
PERCENT = 100
# A block is lost if the seconds it measured differ from the usual number by more than JUMP (as a
# share of a block) and by more than JUMP_S seconds.
JUMP, JUMP_S = 0.1, 1.0
MOST_SAMPLES = 1e6  # per block
# optional fields of a block's line; each has one number for each arm
COUNTED = ("decisions", "timed", "missed")
PHASES = ("aa", "ab", SATURATION)
CLIMBS = 4  # fewest blocks from which climbing() decides whether a source is a counter or a level
HINT = "give a file that mmpolicy ab run has written"
NUMBER = (int, float)

# required fields of each kind of line, with their types
FIELDS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "header": {
        "version": int, "design": str, "block_s": NUMBER, "washout_s": NUMBER,
        "interval_s": NUMBER, "seed": int, "rule": str, "aa_pairs": int, "pairs": int,
        "metrics": list, "guards": list, "host": dict, "control": dict, "treatment": dict,
    },
    "identity": {"experiment": str, "digest": str, "started": str, "roles": dict},  # version 2
    "sample": {"t": NUMBER, "block": int, "host": dict, "arms": dict},
    "block": {
        "number": int, "phase": str, "pair": int, "arm": str, "began": NUMBER, "ended": NUMBER,
    },
    "plan": {"pairs": int},
    "end": {"status": str, "reason": str},
}  # fmt: skip


def storable(data: Any) -> Any:
    """Return data with null in place of nan and infinity, for which JSON has no notation."""
    if isinstance(data, dict):
        return {key: storable(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [storable(value) for value in data]
    return None if isinstance(data, float) and not isfinite(data) else data


def line_of(kind: str, record: dict[str, Any]) -> str:
    """Return a record as a line of the file."""
    return json.dumps(storable({"kind": kind, **record}), allow_nan=False) + "\n"


def _number(value: Any) -> float:
    if value is None:
        return nan
    if not isinstance(value, NUMBER):
        raise TypeError(f"{value!r} is not a number")
    return float(value)


def _numbers(record: dict[str, Any]) -> Numbers:
    return {key: _number(value) for key, value in record.items()}


def _sample_of(record: dict[str, Any]) -> Sample:
    arms, units = (
        {name: _numbers(numbers) for name, numbers in record.get(what, {}).items()}
        for what in ("arms", "units")
    )
    return Sample(_number(record["t"]), _numbers(record["host"]), arms, units)


def _check_counts(block: dict[str, Any]) -> None:
    for what in COUNTED:
        for count in block.get(what, {}).values():
            if type(count) is not int:
                raise TypeError(
                    f"'{what}' of a block has the count {count!r}, which is not a whole number"
                )


def check(record: dict[str, Any], kind: str) -> None:
    """Raise a ValueError unless a record, which is a line of a samples file, has the required
    fields of its kind, with the right types.
    """
    for name, kinds in FIELDS[kind].items():
        if name not in record:
            raise ValueError(f"the {kind} has no field '{name}'")
        if not isinstance(record[name], kinds):
            raise ValueError(
                f"the field '{name}' of the {kind} has the wrong kind of value: {record[name]!r}"
            )


@dataclass
class Recording:
    """The contents of a samples file. The file of a run that was killed ends early."""

    header: dict[str, Any]
    blocks: dict[int, dict[str, Any]] = field(default_factory=dict)  # complete blocks
    windows: dict[int, list[Sample]] = field(default_factory=dict)  # samples by block
    plan: dict[str, Any] = field(default_factory=dict)
    end: dict[str, Any] = field(default_factory=dict)
    _usual_s = 0.0  # cache of usual_s(); 0: not computed

    def add(self, record: dict[str, Any]) -> None:
        """Add the record of one line; raise ValueError or TypeError if it is not valid."""
        kind, self._usual_s = record["kind"], 0.0
        if kind in FIELDS:
            check(record, kind)
        if kind == "block":
            if record["phase"] not in PHASES or record["arm"] not in ("", *ARMS):
                raise ValueError(f"this block has an unknown phase or arm: {record}")
            _check_counts(record)
            if not set(record.get("units", {}).values()) <= set(ARMS):
                raise ValueError(f"this block has units in neither arm: {record['units']}")
            self.blocks[record["number"]] = record
        elif kind == "sample":
            self.windows.setdefault(record["block"], []).append(_sample_of(record))
        elif kind in ("plan", "end"):
            setattr(self, kind, record)

    def metrics(self) -> list[Metric]:
        """Return the metrics of the header."""
        return [Metric.parse(text) for text in self.header["metrics"]]

    @property
    def length(self) -> str:
        """Return how the length was decided: by "size", "anytime", or "" if it was fixed."""
        return str(self.header.get("length", ""))

    @property
    def planned(self) -> int:
        """Return the planned number of pairs."""
        return int((self.plan or self.header)["pairs"])

    def of_phase(self, phase: str) -> Iterator[tuple[int, int, str]]:
        """Yield (number, pair, arm) for the blocks of a phase. A block of split has both arms, so
        it is yielded twice, once for each arm.
        """
        for number, block in sorted(self.blocks.items()):
            if block["phase"] == phase:
                for arm in [block["arm"]] if block["arm"] else ARMS:
                    yield number, block["pair"], arm

    def value(self, metric: Metric, number: int, arm: str, part: str = "") -> float | None:
        """Return the value of an arm in a block, or in its `first` or `second` half; None if the
        block has no valid value.
        """
        window = self.windows.get(number, [])
        if not metric.momentary and not self.kept_time(window):
            return None
        middle = len(window) // 2
        parts = {"": window, "first": window[: middle + 1], "second": window[middle:]}
        try:
            value = metric.over(parts[part], arm)
        except KeyError as err:
            text = f"block {number} has no samples of {err}, which metric '{metric.name}' needs"
            raise Error(text, Exit.USAGE, HINT) from err
        return value if value is not None and abs(value) < HUGE else None

    def usual_s(self) -> float:
        """Return how many seconds a block usually measures: the planned time, or the median if that
        is longer.
        """
        if not self._usual_s:
            spans = [each[-1].t - each[0].t for each in self.windows.values()]
            planned = self.header["block_s"] - self.header["washout_s"]
            self._usual_s = max(planned, median(spans)) if spans else float(planned)
        return self._usual_s

    def kept_time(self, window: Sequence[Sample]) -> bool:
        """Return False if a block is lost, because the clock jumped during it or the host
        stalled.
        """
        if any(after.t < before.t for before, after in zip(window, window[1:])):
            return False
        usual = self.usual_s()
        span = window[-1].t - window[0].t if window else usual
        return bool(abs(span - usual) <= max(JUMP * self.header["block_s"], JUMP_S))

    def by_pair(self, metric: Metric, phase: str, part: str = "") -> dict[int, tuple[float, float]]:
        """Return (control, treatment) of all complete pairs, by the number of the pair.

        In the phase "saturation", both are values of untreated units: while few other units are
        treated, and while many are.
        """
        if metric.of_units:
            return self._of_units(metric, phase, part)
        found: dict[int, dict[str, float]] = {}
        for number, pair, arm in self.of_phase(phase):
            value = self.value(metric, number, ARMS[0] if phase == SATURATION else arm, part)
            if value is not None:
                found.setdefault(pair, {})[arm] = value
        control, treatment = ARMS
        both = {pair: each for pair, each in found.items() if len(each) == len(ARMS)}
        return {pair: (each[control], each[treatment]) for pair, each in both.items()}

    def cells(self, metric: Metric, phase: str, part: str = "") -> dict[int, Cells]:
        """Return arm and value of each unit in every block of a phase, by the number of
        the block.
        """
        found: dict[int, Cells] = {}
        for number, block in sorted(self.blocks.items()):
            if block["phase"] == phase:
                values = {
                    unit: (arm, self.value(metric, number, unit, part))
                    for unit, arm in block.get("units", {}).items()
                }
                found[number] = {
                    unit: Cell(arm, value)
                    for unit, (arm, value) in values.items() if value is not None
                }  # fmt: skip
        return found

    def _of_units(self, metric: Metric, phase: str, part: str) -> dict[int, tuple[float, float]]:
        cells = self.cells(metric, phase, part)
        numbers = {number: self.blocks[number]["pair"] for number in cells}
        if phase == SATURATION:
            low, high = ({self.blocks[number]["pair"]: cells[number] for number in cells
                          if self.blocks[number]["arm"] == arm} for arm in ARMS)  # fmt: skip
            found = {pair: neighbours(low[pair], high[pair]) for pair in low if pair in high}
        else:
            past = self.length == "anytime"
            before = [*self.cells(metric, "aa", part).values()] if past and phase == "ab" else []
            both = pairs_of([*before, *cells.values()], past)[len(before) :]
            found = dict(zip(numbers.values(), both))
        return {pair: each for pair, each in found.items() if each}

    def firsts(self) -> dict[int, bool]:
        """Return for each pair of switchback whether its first block has the treatment."""
        found: dict[int, bool] = {}
        for _, pair, arm in self.of_phase("ab") if self.header["design"] == "switchback" else ():
            found.setdefault(pair, arm == ARMS[1])
        return found

    @property
    def stopped_in_treatment(self) -> bool:
        """Return whether a guard ended the run during a block of the treatment."""
        return self.end.get("status") == "guard" and self.end.get("arm") == ARMS[1]

    def exposure(self) -> tuple[float, float]:
        """Return how many seconds the run spent without and with the treatment, including a block
        that was interrupted.
        """
        control = treatment = 0.0
        for block in self.blocks.values():
            seconds, both = block["ended"] - block["began"], block["phase"] == SATURATION
            if both or (block["phase"] == "ab" and block["arm"] != ARMS[0]):
                treatment += seconds
            if both or block["phase"] == "aa" or block["arm"] != ARMS[1]:
                control += seconds
        if self.end.get("arm") == ARMS[1]:
            treatment += self.end.get("after_s") or self.header["block_s"]
        return control, treatment

    def pairs(self, metric: Metric, phase: str) -> Pairs:
        """Return (control, treatment) of all complete pairs of a phase, in order."""
        return list(self.by_pair(metric, phase).values())

    def lost(self, metric: Metric) -> dict[str, int]:
        """Return for each arm in how many of its A/B blocks the metric has no value.

        For a metric of units, count the units without a value in each block, not blocks.
        """
        counts = dict.fromkeys(ARMS, 0)
        if metric.of_units:
            for number, cells in self.cells(metric, "ab").items():
                for unit, arm in self.blocks[number].get("units", {}).items():
                    counts[arm] += unit not in cells
            return counts
        for number, _, arm in self.of_phase("ab"):
            counts[arm] += self.value(metric, number, arm) is None
        return counts

    def lost_pairs(self, metric: Metric, pairs: int) -> tuple[int, int]:
        """Return how many of `pairs` pairs have no value of the metric, and how many of these lost
        pairs count as results against the treatment.

        If both arms lose blocks, the treatment is not the cause, so only the excess of one arm
        counts. For a metric of units, all lost pairs count.
        """
        missing = pairs - len(self.by_pair(metric, "ab"))
        control, treatment = self.lost(metric).values()
        return missing, missing if metric.of_units else min(missing, abs(treatment - control))

    def course(self, metric: Metric) -> tuple[list[float | None], list[bool]]:
        """Return the values of all blocks of a switchback run in order, preceded by the value of
        the last A/A block. None stands for a block without a value.

        The second list says for each pair whether its first block has the treatment.
        """
        blocks = [(number, arm) for number, _, arm in self.of_phase("ab")]
        blocks = blocks[: len(blocks) // 2 * 2]
        last = [(number, arm) for number, _, arm in self.of_phase("aa")][-1:]
        start = [self.value(metric, *block) for block in last] or [None]
        values = [self.value(metric, *block) for block in blocks]
        return start + values, [arm == ARMS[1] for _, arm in blocks[::2]]

    def counted(self, what: str) -> dict[str, int]:
        """Return for each arm the sum of a count over its blocks. what: the name of the count, one
        of COUNTED, such as "decisions".
        """
        found: dict[str, int] = {}
        for number, _, arm in self.of_phase("ab"):
            counts = self.blocks[number].get(what, {})
            if arm in counts:
                found[arm] = found.get(arm, 0) + int(counts[arm])
        return {arm: found[arm] for arm in ARMS if arm in found}

    def idle(self) -> list[str]:
        """Return the arms whose policy has made no decision during the run; [] if decisions were
        not counted.
        """
        given = {
            arm: [value for key, value in self.header[arm]["settings"].items() if _chooses(key)]
            for arm in ARMS
        }
        counts = self.counted("decisions")
        acts = [arm for arm in ARMS if any(value != "stock" for value in given[arm])]
        return [arm for arm in acts if counts.get(arm) == 0]

    def climbing(self, metric: Metric) -> str:
        """Return the text of a source that the user gave as a level, but whose values look like
        those of a counter; "" if there is none. Such a source needs /s.

        Its values never fall, and they rise in three quarters of the blocks, of which there are
        CLIMBS or more.
        """
        windows = [self.windows[number] for number in sorted(self.windows)]
        for source in metric.sources():
            if not isinstance(source, (Command, HostFile)) or source.counts or not source.momentary:
                continue
            blocks = [[source.value(each, ARMS[0]) for each in window] for window in windows]
            values = [value for block in blocks for value in block]
            rise = sum(block[-1] > block[0] for block in blocks if block)
            if len(blocks) >= CLIMBS and rise >= 0.75 * len(blocks) and not falls(values):
                return source.text
        return ""

    def units(self) -> tuple[int, int]:
        """Return how many units each arm has had, (control, treatment), added up over all
        blocks.
        """
        drawn = [arm for block in self.blocks.values() if block["phase"] != SATURATION
                 for arm in block.get("units", {}).values()]  # fmt: skip
        if drawn:
            return drawn.count(ARMS[0]), drawn.count(ARMS[1])
        ends = [window[-1].arms for window in self.windows.values() if window[-1].arms]
        control, treatment = (
            sum(int(arms.get(arm, {}).get("units", 0)) for arms in ends) for arm in ARMS
        )
        return control, treatment


def _chooses(key: str) -> bool:
    """Return whether a key of an arm's settings is the choice of a policy, as POINT/policy."""
    return key.count("/") == 1 and key.endswith("/policy")


def parse(lines: Iterable[str], name: str) -> Recording:
    """Return the recording in the lines of a file. The last line may be incomplete, as of a run
    that was killed; any other invalid line is an error. name: of the file, for errors.
    """
    recording: Recording | None = None
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            if recording is None:
                recording = Recording(_checked(record))
            else:
                recording.add(record)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as err:
            if recording is not None and not line.endswith("\n"):
                break
            text = f"{name}, line {number}, is not a valid record: {err}"
            raise Error(text, Exit.USAGE, HINT) from err
    if recording is None:
        raise Error(f"the file {name} is empty", Exit.USAGE, HINT)
    return recording


def _checked(header: dict[str, Any]) -> dict[str, Any]:
    if header["kind"] != "header" or header["version"] not in VERSIONS:
        raise ValueError(
            f"the first line is not a header of version {VERSIONS[0]} to {VERSIONS[-1]}"
        )
    check(header, "header")
    if header["version"] > 1:
        check(header, "identity")
    for arm in ARMS:
        given, settings = (header[arm].get(name) for name in ("given", "settings"))
        if not isinstance(given, str) or not isinstance(settings, dict):
            raise ValueError(f"the header has no valid settings of arm '{arm}'")
    texts = [*header["metrics"], *header["guards"]]
    if not header["metrics"] or not all(isinstance(text, str) for text in texts):
        raise ValueError("the header has no valid metrics")
    sound = header["block_s"] > header["washout_s"] >= 0 and header["seed"] >= 0
    sound = sound and 0 <= (header.get("margin") or 0) < PERCENT
    sound = sound and header["block_s"] <= MOST_SAMPLES * header["interval_s"]
    if header["design"] not in ("split", "switchback") or not sound:
        raise ValueError("the header has no valid design, block length, seed or margin")
    return header


def load(path: Path) -> Recording:
    """Read a samples file; raise an error if it cannot be read or is not valid."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return parse(file, str(path))
    except OSError as err:
        raise Error(
            f"cannot read {path}: {err.strerror}",
            Exit.FAILED,
            "give the path of a file that mmpolicy ab run has written",
        ) from err
