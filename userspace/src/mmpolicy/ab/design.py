# SPDX-License-Identifier: GPL-2.0
"""The design of an experiment: arms, order of blocks, and length.

All of it is fixed before the first block with the treatment, so that no intermediate result can
decide when to stop.
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
DIRTY = 0.01  # p-value, corrected for all metrics, below which the A/A phase counts as unequal
MOST_LOST = 0.05  # share of blocks, each in a different pair
OUTWEIGH = 1.5  # pairs to add for a lost pair that may contradict the others, in sqrt(pairs)
STRETCH = 4  # a run with lost pairs has at most this many times its planned pairs
MAX_SEED = 2**63
SATURATION = "saturation"  # phase of blocks with few and many units treated: effects on the rest

Pairs = list[tuple[float, float]]  # (control, treatment)


class Block(NamedTuple):
    """A stretch of time with one setting."""

    number: int
    phase: str  # aa: both arms are the control; ab; saturation
    pair: int  # number within the phase
    arm: str  # switchback: its arm; split: "", as both run at once; saturation: few or many treated
    seed: int  # seed of the assignment, for split


@dataclass(frozen=True)
class Design:
    """The layout of blocks."""

    kind: str  # split or switchback
    block_s: float
    washout_s: float
    interval_s: float
    seed: int

    @property
    def blocks_of_pair(self) -> int:
        """Return how many blocks yield one control value and one treatment value."""
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

        In switchback, a coin per pair decides which arm goes first. In split, each block assigns
        all units anew; arms with equal shares could be swapped, which is the coin. In saturation,
        the coin decides whether few or many units are treated first.
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
    """Return the fewest pairs that can show anything at all.

    The randomisation test of n pairs has 2**n outcomes; the most extreme, two-sided, has p = 2 /
    2**n, which the correction for the number of metrics multiplies.
    """
    return ceil(1 - log2(level / metrics))


def few_lost(lost: int, pairs: int) -> bool:
    """Tell if the share of lost pairs is small enough to draw conclusions from the others."""
    return lost <= max(1.0, 2 * MOST_LOST * pairs)


def pairs_for_lost(pairs: int, lost: int, against: int, most: int) -> int:
    """Return the number of pairs needed if some of the planned `pairs` are lost.

    Each lost pair is replaced, pairs that contradict the others are outweighed by extra ones, and
    pairs are added until the lost share is small. If that exceeds `most`, return `pairs`: more of
    them would not help.
    """
    need = pairs + lost + against * ceil(OUTWEIGH * sqrt(pairs))
    while not few_lost(lost, need):
        need += 1
    return need if need <= most else pairs


def with_lost(d: Sequence[float], against: int, sign: float = 0.0) -> list[float]:
    """Return d with `against` lost pairs, as large as the largest |d| and of the opposite sign.

    sign: the sign of the lost pairs, if not opposite to sum(d).
    """
    worst = (sign or (-1 if sum(d) > 0 else 1)) * max(map(abs, d), default=0.0)
    return [worst] * against + list(d)


def planned_so_far(end: Mapping[str, Any], planned: int, known: Iterable[int]) -> int:
    """Return the number of pairs that a run should have by now; known: the numbers of its pairs."""
    return planned if end.get("status") == "done" else max(known, default=-1) + 1


def unseen(pairs: int) -> float:
    """Return the upper 95 % bound, in percent, of bad blocks when none of `pairs` was bad.

    This is the rule of three: with a larger share, 95 % of runs would see one.
    """
    return 100 * float(1 - ALPHA ** (1 / pairs))


def pairs_to_see(percent: float) -> int:
    """Return how many pairs show a bad block with 95 % probability, at this percentage of them."""
    return ceil(log(ALPHA) / log1p(-percent / 100))


def differences(pairs: Sequence[tuple[float, float]]) -> tuple[str, list[float]]:
    """Return the scale and treatment - control of each pair.

    ratio: differences of logarithms, if all values are above 0. totals: shares of the mean of all
    values, regardless of the arm, if some are 0. difference: plain differences, if any is below 0.
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
    """Return the largest permitted ratio of treatment to control, for a margin in percent."""
    return 1 + (margin if lower else -margin) / 100


def excess(pairs: Pairs, lower: bool, margin: float) -> list[float]:
    """Return for each pair by how much the treatment exceeds a margin in percent."""
    sign, allowed = 1 if lower else -1, at_margin(lower, margin)
    scale, d = differences(pairs)
    if scale == "ratio":
        return [sign * (each - log(allowed)) for each in d]
    return [sign * (treatment - control * allowed) for control, treatment in pairs]


def pairs_by_size(d: Sequence[float], percent: float, metrics: int = 1) -> int:
    """Return how many pairs find a change by percent with 80 % probability, from |d| alone.

    The test redraws the signs of d and keeps the sizes, so a stopping rule that uses sizes alone
    leaves the test exact. d: relative differences of the pairs so far.
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
    """Return the number of pairs that finds a change by percent with 80 % probability.

    noise: differences of logarithms between equal arms. Because few of them may underestimate the
    spread, its upper 80 % limit is used (Browne 1995). z**2 / 2 corrects the normal approximation
    for the t test (Guenther 1981). risk: of an error to one side.
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
