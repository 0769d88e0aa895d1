# SPDX-License-Identifier: GPL-2.0
"""Record the module's tracepoints: decisions about a process, or calls of a BPF program."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from typing import NamedTuple

from mmpolicy.errors import LOAD, Error, Exit
from mmpolicy.host.files import MODULE, TRACING, Tree
from mmpolicy.host.processes import check_process

EVENTS = f"{TRACING}/events/{MODULE}"
BUFFER_KB = "8192"  # kB of the trace buffer for each CPU
LOCK = "/run/mmpolicy/tracing.lock"
LINE = re.compile(
    r": mmpolicy_anon_(order|shadow): addr=([0-9a-f]+) site=(\w+) order=(\d+) reason=(\w+)"
)
LOST = re.compile(r"entries-in-buffer/entries-written: (\d+)/(\d+)")
# a line of the trace that is about a policy in BPF
TOLD = re.compile(r"\s*(.+)-(\d+)\s+\[\d+\] .*: mmpolicy_bpf_(\w+): policy=\S+ (.*)")
LOST_JUST_NOW = re.compile(r"CPU:\d+ \[LOST (\d+) EVENTS\]")
QUESTION = "question"


class Decision(NamedTuple):
    """A policy's decision about one page fault, with the reason."""

    shadow: bool  # True for a decision of the shadow policy, which is not applied
    address: int
    order: int
    reason: str


class Recorded(NamedTuple):
    """The decisions recorded during a time, and how many more were lost."""

    decisions: list[Decision]
    lost: int


class Told(NamedTuple):
    """A call of a BPF program with its result, or a kfunc call by the program."""

    task: str
    pid: int
    event: str  # name of the point, or QUESTION for a kfunc call
    facts: dict[str, str]


def record(tree: Tree, pid: int, wait: Callable[[], None]) -> Recorded:
    """Record the decisions about a process and its threads until wait() returns."""
    check_process(tree, pid)
    with _instance(tree):
        tree.write(f"{TRACING}/options/event-fork", "1")
        tree.write(f"{TRACING}/set_event_pid", " ".join(tree.names(f"/proc/{pid}/task")))
        with _enabled(tree, _events(tree, "anon")):
            wait()
        return parse(tree.read(f"{TRACING}/trace"))


def follow(tree: Tree, policy: str) -> Generator[Told | int, None, None]:
    """Yield the calls of a policy's BPF program, and its kfunc calls; a number in between is the
    count of calls that the trace buffer has lost.
    """
    with _instance(tree):
        events = _events(tree, "bpf")
        for name in events:
            tree.write(f"{EVENTS}/{name}/filter", f'policy == "{policy}"')
        with _enabled(tree, events), closing(tree.follow(f"{TRACING}/trace_pipe")) as lines:
            for line in lines:
                if found := TOLD.match(line):
                    facts = dict(fact.split("=", 1) for fact in found[4].split())
                    yield Told(found[1], int(found[2]), found[3], facts)
                elif lost := LOST_JUST_NOW.match(line):
                    yield int(lost[1])


@contextmanager
def _instance(tree: Tree) -> Iterator[None]:
    with tree.locked(LOCK, f"mmpolicy, pid {os.getpid()}"), tree.tracing():
        tree.write(f"{TRACING}/buffer_size_kb", BUFFER_KB)
        yield


def _events(tree: Tree, kind: str) -> list[str]:
    names = tree.dirs(EVENTS) if tree.is_dir(EVENTS) else []
    found = [name for name in names if name.startswith(f"{MODULE}_{kind}_")]
    if not found:
        raise Error(
            f"the trace event {MODULE}_{kind}_* is missing in {tree.real(EVENTS)}",
            Exit.LACKING,
            LOAD,
        )
    return found


@contextmanager
def _enabled(tree: Tree, events: list[str]) -> Iterator[None]:
    try:
        for name in events:
            tree.write(f"{EVENTS}/{name}/enable", "1")
        yield
    finally:
        for name in events:
            tree.write(f"{EVENTS}/{name}/enable", "0")


def parse(text: str) -> Recorded:
    """Return the decisions in a trace.

    A fault without a page table causes two decisions. The first one, at site "pmd", counts only if
    its order is 9; with another order, the kernel asks the policy again.
    """
    decisions = [
        Decision(kind == "shadow", int(address, 16), int(order), reason)
        for kind, address, site, order, reason in LINE.findall(text)
        if site != "pmd" or order == "9"
    ]
    lost = LOST.search(text)
    return Recorded(decisions, int(lost[2]) - int(lost[1]) if lost else 0)
