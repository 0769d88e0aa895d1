# SPDX-License-Identifier: GPL-2.0
"""Recommend a policy for a process, from its folios and the decisions about its faults."""

from __future__ import annotations

from dataclasses import dataclass

from mmpolicy.memory.explain import Explained, Wanted, size

FEW = 100  # advice needs at least this many page faults decided by adaptive, or by a shadow policy
MUCH_UNUSED = 0.1  # a larger share of unused pages in large folios counts as waste
# large folios are advised if at least this share of the faults is next to fully used memory
DENSE = 0.2
# 2 MB folios are advised only if the largest memory area has at least this many bytes
HUGE = 64 << 20
STOCK, ADAPTIVE = "stock", "adaptive"
USUAL, LARGEST, SMALLEST = 4, 9, 2  # orders of folios: 64 kB usually, 2 MB at most, 16 kB at least


@dataclass(frozen=True)
class Advice:
    """A recommended policy, its largest folio order (None without a limit), and the evidence as
    text.
    """

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
    """Return the number of decisions that took the use of nearby memory into account: all but those
    with the reason "cap", where a limit of the policy ruled out larger folios.
    """
    return sum(seen.orders.values()) - seen.reasons["cap"]


def _order_in_use(whole: Explained) -> int:
    """Return the largest order, up to that of 64 kB, in which few pages are unused; else the order
    of 16 kB.
    """
    good = [order for order, n in whole.large.items() if whole.unused[order] <= MUCH_UNUSED * n]
    return max([SMALLEST, *(order for order in good if order <= USUAL)])
