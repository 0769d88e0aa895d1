# SPDX-License-Identifier: GPL-2.0
"""Check whether both arms were treated alike: by their numbers of units in split, and by the
seconds measured per block in switchback.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from mmpolicy.ab.design import Design
from mmpolicy.ab.report.stats import imbalance, p_value
from mmpolicy.ab.samples import Recording
from mmpolicy.ab.sources import ARMS

SUSPICIOUS = 0.001  # p-value below which an imbalance is not attributed to chance
MATTERS = 0.01  # an imbalance below this share of the planned seconds is ignored
# if blocks exceed their planned length by this share, the report says that they take too long
LATE = 0.1


@dataclass(frozen=True)
class Balance:
    """A check that the two arms are of equal size: one figure for each arm, and the p-value of so
    large a difference between the figures.

    In split, the figures are numbers of units, and a small p is a sample-ratio mismatch. In
    switchback, they are mean seconds measured per block: an arm that is measured for longer counts
    more.
    """

    of: str  # "units" or "seconds"
    control: float
    treatment: float
    p: float
    planned: float = 0.0  # seconds measured per block by plan; 0 in split
    late: float = 0.0  # seconds by which the sample with the largest delay came too late

    def text(self) -> str:
        """Return the figures of both arms as text."""
        if self.of == "units":
            text = (
                f"{self.control} units (processes or cgroups) in control, {self.treatment} "
                "in treatment"
            )
            return f"{text} (p = {self.p:.2g})"
        return (
            f"in a block, {self.control:.2f} s were measured in control and "
            f"{self.treatment:.2f} s in treatment, of {self.planned:.2f} s planned; "
            f"the latest sample came {self.late:.2f} s late"
        )

    @property
    def broken(self) -> bool:
        """Return whether the difference between the arms is too large for chance (p below
        SUSPICIOUS), and large enough to matter.
        """
        apart = abs(self.control - self.treatment)
        return self.p < SUSPICIOUS and apart > MATTERS * self.planned

    @property
    def strained(self) -> bool:
        """Return whether blocks took longer than planned, in one arm or both."""
        longest = max(self.control, self.treatment)
        return self.of == "seconds" and longest > self.planned * (1 + LATE)


def balance_of(recording: Recording) -> Balance:
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
    """Yield for each sample how many seconds it came after its planned moment."""
    for number, block in recording.blocks.items():
        for sample, moment in zip(recording.windows.get(number, []), moments):
            yield sample.t - block["began"] - moment
