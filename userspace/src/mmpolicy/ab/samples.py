# SPDX-License-Identifier: GPL-2.0
"""The file of samples: JSON lines, from which a report can be made again and again.

The first line is the header. Then come `sample` with raw readings, `block` at the end of
one, `plan` when the number of pairs was settled, and `end`.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmpolicy.ab.metrics import ARMS, Metric, Sample, from_json
from mmpolicy.errors import Error, Exit

VERSION = 1

Pairs = list[tuple[float, float]]  # (control, treatment)


@dataclass
class Recording:
    """What a run has written, as far as it got."""

    header: dict[str, Any]
    blocks: dict[int, dict[str, Any]] = field(default_factory=dict)  # complete ones
    windows: dict[int, list[Sample]] = field(default_factory=dict)  # block -> samples
    plan: dict[str, Any] = field(default_factory=dict)
    end: dict[str, Any] = field(default_factory=dict)

    def add(self, record: dict[str, Any]) -> None:
        """Take one line."""
        kind = record["kind"]
        if kind == "block":
            self.blocks[record["number"]] = record
        elif kind == "sample":
            self.windows.setdefault(record["block"], []).append(from_json(record))
        elif kind in ("plan", "end"):
            setattr(self, kind, record)

    def metrics(self) -> list[Metric]:
        """Return what was to be compared."""
        return [Metric.parse(text) for text in self.header["metrics"]]

    def values(self, metric: Metric, phase: str) -> Iterator[tuple[int, str, float | None]]:
        """Yield pair, arm and value of each block of a phase."""
        for number, block in self.blocks.items():
            if block["phase"] == phase:
                for arm in [block["arm"]] if block["arm"] else ARMS:
                    yield block["pair"], arm, metric.over(self.windows.get(number, []), arm)

    def pairs(self, metric: Metric, phase: str) -> Pairs:
        """Return the values of all pairs of which both are there."""
        found: dict[int, dict[str, float]] = {}
        for pair, arm, value in self.values(metric, phase):
            if value is not None:
                found.setdefault(pair, {})[arm] = value
        return [(pair[ARMS[0]], pair[ARMS[1]]) for pair in found.values() if len(pair) == len(ARMS)]

    def units(self) -> tuple[int, int]:
        """Return how many units each arm has seen, over all blocks."""
        ends = [window[-1].arms for window in self.windows.values() if window[-1].arms]
        control, treatment = (sum(int(arms[arm]["units"]) for arms in ends) for arm in ARMS)
        return control, treatment


def parse(lines: Iterable[str], name: str) -> Recording:
    """Return the recording that the lines make; the last line may be cut off."""
    recording: Recording | None = None
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            if recording is None:
                recording = Recording(_checked(record))
            else:
                recording.add(record)
        except (ValueError, KeyError, TypeError) as err:
            if recording is not None and not line.endswith("\n"):
                break
            hint = "give a file that mmpolicy ab run has written"
            raise Error(f"{name}, line {number}, is no sample: {err}", Exit.USAGE, hint) from err
    if recording is None:
        raise Error(f"{name} is empty", Exit.USAGE, "give a file that mmpolicy ab run has written")
    return recording


def _checked(header: dict[str, Any]) -> dict[str, Any]:
    if header["kind"] != "header" or header["version"] != VERSION:
        raise ValueError(f"no header of version {VERSION}")
    return header


def load(path: Path) -> Recording:
    """Read a file of samples."""
    try:
        with path.open(encoding="utf-8") as file:
            return parse(file, str(path))
    except OSError as err:
        raise Error(f"cannot read {path}: {err.strerror}", Exit.FAILED, "give its path") from err
