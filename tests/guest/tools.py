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
from lab.guest import COMPILED, PYTHON, Guest
from lab.machine import TREE
from lab.programs import must, ran, workload

__all__ = ["POINT", "THP", "counters", "must"]

ROOT = "/sys/kernel/mmpolicy"
TOP = "/sys/fs/cgroup/t"  # parent of the cgroups of tests
RMDIR = f"find {TOP} -depth -type d -exec rmdir {{}} +"
# Runs scripts that import the command or tests/lab, with the bytecode compiled on the host.
SCRIPT = f"PYTHONPATH={TREE}/userspace/src:{TREE}/tests PYTHONPYCACHEPREFIX={COMPILED} {PYTHON}"
POKE = Path(__file__).with_name("poke.py")
KHUGEPAGED = f"{THP}/khugepaged"
TRACING = "/sys/kernel/tracing"
VMSTAT = "/proc/vmstat"
LRU_GEN = "/sys/kernel/mm/lru_gen/enabled"
WITHOUT_LRU_GEN = f"if [ -e {LRU_GEN} ]; then echo n >{LRU_GEN}; fi"

# The kernel's defaults of all settings that the tests change. Debian's kernel differs in `enabled`:
# under its `always` every process gets 2 MB folios, so a test could not tell which processes a
# policy has reached. Tests of README.md, of the tutorial and of verbs use `always`.
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

# After this number of turns, each policy of each point was on once. All points turn together, as
# they do not affect each other.
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
    """Unload the module, restore settings of the kernel, and remove cgroups of tests."""
    must(guest, BOOT)


def with_defaults(guest: Guest, group: str) -> Guest:
    """Set Debian's defaults of huge pages in a guest, and make a cgroup. khugepaged may not fill
    missing pages.
    """
    back_to_boot(guest)
    must(guest, f"mkdir -p /etc/mmpolicy {group}; echo always >{THP}/enabled")
    must(guest, f"for up in {TOP}/.. {TOP}; do echo +memory +cpu >$up/cgroup.subtree_control; done")
    must(guest, f"echo 0 >{KHUGEPAGED}/max_ptes_none")
    return guest


def switch(guest: Guest, policy: str, **knobs: int) -> None:
    """Set knobs of a policy of anon_order, then switch to it."""
    writes = [f"echo {value} >{POINT}/{policy}/{knob} || exit" for knob, value in knobs.items()]
    must(guest, "\n".join([*writes, f"echo {policy} >{POINT}/policy"]))


def turn_policies(guest: Guest, turn: int) -> None:
    """Load the module, and switch each point to the policy of this turn."""
    must(guest, TURN.format(root=ROOT, turns=TURNS, turn=turn))


def touch(guest: Guest, pattern: str, mib: int = 16, rounds: int = 1) -> dict[str, Any]:
    """Run the workload touch, which fails if memory has wrong data; return its output."""
    return ran(guest, f"{workload('touch')} {pattern} {mib} {rounds}")


def readme(heading: str, page: str = "README.md") -> list[list[str]]:
    """Return the commands of each block below a heading of README.md, or of another page."""
    text = (TREE / page).read_text().partition(f"\n## {heading}\n")[2]
    blocks = re.findall(r"^```\n(.*?)^```$", text.partition("\n## ")[0], re.MULTILINE | re.DOTALL)
    return [block.splitlines() for block in blocks]


def ops_command(words: str, *shell: str) -> str:
    """Return a command for the workload ops; each "sh" in words takes one item of shell."""
    commands = iter(shell)
    argv = []
    for word in words.split():
        argv += ["sh", shlex.quote(next(commands))] if word == "sh" else [word]
    return " ".join([str(workload("ops")), *argv])


def histograms(output: str) -> list[Pages]:
    """Return the numbers of pages by order that each command "folios" of ops has printed. Pages
    that are not mapped do not count.
    """
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return [{int(key): n for key, n in line.items() if key != "none"} for line in lines]


def folios(guest: Guest, words: str, *shell: str) -> list[Pages]:
    """Run ops, which fails if memory has wrong data; return what histograms() finds."""
    return histograms(must(guest, ops_command(words, *shell)))


def vmstat(guest: Guest, key: str) -> int:
    """Return a counter of /proc/vmstat in the guest."""
    return int(must(guest, f"sed -n 's/^{key} //p' {VMSTAT}"))


# Writes that fail


class Poke(NamedTuple):
    """A write that must fail, with one of these errors."""

    path: str
    text: str
    times: int
    errors: tuple[str, ...]


class Outcome(NamedTuple):
    """The result of a write, as poke.py reports it."""

    error: str
    before: str | None
    after: str | None


def poke(guest: Guest, pokes: Iterable[Poke], uid: int = 0) -> list[tuple[Poke, Outcome]]:
    """Make all writes as this user, in order; return the outcome of each."""
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
    """Mark a test for the kernels with checkers; the numbers are rounds or seconds on each of them.

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
