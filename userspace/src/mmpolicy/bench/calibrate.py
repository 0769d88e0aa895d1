# SPDX-License-Identifier: GPL-2.0
"""What a page fault costs on this host, by the size of the folio that it gets.

Memory is written twice from one end to the other, and given back. The first time each folio takes
a fault, the second time none does, so the difference is what the faults took: the way into the
kernel and back, and the clearing of the memory. What it takes to give a folio back is added, as a
program that has had the fault will do that, too. It is CPU time of this thread, so others only
count by the caches and the parts of a core that they use up. On a virtual machine these are unseen
neighbours who come and go within seconds, and make half of all pieces take half as much again. So
sizes take turns, and the fastest twentieth of many short pieces counts (as minima do in lmbench,
McVoy and Staelin 1996).
"""

import ctypes
import mmap
import resource
import time
from collections.abc import Callable, Sequence
from statistics import median, quantiles

from mmpolicy.host.calibration import PAGE, FaultCost

PIECE, FAULTS = 8 << 20, 16  # bytes that are written at once, and how many faults at the least
PIECES = 3  # of each size, each time it has its turn
LEAST, MOST = 24, 48  # so often it has its turn
EXACT = 0.01  # the standard error of a median at which there are turns enough, as a part of it
FASTEST = 20  # one part of so many


def _of_a_piece(size: int) -> tuple[float, bool]:
    """Return the nanoseconds of a fault of this size, and if the memory came in such folios."""
    piece = max(PIECE, FAULTS * size)
    area = mmap.mmap(-1, piece + size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area.madvise(mmap.MADV_HUGEPAGE if size > PAGE else mmap.MADV_NOHUGEPAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(area))
    (first, taken), (again, _) = [_written(-(-start // size) * size, piece) for _ in range(2)]
    begin = time.thread_time_ns()
    area.close()
    number, back = piece // size, time.thread_time_ns() - begin
    return (first - again + back) / number, taken <= 1.2 * number + 8


def _written(address: int, piece: int) -> tuple[int, int]:
    """Write to a piece; return the nanoseconds of CPU time, and the faults."""
    faults, begin = _faults(), time.thread_time_ns()
    ctypes.memset(address, 1, piece)
    return time.thread_time_ns() - begin, _faults() - faults


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt


def measure(sizes: Sequence[int], enter: Callable[[int], None]) -> list[FaultCost]:
    """Return the cost of each size; `enter` enables one for who asks, and all others not.

    A size that the kernel does not give is left out.
    """
    found: dict[int, list[float]] = {size: [] for size in sizes}
    given: dict[int, list[float]] = {}
    for number in range(1, MOST + 1):
        for size in sizes:
            enter(size)
            _of_a_piece(size)  # warms up
            pieces = [_of_a_piece(size) for _ in range(PIECES)]
            found[size] += [ns for ns, in_folios in pieces if in_folios]
        given = {size: each for size, each in found.items() if len(each) > number * PIECES / 2}
        if number >= LEAST and all(_error(each) < EXACT for each in given.values()):
            break
    return [_cost(size, each) for size, each in given.items()]


def _error(pieces: Sequence[float]) -> float:
    """Return the standard error of a median as a part of it, as if pieces were normally spread."""
    low, middle, high = quantiles(pieces, n=4)
    return float(0.93 * (high - low) / middle / len(pieces) ** 0.5)


def _cost(size: int, pieces: Sequence[float]) -> FaultCost:
    fast = quantiles(pieces, n=FASTEST, method="inclusive")[0]
    return FaultCost(size, fast, min(pieces), median(pieces))
