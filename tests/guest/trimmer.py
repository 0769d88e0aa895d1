# SPDX-License-Identifier: GPL-2.0
"""trimmer.py CGROUP TRIMS TIMES: in a guest, trim empty pages of a cgroup's processes repeatedly.

It works as `mmpolicy trim --cgroup`, without starting Python each time. A trim is one write to
split_huge_pages, for a range with empty pages. Finding the ranges of a process takes longer than
trimming them, so they are trimmed TIMES times. Standard output has the numbers of splits, of empty
pages found, of processes, and of processes that ended during a trim.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator

from mmpolicy.errors import Error
from mmpolicy.host.cgroups import cgroup_pids
from mmpolicy.host.files import Tree
from mmpolicy.host.machine import Host
from mmpolicy.memory.holds import Holds
from mmpolicy.memory.pressure import Pressure
from mmpolicy.memory.space import Space
from mmpolicy.memory.trim import Finder, Piece, Splitter


def noted(pieces: Iterable[Piece], known: list[Piece]) -> Iterator[Piece]:
    """Yield pieces, and append each of them to `known`."""
    for piece in pieces:
        known.append(piece)
        yield piece


def main(cgroup: str, trims: int, times: int) -> None:
    """Trim one process of the cgroup after the other, until TRIMS writes were made. A process may
    exit while it is trimmed.
    """
    host, found, rng = Host(Tree("/")), Counter[str](), random.Random(1)
    seen, holds = set[int](), Holds(host.tree)
    os.nice(-10)  # so that this process keeps a CPU for itself; the guest has another one
    # the script gives up after 60 s in which the cgroup has had no process
    end = time.monotonic() + 60
    while found["writes"] < trims and time.monotonic() < end:
        pids = [int(pid) for pid in cgroup_pids(host.tree, cgroup)]
        if not pids:
            time.sleep(0.005)
            continue
        pid = rng.choice(pids)
        seen.add(pid)
        known: list[Piece] = []
        try:
            finder = Finder(Space(host.tree, pid, holds), 0.0, True)
        except Error:  # the process has just exited
            continue
        pieces: Iterable[Piece] = noted(finder.pieces(), known)
        for _ in range(times):
            done = Splitter(host, Pressure(host, 100)).split(pid, pieces)
            pieces = known
            found.update(writes=done.writes, empty=done.empty, ended=done.ended)
            if done.ended or not done.writes:
                break
        end = time.monotonic() + 60
    print(json.dumps({**found, "processes": len(seen)}))


main(sys.argv[1], *map(int, sys.argv[2:]))
