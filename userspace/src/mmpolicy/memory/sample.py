# SPDX-License-Identifier: GPL-2.0
"""Estimate the empty part of a process's memory from random spots.

A spot is 64 kB of addresses. Each present page is equally likely to be in a spot, so the spots are
a fair sample, with an error that follows from their variance. Private and shared memory are
sampled separately, as the kernel counts them separately.

For one page of each spot, the number of its mappings and its cgroup are read. So the figures of a
cgroup include only pages charged to it, and a page that many processes share counts once.
"""

from __future__ import annotations

import contextlib
from array import array
from bisect import bisect
from collections.abc import Sequence
from itertools import accumulate
from math import inf, sqrt
from random import Random

from mmpolicy.errors import Error
from mmpolicy.host.files import Reader, Tree
from mmpolicy.host.pagemap import FRAME, PAGE, lazily_freed
from mmpolicy.memory.folios import (
    BLOCK_BITS,
    KPF_ANON,
    KPF_HUGETLB,
    KPF_SWAPBACKED,
    KPF_UNEVICTABLE,
    Frames,
    read_spot,
)
from mmpolicy.memory.space import Sizes, Space, Vma

SPOT = 16  # number of pages in a spot
TRIES = 8  # addresses tried for each wanted spot, as some of them fall into holes
MORE_TRIES = 64  # addresses tried for each wanted spot if the kernel cannot report the holes
SURE = 2.0  # half the width of a 95 % confidence interval, in standard errors
HALF_LIFE_S = 30.0  # seconds after which a spot has half of its weight
STALE_S = 30.0  # seconds after which the list of a process's memory areas is read again
# largest number of pieces into which a process's memory is divided to search it for pages
GRAINS = 8192
# smallest size of such a piece in bytes, and the factor by which pieces with pages are divided
# again
FINE, FINER = 2 << 20, 64
# Largest size in bytes of areas that are searched for pages if the kernel cannot scan, as each page
# then costs a read of 8 bytes.
WALKED = 64 << 30
NO_CGROUP = -1  # stands for the cgroup of a page if it cannot be read
DEVICES = ("/dev/", "anon_inode:", "socket:")
KEPT = 64  # number of the latest spots with empty pages whose addresses are kept
FEW = 8192  # with no more spots than this, each is read once before any is read again
SPARSE = 4  # Above this ratio of mapped to present pages, holes are located before spots are drawn.


class Sample:
    """Weighted sums over all spots (64 kB of addresses) read from one kind of a process's memory;
    older spots have less weight.
    """

    def __init__(self) -> None:
        self.spots = 0.0  # weight of all spots that have any page
        self.pages = self.empty = 0.0
        self.orders: dict[int, float] = {}  # number of pages in folios of each order
        # number of pages with another property, such as "locked", by its name
        self.others: dict[str, float] = {}
        # number of all pages and of empty pages, by number of the cgroup to which they are charged
        self.owners: dict[int, tuple[float, float]] = {}
        # latest spots with empty pages, each as its address | its number of empty pages
        self._empties: array[int] | None = None
        # sums of squares and of products, for the variance
        self._pages2 = self._empty2 = self._both = 0.0
        self._spots2 = 0.0
        self._when = 0.0

    def age(self, now: float) -> None:
        """Reduce the weight of all spots by the time since the last call; it halves in
        HALF_LIFE_S.
        """
        factor = self._worth(now)
        self._when = now
        for name in ("spots", "pages", "empty"):
            setattr(self, name, getattr(self, name) * factor)
        for name in ("_spots2", "_pages2", "_empty2", "_both"):
            setattr(self, name, getattr(self, name) * factor**2)
        self.orders = {order: pages * factor for order, pages in self.orders.items()}
        self.others = {name: pages * factor for name, pages in self.others.items()}
        self.owners = {owner: (a * factor, b * factor) for owner, (a, b) in self.owners.items()}

    def weight(self, now: float) -> float:
        """Return the weight of the spots now."""
        return self.spots * self._worth(now)

    def _worth(self, now: float) -> float:
        return float(0.5 ** ((now - self._when) / HALF_LIFE_S))

    def add(self, kinds: bytes, zeroes: bytes, owner: int = NO_CGROUP, maps: int = 1) -> int:
        """Add a spot whose pages are mapped by `maps` processes and charged to the cgroup `owner`;
        return the number of its present pages.
        """
        orders = {order: kinds.count(ord("0") + order) for order in range(BLOCK_BITS + 1)}
        pages, empty = sum(orders.values()), zeroes.count(1)
        if not pages:
            return 0
        self.spots += 1
        self._spots2 += 1
        self.pages += pages
        self.empty += empty
        self._pages2 += pages * pages
        self._empty2 += empty * empty
        self._both += pages * empty
        for order, number in orders.items():
            if number:
                self.orders[order] = self.orders.get(order, 0.0) + number
        charged, unused = self.owners.get(owner, (0.0, 0.0))
        self.owners[owner] = charged + pages / maps, unused + empty / maps
        return pages

    def note(self, name: str, pages: float) -> None:
        """Add pages that have another property, such as being locked, to the number of such
        pages.
        """
        if pages:
            self.others[name] = self.others.get(name, 0.0) + pages

    def note_empty(self, start: int, pages: int) -> None:
        """Record a spot with this many empty pages."""
        self._empties = self._empties or array("Q")
        self._empties.append(start | pages)
        del self._empties[:-KEPT]

    def empties(self) -> list[tuple[int, int]]:
        """Return address and number of empty pages of the latest spots that had any."""
        return [(each & -PAGE, each & PAGE - 1) for each in self._empties or ()]

    @property
    def share(self) -> float:
        """Return the empty pages in large folios as a share of all sampled pages."""
        return self.empty / self.pages if self.pages else 0.0

    def part(self, name: str) -> float:
        """Return the pages with the property `name` as a share of all sampled pages."""
        return self.others.get(name, 0.0) / self.pages if self.pages else 0.0

    def charged(self, owner: int) -> tuple[float, float]:
        """Return the shares of the memory charged to a cgroup: all of its pages, and empty ones."""
        pages, empty = self.owners.get(owner, (0.0, 0.0))
        return (pages / self.pages, empty / self.pages) if self.pages else (0.0, 0.0)

    @property
    def error(self) -> float:
        """Return the error of the empty share, at 95 % confidence.

        Half a spot is added, as the share changes in steps of one spot. The error is at least one
        spot, even if all spots are equal, and 1.0 with fewer than two spots.
        """
        if self.spots < 2:
            return 1.0
        # number of spots of equal weight that would give this precision
        number = self.spots**2 / self._spots2
        left = self._empty2 - 2 * self.share * self._both + self.share**2 * self._pages2
        deviation = sqrt(max(left, 0.0) * number / max(number - 1, 0.5)) / self.pages
        return min(max(SURE * deviation + 0.5 / self.spots, 1 / self.spots), 1.0)

    def sizes(self) -> dict[int, float]:
        """Return the share of the sampled pages in folios of each order."""
        return {order: n / self.pages for order, n in self.orders.items()}


class Places:
    """The address ranges of a process's memory, from which random spots are drawn."""

    def __init__(self, ranges: Sequence[tuple[int, int]]) -> None:
        self._ranges = [each for each in ranges if each[0] < each[1]]
        self._spots = [-(-(end - start) // (SPOT * PAGE)) for start, end in self._ranges]
        self._ends = list(accumulate(self._spots))
        self._next = array("H")  # the next spots in random order, if there are few

    @property
    def spots(self) -> int:
        """Return the number of spots in all ranges."""
        return self._ends[-1] if self._ends else 0

    def draw(self, rng: Random) -> tuple[int, int]:
        """Return the address and the number of pages of a random spot; of FEW spots, none comes
        again before all have come.
        """
        number = self._number(rng)
        place = bisect(self._ends, number)
        first, end = self._ranges[place]
        start = first + (number - self._ends[place] + self._spots[place]) * SPOT * PAGE
        return start, min(SPOT, (end - start) // PAGE)

    def _number(self, rng: Random) -> int:
        if self.spots > FEW:
            return rng.randrange(self.spots)
        self._next = self._next or array("H", rng.sample(range(self.spots), self.spots))
        return self._next.pop()


NOWHERE = Places(())


class Layout:
    """The memory areas of a process when they were last read."""

    def __init__(self) -> None:
        self.private = self.shared = NOWHERE
        self.can_scan = False
        self._when, self._pages = -inf, 0

    def refresh(self, space: Space, sizes: Sizes, now: float) -> None:
        """Read the areas again if they were read STALE_S seconds ago, or if RSS has changed by more
        than 10 %.
        """
        pages = (sizes.rss << 10) // PAGE
        if now - self._when < STALE_S and abs(pages - self._pages) * 10 <= self._pages:
            return
        areas = space.looked_at(space.areas())
        self.can_scan = space.can_scan
        self.private = _places(space, [each for each in areas if _own(each)], sizes.anon)
        some = [each for each in areas if not each.private and not _of_device(each)]
        self.shared = _places(space, some if sizes.shared else [], sizes.shared)
        self._when, self._pages = now, pages


def _own(area: Vma) -> bool:
    return area.anonymous or (area.private and "w" in area.access)


def _of_device(area: Vma) -> bool:
    return area.name.startswith(DEVICES) and not area.shared_memory


def _places(space: Space, areas: Sequence[Vma], kib: int) -> Places:
    """Return the places to sample in some areas, of which `kib` kB are present.

    Holes are left out if the areas are SPARSE times as large, as most spots would hit a hole.
    """
    ranges = [(each.start, each.end) for each in areas]
    room = sum(end - start for start, end in ranges)
    if room <= SPARSE * (kib << 10) or (room > WALKED and not space.can_scan):
        return Places(ranges)
    grain = max(FINE, 1 << (room // GRAINS).bit_length())
    parts = [part for each in ranges for part in _occupied(space, *each, grain)]
    # in a reservation of many TB, a coarse grain has little else than holes
    while grain > FINE and len(parts) * FINER <= GRAINS:
        grain = max(grain // FINER, FINE)
        parts = [part for each in parts for part in _occupied(space, *each, grain)]
    return Places(parts)


def _occupied(space: Space, start: int, end: int, grain: int) -> list[tuple[int, int]]:
    """Return the parts of an address range that have any page, in pieces of `grain` bytes."""
    found = list[tuple[int, int]]()
    at = space.next_page(start, end)
    while at < end:
        begin, reached = max(at // grain * grain, start), min(at // grain * grain + grain, end)
        if found and found[-1][1] == begin:
            begin = found.pop()[0]
        found.append((begin, reached))
        at = space.next_page(reached, end)
    return found


class Looker:
    """Reads random spots of the memory of processes into samples."""

    def __init__(self, tree: Tree, rng: Random) -> None:
        self._rng, self.frames = rng, Frames(tree, few=True)
        self._cgroups = self._optional(tree, "/proc/kpagecgroup")
        self._counts = self._optional(tree, "/proc/kpagecount")

    @staticmethod
    def _optional(tree: Tree, path: str) -> Reader | None:
        with contextlib.suppress(Error):
            return tree.reader(path)
        return None

    def take(self, space: Space, places: Places, into: Sample, wanted: int, tries: int) -> None:
        """Add `wanted` random spots of 64 kB to a sample, with up to `tries` attempts for each.

        Raises an error if the process ends.
        """
        enough = into.spots + wanted
        for _ in range(min(tries * wanted, 4 * places.spots)):
            if into.spots >= enough:
                break
            start, pages = places.draw(self._rng)
            found = read_spot(space, self.frames, start, pages)
            if found:
                self._add(into, start, *found)

    def _add(
        self, into: Sample, start: int, entries: Sequence[int], kinds: bytes, zeroes: bytes
    ) -> None:
        """Add a spot to a sample; the flags, cgroup and mappings of a random page of it stand for
        all its pages.
        """
        there = [n for n, kind in enumerate(kinds) if ord("0") <= kind <= ord("9")]
        if not there:
            return
        page = self._rng.choice(there)
        frame, order = entries[page] & FRAME, kinds[page] - ord("0")
        flags = self.frames.flags(frame)
        if flags >> KPF_HUGETLB & 1 or (
            not flags >> KPF_SWAPBACKED & 1 and not flags >> KPF_ANON & 1
        ):
            # the page belongs to a hugetlb pool or to a file, which the sample does not cover
            return
        pages = into.add(kinds, zeroes, self._owner(frame), self._maps(frame))
        if empty := zeroes.count(1):
            into.note_empty(start, empty)
        if lazily_freed(flags):
            into.note("lazily_freed", pages)
        if flags >> KPF_UNEVICTABLE & 1:
            into.note("locked", pages)
        if order:
            size = 1 << order
            lost = self.frames.lost(frame // size * size, order)
            into.note("partly_unmapped", pages * lost / (size - lost))

    def _owner(self, frame: int) -> int:
        raw = self._cgroups.read(8, frame * 8) if self._cgroups else b""
        return int.from_bytes(raw, "little") if raw else NO_CGROUP

    def _maps(self, frame: int) -> int:
        raw = self._counts.read(8, frame * 8) if self._counts else b""
        return max(int.from_bytes(raw, "little"), 1)


def together(parts: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the sum of figures, and the error of the sum.

    parts: each figure with its error; the errors are independent of each other.
    """
    sums = sum(figure for figure, _ in parts)
    return sums, sqrt(sum(error**2 for _, error in parts))
