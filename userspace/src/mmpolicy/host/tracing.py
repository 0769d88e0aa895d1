# SPDX-License-Identifier: GPL-2.0
"""The decisions that the module takes for a process, as its tracepoints tell them."""

import os
import re
from collections.abc import Callable
from typing import NamedTuple

from mmpolicy.errors import Error, Exit
from mmpolicy.host.files import MODULE, TRACING, Tree
from mmpolicy.host.processes import check_process

EVENTS = f"{TRACING}/events/{MODULE}"
BUFFER_KB = "8192"  # for each CPU
LOCK = "/run/mmpolicy/tracing.lock"
LINE = re.compile(
    r": mmpolicy_anon_(order|shadow): addr=([0-9a-f]+) site=(\w+) order=(\d+) reason=(\w+)"
)
LOST = re.compile(r"entries-in-buffer/entries-written: (\d+)/(\d+)")


class Decision(NamedTuple):
    """What was wanted for one fault, and why."""

    shadow: bool  # of the policy that is not obeyed
    address: int
    order: int
    reason: str


class Recorded(NamedTuple):
    """What was seen in some time."""

    decisions: list[Decision]
    lost: int


def record(tree: Tree, pid: int, wait: Callable[[], None]) -> Recorded:
    """Return the decisions for a process and its threads until wait() has returned."""
    check_process(tree, pid)
    with tree.locked(LOCK, f"mmpolicy, pid {os.getpid()}"), tree.tracing():
        if not tree.is_dir(EVENTS):
            raise Error(f"no {tree.real(EVENTS)}", Exit.LACKING, "mmpolicy load")
        tree.write(f"{TRACING}/buffer_size_kb", BUFFER_KB)
        tree.write(f"{TRACING}/options/event-fork", "1")
        tree.write(f"{TRACING}/set_event_pid", " ".join(tree.names(f"/proc/{pid}/task")))
        events = [name for name in tree.dirs(EVENTS) if name.startswith("mmpolicy_anon_")]
        try:
            for name in events:
                tree.write(f"{EVENTS}/{name}/enable", "1")
            wait()
        finally:
            for name in events:
                tree.write(f"{EVENTS}/{name}/enable", "0")
        return parse(tree.read(f"{TRACING}/trace"))


def parse(text: str) -> Recorded:
    """Return the decisions of a trace. In an empty PMD there is a second one for the fault."""
    decisions = [
        Decision(kind == "shadow", int(address, 16), int(order), reason)
        for kind, address, site, order, reason in LINE.findall(text)
        if site != "pmd" or order == "9"
    ]
    lost = LOST.search(text)
    return Recorded(decisions, int(lost[2]) - int(lost[1]) if lost else 0)
