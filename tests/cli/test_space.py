# SPDX-License-Identifier: GPL-2.0
"""Reading the memory of a process: the pages found, and how long its lock is held."""

from __future__ import annotations

import mmap
import os
import time
from array import array
from collections.abc import Iterator
from errno import EINVAL, ENOTTY
from pathlib import Path

import pytest

from mmpolicy.errors import Error
from mmpolicy.host import pagemap
from mmpolicy.host.files import Reader, Tree
from mmpolicy.host.pagemap import (
    ENTRY_GUARD,
    ENTRY_PRESENT,
    ENTRY_SWAPPED,
    PAGE,
    Pagemap,
)
from mmpolicy.memory.holds import LEARN, Holds, _address
from mmpolicy.memory.space import GUARD, HUGE, PRESENT, SWAPPED, Region, Space, Vma

from .fakes import FakeTree
from .test_map import START, write_at

PAGES = 4096
GUARD_INSTALL = 102  # madvise, from Linux 6.13


class Memory:
    """Memory of this process, with some pages touched."""

    def __init__(self) -> None:
        self.map = mmap.mmap(-1, PAGES * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.map.madvise(mmap.MADV_NOHUGEPAGE)
        self.start = _address(self.map)
        self.end = self.start + PAGES * PAGE

    def fill(self, *pages: int) -> None:
        for page in pages:
            self.map[page * PAGE] = 1


@pytest.fixture
def memory() -> Iterator[Memory]:
    made = Memory()
    yield made
    made.map.close()


@pytest.fixture(params=["scan", "file"])
def space(request: pytest.FixtureRequest) -> Space:
    """This process's memory, read as this kernel can, and as all can."""
    found = Space(Tree(), os.getpid(), Holds(Tree()))
    if request.param == "file":
        found._opened().can_scan = False
    return found


def test_what_is_there(space: Space, memory: Memory) -> None:
    memory.fill(0, 1, 2, 700, *range(1000, 3000))
    found = [((each.start - memory.start) // PAGE, each.pages)
             for each in space.regions(memory.start, memory.end)
             if each.categories & PRESENT]  # fmt: skip
    assert found == [(0, 3), (700, 1), (1000, 2000)]
    entries = space.entries(memory.start, 4)
    assert [bool(each & ENTRY_PRESENT) for each in entries] == [True] * 3 + [False]


def test_a_walk_goes_on_where_it_ended(
    space: Space, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A walk goes on where it ended: after a number of pages, regions, or bytes, no page is lost or
    reported twice.
    """
    pages = list(range(0, PAGES, 3))
    memory.fill(*pages)
    monkeypatch.setattr(Holds, "pages", lambda _self: 7)
    monkeypatch.setattr(Holds, "span", lambda _self, _slots: 64 * PAGE)
    found = [*space.regions(memory.start, memory.end)]
    assert [(each.start - memory.start) // PAGE for each in found] == pages
    assert {each.pages for each in found} == {1}


def test_blocks_are_aligned_and_counted(space: Space, memory: Memory) -> None:
    memory.fill(*range(PAGES))
    areas = [each for each in space.areas() if each.start <= memory.start < each.end]
    blocks = [*space.blocks(areas)]
    inside = [each for each in blocks if memory.start <= each.start < memory.end - (2 << 20)]
    assert len(inside) == PAGES // 512 - 1
    assert all(each.start % (2 << 20) == 0 for each in blocks)
    assert {(each.present, each.swapped, each.guards, each.huge) for each in inside} == {
        (512, 0, 0, 0)
    }


def test_areas_are_those_of_maps(space: Space) -> None:
    lines = Path("/proc/self/maps").read_text().splitlines()
    found = space.areas()
    assert len(found) >= len(lines) - 2  # areas of this process come and go
    heap = next(each for each in found if each.name == "[heap]")
    assert (heap.anonymous, heap.access) == (True, "rw-p")
    assert not any(each.anonymous for each in found if each.name in ("[vvar]", "[vdso]"))


def test_small_areas_are_scanned_together(
    space: Space, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a thousand areas in a row, each has its pages, with few calls of the kernel."""
    memory.fill(*range(0, PAGES, 8), *range(1, PAGES, 8))
    size, number = 4 * PAGE, PAGES // 4
    scans, usual = list[int](), Pagemap.scan

    def scan(self: Pagemap, start: int, end: int, most: int) -> tuple[list[Region], int]:
        scans.append(start)
        return usual(self, start, end, most)

    monkeypatch.setattr(Pagemap, "scan", scan)
    areas = [Vma(at, at + size, "rw-p", 0, "") for at in range(memory.start, memory.end, size)]
    found = [(area, list(regions)) for area, regions in space.regions_of(areas, PRESENT)]
    assert [area for area, _ in found] == areas
    for n, (area, regions) in enumerate(found):
        there = [] if n % 2 else [(area.start, area.start + 2 * PAGE)]
        assert [(each.start, each.end) for each in regions] == there
    assert len(scans) < number / 10


def test_guards_are_not_swapped(space: Space, memory: Memory) -> None:
    """Guards are not reported as swapped: Linux 6.13 has guard regions; from 6.15 on pagemap tells
    them from swapped pages.
    """
    memory.fill(*range(16))
    try:
        memory.map.madvise(GUARD_INSTALL, 4 * PAGE, 4 * PAGE)
    except OSError as err:
        assert err.errno == EINVAL  # an older kernel: test_guards_in_entries has the rest
        return
    found = [each.categories & (PRESENT | SWAPPED | GUARD)
             for each in space.regions(memory.start, memory.end)]  # fmt: skip
    assert [bits & ~SWAPPED if bits & GUARD else bits for bits in found] == [
        PRESENT, GUARD, PRESENT
    ]  # fmt: skip


def test_guards_in_entries(tree: FakeTree) -> None:
    """Entries of the file are told apart for a guard page, for a swapped page and for a page of a
    file.
    """
    entries = array("Q", [
        ENTRY_PRESENT | 5, ENTRY_SWAPPED | 7, ENTRY_SWAPPED | ENTRY_GUARD, 0,
        ENTRY_PRESENT | 1 << 61 | 9, 1 << 55,
    ])  # fmt: skip
    tree.put("/proc/7/pagemap", b"")
    write_at(tree, "/proc/7/pagemap", START // PAGE * 8, entries.tobytes())
    found = [*Pagemap(tree, 7).regions(START, START + 6 * PAGE)]
    assert [(each.start - START) // PAGE for each in found] == [0, 1, 2, 4]
    assert [each.categories for each in found] == [
        PRESENT, SWAPPED, GUARD, PRESENT | pagemap.FILE
    ]  # fmt: skip


class OldKernel(Reader):
    """Refuses the category of guards, as Linux before 6.16, or has no PAGEMAP_SCAN at all."""

    errno = EINVAL

    def ioctl(self, request: int, argument: bytearray) -> int:
        anyof = int.from_bytes(argument[80:88], "little")
        if self.errno == ENOTTY or anyof & GUARD:
            raise Error("no", 1, "none", self.errno)
        return super().ioctl(request, argument)


@pytest.mark.parametrize("errno", [EINVAL, ENOTTY])
def test_kernels_are_known_by_trying(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, errno: int
) -> None:
    memory.fill(0, 9)
    monkeypatch.setattr(OldKernel, "errno", errno)
    monkeypatch.setattr(Tree, "reader", lambda self, path: OldKernel(path))
    old = Space(Tree(), os.getpid(), Holds(Tree()))
    found = [
        (each.start - memory.start) // PAGE
        for each in old.regions(memory.start, memory.end)
        if each.categories & PRESENT
    ]
    assert (found, old.can_scan) == ([0, 9], errno == EINVAL)


# The limit


def test_a_read_is_made_only_within_the_limit() -> None:
    holds = Holds(Tree())
    assert 1 < holds.scan_ns < 100_000
    assert holds.pages() * holds.scan_ns <= holds.limit_s * 1e9 / 2 + holds.scan_ns
    most = int(holds.limit_s * 1e9 / holds.smaps_ns)
    assert holds.allows_smaps(most)
    assert not holds.allows_smaps(most + 2)
    assert holds.span(10) == 1 << 47
    assert holds.span(1 << 40) <= holds.limit_s * 1e9 * PAGE
    holds.took(0.5)
    holds.took(0.1)
    assert holds.longest_s == 0.5


def test_costs_rise_with_what_reads_take() -> None:
    holds = Holds(Tree())
    before = holds.pages()
    holds.learn_scan(1.0, 10)  # too few pages to judge
    assert holds.pages() == before <= LEARN
    holds.learn_scan(0.0, LEARN)
    assert holds.pages() == int(holds.limit_s / 2 * 1e9 / holds.scan_ns)
    holds.learn_scan(1.0, 4096)
    assert holds.pages() == max(int(holds.limit_s / 2 * 4096), 1)
    holds.learn_smaps(1.0, 4096)
    assert not holds.allows_smaps(50)


def test_the_cpu_is_kept_only_for_a_read() -> None:
    """The scheduler is restored after a read, whatever happens, and if it may not be changed."""
    holds, usual = Holds(Tree()), os.sched_getscheduler(0)
    with pytest.raises(ZeroDivisionError), holds.undisturbed(), holds.undisturbed():
        raise ZeroDivisionError
    assert os.sched_getscheduler(0) == usual
    with holds.undisturbed():
        assert os.sched_getscheduler(0) in (holds._may_hurry and 0x40000001, usual)


def areas_of(tree: FakeTree, sizes: list[int]) -> list[tuple[int, int]]:
    """Make a process of areas with these numbers of pages, all present."""
    text, start, found = "", START, []
    tree.put("/proc/7/pagemap", b"")
    for pages in sizes:
        end = start + pages * PAGE
        found.append((start, end))
        text += f"{start:x}-{end:x} rw-p 00000000 00:00 0 \n"
        entries = array("Q", [ENTRY_PRESENT | 5] * pages).tobytes()
        write_at(tree, "/proc/7/pagemap", start // PAGE * 8, entries)
        start = end + PAGE
    tree.put("/proc/7/maps", text)
    smaps = [f"{line}\nRss: 4 kB\nLazyFree: 8 kB\nVmFlags: rd wr hg" for line in text.splitlines()]
    tree.put("/proc/7/smaps", "\n".join(smaps))
    tree.put("/proc/7/status", f"VmRSS:\t{4 * sum(sizes)} kB\nVmPTE:\t40 kB")
    return found


def test_smaps_is_read_up_to_what_takes_too_long(tree: FakeTree) -> None:
    """smaps is read up to what takes too long, in pieces that are shorter than an area; a read to
    the end of one would go on.
    """
    where = areas_of(tree, [1] * 20 + [8000] + [1] * 5)
    details = Space(tree, 7, Holds(tree)).details()
    known = [details[each] is not None for each in where]
    assert known == [True] * 19 + [False] * 7
    first = details[where[0]]
    assert first
    assert (sorted(first.flags), first.lazily_freed_kib) == (["hg", "rd", "wr"], 8)


def test_empty_page_tables_take_time_too(tree: FakeTree) -> None:
    """Empty page tables take time too: with few pages, each in a table of its own, smaps walks all
    entries.
    """
    areas_of(tree, [1, 2, 3])
    tree.put("/proc/7/status", "VmRSS:\t24 kB\nVmPTE:\t1000000 kB")
    tree.put("/proc/7/maps", f"{START:x}-{START + (64 << 30):x} rw-p 00000000 00:00 0 \n")
    assert [*Space(tree, 7, Holds(tree)).details().values()] == [None]


def test_smaps_of_a_small_process_is_read_at_once(tree: FakeTree) -> None:
    where = areas_of(tree, [1, 2, 3])
    details = Space(tree, 7, Holds(tree)).details()
    assert [*details] == where
    assert None not in details.values()


def test_a_process_that_is_not_there() -> None:
    with pytest.raises(Error, match="no process"):
        Space(Tree(), 1 << 30, Holds(Tree()))


def test_huge_pages_are_one_step(space: Space) -> None:
    """Huge pages are one step: a kernel that can scan reports huge entries; smaps takes one step
    for 512 pages then.
    """
    with mmap.mmap(-1, 8 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for page in range(0, 2048, 256):
            memory[page * PAGE] = 1
        start = _address(memory)
        found = [*space.regions(start, start + (8 << 20))]
        assert sum(each.pages for each in found if each.categories & HUGE) % 512 == 0
        assert space.can_scan or not any(each.categories & HUGE for each in found)


def test_regions_have_no_end_of_their_own() -> None:
    """[vsyscall] has no end among regions: it lies where no process has memory."""
    space = Space(Tree(), os.getpid(), Holds(Tree()))
    assert [*space.regions(0xFFFFFFFFFF600000, 0xFFFFFFFFFF601000)] == []
    assert Region(0, 3 * PAGE, PRESENT).pages == 3


def test_how_long_it_took_is_kept(memory: Memory) -> None:
    memory.fill(*range(100))
    holds = Holds(Tree())
    begin = time.perf_counter()
    list(Space(Tree(), os.getpid(), holds).regions(memory.start, memory.end))
    assert 0 < holds.longest_s <= time.perf_counter() - begin
