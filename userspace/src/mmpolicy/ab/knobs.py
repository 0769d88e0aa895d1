# SPDX-License-Identifier: GPL-2.0
"""Arms that are knobs of the kernel itself: no module is needed, and the whole host takes turns."""

from collections.abc import Iterator

from mmpolicy.ab.design import Block
from mmpolicy.ab.keeper import Keeper
from mmpolicy.ab.sources import ARMS
from mmpolicy.ab.watchdog import Tell, Watchdog
from mmpolicy.errors import Error, Exit
from mmpolicy.host.files import Tree
from mmpolicy.host.knobs import Values


class Knobs:
    """The knobs of an experiment, under the eyes of a watchdog."""

    def __init__(
        self, tree: Tree, before: Values, arms: dict[str, Values], lease_s: float, tell: Tell
    ) -> None:
        self.tree = tree
        self.before = before
        self.lease_s = lease_s
        self.tell = tell
        taken = sorted({path for each in arms.values() for path in each})
        self.arms = {
            arm: {path: each.get(path, before[path]) for path in taken}
            for arm, each in arms.items()
        }
        self.watchdog: Watchdog | None = None
        for path in taken:
            if not tree.writable(path):
                text = f"no permission to write {tree.real(path)}"
                raise Error(text, Exit.DENIED, "run it as root, not in a container")

    def rehearsal(self) -> Iterator[tuple[str, str]]:
        """Yield path and value of the writes of each arm, where it differs from what is now."""
        for arm in ARMS:
            for path, value in self.arms[arm].items():
                if value != self.before[path] or arm == ARMS[1]:
                    yield path, value

    def set_up(self) -> None:
        """Begin. Take each value once: the kernel refuses now what it does not take."""
        control, treatment = (self.arms[arm] for arm in ARMS)
        if control:
            keeper = Keeper(self.tree, {path: self.before[path] for path in control})
            self.watchdog = Watchdog(keeper, self.lease_s, self.tell)
            for values in (control, treatment, control):
                self.watchdog.ask({"learn": values})

    def enter(self, block: Block) -> None:
        """Begin a block."""
        if self.watchdog:
            arm = ARMS[0] if block.phase == "aa" else block.arm
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
