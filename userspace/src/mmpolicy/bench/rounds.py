# SPDX-License-Identifier: GPL-2.0
"""The order of the runs, and how many there are.

A round has one run of each arm, in a random order. So what drifts on the host, be it slow or fast,
meets all arms alike, and the coins of the order alone make the test valid. An arm that is known
closely enough takes part no longer, so its runs are those of the first rounds.
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

PILOT = 8  # rounds from which the noise can be learned
MOST = 400  # rounds, whatever the noise asks for
LOOKS = 1.25  # as many rounds as at the look before
ADVICE = "choose a quieter time, one CPU (taskset -c 0) or a longer program"


@dataclass
class Length:
    """How many rounds; fixed beforehand, learned from those so far, or until they tell enough."""

    rounds: int
    detect: float = 0.0  # percent to find in the metric
    metric: str = "cpu"
    needed: int = 0  # as learned, also if that is too many
    within: float = 0.0  # percent: so close the medians of all ratios have to be known
    known: dict[str, float] = field(default_factory=dict)  # arm -> percent: so close its one is
    look: int = PILOT  # rounds after which to look if they are

    def look_at(self, runs: Sequence[dict[str, Values]], arms: Sequence[Arm]) -> None:
        """Learn from the rounds so far, after each one, if there is something to learn."""
        if self.detect and len(runs) >= PILOT and len(arms) > 1:
            self.settle(runs, arms)
        elif self.within:
            self.stop(runs, arms)

    def settle(self, runs: Sequence[dict[str, Values]], arms: Sequence[Arm]) -> None:
        """Learn it from the rounds so far, after each one: the first few may have met no stall.

        It looks at sizes of differences alone and not at their signs, which the coins decide. So
        the number of rounds tells nothing about the effect, and the test stays exact (blinded
        re-estimation of the sample size, Gould and Shih 1992). With more arms than two, the size
        of a round names none of them: two equal ones could change places in it, however far the
        others lie from both.
        """
        needs = suggest_pairs(_blind(_sizes(runs, arms, self.metric)), self.detect, len(arms) - 1)
        self.needed = max(PILOT, needs)
        self.rounds = min(max(self.needed, len(runs)), MOST)

    def stop(self, runs: Sequence[dict[str, Values]], arms: Sequence[Arm]) -> None:
        """Let those arms rest whose medians are known closely enough, and end it with the last.

        A fixed width as in Chow and Robbins (1965): when it ends depends on how far runs lie
        apart, and hardly on which arm is better. With a look at each round it would end where
        chance makes an interval narrow, which then holds the truth too seldom.
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
        """Return those that take part in the next round."""
        return [arm for arm in arms if self.known.get(arm.name, inf) > self.within]

    @property
    def reached(self) -> float:
        """Percent: so close are the medians of all arms, or 0 before the first look."""
        return max(self.known.values(), default=0.0)

    def progress(self, done: int) -> str:
        """Return the message after so many rounds."""
        hedge = "at most " if self.within else "about " if self.needed else ""
        known = f", {self._known()}" if 0 < self.reached < inf else ""
        return f"round {done} of {hedge * (done < self.rounds)}{self.rounds}{known}"

    def _known(self) -> str:
        return f"{self.metric} is known to {self.reached:.1f} %"

    def note(self) -> str:
        """Return the message if more rounds were needed than there were."""
        if self.reached > self.within:
            known = f"after {self.rounds} rounds, {self._known()}"
            return f"{known}, not to {self.within:g} %: {ADVICE}"
        if self.needed <= MOST:
            return ""
        needs = f"{self.needed} rounds would find {self.detect:g} % of {self.metric}"
        return f"{needs}, and there were {MOST}: {ADVICE}"


def pairs_of(
    runs: Sequence[dict[str, Values]], first: Arm, other: Arm, metric: str
) -> list[tuple[float, float]]:
    """Return the values of two arms, round by round, as long as both took part."""
    both = rounds_of(runs, other)
    return [(each[first.name][metric], each[other.name][metric]) for each in both]


def rounds_of(runs: Sequence[dict[str, Values]], arm: Arm) -> list[dict[str, Values]]:
    """Return those in which an arm took part."""
    return [each for each in runs if arm.name in each]


def _sizes(runs: Sequence[dict[str, Values]], arms: Sequence[Arm], metric: str) -> list[float]:
    """Return how far the arms of each round lie apart: the root mean square over pairs of them."""
    pairs = [(each[one.name][metric], each[other.name][metric])
             for each in runs for one, other in combinations(arms, 2)]  # fmt: skip
    squares = [each * each for each in differences(pairs)[1]]
    number = len(pairs) // len(runs)
    return [sqrt(sum(squares[place : place + number]) / number)
            for place in range(0, len(squares), number)]  # fmt: skip


def _blind(sizes: Sequence[float]) -> list[float]:
    """Return the sizes of differences with signs that are ours."""
    return [size if number % 2 else -size for number, size in enumerate(sorted(sizes))]


@dataclass
class Bench:
    """The runs of all arms."""

    arms: Arms
    programs: Programs
    length: Length
    seed: int
    folios: Callable[[], dict[int, int]]  # so far: bytes of a size -> how many
    follow: Callable[[int], Callable[[], int]]  # collapse a session; the end returns the bytes
    events: Callable[[], dict[str, int]] = dict  # so far, with the free blocks
    runs: list[dict[str, Values]] = field(default_factory=list)

    def rounds(self, warmup: int) -> Iterator[int]:
        """Run them all; yield how many rounds are done."""
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
