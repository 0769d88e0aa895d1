# SPDX-License-Identifier: GPL-2.0
"""Sources of numbers, one class for each kind, and the samples that hold their readings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from math import nan
from re import fullmatch
from typing import NamedTuple

from mmpolicy.control.counters import COUNTERS, Bucket, histograms, read_counters, time_of
from mmpolicy.errors import Error, Exit
from mmpolicy.host.cgroups import cgroup_folder, cgroup_folders, cgroup_list, charging
from mmpolicy.host.evidence import STAT, cpu_times
from mmpolicy.host.files import KNOB_FOLDERS, Tree

Numbers = dict[str, float]

ARMS = ("control", "treatment")
ZONES = ("dma", "dma32", "normal", "highmem", "movable", "device")
# Which numbers in files of a cgroup are counters, so that only their rise counts. Each entry has a
# regular expression for the file's name and one for the key in the file.
COUNTERS_OF = (
    (r"memory\.(numa_)?stat", r"(pg|thp_|numa_|workingset_|z?swpin|z?swpout|zswpwb).*"),
    (r"(?!cgroup\.).+\.events(\.local)?", r".+"),
    (r"cpu\.stat(\.local)?|io\.stat", r".+"),
    (r".+\.pressure", r".+\.total"),
)
UNITS_FILE = f"{COUNTERS}/experiment/units"


def flatten(text: str) -> Numbers:
    """Return the numbers in a file, by key. The file has a single value, lines `key value`, or
    lines `key name=value ...`.
    """
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


def sum_of_zones(numbers: Numbers, key: str) -> float | None:
    """Return the number with this key in /proc/vmstat or a similar file. If the kernel keeps the
    number for each memory zone, return the sum over the zones; None if there is no such number.
    """
    if key in numbers:
        return numbers[key]
    zones = [numbers[f"{key}_{zone}"] for zone in ZONES if f"{key}_{zone}" in numbers]
    return sum(zones) if zones else None


def without_zones(names: Iterable[str]) -> list[str]:
    """Return all names, and for a name that ends in a memory zone also the name without the zone,
    as sum_of_zones() accepts both.
    """
    found = list(names)
    return found + [name.rpartition("_")[0] for name in found if name.rpartition("_")[2] in ZONES]


def falls(values: Sequence[float]) -> bool:
    """Return whether any value is below the one before it."""
    return any(after < before for before, after in zip(values, values[1:]))


def only_rises(file: str, key: str) -> bool:
    """Return whether a key in a file of a cgroup is a counter."""
    return any(fullmatch(name, file) and fullmatch(keys, key) for name, keys in COUNTERS_OF)


def is_average(key: str) -> bool:
    """Return whether a key of a pressure file is a moving average."""
    return key.rpartition(".")[2].startswith("avg")


class Sample(NamedTuple):
    """All numbers that were read at one moment: those of the host by source, and those of each arm
    by counter.
    """

    t: float  # seconds since the run began
    host: Numbers
    arms: dict[str, Numbers]
    # numbers of each unit, by source; a unit is named by the path of its cgroup
    units: Mapping[str, Numbers] = {}


@dataclass(frozen=True)
class Source:
    """The place that a metric's number is read from, in the notation of the user. rate: the metric
    is not the number, but its rise per second.
    """

    text: str
    rate: bool

    @property
    def averaged(self) -> bool:
        """Return whether the number is a moving average, such as avg10 of PSI. It still contains
        values of earlier blocks, so it blurs the difference between arms.
        """
        return False

    @property
    def level(self) -> bool:
        """Return whether the number is a level, whose mean over the samples counts. Otherwise it is
        a counter, whose rise counts.
        """
        return True

    @property
    def momentary(self) -> bool:
        """Return whether a single sample is enough for a value; False for a counter or a rate."""
        return self.level and not self.rate

    @property
    def counts(self) -> bool:
        """Return whether the number is known to only rise. If it falls nevertheless, its counter
        has restarted, and the window of samples has no value.
        """
        return not self.level

    def value(self, sample: Sample, _arm: str) -> float:
        return sample.host[self.text]

    def over(self, window: Sequence[Sample], arm: str) -> float | None:
        """Return the value over a window of samples: the mean of a level, the rise of a counter, or
        the rise per second. None if the window has no value.
        """
        if not window:
            return None
        values = [self.value(sample, arm) for sample in window]
        if self.momentary:
            return sum(values) / len(values)
        rise, seconds = values[-1] - values[0], window[-1].t - window[0].t
        if not seconds or (self.counts and falls(values)):
            return None
        return rise / seconds if self.rate else rise


@dataclass(frozen=True)
class Command(Source):
    """A source: the last number that a command prints."""

    command: str

    @property
    def counts(self) -> bool:
        """Return whether the printed number only rises. It is taken to do so if the user wrote /s
        after the command.
        """
        return self.rate


@dataclass(frozen=True)
class HostFile(Source):
    """A source: a number in a file of the host."""

    @property
    def path(self) -> str:
        """Return the usual path of the file."""
        raise NotImplementedError

    key: str

    def place(self, _tree: Tree) -> str:
        """Return the path of the file on this host, which may differ from `path`."""
        return self.path

    def numbers(self, text: str) -> Numbers:
        """Parse the text of the file."""
        return flatten(text)

    def find(self, tree: Tree, numbers: Numbers) -> float:
        """Return the number of this source, given all numbers of its file. If it is missing, raise
        an error that suggests a similar key.
        """
        value = sum_of_zones(numbers, self.key)
        if value is None:
            close = get_close_matches(self.key, without_zones(numbers))
            hint = f"did you mean {close[0]}?" if close else f"look into {self.place(tree)}"
            text = f"{tree.real(self.place(tree))} has no number '{self.key}'"
            raise Error(text, Exit.USAGE, hint)
        return value


@dataclass(frozen=True)
class Vmstat(HostFile):
    """A source: a line of /proc/vmstat; nr_* are levels, all other lines are counters."""

    @property
    def path(self) -> str:
        return "/proc/vmstat"

    @property
    def level(self) -> bool:
        return self.key.startswith("nr_")


@dataclass(frozen=True)
class CpuTime(HostFile):
    """A source: CPU time of the whole host in seconds, a counter."""

    @property
    def path(self) -> str:
        return STAT

    @property
    def level(self) -> bool:
        return False

    def numbers(self, text: str) -> Numbers:
        """Parse the text of the file."""
        return cpu_times(text)


@dataclass(frozen=True)
class Psi(HostFile):
    """A source: a number of /proc/pressure; `total` is a counter, averages are levels."""

    resource: str

    @property
    def averaged(self) -> bool:
        return is_average(self.key)

    @property
    def path(self) -> str:
        return f"/proc/pressure/{self.resource}"

    @property
    def level(self) -> bool:
        return not self.key.endswith("total")


@dataclass(frozen=True)
class HugePages(HostFile):
    """A source: a file below transparent_hugepage; nr_* are levels, all other files counters."""

    file: str

    @property
    def path(self) -> str:
        return f"{KNOB_FOLDERS[0]}/{self.file}"

    @property
    def level(self) -> bool:
        return self.file.rpartition("/")[2].startswith("nr_")


@dataclass(frozen=True)
class CgroupFile(HostFile):
    """A source: a number in a file of a cgroup. cgroup v1 has several hierarchies; the file is read
    in the one in which the cgroup has it.
    """

    file: str

    @property
    def path(self) -> str:
        """Return the path that the file has on a host with cgroup v2 only."""
        return f"/sys/fs/cgroup{self.file}"

    def place(self, tree: Tree) -> str:
        """Return the path of the file in the cgroup hierarchy that has it; raise an error if there
        is no such cgroup or file.
        """
        cgroup, _, file = self.file.rpartition("/")
        folders = cgroup_folders(tree, cgroup or "/")
        if not folders:
            close = get_close_matches(cgroup, cgroup_list(tree))
            hint = (
                f"did you mean {close[0]}?"
                if close
                else "mmpolicy thp --cgroup / lists all cgroups"
            )
            places = ", ".join(str(tree.real(each.mount)) for each in charging(tree))
            raise Error(f"no cgroup '{cgroup}' in {places}", Exit.USAGE, hint)
        found = [f"{each}/{file}" for each in folders if tree.exists(f"{each}/{file}")]
        if not found:
            hint = (
                f"look into {folders[0]} for the files that it has; cgroup.subtree_control "
                "of its parent turns controllers on"
            )
            raise Error(f"there is no file '{file}' in {', '.join(folders)}", Exit.USAGE, hint)
        return found[0]

    @property
    def averaged(self) -> bool:
        return self.file.endswith(".pressure") and is_average(self.key)

    @property
    def counts(self) -> bool:
        """Return whether the number is a counter, so that its fall means a restart."""
        return only_rises(self.file.rpartition("/")[2], self.key)


@dataclass(frozen=True)
class UnitFile(Source):
    """A source: a number in a file of each cgroup that is a unit of a split run. In the methods,
    the path of a unit takes the place of the arm.
    """

    file: str
    key: str

    def value(self, sample: Sample, unit: str) -> float:
        """Return the number of a unit in a sample; nan if the unit has ended."""
        return sample.units.get(unit, {}).get(self.text, nan)

    @property
    def averaged(self) -> bool:
        return self.file.endswith(".pressure") and is_average(self.key)

    @property
    def counts(self) -> bool:
        """Return whether the number is a counter, so that its fall means a restart."""
        return only_rises(self.file, self.key)


@dataclass(frozen=True)
class Units(Source):
    """A source: the number of units that an arm has had in the present block."""

    def value(self, sample: Sample, arm: str) -> float:
        return sample.arms[arm]["units"]

    def over(self, window: Sequence[Sample], arm: str) -> float | None:
        """Return the number of units in the last sample: the kernel counts from 0 in each block."""
        return self.value(window[-1], arm) if window else None


@dataclass(frozen=True)
class Arm(Source):
    """A source: a counter of a decision point in the profile of an arm."""

    point: str
    counter: str

    @property
    def level(self) -> bool:
        return False

    def value(self, sample: Sample, arm: str) -> float:
        """Return the counter in a sample, 0 if it is missing: samples leave out counters of 0."""
        return sample.arms[arm].get(f"{self.point}.{self.counter}", 0.0)


@dataclass(frozen=True)
class ArmTimes(Arm):
    """A source: mean or percentile of times in ns, from a sum and a histogram of the kernel."""

    percentile: float | None

    def over(self, window: Sequence[Sample], arm: str) -> float | None:
        """Return mean or percentile of the times measured between the first and the last sample of
        a window; None if no time was measured, or if a counter has restarted.
        """
        if not window:
            return None
        first, last = (self._counts(sample.arms[arm]) for sample in (window[0], window[-1]))
        rise = {n: count - first.get(n, 0.0) for n, count in last.items()}
        if any(last.get(n, 0.0) < count for n, count in first.items()):
            return None
        spent = self.value(window[-1], arm) - self.value(window[0], arm)
        return time_of(rise, self.percentile, spent)

    def _counts(self, numbers: Numbers) -> dict[Bucket, float]:
        return histograms(numbers).get(f"{self.point}.{self.counter}", {})


class Reader:
    """Reads all sources of a run except commands, each file only once per sample."""

    def __init__(self, tree: Tree, sources: Iterable[Source], arms: dict[str, str]) -> None:
        self.tree = tree
        chosen = list(sources)
        self.files = [each for each in chosen if isinstance(each, HostFile)]
        self.of_units = [each for each in chosen if isinstance(each, UnitFile)]
        self.points = {each.point for each in chosen if isinstance(each, Arm)}
        of_arms = any(isinstance(each, (Arm, Units)) for each in chosen)
        self.arms = arms if of_arms else {}  # profile of each arm

    def read(self, t: float, commands: Numbers | None = None, units: Iterable[str] = ()) -> Sample:
        """Read all files now, and return them as a sample.

        t: seconds since the run began. commands: numbers that commands have printed, by source.
        units: paths of the units to read.
        """
        places = {each: each.place(self.tree) for each in self.files}
        files = {path: each for each, path in places.items()}
        numbers = {path: each.numbers(self.tree.read(path)) for path, each in files.items()}
        host = {each.text: each.find(self.tree, numbers[path]) for each, path in places.items()}
        arms = {arm: self._arm(arm, profile) for arm, profile in self.arms.items()}
        own = {unit: self.unit(unit) for unit in units} if self.of_units else {}
        return Sample(t, host | (commands or {}), arms, own)

    def unit(self, unit: str) -> Numbers:
        """Return the numbers of a unit, by source. Files and keys that the cgroup of the unit lacks
        are left out.
        """
        base = cgroup_folder(self.tree, unit)
        texts: dict[str, Numbers] = {}
        found: Numbers = {}
        for each in self.of_units:
            try:
                if each.file not in texts:
                    texts[each.file] = flatten(self.tree.read(f"{base}/{each.file}"))
            except Error:
                texts[each.file] = {}
            number = sum_of_zones(texts[each.file], each.key)
            if number is not None:
                found[each.text] = number
        return found

    def _arm(self, arm: str, profile: str) -> Numbers:
        found = dict(self._counters(profile))
        units = flatten(self.tree.read(UNITS_FILE)) if self.tree.exists(UNITS_FILE) else {}
        return found | {"units": units.get(arm, 0.0)}

    def _counters(self, profile: str) -> Iterator[tuple[str, float]]:
        for point in sorted(self.points):
            for name, value in read_counters(self.tree, profile, point)[point].items():
                if value:
                    yield f"{point}.{name}", float(value)
