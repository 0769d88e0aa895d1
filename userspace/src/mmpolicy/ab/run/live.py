# SPDX-License-Identifier: GPL-2.0
"""Publish the state of a run in a file for other commands, as long as the run lasts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mmpolicy.ab.design import Block
from mmpolicy.ab.samples import storable
from mmpolicy.ab.sources import ARMS
from mmpolicy.control.experiment import LIVE
from mmpolicy.errors import Error
from mmpolicy.host.files import Tree

# If only the remaining time or values of guards change, the file with the live state is written at
# most once in this many seconds.
EVERY_S = 1.0
READABLE = 0o644


class Live:
    """Publishes the state of a run in a file, for other commands: when the state changes, and at
    least every EVERY_S seconds.
    """

    def __init__(self, tree: Tree, about: Mapping[str, Any]) -> None:
        self.tree = tree
        self.about = dict(about)
        self.told: dict[str, Any] = {}
        self.next = 0.0

    def tell(self, now: float, **what: Any) -> None:
        """Update the published state of a run, and write it to the file if it is due.

        now: seconds since the run began. what: fields of the state. If only the remaining time or
        values of guards have changed, the write waits until EVERY_S seconds have passed.
        """
        changed = any(self.told.get(name) != value for name, value in what.items()
                      if name not in ("left_s", "guards"))  # fmt: skip
        self.told |= what
        if changed or now >= self.next:
            self.next = now + EVERY_S
            try:
                self.tree.keep(LIVE, json.dumps(storable(self.about | self.told)), READABLE)
            except Error:  # the run goes on even if its state cannot be published
                return

    def end(self) -> None:
        if self.tree.exists(LIVE):
            self.tree.drop(LIVE)


def place_of(block: Block) -> dict[str, Any]:
    """Return phase, pair, arm and number of a block. Blocks of the A/A phase belong to the
    control.
    """
    arm = ARMS[0] if block.phase == "aa" else block.arm or "both"
    return {"phase": block.phase, "pair": block.pair, "arm": arm, "block": block.number + 1}
