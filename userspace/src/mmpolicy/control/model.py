# SPDX-License-Identifier: GPL-2.0
"""Profiles, points, policies and knobs of the module, as its control tree shows them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from mmpolicy.control.keys import PROFILES, Setting, choice
from mmpolicy.errors import LOAD, Error, Exit, pick
from mmpolicy.host.files import CONTROL, MODULE_DIR, Tree
from mmpolicy.host.knobs import chosen

KNOBS = f"{CONTROL}/knobs"
KNOWN_ABI = ("2",)

Knobs = dict[str, Setting]  # knobs of a policy or of a point, by name


class About(NamedTuple):
    """The module's description of a knob: bounds, default, unit and meaning."""

    min: int
    max: int
    default: int
    unit: str
    meaning: str

    @property
    def range(self) -> str:
        """Return the bounds of the knob as text, such as `0..9`."""
        return f"{self.min}..{self.max}"


def about(tree: Tree, knob: Setting) -> About | None:
    """Return the module's description of a knob; None if the module is too old to have one."""
    path = f"{KNOBS}/{knob.inside}"
    if not tree.is_dir(path):
        return None
    texts = {name: tree.read(f"{path}/{name}") for name in About._fields}
    low, high, default = (int(texts.pop(name)) for name in ("min", "max", "default"))
    return About(low, high, default, **texts)


def is_as_created(tree: Tree, key: Setting, value: str) -> bool:
    """Return whether `value` is the value that this setting has in a profile that was just
    created.
    """
    told = about(tree, key)
    return value == (str(told.default) if told else key.off)


class Point(NamedTuple):
    """One policy point of the module in one profile: its active policy, all its policies, and their
    knobs.
    """

    profile: str
    name: str
    active: str
    policies: tuple[str, ...]
    common: Knobs
    knobs: dict[str, Knobs]  # knobs of each policy, by the policy's name

    @property
    def choice(self) -> Setting:
        """Return the setting that chooses the policy of this point."""
        return choice(self.profile, self.name)

    def settings(self) -> Iterator[Setting]:
        """Yield the knobs of the point and of all its policies."""
        for knobs in (self.common, *self.knobs.values()):
            yield from knobs.values()

    def about(self, tree: Tree) -> dict[str, About]:
        """Return the module's description of each knob, by its path below the point."""
        found = {knob.below: about(tree, knob) for knob in self.settings()}
        return {name: told for name, told in found.items() if told}

    def find_knob(self, policy: str, knob: str) -> Setting:
        """Return a knob by name: a knob of the policy, or else one that all policies of the point
        share.
        """
        found = self.common | self.knobs.get(policy, {})
        owners = [owner for owner, knobs in self.knobs.items() if knob in knobs]
        if knob not in found and owners:
            text = f"'{knob}' is not a knob of {self.name}/{policy}, but of {', '.join(owners)}"
            hint = f"mmpolicy set {self.name} {owners[0]} {knob}=VALUE"
            raise Error(text, Exit.USAGE, hint)
        return found[pick(f"knob of {self.name}/{policy}", knob, found)]


def active_of(tree: Tree, path: str) -> tuple[str, tuple[str, ...]]:
    """Return the active policy and all policies in a file with a text such as `stock [fixed]
    never`.
    """
    words = tree.read(path).split()
    marked = [word.strip("[]") for word in words if word.startswith("[")]
    if len(marked) != 1:
        text = f"{tree.real(path)} does not mark one active policy by [ ]: '{' '.join(words)}'"
        raise Error(text, Exit.FAILED, "mmpolicy doctor")
    return marked[0], tuple(word.strip("[]") for word in words)


def lacking(tree: Tree, point: str, policy: str = "") -> str:
    """Return why this kernel cannot have a point, or one of its policies; "" if it can."""
    path = f"{CONTROL}/policies/{point}/{policy}" if policy else f"{CONTROL}/points/{point}"
    return tree.read(path).partition("unavailable: ")[2] if tree.exists(path) else ""


def lacking_policies(tree: Tree, point: Point) -> dict[str, str]:
    """Return the policies of a point that this kernel cannot have, with the reasons."""
    found = {name: lacking(tree, point.name, name) for name in point.policies}
    return {name: reason for name, reason in found.items() if reason}


def check_loaded(tree: Tree) -> str:
    """Return the state of the module, such as `stock` or `active`; raise an error if it is not
    loaded.
    """
    if tree.is_dir(CONTROL):
        return tree.read(f"{CONTROL}/state")
    loaded = tree.exists(MODULE_DIR)
    text = (
        f"no {tree.real(CONTROL)}: the module is {'loaded, but broken' if loaded else 'not loaded'}"
    )
    hint = "mmpolicy unload, mmpolicy load, then look at dmesg" if loaded else LOAD
    raise Error(text, Exit.LACKING, hint)


def lease_of(tree: Tree) -> dict[str, int]:
    """Return length and remaining time of the lease in ms; {} if the module has no leases."""
    names = ("lease_ms", "lease_left_ms") if tree.exists(f"{CONTROL}/lease_ms") else ()
    return {name: int(tree.read(f"{CONTROL}/{name}")) for name in names}


def check_abi(tree: Tree) -> str:
    """Return the ABI number of the loaded module; raise an error for an unknown one."""
    abi = tree.read(f"{CONTROL}/abi")
    if abi not in KNOWN_ABI:
        text = (
            f"the loaded module has ABI {abi} ({tree.real(CONTROL)}/abi), and this command "
            f"knows {', '.join(KNOWN_ABI)}"
        )
        raise Error(text, Exit.LACKING, "install the version of mmpolicy that came with the module")
    return abi


class Control:
    """Reads the control tree of a loaded module."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.state = check_loaded(tree)
        check_abi(tree)

    def profiles(self) -> list[str]:
        """Return the names of all profiles."""
        return self.tree.dirs(PROFILES)

    def point_names(self, profile: str) -> list[str]:
        """Return the names of the points of a profile."""
        profiles = self.profiles()
        if profile not in profiles:
            check_loaded(self.tree)  # the module may have been unloaded meanwhile
        return self.tree.dirs(f"{PROFILES}/{pick('profile', profile, profiles)}")

    def points(self, profile: str) -> Iterator[Point]:
        """Yield every point of a profile."""
        for name in self.point_names(profile):
            yield self._read_point(profile, name)

    def point(self, profile: str, name: str) -> Point:
        """Return one point of a profile."""
        return self._read_point(profile, pick("point", name, self.point_names(profile)))

    def _read_point(self, profile: str, name: str) -> Point:
        path = f"{PROFILES}/{profile}/{name}"
        active, policies = active_of(self.tree, choice(profile, name).path)
        owners = self.tree.dirs(path)
        files = [file for file in self.tree.names(path) if file not in (*owners, "policy")]
        common = {file: Setting(profile, name, "", file) for file in files}
        knobs = {
            owner: {
                file: Setting(profile, name, owner, file)
                for file in self.tree.names(f"{path}/{owner}")
            }
            for owner in owners
        }
        return Point(profile, name, active, policies, common, knobs)

    def values(self, knobs: Knobs) -> dict[str, int | str]:
        """Return the value of each knob, as a number where it is one."""
        return {name: _number(chosen(self.tree.read(knob.path))) for name, knob in knobs.items()}


def _number(text: str) -> int | str:
    try:
        return int(text)
    except ValueError:
        return text
