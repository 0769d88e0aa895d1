# SPDX-License-Identifier: GPL-2.0
"""What the kernel offers: profiles, points, policies and knobs, all found in the tree."""

from collections.abc import Iterator
from typing import NamedTuple

from mmpolicy.errors import Error, Exit, pick
from mmpolicy.host.files import Tree

MODULE = "mmpolicy"
CONTROL = "/sys/kernel/mmpolicy"
MODULE_DIR = f"/sys/module/{MODULE}"
KNOWN_ABI = ("1",)


class Point(NamedTuple):
    """One decision in one profile: its policies and where its knobs are."""

    profile: str
    name: str
    path: str
    active: str
    policies: tuple[str, ...]
    common: dict[str, str]  # knob -> path
    knobs: dict[str, dict[str, str]]  # policy -> knob -> path

    def find_knob(self, policy: str, knob: str) -> str:
        """Return the path of a knob: the policy's own first, then the point's common ones."""
        found = self.common | self.knobs.get(policy, {})
        owners = [owner for owner, knobs in self.knobs.items() if knob in knobs]
        if knob not in found and owners:
            text = f"'{knob}' is no knob of {self.name}/{policy}, but of {', '.join(owners)}"
            hint = f"mmpolicy set {self.name} {owners[0]} {knob}=VALUE"
            raise Error(text, Exit.USAGE, hint)
        return found[pick(f"knob of {self.name}/{policy}", knob, found)]


def active_of(tree: Tree, path: str) -> tuple[str, tuple[str, ...]]:
    """Return the active policy and all policies of a file like `stock [fixed] never`."""
    words = tree.read(path).split()
    marked = [word.strip("[]") for word in words if word.startswith("[")]
    if len(marked) != 1:
        text = f"{tree.real(path)} marks no active policy: '{' '.join(words)}'"
        raise Error(text, Exit.FAILED, "mmpolicy doctor")
    return marked[0], tuple(word.strip("[]") for word in words)


def chosen(text: str) -> str:
    """Return the choice of a file like `[process] cgroup`, any other text as it is."""
    marked = [word for word in text.split() if word.startswith("[") and word.endswith("]")]
    return marked[0].strip("[]") if len(marked) == 1 else text


def value_of(tree: Tree, path: str) -> str:
    """Return what a setting is now; for a policy file the active one."""
    if path.endswith("/policy"):
        return active_of(tree, path)[0]
    return tree.read(path)


def check_loaded(tree: Tree) -> str:
    """Return the state of the module, such as `stock` or `active`."""
    if tree.is_dir(CONTROL):
        return tree.read(f"{CONTROL}/state")
    loaded = tree.exists(MODULE_DIR)
    text = (
        f"no {tree.real(CONTROL)}: the module is {'loaded, but broken' if loaded else 'not loaded'}"
    )
    hint = "mmpolicy unload, mmpolicy load, then look at dmesg" if loaded else "mmpolicy load"
    raise Error(text, Exit.LACKING, hint)


def lease_of(tree: Tree) -> dict[str, int]:
    """Return the lease and what is left of it, in milliseconds; empty without such a thing."""
    names = ("lease_ms", "lease_left_ms") if tree.exists(f"{CONTROL}/lease_ms") else ()
    return {name: int(tree.read(f"{CONTROL}/{name}")) for name in names}


def check_abi(tree: Tree) -> str:
    """Return the ABI of the loaded module if it is one we know."""
    abi = tree.read(f"{CONTROL}/abi")
    if abi not in KNOWN_ABI:
        text = f"{tree.real(CONTROL)}/abi is {abi}, this tool knows {', '.join(KNOWN_ABI)}"
        raise Error(text, Exit.LACKING, "install the mmpolicy that came with the module")
    return abi


class Control:
    """The control tree of a loaded module."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.state = check_loaded(tree)
        check_abi(tree)

    def profiles(self) -> list[str]:
        """Return the names of all profiles."""
        return self.tree.dirs(f"{CONTROL}/profiles")

    def point_names(self, profile: str) -> list[str]:
        """Return the names of the points of a profile."""
        return self.tree.dirs(f"{CONTROL}/profiles/{pick('profile', profile, self.profiles())}")

    def points(self, profile: str) -> Iterator[Point]:
        """Yield every point of a profile."""
        for name in self.point_names(profile):
            yield self._read_point(profile, name)

    def point(self, profile: str, name: str) -> Point:
        """Return one point of a profile."""
        return self._read_point(profile, pick("point", name, self.point_names(profile)))

    def _read_point(self, profile: str, name: str) -> Point:
        path = f"{CONTROL}/profiles/{profile}/{name}"
        active, policies = active_of(self.tree, f"{path}/policy")
        common = self._files(path)
        common.pop("policy")
        knobs = {policy: self._files(f"{path}/{policy}") for policy in self.tree.dirs(path)}
        return Point(profile, name, path, active, policies, common, knobs)

    def _files(self, path: str) -> dict[str, str]:
        directories = self.tree.dirs(path)
        names = [name for name in self.tree.names(path) if name not in directories]
        return {name: f"{path}/{name}" for name in names}

    def values(self, knobs: dict[str, str]) -> dict[str, int | str]:
        """Return the value of each knob, as a number where it is one."""
        return {name: _number(self.tree.read(path)) for name, path in knobs.items()}


def _number(text: str) -> int | str:
    try:
        return int(text)
    except ValueError:
        return text
