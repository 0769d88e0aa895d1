# SPDX-License-Identifier: GPL-2.0
"""How much of a process is empty, from a look at random spots of its memory.

A spot is 64 kB of anonymous memory. Each page that is there is as likely to be in a spot as any
other, so the empty part of the spots stands for that of the whole, with an error that the
difference between the spots tells.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from itertools import accumulate
from math import sqrt
from random import Random

from mmpolicy.host.files import Tree
from mmpolicy.memory.folios import (
    BLOCK_BITS,
    PAGE,
    Frames,
    Mapping,
    of_memory,
    read_mappings,
    read_spot,
)

SPOT = 16  # pages
TRIES = 8  # for each spot that is wanted: areas have holes
SURE = 2.0  # standard errors: 95 %
HALF_LIFE_S = 30.0  # after so long, what was seen counts half


class Sample:
    """Sums over the spots that were seen; the older ones count less."""

    def __init__(self) -> None:
        self.spots = 0.0  # so many that had any page
        self.pages = self.empty = 0.0
        self.orders: dict[int, float] = {}  # pages in folios by order
        self._pages2 = self._empty2 = self._both = 0.0  # sums of squares and products
        self._when = 0.0

    def age(self, now: float) -> None:
        """Let what was seen before count less."""
        factor = self._worth(now)
        self._when = now
        for name in ("spots", "pages", "empty", "_pages2", "_empty2", "_both"):
            setattr(self, name, getattr(self, name) * factor)
        self.orders = {order: pages * factor for order, pages in self.orders.items()}

    def weight(self, now: float) -> float:
        """Return how many spots it is worth now."""
        return self.spots * self._worth(now)

    def _worth(self, now: float) -> float:
        return float(0.5 ** ((now - self._when) / HALF_LIFE_S))

    def add(self, kinds: bytes, zeroes: bytes) -> None:
        """Count a spot."""
        orders = {order: kinds.count(ord("0") + order) for order in range(BLOCK_BITS + 1)}
        pages, empty = sum(orders.values()), zeroes.count(1)
        if not pages:
            return
        self.spots += 1
        self.pages += pages
        self.empty += empty
        self._pages2 += pages * pages
        self._empty2 += empty * empty
        self._both += pages * empty
        for order, number in orders.items():
            if number:
                self.orders[order] = self.orders.get(order, 0.0) + number

    @property
    def share(self) -> float:
        """Return the part of the memory that is empty and in large folios."""
        return self.empty / self.pages if self.pages else 0.0

    @property
    def error(self) -> float:
        """Return what that may be wrong by, in 95 of 100 cases; at least what one spot makes."""
        if self.spots < 2:
            return 1.0
        left = self._empty2 - 2 * self.share * self._both + self.share**2 * self._pages2
        deviation = sqrt(max(left, 0.0) * self.spots / (self.spots - 1)) / self.pages
        return min(SURE * deviation + 1 / self.spots, 1.0)

    def sizes(self) -> dict[int, float]:
        """Return the part of the memory in folios of each order."""
        return {order: n / self.pages for order, n in self.orders.items()}


def take(tree: Tree, pid: int, into: Sample, rng: Random, wanted: int) -> None:
    """Add spots of a process to a sample; those of a process that ends raise an error."""
    before = into.spots
    _take(tree, pid, read_mappings(tree, pid, "maps"), into, rng, wanted)
    missing = int(wanted - (into.spots - before))
    if missing > wanted // 2:  # it has reserved far more than it uses
        _take(tree, pid, read_mappings(tree, pid), into, rng, missing)


def _take(
    tree: Tree, pid: int, mappings: Sequence[Mapping], into: Sample, rng: Random, wanted: int
) -> None:
    areas = [each for each in mappings if of_memory(each)]
    sizes = [-(-(each.end - each.start) // (SPOT * PAGE)) for each in areas]
    ends, frames = list(accumulate(sizes)), Frames(tree, few=True)
    pagemap = tree.reader(f"/proc/{pid}/pagemap")
    if not ends:
        return
    enough = into.spots + wanted
    for _ in range(min(wanted * TRIES, 4 * ends[-1])):
        if into.spots >= enough:
            break
        number = rng.randrange(ends[-1])
        place = bisect(ends, number)
        start = areas[place].start + (number - ends[place] + sizes[place]) * SPOT * PAGE
        pages = min(SPOT, (areas[place].end - start) // PAGE)
        if spot := read_spot(tree, pid, pagemap, frames, start, pages):
            into.add(*spot)


def together(parts: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the sum of figures with independent errors, and its error."""
    sums = sum(figure for figure, _ in parts)
    return sums, sqrt(sum(error**2 for _, error in parts))
