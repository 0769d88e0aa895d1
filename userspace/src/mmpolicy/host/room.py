# SPDX-License-Identifier: GPL-2.0
"""Free memory: 2 MB blocks on each NUMA node, and the room below the limits of cgroups."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import NamedTuple

from mmpolicy.errors import Error
from mmpolicy.host.cgroups import Charged, cgroup_folders
from mmpolicy.host.files import Tree

ZONEINFO, BUDDYINFO = "/proc/zoneinfo", "/proc/buddyinfo"
BLOCK_ORDER = 9
ZONE = re.compile(r"^Node (\d+), zone +(\S+)", re.MULTILINE)
FIGURE = re.compile(r"^ +(?:pages )?(free|high|spanned|managed|start_pfn:?) +(\d+)$", re.MULTILINE)
PROTECTION = re.compile(r"^ +protection: \(.*?(\d+)\)$", re.MULTILINE)
# files with the memory limits of a cgroup, by the file with its usage, for cgroup v2 and v1
LIMITS = {
    "memory.current": ("memory.max", "memory.high"),
    "memory.usage_in_bytes": ("memory.limit_in_bytes",),
}


class Node(NamedTuple):
    """A NUMA node, with sizes in blocks of 2 MB."""

    number: int
    free_blocks: int  # number of blocks that can be allocated without reclaim
    all_blocks: int


class Zone(NamedTuple):
    """A memory zone of a node, with sizes in pages."""

    node: int
    first: int  # number of the zone's first page frame
    spanned: int
    managed: int
    free: int
    # number of pages that programs cannot get: those below the high watermark, and those reserved
    # for lower zones
    kept: int
    blocks: int  # number of free 2 MB blocks


def read_zones(tree: Tree) -> list[Zone]:
    """Return the memory zones of a host; empty if the kernel's files are unreadable."""
    try:
        zoneinfo, buddyinfo = tree.read(ZONEINFO), tree.read(BUDDYINFO)
    except Error:
        return []
    blocks = {}
    for line in buddyinfo.splitlines():
        if head := ZONE.match(line):
            counts = [int(each) for each in line[head.end() :].split()]
            large = enumerate(counts[BLOCK_ORDER:])
            blocks[head[1], head[2]] = sum(number << above for above, number in large)
    parts = list(ZONE.finditer(zoneinfo))
    ends = [*(each.start() for each in parts[1:]), len(zoneinfo)]
    found = []
    for number, head in enumerate(parts):
        figures: dict[str, int] = {}
        for name, value in FIGURE.findall(zoneinfo, head.end(), ends[number]):
            # lines about the per-CPU lists follow with the same names, so only the first line of a
            # name counts
            figures.setdefault(name.rstrip(":"), int(value))
        protection = PROTECTION.search(zoneinfo, head.end(), ends[number])
        found.append(
            Zone(
                int(head[1]), figures.get("start_pfn", 0), figures.get("spanned", 0),
                figures.get("managed", 0), figures.get("free", 0),
                figures.get("high", 0) + int(protection[1] if protection else 0),
                blocks.get((head[1], head[2]), 0),
            )
        )  # fmt: skip
    return found


def number_of(zones: list[Zone], frame: int) -> int | None:
    """Return the number of the node that a page frame belongs to; None if no zone contains it."""
    return next(
        (each.node for each in zones if each.first <= frame < each.first + each.spanned), None
    )


def nodes_in(zones: list[Zone]) -> dict[int, Node]:
    """Return the nodes by number, with the sizes of all their zones."""
    own: dict[int, list[Zone]] = {}
    for zone in zones:
        own.setdefault(zone.node, []).append(zone)
    return {
        number: Node(
            number,
            sum(min(each.blocks, max(each.free - each.kept, 0) >> BLOCK_ORDER) for each in some),
            sum(each.managed for each in some) >> BLOCK_ORDER,
        )
        for number, some in own.items()
    }


def limited_folders(tree: Tree, pid: int) -> list[str]:
    """Return the directories of the cgroups that limit the memory of a process, the
    nearest first.
    """
    try:
        name = PurePosixPath(Charged(tree).name(pid))
        names = [str(each) for each in (name, *name.parents)]
        folders = [folder for each in names for folder in cgroup_folders(tree, each)]
    except Error:  # no cgroup hierarchy is mounted
        return []
    return [each for each in folders if any(tree.exists(f"{each}/{file}") for file in LIMITS)]


def room_in(tree: Tree, folder: str) -> int | None:
    """Return the bytes left below the limit of a cgroup; None without a limit."""
    for current, limits in LIMITS.items():
        try:
            used = int(tree.read(f"{folder}/{current}"))
            bounds = [tree.read(f"{folder}/{limit}") for limit in limits]
        except (Error, ValueError):
            continue
        known = [int(each) for each in bounds if each.isdigit()]
        return min(known) - used if known else None
    return None
