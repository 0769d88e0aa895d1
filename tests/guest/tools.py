# SPDX-License-Identifier: GPL-2.0
"""What the guest tests do again and again."""

from __future__ import annotations

import json
import shlex
from typing import Any

from anon_order import POINT, THP, counters
from common import must, ran, workload
from vm import Guest

__all__ = ["POINT", "THP", "counters", "must"]

ROOT = "/sys/kernel/mmpolicy"
KHUGEPAGED = f"{THP}/khugepaged"
VMSTAT = "/proc/vmstat"

# The kernel's defaults of all that the tests change.
BOOT = f"""
[ ! -d {ROOT} ] || rmmod mmpolicy
for file in {THP}/hugepages-*/enabled; do echo never >$file; done
echo inherit >{THP}/hugepages-2048kB/enabled
echo madvise >{THP}/enabled
echo 10000 >{KHUGEPAGED}/scan_sleep_millisecs
echo 60000 >{KHUGEPAGED}/alloc_sleep_millisecs
echo 4096 >{KHUGEPAGED}/pages_to_scan
"""

Pages = dict[int, int]


def back_to_boot(guest: Guest) -> None:
    """No module, transparent huge pages as after boot."""
    must(guest, BOOT)


def switch(guest: Guest, policy: str, **knobs: int) -> None:
    """Set knobs of a policy of anon_order, then switch to it."""
    writes = [f"echo {value} >{POINT}/{policy}/{knob} || exit" for knob, value in knobs.items()]
    must(guest, "\n".join([*writes, f"echo {policy} >{POINT}/policy"]))


def touch(guest: Guest, pattern: str, mib: int = 16, rounds: int = 1) -> dict[str, Any]:
    """Run the workload touch; it fails by itself where data is wrong."""
    return ran(guest, f"{workload('touch')} {pattern} {mib} {rounds}")


def ops_command(words: str, *shell: str) -> str:
    """A command for the workload ops; each "sh" in words takes one of shell."""
    commands = iter(shell)
    argv = []
    for word in words.split():
        argv += ["sh", shlex.quote(next(commands))] if word == "sh" else [word]
    return " ".join([str(workload("ops")), *argv])


def histograms(output: str) -> list[Pages]:
    """What each "folios" of ops printed: pages by order; those not there left out."""
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return [{int(key): n for key, n in line.items() if key != "none"} for line in lines]


def folios(guest: Guest, words: str, *shell: str) -> list[Pages]:
    """Run ops; it fails by itself where data is wrong."""
    return histograms(must(guest, ops_command(words, *shell)))


def vmstat(guest: Guest, key: str) -> int:
    """One event counter."""
    return int(must(guest, f"sed -n 's/^{key} //p' {VMSTAT}"))
