# SPDX-License-Identifier: GPL-2.0
"""Measure what a page fault costs on this host, by the size of the folio that it maps.

A piece of memory is written twice and then freed. In the first pass each folio takes a fault, in
the second pass none does, so the difference is the cost of the faults: entering and leaving the
kernel, and clearing the memory. The cost of freeing the folio is added. Only CPU time of this
thread is measured, so other processes matter only by the caches and core resources that they use.
On a virtual machine, other guests of the host use these, too, and cannot be seen: they make half of
all pieces take 1.5 times as long, for a second or for a minute, on some CPUs more than on others.
So the sizes take turns on all CPUs that this process may use, and the result is the fastest
fiftieth of many short pieces (like the minima in lmbench, McVoy and Staelin 1996).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count, cycle
from statistics import median, quantiles
from typing import NamedTuple

from mmpolicy.host.calibration import PAGE, FaultCost

# bytes of a piece of memory, which is longer if it would take fewer faults than FAULTS
PIECE, FAULTS = 8 << 20, 16
PIECES = 3  # number of pieces of each size in a turn
# each size is measured in at least LEAST turns; on a busy host, the turns go on for up to MOST_S
# seconds
LEAST, MOST_S = 24, 10.0
FASTEST = 50  # the cost of a fault is taken from the fastest one in this many pieces
# on a quiet host, the cost by the median of the pieces is at most this multiple of the cost by the
# fastest
QUIET = 1.05


class Piece(NamedTuple):
    """Times of one piece of memory in nanoseconds per fault: first write, second write, and
    freeing.
    """

    first: float
    again: float
    back: float

    @property
    def cost(self) -> float:
        """Return the cost of one fault in ns: without the time of a write to a present page, and
        with the time to free the folio.
        """
        return self.first - self.again + self.back


def of_a_piece(size: int) -> tuple[Piece, bool]:
    """Return the times of one piece of memory with folios of this size, and whether the kernel gave
    it such folios.
    """
    piece = max(PIECE, FAULTS * size)
    area = mmap.mmap(-1, piece + size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # a kernel without THP refuses both advices, and gives single pages in any case
    with suppress(OSError):
        area.madvise(mmap.MADV_HUGEPAGE if size > PAGE else mmap.MADV_NOHUGEPAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(area))
    (first, taken), (again, _) = [_written(-(-start // size) * size, piece) for _ in range(2)]
    begin = time.thread_time_ns()
    area.close()
    number, back = piece // size, time.thread_time_ns() - begin
    return Piece(first / number, again / number, back / number), taken <= 1.2 * number + 8


def _written(address: int, piece: int) -> tuple[int, int]:
    """Write to a piece of memory; return the nanoseconds of CPU time that this took, and the number
    of faults.
    """
    faults, begin = _faults(), time.thread_time_ns()
    ctypes.memset(address, 1, piece)
    return time.thread_time_ns() - begin, _faults() - faults


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt


def measure(
    sizes: Sequence[int], enter: Callable[[int], None], tell: Callable[[float], None]
) -> list[FaultCost]:
    """Return the cost of a fault for each size, without sizes that the kernel does not give.

    enter: enables a size for memory that asks for it, and disables all others. tell: called with
    the seconds passed so far.
    """
    found: dict[int, list[Piece]] = {size: [] for size in sizes}
    begin = time.monotonic()
    with _cpus_in_turn() as move:
        for number in count(1):
            move()
            for size in sizes:
                enter(size)
                of_a_piece(size)  # the first piece only warms up
                pieces = [of_a_piece(size) for _ in range(PIECES)]
                found[size] += [piece for piece, in_folios in pieces if in_folios]
            tell(taken := time.monotonic() - begin)
            if number < LEAST:
                continue
            given = {size: each for size, each in found.items() if len(each) > number * PIECES / 2}
            costs = [_cost(size, each) for size, each in given.items()]
            is_quiet = all(each.high <= QUIET * each.ns for each in costs)
            if is_quiet or taken >= MOST_S:
                break
    return costs


@contextmanager
def _cpus_in_turn() -> Iterator[Callable[[], None]]:
    """Yield a function that moves this thread to its next CPU. At the end of the `with` block, the
    thread may use all its CPUs again.
    """
    cpus = os.sched_getaffinity(0)
    turns = cycle(sorted(cpus))

    def move() -> None:
        # fails if the CPU has gone offline; the thread then stays where it is
        with suppress(OSError):
            os.sched_setaffinity(0, {next(turns)})

    try:
        yield move
    finally:
        os.sched_setaffinity(0, cpus)


def _cost(size: int, pieces: Sequence[Piece]) -> FaultCost:
    """Return the cost of a fault by the fastest fiftieth of the pieces, with the costs by minimum
    and by median.

    First writes, second writes and freeing are ranked separately. The cost of a single piece is not
    ranked, as an interrupted second write, which is subtracted, would make it look low.
    """
    first, again, back = zip(*pieces)
    kinds: tuple[Callable[[Sequence[float]], float], ...] = (min, _fastest, median)
    low, ns, high = sorted(of(first) - of(again) + of(back) for of in kinds)
    return FaultCost(size, ns, low, high)


def _fastest(times: Sequence[float]) -> float:
    return quantiles(times, n=FASTEST, method="inclusive")[0]
