# SPDX-License-Identifier: GPL-2.0
"""All processes of a host, looked at a few at a time: what they have, pay and waste.

A look may cost a share of a CPU and no more, but for the first, which counts every process. What
is not reached in one turn comes in the next: first those that nobody has looked at, then the
largest of which least is known. No look holds up a process for longer than the limit of a Holds.

A process has what its counters say; a cgroup has what the kernel charges it with, which is another
sum: pages that several processes share are there once, and pages that were charged elsewhere, as
a process was moved or another one touched them first, are where they are charged.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from heapq import nlargest
from math import inf
from operator import itemgetter
from random import Random
from typing import NamedTuple, cast

from mmpolicy.errors import Error, Exit
from mmpolicy.host.cgroups import Charged, cgroup_pids
from mmpolicy.host.files import Tree
from mmpolicy.host.processes import printable
from mmpolicy.memory.charged import Account, Owners, account_of
from mmpolicy.memory.folios import PAGE
from mmpolicy.memory.holds import Holds
from mmpolicy.memory.reach import INTO_KIB, Reach, reach
from mmpolicy.memory.sample import MORE_TRIES, TRIES, Layout, Looker, Sample, together
from mmpolicy.memory.space import Sizes, Space

KINDS = ("private", "shared")  # of memory that is looked into
SPOTS = 32  # of a process in a turn, and more if there is time left
OTHERS = ("lazily_freed", "locked", "partly_unmapped")
ENOUGH = 512  # spots of each process are worth, until then a turn goes on if there is time left
SMALL = 256  # pages: what has less is not sampled
TICKS = 100  # a second, in what the kernel shows
PLANNED = 0.95  # of a share: the rest is for keys, the screen, and a debt that is never paid
FIELDS = (7, 9, 11, 12, 19, 20, 21)  # those that are needed; 0 is the state


class Budget:
    """A share of a CPU, by our own CPU time. What a turn spends too much, the next one has less."""

    def __init__(self, share: float, cpu: Callable[[], float]) -> None:
        self._share, self._cpu = share * PLANNED, cpu
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
    sizes: Sizes | None = None  # when it was looked into last
    ksm_kib: int = 0  # then, merged by KSM
    sample: Sample = field(default_factory=Sample)  # of its private memory
    shared: Sample = field(default_factory=Sample)
    layout: Layout = field(default_factory=Layout)
    first: tuple[Usage, float] | None = None  # the first look, and when that was

    @property
    def mean(self) -> Rates:
        """Return what it has paid since the first look."""
        return _rates(*self.first, self.usage, self.looked) if self.first else Rates()

    @property
    def rss_kib(self) -> int:
        """Return how much is resident now."""
        return self.usage.pages * PAGE >> 10

    def _of_now(self, kib: int) -> float:
        """Return what a size is now, if it has grown or shrunk with the rest since it was read."""
        return kib * self.rss_kib / self.sizes.rss if self.sizes and self.sizes.rss else 0.0

    @property
    def anon_kib(self) -> float:
        """Return how much private memory is resident; 0 before a look into it."""
        return self._of_now(self.sizes.anon) if self.sizes else 0.0

    @property
    def shared_kib(self) -> float:
        """Return how much shared memory is resident; 0 before a look into it."""
        return self._of_now(self.sizes.shared) if self.sizes else 0.0

    @property
    def forbids(self) -> bool:
        """Tell if it forbids large folios by itself."""
        return bool(self.sizes and not self.sizes.thp_enabled)

    @property
    def waste_kib(self) -> float:
        """Return how much is empty, of private and of shared memory."""
        return self.anon_kib * self.sample.share + self.shared_kib * self.shared.share

    @property
    def parts(self) -> list[tuple[Sample, float]]:
        """Return what was seen of each kind of memory, and how much there is of it."""
        return [(self.sample, self.anon_kib), (self.shared, self.shared_kib)]

    @property
    def kinds(self) -> dict[str, float]:
        """Return its memory in kB by kind; what is not known of it is not there."""
        sizes = self.sizes
        if not sizes:
            return {}
        found = {
            "private": self.anon_kib, "shared": self.shared_kib, "file": self._of_now(sizes.file),
            "swapped": float(sizes.swap), "hugetlb": float(sizes.hugetlb),
            "ksm": min(float(self.ksm_kib), self.anon_kib),
        }  # fmt: skip
        for name in OTHERS:
            if any(sample.spots for sample, _ in self.parts):
                found[name] = sum(sample.part(name) * kib for sample, kib in self.parts)
        return found

    @property
    def unseen(self) -> dict[str, float]:
        """Return what was not looked at, in kB by kind."""
        if not self.sizes:
            return {"any": float(self.rss_kib)}
        found = {
            name: kib for name, (sample, kib) in zip(KINDS, self.parts) if kib and not sample.spots
        }
        return found | ({"hugetlb": float(self.sizes.hugetlb)} if self.sizes.hugetlb else {})


Figure = Callable[[Process], float]
FIGURES: dict[str, Figure] = {
    "waste": lambda each: each.waste_kib if each.sizes else each.usage.pages / 1e9,
    "memory": lambda each: each.usage.pages,
    "faults": lambda each: each.rates.faults,
    "cpu": lambda each: each.rates.cpu,
}


@dataclass(frozen=True)
class Row:
    """What a process has, pays and wastes, or the processes of a cgroup; sizes are in kB.

    `kinds` has "private", "shared", "file", "swapped", "hugetlb" and "ksm", of a cgroup the part
    of the swapped memory that is "zswapped", and estimates of what is "lazily_freed" at most,
    "locked", and "partly_unmapped", which is in no RSS. `unseen` is what was not looked at:
    "private", "shared", "hugetlb", or "any". Of a cgroup, all but `kinds` and `elsewhere_kib` is
    of the memory that it is charged with; without a controller, of its RSS.
    """

    name: str  # of the program, or the path of the cgroup
    is_cgroup: bool
    pids: tuple[int, ...]
    cgroup: str
    rss_kib: int  # of a cgroup: memory.current, if there is one
    anon_kib: int  # of those that were sampled
    seen: float  # part of the memory whose owner was sampled
    waste_kib: float
    error_kib: float
    rates: Rates
    sizes: dict[int, float]  # part of the sampled memory by order
    forbids: tuple[str, ...]  # programs that forbid large folios by themselves
    waste_shared_kib: float = 0.0  # of the waste; the kernel gives none of it back
    kinds: dict[str, float] = field(default_factory=dict)
    unseen: dict[str, float] = field(default_factory=dict)
    elsewhere_kib: float = 0.0  # that its processes use, and another cgroup is charged with


class Charge(NamedTuple):
    """What was seen of a process, of one kind, that one cgroup is charged with, in kB."""

    process: Process
    kind: str
    kib: float
    empty_kib: float
    error_kib: float


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


def ksm_of(tree: Tree, pid: int) -> int:
    """Return how much of a process KSM has merged, in kB.

    The kernel counts it. Linux 6.12 sets the bit in kpageflags for all anonymous memory.
    """
    try:
        return int(tree.read_at(f"/proc/{pid}/ksm_merging_pages", PAGE)) * PAGE >> 10
    except (Error, ValueError):  # Linux before 5.19, no KSM, or the process has ended
        return 0


class Survey:
    """Looks at processes within a budget."""

    def __init__(
        self,
        tree: Tree,
        share: float,
        within: str = "",
        cpu: Callable[[], float] = time.process_time,
        seed: int | None = None,
        holds: Holds | None = None,
    ) -> None:
        self.tree, self.within = tree, within
        self.holds = holds or Holds(tree)
        self.budget = Budget(share, cpu)
        self.processes: dict[int, Process] = {}
        self._owners, self._looks = Owners(tree), cast("Looker | None", None)
        self.blind = ""  # why contents cannot be looked at
        self._charged = Charged(tree)
        self._reach: dict[tuple[int, int, int], Reach] = {}
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

    def reach(self, pid: int) -> Reach | None:
        """Return what keeps policies from a process; asked again when its memory has doubled."""
        each = self.processes[pid]
        key = pid, each.usage.start, each.rss_kib.bit_length()
        if key not in self._reach:
            try:
                self._reach[key] = reach(self.tree, pid, self.holds, into_kib=INTO_KIB)
            except Error:  # it has ended, or is of somebody else
                return None
        return self._reach[key]

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
        self._reach = {key: each for key, each in self._reach.items() if key[0] in there}
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
        """Look into memory, the largest of which least is known first, until so much is left.

        Each process comes once, and again if there is time left and more is to be known of it.
        """
        due = [each for each in self.processes.values() if each.usage.pages >= SMALL]
        looker, denied = self._looker(), ""
        while looker and due:
            due.sort(key=lambda each: -each.usage.pages / (1 + each.sample.weight(now)))
            more = list[Process]()
            for process in due:
                if self.budget.left() <= reserve:
                    more.clear()
                    break
                known = process.sample.spots + process.shared.spots
                try:
                    self._look(looker, process, now)
                except Error as err:
                    if err.exit_code == Exit.DENIED:
                        denied = f"{err.message}; next: {err.next_step}"
                    continue  # else it has just ended
                if known < process.sample.spots + process.shared.spots < ENOUGH:
                    more.append(process)
            due = more
        if denied and not any(each.sample.spots for each in self.processes.values()):
            self.blind = denied

    def _look(self, looker: Looker, process: Process, now: float) -> None:
        space = Space(self.tree, process.pid, self.holds)
        sizes = space.sizes()
        if not sizes.rss:  # of counters that were added together while they changed
            sizes = sizes._replace(rss=sizes.anon + sizes.file + sizes.shared)
        for sample in process.sample, process.shared:
            sample.age(now)
        process.layout.refresh(space, sizes, now)
        tries = TRIES if process.layout.can_scan else MORE_TRIES
        some = max(sizes.anon + sizes.shared, 1)
        for sample, places, kib in (
            (process.sample, process.layout.private, sizes.anon),
            (process.shared, process.layout.shared, sizes.shared),
        ):
            looker.take(space, places, sample, -(-SPOTS * kib // some), tries)
        process.sizes, process.ksm_kib = sizes, ksm_of(self.tree, process.pid)
        process.cgroup = self._charged.name(process.pid)  # it may have been moved

    def _looker(self) -> Looker | None:
        """Return who looks; nothing where frames of memory are not shown to us."""
        try:
            self._looks = self._looks or Looker(self.tree, self._rng)
            self.tree.reader("/proc/kpageflags").read(8, 0)
        except Error as err:
            self.blind = f"{err.message}; next: {err.next_step}"
            return None
        self.blind = ""
        self._looks.frames.forget()
        return self._looks

    def most(self, figure: Figure, number: int) -> tuple[list[Row], list[Row]]:
        """Return the cgroups and the processes of which a figure is largest, so many of each."""
        figures = [(figure(each), each) for each in self.processes.values()]
        members, sums = defaultdict[str, list[Process]](list), defaultdict[str, float](float)
        for value, each in figures:
            members[each.cgroup].append(each)
            sums[each.cgroup] += value
        charges = self._charges()
        for path, some in charges.items():
            if path not in sums and not self.within:  # it has memory, and no process
                sums[path] = sum(each.empty_kib for each in some)
        first = nlargest(number, sums, key=sums.__getitem__)
        largest = nlargest(number, figures, key=itemgetter(0))
        by_cgroup = [
            _cgroup_row(path, members.get(path, []), charges, account_of(self.tree, path))
            for path in first
        ]
        return by_cgroup, [_row(each.name, False, [each]) for _, each in largest]

    def _charges(self) -> dict[str, list[Charge]]:
        """Return what was seen of all processes, by the cgroup that is charged with it."""
        found = defaultdict[str, list[Charge]](list)
        for each in self.processes.values():
            if not each.sizes:  # it was not looked into: with many processes, these are most
                continue
            for kind, (sample, kib) in zip(KINDS, each.parts):
                for number in sample.owners:
                    path = self._owners.name(number) if number > 0 else None
                    pages, empty = sample.charged(number)
                    error = kib * sample.error * min(pages, 1.0)
                    charge = Charge(each, kind, kib * pages, kib * empty, error)
                    found[path or each.cgroup].append(charge)
        return found

    def seen(self) -> float:
        """Return which part of all memory belongs to who was sampled."""
        pages = sum(each.usage.pages for each in self.processes.values())
        sampled = sum(e.usage.pages for e in self.processes.values() if e.sample.spots)
        return sampled / pages if pages else 1.0


def _row(name: str, is_cgroup: bool, some: list[Process]) -> Row:
    """Return the sums over some processes."""
    rss = sum(each.rss_kib for each in some)
    sampled = [each for each in some if each.sample.spots or each.shared.spots]
    parts = [part for each in sampled for part in each.parts if part[0].spots]
    known = sum(kib for _, kib in parts)
    waste, error = together([(kib * part.share, kib * part.error) for part, kib in parts])
    sizes: dict[int, float] = {}
    for part, kib in parts if known else ():
        for order, share in part.sizes().items():
            sizes[order] = sizes.get(order, 0.0) + share * kib / known
    paid = zip(*(each.rates for each in some))
    return Row(
        name=name,
        is_cgroup=is_cgroup,
        pids=tuple(each.pid for each in some),
        cgroup=some[0].cgroup if some else name,
        rss_kib=rss,
        anon_kib=round(sum(each.anon_kib for each in sampled)),
        seen=sum(each.rss_kib for each in sampled) / rss if rss else 1.0,
        waste_kib=waste,
        error_kib=error,
        rates=Rates(*(sum(column) for column in paid)),
        sizes=sizes,
        forbids=tuple(sorted({each.name for each in some if each.forbids})),
        waste_shared_kib=sum(each.shared_kib * each.shared.share for each in sampled),
        kinds=_added(each.kinds for each in some),
        unseen=_added(each.unseen for each in some),
    )


def _added(some: Iterable[dict[str, float]]) -> dict[str, float]:
    found = defaultdict[str, float](float)
    for each in some:
        for name, kib in each.items():
            found[name] += kib
    return dict(found)


def _cgroup_row(
    path: str, some: list[Process], charges: dict[str, list[Charge]], said: Account | None
) -> Row:
    """Return what a cgroup is charged with, by all processes that map it.

    Where the samples of several processes add up to more than the kernel says of a kind, the part
    that is empty is right and the sum is not: the figures are that part of the kernel's.
    """
    row, mine = _row(path, True, some), charges.get(path, [])
    seen = {kind: sum(each.kib for each in mine if each.kind == kind) for kind in KINDS}
    scale = dict.fromkeys(KINDS, 1.0)
    if said:
        there = {"private": said.private, "shared": said.shared}
        scale = {kind: min(there[kind] / seen[kind], 1.0) if seen[kind] else 1.0 for kind in KINDS}
    waste = {
        kind: sum(each.empty_kib for each in mine if each.kind == kind) * scale[kind]
        for kind in KINDS
    }
    _, error = together([(0.0, each.error_kib * scale[each.kind]) for each in mine])
    members = {each.pid for each in some}
    away = sum(
        each.kib
        for other, elsewhere in charges.items()
        for each in elsewhere
        if other != path and each.process.pid in members
    )
    row = replace(
        row,
        waste_kib=round(sum(waste.values()), 3),
        waste_shared_kib=waste["shared"],
        error_kib=error,
        elsewhere_kib=away,
    )
    if not said:
        return row
    return _as_charged(row, said, {kind: seen[kind] * scale[kind] for kind in KINDS})


def _as_charged(row: Row, said: Account, seen: dict[str, float]) -> Row:
    """Return a row of a cgroup with what the kernel says of its memory."""
    there = {"private": float(said.private), "shared": float(said.shared), "file": float(said.file)}
    limits = dict.fromkeys((*OTHERS, "ksm"), there["private"] + there["shared"])
    limits["partly_unmapped"] = max(said.memory - sum(there.values()), 0.0)
    kinds = {
        name: min(kib, limits[name]) if name in limits else kib
        for name, kib in row.kinds.items()
        if name not in there
    }
    if said.zswapped:
        kinds["zswapped"] = float(said.zswapped)
    unseen = {kind: there[kind] - seen[kind] for kind in KINDS if there[kind] - seen[kind] >= 1}
    unseen |= {name: kib for name, kib in row.unseen.items() if name == "hugetlb"}
    whole = there["private"] + there["shared"]
    return replace(
        row,
        rss_kib=said.memory,
        anon_kib=round(seen["private"]),
        kinds=there | kinds,
        unseen=unseen,
        seen=min(sum(seen.values()) / whole, 1.0) if whole else 1.0,
    )
