# SPDX-License-Identifier: GPL-2.0
"""Find the folios that back the memory of a process, and their pages that are full of zeroes.

The frames come from pagemap, kpageflags and kpagecount; see
Documentation/admin-guide/mm/pagemap.rst in the kernel. A Space yields the ranges to read, and
keeps each hold of mmap_lock short. Page contents come from /proc/PID/mem, and only for present
pages: this faults nothing in, but marks pages as accessed.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import compress, groupby
from typing import NamedTuple
from zlib import compress as pack
from zlib import decompress as unpack

from mmpolicy.errors import Error
from mmpolicy.host.files import Tree
from mmpolicy.host.pagemap import ENTRY_PRESENT as PRESENT
from mmpolicy.host.pagemap import FRAME, PAGE, no_frames
from mmpolicy.memory import space as there
from mmpolicy.memory.holds import Holds
from mmpolicy.memory.space import Region, Space, Vma

STRETCH = 4096  # number of pages (16 MiB) that are read together
Folio = tuple[int, int]  # a folio as its number (first frame >> order) and its order
FEW = 16  # for fewer adjacent pages than this, flags are read one page at a time, not 512 at once
NO_FOLIO: Folio = (-1, 0)
BLOCK_BITS = 9  # folios of up to 2 MB lie within aligned blocks of 2**9 page frames
# One byte stands for the kind of a page; a page of a folio has the folio's order, "0" to "9".
ABSENT, SWAP, ZERO_PAGE, GUARD, HUGETLB = b".szgh"
KINDS = b"0123456789szgh"
# the kind of a page outside large folios, indexed by its mark; see _marks()
SMALL = bytes(ZERO_PAGE if mark & 4 else ord("0") for mark in range(256))
HEAD = re.compile(rb"\x01[\x02\x03]*|^[\x02\x03]+")
LARGE = re.compile(rb"[1-9]{1,512}")
# matches adjacent pages of the same kind, but not absent pages, whose kind is "."
ALIKE = re.compile(rb"([^.])\1*", re.DOTALL)

# Bits of kpageflags
KPF_ANON, KPF_SWAPBACKED, KPF_HUGETLB, KPF_UNEVICTABLE = 12, 14, 17, 18
KPF_ZERO_PAGE = 24
OF_FOLIO = 3 << 15  # bits of kpageflags: head or tail page


class Run(NamedTuple):
    """Adjacent pages of the same kind that are all zero-filled, or all not."""

    page: int  # index of the first page, counted from the start of the memory area
    pages: int
    kind: str
    zero: bool


class Pages:
    """One byte for each page of a memory area. Stretches without present pages take no memory.

    The other stretches are compressed, as sparse memory has many stretches with a few pages each.
    """

    def __init__(self, pages: int, empty: bytes) -> None:
        self._pages, self._empty = pages, empty
        # compressed bytes of a stretch, by the index of its first page
        self._stretches: dict[int, bytes] = {}
        self.counts = Counter[int]()  # number of pages by kind

    def __len__(self) -> int:
        return self._pages

    def put(self, first: int, found: bytes) -> None:
        """Store the bytes of a stretch of pages, from index `first` on, a multiple of STRETCH."""
        self._stretches[first] = pack(found, 1)
        for kind in KINDS:
            if number := found.count(kind):
                self.counts[kind] += number

    def count(self, kind: int) -> int:
        """Return how many pages are of a kind."""
        return self.counts[kind]

    @property
    def known(self) -> bool:
        """Return whether any page of the area was read."""
        return bool(self._stretches)

    def stretches(self) -> Iterator[tuple[int, bytes]]:
        """Yield each stored stretch with the index of its first page."""
        for first, found in self._stretches.items():
            yield first, unpack(found)

    def cut(self, first: int, end: int) -> bytes:
        """Return one byte for each page from `first` to `end` - 1; pages that were not stored get
        the byte `empty`.
        """
        found = bytearray(self._empty * (min(end, self._pages) - first))
        for start in range(first // STRETCH * STRETCH, end, STRETCH):
            packed = self._stretches.get(start)
            if packed is not None:
                part = unpack(packed)[max(first - start, 0) : end - start]
                at = max(start - first, 0)
                found[at : at + len(part)] = part
        return bytes(found)


class Area(NamedTuple):
    """A memory area: for each page one byte for its kind, and one byte that is 1 if it is
    zero-filled.
    """

    start: int
    name: str
    kinds: Pages
    zeroes: Pages
    folios: Counter[int]  # number of folios by order
    lost: int = 0  # number of pages of its folios that no process maps

    def runs(self) -> list[Run]:
        """Return the pages of the area as runs of adjacent pages of the same kind, without absent
        pages.
        """
        found: list[Run] = []
        for first, kinds in self.kinds.stretches():
            zeroes = self.zeroes.cut(first, first + len(kinds))
            for match in ALIKE.finditer(kinds):
                page = first + match.start()
                for zero, group in groupby(zeroes[match.start() : match.end()]):
                    pages = sum(1 for _ in group)
                    _add(found, Run(page, pages, chr(match[1][0]), bool(zero)))
                    page += pages
        return found

    def empty(self) -> Counter[int]:
        """Return the number of zero-filled pages by kind."""
        found = Counter[int]()
        for first, zeroes in self.zeroes.stretches():
            if zeroes.count(1):
                found.update(compress(self.kinds.cut(first, first + len(zeroes)), zeroes))
        return found


def _add(runs: list[Run], run: Run) -> None:
    """Append a run, or extend the last one if the new run continues it."""
    last = runs[-1] if runs else None
    if last and last.page + last.pages == run.page and last[2:] == run[2:]:
        runs[-1] = last._replace(pages=last.pages + run.pages)
    else:
        runs.append(run)


class Frames:
    """Finds the folio of a page frame. With `few`, most look-ups read a single entry of
    kpageflags, instead of 512 that are kept for the next look-ups.
    """

    def __init__(self, tree: Tree, few: bool = False) -> None:
        self.tree, self._file, self._few = tree, tree.reader("/proc/kpageflags"), few
        self._block = lru_cache(maxsize=4096)(self._read_block)
        self.lost = lru_cache(maxsize=4096)(self._lost)
        # first frames of those folios whose unmapped pages were counted already, so that each
        # counts once
        self.told: set[int] = set()

    def forget(self) -> None:
        """Clear the caches, as folios come and go."""
        self._block.cache_clear()
        self.lost.cache_clear()
        self.told.clear()

    def kind(self, frame: int, few: bool = False) -> int:
        """Return the kind of the page in a frame, one of KINDS.

        few: the caller looks up few frames near this one, so flags of 512 frames are read only if
        the page belongs to a folio.
        """
        if few or self._few:
            flags = self.flags(frame)
            if not flags & OF_FOLIO:
                return ZERO_PAGE if flags >> KPF_ZERO_PAGE & 1 else ord("0")
        block = self._block(frame >> BLOCK_BITS)
        return block[frame & ((1 << BLOCK_BITS) - 1)]

    def flags(self, frame: int) -> int:
        """Return the flags of a page frame from /proc/kpageflags."""
        return int.from_bytes(self._file.read(8, frame * 8), "little")

    def is_hugetlb(self, frame: int) -> bool:
        """Return whether a page belongs to a hugetlb pool."""
        if not frame:
            raise no_frames(self.tree)
        return bool(self.flags(frame) >> KPF_HUGETLB & 1)

    def _lost(self, head: int, order: int) -> int:
        """Return how many pages of a partly mapped folio are mapped by no process; 0 if the whole
        folio is mapped, or none of its pages.

        Such pages belong to no process's RSS, but are not free either.
        """
        size = 8 << order
        try:
            counts = self.tree.read_at("/proc/kpagecount", size, head * 8)
        except Error:
            return 0
        lost = sum(1 for at in range(0, len(counts), 8) if not any(counts[at : at + 8]))
        return lost if len(counts) == size and lost < 1 << order else 0

    def _read_block(self, block: int) -> bytes:
        size = 8 << BLOCK_BITS
        marks = _marks(self._file.read(size, block * size))
        kinds = bytearray(marks.translate(SMALL))
        for match in HEAD.finditer(marks):
            pages = match.end() - match.start()
            # a block with only tail pages lies inside a folio larger than 2 MB, and counts as order
            # 9
            kinds[match.start() : match.end()] = b"%d" % (pages.bit_length() - 1) * pages
        return bytes(kinds.ljust(1 << BLOCK_BITS, b"0"))


def _marks(raw: bytes) -> bytes:
    """Return one byte for the flags of each page, computed for all pages at once.

    Bit 0 stands for a head page (bit 15 of kpageflags), bit 1 for a tail page (16), bit 2 for the
    zero page (24).
    """
    pages = len(raw) // 8
    one = int.from_bytes(b"\1" * pages, "big")
    second, third, fourth = (int.from_bytes(raw[byte : pages * 8 : 8], "big") for byte in (1, 2, 3))
    return (second >> 7 & one | (third & one) << 1 | (fourth & one) << 2).to_bytes(pages, "big")


class Stretch(NamedTuple):
    """Adjacent pages of an area, at least one of them present."""

    first: int  # index of the first page, counted from the start of the memory area
    kinds: bytes
    zeroes: bytes
    # number of pages that no process maps, by the index of their folio's first page in this
    # stretch
    lost: dict[int, int]


def read_area(
    space: Space, frames: Frames, vma: Vma, regions: Iterable[Region], contents: bool,
    goes_on: Callable[[int], bool],
) -> Area:  # fmt: skip
    """Return a memory area with its folios, and with `contents` also with its zero-filled pages.

    regions: those of the area. goes_on() is called after each stretch with its number of present
    pages. If it returns False, the rest of the area is not read.
    """
    pages = (vma.end - vma.start) // PAGE
    area = Area(vma.start, vma.name, Pages(pages, b"."), Pages(pages, b"\0"), Counter(), 0)
    lost = 0
    for each in read_stretches(space, frames, vma, contents, area.folios, regions):
        area.kinds.put(each.first, each.kinds)
        lost += sum(each.lost.values())
        if each.zeroes.count(1):
            area.zeroes.put(each.first, each.zeroes)
        if not goes_on(len(each.kinds) - each.kinds.count(ABSENT)):
            break
    return area._replace(folios=+area.folios, lost=lost)


def read_stretches(
    space: Space, frames: Frames, vma: Vma, contents: bool, folios: Counter[int],
    found: Iterable[Region] | None = None,
) -> Iterator[Stretch]:  # fmt: skip
    """Yield the stretches of an area that have any page; add its folios to `folios` by order.

    found: the regions of the area, if they were read already.
    """
    last = NO_FOLIO
    # entries that were read ahead would be old where a split comes between two looks
    read = space.entries if found is None else space.entries_near
    found = space.regions(vma.start, vma.end) if found is None else found
    for first, regions in _by_stretch(vma, found):
        pages = min(STRETCH, (vma.end - vma.start) // PAGE - first)
        begin, kinds, lost = vma.start + first * PAGE, bytearray(b".") * pages, dict[int, int]()
        entries = _entries(read, regions)
        for region in regions:
            at = (region.start - begin) // PAGE
            last = _put(space, frames, region, entries, kinds, at, folios, last, lost)
        zeroes = find_zeroes(space, begin, kinds) if contents else b""
        yield Stretch(first, bytes(kinds), zeroes, lost)


def _by_stretch(vma: Vma, regions: Iterable[Region]) -> Iterator[tuple[int, list[Region]]]:
    """Cut regions at stretch boundaries; yield the regions of each stretch with the index of the
    stretch's first page in the area.
    """
    number, some = 0, list[Region]()
    for region in regions:
        at = region.start
        while at < region.end:
            here = (at - vma.start) // PAGE // STRETCH
            if here != number and some:
                yield number * STRETCH, some
                some = []
            number = here
            end = min(region.end, vma.start + (here + 1) * STRETCH * PAGE)
            some.append(Region(at, end, region.categories))
            at = end
    if some:
        yield number * STRETCH, some


class _Entries(NamedTuple):
    """The pagemap entries of adjacent pages."""

    start: int
    found: array[int]

    def of(self, region: Region) -> array[int]:
        """Return the entries of the pages of a region."""
        at = (region.start - self.start) // PAGE
        return self.found[at : at + region.pages]


def _entries(read: Callable[[int, int], array[int]], regions: Sequence[Region]) -> _Entries:
    """Read the pagemap entries of all small pages of a stretch at once.

    One read, also of the entries between two regions, costs less than a read for each region.
    """
    single = [each for each in regions if _has_entries(each)]
    if not single:
        return _Entries(0, array("Q"))
    start = single[0].start
    return _Entries(start, read(start, (single[-1].end - start) // PAGE))


def _has_entries(region: Region) -> bool:
    return bool(region.categories & there.PRESENT and not region.categories & there.HUGE)


def _put(
    space: Space, frames: Frames, region: Region, entries: _Entries, kinds: bytearray, at: int,
    folios: Counter[int], last: Folio, lost: dict[int, int],
) -> Folio:  # fmt: skip
    """Store the kinds of a region's pages in `kinds`, from index `at` on; return the last folio of
    the region.

    last: the folio of the page before the region. If the region continues it, it is not counted
    again.
    """
    pages, bits = region.pages, region.categories
    if not bits & there.PRESENT:
        kind = GUARD if bits & there.GUARD else SWAP
        kinds[at : at + pages] = bytes([kind]) * pages
        return last
    first = space.entries(region.start, 1) if bits & there.HUGE else ()
    if first and first[0] & PRESENT:
        frame = first[0] & FRAME
        if bits & there.ZERO:
            kind = ZERO_PAGE
        elif frames.is_hugetlb(frame):
            kind = HUGETLB
        else:
            kind = ord("9")
        kinds[at : at + pages] = bytes([kind]) * pages
        if kind == ord("9"):
            folios[9] += (region.end - 1 >> 21) - (region.start - 1 >> 21)
        return NO_FOLIO
    # a huge page may have been split or unmapped since the scan, so each of its entries is read
    told = space.entries(region.start, pages) if bits & there.HUGE else entries.of(region)
    found, last = _kinds(frames, told, folios, last, lost, at)
    kinds[at : at + len(found)] = found
    return last


def _kinds(
    frames: Frames, entries: array[int], folios: Counter[int], last: Folio,
    lost: dict[int, int], at: int = 0,
) -> tuple[bytes, Folio]:  # fmt: skip
    """Return the kind of each page by its pagemap entry, and the folio of the last page; count in
    `folios` every folio but `last`, which the caller has counted.
    """
    kinds, few = bytearray(b".") * len(entries), len(entries) < FEW
    first = 0  # index in `entries` of the first page that belongs to the current folio
    for page, entry in enumerate(entries):
        if not entry & PRESENT:
            kinds[page] = _absent(entry)
            continue
        frame = entry & FRAME
        if not frame:
            raise no_frames(frames.tree)
        kinds[page] = kind = frames.kind(frame, few)
        order = kind - ord("0")
        folio = (frame >> order, order)
        if folio != last:
            _count_lost(frames, last, page - first, lost, at + first)
            first = page
            folios[order] += order <= BLOCK_BITS
        last = folio
    _count_lost(frames, last, len(entries) - first, lost, at + first)
    return bytes(kinds), last


def _absent(entry: int) -> int:
    if not entry & there.ENTRY_SWAPPED:
        return ABSENT
    return GUARD if entry & there.ENTRY_GUARD else SWAP


def _count_lost(frames: Frames, folio: Folio, pages: int, lost: dict[int, int], at: int) -> None:
    """Record in `lost`, once per folio, how many of its pages no process maps.

    kpagecount is read only if fewer pages are mapped here than the folio has.
    """
    number, order = folio
    head = number << order
    if 0 < order <= BLOCK_BITS and pages < 1 << order and head not in frames.told:
        missing = frames.lost(head, order)
        if missing:
            frames.told.add(head)
            lost[at] = missing


def find_zeroes(space: Space, start: int, kinds: bytes | bytearray) -> bytes:
    """Return one byte for each page: 1 if it belongs to a large folio and is full of zeroes."""
    zeroes = bytearray(len(kinds))
    nothing = bytes(PAGE)
    for large in LARGE.finditer(kinds):
        first, end = large.span()
        data = space.contents(start + first * PAGE, end - first)
        for page in range(len(data) // PAGE):
            zeroes[first + page] = data[page * PAGE : (page + 1) * PAGE] == nothing
    return bytes(zeroes)


def read_spot(
    space: Space, frames: Frames, start: int, pages: int
) -> tuple[array[int], bytes, bytes] | None:
    """Return pagemap entries, kinds and zero marks of a few adjacent pages; None if all are
    absent.
    """
    entries = space.entries(start, pages)
    if not any(entry & PRESENT for entry in entries):
        return None
    kinds, _ = _kinds(frames, entries, Counter(), NO_FOLIO, {})
    return entries, kinds, find_zeroes(space, start, kinds)


def wanted_areas(areas: Iterable[Vma], shared: bool, files: bool) -> list[Vma]:
    """Return those areas that are private and anonymous; with `shared` also shared memory, with
    `files` all areas.
    """
    return [each for each in areas if files or each.anonymous or (shared and each.shared_memory)]


def read_areas(
    tree: Tree, pid: int, contents: bool, files: bool = False, shared: bool = False,
    holds: Holds | None = None, goes_on: Callable[[int], bool] = lambda pages: True,
) -> list[Area]:  # fmt: skip
    """Return the areas of a process that have pages: private anonymous ones, and others on
    request.

    goes_on() is called after each stretch with its number of present pages. If it returns False,
    reading ends.
    """
    space, frames = Space(tree, pid, holds or Holds(tree)), Frames(tree)
    areas = list[Area]()
    wanted = wanted_areas(space.looked_at(space.areas()), shared, files)
    for each, regions in space.regions_of(wanted):
        areas.append(read_area(space, frames, each, regions, contents, goes_on))
        if not goes_on(0):
            break
    return [area for area in areas if area.kinds.known]


class Total(NamedTuple):
    """Sums over the folios of one order: number of folios, of pages, and of zero-filled pages."""

    folios: int
    pages: int
    zero: int


def totals(areas: Sequence[Area]) -> dict[int, Total]:
    """Return the sums over all areas, by order of the folios; orders without pages are left out."""
    folios, pages, zero = Counter[int](), Counter[int](), Counter[int]()
    for area in areas:
        folios.update(area.folios)
        pages.update(area.kinds.counts)
        zero.update(area.empty())
    return {
        order: Total(folios[order], pages[kind], zero[kind])
        for order, kind in enumerate(KINDS[: BLOCK_BITS + 1])
        if pages[kind]
    }


def count_of(areas: Iterable[Area], kind: int) -> int:
    """Return the number of pages of a kind in all areas."""
    return sum(area.kinds.count(kind) for area in areas)
