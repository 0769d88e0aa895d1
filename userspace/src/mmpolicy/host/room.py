# SPDX-License-Identifier: GPL-2.0
"""Free memory: 2 MB blocks on each NUMA node, and the room below the limits of cgroups."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from shlex import quote
from typing import NamedTuple

from mmpolicy.errors import Error
from mmpolicy.host.cgroups import ROOT, Charged, cgroup_folders, hierarchies
from mmpolicy.host.files import Tree
from mmpolicy.host.huge import read_stat
from mmpolicy.host.systemd import HOSTS_OWN, KINDS

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
# properties of systemd's units for these files
LIMITS_OF_UNITS = {
    "memory.max": "MemoryMax", "memory.high": "MemoryHigh", "memory.limit_in_bytes": "MemoryMax",
}  # fmt: skip
# lines of memory.stat, of cgroup v1 and v2: unused file cache, and the parts of it that are to be
# written first; the lines of v1 without total_ leave out the cgroups below
CACHE = (
    ("total_inactive_file", "total_dirty", "total_writeback"),
    ("inactive_file", "file_dirty", "file_writeback"),
)
UNLIMITED = 1 << 60  # cgroup v1 has a number of bytes above this one in place of no limit
PLENTY = 16 << 20  # with this many bytes below the limit, the file cache does not count
# Without its multi-gen LRU, the kernel drops nothing but file cache while 4096 pages of it are
# unused. Twice as much stays.
KEPT = 32 << 20
OTHERS = 16 << 20  # most bytes of other cgroups below a limit at which file cache is dropped
MORE = 64 << 20  # bytes by which the user is told to raise a limit
BOOTED = "/run/systemd/system"  # exists if systemd manages this host


class Node(NamedTuple):
    """A NUMA node, with sizes in blocks of 2 MB."""

    number: int
    free_blocks: int  # number of blocks that can be allocated without reclaim
    all_blocks: int


class Limit(NamedTuple):
    """A memory limit of a cgroup, in bytes."""

    file: str
    bound: int
    used: int


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
    """Return the bytes left below the limit of a cgroup; None without a limit.

    If little is left, unused file cache counts as well: the kernel drops it to charge a 2 MB page.
    """
    found = _limit(tree, folder)
    if not found:
        return None
    room = found.bound - found.used
    return room if room >= PLENTY else room + _droppable(tree, folder, found.used)


def _limit(tree: Tree, folder: str) -> Limit | None:
    """Return the lowest limit of a cgroup; None without one."""
    for current, files in LIMITS.items():
        try:
            used = int(tree.read(f"{folder}/{current}"))
            bounds = {file: tree.read(f"{folder}/{file}") for file in files}
        except (Error, ValueError):
            continue
        known = [Limit(file, int(each), used) for file, each in bounds.items() if each.isdigit()]
        limits = (each for each in known if each.bound < UNLIMITED)
        return min(limits, key=lambda each: each.bound, default=None)
    return None


def _droppable(tree: Tree, folder: str, used: int) -> int:
    """Return the bytes of unused and clean file cache of a cgroup that the kernel can drop when a
    collapse reaches the limit; 0 if other cgroups below the same limit would lose theirs.
    """
    if not _belongs_to_one(tree, folder, used):
        return 0
    try:
        stat = read_stat(tree, f"{folder}/memory.stat")
        for unused, *busy in CACHE:
            if unused in stat:
                away = sum(int(stat.get(each, 0)) for each in busy)
                return max(int(stat[unused]) - away - KEPT, 0)
    except (Error, ValueError):
        pass
    return 0


def _belongs_to_one(tree: Tree, folder: str, used: int) -> bool:
    """Return whether the memory of a cgroup, but for OTHERS bytes, is charged to itself or to one
    cgroup below it.
    """
    while True:
        below = _usages_below(tree, folder)
        largest = max(below, key=below.__getitem__, default="")
        alone = used - sum(below.values())
        if used - max(alone, below.get(largest, 0)) > OTHERS:
            return False
        if alone >= below.get(largest, 0):
            return True
        folder, used = largest, below[largest]


def _usages_below(tree: Tree, folder: str) -> dict[str, int]:
    """Return the memory charged to each cgroup just below a cgroup, by its directory."""
    found = dict[str, int]()
    try:
        names = tree.inodes(folder)
    except Error:  # the cgroup was just removed
        return found
    for name in names:
        for current in LIMITS:
            try:
                found[f"{folder}/{name}"] = int(tree.read(f"{folder}/{name}/{current}"))
            except (Error, ValueError):
                continue
    return found


def raise_limit(tree: Tree, folders: Sequence[str]) -> str:
    """Return how to raise the limit that leaves the least room of some cgroups."""
    limits = {folder: limit for folder in folders if (limit := _limit(tree, folder))}
    if not limits:
        return "raise the memory limit of the cgroup a little while the command runs"
    folder = min(limits, key=lambda each: limits[each].bound - limits[each].used)
    file, bound, _ = limits[folder]
    path, unit = f"{folder}/{file}", _unit(tree, folder)

    def sets(value: int) -> str:
        if unit:
            return f"systemctl set-property --runtime {unit} {LIMITS_OF_UNITS[file]}={value}"
        return f"echo {value} >{quote(path)}"

    return (
        f"{sets(bound + MORE)} raises the limit in {path} by {MORE >> 20} MiB, and {sets(bound)} "
        "restores it"
    )


def _unit(tree: Tree, folder: str) -> str:
    """Return the unit of this host's systemd that has a cgroup, as a word for the shell; "" if none
    has.
    """
    mounts = [each.mount for each in hierarchies(tree) if each.root == ROOT]
    path = next((folder[len(each) :] for each in mounts if folder.startswith(f"{each}/")), "")
    name = path.rpartition("/")[2]
    is_unit = HOSTS_OWN.fullmatch(path) and KINDS.fullmatch(name) and tree.is_dir(BOOTED)
    return quote(name.removeprefix("_")) if is_unit else ""
