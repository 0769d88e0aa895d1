# SPDX-License-Identifier: GPL-2.0
"""Trials of `mmpolicy try` without the module, from the start to the result page.

They run on this machine, where CPU time is that of hardware, and in a guest of Linux 6.1:

sizes     `--host --candidate thp-sizes`, that is, the kernel's own folios below 2 MB, while a
          program fills fresh memory at a fixed rate
collapse  on a program that reads and writes its heap of single pages at random, at a fixed rate;
          the metric for --work is its rate of accesses
trim      on a program with a heap of 2 MB pages, of which it uses one page in 16

Each trial is judged by the rule that it prints. The benchmark also reads the memory of the program
from /proc, before and after. It sets the sizes of the whole host while it runs, and restores them;
it needs root and an idle machine. docs/cli.md has the table.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench import THP, thp_settings, unwind_on_signals, with_table
from bench.collapse import STOPPED, memory_of
from bench.maintain import memory_cgroups
from lab import counting
from lab.guest import SCRIPT, Guest
from lab.machine import TREE
from lab.programs import must, workload

GROUP = "/mmpolicy-bench-tried"
KEPT = TREE / "bench/tried.json"
PAGE = TREE / "docs/cli.md"
FILL_S = 60.0
PACE = 200_000  # number of accesses in a quarter of a second; they take some 40 % of a CPU
PAGE_LINES = ("did  ", "metric  ", "decision  ", "undo  ")
SPARSE = """
import mmap, sys, time
pages = (int(sys.argv[1]) << 20) // 4096
heap = mmap.mmap(-1, pages * 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, pages, 16):
    heap[at * 4096] = 1
print("ready", flush=True)
while True:
    time.sleep(0.05)
    sum(heap[at * 4096] for at in range(0, pages, 1024))
"""

FRESH = """
import mmap, time
part = bytes(1 << 20)
heap = mmap.mmap(-1, 64 * len(part), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
turn = time.monotonic()
while True:
    for at in range(0, len(heap), len(part)):
        heap.madvise(mmap.MADV_DONTNEED, at, len(part))
        heap[at:at + len(part)] = part
    turn += 0.1
    time.sleep(max(turn - time.monotonic(), 0))
"""


def settings(**more: str) -> dict[str, str]:
    """Return the settings of huge pages that let khugepaged sleep, with `more` settings, as far as
    this kernel has their files.
    """
    return {name: value for name, value in (STOPPED | more).items() if (THP / name).exists()}


def sizes_of(pid: int) -> dict[str, int]:
    """Return the private memory of a process, and the part of it in 2 MB pages, in KiB."""
    return dict(zip(("kib", "huge_kib"), memory_of(pid)))


@contextlib.contextmanager
def service(argv: list[str], said: Path, sizes: Mapping[str, str]) -> Iterator[int]:
    """Start a program in a cgroup of its own, and wait until it has filled its heap under these
    settings; yield its pid.
    """
    folder = memory_cgroups().parent / GROUP.strip("/")
    folder.mkdir()
    try:
        with thp_settings(sizes), said.open("w") as out:
            inside = f"echo $$ >{folder}/cgroup.procs; exec {shlex.join(argv)}"
            job = subprocess.Popen(["sh", "-c", inside], stdout=out)
            end = time.monotonic() + FILL_S
            while not said.read_text().startswith("ready") and time.monotonic() < end:
                time.sleep(0.1)
        try:
            yield job.pid
        finally:
            job.kill()
            job.wait()
    finally:
        folder.rmdir()


def sizes_set() -> dict[str, str]:
    """Return the text of the file `enabled` of each folio size, by the file's path."""
    return {str(path): path.read_text() for path in sorted(THP.glob("hugepages-*kB/enabled"))}


def tried(*words: str) -> dict[str, Any]:
    """Run a trial; return its exit code, the main lines of its report, and its duration."""
    begin = time.monotonic()
    argv = [sys.executable, "-m", "mmpolicy", "try", *words, "--yes", "--foreground"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    said = (done.stdout + done.stderr).strip().splitlines()
    page = [each for each in said if each.startswith(PAGE_LINES)]
    return {"exit": done.returncode, "page": page or said[-2:],
            "seconds": round(time.monotonic() - begin)}  # fmt: skip


def of_the_host(block: float) -> dict[str, Any]:
    """Try folio sizes on the host while a program fills fresh memory; then run the printed undo
    command, and check that all sizes are as before.
    """
    before = sizes_set()
    job = subprocess.Popen([sys.executable, "-c", FRESH])
    try:
        found = tried("--host", "--candidate", "thp-sizes", "--block", f"{block:g}")
    finally:
        job.kill()
        job.wait()
    for line in found["page"]:
        if line.startswith("undo"):
            undo = line.partition(" ")[2]
            subprocess.run(undo, shell=True, check=True, stdout=subprocess.DEVNULL)
    if sizes_set() != before:
        raise SystemExit(f"the sizes are {sizes_set()} after the trial, and were {before}")
    return {**found, "block": block}


def of_a_service(
    candidate: str, argv: list[str], said: Path, sizes: Mapping[str, str], block: float, *more: str
) -> dict[str, Any]:
    """Try a candidate on a program; return the result, with its memory before and after."""
    with service(argv, said, sizes) as pid:
        before = sizes_of(pid)
        words = ("--cgroup", GROUP, "--candidate", candidate, "--block", f"{block:g}", *more)
        return {**tried(*words), "block": block, "before": before, "after": sizes_of(pid)}


def here(mib: int, block: float) -> dict[str, Any]:
    """Try each candidate on the running kernel, with a heap of `mib` MiB and blocks of `block`
    seconds.
    """
    with tempfile.TemporaryDirectory() as folder, thp_settings(settings()):
        said = Path(folder, "said")
        # the command prints accesses per nanosecond
        speed = f"cmd:tail -n 2 {said} | awk 'NF==2{{s=1/$1}}END{{print s}}'"
        heap = [str(workload("bigheap")), str(mib), "full", "madvise", str(PACE)]
        sparse = [sys.executable, "-c", SPARSE, str(mib)]
        return {
            "kernel": platform.release(),
            "sizes": of_the_host(block),
            "collapse": of_a_service("collapse", heap, said, settings(enabled="never"), block,
                                     "--work", speed),
            "trim": of_a_service("trim", sparse, said, settings(enabled="always"), block),
        }  # fmt: skip


def in_guest() -> dict[str, Any]:
    """Try each candidate in a guest of Linux 6.1, with less memory and shorter blocks than on this
    machine.

    The guest counts instructions as CPU time, as the time of an emulated CPU varies too much for a
    trial of `collapse`.
    """
    with Guest(series="linux-6.1", flavor="cloud", mem="2G", icount=True, swap="1G") as guest:
        cache = f"MMPOLICY_CACHE={os.environ.get('MMPOLICY_CACHE', '')}"
        words = "-m bench.tried --here --mib 64 --block 24"
        out = must(guest, f"{cache} {SCRIPT} {words}", 3600)
        found: dict[str, Any] = json.loads(out.splitlines()[-1])
        return found


def table(kept: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the table in docs/cli.md."""
    yield "| kernel | candidate | block | exit | private memory, MiB | in 2 MB, MiB | told |"
    yield "|---|---|---|---|---|---|---|"
    for each in kept.values():
        for name in ("sizes", "collapse", "trim"):
            if not (found := each.get(name)):
                continue
            memory = [f"{found['before'][key] >> 10} -> {found['after'][key] >> 10}"
                      if "before" in found else "-" for key in ("kib", "huge_kib")]  # fmt: skip
            told = "; ".join(" ".join(line.split()) for line in found["page"])
            kernel = each["kernel"].partition("-")[0]
            cells = (kernel, name, f"{found['block']:g} s", found["exit"], *memory, told)
            yield f"| {' | '.join(map(str, cells))} |"


def main(argv: list[str]) -> None:
    """Measure on this machine, or in the guest, or both."""
    parser = argparse.ArgumentParser(prog="./dev bench tried", description=__doc__)
    parser.add_argument("--mib", type=int, default=512, help="MiB of the heap on this machine")
    parser.add_argument("--block", type=float, default=96.0, help="seconds of a block here")
    parser.add_argument("--only", choices=("guest", "machine"), help="measure only in this place")
    parser.add_argument("--here", action="store_true", help="print figures, and write no file")
    given = parser.parse_args(argv)
    unwind_on_signals()
    if given.here:
        print(json.dumps(here(given.mib, given.block)))
        return
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    for place in ("guest", "machine"):
        if given.only in (None, place):
            counting.progress(place)
            kept[place] = in_guest() if place == "guest" else here(given.mib, given.block)
            KEPT.write_text(json.dumps(kept, indent=1) + "\n")
    PAGE.write_text(with_table(PAGE.read_text(), "tried", table(kept)))


if __name__ == "__main__":
    main(sys.argv[1:])
