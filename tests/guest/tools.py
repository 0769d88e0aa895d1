# SPDX-License-Identifier: GPL-2.0
"""Steps that many tests in guests share."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bench.anon_order import POINT, counters
from lab.counting import THP
from lab.guest import SCRIPT, Guest
from lab.machine import TREE
from lab.programs import must, ran, workload

__all__ = ["POINT", "SCRIPT", "THP", "counters", "must"]

ROOT = "/sys/kernel/mmpolicy"
TOP = "/sys/fs/cgroup/t"  # the cgroup in which tests make their cgroups
RMDIR = f"find {TOP} -depth -type d -exec rmdir {{}} +"
POKE = Path(__file__).with_name("poke.py")
KHUGEPAGED = f"{THP}/khugepaged"
TRACING = "/sys/kernel/tracing"
VMSTAT = "/proc/vmstat"
LRU_GEN = "/sys/kernel/mm/lru_gen/enabled"
WITHOUT_LRU_GEN = f"if [ -e {LRU_GEN} ]; then echo n >{LRU_GEN}; fi"

# Restores the kernel's defaults of all settings that tests change. Debian's kernel differs in
# `enabled`: under its `always` every process gets 2 MB folios, so a test could not tell which
# processes a policy has reached. Tests of README.md, of the tutorial and of verbs use `always`.
BOOT = f"""
[ ! -d {ROOT} ] || rmmod mmpolicy
{RMDIR} 2>/dev/null
for file in {THP}/hugepages-*/enabled; do echo never >$file; done
echo inherit >{THP}/hugepages-2048kB/enabled
echo madvise >{THP}/enabled
echo 10000 >{KHUGEPAGED}/scan_sleep_millisecs
echo 60000 >{KHUGEPAGED}/alloc_sleep_millisecs
echo 4096 >{KHUGEPAGED}/pages_to_scan
echo 511 >{KHUGEPAGED}/max_ptes_none
echo 64 >{KHUGEPAGED}/max_ptes_swap
echo 20 >/proc/sys/vm/compaction_proactiveness
"""

# After this number of turns, each policy of each hook point was on once. All hook points change at
# the same time, as they do not affect each other.
TURNS = 4
TURN = """
modprobe mmpolicy || exit
for point in {root}/policies/*; do
	set -- "$point"/*
	[ $# -le {turns} ] || exit
	shift $(({turn} % $#))
	echo "${{1##*/}}" >{root}/profiles/default/"${{point##*/}}"/policy || exit
done
"""

Pages = dict[int, int]


def back_to_boot(guest: Guest) -> None:
    """Unload the module, restore the kernel's settings to those after the boot, and remove the
    cgroups that tests have made.
    """
    must(guest, BOOT)


def with_defaults(guest: Guest, group: str) -> Guest:
    """Set Debian's defaults of huge pages in a guest, make a cgroup, and return the guest.
    khugepaged may not fill missing pages, as it would hide empty ones.
    """
    back_to_boot(guest)
    must(guest, f"mkdir -p /etc/mmpolicy {group}; echo always >{THP}/enabled")
    must(guest, f"for up in {TOP}/.. {TOP}; do echo +memory +cpu >$up/cgroup.subtree_control; done")
    must(guest, f"echo 0 >{KHUGEPAGED}/max_ptes_none")
    return guest


def switch(guest: Guest, policy: str, **knobs: int) -> None:
    """Set knobs of a policy of anon_order, and then choose this policy in the default profile."""
    writes = [f"echo {value} >{POINT}/{policy}/{knob} || exit" for knob, value in knobs.items()]
    must(guest, "\n".join([*writes, f"echo {policy} >{POINT}/policy"]))


def turn_policies(guest: Guest, turn: int) -> None:
    """Load the module, and choose for each hook point the policy of this turn."""
    must(guest, TURN.format(root=ROOT, turns=TURNS, turn=turn))


def touch(guest: Guest, pattern: str, mib: int = 16, rounds: int = 1) -> dict[str, Any]:
    """Run the workload touch, and return what it prints. It fails if its memory has wrong data."""
    return ran(guest, f"{workload('touch')} {pattern} {mib} {rounds}")


def readme(heading: str, page: str = "README.md") -> list[list[str]]:
    """Return the commands of each code block below a heading of README.md, or of another page."""
    text = (TREE / page).read_text().partition(f"\n## {heading}\n")[2]
    blocks = re.findall(r"^```\n(.*?)^```$", text.partition("\n## ")[0], re.MULTILINE | re.DOTALL)
    return [block.splitlines() for block in blocks]


def ops_command(words: str, *shell: str) -> str:
    """Return a shell command that runs the workload ops with these words as arguments. Each "sh" in
    them takes the next item of `shell`, which ops then runs.
    """
    commands = iter(shell)
    argv = []
    for word in words.split():
        argv += ["sh", shlex.quote(next(commands))] if word == "sh" else [word]
    return " ".join([str(workload("ops")), *argv])


def histograms(output: str) -> list[Pages]:
    """For each command "folios" that ops has run, return how many pages it has printed for each
    folio order. Pages that are not mapped do not count.
    """
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return [{int(key): n for key, n in line.items() if key != "none"} for line in lines]


def folios(guest: Guest, words: str, *shell: str) -> list[Pages]:
    """Run the workload ops, which fails if its memory has wrong data; return for each of its
    commands "folios" the number of pages in folios of each order.
    """
    return histograms(must(guest, ops_command(words, *shell)))


def vmstat(guest: Guest, key: str) -> int:
    """Return a counter of /proc/vmstat in the guest."""
    return int(must(guest, f"sed -n 's/^{key} //p' {VMSTAT}"))


# Writes that fail


class Poke(NamedTuple):
    """A write to a file that must fail, with one of the given errors."""

    path: str
    text: str
    times: int
    errors: tuple[str, ...]


class Outcome(NamedTuple):
    """The result of a write as poke.py reports it: the name of its error, and the values of the
    file before and after it.
    """

    error: str
    before: str | None
    after: str | None


def poke(guest: Guest, pokes: Iterable[Poke], uid: int = 0) -> list[tuple[Poke, Outcome]]:
    """Make all writes in the guest as this user, in order; return each write with its outcome."""
    rest = list(pokes)
    done: list[tuple[Poke, Outcome]] = []
    while rest:
        some, rest = rest[:400], rest[400:]
        text = shlex.quote(json.dumps([[task.path, task.text, task.times] for task in some]))
        output = must(guest, f"printf %s {text} | /usr/bin/python3 {POKE} {uid}")
        done += zip(some, (Outcome(*found) for found in json.loads(output)), strict=True)
    return done


def refused(outcomes: list[tuple[Poke, Outcome]]) -> None:
    """Check that each write has failed with one of its errors, and has changed nothing."""
    assert outcomes
    wrong = [
        f"{task.path} <- {task.text!r} * {task.times}: {outcome}, not {task.errors}"
        for task, outcome in outcomes
        if outcome.error not in task.errors or outcome.before != outcome.after
    ]
    assert not wrong, "\n".join(wrong)


def checkers(name: str, *debug: int, kasan: int, kcsan: int = 0) -> pytest.MarkDecorator:
    """Mark a test to run on the kernels with checkers. The numbers are its rounds or seconds on
    each of these kernels.

    The kernel debug has lockdep, PROVE_RCU and DEBUG_ATOMIC_SLEEP, kasan also KASAN and kmemleak,
    and kcsan KCSAN. Only the first number of debug is for every run; ./dev test --full adds the
    others.
    """
    short, *long = [*(("debug", n) for n in debug), ("kasan", kasan)]
    long += [("kcsan", kcsan)] if kcsan else []
    params = [pytest.param(*short, marks=pytest.mark.flavor(short[0]))]
    params += [
        pytest.param(*run, marks=[pytest.mark.flavor(run[0]), pytest.mark.full]) for run in long
    ]
    return pytest.mark.parametrize(("flavor", name), params)
