# SPDX-License-Identifier: GPL-2.0
"""Arms that set the kernel's own knobs: they need no module, and take turns on the whole host."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mmpolicy.ab.design import Block
from mmpolicy.ab.run.keeper import Keeper
from mmpolicy.ab.run.watchdog import Tell, Watchdog
from mmpolicy.errors import Error, Exit
from mmpolicy.host.files import Tree
from mmpolicy.host.knobs import Values
from mmpolicy.host.step import Step


class Knobs:
    """The knobs of an experiment, changed by a watchdog process."""

    def __init__(
        self, tree: Tree, before: Values, arms: dict[str, Values], lease_s: float, tell: Tell,
        guarded: bool = False,
    ) -> None:  # fmt: skip
        self.tree = tree
        self.before = before
        self.lease_s = lease_s
        self.tell = tell
        self.guarded = guarded  # start a watchdog even if no knob is set
        self.look: Callable[[], None] = lambda: None  # raises an error if the run must end
        taken = sorted({path for each in arms.values() for path in each})
        self.taken = {path: before[path] for path in taken}
        self.arms = {arm: self.taken | each for arm, each in arms.items()}
        self.watchdog: Watchdog | None = None
        for path in taken:
            if not tree.writable(path):
                text = f"no permission to write {tree.real(path)}"
                raise Error(
                    text, Exit.DENIED, "run the command as root on the host, not in a container"
                )

    def rehearsal(self) -> Iterator[Step]:
        """Yield the writes of each arm that change a value."""
        now = dict(self.before)
        for number, arm in enumerate(self.arms.values()):
            for path, value in arm.items():
                if value != now[path] or number:
                    yield Step(path, value, now[path], value)
                now[path] = value

    def set_up(self) -> None:
        """Start the watchdog, and write each value once, so that an invalid value fails before the
        first block.
        """
        if self.guarded or self.taken:
            keeper = Keeper(self.tree, self.taken)
            self.watchdog = Watchdog(keeper, self.lease_s, self.tell, self.look)
            arms = list(self.arms.values())
            for values in (*arms, arms[0]):
                self.look()
                self.watchdog.ask({"learn": values})

    def enter(self, block: Block) -> None:
        self.take(next(iter(self.arms)) if block.phase == "aa" else block.arm)

    def take(self, arm: str) -> None:
        """Write the knobs of an arm."""
        if self.watchdog:
            self.watchdog.ask({"go": self.arms[arm]})

    def renew(self) -> None:
        """Renew the lease of the watchdog, which also checks that no other program
        has set a knob.
        """
        if self.watchdog:
            self.watchdog.ask({})

    def restore(self) -> str:
        """Restore the former values. Return a warning, or ""."""
        if not self.watchdog:
            return ""
        watchdog, self.watchdog = self.watchdog, None
        return watchdog.end()
