# SPDX-License-Identifier: GPL-2.0
"""Collapse the memory of a program and its children while they run, without a CPU budget.

A thread of this command calls the kernel, so the CPU time of the collapses is not counted as the
program's.
"""

from __future__ import annotations

import threading

from mmpolicy.errors import Error, Exit
from mmpolicy.host.advice import BLOCK
from mmpolicy.host.files import Tree
from mmpolicy.host.machine import Host
from mmpolicy.host.processes import stat_fields
from mmpolicy.memory.collapse import Collapser, Limits, Target
from mmpolicy.memory.holds import Holds
from mmpolicy.memory.pressure import Pressure

EVERY_S = 0.1  # seconds between two searches for new memory
LIMITS = Limits(share=1.0, longest_s=float("inf"), growth_pages=0, reserve=0.01)


class Follower:
    """Collapses the memory of all processes of one session, in a thread."""

    def __init__(self, host: Host, session: int) -> None:
        self._host, self._session = host, session
        self._over, self._made, self._failure = threading.Event(), 0, ""
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def end(self) -> int:
        """Stop the thread, and return how many bytes became 2 MB pages."""
        self._over.set()
        self._thread.join()
        if self._failure:
            raise Error(self._failure, Exit.FAILED, "mmpolicy collapse --pid N explains why")
        return self._made * BLOCK

    def _follow(self) -> None:
        holds = Holds(self._host.tree)
        while not self._over.wait(EVERY_S) and not self._failure:
            for pid in processes_of(self._host.tree, self._session):
                try:
                    self._collapse(Target(self._host, pid, holds, 0))
                except Error as err:
                    if err.exit_code == Exit.DENIED:
                        self._failure = err.message
                    continue  # the process has just ended

    def _collapse(self, target: Target) -> None:
        collapser = Collapser(self._host, LIMITS, Pressure(self._host, 100))
        for _ in collapser.run({target.pid: target}, target.look().areas):
            if self._over.is_set():
                break
        self._made += sum(collapser.done.made.values())
        self._failure = collapser.done.stopped


def processes_of(tree: Tree, session: int) -> list[int]:
    """Return the processes of a session."""
    found = []
    for name in tree.inodes("/proc"):
        if name.isdigit():
            pid = int(name)
            if stat_fields(tree, pid)[3:4] == [str(session)]:
                found.append(pid)
    return found
