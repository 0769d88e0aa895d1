# SPDX-License-Identifier: GPL-2.0
"""The design of an experiment: arms, order of blocks, and length.

All of it is fixed before the first block with the treatment, so no intermediate result can decide
when to stop.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, expm1, log, log1p, log2, sqrt
from statistics import NormalDist, stdev
from typing import Any, NamedTuple

ALPHA = 0.05  # risk of a false finding, over all metrics
POWER = 0.8  # probability of finding an effect that exists
# p-value, corrected for the number of metrics, below which the arms differ too much in the A/A
# phase
DIRTY = 0.01
# largest share of blocks that may be lost, counted as if each were in a different pair
MOST_LOST = 0.05
OUTWEIGH = 1.5  # pairs to add for a lost pair that may contradict the other pairs, in sqrt(pairs)
STRETCH = 4  # most pairs of a run with lost pairs, as a multiple of the planned pairs
MAX_SEED = 2**63
# phase that compares blocks with few and with many treated units, to find effects on untreated
# units
SATURATION = "saturation"

Pairs = list[tuple[float, float]]  # (control, treatment)


class Block(NamedTuple):
    """A stretch of time in which the assignment of arms does not change."""

    number: int
    phase: str  # "aa" (both arms have the control's settings), "ab" or "saturation"
    pair: int  # number of the pair within its phase
    # in switchback, the arm of the block; in split "", as both arms run at once; in saturation,
    # "control" for few and "treatment" for many treated units
    arm: str
    seed: int  # seed of the assignment of units to arms, for split


@dataclass(frozen=True)
class Design:
    """The kind and the timing of the blocks."""

    kind: str  # "split" or "switchback"
    block_s: float
    washout_s: float
    interval_s: float
    seed: int

    @property
    def blocks_of_pair(self) -> int:
        """Return the number of blocks that together yield one control value and one treatment
        value.
        """
        return 1 if self.kind == "split" else 2

    def seconds(self, pairs: int) -> float:
        """Return the duration of this many pairs."""
        return pairs * self.blocks_of_pair * self.block_s

    def moments(self) -> list[float]:
        """Return the sampling times, in seconds since the block began."""
        measured = self.block_s - self.washout_s
        steps = max(1, round(measured / self.interval_s))
        return [self.washout_s + measured * step / steps for step in range(steps + 1)]

    def blocks(self, phase: str, pairs: int, first: int = 0) -> Iterator[Block]:
        """Yield the blocks of a phase in random order.

        In switchback, a coin toss for each pair decides which arm goes first. In split, each block
        assigns all units anew; with equal shares, the arms could as well be swapped, which is the
        coin toss. In saturation, the coin toss decides whether few or many units are treated
        first.
        """
        rng = random.Random(f"{self.seed} {phase}")
        turns = self.kind != "split" or phase == SATURATION
        for pair in range(pairs):
            arms = ["control", "treatment"] if turns else [""]
            rng.shuffle(arms)
            seed, *_ = [rng.randrange(MAX_SEED) for _ in arms]
            for place, arm in enumerate(arms):
                yield Block(first + pair * len(arms) + place, phase, pair, arm, seed)


def least_pairs(metrics: int, level: float = ALPHA) -> int:
    """Return the fewest pairs that can show any effect.

    The randomisation test of n pairs has 2**n outcomes. The most extreme outcome has a two-sided p
    of 2 / 2**n, which the correction multiplies by the number of metrics.
    """
    return ceil(1 - log2(level / metrics))


def few_lost(lost: int, pairs: int) -> bool:
    """Return whether few enough pairs are lost to draw conclusions from the others."""
    return lost <= max(1.0, 2 * MOST_LOST * pairs)


def pairs_for_lost(pairs: int, lost: int, against: int, most: int) -> int:
    """Return the number of pairs that are needed if some of the planned `pairs` are lost.

    Each lost pair is replaced. Lost pairs that may contradict the others (`against`) are
    outweighed by extra pairs. Then pairs are added until the lost share is small. If this takes
    more than `most`, return `pairs`, as more pairs would not help.
    """
    need = pairs + lost + against * ceil(OUTWEIGH * sqrt(pairs))
    while not few_lost(lost, need):
        need += 1
    return need if need <= most else pairs


def with_lost(d: Sequence[float], against: int, sign: float = 0.0) -> list[float]:
    """Return d with `against` lost pairs, each as large as the largest |d| and of the opposite
    sign.

    sign: the sign of the lost pairs, if it is not opposite to sum(d).
    """
    worst = (sign or (-1 if sum(d) > 0 else 1)) * max(map(abs, d), default=0.0)
    return [worst] * against + list(d)


def planned_so_far(end: Mapping[str, Any], planned: int, known: Iterable[int]) -> int:
    """Return the number of pairs that a run should have by now.

    known: numbers of the pairs that it has.
    """
    return planned if end.get("status") == "done" else max(known, default=-1) + 1


def unseen(pairs: int) -> float:
    """Return the largest percentage of bad blocks that is likely if none of `pairs` blocks was
    bad.

    This is the rule of three: with a larger percentage, 95 % of runs would see a bad block.
    """
    return 100 * float(1 - ALPHA ** (1 / pairs))


def pairs_to_see(percent: float) -> int:
    """Return the number of pairs that contain a bad block with 95 % probability, if this
    percentage of blocks is bad.
    """
    return ceil(log(ALPHA) / log1p(-percent / 100))


def differences(pairs: Sequence[tuple[float, float]]) -> tuple[str, list[float]]:
    """Return the scale and the difference treatment - control of each pair.

    "ratio": differences of logarithms, if all values are above 0. "totals": differences as shares
    of the mean over both arms, if some values are 0. "difference": plain differences, if a value
    is below 0.
    """
    sides = list(zip(*pairs))
    if all(value > 0 for side in sides for value in side):
        return "ratio", [log(treatment) - log(control) for control, treatment in pairs]
    found = [treatment - control for control, treatment in pairs]
    if any(value < 0 for side in sides for value in side) or not all(map(sum, sides)):
        return "difference", found
    mean = sum(map(sum, sides)) / len(pairs) / 2
    return "totals", [each / mean for each in found]


def log_of_ratio(pairs: Pairs) -> float:
    """Return the logarithm of the ratio of the arms' totals."""
    control, treatment = map(sum, zip(*pairs))
    return log(treatment) - log(control)


def at_margin(lower: bool, margin: float) -> float:
    """Return the largest ratio of treatment to control that a margin in percent permits."""
    return 1 + (margin if lower else -margin) / 100


def excess(pairs: Pairs, lower: bool, margin: float) -> list[float]:
    """Return for each pair by how much the treatment exceeds a margin, which is in percent."""
    sign, allowed = 1 if lower else -1, at_margin(lower, margin)
    scale, d = differences(pairs)
    if scale == "ratio":
        return [sign * (each - log(allowed)) for each in d]
    return [sign * (treatment - control * allowed) for control, treatment in pairs]


def pairs_by_size(d: Sequence[float], percent: float, metrics: int = 1) -> int:
    """Return the number of pairs that finds a change by `percent` with 80 % probability, from the
    sizes |d| alone.

    The test redraws the signs of d and keeps the sizes. So a rule for stopping that uses only
    sizes leaves the test exact. d: relative differences of the pairs so far.
    """
    z, effect = NormalDist().inv_cdf(1 - ALPHA / 2 / metrics), log1p(percent / 100)
    size = sqrt(sum(each * each for each in d) / len(d))
    ratio = size * (z + NormalDist().inv_cdf(POWER)) / effect
    return max(ceil(ratio**2 + z**2 / 2), least_pairs(metrics) + 2)


def in_percent(effect: float) -> float:
    """Return a difference of logarithms as a change in percent."""
    return 100 * expm1(effect) if effect < 700 else float("inf")


def suggest_pairs(
    noise: Sequence[float], percent: float, metrics: int = 1, risk: float = ALPHA / 2
) -> int:
    """Return the number of pairs that finds a change by `percent` with 80 % probability.

    noise: differences of logarithms between equal arms. As few differences may underestimate their
    spread, its upper 80 % limit is used (Browne 1995). z**2 / 2 corrects the normal approximation
    for the t test (Guenther 1981). risk: probability of an error to one side.
    """
    z, effect = NormalDist().inv_cdf(1 - risk / metrics), log1p(abs(percent) / 100)
    ratio = stdev(noise) * _caution(len(noise) - 1) * (z + NormalDist().inv_cdf(POWER)) / effect
    return max(ceil(ratio**2 + z**2 / 2), least_pairs(metrics, 2 * risk))


def _caution(freedom: int) -> float:
    """Return the one-sided 80 % confidence limit of a standard deviation, as a multiple of its
    estimate (Wilson and Hilferty 1931).
    """
    part = 2 / (9 * freedom)
    low = freedom * (1 - part + NormalDist().inv_cdf(1 - POWER) * sqrt(part)) ** 3
    return sqrt(freedom / low)
