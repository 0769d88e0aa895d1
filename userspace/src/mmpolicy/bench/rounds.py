# SPDX-License-Identifier: GPL-2.0
"""The order and the number of the runs of a bench.

A round has one run of each arm, in a random order. So drift of the host affects all arms alike,
and the random order alone makes the test valid. Once the ratio of an arm is known precisely
enough, the arm no longer runs, so its runs are those of the first rounds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import ceil, exp, inf, sqrt

from mmpolicy.ab.design import differences, suggest_pairs
from mmpolicy.ab.report.stats import median_interval
from mmpolicy.bench.arms import Arm, Arms
from mmpolicy.bench.events import between
from mmpolicy.bench.programs import Programs, Values
from mmpolicy.errors import Error
from mmpolicy.figures import figure

PILOT = 8  # number of rounds from which the noise is first estimated
MOST = 400  # most rounds, even if the noise requires more
LOOKS = 1.25  # the precision is computed again when the rounds have grown by this factor
ADVICE = "bench at a quieter time, on one CPU (taskset -c 0), or with a longer program"


@dataclass
class Length:
    """The number of rounds: fixed, computed from the noise, or until the ratios are precise
    enough.
    """

    rounds: int
    detect: float = 0.0  # change of the metric in percent that the rounds must find
    metric: str = "cpu"
    needed: int = 0  # number of rounds that the noise so far requires, even if it is more than MOST
    within: float = 0.0  # required precision of the median ratios in percent
    # precision that the median ratio of an arm has reached, in percent, by arm
    known: dict[str, float] = field(default_factory=dict)
    look: int = PILOT  # number of rounds after which the precision is computed next

    def look_at(self, runs: Sequence[dict[str, Values]], arms: Sequence[Arm]) -> None:
        """Update the number of rounds after a round, unless it is fixed."""
        if self.detect and len(runs) >= PILOT and len(arms) > 1:
            self.settle(runs, arms)
        elif self.within:
            self.stop(runs, arms)

    def settle(self, runs: Sequence[dict[str, Values]], arms: Sequence[Arm]) -> None:
        """Compute the number of rounds from the noise of all rounds so far.

        This is repeated after each round, as the first rounds may have had no stall by chance.

        Only sizes of differences are used, not their signs, which the random order decides. So the
        number of rounds says nothing about the effect, and the test stays exact (blinded
        re-estimation of the sample size, Gould and Shih 1992). With more than two arms, all
        differences of a round are combined into one size, which stays the same if two arms of the
        round are swapped.
        """
        needs = suggest_pairs(_blind(_sizes(runs, arms, self.metric)), self.detect, len(arms) - 1)
        self.needed = max(PILOT, needs)
        self.rounds = min(max(self.needed, len(runs)), MOST)

    def stop(self, runs: Sequence[dict[str, Values]], arms: Sequence[Arm]) -> None:
        """Drop arms whose median ratios are precise enough; the bench ends when all are dropped.

        The rule has a fixed width as in Chow and Robbins (1965): the number of rounds depends on
        the spread of the runs, and hardly on which arm is better. The precision is computed only
        after some rounds. If it were computed after each round, the rule would end when chance
        makes an interval narrow, and such an interval misses the true value too often.
        """
        if len(runs) < min(self.look, MOST):
            return
        self.look = ceil(LOOKS * len(runs))
        first, *others = arms
        for arm in self.awake(others):
            d = differences(pairs_of(runs, first, arm, self.metric))[1]
            low, high = median_interval(d)
            self.known[arm.name] = 50 * (exp(high) - exp(low))
        if not self.awake(others):
            self.rounds = len(runs)

    def awake(self, arms: Sequence[Arm]) -> list[Arm]:
        """Return the arms that run in the next round: those whose ratios are not yet precise
        enough.
        """
        return [arm for arm in arms if self.known.get(arm.name, inf) > self.within]

    @property
    def reached(self) -> float:
        """Return half the width of the widest interval of an arm's ratio, in percent; 0 if none is
        known yet.
        """
        return max(self.known.values(), default=0.0)

    def progress(self, done: int) -> str:
        """Return the progress line after this many rounds."""
        hedge = "at most " if self.within else "about " if self.needed else ""
        known = f", {self._known()}" if 0 < self.reached < inf else ""
        return f"round {done} of {hedge * (done < self.rounds)}{self.rounds}{known}"

    def _known(self) -> str:
        return f"the ratio of {self.metric} is known to +- {self.reached:.1f} %"

    def note(self) -> str:
        """Return a note if more rounds were needed than --runs or the limit allowed, else ""."""
        if self.reached > self.within:
            known = f"after {self.rounds} rounds, {self._known()}"
            return f"{known}, and not to +- {figure(self.within)} % as --precision asks: {ADVICE}"
        if self.needed <= MOST:
            return ""
        change = f"a change of {figure(self.detect)} % in {self.metric}"
        needs = f"{self.needed} rounds would find {change}"
        return f"{needs}, but the limit is {MOST} rounds: {ADVICE}"


def pairs_of(
    runs: Sequence[dict[str, Values]], first: Arm, other: Arm, metric: str
) -> list[tuple[float, float]]:
    """Return the values of a metric in the first and in another arm, for each round in which both
    ran.
    """
    both = rounds_of(runs, other)
    return [(each[first.name][metric], each[other.name][metric]) for each in both]


def rounds_of(runs: Sequence[dict[str, Values]], arm: Arm) -> list[dict[str, Values]]:
    """Return the rounds in which an arm ran."""
    return [each for each in runs if arm.name in each]


def _sizes(runs: Sequence[dict[str, Values]], arms: Sequence[Arm], metric: str) -> list[float]:
    """Return for each round the root mean square of the differences between its arms."""
    pairs = [(each[one.name][metric], each[other.name][metric])
             for each in runs for one, other in combinations(arms, 2)]  # fmt: skip
    squares = [each * each for each in differences(pairs)[1]]
    number = len(pairs) // len(runs)
    return [sqrt(sum(squares[place : place + number]) / number)
            for place in range(0, len(squares), number)]  # fmt: skip


def _blind(sizes: Sequence[float]) -> list[float]:
    """Return the sizes of differences with alternating signs, so that no sign depends on which arm
    is better.
    """
    return [size if number % 2 else -size for number, size in enumerate(sorted(sizes))]


@dataclass
class Bench:
    """Runs the command under all arms, round by round."""

    arms: Arms
    programs: Programs
    length: Length
    seed: int
    # function that returns the number of folios allocated so far, by size in bytes
    folios: Callable[[], dict[int, int]]
    # function that starts to collapse the memory of a session, given the pid of its leader; it
    # returns a function that ends this and returns the collapsed bytes
    follow: Callable[[int], Callable[[], int]]
    # function that returns the event counters so far, with the free blocks
    events: Callable[[], dict[str, int]] = dict
    runs: list[dict[str, Values]] = field(default_factory=list)

    def rounds(self, warmup: int) -> Iterator[int]:
        """Run all rounds; yield the number of rounds done."""
        rng = random.Random(self.seed)
        if self.length.detect:
            self.length.rounds = PILOT
        elif self.length.within:
            self.length.rounds = MOST
        for _ in range(warmup):
            self._round(self.arms.arms, "warm-up")
            yield 0
        first, *others = self.arms.arms
        while len(self.runs) < self.length.rounds:
            arms = [first, *self.length.awake(others)]
            order = rng.sample(arms, len(arms))
            place = f"round {len(self.runs) + 1}"
            self.runs.append(self._round(order, place))
            self.length.look_at(self.runs, self.arms.arms)
            yield len(self.runs)

    def _round(self, order: Sequence[Arm], place: str) -> dict[str, Values]:
        values = {}
        for arm in order:
            try:
                values[arm.name] = self._run(arm)
            except Error as err:
                err.message = f"{place}, arm '{arm.name}': {err.message}"
                raise
        return values

    def _run(self, arm: Arm) -> Values:
        self.arms.enter(arm)
        ends = list[Callable[[], int]]()

        def prepare(pid: int) -> None:
            self.arms.bind(arm, pid)
            if arm.collapse:
                ends.append(self.follow(pid))

        before, events = self.folios(), self.events()
        try:
            took = self.programs.run(prepare, arm.no_thp)
        finally:
            collapsed = sum(end() for end in ends)
        if any(each.collapse for each in self.arms.arms):
            took["collapsed"] = float(collapsed)
        after = self.folios()
        large = sum((after[size] - before.get(size, 0)) * size for size in after)
        return took | {"large_folios": float(large)} | between(events, self.events())
