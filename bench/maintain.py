# SPDX-License-Identifier: GPL-2.0
"""Effect of `mmpolicy maintain` on ten services in an hour, on this machine.

The services (tests/workloads/lives.c) have 4 GB in all, each in a cgroup of its own. Four do not
change their memory, and three grow. Three shrink, partly by MADV_DONTNEED and partly by writing
zeroes, and fill this memory again. The seed decides when. `maintain` runs with its defaults. Once a
minute the benchmark asks the services which part of their memory is full, and reads from pagemap
which part of the full memory is in 2 MB pages. It reads the CPU time of `maintain` from /proc.

Each minute is stored in bench/maintain.json, so an interrupted run shows how far it got. The
benchmark needs root, Linux 6.1 and the memory; it changes no setting of the host. With --guests, it
runs in guests with Debian's 6.12 instead, where empty memory can be given back, and whose time
counts instructions. docs/workloads/big-heap.md has the tables.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench import THP, unwind_on_signals, with_table
from bench.collapse import host
from lab import counting
from lab.guest import SCRIPT
from lab.machine import TREE
from lab.programs import BenchError, must, started, workload
from mmpolicy.control.maintained import LIVE
from mmpolicy.memory.collapse import is_huge

KINDS = ("sit",) * 4 + ("grow",) * 3 + ("shrink",) * 3
SAMPLE_S, END_S = 60.0, 20.0
PAGE_BYTES, HUGE = 4096, 512
STEPS = 12  # number of steps in which a service that grows gets its memory
CGROUPS = "/mmpolicy-bench-maintain"
KEPT, IN_GUESTS = TREE / "bench/maintain.json", TREE / "bench/maintain-guests.json"
# arguments of this benchmark when it runs in a guest
GUEST = "--minutes 20 --mib 500 -- --settle 200s"
PAGE = TREE / "docs/workloads/big-heap.md"


class Event(NamedTuple):
    """A command that a service gets during the run."""

    at: float  # time of the command as a part of the whole run, 0 to 1
    service: int
    command: str


def plan(seed: int, mib: int) -> list[Event]:
    """Return the commands for all services, sorted by time; a service has at most `mib` MiB."""
    rng, third, events = random.Random(seed), mib // 6 * 2, list[Event]()

    for number, kind in enumerate(KINDS):

        def add(at: float, command: str, begin: int, end: int, number: int = number) -> None:
            events.append(Event(at, number, f"{command} {begin} {end}"))

        if kind != "grow":
            add(0, "fill", 0, mib)
        else:
            sizes = [mib * (each + 3) // (STEPS + 3) for each in range(STEPS + 1)]
            times = [0.0, *sorted(rng.uniform(0.02, 0.9) for _ in range(STEPS))]
            for at, begin, end in zip(times, [0, *sizes], sizes):
                add(at, "fill", begin, end)
        if kind == "shrink":
            add(rng.uniform(0.15, 0.2), "zero", 0, third)
            add(rng.uniform(0.42, 0.48), "fill", 0, third)
            dropped = rng.uniform(0.15, 0.3)
            add(dropped, "drop", 2 * third, mib)
            add(dropped + rng.uniform(0.1, 0.2), "fill", 2 * third, mib)
    first = KINDS.index("shrink")
    dropped, zeroed = rng.uniform(0.6, 0.75), rng.uniform(0.5, 0.6)
    events.append(Event(dropped, first, f"drop {third} {2 * third}"))
    events.append(Event(zeroed, first + 1, f"zero {third} {2 * third}"))
    return sorted(events)


class State(NamedTuple):
    """The memory of a service, in pages of 4 kB."""

    filled: int  # pages that the service has filled
    wrong: int  # pages whose contents are not what the service wrote
    there: int  # pages of the service's heap that are present
    full: int  # pages in 2 MB blocks that are filled completely
    full_huge: int  # pages counted in `full` that are in pages of 2 MB
    huge: int  # all pages in 2 MB pages


class Service:
    """A running service, which takes commands on its standard input."""

    def __init__(self, name: str, job: subprocess.Popen[str]) -> None:
        self.name, self.pid, self._job = name, job.pid, job

    def say(self, command: str) -> list[str]:
        """Send the service a command, and return the words of its answer."""
        assert self._job.stdin and self._job.stdout
        self._job.stdin.write(f"{command}\n")
        self._job.stdin.flush()
        return self._job.stdout.readline().split()

    def state(self) -> State:
        """Ask the service which memory is filled, and read from pagemap what is in 2 MB pages."""
        address, filled, wrong, letters = self.say("show")
        entries = array("Q")
        with Path(f"/proc/{self.pid}/pagemap").open("rb") as file:
            file.seek(int(address, 16) // PAGE_BYTES * 8)
            entries.frombytes(file.read(len(letters) * HUGE * 8))
        huge = full_huge = 0
        for number, letter in enumerate(letters):
            if is_huge(entries[number * HUGE], entries[number * HUGE + HUGE - 1]):
                huge += HUGE
                full_huge += HUGE * (letter == "f")
        there = sum(entry >> 63 for entry in entries)
        full = letters.count("f") * HUGE
        return State(int(filled), int(wrong), there, full, full_huge, huge)


def memory_cgroups() -> Path:
    """Return the folder for the services' cgroups: in version 1 if its memory controller is
    mounted, else in version 2.
    """
    old = Path("/sys/fs/cgroup/memory")
    return (old if old.is_dir() else Path("/sys/fs/cgroup")) / CGROUPS.strip("/")


@contextlib.contextmanager
def services(mib: int) -> Iterator[list[Service]]:
    """Start the services, each in a cgroup of its own; end them and remove the cgroups at the end
    of the `with` block.
    """
    top, found = memory_cgroups(), list[Service]()
    with contextlib.ExitStack() as held:
        held.callback(lambda: top.rmdir())
        top.mkdir(exist_ok=True)
        for number, kind in enumerate(KINDS):
            folder = top / f"{kind}{number}"
            folder.mkdir(exist_ok=True)
            held.callback(folder.rmdir)
            job = held.enter_context(
                started([str(workload("lives")), str(mib)], mib, stdin=subprocess.PIPE)
            )
            (folder / "cgroup.procs").write_text(str(job.pid))
            found.append(Service(f"{CGROUPS}/{folder.name}", job))
        yield found


class Tool:
    """The running process of `mmpolicy maintain`."""

    def __init__(self, job: subprocess.Popen[str]) -> None:
        self._job = job

    def cpu_s(self) -> float:
        """Return the CPU time of the process until now, in seconds."""
        if self._job.poll() is not None:
            raise BenchError(f"mmpolicy maintain ended with exit status {self._job.returncode}")
        words = Path(f"/proc/{self._job.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    @staticmethod
    def told() -> dict[str, Any]:
        """Return the record of its work that `maintain` keeps for other commands; {} before its
        first round has ended.
        """
        found: dict[str, Any] = {}
        with contextlib.suppress(OSError):
            found = json.loads(Path(LIVE).read_text())
        return found

    def end(self) -> None:
        self._job.send_signal(signal.SIGTERM)
        self._job.wait(END_S)


@contextlib.contextmanager
def maintain(names: Sequence[str], *options: str) -> Iterator[Tool]:
    """Run `mmpolicy maintain` for these cgroups; kill it at the end of the `with` block."""
    argv = [sys.executable, "-m", "mmpolicy", "maintain", "--json", *options]
    argv += [word for name in names for word in ("--cgroup", name)]
    env = {**os.environ, "PYTHONPATH": str(TREE / "userspace/src")}
    with subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, text=True) as job:
        try:
            yield Tool(job)
        finally:
            job.kill()


def run(given: argparse.Namespace, results: dict[str, Any]) -> None:
    """Run the services under `maintain`; write the result file after each sample."""
    mib = given.mib // len(KINDS) // 2 * 2
    total_s, events = given.minutes * 60, plan(given.seed, mib)
    enabled = (THP / "enabled").read_text().partition("[")[2].partition("]")[0]
    results.update(
        host=host(), enabled=enabled, mib=mib, minutes=given.minutes, seed=given.seed,
        options=given.options, samples=[],
    )  # fmt: skip
    with services(mib) as running:
        while events and not events[0].at:
            event = events.pop(0)
            running[event.service].say(event.command)
        names = [each.name for each in running]
        with maintain(names, *given.options) as tool:
            began = time.monotonic()
            while True:
                now = time.monotonic() - began
                while events and events[0].at * total_s <= now:
                    event = events.pop(0)
                    counting.progress(f"{now:.0f} s: {names[event.service]}: {event.command}")
                    running[event.service].say(event.command)
                if now >= len(results["samples"]) * SAMPLE_S or now >= total_s:
                    results["samples"].append({
                        "at": now, "cpu_s": tool.cpu_s(), "told": tool.told(),
                        "services": [each.state()._asdict() for each in running],
                    })  # fmt: skip
                    keep(results)
                if now >= total_s:
                    break
                time.sleep(1)
            tool.end()


def in_guests() -> dict[str, Any]:
    """Run this benchmark in a guest for each value of `enabled`; return the results."""
    found = {}
    for enabled in ("never", "always"):
        with counting.counting_guest("cloud", "2G") as guest:
            run_it = f"{SCRIPT} -m bench maintain {GUEST}"
            must(guest, f"echo {enabled} >{THP}/enabled; cd {TREE} && {run_it}", None)
            found[enabled] = json.loads(must(guest, f"cat {KEPT}"))
        counting.progress(f"{enabled}: {found[enabled]['samples'][-1]}")
    return found


def guest_lines(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the table about the runs in guests."""
    first = next(iter(results.values()))
    yield (
        f"Guests with {first['host'].partition(',')[0]}, one CPU, {len(KINDS) * first['mib']} MB, "
        f"{first['minutes']:g} minutes, `{' '.join(first['options'])}`."
    )
    yield from ["", "| `enabled` | full memory in 2 MB pages at the end | empty memory | made | "
                "given back | CPU |", "|---|---|---|---|---|---|"]  # fmt: skip
    for enabled, found in results.items():
        last = found["samples"][-1]
        _, _, full, empty, made, back, _ = row(last, range(len(KINDS)))
        cpu = f"{last['cpu_s']:.1f} s, {percent(last['cpu_s'], last['at'])} of one"
        yield f"| `{enabled}` | {full} | {empty} | {made} | {back} | {cpu} |"


def keep(results: Mapping[str, Any]) -> None:
    """Write the result file; only the last sample keeps the record of `maintain`, to save space."""
    last = len(results["samples"]) - 1
    samples = [
        each if at == last else {**each, "told": {}} for at, each in enumerate(results["samples"])
    ]
    lines = ",\n  ".join(json.dumps(each) for each in samples)
    head = json.dumps({**results, "samples": []}, indent=1).rpartition("[]")[0]
    KEPT.write_text(f"{head}[\n  {lines}\n ]\n}}\n")


def mib_of(pages: float) -> int:
    return round(pages * PAGE_BYTES / (1 << 20))


def percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def lines(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield two tables: each kind of services at the end, and all services over time."""
    samples, last = results["samples"], results["samples"][-1]
    options = " ".join(results["options"])
    yield f"{results['host']}; `enabled={results['enabled']}`, seed {results['seed']},"
    used = f"`{options}`" if options else "the defaults of `maintain`"
    yield f"{last['at'] / 60:.0f} minutes, {used}."
    yield from [
        "", "| services | memory at the end | full | full memory in 2 MB pages | empty memory | "
        "made | given back | again |", "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    named = {"sit": "that sit", "grow": "that grow", "shrink": "that shrink and fill again"}
    for kind, text in named.items():
        places = [at for at, each in enumerate(KINDS) if each == kind]
        yield f"| {len(places)} {text} | {' | '.join(row(last, places))} |"
    yield f"| all | {' | '.join(row(last, range(len(KINDS))))} |"
    yield from ["", "| minute | full | full memory in 2 MB pages | empty memory | "
                "CPU of `maintain` until then |", "|---|---|---|---|---|"]  # fmt: skip
    step = max(len(samples) // 6, 1)
    for each in [*samples[step:-1:step], last]:
        whole = added(each["services"])
        yield (
            f"| {each['at'] / 60:.0f} | {mib_of(whole.full)} MB | "
            f"{percent(whole.full_huge, whole.full)} | "
            f"{percent(whole.there - whole.filled, whole.there)} | "
            f"{each['cpu_s']:.1f} s, {percent(each['cpu_s'], each['at'])} of one |"
        )
    wrong = sum(each["wrong"] for sample in samples for each in sample["services"])
    yield from ["", f"Pages with wrong contents, in all samples: {wrong}."]
    if why := last["told"]["no_trim"]:
        yield from ["Nothing could be given back here:", *textwrap.wrap(f"{why}.", 96)]


def added(states: Sequence[Mapping[str, int]]) -> State:
    return State(*(sum(each[name] for each in states) for name in State._fields))


def row(sample: Mapping[str, Any], places: Sequence[int]) -> Sequence[str]:
    """Return the cells of a row with the sums over some services."""
    whole = added([sample["services"][at] for at in places])
    told = [sample["told"]["services"][at] for at in places]
    made, back, again = (sum(each[name] for each in told)
                         for name in ("collapsed_kib", "given_back_kib", "again"))  # fmt: skip
    return (
        f"{mib_of(whole.there)} MB", f"{mib_of(whole.full)} MB",
        percent(whole.full_huge, whole.full), percent(whole.there - whole.filled, whole.there),
        f"{made >> 10} MB", f"{back >> 10} MB", f"{again} times 2 MB",
    )  # fmt: skip


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="./dev bench maintain", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="duration of the run")
    parser.add_argument("--mib", type=int, default=4096, help="MiB of all services together")
    parser.add_argument("--seed", type=int, default=1, help="decides when services grow and shrink")
    parser.add_argument("--guests", action="store_true", help="run it in guests instead")
    parser.add_argument("--page", action="store_true", help="only write the tables")
    parser.add_argument("options", nargs="*", metavar="OPTION", help="of maintain, after --")
    given = parser.parse_args(argv)
    unwind_on_signals()
    if given.guests:
        IN_GUESTS.write_text(json.dumps(in_guests(), indent=1) + "\n")
    elif not given.page:
        run(given, {})
    text = with_table(PAGE.read_text(), "maintain", lines(json.loads(KEPT.read_text())))
    if IN_GUESTS.exists():
        known = json.loads(IN_GUESTS.read_text())
        text = with_table(text, "maintain --guests", guest_lines(known))
    PAGE.write_text(text)
