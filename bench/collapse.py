# SPDX-License-Identifier: GPL-2.0
"""Effect of `mmpolicy collapse` on a big heap, on this machine, compared with khugepaged.

The program (tests/workloads/bigheap.c) touches its heap in random order and then reads and writes
at random. The benchmark has these parts, each in a run of its own:

reads       collapse a heap at the default CPU budget; compare the program's time of an access
            before the collapse and in each third of it
fast        collapse an equal heap without a budget; measure the duration, and the program's
            throughput in this time; then compare the time of an access with a heap that had 2 MB
            pages from the start, while the two programs run in turn
shapes      collapse heaps that are half empty, or have one page in 16, of which nothing may be
            collapsed; a heap with every second 2 MB full, of which only these may be collapsed;
            and heaps with holes, by --min-used
cpu         compare the CPU time per 2 MB with that of khugepaged without pauses, in alternating
            slices of time. khugepaged may also work on other programs, so its CPU time is divided
            by its own count of collapses. A virtual machine may return free memory to its host, and
            the next write to this memory waits for the host. So both collapse into memory that was
            written to just before.
khugepaged  measure the time until 95 % of a heap are in 2 MB pages: at the default budget, and by
            khugepaged with its defaults; and how much of a heap khugepaged collapses that was
            filled before huge pages were turned on

The benchmark sets the sizes of the whole host while it runs, and restores them; it needs root,
Linux 6.1, memory for two heaps and an idle machine. docs/workloads/big-heap.md has the figures.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any, NamedTuple

from bench import THP, thp_settings, unwind_on_signals, with_table
from lab import counting
from lab.machine import TREE, cache_dir
from lab.programs import BenchError, started, workload

NONE = {f"{file.parent.name}/enabled": "never" for file in sorted(THP.glob("hugepages-*/enabled"))}
OFF = {**NONE, "enabled": "never"}
ALWAYS = {**NONE, "hugepages-2048kB/enabled": "inherit", "enabled": "always"}
ASKED = {**ALWAYS, "enabled": "madvise"}
STOPPED = {**ASKED, "khugepaged/scan_sleep_millisecs": "4000000000"}
FAST = {**ASKED, "khugepaged/scan_sleep_millisecs": "0", "khugepaged/alloc_sleep_millisecs": "0"}
DEFAULT = {**ASKED, "khugepaged/scan_sleep_millisecs": "10000"}
TURNS, TURN_S = 60, 1
BLOCK = 2 << 20
QUICK = ("--cpu", "100", "--max-stop", "1000")
SLICE_S = 0.1
LEAD = 256  # number of free 2 MB blocks, written to just before, that the next collapses will find
ENOUGH = 95  # percentage of a heap in 2 MB pages at which khugepaged counts as done
USED = (512, 502, 461)  # numbers of used pages in each 2 MB of the heaps with holes
LEAST = (100, 98, 90)  # values of --min-used, in percent
LATE_S = 20
KEPT = TREE / "bench/collapse.json"
PAGE = TREE / "docs/workloads/big-heap.md"
PARTS = ("reads", "fast", "shapes", "cpu", "khugepaged")
PATIENCE_S = 1800


class Line(NamedTuple):
    """What the program bigheap prints for a quarter of a second."""

    at: float  # time when this line was read
    ns: float  # mean time of an access in nanoseconds
    longest_us: float  # longest time of 32 accesses in a row


class Heap:
    """A running program bigheap, which has filled its heap."""

    def __init__(self, job: subprocess.Popen[str]) -> None:
        self._job, self.pid = job, job.pid
        self.lines: list[Line] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._job.stdout
        for line in self._job.stdout:
            ns, longest = map(float, line.split())
            self.lines.append(Line(time.monotonic(), ns, longest))

    def between(self, begin: float, end: float) -> list[Line]:
        """Return the lines that the program has printed within a period."""
        return [line for line in self.lines if begin < line.at <= end]

    def turn(self, seconds: float) -> list[Line]:
        """Resume the stopped program, let it run for some seconds, and return its output."""
        self.go_on()
        time.sleep(0.5)  # the first line also covers the time in which the program was stopped
        return self.watch(seconds)

    def watch(self, seconds: float) -> list[Line]:
        """Wait for some seconds, and return the program's output in this time."""
        begin = time.monotonic()
        time.sleep(seconds)
        return self.between(begin, time.monotonic())

    def stop(self) -> None:
        self._job.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._job.send_signal(signal.SIGCONT)

    def memory(self) -> tuple[int, int]:
        """Return the program's anonymous memory, and the part of it in 2 MB pages, in KiB."""
        if self._job.poll() is not None:
            raise BenchError(f"bigheap ended with exit status {self._job.returncode}")
        return memory_of(self.pid)

    @property
    def coverage(self) -> float:
        """Return the percentage of the program's memory that is in 2 MB pages."""
        anon, huge = self.memory()
        return 100 * huge / anon


def memory_of(pid: int) -> tuple[int, int]:
    """Return the anonymous memory of a process, and the part of it in 2 MB pages, in KiB."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = {line.split()[0]: line.split()[1] for line in rollup.splitlines()[1:]}
    return int(found["Anonymous:"]), int(found["AnonHugePages:"])


@contextlib.contextmanager
def heap(mib: int, shape: str, sizes: Mapping[str, str], *more: str) -> Iterator[Heap]:
    """Start the program bigheap, and let it fill its heap under these settings of huge pages."""
    argv = [str(workload("bigheap")), str(mib), shape, *more]
    with contextlib.ExitStack() as held:
        with thp_settings(sizes):
            job = held.enter_context(started(argv, mib))
        yield Heap(job)


class Done(NamedTuple):
    """The result of one run of `mmpolicy collapse`."""

    seconds: float
    cpu_s: float  # CPU time in seconds, including the start of the command
    told: dict[str, Any]


class Verb:
    """A process of `mmpolicy collapse`, which is stopped right after its start, and killed at the
    end of the `with` block.
    """

    def __init__(self, *options: str) -> None:
        env = {**os.environ, "PYTHONPATH": str(TREE / "userspace/src")}
        # the bytecode is cached, so that the start takes no longer than that of an installed
        # command
        env |= {"PYTHONPYCACHEPREFIX": str(cache_dir() / "pyc"), "PYTHONDONTWRITEBYTECODE": ""}
        argv = [sys.executable, "-m", "mmpolicy", "collapse", *options]
        # the output is read only after the end of the process, as it fits into a pipe
        self._job = subprocess.Popen(
            argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._job.send_signal(signal.SIGSTOP)
        self._begin, self._used = time.monotonic(), 0.0

    def __enter__(self) -> Verb:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.ended():
            self._job.kill()
            self._job.wait()

    def ended(self) -> bool:
        """Return whether the process has ended; record its CPU time then."""
        if self._job.returncode is None:
            pid, status, usage = os.wait4(self._job.pid, os.WNOHANG)
            if pid:
                self._job.returncode = os.waitstatus_to_exitcode(status)
                self._used = usage.ru_utime + usage.ru_stime
        return self._job.returncode is not None

    def work(self, seconds: float) -> None:
        """Let the process run for some seconds, or until it ends, and stop it."""
        self._job.send_signal(signal.SIGCONT)
        end = time.monotonic() + seconds
        while not self.ended() and time.monotonic() < end:
            time.sleep(0.01)
        if not self.ended():
            self._job.send_signal(signal.SIGSTOP)

    def done(self) -> Done:
        """Return the result of the process, which must have ended."""
        assert self._job.stdout and self._job.stderr
        out, err = self._job.stdout.read(), self._job.stderr.read()
        if self._job.returncode:
            raise BenchError(f"mmpolicy collapse failed: {err.strip()}")
        return Done(time.monotonic() - self._begin, self._used, json.loads(out))


def collapse(pid: int, *more: str) -> Done:
    """Run `mmpolicy collapse` on a process, and return its result."""
    with Verb("--json", "--pid", str(pid), *more) as verb:
        verb.work(PATIENCE_S)
        return verb.done()


@contextlib.contextmanager
def free_memory(mib: int) -> Iterator[None]:
    """Write to 2 MB pages of `mib` MiB and LEAD more, and free them little by little.

    In the `with` block, LEAD more of these pages are free than collapses have allocated.
    """
    blocks = mib * (1 << 20) // BLOCK + LEAD
    with mmap.mmap(-1, blocks * BLOCK, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for at in range(0, blocks * BLOCK, BLOCK):
            memory[at] = 1
        over, before = threading.Event(), made_by_collapse()

        def give() -> None:
            given = 0
            while not over.wait(0.01):
                wanted = min(made_by_collapse() - before + LEAD, blocks)
                if wanted > given:
                    memory.madvise(mmap.MADV_DONTNEED, given * BLOCK, (wanted - given) * BLOCK)
                    given = wanted

        giver = threading.Thread(target=give)
        giver.start()
        try:
            time.sleep(0.1)  # by then, the thread has freed the first pages
            yield
        finally:
            over.set()
            giver.join()


def made_by_collapse() -> int:
    """Return how many 2 MB pages were allocated for collapses on this host until now."""
    text = Path("/proc/vmstat").read_text()
    return int(text.partition("\nthp_collapse_alloc ")[2].partition("\n")[0])


def speed(lines: Sequence[Line]) -> float:
    """Return the mean nanoseconds of an access in some lines of the program bigheap."""
    return mean(line.ns for line in lines)


def reads(mib: int) -> dict[str, Any]:
    """Collapse a heap at the default budget while its program runs."""
    with heap(mib, "full", OFF) as small, thp_settings(OFF):
        before, anon = speed(small.watch(10)), small.memory()[0]
        begin = time.monotonic()
        done = collapse(small.pid)
        third = (time.monotonic() - begin) / 3
        parts = [small.between(begin + third * n, begin + third * (n + 1)) for n in range(3)]
        return {
            "mib": mib, "coverage_percent": small.coverage,
            "memory_ratio": small.memory()[0] / anon,
            "seconds": done.seconds, "cpu_s": done.cpu_s,
            "throughput_in_thirds": [before / speed(part) for part in parts],
            "longest_us": max(line.longest_us for part in parts for line in part),
            "longest_collapse_ms": done.told["longest_ms"], "told_ms": done.told["one_collapse_ms"],
        }  # fmt: skip


def fast(mib: int) -> dict[str, Any]:
    """Collapse a heap without a budget; compare it with one that had 2 MB pages from the start."""
    with heap(mib, "full", OFF) as small, thp_settings(OFF):
        before = speed(small.watch(5))
        begin = time.monotonic()
        done = collapse(small.pid, "--cpu", "100")
        lines = small.between(begin, time.monotonic())
        after = speed(small.watch(5))
        small.stop()
        with heap(mib, "full", ALWAYS) as huge:
            huge.stop()
            turns = [in_turn(small, huge, ours_first=bool(turn % 2)) for turn in range(TURNS)]
            found = {"from_the_start_percent": huge.coverage}
        return {
            "mib": mib, "seconds": done.seconds, "cpu_s": done.cpu_s,
            "coverage_percent": small.coverage, "throughput": before / speed(lines),
            "longest_us": max(line.longest_us for line in lines),
            "longest_collapse_ms": done.told["longest_ms"], "told_ms": done.told["one_collapse_ms"],
            "before_ns": before, "after_ns": after, **found,
            "of_2mb_from_the_start": middle([ours / theirs for ours, theirs in turns]),
            "turns": turns,
        }  # fmt: skip


def in_turn(ours: Heap, theirs: Heap, ours_first: bool) -> tuple[float, float]:
    """Let one heap run after the other; return nanoseconds per access of each."""
    took = dict[Heap, float]()
    for each in (ours, theirs) if ours_first else (theirs, ours):
        took[each] = speed(each.turn(TURN_S))
        each.stop()
    return took[ours], took[theirs]


def shapes(mib: int) -> dict[str, Any]:
    """Collapse heaps of several shapes: half empty, sparse, mixed, and with holes."""
    found: dict[str, Any] = {"mib": mib // 8, "min_used": {}}
    for shape in ("half", "sixteenth", "mixture"):
        found[shape] = holes(mib, shape)
    for used in USED:
        found["min_used"][used] = {
            least: holes(mib // 8, str(used), "--min-used", str(least)) for least in LEAST
        }
    return found


def holes(mib: int, shape: str, *options: str) -> dict[str, Any]:
    """Collapse one heap; return the number of 2 MB pages made, and the memory before and after."""
    with heap(mib, shape, OFF) as small, thp_settings(OFF):
        before = small.memory()[0]
        made = collapse(small.pid, "--cpu", "100", *options).told["made"]
        after, huge = small.memory()
        return {"made": made, "kib": [before, after], "huge_kib": huge}


class Khugepaged:
    """The kernel's thread khugepaged, which exists while any size of huge pages is on."""

    def __init__(self) -> None:
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (folder / "comm").read_text() == "khugepaged\n":
                    self._pid = int(folder.name)
                    return
        raise BenchError("there is no khugepaged: turn huge pages on in transparent_hugepage")

    @property
    def cpu_s(self) -> float:
        """Return the CPU time of the thread until now, in seconds."""
        return int(Path(f"/proc/{self._pid}/schedstat").read_text().split()[0]) / 1e9

    @property
    def made(self) -> int:
        """Return how many 2 MB pages the thread has made until now."""
        return int((THP / "khugepaged/pages_collapsed").read_text())

    @contextlib.contextmanager
    def not_preempted(self) -> Iterator[None]:
        """Run the thread under SCHED_FIFO, like each step of `collapse`; else its nice value is
        19.
        """
        os.sched_setscheduler(self._pid, os.SCHED_FIFO, os.sched_param(1))
        try:
            yield
        finally:
            os.sched_setscheduler(self._pid, os.SCHED_OTHER, os.sched_param(0))


def by_khugepaged(small: Heap, sizes: Mapping[str, str]) -> tuple[float, float]:
    """Return the seconds until khugepaged has collapsed ENOUGH of a heap, and its CPU seconds per
    2 MB.

    khugepaged without pauses goes on scanning after the last 2 MB, so its counter is read often.
    The memory of the heap is read only afterwards, as a read takes the mmap_lock, which khugepaged
    needs.
    """
    thread = Khugepaged()
    begin, cpu_s, made = time.monotonic(), thread.cpu_s, thread.made
    wanted = small.memory()[0] * 1024 * ENOUGH // 100 // BLOCK
    with thp_settings(sizes):
        while thread.made - made < wanted or small.coverage < ENOUGH:
            if time.monotonic() - begin > PATIENCE_S:
                raise BenchError(
                    f"khugepaged has collapsed {small.coverage:.0f} % of the heap in {PATIENCE_S} "
                    f"s, less than {ENOUGH} %"
                )
            time.sleep(0.01)
        each_s = (thread.cpu_s - cpu_s) / (thread.made - made)
    return time.monotonic() - begin, each_s


def interval(ratios: Sequence[float]) -> list[float]:
    """Return the geometric mean and its 95 % interval, for ten ratios or more."""
    logs = [math.log(each) for each in ratios]
    half = 2.26 * stdev(logs) / len(logs) ** 0.5
    return [math.exp(mean(logs) + each) for each in (0, -half, half)]


def middle(ratios: Sequence[float]) -> list[float]:
    """Return the median and its 95 % interval by ranks, which a few stalls of the host leave alone.

    At least six ratios are needed.
    """
    ranked, number = sorted(ratios), len(ratios)
    out = int((number - 1.96 * number**0.5) / 2)
    return [median(ranked), ranked[out - 1], ranked[number - out]]


def cpu(mib: int, repeats: int) -> dict[str, Any]:
    """Compare the CPU time of `collapse` on one program and of khugepaged on another.

    Only the program for khugepaged has called madvise(MADV_HUGEPAGE), so khugepaged does not scan
    the other. The two collapse in alternating slices of time, so that the load of the machine
    affects both alike. The program for khugepaged has half of the memory, and the slices of
    khugepaged are half as long.
    """
    pairs: list[dict[str, float]] = []
    for number in range(repeats):
        with (
            thp_settings(STOPPED),
            heap(mib // 2, "full", STOPPED, "madvise") as theirs,
            heap(mib, "full", STOPPED) as ours,
        ):
            for each in (theirs, ours):
                each.stop()
            with free_memory(mib + mib // 2):
                pairs.append(in_slices(ours, theirs, ours_first=bool(number % 2)))
        counting.progress(f"cpu: {number + 1} of {repeats}: {pairs[-1]}")
    ratios = [each["collapse_ms"] / each["khugepaged_ms"] for each in pairs]
    without = [each["without_start_ms"] / each["khugepaged_ms"] for each in pairs]
    found = {"ratio": interval(ratios), "without_start": interval(without)}
    return {"mib": mib, "pairs": pairs, **found, "load": os.getloadavg()}


def in_slices(ours: Heap, theirs: Heap, ours_first: bool) -> dict[str, float]:
    """Collapse the heap `ours` by `mmpolicy collapse` and the heap `theirs` by khugepaged, in
    alternating slices of time.
    """
    # this run frees small pages that the host has already backed with memory, so that the start of
    # the measured process does not wait for the host
    with Verb("--help") as verb:
        verb.work(PATIENCE_S)
    thread, verb = Khugepaged(), Verb("--json", "--pid", str(ours.pid), *QUICK)
    cpu_s, made, took = thread.cpu_s, thread.made, {"collapse": 0.0, "khugepaged": 0.0}
    wanted = theirs.memory()[0] * 1024 * ENOUGH // 100 // BLOCK
    turn = ours_first
    with verb, thread.not_preempted():
        while not verb.ended() or thread.made - made < wanted:
            begin = time.monotonic()
            if turn and not verb.ended():
                verb.work(2 * SLICE_S)
                took["collapse"] += time.monotonic() - begin
            elif not turn and thread.made - made < wanted:
                with thp_settings(FAST):
                    while thread.made - made < wanted and time.monotonic() - begin < SLICE_S:
                        time.sleep(0.01)
                took["khugepaged"] += time.monotonic() - begin
            turn = not turn
        each_s = (thread.cpu_s - cpu_s) / (thread.made - made)
    done = verb.done()
    # only this heap is checked: khugepaged may have counted collapses in other programs
    if ours.coverage < ENOUGH:
        raise BenchError(f"collapse has put {ours.coverage:.0f} % of the heap into 2 MB pages, "
                         f"less than {ENOUGH} %")  # fmt: skip
    return {
        "collapse_s": took["collapse"], "khugepaged_s": took["khugepaged"],
        "collapse_ms": 1e3 * done.cpu_s / done.told["made"], "khugepaged_ms": 1e3 * each_s,
        "without_start_ms": 1e3 * done.told["cpu_s"] / done.told["made"],
    }  # fmt: skip


def khugepaged(mib: int) -> dict[str, Any]:
    """Compare the durations of `collapse` and of khugepaged, each with its defaults; measure how
    khugepaged lets a half empty heap grow, and what it makes of a heap that was filled early.
    """
    found: dict[str, Any] = {"mib": mib}
    with thp_settings(STOPPED), heap(mib, "full", STOPPED, "madvise") as small:
        found["at_the_default_budget_s"] = collapse(small.pid).seconds
    with thp_settings(STOPPED), heap(mib, "full", STOPPED, "madvise") as small:
        found["without_a_budget_s"] = collapse(small.pid, "--cpu", "100").seconds
    counting.progress("khugepaged: with its own defaults")
    with thp_settings(STOPPED), heap(mib, "full", STOPPED, "madvise") as small:
        found["khugepaged_default_s"], _ = by_khugepaged(small, DEFAULT)
    with thp_settings(STOPPED), heap(mib, "half", STOPPED, "madvise") as small:
        before = small.memory()[0]
        by_khugepaged(small, FAST)
        found["half_empty_grows"] = small.memory()[0] / before
    with heap(mib, "full", OFF) as small, thp_settings({**FAST, "enabled": "always"}):
        time.sleep(LATE_S)
        found["late"] = {"s": LATE_S, "coverage_percent": small.coverage}
    return found


def host() -> str:
    """Return the kernel version, and the number and model of the CPUs, as text."""
    model = [
        line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    name = model[0].partition(": ")[2] if model else os.uname().machine
    return f"Linux {os.uname().release.partition('-')[0]}, {os.cpu_count()} CPUs, {name}"


def with_this_host(found: dict[str, Any]) -> dict[str, Any]:
    """Return the stored results of the part "cpu" by host, with `found` as that of this host."""
    kept = json.loads(KEPT.read_text()).get("cpu", {}) if KEPT.exists() else {}
    return {**kept, host(): found}


def machines(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each host on which parts of the benchmark were measured; with several hosts,
    the line also names these parts.
    """
    parts: dict[str, list[str]] = {}
    for part, machine in results["hosts"].items():
        if part != "cpu":  # the table of the part cpu itself names the hosts
            parts.setdefault(machine, []).append(part)
    for machine, of in parts.items():
        yield f"{machine}{'' if len(parts) == 1 else ': ' + ', '.join(of)}."


def lines(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield the tables of docs/workloads/big-heap.md."""
    yield from machines(results)
    yield from [
        "",
        f"| a heap of {results['reads']['mib']:,} MB, touched in random order | |",
        "|---|---|",
    ]
    yield from (f"| {name} | {value} |" for name, value in heap_rows(results))
    yield from [
        "",
        "| and khugepaged, which knows the program | `collapse` | khugepaged |",
        "|---|---|---|",
    ]
    yield from (f"| {' | '.join(row)} |" for row in khugepaged_rows(results["khugepaged"]))
    yield from [
        "",
        "| CPU time for each 2 MB | heap, pairs in turn | `collapse` with its start, khugepaged | "
        "ratio (95 % interval) | without its start and first look | ratio |",
        "|---|---|---|---|---|---|",
    ]
    yield from (f"| {' | '.join(cpu_row(*each))} |" for each in results["cpu"].items())
    found = results["shapes"]
    yield from [
        "",
        f"| in 2 MB pages, growth of {found['mib']:,} MB, `--min-used` | "
        f"{' | '.join(map(str, LEAST))} |",
        "|---|---|---|---|",
    ]
    for used, row in found["min_used"].items():
        cells = (f"{covered(each):.1f} %, {100 * (grown(each) - 1):.1f} %" for each in row.values())
        yield f"| {used} of each 512 pages touched | {' | '.join(cells)} |"


def heap_rows(results: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield names and values of the measurements of a heap."""
    one, quick = results["reads"], results["fast"]
    yield "in 2 MB pages before, after", f"0, {one['coverage_percent']:.1f} %"
    yield "memory after, of before", f"{one['memory_ratio']:.3f}"
    yield "a random access before, after", f"{quick['before_ns']:.0f}, {quick['after_ns']:.0f} ns"
    name = "after, of a heap that had 2 MB pages from the start; median of"
    ratio = "{:.2f} ({:.2f} to {:.2f})".format(*quick["of_2mb_from_the_start"])
    yield f"{name} {len(quick['turns'])} turns", ratio
    yield "at the default budget of 3 %", f"{one['seconds']:.0f} s, {one['cpu_s']:.1f} s of CPU"
    parts = (f"{part:.2f}" for part in one["throughput_in_thirds"])
    yield "accesses in each third of that time, of before", ", ".join(parts)
    longest = one["longest_us"] / 1000, one["longest_collapse_ms"]
    yield (
        "its longest 32 accesses in that time, the longest collapse",
        "{:.0f}, {:.0f} ms".format(*longest),
    )
    yield "with `--cpu 100`", f"{quick['seconds']:.1f} s, {quick['cpu_s']:.1f} s of CPU"
    yield "accesses with `--cpu 100`, of before", f"{quick['throughput']:.2f}"
    names = {"half": "the first half of each 2 MB", "sixteenth": "one page in 16"}
    for shape, touched in names.items():
        found = results["shapes"][shape]
        values = f"{found['made']}, {grown(found):.3f}"
        yield f"where {touched} is touched: 2 MB pages, memory", values
    found = results["shapes"]["mixture"]
    yield (
        "where the first half of every second 2 MB is touched, and all of the others",
        f"{covered(found):.1f} % in 2 MB pages (66.7 % is full), {grown(found):.3f}",
    )


def covered(found: Mapping[str, Any]) -> float:
    """Return the percentage of a heap in 2 MB pages."""
    return float(100 * found["huge_kib"] / found["kib"][1])


def grown(found: Mapping[str, Any]) -> float:
    """Return the memory of a heap after the collapse, as a multiple of the memory before."""
    return float(found["kib"][1] / found["kib"][0])


def cpu_row(machine: str, found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the cells of the row for one host in the table of CPU times."""
    pairs = found["pairs"]
    ms = {name: median(pair[f"{name}_ms"] for pair in pairs)
          for name in ("collapse", "khugepaged", "without_start")}  # fmt: skip
    yield machine
    yield f"{found['mib']:,} MB, {len(pairs)}"
    yield f"{ms['collapse']:.2f}, {ms['khugepaged']:.2f} ms"
    yield "{:.2f} ({:.2f} to {:.2f})".format(*found["ratio"])
    yield f"{ms['without_start']:.2f} ms"
    yield "{:.2f} ({:.2f} to {:.2f})".format(*found["without_start"])


def khugepaged_rows(slow: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the rows of the comparison of times and memory: name, collapse, khugepaged."""
    name = f"{slow['mib']:,} MB"
    ours, theirs = slow["at_the_default_budget_s"], slow["khugepaged_default_s"]
    yield f"{name} with the defaults of each", f"{ours:.0f} s", f"{theirs:.0f} s"
    yield f"{name} with `--cpu 100`", f"{slow['without_a_budget_s']:.1f} s", ""
    yield "memory, where half of each 2 MB is touched", "1.00", f"{slow['half_empty_grows']:.2f}"
    name = f"{name}, filled before `enabled` was set to `always`; `scan_sleep_millisecs` 0"
    yield name, "", f"{slow['late']['coverage_percent']:.0f} % after {slow['late']['s']} s"


def measured(
    bench: str, kept: Path, ways: Mapping[str, Callable[[], Any]], parts: Iterable[str]
) -> dict[str, Any]:
    """Measure parts of a benchmark; store each part in the file `kept`; return the whole content.

    The file also names the host on which each part was measured.
    """
    results: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    for name in parts:
        counting.progress(f"{bench}: {name}")
        results[name] = ways[name]()
        results.setdefault("hosts", {})[name] = host()
        kept.write_text(json.dumps(results, indent=1) + "\n")
    return results


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="./dev bench collapse", description=__doc__)
    parser.add_argument("--mib", type=int, default=4096, help="MiB of a heap; khugepaged: 1/8")
    parser.add_argument("--repeats", type=int, default=10, help="number of pairs of the part cpu")
    parser.add_argument("--page", action="store_true", help="only write the tables")
    parser.add_argument("parts", nargs="*", metavar="PART", help="measure only these parts")
    given = parser.parse_args(argv)
    ways = {
        "reads": lambda: reads(given.mib),
        "fast": lambda: fast(given.mib),
        "shapes": lambda: shapes(given.mib),
        "cpu": lambda: with_this_host(cpu(given.mib, given.repeats)),
        "khugepaged": lambda: khugepaged(given.mib // 8),
    }
    unwind_on_signals()
    results = measured("collapse", KEPT, ways, () if given.page else given.parts or PARTS)
    PAGE.write_text(with_table(PAGE.read_text(), "collapse", lines(results)))
