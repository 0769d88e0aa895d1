# SPDX-License-Identifier: GPL-2.0
"""Repeats a measurement that exceeds its limit, or a test that fails with the module, before it
counts as a failure, as either may be chance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

import pytest
from scipy.stats import fisher_exact

from lab.counting import Results

NOISE = 0.0005  # relative error of a cost per fault, if it is measured over many faults
# If a test of a program fails, the program runs this many times with the module, and this many
# times without it.
RUNS = 6

Figure = Callable[[Results], float]
Passed = frozenset[str]  # names of tests that passed


@dataclass
class Repeated:
    """A measurement that can be repeated. Each run takes place in a new guest, and only when its
    figures are needed.
    """

    # makes one run, in which it measures all arms or only the given ones
    take: Callable[[frozenset[str]], Results]
    runs: dict[tuple[int, frozenset[str]], Results] = field(default_factory=dict)

    def run(self, number: int = 0, arms: frozenset[str] = frozenset()) -> Results:
        """Return the results of run `number` of the measurement; make this run if it was not made
        before.
        """
        key = (number, arms)
        if key not in self.runs:
            self.runs[key] = self.take(arms)
        return self.runs[key]

    def hold(self, limit: float, figure: Figure, what: str, *arms: str) -> None:
        """Fail if a figure exceeds its limit in the first run, and again in the median of three
        runs.

        arms: to be measured in further runs; all if none is given. The reason for further runs: the
        free lists of a guest sometimes change each round of a short case by 0.003, and rarely by
        twice as much.
        """
        __tracebackhide__ = True
        figures = [figure(self.run())]
        if figures[0] > limit:
            figures += [figure(self.run(number, frozenset(arms))) for number in (1, 2)]
        if median(figures) > limit:
            pytest.fail(f"{what}: {', '.join(f'{f:.4f}' for f in figures)}, limit {limit:g}", False)


def rarer(ours: int, stock: int) -> bool:
    """Return whether a test passes less often with the module than at stock, beyond chance
    (Fisher's exact test).

    ours, stock: how often it passed in RUNS runs. Against 6 at stock, 3 are too few; against 5, 1
    is too few.
    """
    table = [[ours, RUNS - ours], [stock, RUNS - stock]]
    return float(fisher_exact(table, alternative="less").pvalue) < 0.1


def lost(wanted: Passed, ours: Callable[[], Passed], stock: Callable[[], Passed]) -> list[str]:
    """Return the tests that pass less often with the module than at stock.

    wanted: tests that pass at stock. ours(), stock(): run the program once with the module, and
    without it. Some tests depend on timing, so if one fails in the first run, the program runs RUNS
    times in both ways.
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
