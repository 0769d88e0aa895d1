# SPDX-License-Identifier: GPL-2.0
"""Collapse fully used memory of a process into 2 MB pages.

The kernel copies 512 pages into one page of 2 MB and holds the mmap_lock of the process meanwhile,
so the process stops if it writes to this memory or calls mmap() or munmap(). MADV_COLLAPSE also
fills holes, copies pages that are shared after fork(), and swaps pages in. So each 2 MB block is
checked just before the call. It is checked again after the call, which may return success without
a collapse.

Without a CPU budget, up to GROUP adjacent blocks are checked together, collapsed by one call, and
checked again: a collapse replaces the contents of the CPU's caches, so Python code between two
collapses would run several times slower. The last block of such a group is collapsed up to SLICE_S
seconds after its check. Within these seconds, the program may free pages, which the collapse fills
again, or fork, so that the collapse copies shared pages.
"""

from __future__ import annotations

import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from errno import EACCES, EAGAIN, EBUSY, EINVAL, ENODEV, ENOENT, ENOMEM, EPERM, ESRCH
from functools import partial
from math import inf
from typing import NamedTuple

from mmpolicy.errors import Error, Exit, explain
from mmpolicy.host import pagemap
from mmpolicy.host.advice import BLOCK, KERNEL, NO_COLLAPSE, REMEDIES, ProcessMemory
from mmpolicy.host.evidence import THP, events
from mmpolicy.host.files import Tree
from mmpolicy.host.machine import Host
from mmpolicy.host.pagemap import FRAME, PAGE, lazily_freed, no_frames
from mmpolicy.host.room import (
    Node,
    Zone,
    limited_folders,
    nodes_in,
    number_of,
    raise_limit,
    read_zones,
    room_in,
)
from mmpolicy.memory.holds import Holds
from mmpolicy.memory.pressure import Pressure
from mmpolicy.memory.space import Details, Space

PAGES = BLOCK // PAGE
ENTRIES = PAGES * 8  # bytes of /proc/PID/pagemap for one 2 MB block
NEARLY = PAGES * 2 // 100
PMD_SIZE = f"{THP}/hpage_pmd_size"
# number of blocks whose pagemap entries are read at once; after each read, the kernel drops
# mmap_lock
CHUNK = 16
DETAILS_S = 1.0  # seconds for which smaps of a process are not read again
LOOK_S = 0.25  # seconds between checks of free memory and of memory pressure
# Without a CPU budget, the command collapses memory for SLICE_S seconds under SCHED_FIFO, then
# sleeps for TURN_S so that a program on the same CPU can run. A sleep of 0 does not leave the CPU
# on Linux 7.3. GROUP is the largest number of blocks that one call collapses.
SLICE_S, TURN_S, GROUP = 0.008, 0.0005, 8
MARGIN = 2 * BLOCK  # bytes to stay below a cgroup's limit, as each CPU charges memory in batches
SECTION = 1 << 15  # page frames of a memory section; a section never spans two NUMA nodes
# if a cgroup's usage is fewer bytes than this below its limit, it is read again before each
# collapse
NEAR = 128 << 20
SPOT = 64  # bytes of a page that are read first; only if they are zero, the whole page is read
# One page in SAMPLE is read before a collapse, and one in ESTIMATE to estimate how much of a block
# is empty.
# Both numbers are prime, so a program that uses every 16th page does not look like a program that
# uses all pages.
SAMPLE, ESTIMATE = 31, 13
PATIENCE = 6  # number of slow collapses in a row after which no more are tried
# number of collapses in this command's own memory that are timed before a program's memory is
# collapsed
TIMED = 5
BACK_OFF_S = 1.0  # seconds to pause after one slow collapse; doubled after each further slow one

# Bits in the highest byte of a pagemap entry
PRESENT, SWAPPED, FILE, GUARD, TRACKED, EXCLUSIVE = 0x80, 0x40, 0x20, 0x04, 0x02, 0x01
MADE = pagemap.HUGE | pagemap.PRESENT
FULL = bytes([PRESENT | EXCLUSIVE]) * PAGES
THERE = bytes(mark >> 7 for mark in range(256))
# Two big numbers, each of 512 pagemap entries of 8 bytes: RISING has the frames 0 to 511, ONES has
# frame 1 in all entries. So first * ONES + RISING has 512 consecutive frames from `first` on.
RISING, ONES = (
    int.from_bytes(array("Q", some).tobytes(), "little") for some in (range(PAGES), [1] * PAGES)
)
# Bits of /proc/kpageflags
UNEVICTABLE, ZERO_PAGE = 1 << 18, 1 << 24
COMPOUND = 1 << 15 | 1 << 16  # bits of kpageflags: head or tail page of a large folio

ABSENT, HUGE = "absent", "already 2 MB pages"
NOT_FULL, EDGES, SWAP = "not full", "outside whole 2 MB of an area", "partly swapped"
SHARED, GUARDS, WATCHED = "shared after fork", "with guard pages", "watched by userfaultfd"
LOCKED, FORBIDDEN = "locked", "forbidden by the program"
LAZY = "lazily freed, or used again since"
PINNED, REFUSED, GROWTH = "pinned or merged by KSM", "refused by the kernel", "beyond --max-growth"
GONE, NOT_PRIVATE = "unmapped since", "shared memory"


def check_possible(tree: Tree) -> None:
    """Raise an error if this kernel has no pages of 2 MB."""
    if not tree.exists(PMD_SIZE):
        text = "this kernel has no transparent huge pages"
        raise Error(text, Exit.LACKING, "boot Linux 6.1 or newer with CONFIG_TRANSPARENT_HUGEPAGE")
    if tree.read(PMD_SIZE) != str(BLOCK):
        text = (
            f"huge pages have {tree.read(PMD_SIZE)} bytes on this host, and mmpolicy "
            "collapse supports only those of 2 MB"
        )
        raise Error(text, Exit.LACKING, "boot a kernel with pages of 4 kB")


class Verdict(NamedTuple):
    """Whether to collapse an aligned 2 MB block, and why not."""

    cause: str  # the reason not to collapse the block; "" to collapse it
    pages: int  # number of pages in the block that no other process shares
    missing: int  # number of absent pages in the block, which a collapse would fill
    frame: int = 0  # page frame number of one page of the block; 0 if it was not read


HUGE_ONE, FULL_ONE = Verdict(HUGE, PAGES, 0), Verdict("", PAGES, 0)


class Candidates(NamedTuple):
    """The 2 MB blocks of one memory area that may be collapsed."""

    pid: int
    starts: list[int]
    missing: int  # number of absent pages in all these blocks, which a collapse would fill


@dataclass
class Seen:
    """The result of checking the memory of a process: the number of all pages of its private
    memory, of pages in huge pages, and of skipped pages by cause; and the 2 MB blocks to collapse,
    by memory area.
    """

    pages: int = 0
    huge: int = 0
    areas: list[Candidates] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    # number of present pages in blocks that are skipped because up to NEARLY of their pages are
    # absent
    nearly: int = 0
    lacking: int = 0  # number of absent pages in the blocks that `nearly` counts

    def skip(self, verdict: Verdict) -> None:
        """Count the pages of a 2 MB block that is not collapsed, by the cause in its verdict."""
        self.skipped[verdict.cause] += verdict.pages
        if verdict.cause == NOT_FULL and verdict.missing <= NEARLY:
            self.nearly += verdict.pages
            self.lacking += verdict.missing


class Flags:
    """Reads the flags of page frames from /proc/kpageflags."""

    def __init__(self, tree: Tree) -> None:
        self._file = tree.reader("/proc/kpageflags")
        self._zero: set[int] = set()

    def of(self, frame: int) -> int:
        return int.from_bytes(self._file.read(8, frame * 8), "little")

    def is_lazy(self, frame: int) -> bool:
        return lazily_freed(self.of(frame))

    def is_zero_page(self, frame: int) -> bool:
        """Return whether a frame is the zero page, which the kernel maps where a program reads
        untouched memory.
        """
        if frame in self._zero:
            return True
        zero = bool(self.of(frame) & ZERO_PAGE)
        if zero:
            self._zero.add(frame)
        return zero


def is_huge(first: int, last: int) -> bool:
    """Return whether the pagemap entries of a block's first and last page fit one 2 MB folio:
    present, aligned, and 511 frames apart.
    """
    frame = first & FRAME
    there = first & last & PRESENT << 56
    return bool(there) and not frame % PAGES and last & FRAME == frame + PAGES - 1


def _in_a_row(raw: bytes, first: int) -> bool:
    """Return whether 512 pagemap entries map consecutive frames, as after a collapse.

    After fork(), a write maps a copy of the written page in another frame, so the frames are no
    longer consecutive.
    """
    return int.from_bytes(raw, "little") == first * ONES + RISING


def judge(
    raw: bytes, most_missing: int, is_zero_page: Callable[[int], bool],
    is_made: Callable[[int], bool] = lambda frame: True,
) -> Verdict:  # fmt: skip
    """Decide from its 512 pagemap entries whether to collapse an aligned 2 MB block.

    Small pages may have consecutive frames, too, so is_made() gets the first frame, and returns
    whether the frames are one huge page. most_missing: largest number of absent pages that a
    collapse may fill.
    """
    marks = raw[7::8]
    first, last = int.from_bytes(raw[:8], "little"), int.from_bytes(raw[-8:], "little")
    if is_huge(first, last) and _in_a_row(raw, first) and is_made(first & FRAME):
        return Verdict(HUGE, PAGES, 0, first & FRAME)
    if marks == FULL:
        return Verdict("", PAGES, 0, first & FRAME)
    there = marks.translate(THERE).count(1)
    kinds = {mark: marks.count(mark) for mark in set(marks)}
    # a page with neither FILE nor EXCLUSIVE is the zero page, or shared with a child
    common = [mark for mark in kinds if mark & PRESENT and not mark & EXCLUSIVE]
    zeroes = sum(kinds[mark] for mark in common if mark & FILE)  # entries of the huge zero page
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

    The object keeps a file of the process's address space open. After an exec(), that address
    space is empty, so no memory of another program at the same addresses is collapsed.
    """

    def __init__(self, host: Host, pid: int, holds: Holds, most_missing: int) -> None:
        self.pid, self.holds = pid, holds
        self.memory: ProcessMemory = host.advice.open(pid)
        self._space, self._most = Space(host.tree, pid, holds), most_missing
        self._flags = Flags(host.tree)
        self._some_lazy = events(host.tree, True).get("pglazyfree", 1) > 0  # since the boot
        self._lazy: dict[tuple[int, int], Details | None] = {}
        self._clock, self._looked = host.clock, -inf
        self.folders = limited_folders(host.tree, pid)

    def look(self, note: Callable[[int, Verdict], None] | None = None) -> Seen:
        """Find the 2 MB blocks to collapse, and count all other pages by the cause not to collapse
        them; page contents are not read.

        note() is called with the address and verdict of each 2 MB block that has any page. Without
        note(), the check is quicker, and some of the blocks found may be shared, locked or watched;
        verdicts() detects this later.
        """
        seen = Seen()
        for area in self._space.areas():
            if area.anonymous:
                self._look_at(area.start, area.end, seen, note)
        seen.areas.sort(key=lambda each: -len(each.starts))
        seen.skipped[NOT_PRIVATE] += (self._space.sizes().shared << 10) // PAGE
        return seen

    def _look_at(
        self, start: int, end: int, seen: Seen, note: Callable[[int, Verdict], None] | None
    ) -> None:
        first, last = -(-start // BLOCK) * BLOCK, end // BLOCK * BLOCK
        if first >= last:
            self._edge(start, end, seen)
            return
        self._edge(start, first, seen)
        self._edge(last, end, seen)
        starts, missing, pages = list[int](), 0, 0
        for start, verdict in self._judged(first, last, is_quick=note is None):
            if note:
                note(start, verdict)
            seen.pages += verdict.pages
            if verdict.cause == HUGE:
                seen.huge += verdict.pages
            elif verdict.cause:
                seen.skip(verdict)
            else:
                starts.append(start)
                missing, pages = missing + verdict.missing, pages + verdict.pages
        if not starts:
            return
        with self.holds.undisturbed():
            number = self.memory.permits(starts[0])
        if number in (EPERM, EACCES):
            raise explain(number, f"advise process {self.pid}", REMEDIES)
        if number:
            seen.skipped[FORBIDDEN if number == EINVAL else GONE] += pages
            return
        seen.areas.append(Candidates(self.pid, starts, missing))

    def _judged(self, first: int, last: int, is_quick: bool) -> Iterator[tuple[int, Verdict]]:
        """Yield the address and verdict of each 2 MB block that has any page.

        With is_quick, if all pages of CHUNK adjacent blocks are present, the blocks count as full,
        and the flags of their pages are not read.
        """
        end = first
        while end < last:
            begin, end = end, min(end + CHUNK * BLOCK, last)
            kind = self._space.kind(begin, end)
            if kind == MADE or (kind == pagemap.PRESENT and is_quick):
                one = HUGE_ONE if kind == MADE else FULL_ONE
                yield from ((start, one) for start in range(begin, end, BLOCK))
                continue
            raw = self._entries(begin, (end - begin) // BLOCK)
            if not any(raw[7::8]):  # an entry of a hole may be soft-dirty, in a lower byte
                end = self._space.next_page(end, last) // BLOCK * BLOCK
                continue
            for at in range(0, len(raw), ENTRIES):
                start = begin + at // 8 * PAGE
                yield start, self._judge(start, raw[at : at + ENTRIES])

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

    def _judge(self, start: int, raw: bytes) -> Verdict:
        is_made = partial(self._is_made, start)
        verdict = judge(raw, self._most, self._flags.is_zero_page, is_made)
        if verdict.cause:
            return verdict
        if not verdict.frame:
            raise no_frames(self._space.tree)
        # KPF_KSM is not tested, as Linux 6.12 sets it for all anonymous pages. MADV_COLLAPSE
        # refuses KSM pages.
        if self._flags.of(verdict.frame) & UNEVICTABLE:
            return verdict._replace(cause=LOCKED)
        return verdict._replace(cause=LAZY if self._is_lazy(start, raw, verdict.missing) else "")

    def _is_lazy(self, start: int, raw: bytes, missing: int) -> bool:
        """Return whether so many pages of a 2 MB block are lazily freed that it is not full without
        them: the kernel could not take them back after a collapse.

        All pages are checked only if one of those sampled, one in SAMPLE, may be lazily freed.
        """
        if not self._some_lazy:
            return False
        entries = array("Q", raw)
        if not self._lazy_pages(entries[::SAMPLE]):
            return False
        return missing + self._lazy_pages(entries) > self._most and self._may_be_lazy(start)

    def _lazy_pages(self, entries: array[int]) -> int:
        own = PRESENT | EXCLUSIVE
        frames = (entry & FRAME for entry in entries if entry >> 56 & own == own)
        return sum(map(self._flags.is_lazy, frames))

    def _may_be_lazy(self, start: int) -> bool:
        """Return whether the area of an address has lazily freed memory by smaps, which knows the
        pages that were written to again; True if it would take too long to read.
        """
        if self._clock() - self._looked >= DETAILS_S:
            self._lazy, self._looked = self._space.details(), self._clock()
        for (first, end), details in self._lazy.items():
            if first <= start < end:
                return details is None or details.lazily_freed_kib > 0
        return True

    def verdicts(self, starts: Sequence[int]) -> list[Verdict]:
        """Return a new verdict on each of some adjacent 2 MB blocks, now by page contents too; []
        if the process has ended.

        A page full of zeroes counts as missing. One page in SAMPLE is read first, as reading all
        pages costs as much as a collapse. The other pages are read only if one of the sampled pages
        is full of zeroes.
        """
        raw = self._entries(starts[0], len(starts))
        if len(raw) < len(starts) * ENTRIES:
            return []
        found, parts, samples = {}, {}, list[int]()
        for at, start in enumerate(starts):
            part = raw[at * ENTRIES : (at + 1) * ENTRIES]
            verdict = found[start] = self._judge(start, part)
            if not verdict.cause:
                parts[start] = part
                marks = FULL if not verdict.missing else part[7::8]
                samples += _own_pages(start, marks)[::SAMPLE]
        if self._full_of_zeroes(samples, 0):
            for start, part in parts.items():
                if found[start].missing + self._zeroes(part, start) > self._most:
                    found[start] = found[start]._replace(cause=NOT_FULL)
        return [*found.values()]

    def verdict(self, start: int) -> Verdict | None:
        """Return a new verdict on one 2 MB block, now by page contents too; None if the process has
        ended.
        """
        return next(iter(self.verdicts([start])), None)

    def _zeroes(self, raw: bytes, start: int) -> int:
        """Return the number of pages full of zeroes in a 2 MB block; 0 if no sampled page is one.

        Counting stops at the first page that is one too many for a collapse.
        """
        there = _own_pages(start, raw[7::8])
        if not self._full_of_zeroes(there[::SAMPLE], 0):
            return 0
        return self._full_of_zeroes(there, self._most - (PAGES - len(there)))

    def _full_of_zeroes(self, pages: Sequence[int], most: int) -> int:
        """Return how many of the pages at these addresses are full of zeroes; counting stops at
        most + 1.
        """
        spots, nothing, found = self.memory.read(pages, SPOT), bytes(SPOT), 0
        for at in range(0, len(spots), SPOT):
            if spots[at : at + SPOT] == nothing:
                found += self.memory.read([pages[at // SPOT]], PAGE) == bytes(PAGE)
                if found > most:
                    break
        return found

    def emptiness(self, start: int) -> float:
        """Estimate the empty share of a 2 MB block, 0 to 1, by reading one page in ESTIMATE.

        Absent pages count as empty, as absent pages of a large folio stay charged. The result is 0
        if the first present page is not in a large folio.
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
        """Return for each of adjacent 2 MB blocks whether it is one huge page now."""
        if self._space.kind(starts[0], starts[-1] + BLOCK) == MADE:
            return [True] * len(starts)
        raw = self._entries(starts[0], len(starts))
        entries = array("Q", raw.ljust(len(starts) * ENTRIES, b"\0"))
        ends = zip(starts, entries[::PAGES], entries[PAGES - 1 :: PAGES])
        return [is_huge(first, last) and self._is_made(start, first & FRAME)
                for start, first, last in ends]  # fmt: skip

    def _is_made(self, start: int, frame: int) -> bool:
        """Return whether one page table entry maps a 2 MB block, whose frames are consecutive from
        `frame` on.

        Kernels before 6.7 do not show this. On these kernels, the first frame must belong to a
        large folio, which is enough, as all their large folios have 2 MB.
        """
        if self._space.kind(start, start + BLOCK) == MADE:
            return True
        return not self._space.can_scan and bool(self._flags.of(frame) & COMPOUND)


def short_of_blocks(node: Node, taken: int, reserve: float) -> str:
    """Return an error text if a NUMA node has too few free 2 MB blocks for --reserve, else "".

    taken: number of blocks that this command has used since the node's counters were read.
    """
    free, kept = node.free_blocks - taken, int(node.all_blocks * reserve)
    if free > kept:
        return ""
    return (
        f"NUMA node {node.number} has {free} free blocks of 2 MB left, and --reserve keeps "
        f"{kept} free"
    )


def check_blocks(tree: Tree, reserve: float) -> None:
    """Raise an error if no node has a free 2 MB block above --reserve: the kernel would have to
    compact.
    """
    nodes = nodes_in(read_zones(tree)).values()
    whys = [short_of_blocks(node, 0, reserve) for node in nodes if node.all_blocks]
    if whys and all(whys):
        raise Error(f"{whys[0]}; nothing was changed", Exit.FAILED, COMPACT)


def time_one(host: Host, holds: Holds) -> float:
    """Return the median seconds of TIMED collapses in this command's own memory on this host."""
    if not host.advice.can_collapse():
        raise Error(NO_COLLAPSE, Exit.LACKING, KERNEL)
    # statistics.median() is not used, as its import takes a tenth of the start-up time
    return sorted(host.advice.time_collapses(TIMED, holds.undisturbed))[TIMED // 2]


@dataclass(frozen=True)
class Limits:
    """The limits that a Collapser keeps while it collapses memory."""

    share: float  # largest share of the elapsed time that collapses may take; 1 for no limit
    longest_s: float  # collapses that take longer than this many seconds count as slow
    growth_pages: int  # pages by which all collapses together may make the program's memory grow
    reserve: float  # share of each NUMA node's memory to leave free as 2 MB blocks


@dataclass
class Done:
    """What a Collapser has done so far."""

    made: Counter[int] = field(default_factory=Counter)  # number of collapsed blocks, by PID
    starts: set[int] = field(default_factory=set)  # addresses of the collapsed blocks
    # number of absent pages that collapses have filled, by PID
    added: Counter[int] = field(default_factory=Counter)
    # number of pages not collapsed, by cause
    skipped: Counter[str] = field(default_factory=Counter)
    # PIDs of processes that ended while their memory was collapsed
    ended: set[int] = field(default_factory=set)
    longest_s: float = 0.0  # time of the longest collapse in seconds
    cpu_s: float = 0.0  # CPU time in seconds that this command has used for the collapses
    stopped: str = ""  # the reason why the work ended early; "" if it did not
    next_step: str = ""
    tried: int = 0  # number of blocks that the kernel was asked to collapse


class Collapser:
    """Collapses one 2 MB block after another, with pauses to stay within the CPU budget."""

    def __init__(self, host: Host, limits: Limits, pressure: Pressure) -> None:
        self._host, self._limits, self._pressure = host, limits, pressure
        # _must_stop() reads both before each collapse, if they are older than LOOK_S
        self._zones, self._nodes = list[Zone](), dict[int, Node]()
        self._looked = -inf
        self._since = 0  # number of 2 MB blocks allocated since free memory was read
        self._worked_s = 0.0  # seconds of work since the last pause
        self._each_s = 0.0  # seconds that the last collapse of a block took
        self._numbers: dict[int, int] = {}  # number of the NUMA node of each memory section
        # bytes left below the limit of each cgroup, by its folder, when last read; None without a
        # limit
        self._rooms: dict[str, int | None] = {}
        self._slow = 0  # number of slow collapses in a row
        self._cpu_s = time.thread_time()
        self.done = Done()

    def ready(self, target: Target, start: int) -> bool:
        """Return whether memory pressure and free memory permit to collapse the block at `start`
        now; if not, record in `done` why no more blocks are collapsed.
        """
        if self._must_stop():
            return False
        verdict = target.verdict(start)
        return not verdict or bool(verdict.cause) or self._has_room(target, verdict.frame)

    def run(self, targets: dict[int, Target], areas: list[Candidates]) -> Iterator[int]:
        """Collapse the blocks of all areas; after each step, yield how many blocks are still to be
        done.

        The areas with most blocks come first.
        """
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
        # Blocks that failed with EAGAIN are tried once more, as their pages may have been in use
        # only briefly.
        for target, start in again:
            if EAGAIN in self._step(target, [start]).values():
                self.done.skipped[PINNED] += PAGES
            yield 0
            if self.done.stopped:
                return

    def _group(self, starts: list[int], at: int) -> list[int]:
        """Return the adjacent blocks from index `at` on to collapse before the next pause.

        With a CPU budget, it is one block; without, as many as take SLICE_S, and at most GROUP.
        """
        most, end = 1, at + 1
        if self._limits.share == 1 and self._each_s:
            most = min(int(SLICE_S / self._each_s), GROUP)
        while end < min(at + most, len(starts)) and starts[end] == starts[end - 1] + BLOCK:
            end += 1
        return starts[at:end]

    def _step(self, target: Target, starts: list[int]) -> dict[int, int]:
        """Check and collapse some blocks, then pause; return the errno of each block that was
        reached, by its address: 0 if it was collapsed or skipped.
        """
        if target.pid in self.done.ended or self._must_stop():
            return dict.fromkeys(starts[:1], 0)
        began = self._host.clock()
        try:
            # This thread must not be preempted while its calls hold the mmap_lock of the process.
            # A step changes the scheduling policy once for all its calls, as a change costs more
            # than the check of a block.
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
        """Pause so that the collapses stay within their CPU budget, and another program on this CPU
        can run.
        """
        self.done.cpu_s = time.thread_time() - self._cpu_s
        self._worked_s += took
        pause = took * (1 / self._limits.share - 1)
        if self._slow:
            pause = max(pause, BACK_OFF_S * 2 ** (self._slow - 1))
        if pause or self._worked_s >= SLICE_S:
            self._host.sleep(max(pause, TURN_S))
            self._worked_s = 0.0

    def _collapse(self, target: Target, starts: list[int]) -> dict[int, int]:
        verdicts = target.verdicts(starts)
        if not verdicts:
            return {starts[0]: ESRCH}
        numbers, chosen = dict[int, int](), dict[int, Verdict]()
        for start, verdict in zip(starts, verdicts):
            why = verdict.cause or self._beyond_growth(verdict, chosen.values())
            if why and chosen:
                break  # the next step begins with this block
            if not why and self._has_room(target, verdict.frame, len(chosen)):
                chosen[start] = verdict
                continue
            numbers[start] = 0
            if self.done.stopped:
                break
            absent = why == ABSENT  # all of its pages were there when they were looked at
            self.done.skipped[GONE if absent else why] += PAGES if absent else verdict.pages
        return self._call(target, chosen, numbers) if chosen else numbers

    def _beyond_growth(self, verdict: Verdict, chosen: Iterable[Verdict]) -> str:
        """Return GROWTH if this block, in addition to the chosen ones, would let the memory grow
        beyond --max-growth, else "".
        """
        added = sum(self.done.added.values()) + sum(each.missing for each in chosen)
        return GROWTH if added + verdict.missing > self._limits.growth_pages else ""

    def _call(
        self, target: Target, chosen: dict[int, Verdict], numbers: dict[int, int]
    ) -> dict[int, int]:
        """Collapse the chosen adjacent blocks; return `numbers` with the errno of each block that
        the kernel reached.
        """
        starts = [*chosen]
        began = self._host.clock()
        number = target.memory.collapse(starts[0], len(starts))
        took = self._host.clock() - began
        # The kernel stops at ENOMEM and EBUSY, so this errno belongs to the first block that is no
        # huge page now. After other errors the kernel goes on, so the errno may belong to a later
        # block, and one more call for each block finds its errno.
        known = len(starts) == 1 or number in (ENOMEM, EBUSY)
        for start, is_made in zip(starts, target.made(starts)):
            if self.done.stopped and not is_made:
                continue
            if not is_made and not known:
                number = target.memory.collapse(start)
                is_made = target.made([start])[0]
            numbers[start] = 0 if is_made else number
            if is_made:
                self._since += 1
                self.done.made[target.pid] += 1
                self.done.starts.add(start)
                self.done.added[target.pid] += chosen[start].missing
            else:
                self._note(target, number, start, chosen[start])
                known = False
        self._time(len(starts), took)
        return numbers

    def _note(self, target: Target, number: int, start: int, verdict: Verdict) -> None:
        """Record why a collapse made no huge page: stop all work if memory is short, raise an error
        if permission is missing, else count the block's pages as skipped.

        EAGAIN and ESRCH are not recorded, as the callers handle them.
        """
        if number in (EPERM, EACCES):
            raise explain(number, f"advise process {target.pid}", REMEDIES)
        # ENOMEM means that no 2 MB block is free, or that the program has unmapped a part of the
        # range. In the second case, a new check gives another verdict.
        if number == ENOMEM and target.verdict(start) == verdict:
            self._stop("the kernel found no free block of 2 MB (ENOMEM)", COMPACT)
        elif number == EBUSY:
            then = raise_limit(self._host.tree, target.folders)
            self._stop("the kernel could not charge 2 MB to the cgroup (EBUSY)", then)
        elif number not in (EAGAIN, ESRCH):
            self.done.skipped[GONE if number == ENOMEM else REFUSED] += verdict.pages

    def _time(self, number: int, took: float) -> None:
        """Record how long some collapses took; stop all work after PATIENCE slow ones in a row."""
        self._each_s = took / number
        self.done.tried += number
        self.done.longest_s = max(self.done.longest_s, self._each_s)
        self._slow = self._slow + 1 if self._each_s > self._limits.longest_s else 0
        if self._slow >= PATIENCE:
            longest = self._limits.longest_s * 1000
            why = f"{PATIENCE} collapses in a row took longer than {longest:g} ms"
            self._stop(
                why, "give the command again when the host is less busy, or raise --max-stop"
            )

    def _stop(self, why: str, then: str) -> None:
        self.done.stopped, self.done.next_step = why, then

    def _must_stop(self) -> bool:
        if self._host.clock() - self._looked >= LOOK_S:
            self._looked = self._host.clock()
            self._zones = read_zones(self._host.tree)
            self._nodes, self._since = nodes_in(self._zones), 0
            self._rooms.clear()
            if why := self._pressure.too_high():
                self._stop(
                    why,
                    (
                        "/proc/pressure/memory shows the pressure; give the command again "
                        "later, or raise --max-pressure"
                    ),
                )
        return bool(self.done.stopped)

    def _has_room(self, target: Target, frame: int, taken: int = 0) -> bool:
        section = frame // SECTION
        if section not in self._numbers and (number := number_of(self._zones, frame)) is not None:
            self._numbers[section] = number
        node = self._nodes.get(self._numbers[section]) if section in self._numbers else None
        if node and (why := short_of_blocks(node, self._since + taken, self._limits.reserve)):
            self._stop(why, COMPACT)
        for folder in target.folders:
            room = self._room_in(folder)
            if room is not None and room < MARGIN:
                self._stop(
                    (
                        f"the limit of {folder} leaves {max(room, 0) >> 10} KiB, and each "
                        f"collapse needs {MARGIN >> 10} KiB"
                    ), raise_limit(self._host.tree, [folder]),
                )  # fmt: skip
        return not self.done.stopped

    def _room_in(self, folder: str) -> int | None:
        """Return the bytes left below the limit of a cgroup; None without a limit.

        If fewer than NEAR bytes are left, they are read again on each call, as the program may use
        them at any time.
        """
        room = self._rooms.get(folder, 0)
        if room is not None and room < NEAR:
            room = self._rooms[folder] = room_in(self._host.tree, folder)
        return room


COMPACT = "echo 1 >/proc/sys/vm/compact_memory makes free blocks of 2 MB; or lower --reserve"
