# SPDX-License-Identifier: GPL-2.0
"""Effect of the example policies in BPF on patterns and programs, compared with policies in C.

The patterns are those of bench/anon_order.py, and the programs those of bench/programs.py. Each
runs in a new cgroup, as some of the examples read figures of the cgroup. Each is measured only
once, after a run that warms up, so its instructions are known to about one percent, and those of Go
and Java to five. With --json, results in FILE are not measured again.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import replace

from bench import anon_order, programs
from bench.anon_order import POINT, SMALL, Case
from lab import counting
from lab.counting import Arm, Results, Sample
from lab.guest import Guest
from lab.policies import entering, example, examples_of, loading
from lab.programs import BenchError, must

GROUP = "/sys/fs/cgroup/examples"
NEW = f"{{ rmdir {GROUP} 2>/dev/null; mkdir {GROUP}; }}"
INTO = entering(GROUP)
ROUNDS = 3  # most rounds of a pattern, as examples are measured with less precision
SOURCES = (*programs.SOURCES, "examples/bpf", "userspace/bpf")
IN_C = (programs.BASE, "never", "fixed-4", "adaptive-4")


def arms() -> list[Arm]:
    """Return arms with policies in C, then arms with all example policies of anon_order in BPF."""
    mount = "mount -t bpf bpf /sys/fs/bpf && modprobe mmpolicy"
    found = counting.of_kernel(programs.ARMS, IN_C)
    for name in examples_of("MMP_ORDER"):
        load = loading(example(name.partition(".")[0]))
        found.append(Arm(name, setup=f"{mount} && name=$({load}) && echo $name >{POINT}/policy"))
    return found


def patterns(quick: bool) -> list[Case]:
    """Return a few patterns, or all patterns on SMALL memory, with at most ROUNDS rounds."""
    found = anon_order.quick_cases() if quick else anon_order.cases(SMALL)
    return [replace(case, rounds=min(case.rounds, ROUNDS)) for case in found]


def take(guest: Guest, arm: Arm, done: set[str], quick: bool) -> Iterator[Sample]:
    """Yield the missing samples of an arm."""
    must(guest, "echo +memory >/sys/fs/cgroup/cgroup.subtree_control")
    names = {re.sub(r"\.\d ", " ", name) for name in done}
    if left := [case for case in patterns(quick) if case.name() not in names]:
        yield from anon_order.take(guest, arm, left, f"{NEW} && {INTO} ")
    for each in programs.PROGRAMS:
        if each.name not in done and not quick:
            before, command = f"{NEW} && {each.before}", f"{INTO} {each.command}"
            inside = replace(each, before=before, command=command)
            yield from programs.take(guest, arm, [inside], 1)


def main(argv: list[str]) -> None:
    text = "Compare the examples of policies in BPF. Results in FILE of --json "
    parser = counting.options("examples", f"{text}are not measured again.", plots=True)
    chosen: argparse.Namespace = parser.parse_args(argv)
    if chosen.hooks:
        raise BenchError("policies in BPF need BTF, which kernels of --hooks lack; omit --hooks")
    if chosen.plot:
        # a missing matplotlib is an error now, and not after minutes of measuring
        counting.pyplot()
    programs.build()
    about = {"cpu": counting.CPU, "unit": "instructions", "sources": counting.hash_of(*SOURCES)}
    results = Results.resume(chosen.json, "examples", about)
    measured = counting.of_kernel(arms(), chosen.arm or ())

    def take_rest(guest: Guest, arm: Arm) -> Iterator[Sample]:
        done = {each.case for each in results.samples if each.arm == arm.name}
        return take(guest, arm, done, chosen.quick)

    counting.measure(results, measured, programs.MEM, take_rest, chosen.json)
    shown = programs.only(results, [arm.name for arm in measured])
    print(f"{counting.CPU}\nInstructions show path length, not speed.\n\n{programs.tables(shown)}")
    if chosen.plot:
        programs.plot(shown, chosen.plot)
