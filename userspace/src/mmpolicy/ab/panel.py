# SPDX-License-Identifier: GPL-2.0
"""A value for each unit and block of split, as one pair for each block.

Units differ far more than any policy does, so each is compared with itself: what is usual for
it, over all blocks, is taken out. That knows nothing of the coins. Within a block, both arms
could have changed places, so the test of pairs is as exact as for any others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import exp, log
from typing import NamedTuple, Optional

from mmpolicy.ab.sources import ARMS

Values = Mapping[str, float]  # by unit
Both = Optional[tuple[float, float]]  # control and treatment; None if an arm has no unit


class Cell(NamedTuple):
    """A unit in a block."""

    arm: str
    value: float


Cells = Mapping[str, Cell]  # of a block, by unit


def logarithms(blocks: Sequence[Cells]) -> tuple[bool, list[Values]]:
    """Return the logarithms of all values; where one is 0 or below, the values as they are."""
    ratio = all(cell.value > 0 for block in blocks for cell in block.values())
    return ratio, [
        {unit: log(cell.value) if ratio else cell.value for unit, cell in block.items()}
        for block in blocks
    ]


def usual(blocks: Iterable[Values]) -> list[Values]:
    """Return what is usual for each unit before each block, and at last after all of them."""
    sums, counts, found = dict[str, float](), Counter[str](), list[Values]()
    for block in [*blocks, {}]:
        found.append({unit: sums[unit] / counts[unit] for unit in counts})
        for unit, value in block.items():
            sums[unit] = sums.get(unit, 0.0) + value
            counts[unit] += 1
    return found


def centred(blocks: Sequence[Values], ratio: bool, past: bool) -> list[Values]:
    """Return the values less what is usual for each unit; no logarithms, as shares of that.

    past: what was usual until then. A unit of which nothing is known is left out.
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
    """Return the mean of each arm."""
    control, treatment = ([values[unit] for unit in values if arms[unit] == arm] for arm in ARMS)
    if not (control and treatment):
        return None
    return sum(control) / len(control), sum(treatment) / len(treatment)


def pairs_of(blocks: Sequence[Cells], past: bool = False) -> list[Both]:
    """Return control and treatment of each block, about what is usual for all units.

    past: with what was usual until then, as what is to hold at any look cannot know what comes.
    Else, what is usual for a unit has its share of the effect, which is put right.
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
    """Return how much of an effect there is in the pairs, of which all means are taken out."""
    treated = [{unit: float(arm == ARMS[1]) for unit, arm in of.items()} for of in arms]
    both = [sides(rest, of) for rest, of in zip(centred(treated, True, False), arms)]
    found = [treatment - control for control, treatment in filter(None, both)]
    return sum(found) / len(found) if found else 0.0


def neighbours(low: Cells, high: Cells) -> Both:
    """Return the mean of the units that are in the control of both blocks, in each of them."""
    units = [unit for unit in low if unit in high
             if low[unit].arm == high[unit].arm == ARMS[0]]  # fmt: skip
    if not units:
        return None
    ratio, values = logarithms([{unit: block[unit] for unit in units} for block in (low, high)])
    before, after = (sum(each.values()) / len(units) for each in values)
    return (exp(before), exp(after)) if ratio else (before, after)
