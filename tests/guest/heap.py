# SPDX-License-Identifier: GPL-2.0
"""heap.py MIB: a heap that grows, is emptied and is refilled on request, until /tmp/over exists.

It creates /tmp/ready when it is full for the first time. Each request is a word in /tmp/ask: `grow`
by half of MIB; `empty`, after which one page of each 64 kB is left, and the others are zeroed in
one half of the heap and unmapped in the other half; or `fill`. After each request it creates
/tmp/answered. At its end it checks each page.
"""

from __future__ import annotations

import mmap
import sys
import time
from pathlib import Path

PAGE, BLOCK, STEP = 4096, 2 << 20, 16
DONTNEED = 4


def text(number: int) -> bytes:
    """Return the content that page `number` has while it is in use; each page has another
    content.
    """
    return (number * 7919 + 1).to_bytes(8, "little") * (PAGE // 8)


class Heap:
    """Memory in which the content of each page is known, so that a page with a wrong content is
    found.
    """

    def __init__(self, size: int) -> None:
        self.memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.used = bytearray(size // PAGE)  # 1: the page has its text; 0: it is empty

    def put(self, number: int, is_used: int) -> None:
        """Write a page: its own text if it is to be used, else zeroes, which make it empty."""
        self.used[number] = is_used
        self.memory[number * PAGE : (number + 1) * PAGE] = text(number) if is_used else bytes(PAGE)

    def fill(self) -> None:
        """Write the text of each page."""
        for number in range(len(self.used)):
            self.put(number, 1)

    def empty(self) -> None:
        """Keep one page in use of each STEP pages. The other pages are zeroed in the first half of
        the memory, and unmapped in the second.
        """
        half = len(self.used) // 2
        for number in range(0, len(self.used), STEP):
            if number < half:
                for other in range(number + 1, number + STEP):
                    self.put(other, 0)
            else:
                self.used[number + 1 : number + STEP] = bytes(STEP - 1)
                self.memory.madvise(DONTNEED, (number + 1) * PAGE, (STEP - 1) * PAGE)

    def bad(self) -> int:
        """Return how many pages do not have the content that was written to them."""
        return sum(
            self.memory[number * PAGE : (number + 1) * PAGE]
            != (text(number) if is_used else bytes(PAGE))
            for number, is_used in enumerate(self.used)
        )


def main(mib: int) -> int:
    """Answer requests of the test until it creates /tmp/over; return the number of pages with a
    wrong content.
    """
    heaps = [Heap((mib << 20) + BLOCK)]
    heaps[0].fill()
    Path("/tmp/ready").touch()
    ask = Path("/tmp/ask")
    while not Path("/tmp/over").exists():
        time.sleep(0.05)
        if not ask.exists():
            continue
        word = ask.read_text().strip()
        ask.unlink()
        if word == "grow":
            heaps.append(Heap((mib << 19) + BLOCK))
        for heap in heaps[-1:] if word == "grow" else heaps:
            (heap.empty if word == "empty" else heap.fill)()
        Path("/tmp/answered").touch()
    return sum(heap.bad() for heap in heaps)


if __name__ == "__main__":
    sys.exit(bool(main(int(sys.argv[1]))))
