# SPDX-License-Identifier: GPL-2.0
"""Read the kernel's own statistics of huge pages, events, pressure and cgroups."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from fnmatch import fnmatch

from mmpolicy.errors import Error
from mmpolicy.host.cgroups import find_cgroup, name_of
from mmpolicy.host.files import KNOB_FOLDERS, Tree
from mmpolicy.host.huge import KINDS, huge_in, read_stat
from mmpolicy.host.knobs import read_knob

THP = KNOB_FOLDERS[0]
PRESSURE = "/proc/pressure"
STAT = "/proc/stat"
# columns of the first line of /proc/stat
CPU_TIMES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
TICKS_S = os.sysconf("SC_CLK_TCK")
POOLS = "/sys/kernel/mm/hugepages"  # directory with the pools of hugetlb
POOL = {"pages": "nr", "free": "free", "reserved": "resv", "surplus": "surplus"}
SIZE = re.compile(r"hugepages-(\d+)kB")
USUAL = ("thp_*", "compact_*", "pgfault", "pgmajfault", "allocstall*", "pgmigrate*", "nr_anon*")
# name of the file with the memory usage of a cgroup, in cgroup v2 and in v1
CURRENT = ("memory.current", "memory.usage_in_bytes")

Figures = dict[str, str]
# pressure figures such as avg10, by resource and kind, such as "memory some"
Pressure = dict[str, Figures]


def _files(tree: Tree, folder: str) -> Iterator[tuple[str, str]]:
    """Yield the name and value of each readable file of a directory."""
    for name in tree.names(folder) if tree.is_dir(folder) else ():
        try:
            yield (
                name,
                "" if tree.is_dir(f"{folder}/{name}") else read_knob(tree, f"{folder}/{name}"),
            )
        except Error:
            continue


def figures_in(tree: Tree, folder: str) -> Figures:
    """Return the contents of the files of a directory, by name."""
    return {name: value for name, value in _files(tree, folder) if value}


def size_folders(tree: Tree) -> dict[int, str]:
    """Return the kernel's directory of each folio size, by size in bytes."""
    found = [SIZE.fullmatch(name) for name in (tree.dirs(THP) if tree.is_dir(THP) else ())]
    return dict(sorted((int(each[1]) << 10, f"{THP}/{each[0]}") for each in found if each))


def sizes(tree: Tree) -> dict[str, dict[str, Figures]]:
    """Return the settings and counters of each folio size, by size, such as "64 kB"."""
    return {
        f"{size >> 10} kB": {
            "set": figures_in(tree, folder),
            "stats": figures_in(tree, f"{folder}/stats"),
        }
        for size, folder in size_folders(tree).items()
    }


def folios_made(tree: Tree) -> dict[int, int]:
    """Return the number of large folios that faults have allocated since boot, by size in bytes."""
    return _of_sizes(tree, "anon_fault_alloc")


def fallbacks(tree: Tree) -> dict[int, int]:
    """Return how often faults could not allocate a folio since boot, by size in bytes."""
    return _of_sizes(tree, "anon_fault_fallback")


def _of_sizes(tree: Tree, name: str) -> dict[int, int]:
    files = {size: f"{path}/stats/{name}" for size, path in size_folders(tree).items()}
    return {size: int(tree.read(file)) for size, file in files.items() if tree.exists(file)}


def others(tree: Tree) -> Figures:
    """Return the kernel's settings of huge pages that do not belong to a size, by relative path."""
    found = figures_in(tree, THP)
    for name in tree.dirs(THP) if tree.is_dir(THP) else ():
        if not SIZE.fullmatch(name):
            inner = figures_in(tree, f"{THP}/{name}")
            found |= {f"{name}/{file}": value for file, value in inner.items()}
    return found


def pools(tree: Tree) -> dict[str, dict[str, int]]:
    """Return the page counts of hugetlb pools that have pages, by page size."""
    found = {}
    for name in tree.dirs(POOLS) if tree.is_dir(POOLS) else ():
        size, files = SIZE.fullmatch(name), figures_in(tree, f"{POOLS}/{name}")
        pages = {key: int(files.get(f"{file}_hugepages", 0)) for key, file in POOL.items()}
        if size and pages["pages"]:
            found[f"{size[1]} kB"] = pages | {"mib": pages["pages"] * int(size[1]) >> 10}
    return found


def events(tree: Tree, every: bool) -> dict[str, int]:
    """Return the counters of /proc/vmstat: all of them, or only those about memory management."""
    pairs = (line.split() for line in tree.read("/proc/vmstat").splitlines())
    return {
        name: int(value)
        for name, value in pairs
        if every or any(fnmatch(name, usual) for usual in USUAL)
    }


def cpu_times(text: str) -> dict[str, float]:
    """Return the seconds that all CPUs have spent since boot, from the text of /proc/stat.

    `busy` is the time of programs and the kernel, without time stolen by the hypervisor.
    """
    ticks = (int(word) for word in text.split("\n", 1)[0].split()[1:])
    found = {name: each / TICKS_S for name, each in zip(CPU_TIMES, ticks)}
    idle = ("idle", "iowait", "steal")
    return {**found, "busy": sum(found[name] for name in found if name not in idle)}


def pressure_in(tree: Tree, path: str) -> Pressure:
    """Return the figures in one pressure file, such as avg10, by kind: "some" or "full"."""
    lines = (line.split() for line in tree.read(path).splitlines())
    return {kind: dict(word.split("=") for word in words) for kind, *words in lines}


def pressure(tree: Tree) -> Pressure:
    """Return the pressure figures of all resources; {} if the kernel has none."""
    found: Pressure = {}
    for resource in tree.names(PRESSURE) if tree.is_dir(PRESSURE) else ():
        for kind, figures in pressure_in(tree, f"{PRESSURE}/{resource}").items():
            found[f"{resource} {kind}"] = figures
    return found


def cgroup_figures(tree: Tree, path: str) -> dict[str, float]:
    """Return memory in KiB and memory pressure of a cgroup; {} if the kernel does not account for
    them.
    """
    try:
        base = find_cgroup(tree, path).folder
        current = next(each for each in CURRENT if tree.exists(f"{base}/{each}"))
        found = {"memory_kib": float(int(tree.read(f"{base}/{current}")) >> 10)}
        stat = huge_in(read_stat(tree, f"{base}/memory.stat"))
        file = f"{base}/memory.pressure"
        waits = pressure_in(tree, file) if tree.exists(file) else {}  # cgroup v1 has no such file
    except (Error, StopIteration):
        return {}
    for kind in KINDS:
        found[f"{kind}_kib"] = float(stat.memory[kind] >> 10)
        found[f"{kind}_thp_kib"] = float(stat.huge[kind] >> 10)
    coverage = stat.coverage
    found |= {} if coverage is None else {"huge_percent": round(100 * coverage, 1)}
    return found | {f"{kind}_avg10": float(each["avg10"]) for kind, each in waits.items()}


def cgroups(tree: Tree, path: str) -> dict[str, dict[str, float]]:
    """Return the figures of a cgroup and of its children."""
    top = find_cgroup(tree, path)
    below = (name_of(f"{top.path.rstrip('/')}/{each}") for each in tree.dirs(top.folder))
    found = {each: cgroup_figures(tree, each) for each in (top.name, *below)}
    return {each: figures for each, figures in found.items() if figures}
