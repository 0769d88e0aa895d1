# SPDX-License-Identifier: GPL-2.0
"""Limits on counted instructions and memory: one guest is asked, and three where it is beyond."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

import pytest
from common import Results

NOISE = 0.0005  # to which a measurement of many faults repeats

Figure = Callable[[Results], float]


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
