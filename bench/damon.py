# SPDX-License-Identifier: GPL-2.0
"""Compare `mmpolicy collapse`, DAMON's own collapse (DAMOS_COLLAPSE) and khugepaged on Linux 7.3.

In a guest, each of the three collapses heaps of tests/workloads/bigheap.c that are full, or half
empty in each 2 MB, while the program is stopped. DAMON monitors the virtual memory of the program
at the kernel's default intervals, with a scheme for regions of any size and access; khugepaged runs
without pauses. The guest counts instructions as CPU time. docs/compared.md has the table.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench import with_table
from bench.collapse import FAST, OFF, STOPPED, Heap, Khugepaged, by_khugepaged, collapse, heap
from lab.guest import Guest
from lab.machine import TREE
from lab.programs import BenchError, ran, workload

MIB, SERIES = 256, "7.3"
SHAPES = {"full": "full", "half": "half of each 2 MB"}
NAMES = {
    "collapse": "`collapse --cpu 100`, with and without its start", "damon": "DAMON",
    "khugepaged": "khugepaged, `scan_sleep_millisecs` 0",
}  # fmt: skip
# DAMON_STAT monitors all memory from boot on, and excludes other uses of DAMON until it is disabled
STAT = Path("/sys/module/damon_stat/parameters/enabled")
KDAMONDS = Path("/sys/kernel/mm/damon/admin/kdamonds")
# longest time in seconds for DAMON, and percentage in 2 MB pages at which it is done
WATCH_S, ENOUGH = 20, 99.0
MOST = str((1 << 64) - 1)
KEPT = TREE / "bench/damon.json"
PAGE = TREE / "docs/compared.md"


@contextlib.contextmanager
def watching(pid: int) -> Iterator[int]:
    """Let DAMON collapse all memory of a process during the `with` block; yield the PID of its
    kernel thread.
    """
    context = "0/contexts/0"
    steps = {
        "nr_kdamonds": "1", "0/contexts/nr_contexts": "1", f"{context}/operations": "vaddr",
        f"{context}/targets/nr_targets": "1", f"{context}/targets/0/pid_target": str(pid),
        f"{context}/schemes/nr_schemes": "1", f"{context}/schemes/0/action": "collapse",
        **{f"{context}/schemes/0/access_pattern/{what}/max": MOST
           for what in ("sz", "nr_accesses", "age")},
        "0/state": "on",
    }  # fmt: skip
    for name, value in steps.items():
        (KDAMONDS / name).write_text(value)
    try:
        yield int((KDAMONDS / "0/pid").read_text())
    finally:
        (KDAMONDS / "0/state").write_text("off")


def by_damon(stopped: Heap) -> float:
    """Let DAMON collapse a heap until ENOUGH percent are in 2 MB pages, for at most WATCH_S
    seconds; return the CPU seconds of its thread.
    """
    begin = time.monotonic()
    with watching(stopped.pid) as thread:
        while time.monotonic() - begin < WATCH_S and stopped.coverage < ENOUGH:
            time.sleep(0.1)
        used = Path(f"/proc/{thread}/schedstat").read_text().split()[0]
    return int(used) / 1e9


def inside() -> dict[str, Any]:
    """Measure all three tools on all shapes; runs in the guest, as it changes settings."""
    if STAT.exists():
        STAT.write_text("N")
    found = dict[str, Any]()
    for shape in SHAPES:
        for who in NAMES:
            told = (STOPPED, "madvise") if who == "khugepaged" else (OFF,)
            with heap(MIB, shape, *told) as one:
                one.stop()
                before, more = one.memory()[0], {}
                if who == "damon":
                    cpu_s = by_damon(one)
                elif who == "khugepaged":
                    thread = Khugepaged()
                    begin = thread.cpu_s
                    by_khugepaged(one, FAST)
                    cpu_s = thread.cpu_s - begin
                else:
                    done = collapse(one.pid, "--cpu", "100", "--max-stop", "1000")
                    cpu_s, more = done.cpu_s, {"without_start_s": done.told["cpu_s"]}
                after = one.memory()[0]
                found[f"{shape} {who}"] = {
                    "coverage": one.coverage, "memory": after / before, "cpu_s": cpu_s, **more,
                }  # fmt: skip
    return found


def lines(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield the table of docs/compared.md."""
    yield f"| {MIB} MB | in 2 MB pages | memory, of before | instructions for each 2 MB made |"
    yield "|---|---|---|---|"
    for key, one in results.items():
        shape, who = key.split()
        made = one["coverage"] / 100 * one["memory"] * MIB / 2 * (0.5 if shape == "half" else 1)
        times = (one[name] for name in ("cpu_s", "without_start_s") if name in one)
        each = ", ".join(f"{each * 1e3 / made:.2f} million" for each in times) if made > 1 else "-"
        yield (
            f"| {SHAPES[shape]}: {NAMES[who]} | {one['coverage']:.1f} % | {one['memory']:.2f} | "
            f"{each} |"
        )


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="./dev bench --series 7.3 damon", description=__doc__)
    parser.add_argument("--page", action="store_true", help="only write the table")
    if not parser.parse_args(argv).page:
        workload("bigheap")
        with Guest(flavor="cloud", series=SERIES, icount=True) as guest:
            path = os.pathsep.join(sys.path)
            results = ran(guest, f"PYTHONPATH={path} {sys.executable} -m bench.damon", 1800)
        KEPT.write_text(json.dumps(results, indent=1) + "\n")
    PAGE.write_text(with_table(PAGE.read_text(), "damon", lines(json.loads(KEPT.read_text()))))


if __name__ == "__main__":
    if os.geteuid():
        raise BenchError("python3 -m bench.damon runs in the guest, as root; use ./dev bench damon")
    print(json.dumps(inside()))
