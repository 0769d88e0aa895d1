# SPDX-License-Identifier: GPL-2.0
"""Memory that `mmpolicy trim` gives back after a burst, for redis, Go and a JVM.

A program makes many values (the burst), and drops all but one in a hundred. Under THP `always`,
khugepaged collapses the memory into huge pages and fills the holes with zeroes. In a guest with
Debian's own kernel and without the module, the program's memory is measured right after the burst,
ten minutes after the values were dropped, after `trim`, and ten minutes later.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from bench.programs import BUILT, LOADS, OLD_GO
from lab import counting
from lab.counting import THP, Results, Sample
from lab.guest import Guest
from lab.programs import BenchError, must, ran

MEM = "2G"
CGROUP = "/sys/fs/cgroup/burst"
FOLDER = "/run/burst"
# number of values of 100 to 1,099 bytes that are made; one in KEPT of them stays
VALUES, KEPT = 160_000, 100
LATER_S = 600
KHUGEPAGED = f"{THP}/khugepaged"


def ask(word: str) -> str:
    """Return a shell command that sends a request to a program of bench/loads, and prints the
    answer.
    """
    path = f"{FOLDER}/{word}"
    return f"rm -f {path}.done; touch {path}; until [ -s {path}.done ]; do sleep 0.1; done; " + (
        f"cat {path}.done"
    )


@dataclass(frozen=True)
class Program:
    """A program, and the shell commands that make it grow, shrink, and report its values."""

    name: str
    command: str
    burst: str = ask("burst")
    drop: str = ask("drop")
    check: str = ask("sum")


SOCKET = f"{FOLDER}/socket"
CLIENT = f"until [ -S {SOCKET} ]; do sleep 0.1; done; redis-cli -s {SOCKET}"
# By default redis forbids huge pages for itself if `enabled` is `always`; `--disable-thp no` below
# prevents that.
REDIS = f"redis-server --port 0 --save '' --unixsocket {SOCKET} --enable-debug-command local "
DELETE = "for i = 0, ARGV[1] - 1 do if i % ARGV[2] > 0 then redis.call('del', 'key:' .. i) end end"
PROGRAMS = (
    Program(
        "redis",
        f"{REDIS} --disable-thp no",
        f"{CLIENT} debug populate {VALUES} key 600",
        f'{CLIENT} eval "{DELETE}" 0 {VALUES} {KEPT}',
        f"{CLIENT} debug digest",
    ),
    Program("go", f"{BUILT}/burst {FOLDER} {VALUES} {KEPT}"),
    Program("java", f"java -Xmx512m -XX:+UseG1GC -cp {BUILT} Burst {FOLDER} {VALUES} {KEPT}"),
)


def build() -> None:
    """Compile the loads in Go and Java."""
    BUILT.mkdir(parents=True, exist_ok=True)
    go = shutil.which("go") or OLD_GO
    subprocess.run([go, "build", "-o", str(BUILT / "burst"), str(LOADS / "burst.go")], check=True)
    subprocess.run(["javac", "-d", str(BUILT), str(LOADS / "Burst.java")], check=True)


def memory(guest: Guest) -> dict[str, float]:
    """Return the program's RSS and its part in huge pages, and the memory charged to its cgroup, in
    MiB.
    """
    rollup = f"cat /proc/$(head -n 1 {CGROUP}/cgroup.procs)/smaps_rollup"
    fields = {
        line.split()[0]: int(line.split()[1]) for line in must(guest, rollup).splitlines()[1:]
    }
    current = int(must(guest, f"cat {CGROUP}/memory.current"))
    return {
        "rss": fields["Rss:"] / 1024,
        "huge": fields["AnonHugePages:"] / 1024,
        "charged": current / (1 << 20),
    }


def trim(guest: Guest) -> dict[str, float]:
    """Run `mmpolicy trim` on the program; return its figures."""
    # as `trim` advises, max_ptes_none is set to 0, so that khugepaged does not fill the memory
    # again
    must(guest, f"echo 0 >{KHUGEPAGED}/max_ptes_none")
    (row,) = ran(guest, "mmpolicy trim --cgroup /burst --json 2>/dev/null")["processes"]
    return {key: float(row[key]) for key in ("empty_kib", "writes", "longest_ms") if key in row}


def stages(guest: Guest, program: Program) -> Iterator[Sample]:
    """Yield the program's memory at each stage; raise an error if `trim` has changed the values of
    the program.
    """
    must(guest, program.burst)
    yield Sample("burst", program.name, memory(guest))
    must(guest, f"{program.drop}; sleep {LATER_S}")
    yield Sample("dropped", program.name, memory(guest))
    before = must(guest, program.check)
    done = trim(guest)
    yield Sample("trimmed", program.name, memory(guest) | done)
    must(guest, f"sleep {LATER_S}")
    yield Sample("later", program.name, memory(guest))
    if must(guest, program.check) != before:
        raise BenchError(f"{program.name}: the values of the program have changed during trim")


def take(program: Program) -> list[Sample]:
    """Run all stages of a program, in a guest of its own."""
    begin = f"exec sh -c 'echo $$ >{CGROUP}/cgroup.procs; cd {FOLDER};"
    with counting.counting_guest("cloud", MEM) as guest:
        must(guest, "echo +memory >/sys/fs/cgroup/cgroup.subtree_control")
        must(guest, f"mkdir {FOLDER} {CGROUP}")
        must(guest, f"echo always >{THP}/enabled; rmmod mmpolicy 2>/dev/null; true")
        job = guest.start(f"{begin} exec {program.command} >/run/said 2>&1'")
        try:
            return list(stages(guest, program))
        finally:
            job.stop()


def cell(results: Results, key: str, stage: str, name: str) -> str:
    """Format the MiB that a program has at a stage."""
    return f"{results.value(stage, name, key):.1f}"


def tables(results: Results) -> str:
    """Return tables of memory in MiB, with a row per program and a column per stage."""
    return "\n\n".join(
        f"{key}, MiB\n{counting.by_arm(results, results.cases(), partial(cell, results, key))}"
        for key in ("rss", "charged", "huge")
    )


def main(argv: list[str]) -> None:
    parser = counting.options("trim", "Measure what trim gives back after a burst.")
    parser.add_argument("names", nargs="*", metavar="PROGRAM", help="only these programs")
    chosen: argparse.Namespace = parser.parse_args(argv)
    build()
    results = Results("trim", {"cpu": counting.CPU})
    for program in PROGRAMS:
        if not chosen.names or program.name in chosen.names:
            results.samples += take(program)
            counting.progress(f"trim: {program.name}")
    print(tables(results))
    if chosen.json:
        results.save(chosen.json)
