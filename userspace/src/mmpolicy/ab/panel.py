# SPDX-License-Identifier: GPL-2.0
"""Turn the values of units in the blocks of a split design into one pair of values per block.

Units differ far more from each other than any policy changes them. So each unit is compared with
itself: its mean over all blocks is subtracted. This mean does not depend on the random assignment,
and within a block both arms could have been swapped. So the test is as exact for these pairs as for
pairs of other designs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import exp, log
from typing import NamedTuple, Optional

from mmpolicy.ab.sources import ARMS

Values = Mapping[str, float]  # by unit
Both = Optional[tuple[float, float]]  # values of control and treatment; None if an arm has no unit


class Cell(NamedTuple):
    """The arm and the value of a unit in a block."""

    arm: str
    value: float


Cells = Mapping[str, Cell]  # the units of a block by name


def logarithms(blocks: Sequence[Cells]) -> tuple[bool, list[Values]]:
    """Return True and the logarithms of all values; if any value is 0 or below, return False and
    the values unchanged.
    """
    ratio = all(cell.value > 0 for block in blocks for cell in block.values())
    return ratio, [
        {unit: log(cell.value) if ratio else cell.value for unit, cell in block.items()}
        for block in blocks
    ]


def usual(blocks: Iterable[Values]) -> list[Values]:
    """Return for each block the mean value of every unit over the blocks before it. The list has
    one more entry at its end: the means over all blocks.
    """
    sums, counts, found = dict[str, float](), Counter[str](), list[Values]()
    for block in [*blocks, {}]:
        found.append({unit: sums[unit] / counts[unit] for unit in counts})
        for unit, value in block.items():
            sums[unit] = sums.get(unit, 0.0) + value
            counts[unit] += 1
    return found


def centred(blocks: Sequence[Values], ratio: bool, past: bool) -> list[Values]:
    """Return each value relative to the mean of its unit: the difference from the mean if the
    values are logarithms (ratio is True), else the share by which it differs from the mean.

    past: use the mean over earlier blocks only. A unit without a known mean is left out.
    """
    known = usual(blocks)
    return [
        {
            unit: value - mean[unit] if ratio else value / mean[unit] - 1
            for unit, value in block.items()
            if (unit in mean if ratio else mean.get(unit))
        }
        for block, mean in zip(blocks, known if past else known[-1:] * len(blocks))
    ]


def sides(values: Values, arms: Mapping[str, str]) -> Both:
    """Return the mean value over the units of each arm as (control, treatment); None if an arm has
    no unit.
    """
    control, treatment = ([values[unit] for unit in values if arms[unit] == arm] for arm in ARMS)
    if not (control and treatment):
        return None
    return sum(control) / len(control), sum(treatment) / len(treatment)


def pairs_of(blocks: Sequence[Cells], past: bool = False) -> list[Both]:
    """Return for each block (control, treatment): the mean values of the units in each arm,
    corrected for the differences between the units. None for a block in which an arm has no unit.

    past: subtract from each unit only its mean over earlier blocks, as a result that is valid at
    any look must not use later blocks. If past is False, the mean of each unit contains a part of
    the effect, and the result is corrected for that.
    """
    ratio, values = logarithms(blocks)
    arms = [{unit: cell.arm for unit, cell in block.items()} for block in blocks]
    level = usual(values)[-1]
    typical, shown = sum(level.values()) / max(len(level), 1), 1.0 if past else _shown(arms)
    found: list[Both] = []
    for rest, of in zip(centred(values, ratio, past), arms):
        both = sides(rest, of) if shown > 0 else None
        if both and ratio:
            both = exp(typical + both[0] / shown), exp(typical + both[1] / shown)
        elif both:
            control, treatment = (max(typical * (1 + each / shown), 0.0) for each in both)
            both = control, treatment
        found.append(both)
    return found


def _shown(arms: Sequence[Mapping[str, str]]) -> float:
    """Return which share (0 to 1) of an effect remains after the mean of each unit is subtracted.
    The mean includes blocks in which the unit is treated, so a part of the effect is lost.
    """
    treated = [{unit: float(arm == ARMS[1]) for unit, arm in of.items()} for of in arms]
    both = [sides(rest, of) for rest, of in zip(centred(treated, True, False), arms)]
    found = [treatment - control for control, treatment in filter(None, both)]
    return sum(found) / len(found) if found else 0.0


def neighbours(low: Cells, high: Cells) -> Both:
    """Return for two blocks, one with few and one with many treated units, the mean value of the
    units that are untreated in both; None if there are none.
    """
    units = [unit for unit in low if unit in high
             if low[unit].arm == high[unit].arm == ARMS[0]]  # fmt: skip
    if not units:
        return None
    ratio, values = logarithms([{unit: block[unit] for unit in units} for block in (low, high)])
    before, after = (sum(each.values()) / len(units) for each in values)
    return (exp(before), exp(after)) if ratio else (before, after)
