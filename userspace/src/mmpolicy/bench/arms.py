# SPDX-License-Identifier: GPL-2.0
"""The arms of `bench`: settings of the host, of the command alone, or policies of the module.

The kernel's own knobs are set for the whole host during a run, by the watchdog of experiments. A
policy is set in a profile for this purpose, to which only the command is bound.
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
OUR_PROFILES = "bench-"  # beginning of the names of profiles that `bench` creates; a number follows
# seconds without a message from the command after which the watchdog restores the knobs
LEASE_S = 30.0


@dataclass(frozen=True)
class Arm:
    """One of the compared groups of settings, under which `bench` runs the command."""

    name: str
    knobs: Values = field(default_factory=dict)
    settings: Settings = field(default_factory=dict)
    profile: str = ""  # profile with the policies of the arm; "" without policies
    no_thp: bool = False  # whether to call prctl(PR_SET_THP_DISABLE) for the command
    collapse: bool = False  # whether to collapse memory of the command that is fully used

    def told(self) -> dict[str, str]:
        """Return all settings of the arm, by name."""
        own = {key.inside: value for key, value in self.settings.items()}
        prctl = {"prctl": "PR_SET_THP_DISABLE"} if self.no_thp else {}
        return own | self.knobs | prctl | ({"collapse": "2 MB"} if self.collapse else {})


def arms_of(tree: Tree, now: Values, texts: Sequence[str]) -> list[Arm]:
    """Return the arms that the user has given, as ARM or `NAME: ARM`.

    All arms are compared with the first one; a single arm is compared with the host as it is.
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
    """Applies the settings of one arm after another, and restores the former settings."""

    def __init__(
        self, tree: Tree, now: Values, arms: Sequence[Arm], tell: Callable[[str], object]
    ) -> None:
        self.tree = tree
        self.arms = arms
        self.with_policies = [arm for arm in arms if arm.profile]

        def lost(note: str) -> None:
            """Print that the command was killed, and delete the profiles that it had created."""
            with suppress(Error):
                drop_profiles(tree)
            tell(note)

        own = {arm.name: arm.knobs for arm in arms}
        self.knobs = Knobs(tree, now, own, LEASE_S, lost, guarded=bool(self.with_policies))

    @property
    def changes_host(self) -> bool:
        """Return whether any arm changes settings of the host or the module."""
        return bool(self.with_policies) or any(arm.knobs for arm in self.arms)

    def set_up(self) -> None:
        """Create the profiles, and write every setting once, so that an invalid value fails before
        the first run.
        """
        if self.changes_host:
            drop_profiles(self.tree)  # profiles of a bench that was killed
        self.knobs.set_up()
        for arm in self.with_policies:
            perform(self.tree, create(arm.profile))
            self._fill(arm)

    def _fill(self, arm: Arm) -> None:
        now = read_profile(Control(self.tree), arm.profile)
        own: State = {key.of(arm.profile): value for key, value in arm.settings.items()}
        if of_host := [key for key in arm.settings if key.of(arm.profile) not in now]:
            text = (
                f"{of_host[0].inside} is a setting of the whole host, and an arm of bench "
                "may only set those of its command"
            )
            raise Error(
                text,
                Exit.USAGE,
                "compare settings of the whole host by mmpolicy ab run --design switchback",
            )
        for write in plan(now, now | own):
            perform(self.tree, write)

    def enter(self, arm: Arm) -> None:
        """Set the kernel's own knobs to the values of an arm."""
        self.knobs.take(arm.name)

    def bind(self, arm: Arm, pid: int) -> None:
        """Bind a process, and all processes that it starts, to the policies of an arm."""
        if arm.profile:
            self.tree.write(f"{PROFILES}/{arm.profile}/pids", str(pid))

    def restore(self) -> str:
        """Restore all settings; return a warning, or ""."""
        note = self.knobs.restore()
        if self.with_policies:
            drop_profiles(self.tree)
        return note


def drop_profiles(tree: Tree) -> None:
    """Delete the profiles that `bench` has created, and the bindings to them."""
    if not tree.is_dir(PROFILES):
        return
    now = read_state(tree)
    ours = [name for name in profiles_of(now) if name.startswith(OUR_PROFILES)]
    gone: set[Key] = set()
    for name in ours:
        gone |= {Profile(name), *settings_of(now, name), *bindings_of(now, name)}
    go_to(tree, {key: now[key] for key in now if key not in gone}, now)
