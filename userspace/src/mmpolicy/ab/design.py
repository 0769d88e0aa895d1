# SPDX-License-Identifier: GPL-2.0
"""The design of an experiment: which arm each block has, the order of the blocks, and their number.

The order and the number are fixed before the first block with the treatment, so no intermediate
result can decide when to stop. Runs with --stop anytime are an exception: their tests allow it.
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
# The A/A phase gives both arms the same settings. A p-value below this, corrected for the number of
# metrics, shows that the arms differ although their settings do not: the result is in doubt.
DIRTY = 0.01
# If more than this share of blocks is lost (has no value), the result is in doubt. Each lost block
# counts as if it had spoilt a pair of its own.
MOST_LOST = 0.05
# A lost pair may contradict the other pairs. For each such pair the run gets this many further
# pairs, in units of sqrt(pairs).
OUTWEIGH = 1.5
STRETCH = 4  # a run with lost pairs may grow to this multiple of the planned pairs
MAX_SEED = 2**63
# Name of the phase that compares blocks in which few units (processes or cgroups) are treated with
# blocks in which many are, to find effects of the treatment on untreated units.
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
    """The design of an experiment: the kind of its blocks, and their times in seconds."""

    kind: str  # "split" or "switchback"
    block_s: float
    washout_s: float
    interval_s: float
    seed: int

    @property
    def blocks_of_pair(self) -> int:
        """Return how many blocks give one value of each arm: 1 for split, which runs both arms in
        one block; 2 for switchback, which runs one arm per block.
        """
        return 1 if self.kind == "split" else 2

    def seconds(self, pairs: int) -> float:
        """Return how many seconds this many pairs take."""
        return pairs * self.blocks_of_pair * self.block_s

    def moments(self) -> list[float]:
        """Return when to take the samples of a block, in seconds since its beginning. No sample is
        in the wash-out, the first seconds of a block, which are not measured.
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
    """Return the fewest pairs of a run with which any effect can be significant.

    The randomisation test of n pairs has 2**n outcomes. The most extreme one has a two-sided p of 2
    / 2**n; the correction multiplies it by the number of metrics, and the product must be below
    level.
    """
    return ceil(1 - log2(level / metrics))


def few_lost(lost: int, pairs: int) -> bool:
    """Return whether so few of a run's pairs are lost (lack a value) that the rest allow
    conclusions. lost: number of lost pairs. pairs: number of planned pairs.
    """
    return lost <= max(1.0, 2 * MOST_LOST * pairs)


def pairs_for_lost(pairs: int, lost: int, against: int, most: int) -> int:
    """Return how many pairs to run if `lost` of the planned `pairs` are lost, which means that they
    lack a value.

    Each lost pair is replaced. `against` of the lost pairs may contradict the result, so further
    pairs are added to outweigh each of these. Then pairs are added until the lost share is small.
    If all this takes more than `most` pairs, return `pairs`, as more pairs would not help.
    """
    need = pairs + lost + against * ceil(OUTWEIGH * sqrt(pairs))
    while not few_lost(lost, need):
        need += 1
    return need if need <= most else pairs


def with_lost(d: Sequence[float], against: int, sign: float = 0.0) -> list[float]:
    """Return the differences d, preceded by `against` lost pairs that count as results against the
    effect: each is as large as the largest |d|, and its sign is opposite to that of sum(d).

    sign: the sign of the lost pairs, if not 0.
    """
    worst = (sign or (-1 if sum(d) > 0 else 1)) * max(map(abs, d), default=0.0)
    return [worst] * against + list(d)


def planned_so_far(end: Mapping[str, Any], planned: int, known: Iterable[int]) -> int:
    """Return how many pairs a run should have by now: all planned ones if the run is done, else
    those up to the last one that has begun.

    known: numbers of the pairs that have begun.
    """
    return planned if end.get("status") == "done" else max(known, default=-1) + 1


def unseen(pairs: int) -> float:
    """Return which percentage of blocks may have a rare bad event although none of `pairs` blocks
    had one.

    This is the rule of three: with a larger percentage, 95 % of such runs would have seen a bad
    block.
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
    """Return the ratio of treatment to control at which the treatment is worse by exactly the
    margin (percent): above 1 if lower values are better (lower is True), else below 1.
    """
    return 1 + (margin if lower else -margin) / 100


def excess(pairs: Pairs, lower: bool, margin: float) -> list[float]:
    """Return for each pair by how much the treatment is worse than the margin allows; a negative
    number means that the pair is within the margin. margin: percent. lower: whether lower values
    are better.
    """
    sign, allowed = 1 if lower else -1, at_margin(lower, margin)
    scale, d = differences(pairs)
    if scale == "ratio":
        return [sign * (each - log(allowed)) for each in d]
    return [sign * (treatment - control * allowed) for control, treatment in pairs]


def pairs_by_size(d: Sequence[float], percent: float, metrics: int = 1) -> int:
    """Return how many pairs find a change by `percent` with 80 % probability, computed from the
    sizes |d| of the differences so far.

    The randomisation test redraws only the signs of d. So a run whose length is decided by the
    sizes alone keeps the test exact. d: relative differences of the pairs so far.
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
