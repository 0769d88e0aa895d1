# SPDX-License-Identifier: GPL-2.0
"""List the kernel functions that the module hooks, and their other users."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import NamedTuple

from mmpolicy.errors import Error
from mmpolicy.host.files import CONTROL, Tree

HOOKED = f"{CONTROL}/hooked_functions"
LIVEPATCHES = "/sys/kernel/livepatch"
TRACED = "/sys/kernel/tracing/enabled_functions"
CALLS = re.compile(r"^(\S+) .*\n\tdirect-->(\S+?)\+", re.MULTILINE)  # who calls whom first
OURS = "mmp_"


class Hooked(NamedTuple):
    """A kernel function that is hooked while a policy is chosen at its point."""

    point: str
    function: str


def hooked_functions(tree: Tree) -> list[Hooked]:
    """Return all hooked functions; empty if the kernel has hooks of its own."""
    return [Hooked(*line.split()) for line in tree.read(HOOKED).splitlines()]


def _livepatches(tree: Tree) -> dict[str, list[str]]:
    """Return the functions of the kernel that livepatches replace, with the livepatches."""
    found: dict[str, list[str]] = {}
    for patch in tree.dirs(LIVEPATCHES) if tree.is_dir(LIVEPATCHES) else []:
        path = f"{LIVEPATCHES}/{patch}/vmlinux"
        for name in tree.dirs(path) if tree.is_dir(path) else []:
            found.setdefault(name.partition(",")[0], []).append(f"livepatch {patch}")
    return found


def others(tree: Tree) -> dict[str, list[str]]:
    """Return the hooked functions that livepatches or BPF programs use, too."""
    found = _livepatches(tree)
    with suppress(Error):  # Without tracefs, or permission to read it, only livepatches are found.
        for function, entry in CALLS.findall(tree.read(TRACED)):
            if not entry.startswith(OURS):
                found.setdefault(function, []).append(entry)
    names = {each.function for each in hooked_functions(tree)}
    return {function: owners for function, owners in found.items() if function in names}
