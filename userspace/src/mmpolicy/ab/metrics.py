# SPDX-License-Identifier: GPL-2.0
"""What is measured: sources of numbers, and metrics made of them.

A metric is `[NAME=]SOURCE[/s] [/ SOURCE[/s]] [lower|higher]`, for instance
`vmstat.pgfault/s lower` or `rss=cmd:redis-rss / cgroup:/redis/pids.current`.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import click

from mmpolicy.control.counters import COUNTERS, read_counters
from mmpolicy.errors import Error, Exit
from mmpolicy.host.files import Tree

ARMS = ("control", "treatment")
UNITS = f"{COUNTERS}/experiment/units"
ZONES = ("dma", "dma32", "normal", "highmem", "movable", "device")
HISTOGRAM = "fault_ns"
BUCKET = f"{HISTOGRAM}_log2_"
FORMS = "vmstat.KEY, psi.RESOURCE.KEY, cgroup:PATH/FILE[:KEY], arm.POINT.COUNTER, cmd:COMMAND"

Numbers = dict[str, float]


class Sample(NamedTuple):
    """All numbers read at one moment: of the host by source, of each arm by counter."""

    t: float  # seconds since the run began
    host: Numbers
    arms: dict[str, Numbers]


def flatten(text: str) -> Numbers:
    """Return the numbers of a file: one value, `key value` lines, or `key name=value ...`."""
    found: Numbers = {}
    for line in text.splitlines():
        first, *rest = line.split() or [""]
        pairs = [word.partition("=")[::2] for word in rest if "=" in word]
        items = [(f"{first}.{key}", value) for key, value in pairs]
        items = items or ([(first, rest[0])] if rest else [("", first)])
        for key, value in items:
            try:
                found[key] = float(value)
            except ValueError:
                continue
    return found


def _sum_of(numbers: Numbers, key: str) -> float | None:
    """Return a number by key; one that the kernel keeps for each zone is the sum of them."""
    if key in numbers:
        return numbers[key]
    zones = [numbers[f"{key}_{zone}"] for zone in ZONES if f"{key}_{zone}" in numbers]
    return sum(zones) if zones else None


@dataclass(frozen=True)
class Source:
    """Where one number comes from. `rate` means per second."""

    text: str
    kind: str  # host, arm or cmd
    path: str = ""  # of host: the file. Of cmd: the command. Of arm: the point, or "" for units
    key: str = ""
    level: bool = False  # a value that goes up and down; else a counter
    rate: bool = False

    def pick(self, sample: Sample, arm: str) -> Numbers:
        """Return what the sample has of it for an arm; a histogram has several numbers."""
        if self.kind != "arm":
            return {"": sample.host[self.text]}
        if not self.path:
            return {"": sample.arms[arm]["units"]}
        start = f"{self.path}.{BUCKET}"
        if self.key.partition(".")[0] == HISTOGRAM:
            numbers = sample.arms[arm].items()
            return {key.removeprefix(start): n for key, n in numbers if key.startswith(start)}
        return {"": sample.arms[arm].get(f"{self.path}.{self.key}", 0.0)}

    def over(self, window: Sequence[Sample], arm: str) -> float | None:
        """Return the number over a stretch of time: mean, rise, or rise per second."""
        if not window:
            return None
        if not self.path:
            return self.pick(window[-1], arm)[""]
        if self.level and not self.rate:
            return sum(self.pick(sample, arm)[""] for sample in window) / len(window)
        first, last = self.pick(window[0], arm), self.pick(window[-1], arm)
        seconds = window[-1].t - window[0].t
        rise = {key: value - first.get(key, 0.0) for key, value in last.items()}
        if self.kind == "arm" and "" not in rise:
            return _of_histogram(rise, self.key.partition(".")[2])
        if not seconds:
            return None
        return rise[""] / seconds if self.rate else rise[""]


def _of_histogram(rise: Numbers, what: str) -> float | None:
    """Return mean or percentile of log2 buckets; within a bucket, values spread evenly."""
    buckets = sorted((int(key), count) for key, count in rise.items() if count > 0)
    total = sum(count for _, count in buckets)
    if not total:
        return None
    if not what:
        return sum(1.5 * 2.0**n * count for n, count in buckets) / total
    left = total * float(what[1:]) / 100
    for n, count in buckets:
        if left <= count:
            return 2.0**n * (1 + left / count)
        left -= count
    return 2.0 ** (buckets[-1][0] + 1)


def _parse_source(text: str) -> Source:
    body = text.removesuffix("/s")
    rate = body != text
    kind, _, rest = body.partition(".")
    point, _, counter = rest.partition(".")
    if body.startswith("cmd:") and body[4:]:
        return Source(body, "cmd", body[4:], level=True, rate=rate)
    if body.startswith("cgroup:/"):
        path, _, key = body.removeprefix("cgroup:").partition(":")
        return Source(body, "host", f"/sys/fs/cgroup{path}", key, level=True, rate=rate)
    if kind == "vmstat" and rest:
        return Source(body, "host", "/proc/vmstat", rest, rest.startswith("nr_"), rate)
    if kind == "psi" and counter:
        level = not counter.endswith("total")
        return Source(body, "host", f"/proc/pressure/{point}", counter, level, rate)
    if body == "arm.units":
        return Source(body, "arm", level=True)
    if kind == "arm" and _is_counter(counter):
        return Source(body, "arm", point, counter, rate=rate)
    raise click.UsageError(f"'{text}' is no source of numbers; there is: {FORMS}")


def _is_counter(name: str) -> bool:
    if name.startswith(f"{HISTOGRAM}."):
        return bool(re.fullmatch(rf"{HISTOGRAM}\.p\d\d?(\.\d+)?", name))
    return bool(name)


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
        below = _parse_source(bottom.strip()) if slash else None
        return cls(text.strip(), name, _parse_source(top.strip()), below, better)

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


class Reader:
    """Reads all sources but commands at once, each file once."""

    def __init__(self, tree: Tree, sources: Iterable[Source], arms: dict[str, str]) -> None:
        self.tree = tree
        self.sources = list(sources)
        self.arms = arms  # arm -> profile
        self.points = {each.path for each in self.sources if each.kind == "arm" and each.path}

    def read(self, t: float, commands: Numbers | None = None) -> Sample:
        """Return a sample; commands is what those have said."""
        files = {each.path for each in self.sources if each.kind == "host"}
        numbers = {path: flatten(self.tree.read(path)) for path in files}
        host = {
            each.text: self._host(each, numbers) for each in self.sources if each.kind == "host"
        }
        of_arms = any(each.kind == "arm" for each in self.sources)
        arms = {arm: self._arm(arm, profile) for arm, profile in self.arms.items() if of_arms}
        return Sample(t, host | (commands or {}), arms)

    def _host(self, source: Source, numbers: dict[str, Numbers]) -> float:
        value = _sum_of(numbers[source.path], source.key)
        if value is None:
            text = f"no number '{source.key}' in {self.tree.real(source.path)}"
            raise Error(text, Exit.USAGE, f"look into {source.path} for what it has")
        return value

    def _arm(self, arm: str, profile: str) -> Numbers:
        found = dict(self._counters(profile))
        units = flatten(self.tree.read(UNITS)) if self.tree.exists(UNITS) else {}
        return found | {"units": units.get(arm, 0.0)}

    def _counters(self, profile: str) -> Iterator[tuple[str, float]]:
        for point in sorted(self.points):
            for name, value in read_counters(self.tree, profile, point)[point].items():
                if value:
                    yield f"{point}.{name}", float(value)
