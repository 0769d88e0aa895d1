# SPDX-License-Identifier: GPL-2.0
"""Time that folio sizes cost or save whole programs, on this machine, without a guest.

The programs of ./dev bench programs, or with --large those of bench/large.py, run under
`mmpolicy bench`, with the kernel's own sizes as arms, in turn. So the benchmark needs Linux 6.8,
root, and a machine that is not too busy. Programs with results in FILE of --json are not measured
again. bench/evidence.py makes docs/evidence.md from these files.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import evidence, programs
from bench.fragments import fragmented, large_percent
from bench.large import large_programs
from bench.programs import LOADS, SOCKET, Program
from lab import counting
from lab.machine import TREE
from lab.programs import BenchError

NONE = "transparent_hugepage/enabled=never,hugepages-*/enabled=never"
ENDING = TREE / "bench/ending.py"
SIZES = (16, 32, 64, 128, 256, 1024)  # folio sizes below 2 MB, in kB, that arms turn on


def one(*sizes: int) -> str:
    """Return the settings of an arm in which these folio sizes (in kB) are on, and all
    others off.
    """
    return ",".join([NONE, *(f"hugepages-{kb}kB/enabled=always" for kb in sizes)])


def up_to(most: int) -> str:
    """Return the settings of an arm in which all sizes from 16 kB to `most` kB are on."""
    return one(*(kb for kb in SIZES if kb <= most))


ARMS = {
    "off": NONE,
    "off again": NONE,
    **{f"{kb} kB": one(kb) for kb in (16, 32, 64)},
    **{f"to {kb}": up_to(kb) for kb in (64, 128, 256, 1024)},
    "2 MB": one(2048),
}
QUICK = ("off", "off again", "to 64", "2 MB")
# LARGE_RUNS is the smallest number of runs that can show a difference with as many arms as QUICK
# has.
RUNS, LARGE_RUNS = (
    12,
    7,
)


def words(program: Program) -> list[str]:
    """Return the options and the command for `mmpolicy bench` that run a program with its load."""
    preload = f"env LD_PRELOAD={program.preload} " if program.preload else ""
    run = f"cd {LOADS} && exec {preload}{program.command}"
    if not program.client:
        return ["--", "sh", "-c", run]
    end = f"/usr/bin/python3 -I {ENDING} {SOCKET}"
    # the load removes the socket at its end: else the next server would look ready before it is
    load = f"cd {LOADS} && {program.client} && {end} && rm -f {SOCKET}"
    return ["--server", f"sh -c '{run}'", "--ready", f"[ -S {SOCKET} ]", "--", "sh", "-c", load]


def command(*argv: str) -> str:
    """Run mmpolicy with these arguments; return its output. If this process ends, the kernel sends
    the command a SIGTERM.
    """
    found = {**os.environ, "PYTHONPATH": str(TREE / "userspace/src")}
    line = ["setpriv", "--pdeathsig", "TERM", sys.executable, "-m", "mmpolicy", *argv]
    done = subprocess.run(line, env=found, capture_output=True, text=True)
    if done.returncode:
        raise BenchError(f"mmpolicy {argv[0]} failed ({argv[-1]}): {done.stderr.strip()}")
    return done.stdout


def fault_costs() -> list[dict[str, Any]]:
    """Return the cost of a fault of each size, as `mmpolicy calibrate` prints it."""
    found: list[dict[str, Any]] = json.loads(command("calibrate", "--json"))["faults"]
    return found


def prepare(program: Program) -> None:
    """Run the command that a program needs before its runs, such as one that makes a database."""
    if program.before != "true":
        subprocess.run(["sh", "-c", f"cd {LOADS} && {program.before}"], check=True)


def say_how_long(wanted: Sequence[Program], arms: Sequence[str], runs: int) -> None:
    """Run each program twice under the present settings, and print about how long all rounds take.

    So a program that cannot run on this machine fails now, and not after an hour.
    """
    took = 0.0
    for program in wanted:
        counting.progress(f"time: trying {program.name}")
        prepare(program)
        tried = command("bench", "--json", "--runs", "1", "--warmup", "0", *words(program))
        took += max(arm["mean"]["wall"] for arm in json.loads(tried)["arms"])
    minutes = math.ceil(took * len(arms) * runs / 60)
    counting.progress(f"time: {len(wanted)} programs, {len(arms)} arms, {runs} rounds: about "
                      f"{minutes} minutes")  # fmt: skip


def measure(program: Program, arms: Sequence[str], length: Sequence[str]) -> dict[str, Any]:
    """Run one program under all arms; return the result of `mmpolicy bench`, without single runs.

    The result includes the costs of a fault just before and just after, as the load of other
    virtual machines on the same host may change within an hour.
    """
    prepare(program)
    given = [word for name in arms for word in ("--arm", f"{name}: {ARMS[name]}")]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        before = fault_costs()
        command("bench", *given, *length, "--out", str(out), *words(program))
        result: dict[str, Any] = json.loads(out.read_text())
    for arm in result["arms"]:
        del arm["runs"]
    kept = {key: result[key] for key in result if key not in ("command", "server")}
    return kept | {"calibrations": [before, fault_costs()]}


def main(argv: list[str]) -> None:
    text = "Measure what folio sizes cost or save programs in time, on this machine."
    parser = argparse.ArgumentParser(prog="./dev bench time", description=text)
    parser.add_argument("--quick", action="store_true", help="fewer arms")
    parser.add_argument("--large", action="store_true", help="programs with gigabytes, fewer arms")
    parser.add_argument("--runs", type=int, help="of each program under each arm (12, large: 7)")
    parser.add_argument("--detect", metavar="PERCENT", help="as many runs as find this change")
    parser.add_argument(
        "--precision", metavar="PERCENT", help="run until each median ratio is known to +- PERCENT"
    )
    parser.add_argument("--cpus", type=int, metavar="N", help="run all on the first N CPUs")
    parser.add_argument("--fragmented", action="store_true", help="cut free memory in pieces first")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the results in FILE")
    parser.add_argument("--about", default="", help="a sentence on the machine, for FILE")
    parser.add_argument("names", nargs="*", metavar="PROGRAM", help="only these programs")
    chosen: argparse.Namespace = parser.parse_args(argv)
    programs.build()
    wanted = large_programs() if chosen.large else programs.PROGRAMS
    wanted = programs.chosen_programs(wanted, chosen.names)
    about = chosen.about or platform.node()
    if chosen.cpus:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: chosen.cpus])
        about += f", on {chosen.cpus} of its CPUs"
    results = evidence.load(chosen.json, about)
    given = {"--detect": chosen.detect, "--precision": chosen.precision}
    length = [word for option, value in given.items() if value for word in (option, value)]
    runs = chosen.runs or (LARGE_RUNS if chosen.large else RUNS)
    length = length or ["--runs", str(runs)]
    arms = QUICK if chosen.quick or chosen.large else tuple(ARMS)
    left = [each for each in wanted if each.name not in results["programs"]]
    if chosen.large:
        say_how_long(left, arms, runs)
        length += ["--warmup", "0"]  # no warm-up is needed, as each program has just run
    with fragmented() if chosen.fragmented else contextlib.nullcontext():
        results["large_percent"] = round(large_percent())
        for program in left:
            counting.progress(f"time: {program.name}")
            results["programs"][program.name] = measure(program, arms, length)
            if chosen.json:
                chosen.json.write_text(json.dumps(results, indent=1) + "\n")
    print("\n".join(evidence.table(results)))
