# SPDX-License-Identifier: GPL-2.0
"""What anon_order saves on a kernel without the hooks, by ftrace, against one with them.

Access patterns and whole programs, as in the benchmarks of these names, with folios of
up to 64 kB. Each kernel is compared with itself while all sizes are off.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import common
import programs
from anon_order import CHANGE, SMALL, SPARSE, THP, Case, policy, take_sample
from common import Arm, Results, Sample
from programs import Program
from vm import Guest

WAYS = {"hooks": "patched", "ftrace": "traced"}
INTERVAL = 0.001  # a few per cent are saved
OFF = f"echo never >{THP}/enabled"
ARMS = [
    Arm(f"{way} {name}", flavor, setup)
    for way, flavor in WAYS.items()
    for name, setup in (("off", OFF), ("adaptive", f"{OFF}; {policy('adaptive', 4)}"))
]
PATTERNS = [
    *(Case(name, SMALL, 5) for name in ("forward", "backward", "streams", "threads", "brk")),
    *(Case(name, SMALL, rounds // 3) for name, rounds in SPARSE.items()),
    *(Case(name, CHANGE, 3) for name in ("sparse_dense", "dense_sparse")),
]


def take(
    guest: Guest, arm: Arm, patterns: Sequence[Case], chosen: Sequence[Program]
) -> Iterator[Sample]:
    """The samples of one arm, after a run that warms up the free lists."""
    common.must(guest, f"{common.workload('touch')} forward {CHANGE}")
    for case in patterns:
        yield from take_sample(guest, arm.name, case)
    yield from programs.take(guest, arm, chosen, INTERVAL)


def run(patterns: Sequence[Case], chosen: Sequence[Program]) -> Results:
    """Measure all arms, each in a fresh guest."""
    results = Results("stock_kernel", {"cpu": common.CPU, "unit": "instructions"})
    common.measure(
        results, ARMS, programs.MEM, lambda guest, arm: take(guest, arm, patterns, chosen)
    )
    return results


def saved(results: Results, way: str, case: str) -> float:
    """The part of the instructions that a way saves."""
    return 1 - results.ratio(f"{way} adaptive", f"{way} off", case, "ticks")


def memory(results: Results, way: str, case: str) -> float:
    """As a multiple of what it takes while all sizes are off."""
    return results.ratio(f"{way} adaptive", f"{way} off", case, "kb")


def table(results: Results) -> str:
    """A line each: what is saved, and the memory it takes."""
    head = ["", *(f"{what}, {way}" for what in ("saved", "memory") for way in WAYS)]
    rows = [
        [case]
        + [f"{saved(results, way, case):.1%}" for way in WAYS]
        + [f"{memory(results, way, case):.3f}" for way in WAYS]
        for case in results.complete([arm.name for arm in ARMS])
    ]
    return common.table(head, rows)


def main(argv: list[str]) -> None:
    """Entry point of ./dev bench stock_kernel."""
    parser = common.options("stock_kernel", "Compare what is had by ftrace with the hooks.")
    parser.add_argument("names", nargs="*", metavar="PROGRAM", help="only these programs")
    chosen: argparse.Namespace = parser.parse_args(argv)
    programs.build()
    wanted = programs.chosen_programs(chosen.names)
    results = run(PATTERNS[:1] if chosen.quick else PATTERNS, wanted)
    print(f"{common.CPU}\nPath length, not speed.\n\n{table(results)}")
    if chosen.json:
        results.save(chosen.json)
