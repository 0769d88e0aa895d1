# SPDX-License-Identifier: GPL-2.0
"""Which folios back the memory of a process, and which of their pages are full of zeroes.

Seen through smaps, pagemap and kpageflags; see Documentation/admin-guide/mm/pagemap.rst in the
kernel. Contents come from /proc/PID/mem, only of pages that are there: nothing is faulted in.
"""

import re
from array import array
from collections import Counter
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

from mmpolicy.errors import Error, Exit
from mmpolicy.host.files import Tree
from mmpolicy.host.processes import check_process

PAGE = 4096
BLOCK_BITS = 9  # folios up to a PMD lie within blocks of that many page frames
PRESENT, SWAPPED, FRAME = 1 << 63, 1 << 62, (1 << 55) - 1
ABSENT, SWAP, ZERO_PAGE = b".sz"  # kinds of a page beside "0" to "9", the order of its folio
HEAD = re.compile(rb"\x01[\x02\x03]*|^[\x02\x03]+")


class Run(NamedTuple):
    """Neighbouring pages that are alike."""

    page: int  # counted from the start of the area
    pages: int
    kind: str
    zero: bool


class Area(NamedTuple):
    """One mapping: a byte for each page with its kind, and one that is 1 if it is all zero."""

    start: int
    name: str
    kinds: bytes
    zeroes: bytes
    folios: Counter[int]  # by order

    def runs(self) -> list[Run]:
        """Return the area as runs, without pages that are not there."""
        found, page = [], 0
        for (kind, zero), group in groupby(zip(self.kinds, self.zeroes, strict=True)):
            pages = sum(1 for _ in group)
            if kind != ABSENT:
                found.append(Run(page, pages, chr(kind), bool(zero)))
            page += pages
        return found


class Mapping(NamedTuple):
    """A line of smaps."""

    start: int
    end: int
    name: str
    anonymous: bool
    resident: bool


def read_mappings(tree: Tree, pid: int) -> list[Mapping]:
    """Return the mappings of a process."""
    check_process(tree, pid)
    found = []
    for line in tree.read(f"/proc/{pid}/smaps").splitlines():
        words = line.split(maxsplit=5)
        if re.match("[0-9a-f]+-", line):
            start, end = (int(part, 16) for part in words[0].split("-"))
            name = words[5] if len(words) > 5 else ""
            found.append(Mapping(start, end, name, words[4] == "0", False))
        elif words[0] in ("Rss:", "Swap:") and words[1] != "0":
            found[-1] = found[-1]._replace(resident=True)
    return found


class Frames:
    """The folios that page frames belong to."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._block = lru_cache(maxsize=4096)(self._read_block)

    def kind(self, frame: int) -> int:
        """Return the kind of a page by its frame."""
        block = self._block(frame >> BLOCK_BITS)
        return block[frame & ((1 << BLOCK_BITS) - 1)]

    def _read_block(self, block: int) -> bytes:
        size = 8 << BLOCK_BITS
        flags = array("Q", self._tree.read_at("/proc/kpageflags", size, block * size))
        # bit 0: head (15), bit 1: tail (16), bit 2: page of zeroes (24)
        marks = bytes((flag >> 15 & 3) | (flag >> 22 & 4) for flag in flags)
        kinds = bytearray(ZERO_PAGE if mark & 4 else ord("0") for mark in marks)
        for match in HEAD.finditer(marks):
            pages = match.end() - match.start()
            # A block of tails alone is inside of a folio larger than a PMD.
            kinds[match.start() : match.end()] = b"%d" % (pages.bit_length() - 1) * pages
        return bytes(kinds.ljust(1 << BLOCK_BITS, b"0"))


def read_area(tree: Tree, pid: int, frames: Frames, mapping: Mapping, contents: bool) -> Area:
    """Return which folios back a mapping, with contents also which of their pages are zero."""
    pages = (mapping.end - mapping.start) // PAGE
    raw = tree.read_at(f"/proc/{pid}/pagemap", pages * 8, mapping.start // PAGE * 8)
    entries = array("Q", raw[: len(raw) // 8 * 8])
    kinds = bytearray(b".") * pages
    folios: Counter[int] = Counter()
    last = (-1, 0)
    for page, entry in enumerate(entries):
        if not entry & PRESENT:
            kinds[page] = SWAP if entry & SWAPPED else ABSENT
            continue
        frame = entry & FRAME
        if not frame:
            raise Error("pagemap shows no page frames", Exit.DENIED, "run it as root")
        kinds[page] = kind = frames.kind(frame)
        order = kind - ord("0")
        folio = frame >> order if 0 <= order <= BLOCK_BITS else -1
        folios[order] += folio >= 0 and (folio, order) != last
        last = (folio, order)
    zeroes = _find_zeroes(tree, pid, mapping.start, bytes(kinds)) if contents else bytes(pages)
    return Area(mapping.start, mapping.name, bytes(kinds), zeroes, +folios)


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
        if each.resident and (files or each.anonymous) and each.name not in ("[vvar]", "[vdso]")
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
        pages = sum(area.kinds.count(kind) for area in areas)
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
