# SPDX-License-Identifier: GPL-2.0
"""Guards of an experiment: limits on metrics that must hold while it runs; if one is broken, the
experiment ends.
"""

from __future__ import annotations

import operator
import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite, nan

import click

from mmpolicy.ab.metrics import Metric
from mmpolicy.ab.sources import ARMS, Arm, Command, Sample, Units
from mmpolicy.figures import figure

OPERATORS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
WINDOW_S = 1.0  # a rate in a guard is computed over the samples of this many seconds


@dataclass(frozen=True)
class Guard:
    """A limit on a metric during a run: the condition `METRIC < NUMBER`, or one with <=, > or >=,
    must hold; if it does not, the guard is broken and the run ends.
    """

    text: str
    metric: Metric
    sign: str
    limit: float

    @classmethod
    def parse(cls, text: str) -> Guard:
        """Return the guard that a text describes; raise a usage error for an invalid text."""
        found = re.fullmatch(r"(.+?)\s*(<=|>=|<|>)\s*(\S+)", text.strip())
        try:
            limit = float(found[3]) if found else nan
        except ValueError:
            limit = nan
        if not found or not isfinite(limit):
            raise click.UsageError(f"guard '{text}' is not of the form METRIC < NUMBER")
        metric = Metric.parse(found[1])
        if any(isinstance(source, Command) for source in metric.sources()):
            raise click.UsageError(
                f"guard '{text}': cmd: cannot be a guard, as a command is too slow to be "
                "run for each sample"
            )
        if metric.of_units:
            raise click.UsageError(
                f"guard '{text}': unit: has a value for each cgroup, and a guard needs "
                "a single one; name one cgroup, as in cgroup:PATH/FILE:KEY"
            )
        return cls(text.strip(), metric, found[2], limit)

    @property
    def of_arms(self) -> bool:
        """Return whether the guard reads counters of an arm (control or treatment). The module has
        these counters only during a run, so such a guard cannot be checked before.
        """
        return any(isinstance(each, (Arm, Units)) for each in self.metric.sources())

    @property
    def momentary(self) -> bool:
        """Return whether one sample is enough to evaluate the guard; False if it reads a rate,
        which needs the samples of a whole window.
        """
        return all(each.momentary for each in self.metric.sources())

    def values(self, window: deque[Sample]) -> list[tuple[float, str]]:
        """Return the values that the guard is to be checked against, each with the name of its arm,
        or with "" for a value of the whole host. Values that are not known yet are left out.

        A level is read from the latest sample, any other source over the samples of the window.
        """
        samples = [window[-1]] if self.momentary else list(window)
        found = [(self.metric.over(samples, arm), arm) for arm in ARMS]
        found = found if self.of_arms else [(found[0][0], "")]
        return [(value, arm) for value, arm in found if value is not None]

    def holds(self, value: float) -> bool:
        return bool(OPERATORS[self.sign](value, self.limit))


class Watch:
    """The samples of the last WINDOW_S seconds of a run, and the guards that are checked against
    them whenever a new sample arrives.
    """

    def __init__(self, guards: Iterable[Guard]) -> None:
        self.guards = list(guards)
        self.window: deque[Sample] = deque()
        self.last: dict[str, float] = {}  # the latest value of each guard, by the text of the guard

    def look(self, sample: Sample) -> tuple[str, str] | None:
        """Add a sample, and check all guards. For the first guard that is broken, return the reason
        as text and the arm ("" for the whole host); None if all guards hold.
        """
        self.window.append(sample)
        while self.window[0] is not sample and sample.t - self.window[1].t >= WINDOW_S:
            self.window.popleft()
        for guard in self.guards:
            for value, arm in guard.values(self.window):
                self.last[guard.text] = value
                if not guard.holds(value):
                    return f"guard '{guard.text}' is violated: the value is {figure(value)}", arm
        return None
