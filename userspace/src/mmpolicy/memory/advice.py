# SPDX-License-Identifier: GPL-2.0
"""Which policy suits a process, from what was seen of it."""

from __future__ import annotations

from dataclasses import dataclass

from mmpolicy.memory.explain import Explained, Wanted, size

FEW = 100  # faults of which a shadow, or adaptive, has to be asked about
MUCH_UNUSED = 0.1  # of the pages of large folios
DENSE = 0.2  # of the faults: where so many would get large folios, that pays
HUGE = 64 << 20  # bytes of the largest area from which on 2 MB folios pay
STOCK, ADAPTIVE = "stock", "adaptive"
USUAL, LARGEST, SMALLEST = 4, 9, 2


@dataclass(frozen=True)
class Advice:
    """A policy of anon_order, its largest order if it has one, and the evidence in words."""

    policy: str
    max_order: int | None
    evidence: tuple[str, ...]


def advise(whole: Explained, largest: int) -> Advice | None:
    """Return what suits a process whose largest area has so many bytes; nothing if unknown.

    The decisions of adaptive tell, whether it is obeyed or a shadow; other policies want large
    folios everywhere. What they made tells as well, if much of it is unused.
    """
    seen = max(whole.shadow, whole.wanted, key=_judged)
    judged = _judged(seen)
    dense = seen.reasons["dense_neighbour"]
    told = [f"{whole.unused_share:.0%} of the pages in large folios were never used"]
    if judged < FEW:
        if whole.unused_share <= MUCH_UNUSED:
            return None
        order = _order_in_use(whole)
        return Advice(ADAPTIVE, order, (*told, f"folios up to {size(order)} are in use"))
    told = told if whole.large else []
    told.append(f"{dense} of {judged} faults were beside memory that was used in full")
    if dense < DENSE * judged:
        return Advice(STOCK, None, (*told, "large folios would be rare, or wasted"))
    if whole.unused_share > MUCH_UNUSED:
        return Advice(ADAPTIVE, _order_in_use(whole), tuple(told))
    order = LARGEST if largest >= HUGE else USUAL
    return Advice(ADAPTIVE, order, (*told, f"its largest area has {largest >> 20} MiB"))


def _judged(seen: Wanted) -> int:
    """Return of how many faults it was told whether memory nearby was used."""
    return sum(seen.orders.values()) - seen.reasons["cap"]


def _order_in_use(whole: Explained) -> int:
    """Return the largest order of which little is unused."""
    good = [order for order, n in whole.large.items() if whole.unused[order] <= MUCH_UNUSED * n]
    return max([SMALLEST, *(order for order in good if order <= USUAL)])
