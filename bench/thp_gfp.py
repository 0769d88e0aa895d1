# SPDX-License-Identifier: GPL-2.0
"""Cost and savings of the policies of thp_gfp, on two NUMA nodes.

Each arm of each case runs in a guest of its own: tests/workloads/nodes.c fills the nodes, then maps
and touches memory. The arm "off" uses no large folios, to show how much the load reclaims by
itself. The arm "legacy" allocates as kernels of 2018 did with MADV_HUGEPAGE: huge pages from the
preferred node, with reclaim.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lab import counting
from lab.counting import THP, Results, Sample
from lab.guest import Guest
from lab.programs import BenchError, must, ran, workload

POINT = "thp_gfp"
NEEDS: dict[str, Any] = {"nodes": 2, "swap": "1G"}
POLICIES = ("only_compact", "only_compact_any", "relaxed", "light")
# numbers of MADV_HUGEPAGE, of no advice, and of MADV_NOHUGEPAGE
MADVISED, NOT_MADVISED, NO_HUGE = 14, -1, 15
ALWAYS = f"echo always >{THP}/enabled && echo always >{THP}/defrag"
SMALL_SIZES = f"echo never >{THP}/hugepages-2048kB/enabled && " + " && ".join(
    f"echo madvise >{THP}/hugepages-{kb}kB/enabled" for kb in (16, 32, 64)
)

SETUP = {
    "off": ":",
    "stock": ":",
    "legacy": "modprobe thp_gfp_legacy",
    **{name: f"modprobe mmpolicy thp_gfp={name}" for name in POLICIES},
}
NEEDS_HOOKS = ("legacy",)
USUAL = ("off", "stock", *POLICIES)


@dataclass(frozen=True)
class Case:
    """A load: the arguments of the program nodes. ADVICE in them is replaced by the number of an
    madvise() advice, or -1 for none.
    """

    name: str
    mem: str
    words: str
    setup: str = ":"
    advice: int = MADVISED
    arms: tuple[str, ...] = USUAL


# This load maps more memory than the first node has free, and pins each page when it is faulted in,
# so that no page can be reclaimed or moved.
PINNED = Case(
    "pinned",
    "2G",
    "pin 500 0 map 520 ADVICE touch_pinned",
    arms=("off", "stock", "legacy", *POLICIES),
)
FULL_OF_PINNED = Case("full of pinned", "2G", "pin -60 0 map 520 ADVICE touch_pinned")
SMALL_PINNED = Case(
    "small pinned",
    "1G",
    "pin 250 0 map 220 ADVICE touch_pinned",
    ALWAYS,
    NOT_MADVISED,
    PINNED.arms,
)
TOO_MUCH = Case("too much", "640M", "hold -40 0 hold -60 1 map 200 ADVICE touch 1")
DISK = "cat /sys/class/zram-control/hot_add && echo 1G >/sys/block/zram1/disksize"
CGROUP = "/sys/fs/cgroup/bench"
LIMITED = (
    f"{DISK} && echo +memory >/sys/fs/cgroup/cgroup.subtree_control && mkdir {CGROUP} && "
    f"echo 150M >{CGROUP}/memory.max"
)
CASES = (
    PINNED,
    FULL_OF_PINNED,
    SMALL_PINNED,
    Case("crumbs", "640M", "pin 130 0 crumbs -10 1 8 map 220 ADVICE touch 1"),
    TOO_MUCH,
    Case(
        "page cache",
        "640M",
        "cache -40 0 /dev/zram1 cache -60 1 /dev/zram1 map 200 ADVICE touch 1",
        DISK,
    ),
    Case(
        "cgroup",
        "640M",
        f"sh 'echo $PPID >{CGROUP}/cgroup.procs' hold 50 0 cache 50 0 /dev/zram1 "
        "map 120 ADVICE touch 1",
        LIMITED,
    ),
    Case(
        "64 kB and less",
        "640M",
        "crumbs -10 0 4 crumbs -10 1 4 map 120 ADVICE touch 1",
        SMALL_SIZES,
    ),
    Case("sparse", "640M", "hold -60 0 hold -40 1 map 200 ADVICE touch 512"),
)


def nodes(guest: Guest, words: str, timeout: float = 600) -> dict[str, int]:
    """Run the program nodes with some arguments; return the numbers that it prints, by name."""
    return ran(guest, f"{workload('nodes')} {words}", timeout)


def pages(found: dict[str, int], node: int | None = None, least: int = 0) -> int:
    """Return the number of pages on a node, or on all, in folios of order `least` or larger."""
    prefix = "node" if node is None else f"node{node}_"
    orders = {key: key.partition("_order")[2] for key in found if "_order" in key}
    return sum(
        found[key]
        for key, order in orders.items()
        if key.startswith(prefix) and int(order) >= least
    )


def summary(found: dict[str, int]) -> dict[str, float]:
    """Return the numbers for the tables from the output of the program nodes."""

    def total(*starts: str) -> int:
        return sum(n for key, n in found.items() if key.startswith(starts))

    return {
        "ticks": found["ticks"],
        "huge": pages(found, least=2) / pages(found),
        "local": pages(found, 0),
        "left": found["left"],
        "scanned by tasks": found.get("pgscan_direct", 0),
        "scanned by kswapd": found.get("pgscan_kswapd", 0),
        "swapped out": found.get("pswpout", 0),
        "compaction scanned": total("compact_migrate_scanned", "compact_free_scanned"),
        "OOM kills": found.get("oom_kill", 0),
    }


def take(case: Case, arm: str) -> Sample:
    """Run one arm of one case in a fresh guest, and return the sample.

    If the OOM killer ends the load, the sample has only the number of OOM kills.
    """
    advice = NO_HUGE if arm == "off" else case.advice
    with counting.counting_guest("patched", case.mem, **NEEDS) as guest:
        must(guest, f"{case.setup} && {SETUP[arm]}")
        try:
            found = nodes(guest, case.words.replace("ADVICE", str(advice)), timeout=1800)
        except BenchError:
            kills = must(guest, "sed -n 's/^oom_kill //p' /proc/vmstat")
            if not int(kills):
                raise
            return Sample(arm, case.name, {"OOM kills": float(kills)})
        if found["mismatches"]:
            raise BenchError(f"{arm}, {case.name}: {found['mismatches']} pages hold wrong data")
        values = summary(found)
        if arm in POLICIES:
            values |= {
                key: float(n)
                for key, n in counting.counters(guest, POINT).items()
                if key.endswith(("_large", "_base"))
            }
        return Sample(arm, case.name, values)


def run(cases: Sequence[Case], arms: Sequence[str] | None = None) -> Results:
    """Run the named arms of the cases, or all arms that this kernel supports."""
    results = Results(POINT, {"cpu": counting.CPU})
    for case in cases:
        for arm in case.arms:
            if (arm in arms) if arms else (arm not in NEEDS_HOOKS or counting.has_hooks()):
                results.samples.append(take(case, arm))
                counting.progress(f"{POINT}: {case.name}, {arm}")
    return results


def cell(results: Results, case: str, arm: str, key: str) -> str:
    """Format a number of an arm in a case: "huge" in percent, "-" if it was not measured."""
    value = results.find(arm, case, key)
    if value is None:
        return "-"
    return f"{value:.1%}" if key == "huge" else f"{value:,.0f}"


def tables(results: Results) -> str:
    """Return a table per case, with a row per number and a column per arm."""
    parts = []
    for case in results.cases():
        some = [sample for sample in results.samples if sample.case == case]
        keys = list(dict.fromkeys(key for sample in some for key in sample.values))
        arms = [sample.arm for sample in some]
        rows = [[key, *(cell(results, case, arm, key) for arm in arms)] for key in keys]
        parts.append(f"{case}\n{counting.table(['', *arms], rows)}")
    return "\n\n".join(parts)


def main(argv: list[str]) -> None:
    parser = counting.options("thp_gfp", "Compare the policies of thp_gfp, on two nodes.")
    parser.add_argument("--case", action="append", help="only this case; may be repeated")
    chosen: argparse.Namespace = parser.parse_args(argv)
    names = chosen.case or [case.name for case in (CASES[-1:] if chosen.quick else CASES)]
    unknown = set(names) - {case.name for case in CASES}
    if unknown:
        raise BenchError(f"no case {', '.join(sorted(unknown))}: bench/thp_gfp.py lists CASES")
    results = run([case for case in CASES if case.name in names])
    print(f"{counting.CPU}\nInstructions show path length, not speed.\n\n{tables(results)}")
    if chosen.json:
        results.save(chosen.json)
