# SPDX-License-Identifier: GPL-2.0
"""Survey all processes of a host, a few at a time: their memory, CPU time and empty memory.

The survey works in turns. A turn may take a share of a CPU and no more, except the first turn,
which reads the counters of every process. Processes that one turn does not reach come in the next:
first those never visited, then large ones with few samples. No read holds the mmap_lock of a
process for longer than the limit of a Holds.

The memory of a process is the sum of its counters. The memory of a cgroup is the sum that the
kernel charges to this cgroup, which is not the sum over its processes. A page shared by several
processes is charged once. A page may also be charged to another cgroup, because the process was
moved, or a process of that cgroup touched the page first.
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
from mmpolicy.host.pagemap import PAGE
from mmpolicy.host.processes import headless, live_threads, printable
from mmpolicy.memory.charged import Account, Owners, account_of
from mmpolicy.memory.holds import Holds
from mmpolicy.memory.reach import INTO_KIB, Reach, reach
from mmpolicy.memory.sample import MORE_TRIES, TRIES, Layout, Looker, Sample, together
from mmpolicy.memory.space import Sizes, Space

KINDS = ("private", "shared")  # kinds of memory that are sampled
SPOTS = 32  # spots read for each process in a turn; more follow if time is left
OTHERS = ("lazily_freed", "locked", "partly_unmapped")
# If time is left, a turn goes on until the sample of a process has this weight; a new spot has
# weight 1.
ENOUGH = 512
SMALL = 256  # processes with fewer resident pages are not sampled
TICKS = 100  # ticks per second in which the kernel's files count CPU time
# The part of the CPU share that the turns plan with; the rest is for key presses, the screen, and
# turns that take longer than planned.
PLANNED = 0.95
# indexes of the needed fields of /proc/PID/stat, counted from the field "state"
FIELDS = (7, 9, 11, 12, 19, 20, 21)


class Budget:
    """A share of one CPU for this command. CPU time that a turn takes beyond its budget is missing
    in the budget of the next turn.
    """

    def __init__(self, share: float, cpu: Callable[[], float]) -> None:
        self._share, self._cpu = share * PLANNED, cpu
        self._left, self._mark = 0.0, cpu()

    def grant(self, seconds: float) -> None:
        """Start a turn, `seconds` after the last one; CPU time that the last turn did not use is
        lost.
        """
        self._left = min(self.left(), 0.0) + self._share * seconds
        self._mark = self._cpu()

    def forgive(self, seconds: float) -> None:
        """Start a turn with a full budget, even if the last turn took too much."""
        self._left, self._mark = self._share * seconds, self._cpu()

    def left(self) -> float:
        """Return the CPU seconds left in this turn; negative after too much work."""
        return self._left - (self._cpu() - self._mark)

    def floor(self, seconds: float) -> float:
        """Return the value of left() at which this turn should stop: 0, or half a turn's budget
        below the present value if this is lower.
        """
        return min(self.left() - self._share * seconds / 2, 0.0)

    def pause(self, seconds: float) -> float:
        """Return the seconds until the next turn: `seconds`, or more if the overdraft of this turn
        takes more than half of them to pay back.
        """
        return seconds + max(-self.left() / self._share - seconds / 2, 0.0)


class Usage(NamedTuple):
    """Counters of a process since its start, from /proc/PID/stat; times are in ticks."""

    start: int  # time of its start, since boot
    faults: int
    user: int  # CPU time spent outside the kernel
    system: int  # CPU time spent in the kernel
    pages: int  # number of pages that are resident now
    is_kernel: bool
    # True if the main thread has ended and others run: /proc/PID shows no memory then
    is_headless: bool = False


class Rates(NamedTuple):
    """Page faults and CPU time per second, of a process or of several."""

    faults: float = 0.0  # page faults per second
    cpu: float = 0.0  # CPU time, as a share of one CPU
    kernel: float = 0.0  # share of one CPU that is spent in the kernel, including faults


@dataclass
class Process:
    """The facts that a Survey has collected about a process."""

    pid: int
    name: str
    cgroup: str
    usage: Usage  # counters at the last visit to the process
    looked: float  # time of the last visit to the process
    rates: Rates = field(default_factory=Rates)
    sizes: Sizes | None = None  # memory counters when the process was last sampled
    ksm_kib: int = 0  # kB merged by KSM when the process was last sampled
    sample: Sample = field(default_factory=Sample)  # sample of the process's private memory
    shared: Sample = field(default_factory=Sample)  # sample of the process's shared memory
    layout: Layout = field(default_factory=Layout)
    first: tuple[Usage, float] | None = None  # counters of the first visit, and its time

    @property
    def mean(self) -> Rates:
        """Return the rates of the process since its first visit."""
        return _rates(*self.first, self.usage, self.looked) if self.first else Rates()

    @property
    def rss_kib(self) -> int:
        """Return the RSS at the last visit, in kB."""
        return self.usage.pages * PAGE >> 10

    def _of_now(self, kib: int) -> float:
        """Return the present value of a size, assuming that it has changed in proportion to RSS."""
        return kib * self.rss_kib / self.sizes.rss if self.sizes and self.sizes.rss else 0.0

    @property
    def anon_kib(self) -> float:
        """Return the resident private memory; 0 before the first sampling."""
        return self._of_now(self.sizes.anon) if self.sizes else 0.0

    @property
    def shared_kib(self) -> float:
        """Return the resident shared memory; 0 before the first sampling."""
        return self._of_now(self.sizes.shared) if self.sizes else 0.0

    @property
    def forbids(self) -> bool:
        """Return whether a prctl() forbids large folios for all memory of the process."""
        return bool(self.sizes and not self.sizes.thp_enabled)

    @property
    def waste_kib(self) -> float:
        """Return the estimated empty part of its private and shared memory, in kB."""
        return self.anon_kib * self.sample.share + self.shared_kib * self.shared.share

    @property
    def parts(self) -> list[tuple[Sample, float]]:
        """Return sample and size of private and of shared memory."""
        return [(self.sample, self.anon_kib), (self.shared, self.shared_kib)]

    @property
    def kinds(self) -> dict[str, float]:
        """Return the memory of the process in kB by kind; kinds that are not known are left out."""
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
        """Return the memory that was not sampled, in kB by kind."""
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
    """Memory, CPU time and empty memory of a process, or of the processes of a cgroup; sizes are
    in kB.

    `kinds` has "private", "shared", "file", "swapped", "hugetlb" and "ksm"; for a cgroup also
    "zswapped", the compressed part of the swapped memory; and estimates of "lazily_freed" (an
    upper bound), "locked", and "partly_unmapped", which is in no RSS. `unseen` is the memory that
    was not sampled: "private", "shared", "hugetlb", or "any". For a cgroup, all fields but `kinds`
    and `elsewhere_kib` refer to the memory charged to it; without a memory controller, to the RSS
    of its processes.
    """

    name: str  # the program's name, or the cgroup's path
    is_cgroup: bool
    pids: tuple[int, ...]
    cgroup: str
    rss_kib: int  # for a cgroup: memory.current, if it exists
    anon_kib: int  # private memory of those processes that were sampled
    seen: float  # share of the memory that belongs to processes that were sampled
    waste_kib: float
    error_kib: float
    rates: Rates
    sizes: dict[int, float]  # share of the sampled memory by folio order
    forbids: tuple[str, ...]  # programs that forbid large folios for themselves
    # the part of the empty memory that is shared; the kernel does not give it back
    waste_shared_kib: float = 0.0
    kinds: dict[str, float] = field(default_factory=dict)
    unseen: dict[str, float] = field(default_factory=dict)
    # memory that the processes use, but that is charged to another cgroup
    elsewhere_kib: float = 0.0


class Charge(NamedTuple):
    """Sampled memory of a process, of one kind and charged to one cgroup, in kB."""

    process: Process
    kind: str
    kib: float
    empty_kib: float
    error_kib: float


def _rates(old: Usage, then: float, new: Usage, now: float) -> Rates:
    """Return the rates of a process between two visits."""
    if now <= then:
        return Rates()
    user, system = new.user - old.user, new.system - old.system
    ticks = TICKS * (now - then)
    return Rates((new.faults - old.faults) / (now - then), (user + system) / ticks, system / ticks)


def read_usage(tree: Tree, pid: int) -> tuple[str, Usage] | None:
    """Return name and counters of a process; None if it has ended or the file cannot be parsed.

    If its main thread has ended, the size is that which another thread shows.
    """
    found = _usage_in(tree, f"/proc/{pid}")
    if found and found[1].is_kernel and headless(tree, pid):
        threads = (_usage_in(tree, f"/proc/{pid}/task/{each}") for each in live_threads(tree, pid))
        if other := next(filter(None, threads), None):
            pages = other[1].pages
            return found[0], found[1]._replace(pages=pages, is_kernel=False, is_headless=True)
    return found


def _usage_in(tree: Tree, folder: str) -> tuple[str, Usage] | None:
    try:
        text = tree.read_at(f"{folder}/stat", PAGE)
    except Error:
        return None
    # the name of the program, in parentheses, may itself contain spaces and parentheses, so the
    # last one ends it
    head, _, rest = text.rpartition(b")")
    fields = rest.split(None, FIELDS[-1] + 1)
    needed = [fields[n] for n in FIELDS if n < len(fields)]
    if len(needed) < len(FIELDS) or not b"".join(needed).isdigit():
        return None
    minor, major, user, system, start, size, pages = map(int, needed)
    name = printable(head.partition(b"(")[2].decode(errors="replace"))
    return name, Usage(start, minor + major, user, system, pages, not size)


def ksm_of(tree: Tree, pid: int) -> int:
    """Return the memory of a process that KSM has merged, in kB, by a counter of the kernel.

    The KSM bit of kpageflags is of no use: Linux 6.12 sets it for all anonymous memory.
    """
    try:
        return int(tree.read_at(f"/proc/{pid}/ksm_merging_pages", PAGE)) * PAGE >> 10
    # the kernel is older than 5.19 or has no KSM, or the process has ended
    except (Error, ValueError):
        return 0


class Survey:
    """Reads counters of processes and samples their memory, turn by turn, within a CPU budget."""

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
        self.blind = ""  # the reason why page contents cannot be read; "" if they can
        self._charged = Charged(tree)
        self._reach: dict[tuple[int, int, int], Reach] = {}
        self._ignored: set[int] = set()
        self._listed: set[int] = set()
        # time of the last turn, and PIDs of processes that have started since then
        self._turn, self._born = -inf, set[int]()
        self._rng = Random(seed)

    def turn(self, now: float, seconds: float) -> None:
        """Visit as many processes as the budget permits; turns come every `seconds` seconds.

        The first turn visits every process, however long that takes, so that no user sees an empty
        list. If listing the processes alone uses up the budget, some processes are still visited,
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
        """Return the memory of a process that policies cannot reach; searched again when its RSS
        has doubled. None if the process has ended or shows no memory.
        """
        each = self.processes[pid]
        if each.usage.is_headless:
            return None
        key = pid, each.usage.start, each.rss_kib.bit_length()
        if key not in self._reach:
            try:
                self._reach[key] = reach(self.tree, pid, self.holds, into_kib=INTO_KIB)
            except Error:  # the process has ended, or belongs to another user
                return None
        return self._reach[key]

    def _list(self) -> list[int]:
        """Drop processes that have ended from the survey; return the PIDs of the others, those
        never visited first.
        """
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
        """Read the counters of processes until only `reserve` CPU seconds are left of this turn's
        budget.
        """
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
        """Sample memory until only `reserve` CPU seconds are left of this turn's budget; large
        processes with small samples come first.

        Each process is sampled once, and again if time is left and its sample is small.
        """
        due = [
            each for each in self.processes.values()
            if each.usage.pages >= SMALL and not each.usage.is_headless
        ]  # fmt: skip
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
                    continue  # other errors mean that the process has ended
                if known < process.sample.spots + process.shared.spots < ENOUGH:
                    more.append(process)
            due = more
        if denied and not any(each.sample.spots for each in self.processes.values()):
            self.blind = denied

    def _look(self, looker: Looker, process: Process, now: float) -> None:
        space = Space(self.tree, process.pid, self.holds)
        sizes = space.sizes()
        # VmRSS may read 0, as its counters change while the kernel adds them up; then the sum of
        # its parts is used
        if not sizes.rss:
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
        # the process may have been moved to another cgroup
        process.cgroup = self._charged.name(process.pid)

    def _looker(self) -> Looker | None:
        """Return the object that samples memory; None if this user may not read page frames."""
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
        """Return the `number` cgroups and the `number` processes with the largest value of a
        figure, such as memory; see FIGURES.
        """
        figures = [(figure(each), each) for each in self.processes.values()]
        members, sums = defaultdict[str, list[Process]](list), defaultdict[str, float](float)
        for value, each in figures:
            members[each.cgroup].append(each)
            sums[each.cgroup] += value
        charges = self._charges()
        for path, some in charges.items():
            # the cgroup has memory, but no processes, so only its empty memory counts
            if path not in sums and not self.within:
                sums[path] = sum(each.empty_kib for each in some)
        first = nlargest(number, sums, key=sums.__getitem__)
        largest = nlargest(number, figures, key=itemgetter(0))
        by_cgroup = [
            _cgroup_row(path, members.get(path, []), charges, account_of(self.tree, path))
            for path in first
        ]
        return by_cgroup, [_row(each.name, False, [each]) for _, each in largest]

    def _charges(self) -> dict[str, list[Charge]]:
        """Return the sampled memory of all processes by the cgroup that it is charged to."""
        found = defaultdict[str, list[Charge]](list)
        for each in self.processes.values():
            if not each.sizes:  # with many processes, most are not sampled yet
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
        """Return the share of all memory that belongs to sampled processes."""
        pages = sum(each.usage.pages for each in self.processes.values())
        sampled = sum(e.usage.pages for e in self.processes.values() if e.sample.spots)
        return sampled / pages if pages else 1.0


def _row(name: str, is_cgroup: bool, some: list[Process]) -> Row:
    """Return a row with the sums over some processes."""
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
    """Return the row of a cgroup: the memory charged to it, by all processes that map it.

    If the samples of several processes add up to more than the kernel counts for a kind of memory,
    their empty share is right but their sum is not. The row then has this share of the kernel's
    figure.
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
    """Return the row of a cgroup with its sizes replaced by the figures of the kernel."""
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
