# SPDX-License-Identifier: GPL-2.0
"""The design of an experiment: what is compared, in which order, and for how long.

All of it is fixed before the first block with the treatment, so that what is seen on
the way cannot decide when to stop.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, expm1, log, log1p, log2, sqrt
from statistics import NormalDist, stdev
from typing import Any, NamedTuple

ALPHA = 0.05  # risk of a false finding, over all metrics
POWER = 0.8  # chance of a finding where there is something to find
DIRTY = 0.01  # p, corrected for all metrics, below which the A/A phase counts as not equal
MOST_LOST = 0.05  # of the blocks, each in a pair of its own
OUTWEIGH = 1.5  # times the root of the pairs: so many more, for one that counts against them
STRETCH = 4  # times its pairs is the most that a run has because some are lost
MAX_SEED = 2**63
SATURATION = "saturation"  # blocks with few units treated and with many, for what the rest have

Pairs = list[tuple[float, float]]  # (control, treatment)


class Block(NamedTuple):
    """A stretch of time with one setting."""

    number: int
    phase: str  # aa: both arms are the control; ab; saturation
    pair: int  # within the phase
    arm: str  # of switchback; split has both at once: ""; of saturation: few treated, or many
    seed: int  # of the assignment, for split


@dataclass(frozen=True)
class Design:
    """How blocks are laid out."""

    kind: str  # split or switchback
    block_s: float
    washout_s: float
    interval_s: float
    seed: int

    @property
    def blocks_of_pair(self) -> int:
        """Return how many blocks one control value and one treatment value take."""
        return 1 if self.kind == "split" else 2

    def seconds(self, pairs: int) -> float:
        """Return the time that pairs take."""
        return pairs * self.blocks_of_pair * self.block_s

    def moments(self) -> list[float]:
        """Return when samples are taken, in seconds since the block began."""
        measured = self.block_s - self.washout_s
        steps = max(1, round(measured / self.interval_s))
        return [self.washout_s + measured * step / steps for step in range(steps + 1)]

    def blocks(self, phase: str, pairs: int, first: int = 0) -> Iterator[Block]:
        """Yield the blocks of a phase in random order.

        In switchback a coin is tossed for each pair: which arm goes first. In split each
        block assigns all units anew; arms with equal shares could as well be the other way
        round, which is the coin there. Of saturation, it is whether few units are treated first,
        or many.
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
    """Return the fewest pairs with which anything can be found at all.

    The randomisation test of n pairs knows 2**n outcomes; the clearest of them, either
    way, has p = 2 / 2**n, which the correction for the number of metrics multiplies.
    """
    return ceil(1 - log2(level / metrics))


def few_lost(lost: int, pairs: int) -> bool:
    """Tell if so few pairs are lost that the others may speak for them."""
    return lost <= max(1.0, 2 * MOST_LOST * pairs)


def pairs_for_lost(pairs: int, lost: int, against: int, most: int) -> int:
    """Return how many pairs a run has that would have had `pairs`, if some of them are lost.

    There is a new one for each, more to outweigh those that count as against the others, and so
    many that what is lost is little. Where that is more than the most, nothing can help it.
    """
    need = pairs + lost + against * ceil(OUTWEIGH * sqrt(pairs))
    while not few_lost(lost, need):
        need += 1
    return need if need <= most else pairs


def with_lost(d: Sequence[float], against: int, sign: float = 0.0) -> list[float]:
    """Return d and so many lost pairs, as clear as the clearest one, and against what d shows.

    sign: of what is against it, if not that of -d.
    """
    worst = (sign or (-1 if sum(d) > 0 else 1)) * max(map(abs, d), default=0.0)
    return [worst] * against + list(d)


def planned_so_far(end: Mapping[str, Any], planned: int, known: Iterable[int]) -> int:
    """Return how many pairs a run should have by now; known: the numbers of those that it has."""
    return planned if end.get("status") == "done" else max(known, default=-1) + 1


def unseen(pairs: int) -> float:
    """Return the percent of blocks that may be bad though so many have none that is.

    Where more are, a run like this sees one in 95 % (the rule of three).
    """
    return 100 * float(1 - ALPHA ** (1 / pairs))


def pairs_to_see(percent: float) -> int:
    """Return how many pairs have a bad block in 95 %, if so many percent of blocks are bad."""
    return ceil(log(ALPHA) / log1p(-percent / 100))


def differences(pairs: Sequence[tuple[float, float]]) -> tuple[str, list[float]]:
    """Return scale and treatment - control of each pair.

    ratio: of logarithms, where all values are above 0. totals: where some are 0, as shares of
    the mean of all values, which knows no arms. difference: where any value is below 0.
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
    """Return the logarithm of the ratio of the totals of both arms."""
    control, treatment = map(sum, zip(*pairs))
    return log(treatment) - log(control)


def at_margin(lower: bool, margin: float) -> float:
    """Return how many times the control the treatment may be, for a margin in percent."""
    return 1 + (margin if lower else -margin) / 100


def excess(pairs: Pairs, lower: bool, margin: float) -> list[float]:
    """Return by how much the treatment of each pair is worse than a margin in percent allows."""
    sign, allowed = 1 if lower else -1, at_margin(lower, margin)
    scale, d = differences(pairs)
    if scale == "ratio":
        return [sign * (each - log(allowed)) for each in d]
    return [sign * (treatment - control * allowed) for control, treatment in pairs]


def pairs_by_size(d: Sequence[float], percent: float, metrics: int = 1) -> int:
    """Return how many pairs find a change by percent with 80 % probability, by |d| alone.

    The test tosses the signs of d anew and keeps the sizes, so whoever looks at sizes alone
    may decide on them when to end, and the test stays exact. d: of pairs so far, relative.
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

    noise: differences of logarithms between equal arms. As the spread of few of them may
    be small by luck, its upper 80 % limit counts (Browne 1995). The normal approximation
    is put right for the t test by z**2 / 2 (Guenther 1981). risk: of an error to one side.
    """
    z, effect = NormalDist().inv_cdf(1 - risk / metrics), log1p(abs(percent) / 100)
    ratio = stdev(noise) * _caution(len(noise) - 1) * (z + NormalDist().inv_cdf(POWER)) / effect
    return max(ceil(ratio**2 + z**2 / 2), least_pairs(metrics, 2 * risk))


def _caution(freedom: int) -> float:
    """Return upper 80 % limit of a deviation / its estimate (Wilson and Hilferty 1931)."""
    part = 2 / (9 * freedom)
    low = freedom * (1 - part + NormalDist().inv_cdf(1 - POWER) * sqrt(part)) ** 3
    return sqrt(freedom / low)
