# SPDX-License-Identifier: GPL-2.0
"""Measure what a page fault costs on this host, by the size of the folio that the fault gets.

A piece of memory is written twice and then given back. In the first pass each folio takes a fault,
in the second none does, so the difference is the cost of the faults: entering and leaving the
kernel, and clearing the memory. The cost of giving the folio back is added. The time is CPU time
of this thread, so other processes matter only by the caches and core resources that they use. On a
virtual machine these are unseen neighbours: they make half of all pieces take 1.5 times as long,
for a second or for a minute, on some CPUs more than on others. So sizes take turns on all CPUs
that this process may use, and the fastest fiftieth of many short pieces is the result (as minima
are in lmbench, McVoy and Staelin 1996).
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

PIECE, FAULTS = 8 << 20, 16  # bytes written at once, and the least number of faults
PIECES = 3  # pieces of each size in a turn
# least number of turns of a size, and longest time in seconds on a busy host
LEAST, MOST_S = 24, 10.0
FASTEST = 50  # the fastest of this many pieces is the result
QUIET = 1.05  # limit of the median of the pieces on a quiet host, as a multiple of the fastest


class Piece(NamedTuple):
    """Times of one piece in nanoseconds per fault: first write, second write, giving back."""

    first: float
    again: float
    back: float

    @property
    def cost(self) -> float:
        """Return the cost of the fault, without the writing."""
        return self.first - self.again + self.back


def of_a_piece(size: int) -> tuple[Piece, bool]:
    """Return the times of a piece with folios of this size, and whether the kernel gave such
    folios.
    """
    piece = max(PIECE, FAULTS * size)
    area = mmap.mmap(-1, piece + size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area.madvise(mmap.MADV_HUGEPAGE if size > PAGE else mmap.MADV_NOHUGEPAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(area))
    (first, taken), (again, _) = [_written(-(-start // size) * size, piece) for _ in range(2)]
    begin = time.thread_time_ns()
    area.close()
    number, back = piece // size, time.thread_time_ns() - begin
    return Piece(first / number, again / number, back / number), taken <= 1.2 * number + 8


def _written(address: int, piece: int) -> tuple[int, int]:
    """Write to a piece; return the nanoseconds of CPU time and the number of faults."""
    faults, begin = _faults(), time.thread_time_ns()
    ctypes.memset(address, 1, piece)
    return time.thread_time_ns() - begin, _faults() - faults


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt


def measure(
    sizes: Sequence[int], enter: Callable[[int], None], tell: Callable[[float], None]
) -> list[FaultCost]:
    """Return the cost of each size; `enter` enables one size for memory that asks for it, and no
    other.

    A size that the kernel does not give is left out. `tell` is called with the seconds so far.
    """
    found: dict[int, list[Piece]] = {size: [] for size in sizes}
    begin = time.monotonic()
    with _cpus_in_turn() as move:
        for number in count(1):
            move()
            for size in sizes:
                enter(size)
                of_a_piece(size)  # warms up
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
    """Yield a function that moves this thread to its next CPU; afterwards all its CPUs are allowed
    again.
    """
    cpus = os.sched_getaffinity(0)
    turns = cycle(sorted(cpus))

    def move() -> None:
        with suppress(OSError):  # a CPU went offline
            os.sched_setaffinity(0, {next(turns)})

    try:
        yield move
    finally:
        os.sched_setaffinity(0, cpus)


def _cost(size: int, pieces: Sequence[Piece]) -> FaultCost:
    """Return the cost by the fastest fiftieth of the pieces, and by their minimum and median.

    Each of the three times of a piece is ranked by itself: a piece whose second write was
    interrupted is not a fast one.
    """
    first, again, back = zip(*pieces)
    kinds: tuple[Callable[[Sequence[float]], float], ...] = (min, _fastest, median)
    low, ns, high = sorted(of(first) - of(again) + of(back) for of in kinds)
    return FaultCost(size, ns, low, high)


def _fastest(times: Sequence[float]) -> float:
    return quantiles(times, n=FASTEST, method="inclusive")[0]
