# SPDX-License-Identifier: GPL-2.0
"""The design of an experiment: arms, order of blocks, and length.

Both are fixed before the first block with the treatment, so no intermediate result can decide when
to stop; a run with --stop anytime uses tests that allow it.
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
# The A/A phase compares equal arms. A p-value below this, corrected for the number of metrics,
# shows that the arms differ although nothing distinguishes them.
DIRTY = 0.01
# Up to this share of blocks may be lost; each lost block counts as if it had spoilt its own pair.
MOST_LOST = 0.05
OUTWEIGH = 1.5  # pairs to add per lost pair that may contradict the others, in units of sqrt(pairs)
STRETCH = 4  # a run with lost pairs may grow to this multiple of the planned pairs
MAX_SEED = 2**63
# Name of the phase that compares blocks with few treated units and blocks with many, to find
# effects on untreated units.
SATURATION = "saturation"

Pairs = list[tuple[float, float]]  # values of (control, treatment)


class Block(NamedTuple):
    """A stretch of time in which the assignment of arms does not change."""

    number: int
    phase: str  # "aa" (both arms have the control's settings), "ab" or "saturation"
    pair: int  # number of the pair within its phase
    # switchback: the arm of the block. split: "", as both arms run at once. saturation: "control"
    # for few and "treatment" for many treated units.
    arm: str
    seed: int  # seed of the assignment of units to arms, for split


@dataclass(frozen=True)
class Design:
    """The kind and the timing of the blocks, in seconds."""

    kind: str  # "split" or "switchback"
    block_s: float
    washout_s: float
    interval_s: float
    seed: int

    @property
    def blocks_of_pair(self) -> int:
        """Return how many blocks make a pair, which has one value of each arm."""
        return 1 if self.kind == "split" else 2

    def seconds(self, pairs: int) -> float:
        """Return how many seconds this many pairs take."""
        return pairs * self.blocks_of_pair * self.block_s

    def moments(self) -> list[float]:
        """Return the moments of the samples, in seconds since the begin of a block; none is in the
        wash-out.
        """
        measured = self.block_s - self.washout_s
        steps = max(1, round(measured / self.interval_s))
        return [self.washout_s + measured * step / steps for step in range(steps + 1)]

    def blocks(self, phase: str, pairs: int, first: int = 0) -> Iterator[Block]:
        """Yield the blocks of a phase in random order; first: number of the first block.

        In switchback, a coin toss for each pair decides which arm goes first. In split, each block
        assigns all units anew by its seed; with equal shares, the arms could as well be swapped,
        which is the coin toss. In saturation, the coin toss decides whether few or many units are
        treated first.
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
    """Return the fewest pairs with which any effect can be significant.

    The randomisation test of n pairs has 2**n outcomes. The most extreme one has a two-sided p of
    2 / 2**n; the correction multiplies it by the number of metrics, and level is the limit.
    """
    return ceil(1 - log2(level / metrics))


def few_lost(lost: int, pairs: int) -> bool:
    """Return whether so few of `pairs` pairs are lost that the others allow conclusions."""
    return lost <= max(1.0, 2 * MOST_LOST * pairs)


def pairs_for_lost(pairs: int, lost: int, against: int, most: int) -> int:
    """Return how many pairs to run if `lost` of the planned `pairs` are lost.

    Each lost pair is replaced. `against` of them may contradict the others, and further pairs
    outweigh each of these. Then pairs are added until the lost share is small. If all this takes
    more than `most`, return `pairs`, as more pairs would not help.
    """
    need = pairs + lost + against * ceil(OUTWEIGH * sqrt(pairs))
    while not few_lost(lost, need):
        need += 1
    return need if need <= most else pairs


def with_lost(d: Sequence[float], against: int, sign: float = 0.0) -> list[float]:
    """Return d preceded by `against` lost pairs, each as large as the largest |d| and of the
    opposite sign of sum(d).

    sign: the sign of the lost pairs, if not 0.
    """
    worst = (sign or (-1 if sum(d) > 0 else 1)) * max(map(abs, d), default=0.0)
    return [worst] * against + list(d)


def planned_so_far(end: Mapping[str, Any], planned: int, known: Iterable[int]) -> int:
    """Return the number of pairs that a run should have by now: all planned ones if the run is
    done, else those up to the last that began.

    known: numbers of the pairs that have begun.
    """
    return planned if end.get("status") == "done" else max(known, default=-1) + 1


def unseen(pairs: int) -> float:
    """Return how large a percentage of blocks may be bad although none of `pairs` blocks was.

    This is the rule of three: with a larger percentage, 95 % of runs would have seen a bad block.
    """
    return 100 * float(1 - ALPHA ** (1 / pairs))


def pairs_to_see(percent: float) -> int:
    """Return how many pairs a run needs to contain a bad block with 95 % probability, if this
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
    """Return log(total of the treatment / total of the control); both totals must be above 0."""
    control, treatment = map(sum, zip(*pairs))
    return log(treatment) - log(control)


def at_margin(lower: bool, margin: float) -> float:
    """Return the largest ratio of treatment to control that a margin in percent permits, or if
    higher values are better (lower is False), the smallest.
    """
    return 1 + (margin if lower else -margin) / 100


def excess(pairs: Pairs, lower: bool, margin: float) -> list[float]:
    """Return for each pair by how much the treatment is worse than the margin allows; negative if
    it is within. margin: percent. lower: whether lower values are better.
    """
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
    """Return the change in percent for a difference of logarithms."""
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
    """Return by which factor a standard deviation that was estimated with `freedom` degrees of
    freedom may be too small: its one-sided 80 % confidence limit (Wilson and Hilferty 1931).
    """
    part = 2 / (9 * freedom)
    low = freedom * (1 - part + NormalDist().inv_cdf(1 - POWER) * sqrt(part)) ** 3
    return sqrt(freedom / low)
