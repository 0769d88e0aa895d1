# SPDX-License-Identifier: GPL-2.0
"""The record of the `maintain` process of this host, by which other commands show its work.

Only one `maintain` process runs at a time. It updates its record while it holds a lock, which the
kernel releases when the process ends. If no process holds the lock, the record is out of date, and
ignored.
"""

from __future__ import annotations

from typing import Any

from mmpolicy.host.files import Tree

LOCK = "/run/mmpolicy/maintain.lock"
LIVE = "/run/mmpolicy/maintain.json"
HOLDER = "maintain, pid "


def live(tree: Tree) -> dict[str, Any]:
    """Return the record of the running `maintain` process; {} if none runs."""
    if not tree.holder(LOCK).startswith(HOLDER):
        return {}
    return tree.record(LIVE)


def line_of(found: dict[str, Any]) -> str:
    """Return the record of a `maintain` process as one line of text."""
    services = found["services"]
    sums = {name: sum(each[name] for each in services)
            for name in ("collapsed_kib", "given_back_kib", "again")}  # fmt: skip
    waits = f"; it waits: {found['waits']}" if found["waits"] else ""
    number = f"{len(services)} service{'s' * (len(services) != 1)}"
    return (
        f"maintain: pid {found['pid']}, {number}: {sums['collapsed_kib'] >> 10} MiB "
        f"put into 2 MB pages, {sums['given_back_kib'] >> 10} MiB given back, "
        f"{sums['again']} times the same 2 MB were worked on again{waits}"
    )
