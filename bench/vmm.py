# SPDX-License-Identifier: GPL-2.0
"""Cost of a virtual machine's memory at its start, on a host without free huge pages.

QEMU populates all memory of the machine, with MADV_HUGEPAGE as by default, and runs no code in it.
The host of this machine is itself a guest with Debian's own kernel. Its `defrag` is at the default,
`madvise`, and in its free memory one page in 32 is in use and cannot be moved. Each run has a guest
of its own. The result is the CPU time of QEMU plus the time of the kernel's threads.
"""

from __future__ import annotations

import argparse
from typing import Any

from lab import counting
from lab.counting import THP, Results, Sample
from lab.guest import Guest, new_guest
from lab.machine import TREE
from lab.programs import must, workload

MIB = 400
# words for the program nodes: in all free memory but 100 MB, keep one page in 32 in use
HOLES = "crumbs -100 0 32"
CGROUP = "/sys/fs/cgroup/machine"
EXAMPLES = TREE / "debian/examples/workloads.toml"
PROFILE = f"mmpolicy load && mmpolicy apply {EXAMPLES} && mmpolicy bind --cgroup {CGROUP} vm"
FIXED = "mmpolicy set anon_order fixed max_order=9 override_madvise=1 --profile vm"
ARMS = {
    "stock": ":",
    "THP off": f"echo never >{THP}/enabled",
    "vm": PROFILE,
    "vm, fixed 9": f"{PROFILE} && {FIXED}",
}
RUNS = 3
THREADS = ("kcompactd0", "kswapd0", "khugepaged")
EVENTS = ("compact_stall", "compact_migrate_scanned", "compact_free_scanned", "pgscan_direct")
NEEDS: dict[str, Any] = {"mem": "1G", "icount": True, "swap": "1G"}


def qemu(mib: int, backend: str = "memory-backend-ram") -> str:
    """Return the command that starts a paused virtual machine and populates its `mib` MiB."""
    return (
        "qemu-system-x86_64 -accel tcg,tb-size=8 -M q35 -nodefaults -no-user-config -display none "
        f"-S -m {mib}M -object {backend},id=m,size={mib}M,prealloc=on -machine memory-backend=m "
        "-daemonize -pidfile /run/qemu.pid"
    )


LOOK = f"""\
look() {{
	for name in {" ".join(THREADS)}; do
		for id in $(pgrep -x $name); do echo $name $(cut -d" " -f1 /proc/$id/schedstat); done
	done
	grep -wE "{"|".join(EVENTS)}" /proc/vmstat
}}
echo $$ >{CGROUP}/cgroup.procs
look
{qemu(MIB)} || exit
pid=$(cat /run/qemu.pid)
look
set -- $(cat /proc/$pid/stat); echo system $((${{15}} * 10000000))
echo qemu $(cut -d" " -f1 /proc/$pid/schedstat)
sed -n "s/^AnonHugePages: *\\([0-9]*\\) kB/huge \\1/p" /proc/$pid/smaps_rollup
kill $pid
"""


def counted(text: str) -> dict[str, float]:
    """Return for each name the increase between its two readings, or the value of its only one."""
    found: dict[str, list[int]] = {}
    for line in text.splitlines():
        name, _, number = line.partition(" ")
        found.setdefault(name, []).append(int(number))
    return {name: float(each[-1] - (each[0] if each[1:] else 0)) for name, each in found.items()}


def start_machine(guest: Guest, setup: str) -> dict[str, float]:
    """Return the times and events of one start of a virtual machine, after these shell commands."""
    must(guest, f"mkdir {CGROUP}; echo madvise >{THP}/defrag")
    # a small machine first, so that QEMU's files are in the page cache
    must(guest, f"{qemu(16)} && kill $(cat /run/qemu.pid)")
    must(guest, f"{setup}; cat >/run/look <<'END'\n{LOOK}END")
    command = f"{workload('nodes')} {HOLES} sh 'sh /run/look' 2>&1"
    values = counted(must(guest, command, 1200))
    values["kernel"] = values["qemu"] + sum(values.get(name, 0) for name in THREADS)
    return values


def run(arms: list[str], runs: int) -> Results:
    """Run all arms `runs` times, in turn, each in a fresh guest."""
    results = Results("vmm", {"cpu": counting.CPU})
    for number in range(1, runs + 1):
        for arm in arms:
            with new_guest("cloud", **NEEDS) as guest:
                results.samples.append(
                    Sample(arm, f"run {number}", start_machine(guest, ARMS[arm]))
                )
            counting.progress(f"vmm: run {number}, {arm}")
    return results


def cell(results: Results, arm: str, case: str) -> str:
    """Format the CPU time of QEMU and the kernel's threads in a run, in millions of instructions,
    and the machine's memory in huge pages.
    """
    huge = results.value(arm, case, "huge") / 1024
    return f"{results.value(arm, case, 'kernel') / 1e6:,.0f} ({huge:.0f} MiB huge)"


def main(argv: list[str]) -> None:
    parser = counting.options("vmm", "Measure the start of a virtual machine.")
    chosen: argparse.Namespace = parser.parse_args(argv)
    results = run(list(ARMS), 1 if chosen.quick else RUNS)
    print(counting.by_arm(results, results.cases(), lambda arm, case: cell(results, arm, case)))
    if chosen.json:
        results.save(chosen.json)
