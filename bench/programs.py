# SPDX-License-Identifier: GPL-2.0
"""Cost and savings of the policies of anon_order for whole programs, compared with stock kernels.

Each arm runs the programs in a guest of its own. The measure is the CPU time of the program,
including system time: under icount these are instructions. Memory is the largest RSS. Programs are
repeated until the 95 % interval of their instructions is 0.3 % to each side. With --json, results
in FILE are not measured again, so that programs can be added one by one.
"""

from __future__ import annotations

import argparse
import math
import shutil
import statistics
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from scipy import stats

from bench import recordings
from bench.anon_order import policy, stock_size
from lab import counting
from lab.counting import THP, Arm, Results, Sample
from lab.guest import Guest
from lab.machine import TREE, cache_dir
from lab.programs import BenchError, must, ran, workload

LOADS = TREE / "bench/loads"
BUILT = cache_dir() / "programs"
OLD_GO = "/usr/lib/go-1.19/bin/go"
SOCKET = "/run/server"
# the figures depend on the files in these directories; figures of other files are refused
SOURCES = ("module", "kernel-hooks", "bench/loads")


@dataclass(frozen=True)
class Program:
    """A program with its load; for a server also the client that fills it.

    preload: an allocator for LD_PRELOAD. before: a command that runs before the measured program.
    """

    name: str
    command: str
    preload: str = ""
    client: str = ""
    before: str = "true"

    def line(self) -> str:
        """Return the shell command that runs the program and prints its costs."""
        wait = f"while [ ! -S {SOCKET} ]; do sleep 0.1; done"
        client = f"-c '{wait}; {{ {self.client}; }} >&2' " if self.client else ""
        preload = f"env LD_PRELOAD={self.preload} " if self.preload else ""
        run = f"{workload('run')} {client}{preload}{self.command}"
        quiet = "</dev/null 2>/run/said || { cat /run/said; exit 1; }"
        return f"rm -f {SOCKET}; cd {LOADS} && {self.before} && {run} {quiet}"


PYTHON = "/usr/bin/python3 -I -S objects.py"
PERL = "perl objects.pl 25000"
JAVA = f"java -Xmx512m -cp {BUILT}"
# PostgreSQL does not run as root, and needs a database. Only one backend runs, which sorts.
POSTGRES = "/usr/lib/postgresql/15/bin"
NOBODY = "setpriv --reuid 65534 --regid 65534 --clear-groups"
TABLES = "/run/postgres/data"
NEW_TABLES = f"""\
if [ ! -e {TABLES} ]; then
    install -d -o 65534 -g 65534 /run/postgres &&
    {NOBODY} {POSTGRES}/initdb -D {TABLES} --locale C --no-sync >/run/said 2>&1 </dev/null
fi"""
BACKEND = f"{POSTGRES}/postgres --single -D {TABLES} -c huge_pages=off -c shared_buffers=8MB"
REDIS = f"redis-server --port 0 --save '' --unixsocket {SOCKET} --enable-debug-command local"
PROGRAMS = (
    Program("python", f"{PYTHON} 40000"),
    Program("python-malloc", f"env PYTHONMALLOC=malloc {PYTHON} 30000"),
    Program("perl", PERL),
    Program("perl-jemalloc", PERL, "libjemalloc.so.2"),
    Program("perl-mimalloc", PERL, "libmimalloc.so.2"),
    Program("perl-tcmalloc", PERL, "libtcmalloc_minimal.so.4"),
    Program("node", "node objects.js 20000"),
    Program("go", f"{BUILT}/go 60000"),
    Program("go-1.19", f"{BUILT}/go-1.19 60000"),
    Program("java-serial", f"{JAVA} -XX:+UseSerialGC Objects 40000"),
    Program("java-G1", f"{JAVA} -XX:+UseG1GC Objects 40000"),
    Program("sqlite", "sqlite3 -init objects.sql :memory:"),
    Program(
        "postgres",
        f"sh -c 'exec {NOBODY} {BACKEND} postgres <sort.sql'",
        before=NEW_TABLES,
    ),
    Program("gcc", "gcc -O2 -S -o /dev/null ../../tests/workloads/touch.c"),
    Program("g++", "g++ -S -o /dev/null templates.cc"),
    Program("redis", REDIS, client=f"redis-cli -s {SOCKET} debug populate 100000 key 150"),
    Program(
        "memcached",
        f"memcached -s {SOCKET} -u root -m 64 -t 1",
        client=f"/usr/bin/python3 -I fill.py {SOCKET} 60000",
    ),
)


def build() -> None:
    """Compile the loads in Java and Go; Go by Debian's compiler, and by a newer one if there."""
    BUILT.mkdir(parents=True, exist_ok=True)
    for name, go in (("go-1.19", OLD_GO), ("go", shutil.which("go") or OLD_GO)):
        command = [go, "build", "-o", str(BUILT / name), str(LOADS / "objects.go")]
        subprocess.run(command, check=True)
    subprocess.run(["javac", "-d", str(BUILT), str(LOADS / "Objects.java")], check=True)


# Measurements

MEM = "3G"
BASE = "stock-4k"
ARMS = (
    Arm(BASE, "unpatched", f"echo never >{THP}/enabled"),
    Arm("stock-64k", "unpatched", f"echo never >{THP}/enabled && {stock_size(64)}"),
    Arm("stock-2M", "unpatched", f"echo always >{THP}/enabled"),
    Arm("never", setup=policy("never")),
    *(
        Arm(f"{name}-{cap}", setup=policy(name, cap))
        for cap in (4, 9)
        for name in ("fixed", "adaptive")
    ),
)
QUICK_ARMS = (BASE, "fixed-4", "adaptive-4", "adaptive-9")
TITLES = {
    "ticks": f"instructions; of others as a multiple of {BASE}",
    "faults": "faults",
    "kb": f"most memory; of others as a multiple of {BASE}",
}


def missing(
    results: Results, arm: Arm, programs: Sequence[Program], key: str = "ticks"
) -> list[Program]:
    """Return the programs of which an arm has no sample with this figure yet."""
    return [each for each in programs if results.find(arm.name, each.name, key) is None]


def only(results: Results, arms: Sequence[str]) -> Results:
    """Return the samples of these arms, in this order, for the programs that have run in all of
    these arms.
    """
    cases = results.complete(arms)
    samples = [
        sample
        for arm in arms
        for case in cases
        for sample in results.samples
        if (sample.arm, sample.case) == (arm, case)
    ]
    return Results(results.bench, results.about, samples)


def half_interval(values: Sequence[float]) -> float:
    """Return half of the 95 % interval of the mean, relative to the mean."""
    of_mean = statistics.stdev(values) / math.sqrt(len(values))
    return float(stats.t.ppf(0.975, len(values) - 1)) * of_mean / statistics.mean(values)


def take(
    guest: Guest, arm: Arm, programs: Sequence[Program], most: int, interval: float = 0.003
) -> Iterator[Sample]:
    """Yield for each program the mean of 3 to `most` runs.

    The runs end once half of the 95 % interval of the instructions is at most `interval` of the
    mean. A first run is not counted, as it reads the files of the program from the host.
    """
    for program in programs:
        must(guest, program.line(), 1200)
        runs: list[dict[str, float]] = []
        for number in range(most):
            if number >= 3 and half_interval([run["ticks"] for run in runs]) <= interval:
                break
            runs.append(ran(guest, program.line(), 1200))
        mean = {key: statistics.mean(run[key] for run in runs) for key in TITLES}
        yield Sample(arm.name, program.name, mean)


def cell(results: Results, key: str, arm: str, case: str) -> str:
    """Format a number of an arm: absolute for BASE and for faults, else as a multiple of BASE."""
    value = results.value(arm, case, key)
    if key == "faults":
        return f"{value:.0f}"
    if arm == BASE:
        return f"{value / 1e6:.0f} M" if key == "ticks" else f"{value / 1024:.1f} MiB"
    return f"{results.ratio(arm, BASE, case, key):.3f}"


def tables(results: Results) -> str:
    """Return tables of instructions, faults and memory."""
    return "\n\n".join(
        f"{title}\n{counting.by_arm(results, results.cases(), partial(cell, results, key))}"
        for key, title in TITLES.items()
    )


def plot(results: Results, path: Path) -> None:
    """Plot instructions and memory of each program, as multiples of the arm BASE."""
    plt = counting.pyplot()
    figure, axes = plt.subplots(2, 1, figsize=(13, 9))
    arms = [arm for arm in results.arms() if arm != BASE]
    width = 0.8 / len(arms)
    for axis, key in zip(axes, ("ticks", "kb"), strict=True):
        for number, arm in enumerate(arms):
            heights = [results.ratio(arm, BASE, case, key) for case in results.cases()]
            places = [i + number * width for i in range(len(heights))]
            axis.bar(places, heights, width, label=arm)
        axis.axhline(1, color="black", linewidth=0.8)
        axis.set_xticks([i + 0.4 for i in range(len(results.cases()))])
        axis.set_xticklabels(results.cases(), rotation=45, ha="right", size=8)
        axis.set_ylim(bottom=0.8)
        axis.set_title(f"{'instructions' if key == 'ticks' else 'most memory'}, of {BASE}")
        # the legend is beside the bars, so it hides none
        axis.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def chosen_programs(programs: Sequence[Program], names: Sequence[str]) -> list[Program]:
    """Return the programs with these names, or all programs without names; raise an error for an
    unknown name.
    """
    known = [program.name for program in programs]
    if unknown := set(names) - set(known):
        raise BenchError(f"no program {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return [program for program in programs if not names or program.name in names]


def main(argv: list[str]) -> None:
    text = "Compare the policies of anon_order on whole programs. Results in FILE of --json "
    parser = counting.options("programs", text + "are not measured again.", plots=True)
    recordings.add_option(parser)
    parser.add_argument(
        "--runs", type=int, default=24, metavar="N", help="run each program at most N times"
    )
    parser.add_argument("names", nargs="*", metavar="PROGRAM", help="only these programs")
    chosen: argparse.Namespace = parser.parse_args(argv)
    programs = chosen_programs(PROGRAMS, chosen.names)
    build()
    if chosen.record:
        recordings.record(chosen.record, {program.name: program.line() for program in programs})
        return
    if chosen.plot:
        # a missing matplotlib is an error now, and not after minutes of measuring
        counting.pyplot()
    about = {"cpu": counting.CPU, "unit": "instructions", "sources": counting.hash_of(*SOURCES)}
    results = Results.resume(chosen.json, "programs", about)
    arms = counting.of_kernel(ARMS, chosen.arm or (QUICK_ARMS if chosen.quick else ()))
    begun = [arm for arm in arms if missing(results, arm, programs)]
    counting.measure(
        results,
        begun,
        MEM,
        lambda guest, arm: take(guest, arm, missing(results, arm, programs), chosen.runs),
        chosen.json,
    )
    shown = only(results, [arm.name for arm in arms])
    print(f"{counting.CPU}\nInstructions show path length, not speed.\n\n{tables(shown)}")
    if chosen.plot:
        plot(shown, chosen.plot)
