# SPDX-License-Identifier: GPL-2.0
"""Gain of lazy freeing over MADV_DONTNEED, and the part of it that the policies of madv_free keep.

Each arm runs an allocator loop (tests/workloads/lazy.c) in a guest of its own: each thread takes a
free chunk, writes to all its pages, and frees another chunk. Half of the chunks are free at any
time. The limit of the policy cap is given as a multiple of the size of all free chunks.

The loop also runs in bursts with Debian's jemalloc. In the pauses between them, jemalloc's
background thread returns memory that has been free for dirty_decay_ms: by MADV_DONTNEED in the arm
"dontneed", in the other arms by MADV_FREE, and by MADV_DONTNEED after muzzy_decay_ms more. In this
case only instructions of the process count.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from lab import counting
from lab.counting import Arm, Results, Sample
from lab.guest import Guest
from lab.programs import must, ran, workload

POINT = "/sys/kernel/mmpolicy/profiles/default/madv_free"
STATS = "/sys/kernel/debug/mmpolicy/default/madv_free/stats"
MEM = "2G"
SAMPLE_US = 1000
JEMALLOC = "LD_PRELOAD=libjemalloc.so.2 MALLOC_CONF=background_thread:true,dirty_decay_ms:10"


def policy(name: str, **knobs: int) -> str:
    """Return shell commands that load the module and select a policy."""
    writes = [f"echo {value} >{POINT}/{name}/{knob}" for knob, value in knobs.items()]
    return " && ".join(["modprobe mmpolicy", *writes, f"echo {name} >{POINT}/policy"])


def loop(advice: str, *numbers: int) -> str:
    """Return a command for the workload lazy, with an advice and numbers as its arguments."""
    program = workload("lazy", "-pie")  # not linked statically, so that LD_PRELOAD works
    return " ".join([str(program), advice, *map(str, numbers)])


@dataclass(frozen=True)
class Case:
    """One run of the loop, with half of its chunks free.

    idle: number of chunks that are never taken. muzzy: muzzy_decay_ms of jemalloc, which then
    manages the chunks; -1 for never, None for a run without jemalloc.
    """

    threads: int
    chunk_kb: int = 128
    chunks: int = 128
    rounds: int = 1000
    idle: int = 0
    muzzy: int | None = None

    def name(self) -> str:
        """Return the name of the case in the tables."""
        idle = f", {self.idle} idle" if self.idle else ""
        muzzy = "" if self.muzzy is None else f", jemalloc {self.muzzy}"
        return f"{self.threads} x {self.chunks} of {self.chunk_kb} kB{idle}{muzzy}"

    def free_mb(self) -> float:
        """Return how many MB of chunks are free at any time."""
        return self.threads * self.chunk_kb * self.chunks / 2 / 1024

    def command(self, advice: str) -> str:
        """Return the shell command that runs the loop with this advice: "free" or "dontneed"."""
        numbers = (self.threads, self.rounds, self.chunk_kb, self.chunks, 50, self.idle)
        if self.muzzy is None:
            return loop(advice, *numbers)
        muzzy = 0 if advice == "dontneed" else self.muzzy
        return f"{JEMALLOC},muzzy_decay_ms:{muzzy} {loop('malloc', *numbers)}"

    def sample_us(self) -> int:
        """Return the interval between two samples of the memory, in microseconds; it is longer for
        jemalloc, as its runs have pauses.
        """
        return SAMPLE_US if self.muzzy is None else 20 * SAMPLE_US


@dataclass(frozen=True)
class FreeArm(Arm):
    """An arm, with the advice by which it frees, and the limit of the policy cap as a multiple of
    the free memory; 0 without a limit.
    """

    advice: str = "free"
    limit: float = 0


ARMS = (
    FreeArm("dontneed", "unpatched", advice="dontneed"),
    FreeArm("lazy", "unpatched"),
    FreeArm("stock", setup=policy("stock")),
    FreeArm("eager", setup=policy("eager")),
    FreeArm("cap", setup=policy("cap")),
    *(FreeArm(f"cap-{x:g}", setup=policy("cap"), limit=x) for x in (1.5, 1.25, 1.125, 0.5)),
)
QUICK_ARMS = tuple(arm for arm in ARMS if arm.name in ("dontneed", "lazy", "eager", "cap-1.5"))
CASES = (
    *(Case(threads) for threads in range(1, 9)),
    Case(1, 4, 2048, 10000),
    Case(1, 16, 1024, 4000),
    Case(1, 1024, 16, 200),
    Case(1, rounds=40, muzzy=-1),
    Case(4, rounds=40, muzzy=-1),
    Case(1, rounds=40, muzzy=1000),  # with more threads, the result of this case depends on timing
)
QUICK_CASES = (
    Case(1, rounds=400),
    Case(8, chunks=64, rounds=200),
    Case(1, rounds=40, muzzy=-1),
)


def take_sample(guest: Guest, arm: FreeArm, case: Case) -> Sample:
    """Run the loop twice: the first run gives instructions and faults, the second one is sampled
    for its memory, which would disturb the first.
    """
    if arm.limit:
        must(guest, f"echo {round(arm.limit * case.free_mb())} >{POINT}/cap/limit_mb")
    timed = ran(guest, case.command(arm.advice))
    sampled = ran(guest, f"SAMPLE_US={case.sample_us()} {case.command(arm.advice)}")
    values = {key: float(timed[key]) for key in ("ticks", "faults")}
    values |= {key: float(sampled[key]) for key in ("samples", "lazy_kb", "rss_kb")}
    return Sample(arm.name, case.name(), values)


def take(guest: Guest, arm: Arm, chosen: Sequence[Case]) -> Iterator[Sample]:
    """Yield the samples of one arm, after a run that warms up the kernel's lists of free pages."""
    assert isinstance(arm, FreeArm)
    must(guest, Case(1).command("dontneed"))
    for case in chosen:
        yield take_sample(guest, arm, case)


def run(arms: Sequence[FreeArm], chosen: Sequence[Case]) -> Results:
    """Measure arms, each in a fresh guest."""
    results = Results("madv_free", {"cpu": counting.CPU, "unit": "instructions"})
    counting.measure(results, arms, MEM, lambda guest, arm: take(guest, arm, chosen))
    return results


# Output


def gain(results: Results, arm: str, case: str) -> float:
    """Return the share of the gain of the arm "lazy" over "dontneed" that an arm keeps: 1 for all,
    0 for none.
    """
    dontneed, lazy, taken = (results.value(a, case, "ticks") for a in ("dontneed", "lazy", arm))
    return (dontneed - taken) / (dontneed - lazy)


def cell(results: Results, key: str, arm: str, case: str) -> str:
    """Format a number of an arm for the table of `key`: ticks, gain, faults, or memory."""
    value = results.find(arm, case, key if key != "gain" else "ticks")
    if value is None:
        return "-"
    if key == "gain":
        return f"{gain(results, arm, case):.3f}"
    if key.endswith("_kb"):
        return f"{value / 1024:.1f}"
    if key == "faults" or arm == "dontneed":
        return f"{value:.0f}" if key == "faults" else f"{value / 1e6:.1f} M"
    return f"{results.ratio(arm, 'dontneed', case, key):.4f}"


TITLES = {
    "ticks": "instructions; of others as a multiple of dontneed",
    "gain": "gain over dontneed, as a part of that of lazy",
    "faults": "faults of the whole run",
    "lazy_kb": "largest amount of lazily freed memory, MiB, sampled",
    "rss_kb": "largest RSS, MiB, sampled",
}


def tables(results: Results) -> str:
    """Return all tables."""
    return "\n\n".join(
        f"{title}\n{counting.by_arm(results, results.cases(), partial(cell, results, key))}"
        for key, title in TITLES.items()
    )


def main(argv: list[str]) -> None:
    parser = counting.options("madv_free", "Compare the policies of madv_free.")
    chosen: argparse.Namespace = parser.parse_args(argv)
    results = run(QUICK_ARMS if chosen.quick else ARMS, QUICK_CASES if chosen.quick else CASES)
    print(f"{counting.CPU}\nInstructions show path length, not speed.\n\n{tables(results)}")
    if chosen.json:
        results.save(chosen.json)
