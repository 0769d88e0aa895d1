# SPDX-License-Identifier: GPL-2.0
"""Time that verbs which read memory block mmap() in a program, on this machine, without a guest.

The program (tests/workloads/hold.c) reserves much memory, uses a part of it, and calls mmap() and
munmap() each half millisecond under SCHED_FIFO. For each verb, a run measures the longest call for
some seconds without the verb (the control), and then while the verb runs. If the control exceeds
1 ms, something else disturbs the program, and both are repeated.

A hypervisor may stop a CPU of a virtual machine for milliseconds, while the program or a reader
with its mmap_lock runs there. A task on each CPU, which shares no lock with the program, records
when its CPU stalls. Only the part of a wait in which no CPU stalled counts; the output shows the
whole wait, too.

The benchmark needs root, and memory for the program; --old TREE also runs the verbs of another
tree. docs/cli.md has the figures.
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
    """The longest waits of the program hold in a run, in microseconds, and the verb's exit
    status.
    """

    control_us: float  # without the verb, not counting times in which a CPU stalled
    with_us: float  # with the verb, not counting times in which a CPU stalled
    whole_us: float  # with the verb, including times in which a CPU stalled
    stall_us: float  # the longest stall of a CPU while the verb ran
    status: str

    def text(self) -> str:
        """Return the waits as a line of output."""
        control, verb, whole, stall = (each / 1000 for each in self[:4])
        return (
            f"longest wait {verb:.2f} ms, control {control:.2f} ms; {whole:.2f} ms with stalls of "
            f"the machine, the longest {stall:.2f} ms; {self.status}"
        )


class Second(NamedTuple):
    """A line of output of the program hold: the longest times within a second, in microseconds."""

    whole_us: float = 0.0  # longest wait, including times in which a CPU stalled
    alone_us: float = 0.0  # longest wait, not counting times in which a CPU stalled
    stall_us: float = 0.0  # longest stall of any CPU

    def worse(self, other: Second) -> Second:
        """Return the larger of both values for each time."""
        return Second(*map(max, self, other))


class Program:
    """The running program hold, which waits in mmap() and prints its longest wait of each
    second.
    """

    def __init__(self, job: subprocess.Popen[str]) -> None:
        self._job, self.pid = job, job.pid

    def second(self) -> Second:
        """Wait for the program's line about the next second, and return its times."""
        assert self._job.stdout
        line = self._job.stdout.readline()
        if not line.strip():
            raise BenchError("the program hold has ended; give less --mib if memory is short")
        return Second(*map(float, line.split()))

    def longest(self, seconds: int) -> Second:
        """Return the longest times within some seconds, after the rest of the second that has
        begun.
        """
        self.second()
        found = Second()
        for _ in range(seconds):
            found = found.worse(self.second())
        return found


@contextmanager
def program(mib: int, room: int, how: str) -> Iterator[Program]:
    """Start the program hold, and wait until it has its memory."""
    argv = [str(workload("hold")), str(mib), str(room), how, "1000000"]
    with started(argv, mib) as job:
        yield Program(job)


def with_verb(waiting: Program, tree: Path, verb: str, seconds: int) -> tuple[Second, str]:
    """Return the longest times while a verb of the tree `tree` runs, and how the verb ended."""
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
        status = "the verb goes on" if job.poll() is None else f"exit {job.returncode}"
        job.terminate()
    return longest.worse(waiting.second()), status


def run(waiting: Program, tree: Path, verb: str, seconds: int) -> Waits:
    """Measure the longest waits without a verb (the control) and with it; repeat both up to TRIES
    times until the control is at most QUIET_US.
    """
    for _ in range(TRIES):
        control = waiting.longest(CONTROL_S).alone_us
        found, status = with_verb(waiting, tree, verb, seconds)
        if control <= QUIET_US:
            break
        status += ", control not quiet"
    return Waits(control, found.alone_us, found.whole_us, found.stall_us, status)


def main(argv: list[str]) -> None:
    """Print for each place of memory, tree and verb a line per run."""
    parser = argparse.ArgumentParser(prog="./dev bench hold", description=__doc__)
    parser.add_argument("--mib", type=int, default=4096, help="MiB that the program uses")
    parser.add_argument("--room", type=int, default=1024, help="GiB that the program reserves")
    parser.add_argument("--how", default="together,spread", help="where the used memory lies")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=20, help="longest run of a verb")
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
