# SPDX-License-Identifier: GPL-2.0
"""Were both arms treated alike? In number of units, or in time and readings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from mmpolicy.ab.design import Design
from mmpolicy.ab.samples import Recording
from mmpolicy.ab.sources import ARMS
from mmpolicy.ab.stats import imbalance, p_value

SUSPICIOUS = 0.001  # p below which something is wrong
MATTERS = 0.01  # of the planned length; a difference below it is of no importance
LATE = 0.1  # of the planned length, too


@dataclass(frozen=True)
class Balance:
    """What was counted in each arm, and the p of numbers so uneven.

    Of split, units: a sample-ratio mismatch. Of switchback, the mean seconds that a block was
    measured for, against those planned: an arm that is measured for longer counts more.
    """

    of: str  # units or seconds
    control: float
    treatment: float
    p: float
    planned: float = 0.0  # seconds
    late: float = 0.0  # seconds by which the latest sample was

    def text(self) -> str:
        """Return it in words."""
        if self.of == "units":
            text = f"{self.control} units in control, {self.treatment} in treatment"
            return f"{text} (p = {self.p:.2g})"
        return (
            f"{self.control:.2f} s of a block measured in control, {self.treatment:.2f} s in "
            f"treatment, {self.planned:.2f} s planned; samples late by {self.late:.2f} s at most"
        )

    @property
    def broken(self) -> bool:
        """Tell if chance does not explain it."""
        apart = abs(self.control - self.treatment)
        return self.p < SUSPICIOUS and apart > MATTERS * self.planned

    @property
    def strained(self) -> bool:
        """Tell if the plan was not kept, in both arms alike or not."""
        longest = max(self.control, self.treatment)
        return self.of == "seconds" and longest > self.planned * (1 + LATE)


def balance_of(recording: Recording) -> Balance:
    """Return the balance of a run."""
    if recording.header["design"] == "split" and any(recording.units()):
        return Balance("units", *recording.units(), imbalance(*recording.units()))
    return _of_time(recording, recording.header)


def _of_time(recording: Recording, header: dict[str, Any]) -> Balance:
    names = ("block_s", "washout_s", "interval_s", "seed")
    moments = Design(header["design"], *(header[name] for name in names)).moments()
    measured: dict[int, dict[str, float]] = {}
    for number, pair, arm in recording.of_phase("ab"):
        window = recording.windows.get(number)
        if window:
            measured.setdefault(pair, {})[arm] = window[-1].t - window[0].t
    pairs = [[each[arm] for arm in ARMS] for each in measured.values() if len(each) == len(ARMS)]
    control, treatment = (fmean(pair[side] for pair in pairs or [[0.0, 0.0]]) for side in (0, 1))
    p = p_value(np.asarray([b - a for a, b in pairs]), header["seed"]) if pairs else 1.0
    late = max(_lateness(recording, moments), default=0.0)
    return Balance("seconds", control, treatment, p, moments[-1] - moments[0], late)


def _lateness(recording: Recording, moments: list[float]) -> Iterator[float]:
    """Yield by how many seconds each sample came after its moment."""
    for number, block in recording.blocks.items():
        for sample, moment in zip(recording.windows.get(number, []), moments):
            yield sample.t - block["began"] - moment
