# SPDX-License-Identifier: GPL-2.0
"""Limit how long one read may hold the mmap_lock of a process.

While the kernel walks page tables for a read, it holds mmap_lock for reading. An mmap(), munmap()
or stack growth of the process then waits for the lock, and page faults wait behind this waiter. So
a read is made only if its predicted hold is within a limit: the number of entries to walk, times
the cost of an entry. The costs are measured on this host, in memory of this command, and are
raised if a real read takes longer. The longest duration is kept for the report.

A reader that loses its CPU during a read holds the lock until it runs again: after tens of
milliseconds on a busy host, and later under a CPU quota. So this command runs under SCHED_FIFO
during a read, and only then, if it may (CAP_SYS_NICE).
"""

from __future__ import annotations

import contextlib
import mmap
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import ceil

from mmpolicy.errors import Error
from mmpolicy.host.files import Tree
from mmpolicy.host.pagemap import PAGE, Pagemap

LIMIT_S = 0.002
FIRST = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
SLOT_NS = 4.0  # an empty page table entry is assumed to cost at least this many ns
# costs of a present page in ns, for a scan and for smaps, if they cannot be measured
SCAN_NS, SMAPS_NS = 40.0, 150.0
# a read of another process takes this many times as long as a measurement in this process, as its
# page tables are in no CPU cache
COLD = 2.0
OWN = 1024  # number of pages of this process that a measurement scans
OWN_TABLES = 16  # number of page tables, with one page each, that a measurement scans
TABLE = 512  # number of entries of a page table
NOTHING = nullcontext()
SLOW = {os.SCHED_BATCH: "SCHED_BATCH", os.SCHED_IDLE: "SCHED_IDLE"}
SURE = 3  # a limit that is suggested to the user is this many times the predicted duration
LEARN = 2048  # reads of fewer pages than this do not update the cost of a page


class Holds:
    """The limit for how long one read may hold a process's mmap_lock, the costs of a page by which
    holds are predicted, and the duration of the longest read so far.
    """

    def __init__(self, tree: Tree, limit_s: float = LIMIT_S) -> None:
        self._tree, self.limit_s = tree, limit_s
        self.longest_s = 0.0
        self._scan_ns = self._slot_ns = self._smaps_ns = 0.0
        self._may_hurry, self._hurries = True, False
        self._learned = False

    def undisturbed(self) -> AbstractContextManager[None]:
        """Run a block of reads under SCHED_FIFO, if permitted; together they may take no longer
        than limit_s.
        """
        return NOTHING if self._hurries else self._undisturbed()

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        usual = self._hurry()
        try:
            yield
        finally:
            if usual is not None:
                self._hurries = False
                os.sched_setscheduler(0, usual, os.sched_param(0))

    @contextmanager
    def timed(self, parts: int = 1) -> Iterator[None]:
        """Run a read undisturbed, and record its duration.

        parts: number of times that the kernel takes mmap_lock during this read; the recorded
        duration is that of one.
        """
        with self.undisturbed():
            begin = time.perf_counter()
            try:
                yield
            finally:
                self.took((time.perf_counter() - begin) / parts)

    def slowed(self) -> str:
        """Return what may take the CPU from this command during a read, as text; "" if nothing
        does, or if SCHED_FIFO is permitted.
        """
        with self.undisturbed():
            if self._hurries:
                return ""
        policy = os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK
        if policy in SLOW:
            return f"its scheduling policy is {SLOW[policy]}"
        nice = os.getpriority(os.PRIO_PROCESS, 0)
        return f"its nice value is {nice}" if policy == os.SCHED_OTHER and nice > 0 else ""

    def _hurry(self) -> int | None:
        """Switch to SCHED_FIFO; return the scheduler to restore, or None if nothing changed."""
        if self._hurries or not self._may_hurry:
            return None
        usual = os.sched_getscheduler(0)
        if usual not in (os.SCHED_OTHER, os.SCHED_BATCH, os.SCHED_IDLE):
            return None
        try:
            os.sched_setscheduler(0, FIRST, os.sched_param(1))
        except OSError:
            self._may_hurry = False
            return None
        self._hurries = True
        return usual

    @property
    def scan_ns(self) -> float:
        """Return how many ns a present page adds to the duration of a PAGEMAP_SCAN."""
        self._scan_ns = self._scan_ns or COLD * (self._measure_scan(OWN, 1) or SCAN_NS / COLD)
        return self._scan_ns

    @property
    def slot_ns(self) -> float:
        """Return how many ns an empty page table entry adds to the duration of a read."""
        if not self._slot_ns:
            measured = self._measure_scan(OWN_TABLES * TABLE, TABLE)
            self._slot_ns = max(COLD * measured, SLOT_NS)
        return self._slot_ns

    @property
    def smaps_ns(self) -> float:
        """Return how many ns a present page adds to the duration of a read of smaps."""
        self._smaps_ns = self._smaps_ns or COLD * self._measure_smaps()
        return self._smaps_ns

    def _measure_scan(self, pages: int, step: int) -> float:
        """Return the scan cost of a page in ns, measured on this process with one page in `step`
        present; 0 if it cannot be measured.

        The memory is kept free of huge pages, as a scan reads only one entry for a huge page.
        """
        size = pages * PAGE
        memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        try:
            with contextlib.suppress(OSError):  # fails on a kernel without huge pages
                memory.madvise(mmap.MADV_NOHUGEPAGE)
            pagemap = Pagemap(self._tree, "self")
            for page in range(0, pages, step):
                memory[page * PAGE] = 1
            start = _address(memory)
            costs = []
            for _ in range(3):
                begin = time.thread_time()
                pagemap.scan(start, start + size, 0)
                costs.append((time.thread_time() - begin) / pages * 1e9)
            # the clock may be too coarse to see any time, so the result is at least 1 ns
            return max(min(costs), 1.0) if pagemap.can_scan else 0.0
        except Error:
            return 0.0
        finally:
            memory.close()

    def _measure_smaps(self) -> float:
        try:
            pages = int(self._tree.read("/proc/self/statm").split()[1])
            begin = time.thread_time()
            self._tree.read("/proc/self/smaps_rollup")
            return max((time.thread_time() - begin) / pages * 1e9, SMAPS_NS / 10)
        except (Error, ValueError, IndexError, ZeroDivisionError):
            return SMAPS_NS

    def pages(self) -> int:
        """Return the number of present pages that one scan may return, so that it is predicted to
        hold mmap_lock for half of the limit.

        The first scans are short, until a scan of another process has shown what its pages cost.
        """
        most = max(int(self.limit_s / 2 * 1e9 / self.scan_ns), 1)
        return most if self._learned else min(most, LEARN)

    def span(self, slots: int) -> int:
        """Return how many bytes one scan may walk in a process with this many page table entries.

        The process may have page tables for address ranges without pages, too, and a scan walks
        their entries.
        """
        most = int(self.limit_s / 2 * 1e9 / self.slot_ns)
        return 1 << 47 if slots <= most else max(most * PAGE >> 21 << 21, 1 << 21)

    def allows_smaps(self, pages: int, slots: int = 0) -> bool:
        """Return whether one read of smaps for this many present pages and page table entries is
        predicted to stay within the limit.
        """
        return (pages * self.smaps_ns + slots * self.slot_ns) / 1e9 <= self.limit_s

    def for_smaps_ms(self, pages: int, slots: int = 0) -> int:
        """Return a limit in ms with which such a read of smaps is allowed, also if the next run
        measures SURE times the cost.
        """
        return ceil(SURE * (pages * self.smaps_ns + slots * self.slot_ns) / 1e6) + 1

    def took(self, elapsed_s: float) -> None:
        """Record how long a read or write took; it has held mmap_lock for at most this time."""
        self.longest_s = max(self.longest_s, elapsed_s)

    def learn_scan(self, cpu_s: float, pages: int) -> None:
        """Raise the predicted cost of a page if a scan of this many pages took longer than
        predicted.
        """
        if pages >= LEARN:
            self._learned = True
            self._scan_ns = max(self.scan_ns, cpu_s / pages * 1e9)

    def learn_smaps(self, cpu_s: float, pages: int) -> None:
        """Raise the predicted cost of a page in smaps if a read of this many pages took longer than
        predicted.
        """
        if pages >= LEARN:
            self._smaps_ns = max(self.smaps_ns, cpu_s / pages * 1e9)


def _address(memory: mmap.mmap) -> int:
    """Return the address of a mapping of our own."""
    # imported here, as the import takes time and most runs do not need it
    from ctypes import addressof, c_char

    view = c_char.from_buffer(memory)
    return addressof(view)
