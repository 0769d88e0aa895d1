# SPDX-License-Identifier: GPL-2.0
"""How long verbs that read memory block the mmap() of a program, on this machine, without a guest.

The program (tests/workloads/hold.c) reserves much memory, uses a part, and calls mmap() and
munmap() each half millisecond under SCHED_FIFO. A run has for each verb some seconds without it,
the control, and then some with it; if the control exceeds 1 ms, something else disturbs the
program, and both are repeated.

A virtual machine stalls the program, or a reader that holds its lock, for milliseconds. A task on
each CPU, which shares no lock with the program, records when its CPU stalls. Only the part of a
wait in which no CPU stalled counts; the output has the whole wait, too.

Needs root, and memory for the program; --old TREE runs the verbs of another tree too. docs/cli.md
has the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from lab import counting
from lab.machine import TREE
from lab.programs import BenchError, started, workload

CONTROL_S, QUIET_US, TRIES = 4, 1000, 8
VERBS = ("top --json", "map {pid}", "trim --pid {pid} --dry-run", "recommend --seconds 10",
         "explain {pid}")  # fmt: skip


class Waits(NamedTuple):
    """The longest waits of the program in a run, in microseconds, and the verb's exit status."""

    control_us: float
    with_us: float
    whole_us: float  # with the verb, including times in which a CPU stalled
    stall_us: float  # the longest, while the verb ran
    status: str

    def text(self) -> str:
        """Return a line of output."""
        control, verb, whole, stall = (each / 1000 for each in self[:4])
        return (
            f"{verb:.2f} ms, control {control:.2f}; {whole:.2f} with stalls of the machine, "
            f"which were up to {stall:.2f}; {self.status}"
        )


class Second(NamedTuple):
    """A line of the program's output: times of a second, in microseconds."""

    whole_us: float = 0.0
    alone_us: float = 0.0  # without stalls
    stall_us: float = 0.0

    def worse(self, other: Second) -> Second:
        """Return the maximum of each time."""
        return Second(*map(max, self, other))


class Program:
    """The waiting program, which prints the longest wait of each second."""

    def __init__(self, job: subprocess.Popen[str]) -> None:
        self._job, self.pid = job, job.pid

    def second(self) -> Second:
        """Return the longest wait of the next second."""
        assert self._job.stdout
        line = self._job.stdout.readline()
        if not line.strip():
            raise BenchError("the program has ended: is there memory for it?")
        return Second(*map(float, line.split()))

    def longest(self, seconds: int) -> Second:
        """Return the longest wait of some seconds."""
        self.second()
        found = Second()
        for _ in range(seconds):
            found = found.worse(self.second())
        return found


@contextmanager
def program(mib: int, room: int, how: str) -> Iterator[Program]:
    """Start the program, and wait until it has its memory."""
    argv = [str(workload("hold")), str(mib), str(room), how, "1000000"]
    with started(argv, mib) as job:
        yield Program(job)


def with_verb(waiting: Program, tree: Path, verb: str, seconds: int) -> tuple[Second, str]:
    """Return the longest wait while a verb runs, and how the verb ended."""
    words = verb.format(pid=waiting.pid).split()
    env = {**os.environ, "PYTHONPATH": str(tree / "userspace/src")}
    argv = [sys.executable, "-m", "mmpolicy", *words]
    longest = Second()
    with subprocess.Popen(
        argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as job:
        for _ in range(seconds):
            longest = longest.worse(waiting.second())
            if job.poll() is not None:
                break
        status = "goes on" if job.poll() is None else f"exit {job.returncode}"
        job.terminate()
    return longest.worse(waiting.second()), status


def run(waiting: Program, tree: Path, verb: str, seconds: int) -> Waits:
    """Run a control and a verb, until the control is quiet."""
    for _ in range(TRIES):
        control = waiting.longest(CONTROL_S).alone_us
        found, status = with_verb(waiting, tree, verb, seconds)
        if control <= QUIET_US:
            break
        status += ", control not quiet"
    return Waits(control, found.alone_us, found.whole_us, found.stall_us, status)


def main(argv: list[str]) -> None:
    """Print for each build and verb a line per run."""
    parser = argparse.ArgumentParser(prog="./dev bench hold", description=__doc__)
    parser.add_argument("--mib", type=int, default=4096, help="memory of the program")
    parser.add_argument("--room", type=int, default=1024, help="GiB that it reserves")
    parser.add_argument("--how", default="together,spread", help="where its memory lies")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=20, help="of a verb, at most")
    parser.add_argument("--old", type=Path, help="another tree, whose verbs run too")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args(argv)
    trees = {"new": TREE} | ({"old": given.old} if given.old else {})
    found: dict[str, list[Waits]] = {}
    for how in given.how.split(","):
        with program(given.mib, given.room, how) as waiting:
            for number in range(given.runs):
                for build, tree in trees.items():
                    for verb in VERBS:
                        each = run(waiting, tree, verb, given.seconds)
                        found.setdefault(f"{how}, {build}: {verb}", []).append(each)
                        counting.progress(
                            f"run {number + 1}, {how}, {build}: {verb}: {each.text()}"
                        )
    for name, waits in found.items():
        print(name, *(each.text() for each in waits), sep="\n  ")
    if given.json:
        data = {name: [each._asdict() for each in waits] for name, waits in found.items()}
        given.json.write_text(json.dumps(data, indent=1) + "\n")
