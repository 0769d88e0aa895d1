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
# a function of TRACED with a direct call, and the function that is called
CALLS = re.compile(r"^(\S+) .*\n\tdirect-->(\S+?)\+", re.MULTILINE)
OURS = "mmp_"


class Hooked(NamedTuple):
    """A kernel function that is hooked while any profile has a policy at its point."""

    point: str
    function: str


def hooked_functions(tree: Tree) -> list[Hooked]:
    """Return all functions that the module hooks; [] on a kernel with the module's hooks."""
    return [Hooked(*line.split()) for line in tree.read(HOOKED).splitlines()]


def _livepatches(tree: Tree) -> dict[str, list[str]]:
    """Return the kernel functions that livepatches replace, with the names of the livepatches."""
    found: dict[str, list[str]] = {}
    for patch in tree.dirs(LIVEPATCHES) if tree.is_dir(LIVEPATCHES) else []:
        path = f"{LIVEPATCHES}/{patch}/vmlinux"
        for name in tree.dirs(path) if tree.is_dir(path) else []:
            found.setdefault(name.partition(",")[0], []).append(f"livepatch {patch}")
    return found


def others(tree: Tree) -> dict[str, list[str]]:
    """Return the functions hooked by the module that livepatches or BPF programs also use, with
    the names of these users.
    """
    found = _livepatches(tree)
    # only livepatches are found without tracefs, or without permission to read it
    with suppress(Error):
        for function, entry in CALLS.findall(tree.read(TRACED)):
            if not entry.startswith(OURS):
                found.setdefault(function, []).append(entry)
    names = {each.function for each in hooked_functions(tree)}
    return {function: owners for function, owners in found.items() if function in names}
