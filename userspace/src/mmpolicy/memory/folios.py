# SPDX-License-Identifier: GPL-2.0
"""Which folios back the memory of a process, and which of their pages are full of zeroes.

Seen through smaps, pagemap and kpageflags; see Documentation/admin-guide/mm/pagemap.rst in the
kernel. Contents come from /proc/PID/mem, only of pages that are there: nothing is faulted in.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

from mmpolicy.errors import Error, Exit
from mmpolicy.host.files import Reader, Tree
from mmpolicy.host.processes import check_process

PAGE = 4096
STRETCH = 4096  # pages that are looked at together: 16 MiB of memory
BULK = 64 * STRETCH  # pages that are read at once
Folio = tuple[int, int]  # number and order
NO_FOLIO: Folio = (-1, 0)
BLOCK_BITS = 9  # folios up to a PMD lie within blocks of that many page frames
PRESENT, SWAPPED, FRAME = 1 << 63, 1 << 62, (1 << 55) - 1
ABSENT, SWAP, ZERO_PAGE = b".sz"  # kinds of a page beside "0" to "9", the order of its folio
SMALL = bytes(ZERO_PAGE if mark & 4 else ord("0") for mark in range(256))  # by their marks
HEADER = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ (\d+) *(.*)$", re.MULTILINE)
RESIDENT = re.compile(r"^(?:Rss|Swap): +[1-9]", re.MULTILINE)
FLAGS = re.compile(r"^VmFlags:(.*)$", re.MULTILINE)
HEAD = re.compile(rb"\x01[\x02\x03]*|^[\x02\x03]+")


class Run(NamedTuple):
    """Neighbouring pages that are alike."""

    page: int  # counted from the start of the area
    pages: int
    kind: str
    zero: bool


class Pages:
    """A byte for each page of an area; stretches of which nothing is known take no room."""

    def __init__(self, pages: int, empty: bytes) -> None:
        self._pages, self._empty = pages, empty
        self._stretches: dict[int, bytes] = {}  # by their first page

    def __len__(self) -> int:
        return self._pages

    def put(self, first: int, found: bytes) -> None:
        """Set a stretch; it begins where one may begin."""
        self._stretches[first] = found

    def stretches(self) -> Iterator[tuple[int, bytes]]:
        """Yield what is known, with its first page."""
        yield from self._stretches.items()

    def cut(self, first: int, end: int) -> bytes:
        """Return some pages, as they lie."""
        found = bytearray(self._empty * (min(end, self._pages) - first))
        for start in range(first // STRETCH * STRETCH, end, STRETCH):
            known = self._stretches.get(start)
            if known is not None:
                part = known[max(first - start, 0) : end - start]
                at = max(start - first, 0)
                found[at : at + len(part)] = part
        return bytes(found)


class Area(NamedTuple):
    """One mapping: a byte for each page with its kind, and one that is 1 if it is all zero."""

    start: int
    name: str
    kinds: Pages
    zeroes: Pages
    folios: Counter[int]  # by order

    def runs(self) -> list[Run]:
        """Return the area as runs, without pages that are not there."""
        found: list[Run] = []
        for page, kinds in self.kinds.stretches():
            zeroes = self.zeroes.cut(page, page + len(kinds))
            for (kind, zero), group in groupby(zip(kinds, zeroes)):
                pages = sum(1 for _ in group)
                if kind != ABSENT:
                    _add(found, Run(page, pages, chr(kind), bool(zero)))
                page += pages
        return found


def _add(runs: list[Run], run: Run) -> None:
    """Add a run, to the last one if that goes on in it."""
    last = runs[-1] if runs else None
    if last and last.page + last.pages == run.page and last[2:] == run[2:]:
        runs[-1] = last._replace(pages=last.pages + run.pages)
    else:
        runs.append(run)


class Mapping(NamedTuple):
    """A line of smaps."""

    start: int
    end: int
    name: str
    anonymous: bool
    resident: bool
    flags: frozenset[str] = frozenset()  # such as hg, as proc.rst of the kernel has them


def read_mappings(tree: Tree, pid: int, file: str = "smaps") -> list[Mapping]:
    """Return the mappings of a process.

    The file `maps` costs less: there, all that can be accessed passes for resident.
    """
    check_process(tree, pid)
    text, found = tree.read(f"/proc/{pid}/{file}"), list[Mapping]()
    heads = list(HEADER.finditer(text))
    ends = [*(head.start() for head in heads), len(text)][1:]
    for head, end in zip(heads, ends):
        access, inode, name = head.groups()[2:]
        there = bool(RESIDENT.search(text, head.end(), end))
        if file == "maps":
            there = not access.startswith("---")
        flags = FLAGS.search(text, head.end(), end)
        words = frozenset(flags[1].split() if flags else ())
        start, last = (int(part, 16) for part in head.groups()[:2])
        found.append(Mapping(start, last, name, inode == "0", there, words))
    return found


def of_memory(mapping: Mapping) -> bool:
    """Tell if a mapping may have anonymous memory."""
    return mapping.anonymous and mapping.resident and mapping.name not in ("[vvar]", "[vdso]")


class Frames:
    """The folios that page frames belong to; with few, only a few frames are asked for."""

    def __init__(self, tree: Tree, few: bool = False) -> None:
        self._file, self._few = tree.reader("/proc/kpageflags"), few
        self._block = lru_cache(maxsize=4096)(self._read_block)

    def kind(self, frame: int) -> int:
        """Return the kind of a page by its frame."""
        if self._few:  # most small pages lie in blocks of their own
            mark = _marks(self._file.read(8, frame * 8))
            if not mark or not mark[0] & 3:
                return mark.translate(SMALL)[0] if mark else ord("0")
        block = self._block(frame >> BLOCK_BITS)
        return block[frame & ((1 << BLOCK_BITS) - 1)]

    def _read_block(self, block: int) -> bytes:
        size = 8 << BLOCK_BITS
        marks = _marks(self._file.read(size, block * size))
        kinds = bytearray(marks.translate(SMALL))
        for match in HEAD.finditer(marks):
            pages = match.end() - match.start()
            # A block of tails alone is inside of a folio larger than a PMD.
            kinds[match.start() : match.end()] = b"%d" % (pages.bit_length() - 1) * pages
        return bytes(kinds.ljust(1 << BLOCK_BITS, b"0"))


def _marks(raw: bytes) -> bytes:
    """Return a byte for each flags of a page, made for all of them at once.

    Its bit 0 is set for a head (15), bit 1 for a tail (16), bit 2 for the page of zeroes (24).
    """
    pages = len(raw) // 8
    one = int.from_bytes(b"\1" * pages)
    second, third, fourth = (int.from_bytes(raw[byte : pages * 8 : 8]) for byte in (1, 2, 3))
    return (second >> 7 & one | (third & one) << 1 | (fourth & one) << 2).to_bytes(pages)


def read_area(tree: Tree, pid: int, frames: Frames, mapping: Mapping, contents: bool) -> Area:
    """Return which folios back a mapping, with contents also which of their pages are zero."""
    pages = (mapping.end - mapping.start) // PAGE
    area = Area(mapping.start, mapping.name, Pages(pages, b"."), Pages(pages, b"\0"), Counter())
    for first, kinds, zeroes in read_stretches(tree, pid, frames, mapping, contents, area.folios):
        area.kinds.put(first, kinds)
        if contents:
            area.zeroes.put(first, zeroes)
    return area._replace(folios=+area.folios)


def read_stretches(
    tree: Tree, pid: int, frames: Frames, mapping: Mapping, contents: bool, folios: Counter[int]
) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield first page, kinds and zeroes of each stretch of a mapping, and count its folios."""
    pages, last = (mapping.end - mapping.start) // PAGE, NO_FOLIO
    for first, entries in _entries(tree, pid, mapping.start // PAGE, pages):
        kinds, last = _kinds(frames, entries, folios, last)
        begin = mapping.start + first * PAGE
        yield first, kinds, _find_zeroes(tree, pid, begin, kinds) if contents else b""


def read_spot(
    tree: Tree, pid: int, pagemap: Reader, frames: Frames, start: int, pages: int
) -> tuple[bytes, bytes] | None:
    """Return kinds and zeroes of a few neighbouring pages; nothing if none is there."""
    raw = pagemap.read(pages * 8, start // PAGE * 8)
    entries = array("Q", raw[: len(raw) // 8 * 8])
    if not any(entry & PRESENT for entry in entries):
        return None
    kinds, _ = _kinds(frames, entries, Counter(), NO_FOLIO)
    return kinds, _find_zeroes(tree, pid, start, kinds)


def _entries(tree: Tree, pid: int, start: int, pages: int) -> Iterator[tuple[int, array[int]]]:
    """Yield the entries of pagemap in stretches, without those in which nothing is."""
    for bulk in range(0, pages, BULK):
        size = min(BULK, pages - bulk) * 8
        raw = tree.read_at(f"/proc/{pid}/pagemap", size, (start + bulk) * 8)
        if raw.count(0) == len(raw):
            continue
        for at in range(0, len(raw), STRETCH * 8):
            part = raw[at : at + STRETCH * 8]
            if part.count(0) < len(part):
                yield bulk + at // 8, array("Q", part[: len(part) // 8 * 8])


def _kinds(
    frames: Frames, entries: array[int], folios: Counter[int], last: Folio
) -> tuple[bytes, Folio]:
    """Return the kind of each page, and the last folio; count folios that were not the last."""
    kinds = bytearray(b".") * len(entries)
    for page, entry in enumerate(entries):
        if not entry & PRESENT:
            kinds[page] = SWAP if entry & SWAPPED else ABSENT
            continue
        frame = entry & FRAME
        if not frame:
            raise Error("pagemap shows no page frames", Exit.DENIED, "run it as root")
        kinds[page] = kind = frames.kind(frame)
        order = kind - ord("0")
        folio = (frame >> order, order)
        folios[order] += order <= BLOCK_BITS and folio != last
        last = folio
    return bytes(kinds), last


def _find_zeroes(tree: Tree, pid: int, start: int, kinds: bytes) -> bytes:
    """Return a byte for each page: 1 if it is of a large folio and full of zeroes."""
    zeroes = bytearray(len(kinds))
    for large in re.finditer(rb"[1-9]{1,512}", kinds):
        first, end = large.span()
        try:
            data = tree.read_at(f"/proc/{pid}/mem", (end - first) * PAGE, start + first * PAGE)
        except Error:  # it has gone meanwhile
            continue
        nothing = bytes(PAGE)
        for page in range(len(data) // PAGE):
            zeroes[first + page] = data[page * PAGE : (page + 1) * PAGE] == nothing
    return bytes(zeroes)


def read_areas(tree: Tree, pid: int, contents: bool, files: bool) -> list[Area]:
    """Return the mappings of a process that have pages; those of files only if wanted."""
    frames = Frames(tree)
    chosen = [
        each
        for each in read_mappings(tree, pid)
        if of_memory(each._replace(anonymous=files or each.anonymous))
    ]
    return [read_area(tree, pid, frames, each, contents) for each in chosen]


class Total(NamedTuple):
    """What folios of one order hold, in pages."""

    folios: int
    pages: int
    zero: int


def totals(areas: list[Area]) -> dict[int, Total]:
    """Return the totals by order."""
    result = {}
    for order in range(BLOCK_BITS + 1):
        kind = ord("0") + order
        pages = sum(kinds.count(kind) for area in areas for _, kinds in area.kinds.stretches())
        zero = sum(
            run.pages
            for area in areas
            for run in area.runs()
            if run.zero and run.kind == str(order)
        )
        folios = sum(area.folios[order] for area in areas)
        if pages:
            result[order] = Total(folios, pages, zero)
    return result
