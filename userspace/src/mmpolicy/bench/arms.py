# SPDX-License-Identifier: GPL-2.0
"""The arms of a bench: settings of the host, of the command alone, or policies of the module.

Knobs of the kernel are set for the whole host while a run takes, by the watchdog of experiments.
A policy is in a profile of its own, to which only the command is bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from mmpolicy.ab.arms import STOCK, Settings, settings_of_arm, split_arm
from mmpolicy.ab.run.knobs import Knobs
from mmpolicy.control.keys import PROFILES, Key, Profile, State
from mmpolicy.control.model import Control
from mmpolicy.control.state import (
    bindings_of,
    create,
    go_to,
    perform,
    plan,
    profiles_of,
    read_profile,
    read_state,
    settings_of,
)
from mmpolicy.errors import Error, Exit
from mmpolicy.host.files import CONTROL, Tree
from mmpolicy.host.knobs import Values

AS_IS = "as-is"
NO_THP = "no-thp"
COLLAPSE = "collapse"
OUR_PROFILES = "bench-"  # and a number
LEASE_S = 30.0  # the watchdog puts the knobs back if the command is silent for so long


@dataclass(frozen=True)
class Arm:
    """One setting."""

    name: str
    knobs: Values = field(default_factory=dict)
    settings: Settings = field(default_factory=dict)
    profile: str = ""  # of the policies, if there are any
    no_thp: bool = False  # prctl(PR_SET_THP_DISABLE) for the command alone
    collapse: bool = False  # the memory of the command that is used in full

    def told(self) -> dict[str, str]:
        """Return its settings, by name."""
        own = {key.inside: value for key, value in self.settings.items()}
        prctl = {"prctl": "PR_SET_THP_DISABLE"} if self.no_thp else {}
        return own | self.knobs | prctl | ({"collapse": "2 MB"} if self.collapse else {})


def arms_of(tree: Tree, now: Values, texts: Sequence[str]) -> list[Arm]:
    """Return the arms that an operator has given, as ARM or `NAME: ARM`.

    The first is what others are compared with; a single one is compared with the host as it is.
    """
    given = [AS_IS, *texts] if len(texts) < 2 else list(texts)
    arms = []
    for number, text in enumerate(given):
        name, _, rest = text.rpartition(": ")
        before = given[:number].count(text)
        again = f" #{before + 1}" if before else ""
        arms.append(_arm(tree, now, rest.strip(), (name or rest) + again, number))
    return arms


def _arm(tree: Tree, now: Values, text: str, name: str, number: int) -> Arm:
    if text in (AS_IS, NO_THP, COLLAPSE):
        return Arm(name, no_thp=text == NO_THP, collapse=text == COLLAPSE)
    rest, knobs = split_arm(tree, now, text)
    if not rest or (rest == STOCK and not tree.is_dir(CONTROL)):
        return Arm(name, knobs)
    settings = settings_of_arm(Control(tree), read_state(tree), rest)
    return Arm(name, knobs, settings, f"{OUR_PROFILES}{number}")


class Arms:
    """The arms in force, one after the other, and the way back."""

    def __init__(
        self, tree: Tree, now: Values, arms: Sequence[Arm], tell: Callable[[str], object]
    ) -> None:
        self.tree = tree
        self.arms = arms
        self.with_policies = [arm for arm in arms if arm.profile]

        def lost(note: str) -> None:
            """Tell of the end of a command that was killed, with its policies gone."""
            with suppress(Error):
                drop_profiles(tree)
            tell(note)

        own = {arm.name: arm.knobs for arm in arms}
        self.knobs = Knobs(tree, now, own, LEASE_S, lost, guarded=bool(self.with_policies))

    @property
    def changes_host(self) -> bool:
        """Tell if anything but the command itself is changed."""
        return bool(self.with_policies) or any(arm.knobs for arm in self.arms)

    def set_up(self) -> None:
        """Create the profiles and write every setting once, so that a bad value fails now."""
        if self.changes_host:
            drop_profiles(self.tree)  # of a bench that was killed
        self.knobs.set_up()
        for arm in self.with_policies:
            perform(self.tree, create(arm.profile))
            self._fill(arm)

    def _fill(self, arm: Arm) -> None:
        now = read_profile(Control(self.tree), arm.profile)
        own: State = {key.of(arm.profile): value for key, value in arm.settings.items()}
        if of_host := [key for key in arm.settings if key.of(arm.profile) not in now]:
            text = f"{of_host[0].inside} is of the whole host, and not of one command"
            raise Error(text, Exit.USAGE, "mmpolicy ab run --design switchback")
        for write in plan(now, now | own):
            perform(self.tree, write)

    def enter(self, arm: Arm) -> None:
        """Set the knobs of an arm."""
        self.knobs.take(arm.name)

    def bind(self, arm: Arm, pid: int) -> None:
        """Give a process, and all that it starts, the policies of an arm."""
        if arm.profile:
            self.tree.write(f"{PROFILES}/{arm.profile}/pids", str(pid))

    def restore(self) -> str:
        """Restore everything; return messages about it."""
        note = self.knobs.restore()
        if self.with_policies:
            drop_profiles(self.tree)
        return note


def drop_profiles(tree: Tree) -> None:
    """Delete the profiles of a bench, whatever is still bound to them."""
    if not tree.is_dir(PROFILES):
        return
    now = read_state(tree)
    ours = [name for name in profiles_of(now) if name.startswith(OUR_PROFILES)]
    gone: set[Key] = set()
    for name in ours:
        gone |= {Profile(name), *settings_of(now, name), *bindings_of(now, name)}
    go_to(tree, {key: now[key] for key in now if key not in gone}, now)
