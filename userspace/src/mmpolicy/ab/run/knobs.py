# SPDX-License-Identifier: GPL-2.0
"""Arms that set knobs of the kernel: they need no module, and take turns, as knobs are
host-wide.
"""

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
    """The knobs of the kernel that the arms of an experiment set. A watchdog process writes them,
    so that it can restore them if the run is killed.
    """

    def __init__(
        self, tree: Tree, before: Values, arms: dict[str, Values], lease_s: float, tell: Tell,
        guarded: bool = False,
    ) -> None:  # fmt: skip
        self.tree = tree
        self.before = before
        self.lease_s = lease_s
        self.tell = tell
        self.guarded = guarded  # True: start a watchdog even if the arms set no knob
        self.look: Callable[[], None] = lambda: None  # raises an error if the run has to end
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
        """Yield the writes that a run would make to enter each arm in turn, for a dry run."""
        now = dict(self.before)
        for number, arm in enumerate(self.arms.values()):
            for path, value in arm.items():
                if value != now[path] or number:
                    yield Step(path, value, now[path], value)
                now[path] = value

    def set_up(self) -> None:
        """Start the watchdog, and write the values of each arm once, so that an invalid value is
        found before the first block.
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
        """Let the watchdog write the knobs of an arm."""
        if self.watchdog:
            self.watchdog.ask({"go": self.arms[arm]})

    def renew(self) -> None:
        """Renew the lease of the watchdog; raise StoppedError if another program has set one of the
        knobs.
        """
        if self.watchdog:
            self.watchdog.ask({})

    def restore(self) -> str:
        """Let the watchdog restore the former values, and end it; return a warning, or ""."""
        if not self.watchdog:
            return ""
        watchdog, self.watchdog = self.watchdog, None
        return watchdog.end()
