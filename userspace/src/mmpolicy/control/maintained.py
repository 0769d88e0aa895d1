# SPDX-License-Identifier: GPL-2.0
"""The `maintain` that runs on this host: one at a time, and its work, for other verbs to show.

It keeps a record while it holds a lock. The kernel drops the lock when it dies, however that
happens, and a record without the lock counts for nothing.
"""

from __future__ import annotations

from typing import Any

from mmpolicy.host.files import Tree

LOCK = "/run/mmpolicy/maintain.lock"
LIVE = "/run/mmpolicy/maintain.json"
HOLDER = "maintain, pid "


def live(tree: Tree) -> dict[str, Any]:
    """Return the record of the one that runs; empty if none does."""
    if not tree.holder(LOCK).startswith(HOLDER):
        return {}
    return tree.record(LIVE)


def line_of(found: dict[str, Any]) -> str:
    """Return a record in one line."""
    services = found["services"]
    sums = {name: sum(each[name] for each in services)
            for name in ("collapsed_kib", "given_back_kib", "again")}  # fmt: skip
    waits = f"; waits: {found['waits']}" if found["waits"] else ""
    number = f"{len(services)} service{'s' * (len(services) != 1)}"
    return (
        f"maintain: pid {found['pid']}, {number}: "
        f"{sums['collapsed_kib'] >> 10} MiB in 2 MB pages, {sums['given_back_kib'] >> 10} MiB "
        f"given back, {sums['again']} times 2 MB again{waits}"
    )
