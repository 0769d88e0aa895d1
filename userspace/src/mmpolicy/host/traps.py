# SPDX-License-Identifier: GPL-2.0
"""Detect settings of huge pages that have another effect than users expect."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from mmpolicy.errors import Error
from mmpolicy.host.evidence import THP, size_folders
from mmpolicy.host.files import Tree
from mmpolicy.host.knobs import chosen
from mmpolicy.host.machine import hardware_of

BOOT_NEVER = 512 << 20  # bytes of memory below which a booting kernel sets huge pages to never
PMD = f"{THP}/hugepages-2048kB/enabled"
KSM = "/sys/kernel/mm/ksm"
TUNED = "/etc/tuned/active_profile"
TUNED_PLACES = ("/etc/tuned", "/etc/tuned/profiles", "/usr/lib/tuned", "/usr/lib/tuned/profiles")
SETS = re.compile(r"^\s*transparent_hugepages?\s*=\s*(\w+)", re.MULTILINE)
INCLUDES = re.compile(r"^\s*include\s*=\s*([\w-]+)", re.MULTILINE)
DEEP = 5  # largest depth of TuneD profiles that include each other


class Trap(NamedTuple):
    """A misleading setting: the fact, and how to mend it."""

    text: str
    next_step: str


def traps(tree: Tree) -> list[Trap]:
    """Return the misleading settings of this host."""
    return [*_command_line(tree), *_little_memory(tree), *_tuned(tree), *_ksm(tree)]


def _read(tree: Tree, path: str) -> str:
    try:
        return tree.read(path) if tree.exists(path) else ""
    except Error:
        return ""


def _enabled(tree: Tree) -> str:
    return chosen(_read(tree, f"{THP}/enabled"))


def _command_line(tree: Tree) -> Iterator[Trap]:
    """Detect folio sizes that are "never" because the boot parameter thp_anon= does not name them.

    Without the parameter, 2 MB is "inherit".
    """
    words = [word for word in _read(tree, "/proc/cmdline").split() if word.startswith("thp_anon=")]
    named = words and re.search("2M|2048K", words[-1])
    if words and not named and chosen(_read(tree, PMD)) == "never" != _enabled(tree):
        text = f"{words[-1]} on the command line of the kernel has set 2 MB to never, so"
        text += f" {THP}/enabled has no effect on 2 MB pages"
        yield Trap(
            text,
            "add 2M:inherit to thp_anon= on the command line of the kernel; until then, "
            f"echo inherit >{PMD}",
        )


def _little_memory(tree: Tree) -> Iterator[Trap]:
    memory = hardware_of(tree).memory
    chose = "transparent_hugepage=" in _read(tree, "/proc/cmdline")
    if memory and memory < BOOT_NEVER and _enabled(tree) == "never" and not chose:
        text = (
            f"huge pages are off (never), as this host has {memory >> 20} MB of memory, "
            "and the kernel turns them off below 512 MB"
        )
        yield Trap(
            text, f"echo madvise >{THP}/enabled turns them on for programs that ask for huge pages"
        )


def _tuned(tree: Tree) -> Iterator[Trap]:
    """Detect that TuneD sets `enabled` to never while some sizes are still set to always."""
    profile = _read(tree, TUNED)
    word = next((found for name in profile.split() if (found := _sets(tree, name))), "")
    modes = {size >> 10: chosen(_read(tree, f"{folder}/enabled"))
             for size, folder in size_folders(tree).items()}  # fmt: skip
    rest = [f"{size} kB" for size, mode in modes.items() if mode == "always"]
    if word == "never" and rest:
        text = (
            f"the TuneD profile {profile} sets transparent_hugepage to never, but the "
            f"folio sizes {', '.join(rest)} are still set to always"
        )
        yield Trap(
            text,
            f"echo inherit >{THP}/hugepages-SIZEkB/enabled turns a size off; keep "
            "always for the sizes that you want",
        )


def _sets(tree: Tree, profile: str, depth: int = DEEP) -> str:
    """Return the value that a TuneD profile, or a profile that it includes, writes to `enabled`."""
    files = [f"{place}/{profile}/tuned.conf" for place in TUNED_PLACES]
    text = next(filter(None, (_read(tree, file) for file in files)), "")
    if found := SETS.search(text):
        return found[1]
    included = INCLUDES.search(text)
    return _sets(tree, included[1], depth - 1) if included and depth else ""


def _ksm(tree: Tree) -> Iterator[Trap]:
    merged = _read(tree, f"{KSM}/pages_sharing")
    if _read(tree, f"{KSM}/run") == "1" and merged not in ("", "0"):
        text = f"KSM has merged {merged} pages, and splits each large folio that has one of them"
        yield Trap(text, f"echo 2 >{KSM}/run undoes the merging, if large folios matter more")
