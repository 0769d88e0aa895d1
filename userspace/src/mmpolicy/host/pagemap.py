# SPDX-License-Identifier: GPL-2.0
"""Read the page tables of a process from /proc/PID/pagemap.

There are two ways: the ioctl PAGEMAP_SCAN (Linux 6.7) walks a range and returns the mapped
regions; the file itself has eight bytes for each page. During both, the kernel holds the mmap_lock
of the process. For a read of the file, it drops the lock after each 2 MB of addresses. For
PAGEMAP_SCAN, it holds the lock until it has found the requested number of pages or regions, or has
reached the end of the range.
"""

from __future__ import annotations

import os
import re
import struct
from array import array
from collections.abc import Iterator
from errno import EINVAL, ENOSYS, ENOTTY
from typing import NamedTuple

from mmpolicy.errors import Error, Exit
from mmpolicy.host.files import Tree

PAGE = os.sysconf("SC_PAGE_SIZE")
SCAN = 0xC0606610  # The ioctl number of linux/fs.h: _IOWR('f', 16, struct pm_scan_arg).
ARGUMENT = struct.Struct("=12Q")
REGIONS = 512  # number of regions after which the kernel ends a scan and releases mmap_lock
PIECE = 4096  # number of entries of the file pagemap that are read at once

# Categories of PAGEMAP_SCAN
FILE, PRESENT, SWAPPED, ZERO, HUGE, GUARD = 1 << 2, 1 << 3, 1 << 4, 1 << 5, 1 << 6, 1 << 8
ANY = PRESENT | SWAPPED
KNOWN = FILE | PRESENT | SWAPPED | ZERO | HUGE

# bits of an entry of the file pagemap
ENTRY_PRESENT, ENTRY_SWAPPED, ENTRY_FILE, ENTRY_GUARD = 1 << 63, 1 << 62, 1 << 61, 1 << 58
ENTRY_EXCLUSIVE, FRAME = 1 << 56, (1 << 55) - 1
RUNS = re.compile(rb"([\x01-\xff])\1*", re.DOTALL)
DIRTY, ANON, SWAPBACKED = 1 << 4, 1 << 12, 1 << 14  # bits of /proc/kpageflags


def no_frames(tree: Tree) -> Error:
    """Return the error for a user from whom the kernel hides page frame numbers."""
    return Error("/proc/PID/pagemap shows no page frame numbers", Exit.DENIED, tree.who_may())


def lazily_freed(flags: int) -> bool:
    """Return whether a page with these flags in /proc/kpageflags was freed by MADV_FREE; also true
    if the program has written to it again since, which the flags do not show.
    """
    return flags & (DIRTY | ANON | SWAPBACKED) == ANON


def _class_of(high: int) -> int:
    """Return the categories that the highest byte of a pagemap entry shows, as bits; 0 for an empty
    entry.

    GUARD is bit 7 here, as a byte has no bit 8.
    """
    if high & 0x80:
        return PRESENT | (FILE if high & 0x20 else 0)
    if high & 0x40:
        return 0x80 if high & 0x04 else SWAPPED
    return 0


CLASSES = bytes(_class_of(high) for high in range(256))


class Region(NamedTuple):
    """Adjacent pages with the same categories, from a start to an end address."""

    start: int
    end: int
    # bit mask of FILE, PRESENT, SWAPPED, ZERO, HUGE and GUARD
    categories: int

    @property
    def pages(self) -> int:
        """Return the number of pages in the region."""
        return (self.end - self.start) // PAGE


class Pagemap:
    """The page tables of one process."""

    def __init__(self, tree: Tree, pid: int | str) -> None:
        self._file = tree.reader(f"/proc/{pid}/pagemap")
        self._out = array("Q", bytes(24 * REGIONS))
        # the first scan sets it to False if the kernel does not support scanning
        self.can_scan = True
        self._guards = GUARD

    def scan(self, start: int, end: int, most: int) -> tuple[list[Region], int]:
        """Return the regions of a range, and the address where the walk ended.

        The walk ends after `most` pages or REGIONS regions. If the kernel does not support
        scanning, the result is empty and can_scan becomes false.
        """
        while True:
            guards = self._guards
            try:
                found, end = self._scan(start, end, most, ANY | guards, KNOWN | guards)
                break
            except Error as err:
                if err.errno == EINVAL and guards:
                    # Linux before 6.16 does not know the category of guard pages, so the scan is
                    # repeated without it
                    self._guards = 0
                else:
                    raise
        if not guards and any(each.categories & SWAPPED for each in found):
            found = [part for each in found for part in self._without_guards(each)]
        return found, end

    def _scan(
        self, start: int, end: int, most: int, some: int, told: int, regions: int = REGIONS
    ) -> tuple[list[Region], int]:
        """Return regions with one of the categories `some`, and the address where the walk ended.

        The regions have only categories in `told`, and there are at most `regions` of them. If the
        kernel does not support scanning, the result is empty and can_scan becomes false.
        """
        out = self._out
        argument = bytearray(ARGUMENT.pack(
            ARGUMENT.size, 0, start, end, 0, out.buffer_info()[0], regions, most, 0, 0, some, told
        ))  # fmt: skip
        try:
            number = self._file.ioctl(SCAN, argument)
        except Error as err:
            if err.errno not in (ENOTTY, ENOSYS):
                raise
            self.can_scan = False
            return [], start
        found = [Region(*out[at : at + 3]) for at in range(0, 3 * number, 3)]
        return found, ARGUMENT.unpack(argument)[4]

    def kind(self, start: int, end: int) -> int:
        """Return the categories of all pages of a range, or 0 if they differ or are not known.

        FILE is left out, so the kernel reads page table entries alone, which is much faster. GUARD
        is left out, too, so guard pages look swapped.
        """
        if not self.can_scan:
            return 0
        found, _ = self._scan(start, end, 0, ANY, ANY | ZERO | HUGE, regions=2)
        whole = len(found) == 1 and found[0][:2] == (start, end)
        return found[0].categories if whole else 0

    def _without_guards(self, region: Region) -> Iterator[Region]:
        """Yield a swapped region divided into swapped pages and guard pages, which a scan without
        GUARD does not tell apart; yield another region as it is.
        """
        if region.categories & SWAPPED:
            yield from self.regions(region.start, region.end)
        else:
            yield region

    def raw_entries(self, start: int, pages: int) -> bytes:
        """Return the pagemap entries of some pages as bytes; fewer at the end of the file."""
        raw = self._file.read(pages * 8, start // PAGE * 8)
        return raw[: len(raw) // 8 * 8]

    def regions(self, start: int, end: int) -> Iterator[Region]:
        """Yield the regions of a range from the file pagemap alone, which does not mark ZERO or
        HUGE.
        """
        for begin in range(start, end, PIECE * PAGE):
            pages = min(PIECE, (end - begin) // PAGE)
            raw = self._file.read(pages * 8, begin // PAGE * 8)
            if raw.count(0) == len(raw):
                continue
            for run in RUNS.finditer(raw[7::8].translate(CLASSES)):
                bits = run[1][0]
                kind = GUARD if bits == 0x80 else bits
                yield Region(begin + run.start() * PAGE, begin + run.end() * PAGE, kind)
