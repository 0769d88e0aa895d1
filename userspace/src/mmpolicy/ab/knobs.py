# SPDX-License-Identifier: GPL-2.0
"""Arms that are knobs of the kernel itself: no module is needed, and the whole host takes turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mmpolicy.ab.design import Block
from mmpolicy.ab.keeper import Keeper
from mmpolicy.ab.watchdog import Tell, Watchdog
from mmpolicy.errors import Error, Exit
from mmpolicy.host.files import Tree
from mmpolicy.host.knobs import Values
from mmpolicy.host.step import Step


class Knobs:
    """The knobs of an experiment, under the eyes of a watchdog."""

    def __init__(
        self, tree: Tree, before: Values, arms: dict[str, Values], lease_s: float, tell: Tell,
        guarded: bool = False,
    ) -> None:  # fmt: skip
        self.tree = tree
        self.before = before
        self.lease_s = lease_s
        self.tell = tell
        self.guarded = guarded  # is there a watchdog without any knob, too?
        self.look: Callable[[], None] = lambda: None  # raises where the run is to end
        taken = sorted({path for each in arms.values() for path in each})
        self.taken = {path: before[path] for path in taken}
        self.arms = {arm: self.taken | each for arm, each in arms.items()}
        self.watchdog: Watchdog | None = None
        for path in taken:
            if not tree.writable(path):
                text = f"no permission to write {tree.real(path)}"
                raise Error(text, Exit.DENIED, "run it as root, not in a container")

    def rehearsal(self) -> Iterator[Step]:
        """Yield the writes of each arm, where it differs from what is now."""
        now = dict(self.before)
        for number, arm in enumerate(self.arms.values()):
            for path, value in arm.items():
                if value != now[path] or number:
                    yield Step(path, value, now[path], value)
                now[path] = value

    def set_up(self) -> None:
        """Begin. Take each value once: the kernel refuses now what it does not take."""
        if self.guarded or self.taken:
            keeper = Keeper(self.tree, self.taken)
            self.watchdog = Watchdog(keeper, self.lease_s, self.tell, self.look)
            arms = list(self.arms.values())
            for values in (*arms, arms[0]):
                self.look()
                self.watchdog.ask({"learn": values})

    def enter(self, block: Block) -> None:
        """Begin a block."""
        self.take(next(iter(self.arms)) if block.phase == "aa" else block.arm)

    def take(self, arm: str) -> None:
        """Have the knobs of an arm."""
        if self.watchdog:
            self.watchdog.ask({"go": self.arms[arm]})

    def renew(self) -> None:
        """Tell the watchdog that we are there; find out if somebody else has set a knob."""
        if self.watchdog:
            self.watchdog.ask({})

    def restore(self) -> str:
        """Go back to the values before; return what is to be told about it, if anything is."""
        if not self.watchdog:
            return ""
        watchdog, self.watchdog = self.watchdog, None
        return watchdog.end()
