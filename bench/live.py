# SPDX-License-Identifier: GPL-2.0
"""Effect of `mmpolicy collapse` on programs with a big heap, under load, on this machine.

redis (with redis-benchmark), a JVM and a Python service (bench/loads) each run in two instances,
with 4 kB pages: one instance is collapsed at the default budget while it answers requests, the
other is the control. Both are loaded in turn, before and after the collapse, and the CPU time per
request of the collapsed instance is compared with that of the control. PostgreSQL sorts in one
backend; `mmpolicy bench --collapse` compares runs with and without collapses. Before any collapse,
`collapse --dry-run` reports how much memory each --min-used would collapse, and how much the
program would grow.

The benchmark turns huge pages off on the whole host while a program fills its memory. It needs
root, Linux 6.1, redis-server, redis-benchmark, java, javac, postgres 15, and memory for two
programs of 2 GB. docs/workloads/big-heap.md has the tables.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import mean, median, variance
from typing import Any, NamedTuple

from bench import thp_settings, unwind_on_signals, with_table
from bench.collapse import OFF, machines, measured
from bench.programs import LOADS, NOBODY, POSTGRES
from lab.machine import TREE
from lab.programs import BenchError, started

KEPT = TREE / "bench/live.json"
PAGE = TREE / "docs/workloads/big-heap.md"
PAIRS, TURN_S, WARM = 10, 3, 4
MIN_USED = (100, 98, 90)
# numbers of objects that make heaps of about 2 GB (redis) and 1.5 GB
KEYS, VALUES, OBJECTS, ROWS = 2_700_000, 4_500_000, 4_000_000, 10_000_000
VALUE_BYTES, CLIENTS = 600, 8
TWO_SIDED = 2.1  # 97.5 % quantile of Student's t for two groups of ten turns
# each query is on one line, as a backend in single-user mode ends a query at the end of the line
SORT = f"""\
set work_mem = '2GB'
select count(*) from (select md5(i::text) t from generate_series(1, {ROWS}) i order by t offset 1) s
"""


class Turn(NamedTuple):
    """The measurements of a program in a turn: number of requests, CPU time, and latencies in
    microseconds.
    """

    requests: int
    cpu_ns: int
    p50: float
    p99: float
    longest: float


class Instance:
    """A program that runs and answers requests."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def answers(self) -> tuple[int, float, float, float]:
        """Load the program for a turn; return the number of requests, and p50, p99 and longest
        latency in microseconds.
        """
        raise NotImplementedError

    def cpu_ns(self) -> int:
        """Return the CPU time of the program's present threads, in nanoseconds."""
        threads = Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        return sum(int(each.read_text().split()[0]) for each in threads)

    def turn(self) -> Turn:
        """Load the program for TURN_S seconds; return the measurements of this turn."""
        before = self.cpu_ns()
        requests, *latencies = self.answers()
        return Turn(requests, self.cpu_ns() - before, *latencies)


class Redis(Instance):
    """A redis server under redis-benchmark, with as many SETs as GETs."""

    def __init__(self, pid: int, socket: Path) -> None:
        super().__init__(pid)
        self._socket = socket
        self._bench("-n", f"{3 * KEYS}", "-P", "64", "-t", "set")
        begin = time.monotonic()
        self._bench("-n", "100000", "-t", "get")
        self._number = int(100_000 * TURN_S / 2 / (time.monotonic() - begin))

    def _bench(self, *words: str) -> list[list[str]]:
        argv = ["redis-benchmark", "-s", str(self._socket), "-c", str(CLIENTS), "-r", str(KEYS)]
        argv += ["-d", str(VALUE_BYTES), "--csv", *words]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        return [row for row in csv.reader(done.stdout.splitlines()) if row[0] in ("SET", "GET")]

    def answers(self) -> tuple[int, float, float, float]:
        rows = self._bench("-n", str(self._number), "-t", "set,get")
        worst = [1000 * max(float(row[at]) for row in rows) for at in (4, 6, 7)]
        return self._number * len(rows), worst[0], worst[1], worst[2]


class Lookups(Instance):
    """A program of bench/loads, which makes requests to itself and measures their latency."""

    def __init__(self, job: subprocess.Popen[str]) -> None:
        super().__init__(job.pid)
        self._job = job

    def answers(self) -> tuple[int, float, float, float]:
        assert self._job.stdin and self._job.stdout
        self._job.stdin.write(f"{TURN_S}\n")
        self._job.stdin.flush()
        words = self._job.stdout.readline().split()
        if not words:
            raise BenchError(f"the service {self._job.args!r} has ended during the load")
        p50, p99, longest = (int(words[at]) / 1000 for at in (1, 3, 5))
        return int(words[0]), p50, p99, longest


@contextlib.contextmanager
def redis() -> Iterator[Instance]:
    """Start a redis server, and fill it with KEYS keys."""
    with tempfile.TemporaryDirectory() as folder:
        socket = Path(folder, "socket")
        argv = ["redis-server", "--port", "0", "--save", "", "--unixsocket", str(socket)]
        with subprocess.Popen(argv, stdout=subprocess.DEVNULL, cwd=folder) as job:
            try:
                while not socket.exists():
                    if job.poll() is not None:
                        raise BenchError(f"redis-server ended with exit status {job.returncode}")
                    time.sleep(0.1)
                yield Redis(job.pid, socket)
            finally:
                job.kill()


@contextlib.contextmanager
def java() -> Iterator[Instance]:
    """Start a JVM with a map of VALUES values."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["javac", "-d", folder, str(LOADS / "Lookups.java")], check=True)
        argv = ["java", "-Xms3g", "-Xmx3g", "-XX:+UseG1GC", "-cp", folder, "Lookups", str(VALUES)]
        with started(argv, 2048, stdin=subprocess.PIPE) as job:
            yield Lookups(job)


@contextlib.contextmanager
def python() -> Iterator[Instance]:
    """Start a Python service with OBJECTS objects."""
    argv = ["/usr/bin/python3", str(LOADS / "lookups.py"), str(OBJECTS)]
    with started(argv, 2048, stdin=subprocess.PIPE) as job:
        yield Lookups(job)


def mmpolicy(*words: str) -> list[str]:
    return [sys.executable, "-m", "mmpolicy", *words]


ENV = {**os.environ, "PYTHONPATH": str(TREE / "userspace/src")}


def collapse(pid: int, *words: str) -> dict[str, Any]:
    """Run `mmpolicy collapse` on a process, and return its report."""
    argv = mmpolicy("collapse", "--pid", str(pid), "--max-stop", "100", "--json", *words)
    done = subprocess.run(argv, env=ENV, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"mmpolicy collapse failed: {done.stderr.strip()}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def would_make(pid: int) -> dict[str, dict[str, float]]:
    """Return for each --min-used the share of the memory that `collapse` would put into 2 MB pages,
    and by how much the memory would grow, in percent.
    """
    found = {}
    for least in MIN_USED:
        told = collapse(pid, "--dry-run", "--min-used", str(least))
        (row,) = told["processes"]
        whole = row["before_kib"] + row["growth_kib"]
        found[str(least)] = {
            "coverage": 100 * (row["before_huge_kib"] + row["made_kib"]) / whole,
            "growth": 100 * row["growth_kib"] / row["before_kib"],
        }
    return found


def pairs(ours: Instance, control: Instance) -> list[tuple[Turn, Turn]]:
    """Load both instances PAIRS times, one after the other; which comes first alternates."""
    found = []
    for number in range(PAIRS):
        both = [each.turn() for each in (ours, control)[:: 1 if number % 2 else -1]]
        found.append((both[0], both[1]) if number % 2 else (both[1], both[0]))
    return found


def logs(found: Sequence[tuple[Turn, Turn]]) -> list[float]:
    """Return for each pair of turns the logarithm of the ratio of CPU time per request: that of the
    collapsed instance to that of the control.
    """
    return [
        math.log(ours.cpu_ns / ours.requests / (other.cpu_ns / other.requests))
        for ours, other in found
    ]


def ratio(before: Sequence[float], after: Sequence[float]) -> list[float]:
    """Return how many times as large values are after as before, with the 95 % interval; both
    arguments are logarithms.
    """
    half = TWO_SIDED * math.sqrt(variance(before) / len(before) + variance(after) / len(after))
    middle = mean(after) - mean(before)
    return [math.exp(each) for each in (middle, middle - half, middle + half)]


def latencies(turns: Sequence[Turn]) -> dict[str, float]:
    """Return the medians over the turns of p50 and p99, and the longest latency of all turns."""
    return {
        "p50": median(each.p50 for each in turns), "p99": median(each.p99 for each in turns),
        "longest": max(each.longest for each in turns),
    }  # fmt: skip


def served(start: Callable[[], contextlib.AbstractContextManager[Instance]]) -> dict[str, Any]:
    """Measure a service before, during and after a collapse, with a second instance as control."""
    with thp_settings(OFF), contextlib.ExitStack() as held:
        ours, control = (held.enter_context(start()) for _ in range(2))
        # the first turns are not measured: code is compiled and caches are filled in them
        for _ in range(WARM):
            for each in (ours, control):
                each.turn()
        plans = would_make(ours.pid)
        before = pairs(ours, control)
        told: list[dict[str, Any]] = []
        worker = threading.Thread(target=lambda: told.append(collapse(ours.pid)))
        worker.start()
        during = []
        while worker.is_alive():
            during.append(ours.turn())
        if not told:
            raise BenchError("mmpolicy collapse failed; the traceback above has its error")
        after = pairs(ours, control)
    (row,) = told[0]["processes"]
    return {
        "kib": row["before_kib"], "plans": plans, "coverage": row["after_huge_percent"],
        "growth": 100 * row["growth_kib"] / row["before_kib"], "took_s": told[0]["took_s"],
        "cpu_s": told[0]["cpu_s"], "longest_ms": told[0]["longest_ms"],
        "skipped_kib": told[0]["skipped_kib"],
        "cpu_ratio": ratio(logs(before), logs(after)),
        "spread_before": ratio([0.0] * PAIRS, logs(before)),
        "latencies": {
            "before": latencies([each for each, _ in before]), "during": latencies(during),
            "after": latencies([each for each, _ in after]),
        },
    }  # fmt: skip


def sorts() -> dict[str, Any]:
    """Compare sorts of a PostgreSQL backend with and without collapses."""
    with thp_settings(OFF), tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        data, query = Path(folder, "data"), Path(folder, "sort.sql")
        query.write_text(SORT)
        data.mkdir()
        os.chown(data, 65534, 65534)
        made = f"{NOBODY} {POSTGRES}/initdb -D {data} --locale C --no-sync"
        subprocess.run(made.split(), check=True, cwd=folder, capture_output=True)
        backend = f"{NOBODY} {POSTGRES}/postgres --single -D {data} -c huge_pages=off"
        line = f"cd {folder} && exec {backend} -c shared_buffers=8MB postgres <{query} >/dev/null"
        with subprocess.Popen(["sh", "-c", line], stderr=subprocess.DEVNULL) as job:
            plans, kib, last = {}, 0, -1
            while job.poll() is None and kib > last:  # until the memory of the sort no longer grows
                last = kib
                time.sleep(2)
                with contextlib.suppress(OSError, BenchError, ValueError):
                    text = Path(f"/proc/{job.pid}/smaps_rollup").read_text()
                    kib = int(text.partition("Anonymous:")[2].split()[0])
            if job.poll() is not None:
                raise BenchError("the sort ended before its memory was full; raise ROWS")
            plans = would_make(job.pid)
        argv = mmpolicy("bench", "--collapse", "--runs", str(PAIRS), "--warmup", "1", "--json")
        argv += ["--", "sh", "-c", line]
        done = subprocess.run(argv, env=ENV, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BenchError(f"mmpolicy bench failed: {done.stderr[-500:]}")
        return {"kib": kib, "plans": plans, "bench": json.loads(done.stdout)}


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "redis": partial(served, redis),
    "java": partial(served, java),
    "python": partial(served, python),
    "postgres": sorts,
}
NAMES = {"redis": "redis", "java": "JVM (G1)", "python": "Python"}


def lines(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield the tables of docs/workloads/big-heap.md."""
    yield from machines(results)
    yield from ["", "| | memory | in 2 MB pages | took, CPU | CPU time per request after, of "
                "before (95 % interval) |", "|---|---|---|---|---|"]  # fmt: skip
    there = [name for name in NAMES if name in results]
    for name in there:
        one = results[name]
        middle, low, high = one["cpu_ratio"]
        yield (
            f"| {NAMES[name]} | {one['kib'] >> 10:,} MB | {one['coverage']:.1f} % | "
            f"{one['took_s']:.0f} s, {one['cpu_s']:.1f} s | "
            f"{middle:.3f} ({low:.3f} to {high:.3f}) |"
        )
    if "postgres" in results:
        yield sorted_row(results["postgres"])
    yield from ["", "| median and 99th percentile of latency, longest request, in ms | before | "
                "during | after |", "|---|---|---|---|"]  # fmt: skip
    for name in there:
        cells = (
            f"{each['p50'] / 1000:.3g}, {each['p99'] / 1000:.3g}, {each['longest'] / 1000:.3g}"
            for each in (results[name]["latencies"][when] for when in ("before", "during", "after"))
        )
        yield f"| {NAMES[name]} | {' | '.join(cells)} |"
    yield from ["", "| in 2 MB pages, and growth of memory, with `--min-used` | 100 | 98 | 90 |",
                "|---|---|---|---|"]  # fmt: skip
    planned = {name: results[name]["plans"] for name in there}
    if results.get("postgres", {}).get("plans"):
        planned["postgres"] = results["postgres"]["plans"]
    for name, plans in planned.items():
        cells = (f"{each['coverage']:.1f} %, {each['growth']:.2f} %"
                 for each in (plans[str(least)] for least in MIN_USED))  # fmt: skip
        yield f"| {NAMES.get(name, 'PostgreSQL, in a sort')} | {' | '.join(cells)} |"


def sorted_row(found: Mapping[str, Any]) -> str:
    """Return the row of PostgreSQL: CPU time and duration of a sort with `bench --collapse`, as a
    multiple of a sort without.
    """
    (arm,) = (each for each in found["bench"]["arms"] if each["name"] == "collapse")
    cpu, wall = (
        f"{each['estimate']:.3f} ({each['low']:.3f} to {each['high']:.3f})"
        for each in (arm["ratio"][name] for name in ("cpu", "wall"))
    )
    return (
        f"| PostgreSQL, a sort, collapsed meanwhile without a budget | {found['kib'] >> 10:,} MB | "
        f"{arm['mean']['collapsed'] / (1 << 20):,.0f} MB in all | - | {cpu}; its time {wall} |"
    )


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="./dev bench live", description=__doc__)
    parser.add_argument("--page", action="store_true", help="only write the tables")
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"only these of {', '.join(PARTS)}"
    )
    given = parser.parse_args(argv)
    unwind_on_signals()
    results = measured("live", KEPT, PARTS, () if given.page else given.parts or PARTS)
    PAGE.write_text(with_table(PAGE.read_text(), "live", lines(results)))
