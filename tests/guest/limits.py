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

    take: Callable[[], Results]
    runs: list[Results] = field(default_factory=list)

    def run(self, number: int = 0) -> Results:
        """One of them."""
        while len(self.runs) <= number:
            self.runs.append(self.take())
        return self.runs[number]

    def hold(self, limit: float, figure: Figure, what: str) -> None:
        """Fail if a figure is beyond its limit, in this run and in the median of three.

        Now and then the free lists of a guest are in a state where each round of a short
        case takes 0.003 more or less, and seldom one in which it takes twice as much.
        """
        __tracebackhide__ = True
        figures = [figure(self.run())]
        if figures[0] > limit:
            figures += [figure(self.run(number)) for number in (1, 2)]
        if median(figures) > limit:
            pytest.fail(f"{what}: {', '.join(f'{f:.4f}' for f in figures)}, limit {limit:g}", False)
