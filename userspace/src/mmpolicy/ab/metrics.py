# SPDX-License-Identifier: GPL-2.0
"""What is measured: the grammar of metrics.

A metric is `[NAME=]SOURCE[/s] [/ SOURCE[/s]] [lower|higher]`, for instance
`vmstat.pgfault/s lower` or `rss=cmd:redis-rss / cgroup:/redis/pids.current`.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import click

from mmpolicy.ab.sources import (
    Arm,
    ArmTimes,
    CgroupFile,
    Command,
    HugePages,
    Psi,
    Sample,
    Source,
    Units,
    Vmstat,
)
from mmpolicy.errors import Error
from mmpolicy.host.files import parts_of

FORMS = (
    "vmstat.KEY, psi.RESOURCE.KEY, thp.FILE, cgroup:PATH/FILE[:KEY], arm.POINT.COUNTER, cmd:COMMAND"
)
TIMES = "fault_ns"

Make = Callable[[str, bool, re.Match[str]], Source]

# The first form that fits counts.
GRAMMAR: tuple[tuple[str, Make], ...] = (
    (r"cmd:(.+)", lambda text, rate, m: Command(text, rate, m[1])),
    (
        r"cgroup:(/[^:]+)(?::(.+))?",
        lambda text, rate, m: CgroupFile(text, rate, m[2] or "", _checked(m[1])),
    ),
    (r"thp\.(.+)", lambda text, rate, m: HugePages(text, rate, "", _checked(m[1]))),
    (r"vmstat\.(.+)", lambda text, rate, m: Vmstat(text, rate, m[1])),
    (r"psi\.([^.]+)\.(.+)", lambda text, rate, m: Psi(text, rate, m[2], m[1])),
    (r"arm\.units", lambda text, rate, _: Units(text, rate)),
    (
        rf"arm\.([^.]+)\.{TIMES}(?:\.p(\d\d?(?:\.\d+)?))?",
        lambda text, rate, m: ArmTimes(text, rate, m[1], TIMES, float(m[2]) if m[2] else None),
    ),
    (rf"arm\.([^.]+)\.(?!{TIMES}\.)(.+)", lambda text, rate, m: Arm(text, rate, m[1], m[2])),
)


def _checked(path: str) -> str:
    """Return a path that leads to what is below, else a usage error."""
    try:
        parts_of(path.strip("/"))
    except Error as err:
        raise click.UsageError(err.message) from err
    return path


def parse_source(text: str) -> Source:
    """Return the source that the text describes, else a usage error."""
    body = text.removesuffix("/s")
    for form, make in GRAMMAR:
        found = re.fullmatch(form, body, re.DOTALL)
        if found:
            return make(body, body != text, found)
    raise click.UsageError(f"'{text}' is no source of numbers; there is: {FORMS}")


@dataclass(frozen=True)
class Metric:
    """A number that the arms are compared by: a source, or the ratio of two."""

    text: str
    name: str
    top: Source
    bottom: Source | None = None
    better: str = ""  # lower, higher or not said

    @classmethod
    def parse(cls, text: str) -> "Metric":
        """Return the metric that the text describes, else a usage error."""
        body, better = text.strip(), ""
        if body.endswith((" lower", " higher")):
            body, _, better = body.rpartition(" ")
        named = re.match(r"([\w.-]+)=", body)
        name, body = (named[1], body[named.end() :]) if named else (body, body)
        top, slash, bottom = body.partition(" / ") if "cmd:" not in body else (body, "", "")
        below = parse_source(bottom.strip()) if slash else None
        return cls(text.strip(), name, parse_source(top.strip()), below, better)

    def sources(self) -> tuple[Source, ...]:
        """Return its one or two sources."""
        return (self.top, self.bottom) if self.bottom else (self.top,)

    def over(self, window: Sequence[Sample], arm: str) -> float | None:
        """Return its value over a stretch of time; None where there is none."""
        value = self.top.over(window, arm)
        if self.bottom is None or value is None:
            return value
        below = self.bottom.over(window, arm)
        return value / below if below else None


def all_sources(metrics: Iterable[Metric]) -> list[Source]:
    """Return the sources of metrics, each once, whether as a rate or not."""
    return list({each.text: each for metric in metrics for each in metric.sources()}.values())
