# SPDX-License-Identifier: GPL-2.0
"""Measure the cost of a page fault while many CPUs fault at once, for each folio size.

A size that is fast on one CPU may be slow on all CPUs: single pages come from per-CPU lists, while
the allocation of a larger folio may take the lock of its zone. So processes on 1, 2, 4, 8 and more
CPUs fault at the same moments, each in memory of its own. Sizes and numbers of CPUs take turns,
and the result is the median over the turns.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from statistics import median
from typing import Optional

from mmpolicy.bench.calibrate import Piece, of_a_piece
from mmpolicy.errors import Error, Exit
from mmpolicy.host.calibration import PAGE, Together, dear_in

TURNS = 6  # measured turns for each size and number of CPUs; one turn more comes first, to warm up
# beyond this many CPUs, the number of CPUs grows by factors of 4, to limit the time of each CPU
MANY = 32
# longest time in seconds for which each CPU is used in all turns, unless a single piece takes
# longer
CPU_S = 2.0
WINDOW_S = 0.05  # longest time in seconds that CPUs fault at once
# seconds from the request until the CPUs start together: a fixed part, and a part for each CPU
AHEAD_S, AHEAD_CPU_S = 0.002, 0.0001
AGREE = 1.1  # if the costs of odd and even turns differ by a larger factor, the host is not quiet
NO_REPLY = "a measuring process of mmpolicy calibrate was killed, perhaps for lack of memory"


# result of one CPU in a turn: ns per fault, or None if it got no folios of this size
Reply = Optional[float]


def levels(cpus: int) -> list[int]:
    """Return the numbers of CPUs to measure: 1, 2, 4 and so on, and all CPUs; with more than MANY
    CPUs, 1, 4, 16 and so on, and all.
    """
    step = 1 if cpus <= MANY else 2
    return [*(1 << power for power in range(0, (cpus - 1).bit_length(), step)), cpus]


def spread(cpus: Sequence[int], number: int) -> list[int]:
    """Return `number` positions in the list of CPUs, as far apart as possible."""
    return [place * len(cpus) // number for place in range(number)]


class Crew:
    """One process on each CPU, which takes page faults on request."""

    def __init__(self, cpus: Sequence[int], ready: Callable[[], None]) -> None:
        self.cpus = cpus
        # for each process: PID, the pipe for requests to it, and the pipe for its replies
        self._members: list[tuple[int, int, int]] = []
        for cpu in cpus:
            self._members.append(self._start(cpu, ready))

    def _start(self, cpu: int, ready: Callable[[], None]) -> tuple[int, int, int]:
        read, tell = os.pipe()
        hear, write = os.pipe()
        pid = os.fork()
        if pid:
            os.close(read)
            os.close(write)
            return pid, tell, hear
        try:
            _member(cpu, read, write, ready)
        finally:
            os._exit(0)

    def fault(self, size: int, number: int, seconds: float) -> list[Reply]:
        """Let `number` CPUs take page faults of a folio size at the same time, for some seconds;
        return the result of each CPU.
        """
        begin = time.monotonic() + AHEAD_S + AHEAD_CPU_S * number
        order = json.dumps([size, begin, begin + seconds]).encode() + b"\n"
        members = [self._members[place] for place in spread(self.cpus, number)]
        for _, tell, _ in members:
            with suppress(BrokenPipeError):
                os.write(tell, order)
        replies = [os.read(hear, 4096) for _, _, hear in members]
        if not all(replies):
            raise Error(NO_REPLY, Exit.FAILED, "dmesg | tail says if the kernel killed the process")
        return [json.loads(reply) for reply in replies]

    def end(self) -> None:
        """End all processes of the crew."""
        for pid, tell, hear in self._members:
            os.close(tell)
            os.close(hear)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _member(cpu: int, read: int, write: int, ready: Callable[[], None]) -> None:
    """Run as one of the processes of a Crew: take page faults on request, until the parent has
    ended.
    """
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_DFL)
    os.dup2(read, 0)
    os.dup2(write, 1)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # this also closes the pipes of the other processes
    ready()
    os.sched_setaffinity(0, {cpu})
    with os.fdopen(0, "rb", closefd=False) as orders:
        for order in orders:
            size, begin, end = json.loads(order)
            os.write(1, json.dumps(_in_a_window(size, begin, end)).encode())


def _in_a_window(size: int, begin: float, end: float) -> Reply:
    time.sleep(max(begin - time.monotonic(), 0))
    pieces: list[tuple[Piece, bool]] = []
    while not pieces or time.monotonic() < end:
        pieces.append(of_a_piece(size))
    given = [piece.cost for piece, in_folios in pieces if in_folios]
    return median(given) if 2 * len(given) > len(pieces) else None


@contextmanager
def crew_of(cpus: Sequence[int], ready: Callable[[], None]) -> Iterator[Crew]:
    """Start a process on each CPU, which calls ready() before its first work; end all processes at
    the end of the `with` block.
    """
    crew = Crew(cpus, ready)
    try:
        yield crew
    finally:
        crew.end()


# costs of a fault in all turns, by number of CPUs and folio size
Turns = Mapping[tuple[int, int], Sequence[float]]


def measure_together(
    crew: Crew, sizes: Sequence[int], enter: Callable[[int], None], tell: Callable[[float], None]
) -> Turns:
    """Return the costs of a fault in all turns, by number of CPUs and folio size, without sizes
    that the kernel lacks.

    enter: enables a size for programs that ask for large folios, and disables all others. tell:
    called with the share of the work that is done; may raise an error to end the measurement.
    """
    numbers = levels(len(crew.cpus))
    window = min(WINDOW_S, CPU_S / len(sizes) / len(numbers) / (TURNS + 1))
    found: dict[tuple[int, int], list[float]] = {}
    for turn in range(TURNS + 1):
        for done, size in enumerate(sizes, start=1):
            enter(size)
            for number in numbers:
                costs = crew.fault(size, number, window)
                given = [cost for cost in costs if cost is not None]
                if turn and len(given) == number:
                    found.setdefault((number, size), []).append(sum(given) / number)
            tell((turn + done / len(sizes)) / (TURNS + 1))
    return {key: costs for key, costs in found.items() if len(costs) == TURNS}


def rows_of(turns: Turns) -> list[Together]:
    """Return for each size and number of CPUs the median, the smallest and the largest cost of the
    turns.
    """
    return [Together(*key, median(costs), min(costs), max(costs))
            for key, costs in sorted(turns.items())]  # fmt: skip


def unquiet(turns: Turns) -> str:
    """Return a warning with the largest difference between odd and even turns if it is more than
    10 %, else "".
    """
    off = {key: [median(costs[::2]), median(costs[1::2])] for key, costs in turns.items()}
    far = {key: max(both) / max(min(both), 1.0) for key, both in off.items()}
    cpus, size = worst = max(far, key=lambda key: far[key])
    if far[worst] <= AGREE:
        return ""
    times = f"{far[worst]:.2f} times as long in every other turn, so the host is not quiet"
    return f"a fault of {size >> 10} kB on {cpus} CPUs took {times}"


def advice(rows: Sequence[Together]) -> str:
    """Return one line of advice: the sizes that cost less than single pages on any
    number of CPUs.
    """
    most = max(each.cpus for each in rows)
    sizes = sorted({each.size for each in rows} - {PAGE})
    dear = {size: found for size in sizes if (found := dear_in(rows, size))}
    good = [f"{size >> 10} kB" for size in sizes if size not in dear]
    if not good:
        return (
            f"no folio size costs less than single pages on 1 to {most} CPUs: leave all sizes off"
        )
    if not dear:
        return f"each folio size costs less than single pages, on 1 to {most} CPUs at once"
    told = [f"{size >> 10} kB where {each.cpus} CPUs fault at once" for size, each in dear.items()]
    return (
        f"these sizes cost more than single pages: {', '.join(told)}; turn on only "
        f"{', '.join(good)}"
    )
