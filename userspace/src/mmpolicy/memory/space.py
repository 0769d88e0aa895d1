# SPDX-License-Identifier: GPL-2.0
"""The memory of a process: its areas, the pages present, and details from smaps.

All code that reads the address space of another process does so through a Space. It keeps each
hold of the process's mmap_lock within the limit of a Holds (see holds.py):

    holds = Holds(tree)                     # one for a command, which reports holds.longest_s
    space = Space(tree, pid, holds)         # Error with exit 2 if there is no such process
    space.sizes()                           # Sizes, in kB, by counters: takes no lock
    for area in space.areas():              # Vma: start, end, access, inode, name; in pieces
        for region in space.regions(area.start, area.end):  # Region: start, end, categories
            ...                             # PRESENT, SWAPPED, GUARD, FILE; HUGE and ZERO only
                                            # if space.can_scan (Linux 6.7 and newer)
    for block in space.blocks():            # each aligned 2 MB of private anonymous memory with
        ...                                 # any page: pages present, swapped, zero, guards, and
                                            # pages mapped by a huge entry
    space.entries(start, pages)             # the pagemap entry of each page, eight bytes each
    space.details()                         # Details by (start, end) of an area: flags, LazyFree;
                                            # None if smaps takes too long to show the area

Addresses and lengths are in bytes, counts in pages of 4 kB. The process keeps running, so two
reads may disagree. A process that ends raises an Error with errno ESRCH or ENOENT, or shows no
areas. A process that denies access raises an Error with exit 4 (DENIED). Page frames, and so the
sizes of folios, need CAP_SYS_ADMIN; regions do not.
"""

from __future__ import annotations

import re
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import NamedTuple

from mmpolicy.errors import Error
from mmpolicy.host.files import Reader, Tree
from mmpolicy.host.pagemap import (
    ANY,
    ENTRY_GUARD,
    ENTRY_SWAPPED,
    FILE,
    GUARD,
    HUGE,
    PAGE,
    PIECE,
    PRESENT,
    SWAPPED,
    ZERO,
    Pagemap,
    Region,
)
from mmpolicy.host.processes import check_process, seen
from mmpolicy.memory.holds import Holds

LONGEST = 1 << 16  # most pages whose entries one read of pagemap returns where all are absent
BLOCK = 512  # number of small pages in a 2 MB page
TEXT = 4096  # bytes per read of maps and smaps; the kernel returns no more at once
USER_END = 1 << 63  # end of the addresses that are read; [vsyscall] lies above it
AT_ONCE = 8  # most areas that one read of TEXT bytes of smaps shows
NEAR = 1 << 20  # areas with no larger gap between them, in bytes, are scanned together
# most areas, and bytes from the first to the last, that are scanned together; the kernel looks up
# each area
TOGETHER, SMALL = 256, 64 << 20
# Memory that the program cannot access (PROT_NONE) is looked at up to this many scans, and without
# PAGEMAP_SCAN up to this many bytes, so that a reservation of many TB costs no time.
CLOSED_SCANS, CLOSED = 64, 1 << 30
# bytes per read of smaps for one area at a time; an area takes more bytes than this, so the kernel
# walks no second area in a read
ONE = 256
HEX = tuple(bytes([each]) for each in b"0123456789abcdef")  # first bytes of a line of an area
LINE = re.compile(rb"([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ (\d+) *(.*)")
LAZY = re.compile(rb"^LazyFree: +(\d+) kB", re.MULTILINE)
FLAGS = re.compile(rb"^VmFlags:(.*)$", re.MULTILINE)
ELIGIBLE = re.compile(rb"^THPeligible: +(\d+)", re.MULTILINE)
HUGE_FIELDS = re.compile(r"^(?:Anon|Shmem|File)(?:HugePages|PmdMapped): +(\d+) kB", re.MULTILINE)
COUNTS = re.compile(r"^(\w+):\s+(\d+)", re.MULTILINE)
SHARED = ("/memfd:", "/dev/zero", "/SYSV", "/dev/shm/", "[anon_shmem:")
KERNELS = ("[vvar]", "[vvar_vclock]", "[vdso]", "[vsyscall]")

__all__ = [
    "ENTRY_GUARD",
    "ENTRY_SWAPPED",
    "FILE", "GUARD", "HUGE", "PRESENT", "SWAPPED", "ZERO", "Block", "Details", "Region", "Sizes",
    "Space", "Vma",
]  # fmt: skip


class Vma(NamedTuple):
    """A memory area of a process: one line of /proc/PID/maps."""

    start: int
    end: int
    access: str  # permissions of the area, such as rw-p
    inode: int
    name: str

    @property
    def private(self) -> bool:
        """Return whether writes to the area are private to the process."""
        return self.access.endswith("p")

    @property
    def anonymous(self) -> bool:
        """Return whether the area is private and not backed by a file."""
        return self.private and not self.inode and self.name not in KERNELS

    @property
    def shared_memory(self) -> bool:
        """Return whether the area's name is one that only shared memory has; an area with another
        name may be shared memory, too.
        """
        return not self.private and self.name.startswith(SHARED)

    @property
    def usable(self) -> bool:
        """Return whether the program can access the area, and the kernel did not make the area, as
        it does the vDSO.
        """
        return not self.access.startswith("---") and self.name not in KERNELS


class Sizes(NamedTuple):
    """The kernel's counters of a process's memory, in kB."""

    rss: int
    anon: int
    file: int
    shared: int  # shared memory, and files in tmpfs
    swap: int
    hugetlb: int  # hugetlb pages, which RSS does not include
    locked: int
    # pages pinned by io_uring and for devices such as RDMA; VFIO counts its pages as locked
    pinned: int
    tables: int  # page tables of the process
    # False if the process has forbidden large folios in all of its memory by prctl()
    thp_enabled: bool

    @property
    def slots(self) -> int:
        """Return the number of pages that the process's page tables have entries for."""
        return (self.tables << 10) // 8


NAMES = {
    "rss": "VmRSS", "anon": "RssAnon", "file": "RssFile", "shared": "RssShmem", "swap": "VmSwap",
    "hugetlb": "HugetlbPages", "locked": "VmLck", "pinned": "VmPin", "tables": "VmPTE",
}  # fmt: skip


class Block(NamedTuple):
    """An aligned 2 MB of private anonymous memory that lies within one area; counts in pages."""

    start: int
    present: int  # number of present pages, including those counted in `zero` and `huge`
    swapped: int
    zero: int  # number of mapped zero pages; 0 if the kernel cannot scan
    guards: int
    # number of pages that one huge entry maps, 512 or 0; 0 if the kernel cannot scan
    huge: int


class Details(NamedTuple):
    """Facts about an area that only smaps reports."""

    flags: frozenset[str]  # VmFlags such as hg, nh, lo; see proc.rst of the kernel
    lazily_freed_kib: int
    # whether the kernel's own settings permit large folios in the area; None if smaps does not tell
    eligible: bool | None = None


@dataclass
class _Counts:
    present: int = 0
    swapped: int = 0
    zero: int = 0
    guards: int = 0
    huge: int = 0

    def add(self, region: Region, pages: int) -> None:
        bits = region.categories
        self.present += pages if bits & PRESENT else 0
        self.guards += pages if bits & GUARD else 0
        self.swapped += pages if bits & SWAPPED and not bits & GUARD else 0
        self.zero += pages if bits & ZERO else 0
        self.huge += pages if bits & HUGE else 0

    def block(self, start: int) -> Block:
        return Block(start, self.present, self.swapped, self.zero, self.guards, self.huge)


class Space:
    """The memory of one process."""

    def __init__(self, tree: Tree, pid: int, holds: Holds) -> None:
        check_process(tree, pid)
        self.tree, self.pid, self.holds = tree, pid, holds
        self.process = seen(tree, pid)
        self._pagemap: Pagemap | None = None
        self._memory: Reader | None = None
        self._span = 0
        # entries that entries_near() has read last, and the address of their first page
        self._near = 0, array("Q")

    @property
    def can_scan(self) -> bool:
        """Return whether this kernel supports PAGEMAP_SCAN."""
        if self._pagemap is None:
            list(self.regions(0, PAGE))
        return self._opened().can_scan

    def _opened(self) -> Pagemap:
        self._pagemap = self._pagemap or Pagemap(self.tree, self.pid)
        return self._pagemap

    def sizes(self) -> Sizes:
        """Return the kernel's counters of the process."""
        found = dict(COUNTS.findall(self.tree.read(f"/proc/{self.pid}/status")))
        values = {field: int(found.get(name, 0)) for field, name in NAMES.items()}
        return Sizes(**values, thp_enabled=found.get("THP_enabled") != "0")

    def areas(self) -> list[Vma]:
        """Return the memory areas by ascending address.

        An area that changes during the read may appear in its old state.
        """
        found, last = list[Vma](), 0
        for line in self._pieces("maps"):
            head = LINE.fullmatch(line)
            if head and int(head[1], 16) >= last:
                last = int(head[2], 16)
                access, name = head[3].decode(), head[5].decode(errors="replace")
                found.append(Vma(int(head[1], 16), last, access, int(head[4]), name))
        return found

    def _pieces(
        self, file: str, size: Callable[[], int] = lambda: TEXT,
        learn: Callable[[float], None] = lambda _cpu_s: None,
    ) -> Iterator[bytes]:  # fmt: skip
        """Yield the lines of a file of /proc/PID that the kernel generates piece by piece;
        mmap_lock is free between two reads.

        size: called before each read, returns its bytes. learn: called after each read with its CPU
        time.
        """
        reader, offset, rest = self.tree.reader(f"/proc/{self.pid}/{file}"), 0, b""
        while True:
            most = size()
            with self.holds.timed():
                cpu = time.thread_time()
                piece = reader.read(most, offset)
                cpu = time.thread_time() - cpu
            learn(cpu)
            if not piece:
                break
            offset += len(piece)
            *lines, rest = (rest + piece).split(b"\n")
            yield from lines
        if rest:
            yield rest

    def looked_at(self, areas: Iterable[Vma]) -> list[Vma]:
        """Return the areas in which to look for pages: those that the program can access, and
        others, the smallest first, as far as a look at them takes little time.

        Garbage collectors and guards keep written pages behind PROT_NONE.
        """
        found = [each for each in areas if each.name not in KERNELS]
        closed = sorted(
            (each for each in found if not each.usable), key=lambda each: each.end - each.start
        )
        room = accumulate(each.end - each.start for each in closed)
        end = self._closed() if closed else 0
        most = sum(1 for _ in takewhile(lambda size: size <= end, room))
        left_out = set(closed[most:])
        return [each for each in found if each not in left_out]

    def _closed(self) -> int:
        """Return up to how many bytes of PROT_NONE memory are looked at."""
        return self._reach() * CLOSED_SCANS if self.can_scan else CLOSED

    def _reach(self) -> int:
        """Return how many bytes one scan may walk."""
        self._span = self._span or self.holds.span(self.sizes().slots)
        return self._span

    def regions_of(
        self, areas: Iterable[Vma], wanted: int = ANY
    ) -> Iterator[tuple[Vma, Iterable[Region]]]:
        """Yield each area with its regions. Small areas near each other are scanned together, as
        some programs have ten thousands of them.
        """
        for group in _near(areas, min(self._reach(), SMALL) if self.can_scan else 0):
            if len(group) == 1:
                yield group[0], self.regions(group[0].start, group[0].end, wanted)
                continue
            found = list(self.regions(group[0].start, group[-1].end, wanted))
            at = 0
            for area in group:
                while at < len(found) and found[at].end <= area.start:
                    at += 1
                here, last = list[Region](), at
                while last < len(found) and found[last].start < area.end:
                    start, end, bits = found[last]
                    here.append(Region(max(start, area.start), min(end, area.end), bits))
                    last += 1
                yield area, here

    def regions(self, start: int, end: int, wanted: int = ANY) -> Iterator[Region]:
        """Yield the regions of an address range in order: adjacent pages with equal categories,
        such as PRESENT or SWAPPED, of which at least one must be wanted.
        """
        last: Region | None = None
        for region in self._regions(start, end, wanted):
            if last and last.end == region.start and last.categories == region.categories:
                last = Region(last.start, region.end, last.categories)
                continue
            if last:
                yield last
            last = region
        if last:
            yield last

    def _regions(self, start: int, end: int, wanted: int) -> Iterator[Region]:
        pagemap, wanted = self._opened(), wanted | GUARD if wanted & SWAPPED else wanted
        end = min(end, USER_END)
        while start < end and pagemap.can_scan:
            found, start = self.scan(start, end, self.holds.pages())
            yield from (region for region in found if region.categories & wanted)
        if start < end:
            for begin in range(start, end, PIECE * PAGE):
                for region in pagemap.regions(begin, min(begin + PIECE * PAGE, end)):
                    if region.categories & wanted:
                        yield region

    def next_page(self, start: int, end: int) -> int:
        """Return the address of the first page from `start` on that is present or swapped; `end` if
        there is none.
        """
        pages = PIECE
        while start < end:
            if self.can_scan:
                found, start = self.scan(start, end, 1)
                if found:
                    return found[0].start
                continue
            # only the highest bytes: the next ones say of holes, too, that they are soft-dirty
            marks = self.raw_entries(start, min(pages, (end - start) // PAGE))[7::8]
            if not marks:
                break
            if marks != bytes(len(marks)):  # which takes a tenth of the time of a search
                return start + (len(marks) - len(marks.lstrip(b"\0"))) * PAGE
            start, pages = start + len(marks) * PAGE, min(2 * pages, LONGEST)
        return end

    def scan(self, start: int, end: int, most: int) -> tuple[list[Region], int]:
        """Return the regions that one PAGEMAP_SCAN finds, and the address where it ended.

        The scan asks for up to `most` present pages of any category. If it asked for one category,
        the kernel would also walk all other pages, which do not count for the limit `most`, and
        would hold mmap_lock for too long.
        """
        pagemap, holds, span = self._opened(), self.holds, self._reach()
        with holds.timed():
            cpu = time.thread_time()
            found, reached = pagemap.scan(start, min(start + span, end), most)
        if found and pagemap.can_scan:
            pages = sum(each.pages for each in found if not each.categories & HUGE)
            holds.learn_scan(time.thread_time() - cpu, pages)
        return found, max(reached, start + PAGE) if pagemap.can_scan else start

    def entries(self, start: int, pages: int) -> array[int]:
        """Return the pagemap entry of each of some adjacent pages."""
        return array("Q", self.raw_entries(start, pages))

    def entries_near(self, start: int, pages: int) -> array[int]:
        """Return the same. A read of few entries reads some more, from which the next call is
        answered if it can be: for many small areas in a row.
        """
        begin, near = self._near
        at = (start - begin) // PAGE
        if not 0 <= at <= len(near) - pages:
            begin, at, near = start, 0, self.entries(start, max(pages, BLOCK))
            self._near = begin, near
        return near[at : at + pages]

    def raw_entries(self, start: int, pages: int) -> bytes:
        """Return pagemap entries as bytes, eight for each page; the kernel takes mmap_lock once
        per 2 MB.
        """
        with self.holds.timed(max(pages // BLOCK, 1)):
            return self._opened().raw_entries(start, pages)

    def kind(self, start: int, end: int) -> int:
        """Return the categories that all pages of a range have, without FILE; 0 if they differ."""
        with self.holds.timed():
            return self._opened().kind(start, end)

    def contents(self, start: int, pages: int) -> bytes:
        """Return the contents of pages; the kernel takes mmap_lock for each page, and marks it
        accessed.

        Only present pages may be read, as others would be faulted in. The result ends before a
        page that is gone.
        """
        with self.holds.timed(pages):
            try:
                self._memory = self._memory or self.tree.reader(f"/proc/{self.pid}/mem")
                return self._memory.read(pages * PAGE, start)
            except Error:
                return b""

    def blocks(self, areas: Iterable[Vma] | None = None) -> Iterator[Block]:
        """Yield each aligned 2 MB of private anonymous memory that has any page."""
        for area in self.areas() if areas is None else areas:
            first, end = -(-area.start >> 21) << 21, area.end >> 21 << 21
            if area.anonymous and first < end:
                yield from self._blocks(first, end)

    def _blocks(self, first: int, end: int) -> Iterator[Block]:
        counts, start = _Counts(), -1
        for region in self.regions(first, end):
            at = region.start
            while at < region.end:
                here = at >> 21 << 21
                if here != start:
                    if start >= 0:
                        yield counts.block(start)
                    counts, start = _Counts(), here
                until = min(region.end, here + (BLOCK * PAGE))
                counts.add(region, (until - at) // PAGE)
                at = until
        if start >= 0:
            yield counts.block(start)

    def details(self, areas: list[Vma] | None = None) -> dict[tuple[int, int], Details | None]:
        """Return the details of each area from smaps; None for an area that takes too long to
        read.

        The kernel generates smaps from the first area on, and walks each area as a whole. So smaps
        is read up to the first area that would take too long. The area before it is left out, as a
        read to its end would continue into the next area. Later areas are not known either.
        """
        areas = self.areas() if areas is None else areas
        costs = self._costs(areas)
        allowed = [self.holds.allows_smaps(*each) for each in costs]
        end = max(allowed.index(False) - 1, 0) if False in allowed else len(areas)
        found = self._read_smaps(areas, costs, end)
        return {(each.start, each.end): found.get((each.start, each.end)) for each in areas}

    def _costs(self, areas: list[Vma]) -> list[tuple[int, int]]:
        """Return the number of pages and page table entries that smaps walks in each area.

        Both numbers are 0 for all areas if all of smaps can be read within the limit.
        """
        sizes = self.sizes()
        whole = (sizes.rss + sizes.swap) // 4
        if self.holds.allows_smaps(whole, sizes.slots):
            return [(0, 0)] * len(areas)
        found, spare = list[tuple[int, int]](), 0
        for area, regions in self.regions_of(areas):
            steps = huge = 0
            for each in regions:
                if each.categories & HUGE:
                    huge += each.pages
                    steps += each.pages // BLOCK
                # for smaps, the kernel skips the zero page like an absent page, so it costs nothing
                elif not each.categories & ZERO:
                    steps += each.pages
            spare += huge if area.private else 0
            found.append((steps, (area.end - area.start) // PAGE - huge))
        # the kernel keeps a spare page table for each huge page, which smaps does not walk
        most = max(sizes.slots - spare, 0)
        return [(steps, min(slots, most)) for steps, slots in found]

    def _read_smaps(
        self, areas: list[Vma], costs: list[tuple[int, int]], number: int
    ) -> dict[tuple[int, int], Details]:
        """Return the details of the first `number` areas, each of which has a cost."""
        found: dict[tuple[int, int], Details] = {}
        if not number:
            return found
        from bisect import bisect_right  # most verbs read no smaps

        text, seen, pages = list[bytes](), 0, 0
        starts = [each.start for each in areas]

        def size() -> int:
            nonlocal pages
            ahead = costs[seen : seen + AT_ONCE]
            most = self._piece(ahead)
            pages = sum(each for each, _ in (ahead if most == TEXT else ahead[:1]))
            return most

        def learn(cpu_s: float) -> None:
            self.holds.learn_smaps(cpu_s, pages)

        for line in self._pieces("smaps", size, learn):
            if line[:1] in HEX and (head := LINE.fullmatch(line)):
                if text:
                    found.update([_details(text)])
                # by address, as the program may have made areas meanwhile
                seen = bisect_right(starts, int(head[1], 16))
                if seen > number:
                    break
                text = []
            text.append(line)
        else:
            if text:
                found.update([_details(text)])
        return found

    def _piece(self, ahead: list[tuple[int, int]]) -> int:
        """Return the bytes of the next read of smaps: enough for several areas, if the limit
        permits.
        """
        pages, slots = (sum(each[at] for each in ahead) for at in (0, 1))
        return TEXT if self.holds.allows_smaps(pages, slots) else ONE


def _near(areas: Iterable[Vma], span: int) -> Iterator[list[Vma]]:
    """Yield the areas in groups: up to TOGETHER near each other that are within `span` bytes."""
    group = list[Vma]()
    for area in areas:
        if group and (
            len(group) == TOGETHER
            or not 0 <= area.start - group[-1].end <= NEAR
            or area.end - group[0].start > span
        ):
            yield group
            group = []
        group.append(area)
    if group:
        yield group


def _details(lines: list[bytes]) -> tuple[tuple[int, int], Details]:
    head, text = LINE.fullmatch(lines[0]), b"\n".join(lines)
    lazy, flags = LAZY.search(text), FLAGS.search(text)
    words = frozenset(flags[1].decode().split() if flags else ())
    where = (int(head[1], 16), int(head[2], 16)) if head else (0, 0)
    may = ELIGIBLE.search(text)
    return where, Details(words, int(lazy[1]) if lazy else 0, None if not may else may[1] != b"0")


def huge_of(tree: Tree, pid: int) -> tuple[int, int | None]:
    """Return the resident memory of a process in kB, and the part of it in huge pages.

    Without PAGEMAP_SCAN, the part in huge pages is known only if smaps_rollup is fast to read;
    else it is None.
    """
    space = Space(tree, pid, Holds(tree))
    sizes = space.sizes()
    rss = sizes.rss
    if space.can_scan:
        areas = space.looked_at(space.areas())
        huge = (each for _, regions in space.regions_of(areas, HUGE) for each in regions)
        found = sum(each.pages for each in huge if each.categories & (HUGE | ZERO) == HUGE)
        return rss, min(found * PAGE >> 10, rss)
    if not space.holds.allows_smaps(rss // 4, sizes.slots):
        return rss, None
    text = tree.read(f"/proc/{pid}/smaps_rollup")
    return rss, sum(int(kib) for kib in HUGE_FIELDS.findall(text))


def gone(err: Error) -> bool:
    """Return whether an error means that the process has ended."""
    from errno import ENOENT, ESRCH

    return err.errno in (ENOENT, ESRCH)
