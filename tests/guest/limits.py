# SPDX-License-Identifier: GPL-2.0
"""Repeats runs: to hold a measured figure to a limit, and to judge tests that sometimes fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

import pytest
from scipy.stats import fisher_exact

from lab.counting import Results

NOISE = 0.0005  # relative error of a measurement over many faults
RUNS = 6  # runs of a program, with and without the module, after a test of it has failed

Figure = Callable[[Results], float]
Passed = frozenset[str]  # names of tests that passed


@dataclass
class Repeated:
    """Runs of one measurement, each in a guest of its own, taken on demand."""

    take: Callable[[frozenset[str]], Results]  # all arms, or the given ones
    runs: dict[tuple[int, frozenset[str]], Results] = field(default_factory=dict)

    def run(self, number: int = 0, arms: frozenset[str] = frozenset()) -> Results:
        """One run."""
        key = (number, arms)
        if key not in self.runs:
            self.runs[key] = self.take(arms)
        return self.runs[key]

    def hold(self, limit: float, figure: Figure, what: str, *arms: str) -> None:
        """Fail if a figure exceeds its limit in the first run and in the median of three runs.

        Further runs measure only the given arms, or all. The free lists of a guest sometimes change
        each round of a short case by 0.003, and rarely by twice as much.
        """
        __tracebackhide__ = True
        figures = [figure(self.run())]
        if figures[0] > limit:
            figures += [figure(self.run(number, frozenset(arms))) for number in (1, 2)]
        if median(figures) > limit:
            pytest.fail(f"{what}: {', '.join(f'{f:.4f}' for f in figures)}, limit {limit:g}", False)


def rarer(ours: int, stock: int) -> bool:
    """Return whether a test passes less often than at stock, beyond chance (Fisher's exact test).

    If it passes 6 times of RUNS at stock, 3 are too few; if 5 times, 1 is too few.
    """
    table = [[ours, RUNS - ours], [stock, RUNS - stock]]
    return float(fisher_exact(table, alternative="less").pvalue) < 0.1


def lost(wanted: Passed, ours: Callable[[], Passed], stock: Callable[[], Passed]) -> list[str]:
    """Return the tests that pass less often than at stock, by running the program repeatedly.

    Some tests depend on timing. So if one fails in the first run, the program runs equally often
    with the module and at stock.
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
