# SPDX-License-Identifier: GPL-2.0
"""Guards: conditions that must hold while an experiment runs."""

import operator
import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import click

from mmpolicy.ab.metrics import Metric
from mmpolicy.ab.sources import ARMS, Arm, Command, Sample, Units

OPERATORS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
WINDOW_S = 1.0  # over which a rate is taken


@dataclass(frozen=True)
class Guard:
    """`METRIC < NUMBER`, or with <=, > or >=."""

    text: str
    metric: Metric
    sign: str
    limit: float

    @classmethod
    def parse(cls, text: str) -> "Guard":
        """Return the guard that the text describes, else a usage error."""
        found = re.fullmatch(r"(.+?)\s*(<=|>=|<|>)\s*(-?[\d.]+(?:e-?\d+)?)", text.strip())
        if not found:
            raise click.UsageError(f"guard '{text}' is not of the form METRIC < NUMBER")
        metric = Metric.parse(found[1])
        if any(isinstance(source, Command) for source in metric.sources()):
            raise click.UsageError(f"guard '{text}': a command is too slow to guard anything")
        return cls(text.strip(), metric, found[2], float(found[3]))

    def broken(self, window: deque[Sample]) -> tuple[float, str] | None:
        """Return the value that breaks it, and the arm if it is of one, else None.

        A level is looked at now, all else over the last second.
        """
        momentary = all(each.momentary for each in self.metric.sources())
        samples = [window[-1]] if momentary else list(window)
        of_arms = any(isinstance(each, Arm | Units) for each in self.metric.sources())
        for arm in ARMS:
            value = self.metric.over(samples, arm)
            if value is not None and not OPERATORS[self.sign](value, self.limit):
                return value, arm if of_arms else ""
        return None


class Watch:
    """The last second of what guards look at."""

    def __init__(self, guards: Iterable[Guard]) -> None:
        self.guards = list(guards)
        self.window: deque[Sample] = deque()

    def look(self, sample: Sample) -> tuple[str, str] | None:
        """Take a sample; return what is wrong, if anything is, and in which arm."""
        self.window.append(sample)
        while len(self.window) > 2 and sample.t - self.window[1].t >= WINDOW_S:
            self.window.popleft()
        for guard in self.guards:
            broken = guard.broken(self.window)
            if broken:
                return f"guard '{guard.text}': it is {broken[0]:.6g}", broken[1]
        return None
