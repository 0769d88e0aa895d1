# SPDX-License-Identifier: GPL-2.0
"""Runs in a guest: gives back what is empty in the processes of a cgroup, again and again.

trimmer.py CGROUP ROUNDS: as `mmpolicy trim --cgroup` does, without starting Python each time.
Prints how often it split something, how many empty pages it saw, how many processes there were,
and how many of them ended while they were trimmed.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections import Counter

from mmpolicy.host.cgroups import cgroup_pids
from mmpolicy.host.files import Tree
from mmpolicy.host.machine import Host
from mmpolicy.memory.trim import Pressure, Splitter, find_pieces


def main(cgroup: str, rounds: int) -> None:
    """Trim a process in each round, whatever becomes of it meanwhile."""
    host, found, rng = Host(Tree("/")), Counter[str](), random.Random(1)
    seen = set[int]()
    os.nice(-10)  # the others have the other CPU
    end = time.monotonic() + 60  # without a process for so long, there will be none
    while rounds and time.monotonic() < end:
        pids = [int(pid) for pid in cgroup_pids(host.tree, cgroup)]
        if not pids:
            time.sleep(0.005)
            continue
        pid = rng.choice(pids)
        seen.add(pid)
        pieces = find_pieces(host.tree, pid, 0.0, True)
        done = Splitter(host, Pressure(host, 100)).split(pid, pieces)
        found.update(writes=done.writes, empty=done.empty, ended=done.ended)
        rounds -= 1
        end = time.monotonic() + 60
    print(json.dumps({**found, "processes": len(seen), "left": rounds}))


main(sys.argv[1], int(sys.argv[2]))
