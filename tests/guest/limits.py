# SPDX-License-Identifier: GPL-2.0
"""Which runs decide: about a limit on what was counted, and about tests that fail at times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

import pytest
from scipy.stats import fisher_exact

from lab.counting import Results

NOISE = 0.0005  # to which a measurement of many faults repeats
RUNS = 6  # of a program, with and without the module, where a test of it fails at first

Figure = Callable[[Results], float]
Passed = frozenset[str]  # names of tests


@dataclass
class Repeated:
    """Runs of one measurement, in guests of their own, taken when they are asked for."""

    take: Callable[[frozenset[str]], Results]  # all arms, or those that are named
    runs: dict[tuple[int, frozenset[str]], Results] = field(default_factory=dict)

    def run(self, number: int = 0, arms: frozenset[str] = frozenset()) -> Results:
        """One of them."""
        key = (number, arms)
        if key not in self.runs:
            self.runs[key] = self.take(arms)
        return self.runs[key]

    def hold(self, limit: float, figure: Figure, what: str, *arms: str) -> None:
        """Fail if a figure is beyond its limit, in the first run and in the median of three.

        The others need these arms only, or all. Now and then the free lists of a guest are
        in a state where each round of a short case takes 0.003 more or less, and seldom one
        in which it takes twice as much.
        """
        __tracebackhide__ = True
        figures = [figure(self.run())]
        if figures[0] > limit:
            figures += [figure(self.run(number, frozenset(arms))) for number in (1, 2)]
        if median(figures) > limit:
            pytest.fail(f"{what}: {', '.join(f'{f:.4f}' for f in figures)}, limit {limit:g}", False)


def rarer(ours: int, stock: int) -> bool:
    """Whether ours of RUNS are fewer than stock's, beyond chance (Fisher's exact test).

    Where all 6 pass at stock, 3 are too few; where 5 do, 1 is.
    """
    table = [[ours, RUNS - ours], [stock, RUNS - stock]]
    return float(fisher_exact(table, alternative="less").pvalue) < 0.1


def lost(wanted: Passed, ours: Callable[[], Passed], stock: Callable[[], Passed]) -> list[str]:
    """What passes less often than at stock, of a program that is run again and again.

    Some tests depend on how long things take. If one fails in the first run, it is run as
    often here as at stock.
    """
    first = ours()
    missed = wanted - first
    if not missed:
        return []
    here, there = Counter(first), Counter[str]()
    for _ in range(RUNS - 1):
        here.update(ours())
    for _ in range(RUNS):
        there.update(stock())
    return [
        f"{name}: passes in {here[name]} of {RUNS} runs, at stock in {there[name]}"
        for name in sorted(missed)
        if rarer(here[name], there[name])
    ]
