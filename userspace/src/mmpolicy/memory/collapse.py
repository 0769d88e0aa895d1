# SPDX-License-Identifier: GPL-2.0
"""Collapse fully used memory of a process into 2 MB pages.

The kernel copies 512 pages into one of 2 MB and holds the mmap_lock of the process for that time,
so the process stops if it writes to this memory, maps or unmaps. MADV_COLLAPSE also fills holes,
copies pages that are shared after fork() and swaps in. So each 2 MB is checked just before the
call, and after it, as the call may return success without a collapse.

Without a budget, up to GROUP of 2 MB are checked together, collapsed, and checked again. A collapse
replaces the contents of the CPU's caches, so Python runs several times slower after it. The last
of these 2 MB were checked SLICE_S before their collapse. Within that time, the program may free
pages, and gets them back as part of 2 MB, or fork, and its pages are copied.
"""

from __future__ import annotations

import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from errno import EACCES, EAGAIN, EBUSY, EINVAL, ENODEV, ENOENT, ENOMEM, EPERM, ESRCH
from itertools import chain
from math import inf
from typing import NamedTuple

from mmpolicy.errors import Error, Exit, explain
from mmpolicy.host.advice import BLOCK, KERNEL, NO_COLLAPSE, REMEDIES, ProcessMemory
from mmpolicy.host.evidence import THP
from mmpolicy.host.files import Tree
from mmpolicy.host.machine import Host
from mmpolicy.host.room import Node, limited_folders, node_of, read_zones, room_in
from mmpolicy.memory.folios import PAGE
from mmpolicy.memory.holds import Holds
from mmpolicy.memory.space import Space
from mmpolicy.memory.trim import Pressure

PAGES = BLOCK // PAGE
ENTRIES = PAGES * 8  # bytes of pagemap
NEARLY = PAGES * 2 // 100
PMD_SIZE = f"{THP}/hpage_pmd_size"
CHUNK = 16  # blocks whose entries are read together; the kernel drops the lock after each
LOOK_S = 0.25  # interval between checks of free memory and pressure
# Without a budget, the run works for so many seconds under SCHED_FIFO, then sleeps for a moment so
# that a program on the same CPU gets its turn. One such sleep takes 40 us of CPU.
SLICE_S, GROUP = 0.008, 8
MARGIN = 2 * BLOCK  # Stay this far below a limit, as each CPU charges memory in batches.
SECTION = 1 << 15  # This many pages of memory are always on one NUMA node.
NEAR = 128 << 20  # Within this many bytes of a limit, the usage is read before each collapse.
SPOT = 64  # This many bytes of each page are read first, to find pages full of zeroes.
# One page in SAMPLE is read before a collapse, one in ESTIMATE to estimate the empty part. Both are
# prime, so that a program that uses each 16th page does not look like one that uses all of them.
SAMPLE, ESTIMATE = 31, 13
PATIENCE = 6  # After this many slow collapses in a row, the run stops.
TIMED = 5  # This many collapses of the command's own memory are timed before any of a program's.
BACK_OFF_S = 1.0  # pause after one slow collapse, doubled after each further one

# The highest byte of an entry of pagemap
PRESENT, SWAPPED, FILE, GUARD, TRACKED, EXCLUSIVE = 0x80, 0x40, 0x20, 0x04, 0x02, 0x01
FRAME = (1 << 55) - 1
FULL = bytes([PRESENT | EXCLUSIVE]) * PAGES
THERE = bytes(mark >> 7 for mark in range(256))
# 512 entries as one number: of the frames 0, 1, 2 and so on, and of frame 1 each time
RISING, ONES = (
    int.from_bytes(array("Q", some).tobytes(), "little") for some in (range(PAGES), [1] * PAGES)
)
# Bits of kpageflags
UNEVICTABLE, ZERO_PAGE = 1 << 18, 1 << 24
COMPOUND = 1 << 15 | 1 << 16  # head or tail of a large folio

ABSENT, HUGE = "absent", "already 2 MB pages"
NOT_FULL, EDGES, SWAP = "not full", "outside whole 2 MB of an area", "partly swapped"
SHARED, GUARDS, WATCHED = "shared after fork", "with guard pages", "watched by userfaultfd"
LOCKED, FORBIDDEN = "locked", "forbidden by the program"
PINNED, REFUSED, GROWTH = "pinned or merged by KSM", "refused by the kernel", "beyond --max-growth"
GONE = "unmapped since"


def check_possible(tree: Tree) -> None:
    """Raise an error if this kernel has no pages of 2 MB."""
    if not tree.exists(PMD_SIZE):
        text = "this kernel has no transparent huge pages"
        raise Error(text, Exit.LACKING, "boot Linux 6.1 or newer with CONFIG_TRANSPARENT_HUGEPAGE")
    if tree.read(PMD_SIZE) != str(BLOCK):
        text = f"huge pages have {tree.read(PMD_SIZE)} bytes here, and only 2 MB ones are known"
        raise Error(text, Exit.LACKING, "boot a kernel with pages of 4 kB")


class Verdict(NamedTuple):
    """The decision about one aligned 2 MB."""

    cause: str  # reason to leave it alone, "" to collapse it
    pages: int  # The number of pages that the process does not share.
    missing: int  # The number of absent pages that a collapse would fill.
    frame: int = 0  # of some page


class Candidates(NamedTuple):
    """The blocks of one area that could become 2 MB pages."""

    pid: int
    starts: list[int]
    missing: int  # pages, in all of them


@dataclass
class Seen:
    """The memory of a process by verdict, in pages."""

    pages: int = 0
    huge: int = 0
    areas: list[Candidates] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    nearly: int = 0  # The number of pages in blocks of 2 MB that lack at most NEARLY pages.
    lacking: int = 0  # pages that these lack

    def skip(self, verdict: Verdict) -> None:
        """Count 2 MB that are left alone."""
        self.skipped[verdict.cause] += verdict.pages
        if verdict.cause == NOT_FULL and verdict.missing <= NEARLY:
            self.nearly += verdict.pages
            self.lacking += verdict.missing


class Flags:
    """Reads the flags of page frames."""

    def __init__(self, tree: Tree) -> None:
        self._file = tree.reader("/proc/kpageflags")
        self._zero: set[int] = set()

    def of(self, frame: int) -> int:
        return int.from_bytes(self._file.read(8, frame * 8), "little")

    def is_zero_page(self, frame: int) -> bool:
        """Return whether a frame is the zero page, which reads of untouched memory get."""
        if frame in self._zero:
            return True
        zero = bool(self.of(frame) & ZERO_PAGE)
        if zero:
            self._zero.add(frame)
        return zero


def is_huge(first: int, last: int) -> bool:
    """Return whether an aligned 2 MB is one folio, by the entries of its first and last page."""
    frame = first & FRAME
    there = first & last & PRESENT << 56
    return bool(there) and not frame % PAGES and last & FRAME == frame + PAGES - 1


def _in_a_row(raw: bytes, first: int) -> bool:
    """Tell if all entries are of one folio; a write during a child's lifetime replaces a page."""
    return int.from_bytes(raw, "little") == first * ONES + RISING


def judge(raw: bytes, most_missing: int, is_zero_page: Callable[[int], bool]) -> Verdict:
    """Decide from its 512 entries of pagemap whether to collapse an aligned 2 MB of one area."""
    marks = raw[7::8]
    first, last = int.from_bytes(raw[:8], "little"), int.from_bytes(raw[-8:], "little")
    if is_huge(first, last) and _in_a_row(raw, first):
        return Verdict(HUGE, PAGES, 0, first & FRAME)
    if marks == FULL:
        return Verdict("", PAGES, 0, first & FRAME)
    there = marks.translate(THERE).count(1)
    kinds = {mark: marks.count(mark) for mark in set(marks)}
    # Neither FILE nor EXCLUSIVE: the zero page, or a page shared with a child.
    common = [mark for mark in kinds if mark & PRESENT and not mark & EXCLUSIVE]
    zeroes = sum(kinds[mark] for mark in common if mark & FILE)  # the huge zero page
    if any(not mark & FILE for mark in common):
        entries = array("Q", raw)
        zeroes += sum(
            is_zero_page(entries[at] & FRAME)
            for at, mark in enumerate(marks)
            if mark & (PRESENT | EXCLUSIVE | FILE) == PRESENT
        )
    pages = there - zeroes
    if not pages:
        return Verdict(ABSENT, 0, PAGES)
    causes = (
        (GUARDS, any(mark & GUARD and not mark & PRESENT for mark in kinds)),
        (SWAP, any(mark & SWAPPED and not mark & PRESENT for mark in kinds)),
        (WATCHED, any(mark & TRACKED for mark in kinds)),
        (SHARED, sum(kinds[mark] for mark in common) > zeroes),
        (NOT_FULL, PAGES - pages > most_missing),
    )
    cause = next((name for name, found in causes if found), "")
    return Verdict(cause, pages, PAGES - pages, _some_frame(raw, marks))


def _some_frame(raw: bytes, marks: bytes) -> int:
    at = next((n for n, mark in enumerate(marks) if mark & PRESENT and mark & EXCLUSIVE), 0)
    return int.from_bytes(raw[at * 8 : at * 8 + 8], "little") & FRAME


def _own_pages(start: int, marks: bytes) -> Sequence[int]:
    """Return the addresses of the present pages that no other process shares."""
    if marks == FULL:
        return range(start, start + BLOCK, PAGE)
    own = PRESENT | EXCLUSIVE
    return [start + n * PAGE for n, mark in enumerate(marks) if mark & own == own]


class Target:
    """A process whose memory is checked and collapsed.

    Its page tables are held open, so after an exec() they are empty, and not those of another
    program at equal addresses.
    """

    def __init__(self, host: Host, pid: int, holds: Holds, most_missing: int) -> None:
        self.pid, self.holds = pid, holds
        self.memory: ProcessMemory = host.advice.open(pid)
        self._space, self._most = Space(host.tree, pid, holds), most_missing
        self._flags = Flags(host.tree)
        self.folders = limited_folders(host.tree, pid)

    def look(self, note: Callable[[int, Verdict], None] = lambda _start, _verdict: None) -> Seen:
        """Return the candidates, and the other pages by cause; contents are not read.

        note() is called with the verdict on each aligned 2 MB that has any page.
        """
        seen = Seen()
        for area in self._space.areas():
            if area.anonymous:
                self._look_at(area.start, area.end, seen, note)
        seen.areas.sort(key=lambda each: -len(each.starts))
        return seen

    def _look_at(
        self, start: int, end: int, seen: Seen, note: Callable[[int, Verdict], None]
    ) -> None:
        first, last = -(-start // BLOCK) * BLOCK, end // BLOCK * BLOCK
        if first >= last:
            self._edge(start, end, seen)
            return
        self._edge(start, first, seen)
        self._edge(last, end, seen)
        starts, missing, pages = list[int](), 0, 0
        for begin in range(first, last, CHUNK * BLOCK):
            raw = self._entries(begin, min(CHUNK, (last - begin) // BLOCK))
            if raw == bytes(len(raw)):
                continue
            for at in range(0, len(raw), ENTRIES):
                verdict = self._judge(raw[at : at + ENTRIES])
                note(begin + at // 8 * PAGE, verdict)
                seen.pages += verdict.pages
                if verdict.cause == HUGE:
                    seen.huge += verdict.pages
                elif verdict.cause:
                    seen.skip(verdict)
                else:
                    starts.append(begin + at // 8 * PAGE)
                    missing, pages = missing + verdict.missing, pages + verdict.pages
        if not starts:
            return
        number = self.memory.permits(starts[0])
        if number in (EPERM, EACCES):
            raise explain(number, f"advise process {self.pid}", REMEDIES)
        if number:
            seen.skipped[FORBIDDEN if number == EINVAL else GONE] += pages
            return
        seen.areas.append(Candidates(self.pid, starts, missing))

    def _edge(self, start: int, end: int, seen: Seen) -> None:
        for begin in range(start, end, BLOCK):
            pages = (min(begin + BLOCK, end) - begin) // PAGE
            marks = self._space.raw_entries(begin, pages)[7::8]
            there = marks.translate(THERE).count(1)
            seen.pages += there
            seen.skipped[EDGES] += there

    def _entries(self, start: int, blocks: int) -> bytes:
        raw = self._space.raw_entries(start, blocks * PAGES)
        return raw[: len(raw) // ENTRIES * ENTRIES]

    def _judge(self, raw: bytes) -> Verdict:
        verdict = judge(raw, self._most, self._flags.is_zero_page)
        if verdict.cause:
            return verdict
        if not verdict.frame:
            raise Error("pagemap shows no page frames", Exit.DENIED, "run it as root")
        # KPF_KSM is not used: Linux 6.12 sets it for all anonymous pages. The call refuses KSM.
        locked = self._flags.of(verdict.frame) & UNEVICTABLE
        return verdict._replace(cause=LOCKED if locked else "")

    def verdicts(self, starts: Sequence[int]) -> list[Verdict]:
        """Decide about adjacent 2 MB again, now by contents too; empty if the process has ended.

        One page in SAMPLE is read first, as reading all of them costs as much as a collapse.
        """
        raw = self._entries(starts[0], len(starts))
        if len(raw) < len(starts) * ENTRIES:
            return []
        parts = {start: raw[n * ENTRIES : (n + 1) * ENTRIES] for n, start in enumerate(starts)}
        found = {start: self._judge(part) for start, part in parts.items()}
        fit = {start: parts[start] for start, verdict in found.items() if not verdict.cause}
        samples = (_own_pages(start, part[7::8])[::SAMPLE] for start, part in fit.items())
        if self._full_of_zeroes([*chain.from_iterable(samples)], 0):
            for start, part in fit.items():
                if found[start].missing + self._zeroes(part, start) > self._most:
                    found[start] = found[start]._replace(cause=NOT_FULL)
        return [*found.values()]

    def verdict(self, start: int) -> Verdict | None:
        """Decide about 2 MB again, now by contents too; None if the process has ended."""
        return next(iter(self.verdicts([start])), None)

    def _zeroes(self, raw: bytes, start: int) -> int:
        """Return how many pages are full of zeroes, if the sample has one; stop at too many."""
        there = _own_pages(start, raw[7::8])
        if not self._full_of_zeroes(there[::SAMPLE], 0):
            return 0
        return self._full_of_zeroes(there, self._most - (PAGES - len(there)))

    def _full_of_zeroes(self, pages: Sequence[int], most: int) -> int:
        """Return how many of some pages are full of zeroes, at most one more than `most`."""
        spots, nothing, found = self.memory.read(pages, SPOT), bytes(SPOT), 0
        for at in range(0, len(spots), SPOT):
            if spots[at : at + SPOT] == nothing:
                found += self.memory.read([pages[at // SPOT]], PAGE) == bytes(PAGE)
                if found > most:
                    break
        return found

    def emptiness(self, start: int) -> float:
        """Estimate the share of 2 MB that is the empty part of large folios: 0 to 1.

        One page in ESTIMATE is read. Absent pages count as empty, as those of a large folio stay
        charged. The result is 0 if the first page is not in a large folio.
        """
        raw = self._entries(start, 1)
        marks = raw[7::8]
        if not raw or not self._flags.of(_some_frame(raw, marks)) & COMPOUND:
            return 0.0
        there = _own_pages(start, marks)
        some = there[::ESTIMATE]
        used = 1 - self._full_of_zeroes(some, PAGES) / len(some) if some else 1.0
        return 1 - used * len(there) / PAGES

    def made(self, starts: Sequence[int]) -> list[bool]:
        """Return whether each of adjacent 2 MB is one huge page now."""
        raw = self._entries(starts[0], len(starts))
        entries = array("Q", raw.ljust(len(starts) * ENTRIES, b"\0"))
        ends = zip(entries[::PAGES], entries[PAGES - 1 :: PAGES])
        return [is_huge(first, last) for first, last in ends]


def short_of_blocks(node: Node, taken: int, reserve: float) -> str:
    """Return that a node has no 2 MB above the reserve once some more are taken, else ""."""
    free, kept = node.free_blocks - taken, int(node.all_blocks * reserve)
    if free > kept:
        return ""
    return f"node {node.number} has {free} free blocks of 2 MB left, and --reserve keeps {kept}"


def check_blocks(tree: Tree, reserve: float) -> None:
    """Raise an error if no node has a free 2 MB above the reserve, as the kernel would compact."""
    zones = read_zones(tree)
    nodes = [node for zone in zones if zone.spanned and (node := node_of(zones, zone.first))]
    whys = [short_of_blocks(node, 0, reserve) for node in nodes]
    if whys and all(whys):
        raise Error(f"{whys[0]}; nothing was changed", Exit.FAILED, COMPACT)


def time_one(host: Host, holds: Holds) -> float:
    """Measure how long one collapse takes on this host, on memory of our own."""
    if not host.advice.can_collapse():
        raise Error(NO_COLLAPSE, Exit.LACKING, KERNEL)
    # statistics.median() would be an import that takes a tenth of the start
    return sorted(host.advice.time_collapses(TIMED, holds.undisturbed))[TIMED // 2]


@dataclass(frozen=True)
class Limits:
    """The limits of a run."""

    share: float  # share of the run's time spent in collapses
    longest_s: float  # limit for one collapse
    growth_pages: int  # limit for the whole run
    reserve: float  # share of a node's memory that stays free in 2 MB blocks


@dataclass
class Done:
    """The result of a run."""

    made: Counter[int] = field(default_factory=Counter)  # blocks by process
    starts: set[int] = field(default_factory=set)  # addresses of the collapsed blocks
    added: Counter[int] = field(default_factory=Counter)  # pages by process
    skipped: Counter[str] = field(default_factory=Counter)  # pages by cause
    ended: set[int] = field(default_factory=set)
    longest_s: float = 0.0
    cpu_s: float = 0.0
    stopped: str = ""  # the reason, if the run ended early
    next_step: str = ""
    tried: int = 0


class Collapser:
    """Collapses one 2 MB after another, and pauses after each to keep to the budget."""

    def __init__(self, host: Host, limits: Limits, pressure: Pressure) -> None:
        self._host, self._limits, self._pressure = host, limits, pressure
        self._zones = read_zones(host.tree)
        self._looked = -inf
        self._since = 0  # blocks taken since free memory was read
        self._worked_s = 0.0  # since the last pause
        self._each_s = 0.0  # the duration of the last collapse
        self._nodes: dict[int, Node | None] = {}  # by section, from the last reading
        self._rooms: dict[str, int | None] = {}  # room below limits, by folder, when last read
        self._slow = 0  # slow collapses in a row
        self._cpu_s = time.thread_time()
        self.done = Done()

    def ready(self, target: Target, start: int) -> bool:
        """Return whether pressure and free memory permit a collapse now; if not, stop the run."""
        if self._must_stop():
            return False
        verdict = target.verdict(start)
        return not verdict or bool(verdict.cause) or self._has_room(target, verdict.frame)

    def run(self, targets: dict[int, Target], areas: list[Candidates]) -> Iterator[int]:
        """Collapse all areas; yield after each 2 MB how many remain."""
        again: list[tuple[Target, int]] = []
        left = sum(len(area.starts) for area in areas)
        for area in sorted(areas, key=lambda each: -len(each.starts)):
            at = 0
            while at < len(area.starts):
                numbers = self._step(targets[area.pid], self._group(area.starts, at))
                for start, number in numbers.items():
                    if number == EAGAIN:
                        again.append((targets[area.pid], start))
                at += len(numbers)
                yield left - at
                if self.done.stopped:
                    return
            left -= at
        # A second attempt may succeed for pages that were in use only briefly.
        for target, start in again:
            if EAGAIN in self._step(target, [start]).values():
                self.done.skipped[PINNED] += PAGES
            yield 0
            if self.done.stopped:
                return

    def _group(self, starts: list[int], at: int) -> list[int]:
        """Return the adjacent 2 MB to collapse until the next pause: one with a budget."""
        most, end = 1, at + 1
        if self._limits.share == 1 and self._each_s:
            most = min(int(SLICE_S / self._each_s), GROUP)
        while end < min(at + most, len(starts)) and starts[end] == starts[end - 1] + BLOCK:
            end += 1
        return starts[at:end]

    def _step(self, target: Target, starts: list[int]) -> dict[int, int]:
        """Check and collapse some 2 MB, and pause; return the errno of each that was reached."""
        if target.pid in self.done.ended or self._must_stop():
            return dict.fromkeys(starts[:1], 0)
        began = self._host.clock()
        try:
            # The calls hold the mmap_lock of the process, which would wait if they were preempted.
            # One call for a whole step, as switching the scheduler costs more than the check.
            with target.holds.undisturbed():
                numbers = self._collapse(target, starts)
        except Error as err:
            if err.errno not in (ENOENT, ESRCH, ENODEV):
                raise
            numbers = {starts[0]: ESRCH}
        if ESRCH in numbers.values():
            self.done.ended.add(target.pid)
        self._pause(self._host.clock() - began)
        return numbers

    def _pause(self, took: float) -> None:
        """Pause for the budget, or so that a program on the same CPU gets its turn."""
        self.done.cpu_s = time.thread_time() - self._cpu_s
        self._worked_s += took
        pause = took * (1 / self._limits.share - 1)
        if self._slow:
            pause = max(pause, BACK_OFF_S * 2 ** (self._slow - 1))
        if pause or self._worked_s >= SLICE_S:
            self._host.sleep(pause)
            self._worked_s = 0.0

    def _collapse(self, target: Target, starts: list[int]) -> dict[int, int]:
        verdicts = target.verdicts(starts)
        if not verdicts:
            return {starts[0]: ESRCH}
        numbers, chosen = dict[int, int](), dict[int, Verdict]()
        for start, verdict in zip(starts, verdicts):
            why = verdict.cause or self._beyond_growth(verdict, chosen.values())
            if why and chosen:
                break  # The next step begins with it.
            numbers[start] = 0
            if why:
                self.done.skipped[why] += verdict.pages
            elif self._has_room(target, verdict.frame, len(chosen)):
                chosen[start] = verdict
            else:
                break
        return self._call(target, chosen, numbers) if chosen else numbers

    def _beyond_growth(self, verdict: Verdict, chosen: Iterable[Verdict]) -> str:
        """Return GROWTH if 2 MB would let memory grow too much, after those chosen, else ""."""
        added = sum(self.done.added.values()) + sum(each.missing for each in chosen)
        return GROWTH if added + verdict.missing > self._limits.growth_pages else ""

    def _call(
        self, target: Target, chosen: dict[int, Verdict], numbers: dict[int, int]
    ) -> dict[int, int]:
        """Collapse adjacent 2 MB up to the first that fails; return the errno of each reached."""
        began = self._host.clock()
        found = target.memory.collapse([*chosen])
        self._time(len(found), self._host.clock() - began)
        reached = [*chosen][: len(found)]
        for start, number, is_made in zip(reached, found, target.made(reached)):
            numbers[start] = number
            if is_made:
                numbers[start] = 0
                self._since += 1
                self.done.made[target.pid] += 1
                self.done.starts.add(start)
                self.done.added[target.pid] += chosen[start].missing
            else:
                self._note(target, number, start, chosen[start])
        return {start: number for start, number in numbers.items()
                if start in reached or start not in chosen}  # fmt: skip

    def _note(self, target: Target, number: int, start: int, verdict: Verdict) -> None:
        """Record why a collapse made no huge page."""
        if number in (EPERM, EACCES):
            raise explain(number, f"advise process {target.pid}", REMEDIES)
        # The kernel returns ENOMEM also if the area has a hole.
        if number == ENOMEM and target.verdict(start) == verdict:
            self._stop("the kernel found no free 2 MB (ENOMEM)", COMPACT)
        elif number == EBUSY:
            self._stop("the kernel could not charge 2 MB to the cgroup (EBUSY)", RAISE)
        elif number not in (EAGAIN, ESRCH):
            self.done.skipped[GONE if number == ENOMEM else REFUSED] += verdict.pages

    def _time(self, number: int, took: float) -> None:
        """Note the duration of some collapses."""
        self._each_s = took / number
        self.done.tried += number
        self.done.longest_s = max(self.done.longest_s, self._each_s)
        self._slow = self._slow + 1 if self._each_s > self._limits.longest_s else 0
        if self._slow >= PATIENCE:
            longest = self._limits.longest_s * 1000
            why = f"{PATIENCE} collapses in a row took longer than {longest:g} ms"
            self._stop(why, "try again when the host is less busy, or raise --max-stop")

    def _stop(self, why: str, then: str) -> None:
        self.done.stopped, self.done.next_step = why, then

    def _must_stop(self) -> bool:
        if self._host.clock() - self._looked >= LOOK_S:
            self._looked = self._host.clock()
            self._zones, self._since = read_zones(self._host.tree), 0
            self._rooms.clear()
            self._nodes.clear()
            if why := self._pressure.too_high():
                self._stop(why, "look at /proc/pressure/memory; try again, or raise --max-pressure")
        return bool(self.done.stopped)

    def _has_room(self, target: Target, frame: int, taken: int = 0) -> bool:
        section = frame // SECTION
        if section not in self._nodes:
            self._nodes[section] = node_of(self._zones, frame)
        node = self._nodes[section]
        if node and (why := short_of_blocks(node, self._since + taken, self._limits.reserve)):
            self._stop(why, COMPACT)
        for folder in target.folders:
            room = self._room_in(folder)
            if room is not None and room < MARGIN:
                self._stop(
                    f"{folder} has room for {max(room, 0) >> 10} KiB below its limit, and each "
                    f"collapse needs {MARGIN >> 10}", RAISE,
                )  # fmt: skip
        return not self.done.stopped

    def _room_in(self, folder: str) -> int | None:
        """Return the room below the limit of a cgroup; the program may take some at any time."""
        room = self._rooms.get(folder, 0)
        if room is not None and room < NEAR:
            room = self._rooms[folder] = room_in(self._host.tree, folder)
        return room


COMPACT = "echo 1 >/proc/sys/vm/compact_memory makes free blocks; or lower --reserve"
RAISE = "raise the limit of the cgroup a little while this runs"
