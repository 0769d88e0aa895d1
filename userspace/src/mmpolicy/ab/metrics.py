# SPDX-License-Identifier: GPL-2.0
"""The grammar of metrics.

A metric is `[NAME=]SOURCE[/s] [/ SOURCE[/s]] [lower|higher [guard PERCENT%]]`, for instance
`vmstat.pgfault/s lower` or `rss=cmd:redis-rss / cgroup:/redis/pids.current`. With p99(), max() or
spread() around it, it is that statistic of the samples of a block instead of their mean.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import stdev

import click

from mmpolicy.ab.sources import (
    Arm,
    ArmTimes,
    CgroupFile,
    Command,
    CpuTime,
    HugePages,
    Psi,
    Sample,
    Source,
    UnitFile,
    Units,
    Vmstat,
)
from mmpolicy.errors import Error
from mmpolicy.host.files import parts_of

FORMS = (
    "vmstat.KEY, cpu.KEY, psi.RESOURCE.KEY, thp.FILE, cgroup:PATH/FILE[:KEY], unit:FILE[:KEY], "
    "arm.POINT.COUNTER, cmd:COMMAND"
)
TIMES = "fault_ns"

# Statistics of the samples of a block, other than their mean.
OF_SAMPLES = r"(p\d\d?|max|spread)\((.+)\)"
# The slash between the two sources of a ratio must have spaces around it, because the name of a
# cgroup may contain a slash without spaces.
RATIO = r" / (?=\s*(?:vmstat\.|cpu\.|psi\.|thp\.|cgroup:|unit:|arm\.|cmd:))"

Make = Callable[[str, bool, re.Match[str]], Source]

# The forms in which a user may write a source. parse_source() tries them in this order, and takes
# the first that matches the whole text.
GRAMMAR: tuple[tuple[str, Make], ...] = (
    (r"cmd:(.+)", lambda text, rate, m: Command(text, rate, m[1])),
    (
        # The last slash ends the path of the cgroup, and the colon before the key comes after it: a
        # name of a cgroup may contain colons, such as those that containerd creates.
        r"cgroup:((?:/[^/]+)*/[^/:]+)(?::([^/]+))?",
        lambda text, rate, m: CgroupFile(text, rate, m[2] or "", _checked(m[1])),
    ),
    (
        r"unit:([^/:]+)(?::(.+))?",
        lambda text, rate, m: UnitFile(text, rate, _checked(m[1]), m[2] or ""),
    ),
    (r"thp\.(.+)", lambda text, rate, m: HugePages(text, rate, "", _checked(m[1]))),
    (r"vmstat\.(.+)", lambda text, rate, m: Vmstat(text, rate, m[1])),
    (r"cpu\.(\w+)", lambda text, rate, m: CpuTime(text, rate, m[1])),
    (r"psi\.([^.]+)\.(.+)", lambda text, rate, m: Psi(text, rate, m[2], m[1])),
    (r"arm\.units", lambda text, rate, _: Units(text, rate)),
    (
        rf"arm\.([^.]+)\.{TIMES}(?:\.p(\d\d?(?:\.\d+)?))?",
        lambda text, rate, m: ArmTimes(text, rate, m[1], TIMES, float(m[2]) if m[2] else None),
    ),
    (rf"arm\.([^.]+)\.(?!{TIMES}\.)(.+)", lambda text, rate, m: Arm(text, rate, m[1], m[2])),
)


def _checked(path: str) -> str:
    """Return the path of a cgroup unchanged; raise a usage error if it has `..` or empty parts."""
    try:
        parts_of(path.strip("/"))
    except Error as err:
        raise click.UsageError(err.message) from err
    return path


def parse_source(text: str) -> Source:
    """Return the source that a text describes; raise a usage error for an invalid text."""
    body = text.removesuffix("/s")
    for form, make in GRAMMAR:
        found = re.fullmatch(form, body, re.DOTALL)
        if found:
            return make(body, body != text, found)
    raise click.UsageError(f"'{text}' is not a source for a metric; the sources are: {FORMS}")


@dataclass(frozen=True)
class Metric:
    """A number by which the arms are compared: a source, or the ratio of two sources."""

    text: str
    name: str
    top: Source
    bottom: Source | None
    better: str  # "lower", "higher", or "" if the user did not say which is better
    margin: float  # percentage by which a guard metric may get worse; 0: the margin of the run
    guard: bool  # True if the metric must only be no worse; False if the run is to improve it
    of: str  # statistic over the samples of a block: pNN, max or spread; "": the mean

    @classmethod
    def of_work(cls, text: str) -> Metric:
        """Return the metric for the text of --work: a rate, of which higher is better. Raise a
        usage error if the text is invalid.
        """
        return cls.parse(f"work={text} higher")

    @classmethod
    def parse(cls, text: str) -> Metric:
        """Return the metric that a text describes; raise a usage error for an invalid text."""
        body, better = text.strip(), ""
        role = re.search(r" guard(?: +(\d+(?:\.\d+)?) ?%?)?$", body)
        margin = float(role[1]) if role and role[1] else 0.0
        body = body[: role.start()].rstrip() if role else body
        if body.endswith((" lower", " higher")):
            body, _, better = body.rpartition(" ")
        named = re.match(r"([\w.-]+)=", body)
        name, body = (named[1], body[named.end() :]) if named else (body, body)
        if role and not better:
            raise click.UsageError(
                f"metric '{text}': a guard needs the word `lower` or `higher`, to say "
                "which is better"
            )
        if not 0 <= margin < 100:
            raise click.UsageError(f"metric '{text}': the margin of a guard must be below 100 %")
        inside = re.fullmatch(OF_SAMPLES, body, re.DOTALL)
        of, body = (inside[1], inside[2]) if inside else ("", body)
        top, *bottom = [body] if body.startswith("cmd:") else re.split(RATIO, body, maxsplit=1)
        below = parse_source(bottom[0].strip()) if bottom else None
        over = parse_source(top.strip())
        if below and isinstance(over, UnitFile) != isinstance(below, UnitFile):
            raise click.UsageError(
                f"metric '{text}': in a ratio, either both sources begin with unit:, or none does"
            )
        return cls(text.strip(), name, over, below, better, margin, bool(role), of)

    def sources(self) -> tuple[Source, ...]:
        return (self.top, self.bottom) if self.bottom else (self.top,)

    @property
    def of_units(self) -> bool:
        """Return whether the metric has a value for each unit (a process or a cgroup), instead of
        one for each arm.
        """
        return any(isinstance(each, UnitFile) for each in self.sources())

    @property
    def averaged(self) -> bool:
        """Return whether one of the metric's sources is a moving average."""
        return any(each.averaged for each in self.sources())

    @property
    def momentary(self) -> bool:
        """Return whether one sample is enough for a value of the metric, so that the length of a
        block does not matter; False for a rate.
        """
        return all(each.momentary for each in self.sources())

    def over(self, window: Sequence[Sample], arm: str) -> float | None:
        """Return the value of an arm over the samples of a window, usually one block; None if a
        source of the metric has no value in it.
        """
        if not self.of:
            return self._plain(window, arm)
        parts = [[each] for each in window] if self.momentary else zip(window, window[1:])
        values = [self._plain(part, arm) for part in parts]
        known = [value for value in values if value is not None]
        return of_samples(known, self.of) if len(known) == len(values) > 1 else None

    def _plain(self, window: Sequence[Sample], arm: str) -> float | None:
        value = self.top.over(window, arm)
        if self.bottom is None or value is None:
            return value
        below = self.bottom.over(window, arm)
        return value / below if below else None


def of_samples(values: Sequence[float], of: str) -> float:
    """Return a statistic of the samples of a block: a percentile (nearest rank) for "pNN", the
    largest value for "max", or the standard deviation for "spread".
    """
    if of == "spread":
        return stdev(values)
    rank = 1.0 if of == "max" else int(of.removeprefix("p")) / 100
    return sorted(values)[max(ceil(rank * len(values)), 1) - 1]


def all_sources(metrics: Iterable[Metric]) -> list[Source]:
    """Return the sources of all metrics, without repetition. A rate and the counter it is computed
    from share one source, so that each is read once per sample.
    """
    return list({each.text: each for metric in metrics for each in metric.sources()}.values())
