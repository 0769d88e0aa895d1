# SPDX-License-Identifier: GPL-2.0
"""Explain each memory area of a process: its folios, the orders that the policy requested with the
reasons, and the empty part of the folios.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from mmpolicy.host.pagemap import PAGE
from mmpolicy.host.tracing import Decision
from mmpolicy.memory.folios import Area, totals

# Reasons as docs/policies/anon_order.md describes them; an unlisted reason is printed by its name.
WORDS = {
    "cap": "the limit of the policy allows no larger folio",
    "dense_neighbour": "memory nearby was used in full",
    "no_room": "no larger folio fits around the page",
    "no_neighbour": "no memory nearby was used in full",
    "sparse_neighbour": "neighbouring memory was allocated and only partly used",
    "probe": "a smaller folio was taken to see which of its pages get used",
    "locked": "mlock() fills the area with pages in any case",
    "deferred": "the neighbours were not checked, as many faults before got small folios",
}


@dataclass
class Wanted:
    """Counts of the orders that a policy requested, and of its reasons."""

    orders: Counter[int] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, decision: Decision) -> None:
        """Count the order of a decision, and its reason."""
        self.orders[decision.order] += 1
        self.reasons[decision.reason] += 1

    def as_data(self) -> dict[str, Any]:
        """Return the counts for JSON."""
        return {"orders": dict(sorted(self.orders.items())), "reasons": dict(self.reasons)}

    def text(self) -> str:
        """Return the counts as text, the most frequent order and reason first."""
        number = sum(self.orders.values())
        orders = ", ".join(f"{size(order)} {n}" for order, n in self.orders.most_common())
        reasons = "; ".join(
            f"{100 * n / number:.0f} %: {WORDS.get(name, name)}"
            for name, n in self.reasons.most_common()
        )
        return f"{number} page faults: {orders} (reasons: {reasons})"


@dataclass
class Explained:
    """The folios of a memory area of a process, and the policy decisions about page faults in it;
    also used for the sum over all areas.
    """

    start: int
    end: int
    name: str
    pages: int = 0
    # number of pages in folios of each order above 0, by order
    large: Counter[int] = field(default_factory=Counter)
    # number of pages counted in `large` that are full of zeroes, by order
    unused: Counter[int] = field(default_factory=Counter)
    # decisions of the active policy about faults in this memory
    wanted: Wanted = field(default_factory=Wanted)
    # decisions of the shadow policy about faults in this memory
    shadow: Wanted = field(default_factory=Wanted)

    @property
    def unused_share(self) -> float:
        """Return the share of the pages in large folios that are full of zeroes."""
        return sum(self.unused.values()) / sum(self.large.values()) if self.large else 0.0

    def as_data(self) -> dict[str, Any]:
        """Return the area for JSON."""
        return {
            "start": self.start, "end": self.end, "name": self.name, "pages": self.pages,
            "large_pages": dict(self.large), "unused_pages": dict(self.unused),
            "wanted": self.wanted.as_data(), "shadow": self.shadow.as_data(),
        }  # fmt: skip

    def lines(self) -> Iterator[str]:
        """Yield the facts about the area as lines of text."""
        kept = [
            (
                f"{n * PAGE >> 10} kB in folios of {size(order)}, "
                f"{self.unused[order] / n:.0%} of it never used"
            )
            for order, n in sorted(self.large.items())
        ]
        yield f"  has     {self.pages * PAGE >> 10} kB: {', '.join(kept) or 'all in single pages'}"
        for what, wanted in (("wanted", self.wanted), ("shadow", self.shadow)):
            if wanted.orders:
                yield f"  {what}  {wanted.text()}"


def size(order: int) -> str:
    """Return the size of a folio of this order."""
    return f"{PAGE << order >> 10} kB"


def explain_areas(areas: Iterable[Area], decisions: Iterable[Decision]) -> list[Explained]:
    """Return the facts about each area with resident memory, and the policy decisions in it."""
    found = []
    for area in areas:
        each = Explained(area.start, area.start + len(area.kinds) * PAGE, area.name)
        for order, total in totals([area]).items():
            each.pages += total.pages
            if order:
                each.large[order], each.unused[order] = total.pages, total.zero
        found.append(each)
    starts = [each.start for each in found]
    for decision in decisions:
        at = bisect_right(starts, decision.address) - 1
        if at >= 0 and decision.address < found[at].end:
            (found[at].shadow if decision.shadow else found[at].wanted).add(decision)
    return found


def all_of(found: Iterable[Explained]) -> Explained:
    """Return the facts about all given areas together."""
    whole = Explained(0, 0, "all")
    for each in found:
        whole.pages += each.pages
        whole.large += each.large
        whole.unused += each.unused
        for mine, theirs in ((whole.wanted, each.wanted), (whole.shadow, each.shadow)):
            mine.orders += theirs.orders
            mine.reasons += theirs.reasons
    return whole
