# SPDX-License-Identifier: GPL-2.0
"""Fragment the free memory of a host into pieces below 64 kB, for the time of a measurement."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator
from pathlib import Path

from bench import THP, thp_settings

PAGE, LARGE_ORDER = mmap.PAGESIZE, 4
# Other processes free memory meanwhile. So free blocks of 64 kB and more are allocated up to TRIES
# times, until they are at most ENOUGH_PERCENT of the free memory.
ENOUGH_PERCENT, TRIES = 2, 5
KEPT = 8  # one page in this many stays in use
LEFT = 512 << 20  # bytes of free memory, so that the kernel does not have to reclaim
MADV_POPULATE_WRITE = 23  # of linux/mman.h; Python 3.11 has no name for it


def free_blocks(least: int) -> int:
    """Return the number of pages in free blocks of order `least` or more, in all zones."""
    pages = 0
    for line in Path("/proc/buddyinfo").read_text().splitlines():
        counts = line.split()[4:]
        pages += sum(int(n) << order for order, n in enumerate(counts) if order >= least)
    return pages


def large_percent() -> float:
    """Return the percentage of the free memory that is in blocks of 64 kB or more."""
    return 100 * free_blocks(LARGE_ORDER) / free_blocks(0)


def memory(size: int, advice: int) -> mmap.mmap:
    """Return `size` bytes of private memory, populated after this madvise() advice."""
    area = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area.madvise(advice)
    area.madvise(MADV_POPULATE_WRITE)
    return area


def take_large() -> mmap.mmap:
    """Allocate the memory in free blocks of 64 kB or more, as folios of 64 kB.

    Meanwhile all other folio sizes of the host are turned off, also for MADV_HUGEPAGE.
    """
    sizes = (file.parent.name for file in THP.glob("hugepages-*/enabled"))
    words = {
        f"{size}/enabled": "madvise" if size == "hugepages-64kB" else "never" for size in sizes
    }
    with thp_settings(words):
        return memory(free_blocks(LARGE_ORDER) * PAGE, mmap.MADV_HUGEPAGE)


@contextlib.contextmanager
def fragmented() -> Iterator[None]:
    """Hold one page in KEPT of the free memory during the `with` block, so that the free memory is
    in pieces.

    These pages are movable, so the kernel can compact, as on a host that has run for a long time.
    """
    with contextlib.ExitStack() as held:
        size = max(free_blocks(0) * PAGE - LEFT, KEPT * PAGE)
        cut = held.enter_context(memory(size, mmap.MADV_NOHUGEPAGE))
        for start in range(0, len(cut) - KEPT * PAGE, KEPT * PAGE):
            cut.madvise(mmap.MADV_DONTNEED, start + PAGE, (KEPT - 1) * PAGE)
        for _ in range(TRIES):
            held.enter_context(take_large())
            if large_percent() <= ENOUGH_PERCENT:
                break
        yield
