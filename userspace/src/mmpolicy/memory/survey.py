# SPDX-License-Identifier: GPL-2.0
"""All processes of a host, looked at a few at a time: what they have, pay and waste.

A look may cost a share of a CPU and no more, but for the first, which counts every process. What
is not reached in one turn comes in the next: first those that nobody has looked at, then the
largest of which least is known.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import nlargest
from math import inf
from operator import itemgetter
from random import Random
from typing import NamedTuple

from mmpolicy.errors import Error, Exit
from mmpolicy.host.cgroups import Charged, cgroup_pids
from mmpolicy.host.files import Tree
from mmpolicy.host.processes import printable
from mmpolicy.memory.folios import PAGE, Frames
from mmpolicy.memory.sample import Sample, take, together

SPOTS = 32  # of a process in a turn
SMALL = 256  # pages: what has less is not sampled
TICKS = 100  # a second, in what the kernel shows
FIELDS = (7, 9, 11, 12, 19, 20, 21)  # those that are needed; 0 is the state
STATUS = re.compile(r"^(RssAnon|THP_enabled):\s+(\d+)", re.MULTILINE)


class Budget:
    """A share of a CPU, by our own CPU time. What a turn spends too much, the next one has less."""

    def __init__(self, share: float, cpu: Callable[[], float]) -> None:
        self._share, self._cpu = share, cpu
        self._left, self._mark = 0.0, cpu()

    def grant(self, seconds: float) -> None:
        """Begin a turn; what the last one has not spent is gone."""
        self._left = min(self.left(), 0.0) + self._share * seconds
        self._mark = self._cpu()

    def forgive(self, seconds: float) -> None:
        """Begin a turn that owes nothing, whatever was spent."""
        self._left, self._mark = self._share * seconds, self._cpu()

    def left(self) -> float:
        """Return what is left of the turn."""
        return self._left - (self._cpu() - self._mark)

    def floor(self, seconds: float) -> float:
        """Return where to stop: at half of a turn from here, even if nothing is left."""
        return min(self.left() - self._share * seconds / 2, 0.0)

    def pause(self, seconds: float) -> float:
        """Return how long to wait; longer if a whole turn would not pay half of what is owed."""
        return seconds + max(-self.left() / self._share - seconds / 2, 0.0)


class Usage(NamedTuple):
    """What stat counts of a process since it began."""

    start: int
    faults: int
    user: int
    system: int
    pages: int  # resident
    is_kernel: bool


class Rates(NamedTuple):
    """What a process, or some of them, pay."""

    faults: float = 0.0  # a second
    cpu: float = 0.0  # of one CPU
    kernel: float = 0.0  # of one CPU, in the kernel, which the faults are a part of


@dataclass
class Process:
    """What is known of a process."""

    pid: int
    name: str
    cgroup: str
    usage: Usage
    looked: float
    rates: Rates = field(default_factory=Rates)
    anon_kib: int = 0
    forbids: bool = False  # large folios, by itself
    sample: Sample = field(default_factory=Sample)
    first: tuple[Usage, float] | None = None  # the first look, and when that was

    @property
    def mean(self) -> Rates:
        """Return what it has paid since the first look."""
        return _rates(*self.first, self.usage, self.looked) if self.first else Rates()

    @property
    def waste_kib(self) -> float:
        """Return how much is empty."""
        return self.anon_kib * self.sample.share


Figure = Callable[[Process], float]
FIGURES: dict[str, Figure] = {
    "waste": lambda each: each.waste_kib if each.anon_kib else each.usage.pages / 1e9,
    "memory": lambda each: each.usage.pages,
    "faults": lambda each: each.rates.faults,
    "cpu": lambda each: each.rates.cpu,
}


@dataclass(frozen=True)
class Row:
    """What a process, or the processes of a cgroup, have, pay and waste."""

    name: str  # of the program, or the path of the cgroup
    is_cgroup: bool
    pids: tuple[int, ...]
    cgroup: str
    rss_kib: int
    anon_kib: int  # of those that were sampled
    seen: float  # part of the memory whose owner was sampled
    waste_kib: float
    error_kib: float
    rates: Rates
    sizes: dict[int, float]  # part of the anonymous memory by order
    forbids: tuple[str, ...]  # programs that forbid large folios by themselves


def _rates(old: Usage, then: float, new: Usage, now: float) -> Rates:
    """Return what was paid between two looks."""
    if now <= then:
        return Rates()
    user, system = new.user - old.user, new.system - old.system
    ticks = TICKS * (now - then)
    return Rates((new.faults - old.faults) / (now - then), (user + system) / ticks, system / ticks)


def read_usage(tree: Tree, pid: int) -> tuple[str, Usage] | None:
    """Return name and counts of a process; nothing if it has ended, or its file is no such one."""
    try:
        text = tree.read_at(f"/proc/{pid}/stat", PAGE)
    except Error:
        return None
    # The name, which is in parentheses, may have spaces and parentheses itself.
    head, _, rest = text.rpartition(b")")
    fields = rest.split(None, FIELDS[-1] + 1)
    needed = [fields[n] for n in FIELDS if n < len(fields)]
    if len(needed) < len(FIELDS) or not b"".join(needed).isdigit():
        return None
    minor, major, user, system, start, size, pages = map(int, needed)
    name = printable(head.partition(b"(")[2].decode(errors="replace"))
    return name, Usage(start, minor + major, user, system, pages, not size)


class Survey:
    """Looks at processes within a budget."""

    def __init__(
        self,
        tree: Tree,
        share: float,
        within: str = "",
        cpu: Callable[[], float] = time.process_time,
        seed: int | None = None,
    ) -> None:
        self.tree, self.within = tree, within
        self.budget = Budget(share, cpu)
        self.processes: dict[int, Process] = {}
        self.blind = ""  # why contents cannot be looked at
        self._charged = Charged(tree)
        self._ignored: set[int] = set()
        self._listed: set[int] = set()
        self._turn, self._born = -inf, set[int]()  # when it was, and who began since
        self._rng = Random(seed)

    def turn(self, now: float, seconds: float) -> None:
        """Look at as much as there is time for; a turn is wanted every so many seconds.

        The first time each process is counted, whatever that takes, so that nobody sees an empty
        list. Where the list of processes alone takes what was granted, there are still some looks,
        and the budget asks for a longer pause.
        """
        first = self._turn == -inf
        self.budget.grant(now - self._turn)
        pids = self._list()
        floor = self.budget.floor(seconds)
        self._visit(pids, now, -inf if first else (self.budget.left() + floor) / 2)
        if first:
            self.budget.forgive(seconds)
        self._sample(now, 0.0 if first else floor)
        self._turn = now

    def _list(self) -> list[int]:
        """Forget who has ended; return who is there, those that were not looked at first."""
        if self.within:
            names: Iterable[str] = cgroup_pids(self.tree, self.within)
        else:
            names = self.tree.inodes("/proc")
        there = {int(name) for name in names if name.isdigit()}
        self._born = there - self._listed if self._listed else set()
        self._listed = there
        self._ignored &= there
        self.processes = {pid: each for pid, each in self.processes.items() if pid in there}
        looked = {pid: each.looked for pid, each in self.processes.items()}
        return sorted(there - self._ignored, key=lambda pid: looked.get(pid, -inf))

    def _visit(self, pids: list[int], now: float, reserve: float) -> None:
        """Read what a process has used, until so much of the budget is left."""
        for pid in pids:
            if self.budget.left() < reserve:
                return
            found = read_usage(self.tree, pid)
            if not found:
                self.processes.pop(pid, None)
            elif found[1].is_kernel:
                self._ignored.add(pid)
            else:
                self._keep(pid, *found, now)

    def _keep(self, pid: int, name: str, usage: Usage, now: float) -> None:
        known = self.processes.get(pid)
        if not known or known.usage.start != usage.start:
            known = Process(pid, name, self._charged.name(pid), usage, now)
            self.processes[pid] = known
            if pid not in self._born:
                return
            known.usage, known.looked = usage._replace(faults=0, user=0, system=0), self._turn
        known.first = known.first or (known.usage, known.looked)
        known.rates = _rates(known.usage, known.looked, usage, now)
        known.name, known.usage, known.looked = name, usage, now

    def _sample(self, now: float, reserve: float) -> None:
        """Look into memory, the largest of which least is known first, until so much is left."""
        due = [each for each in self.processes.values() if each.usage.pages >= SMALL]
        due.sort(key=lambda each: -each.usage.pages / (1 + each.sample.weight(now)))
        denied = ""
        for process in due if self._can_look() else ():
            if self.budget.left() <= reserve:
                break
            try:
                status = dict(STATUS.findall(self.tree.read(f"/proc/{process.pid}/status")))
                process.sample.age(now)
                take(self.tree, process.pid, process.sample, self._rng, SPOTS)
            except Error as err:
                if err.exit_code == Exit.DENIED:
                    denied = f"{err.message}; next: {err.next_step}"
                continue  # else it has just ended
            process.anon_kib = int(status.get("RssAnon", process.usage.pages * PAGE >> 10))
            process.forbids = status.get("THP_enabled") == "0"
        if denied and not any(each.sample.spots for each in self.processes.values()):
            self.blind = denied

    def _can_look(self) -> bool:
        try:
            Frames(self.tree).kind(0)
        except Error as err:
            self.blind = f"{err.message}; next: {err.next_step}"
            return False
        self.blind = ""
        return True

    def most(self, figure: Figure, number: int) -> tuple[list[Row], list[Row]]:
        """Return the cgroups and the processes of which a figure is largest, so many of each."""
        figures = [(figure(each), each) for each in self.processes.values()]
        sums = defaultdict[str, float](float)
        for value, each in figures:
            sums[each.cgroup] += value
        first = nlargest(number, sums, key=sums.__getitem__)
        members: dict[str, list[Process]] = {path: [] for path in first}
        for each in self.processes.values():
            if each.cgroup in members:
                members[each.cgroup].append(each)
        largest = nlargest(number, figures, key=itemgetter(0))
        by_cgroup = [_row(path, True, some) for path, some in members.items()]
        return by_cgroup, [_row(each.name, False, [each]) for _, each in largest]

    def seen(self) -> float:
        """Return which part of all memory belongs to who was sampled."""
        pages = sum(each.usage.pages for each in self.processes.values())
        sampled = sum(e.usage.pages for e in self.processes.values() if e.sample.spots)
        return sampled / pages if pages else 1.0


def _row(name: str, is_cgroup: bool, some: list[Process]) -> Row:
    rss = sum(each.usage.pages for each in some) * PAGE >> 10
    sampled = [each for each in some if each.sample.spots]
    seen = sum(each.usage.pages for each in sampled) * PAGE >> 10
    anon = sum(each.anon_kib for each in sampled)
    waste, error = together(
        [(each.waste_kib, each.anon_kib * each.sample.error) for each in sampled]
    )
    rates = Rates(*(sum(column) for column in zip(*(each.rates for each in some))))
    sizes: dict[int, float] = {}
    for each in sampled if anon else ():
        for order, part in each.sample.sizes().items():
            sizes[order] = sizes.get(order, 0.0) + part * each.anon_kib / anon
    pids = tuple(each.pid for each in some)
    forbids = tuple(sorted({each.name for each in some if each.forbids}))
    seen_part = seen / rss if rss else 1.0
    return Row(
        name,
        is_cgroup,
        pids,
        some[0].cgroup,
        rss,
        anon,
        seen_part,
        waste,
        error,
        rates,
        sizes,
        forbids,
    )
