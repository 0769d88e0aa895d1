# SPDX-License-Identifier: GPL-2.0
"""Policies that are BPF programs, as the module shows them: one in each slot."""

from typing import NamedTuple

from mmpolicy.control.keys import State
from mmpolicy.control.state import profiles_of, settings_of
from mmpolicy.errors import Error, Exit
from mmpolicy.host.files import CONTROL, Tree

SLOTS = f"{CONTROL}/bpf"
UNLOAD_ALL = "mmpolicy policy unload --all"


class Program(NamedTuple):
    """A policy that was loaded."""

    name: str
    point: str
    program: int  # its number, as bpftool shows it
    clamped: int  # answers that were cut
    error: str  # what it reported before it was given up


def check_available(tree: Tree) -> None:
    """Fail if this kernel, or this module, has no policies in BPF."""
    path = f"{SLOTS}/available"
    if not tree.exists(path):
        text = "the loaded module knows no policies in BPF"
        raise Error(text, Exit.LACKING, "mmpolicy unload, mmpolicy load")
    if reason := tree.read(path).partition("unavailable: ")[2]:
        raise Error(f"no policies in BPF: {reason}", Exit.LACKING, "mmpolicy doctor")


def programs(tree: Tree) -> list[Program]:
    """Return the policies that are loaded; nothing without the module, or with an old one."""
    if not tree.is_dir(SLOTS):
        return []
    found = []
    for slot in tree.dirs(SLOTS):
        text = {name: tree.read(f"{SLOTS}/{slot}/{name}") for name in Program._fields}
        if text["name"]:
            numbers = int(text["program"]), int(text["clamped"])
            found.append(Program(text["name"], text["point"], *numbers, text["error"]))
    return sorted(found)


def users_of(state: State, program: Program) -> list[str]:
    """Return the profiles that have a policy, or have it as their shadow."""
    return [
        profile
        for profile in profiles_of(state)
        if any(
            key.point == program.point and not key.policy and value == program.name
            for key, value in settings_of(state, profile).items()
        )
    ]
