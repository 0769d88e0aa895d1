# SPDX-License-Identifier: GPL-2.0
"""Recommend a policy for a process, from its folios and the decisions about its faults."""

from __future__ import annotations

from dataclasses import dataclass

from mmpolicy.memory.explain import Explained, Wanted, size

FEW = 100  # number of faults decided by adaptive, or by a shadow, that is enough for advice
MUCH_UNUSED = 0.1  # least share of unused pages in large folios that counts as waste
DENSE = 0.2  # least share of faults with a fully used neighbour for which large folios pay
HUGE = 64 << 20  # least size in bytes of the largest area for which 2 MB folios pay
STOCK, ADAPTIVE = "stock", "adaptive"
USUAL, LARGEST, SMALLEST = 4, 9, 2  # orders: folios of 64 kB, 2 MB and 16 kB


@dataclass(frozen=True)
class Advice:
    """A recommended policy, its largest order if it has one, and the evidence as text."""

    policy: str
    max_order: int | None
    evidence: tuple[str, ...]


def advise(whole: Explained, largest: int) -> Advice | None:
    """Return the recommendation for a process; None if the evidence is too little.

    largest: bytes of the largest area of the process.

    The evidence is the decisions of adaptive, as the active or the shadow policy, because other
    policies request large folios everywhere. Without enough decisions, a high share of unused
    pages is evidence, too.
    """
    seen = max(whole.shadow, whole.wanted, key=_judged)
    judged = _judged(seen)
    dense = seen.reasons["dense_neighbour"]
    told = [
        f"{whole.unused_share:.0%} of the pages in large folios of this process were never used"
    ]
    if judged < FEW:
        if whole.unused_share <= MUCH_UNUSED:
            return None
        order = _order_in_use(whole)
        limit = f"so folios larger than {size(order)} are not recommended"
        return Advice(ADAPTIVE, order, (*told, limit))
    told = told if whole.large else []
    told.append(f"{dense} of {judged} page faults were next to memory that is used in full")
    if dense < DENSE * judged:
        return Advice(STOCK, None, (*told, "so large folios would be rare, or mostly empty"))
    if whole.unused_share > MUCH_UNUSED:
        return Advice(ADAPTIVE, _order_in_use(whole), tuple(told))
    order = LARGEST if largest >= HUGE else USUAL
    return Advice(
        ADAPTIVE, order, (*told, f"the largest memory area of the process has {largest >> 20} MiB")
    )


def _judged(seen: Wanted) -> int:
    """Return the number of decisions that took the use of nearby memory into account."""
    return sum(seen.orders.values()) - seen.reasons["cap"]


def _order_in_use(whole: Explained) -> int:
    """Return the largest order, up to that of 64 kB, in which few pages are unused; else the order
    of 16 kB.
    """
    good = [order for order, n in whole.large.items() if whole.unused[order] <= MUCH_UNUSED * n]
    return max([SMALLEST, *(order for order in good if order <= USUAL)])
