# SPDX-License-Identifier: GPL-2.0
"""Cost of the profile lookup in a fault, by binding, depth and number of cgroups.

All arms run the policy `never` in one guest, so they differ only in the lookup. No controller is
enabled for the cgroups, as the costs of the memory controller also depend on the depth.
"""

from __future__ import annotations

import argparse

from lab import counting
from lab.counting import Arm, Results, Sample
from lab.guest import Guest
from lab.programs import must, ran, workload

ROOT = "/sys/kernel/mmpolicy"
CGROUPS = "/sys/fs/cgroup"
MEM = "2G"
PATTERN, MIB = "forward", 64
CASE = "fault"
BASE = "default"
BASES = (BASE, "one cgroup", "its parent")

PROFILE = f"""
echo 1 >{ROOT}/reset; echo p >{ROOT}/profiles/create
echo never >{ROOT}/profiles/p/anon_order/policy
"""


def bind(path: str) -> str:
    """Return shell commands that bind a cgroup."""
    return f"stat -c %i {CGROUPS}/{path} >{ROOT}/profiles/p/cgroups\n"


THOUSAND = f"""
for id in $(stat -c %i {CGROUPS}/many/*/); do echo $id >{ROOT}/profiles/p/cgroups; done
"""
EXPERIMENT = f"""
echo q >{ROOT}/profiles/create
echo never >{ROOT}/profiles/q/anon_order/policy
echo p >{ROOT}/experiment/control; echo q >{ROOT}/experiment/treatment
"""
START = f"echo 1 >{ROOT}/experiment/enabled"

ARMS = [
    Arm(BASE, setup=f"echo never >{ROOT}/profiles/default/anon_order/policy"),
    Arm("one cgroup", setup=PROFILE + bind("a")),
    Arm("its parent", setup=PROFILE + bind("top")),
    Arm("three levels up", setup=PROFILE + bind("top")),
    Arm("1,000 cgroups", setup=PROFILE + THOUSAND + bind("a")),
    Arm("one process", setup=PROFILE),
    Arm("experiment", setup=PROFILE + EXPERIMENT + START),
    Arm("timed", setup=f"{PROFILE}{EXPERIMENT}echo 1 >{ROOT}/experiment/time_faults\n{START}"),
]
QUICK = (*BASES, "three levels up", "1,000 cgroups", "experiment", "timed")
PLACES = {"its parent": "top/1", "three levels up": "top/1/2/3"}


def command(arm: Arm, rounds: int) -> str:
    """Return the command that runs the program touch in the cgroup of an arm, or as a process that
    is bound itself.
    """
    place = PLACES.get(arm.name, "a")
    words = f"echo $$ >{CGROUPS}/{place}/cgroup.procs; "
    if arm.name == "one process":
        words += f"echo $$ >{ROOT}/profiles/p/pids; "
    return f"sh -c '{words} exec {workload('touch')} {PATTERN} {MIB} {rounds}'"


def take(guest: Guest, arm: Arm, rounds: int) -> Sample:
    """Return the mean instructions of a fault in an arm."""
    must(guest, f"echo 1 >{ROOT}/reset\n{arm.setup}")
    found = ran(guest, command(arm, rounds))
    return Sample(arm.name, CASE, {"ticks": found["ticks"] / found["faults"]})


def run(quick: bool = False) -> Results:
    """Measure all arms, one after another, after a run that warms up the free lists."""
    results = Results("bindings", {"cpu": counting.CPU, "unit": "instructions"})
    rounds, arms = (3, [arm for arm in ARMS if arm.name in QUICK]) if quick else (21, ARMS)
    with counting.counting_guest("patched", MEM) as guest:
        must(guest, f"mkdir -p {CGROUPS}/a {CGROUPS}/top/1/2/3 {CGROUPS}/many")
        must(guest, f"cd {CGROUPS}/many && mkdir $(seq 999) && modprobe mmpolicy")
        results.about["kernel"] = must(guest, "uname -r").strip()
        take(guest, ARMS[0], rounds)
        results.samples += [take(guest, arm, rounds) for arm in arms]
    return results


def report(results: Results) -> str:
    """Return a table of the instructions of a fault in each arm, also as multiples of the BASES."""
    rows = [
        [
            sample.arm,
            f"{sample.values['ticks']:.1f}",
            *(f"{results.ratio(sample.arm, base, CASE, 'ticks'):.4f}" for base in BASES),
        ]
        for sample in results.samples
    ]
    return counting.table(["", "a fault", *BASES], rows)


def main(argv: list[str]) -> None:
    parser = counting.options("bindings", "Measure the cost of the profile lookup in a fault.")
    chosen: argparse.Namespace = parser.parse_args(argv)
    results = run(chosen.quick)
    print(f"{counting.CPU}\nInstructions of a fault, and as a multiple.\n\n{report(results)}")
    if chosen.json:
        results.save(chosen.json)
