# SPDX-License-Identifier: GPL-2.0
"""Trials of `try` that end at random moments, in all ways in which a trial can end on a host."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lab.guest import by_line
from lab.machine import TREE
from lab.programs import must, workload

from .conftest import Machines
from .tools import ROOT, SCRIPT, TOP, with_defaults

pytestmark = [pytest.mark.flavor("cloud"), pytest.mark.long]
SECONDS = 90.0  # rough duration, for the schedule
ENDS = Path(__file__).with_name("try_ends.py")
RECORD = TREE / "bench/try-ends.jsonl"
SEED, ROUNDS = 2, 4
# name of an environment variable with SEED:ROUNDS; if it is set, these rounds run and are written
# to RECORD
MORE = "MMPOLICY_TRY_ENDS"
GROUP = f"{TOP}/tried"
# A program that takes less CPU time, and as much memory, while the treatment of a trial or the
# profile that the trial has kept decides for it. It faults in all blocks, as a report compares
# nothing if no policy has decided. It looks at the share of treated units, too, as an experiment
# binds no cgroup: in a block of the treatment the share is 100 %.
WORKS = f"""
import contextlib, mmap, time
from pathlib import Path
def treated():
    root = Path("{ROOT}")
    with contextlib.suppress(OSError):
        bound = any(path.read_text() for path in root.glob("profiles/[!d]*/cgroups"))
        told = [(root / "experiment" / name).read_text() for name in ("enabled", "percent")]
        return bound or told == ["1\\n", "100\\n"]
while True:
    time.sleep(0.1)
    with mmap.mmap(-1, 65536, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as area:
        area.write(bytes(65536))
    if not treated():
        sum(range(200000))
"""
LOAD = (
    f"{workload('ops')} map 8192 touch 0 8192 sh 'exec sleep infinity' & "
    f"exec python3 -c {shlex.quote(WORKS)}"
)


def begin() -> tuple[int, int, int]:
    """Return the seed, the number of the first round, and how many rounds to run. If RECORD has
    rounds with this seed, the first one follows on the last of them.
    """
    if MORE not in os.environ:
        return SEED, 0, ROUNDS
    seed, rounds = map(int, os.environ[MORE].split(":"))
    lines = RECORD.read_text().splitlines() if RECORD.exists() else []
    return seed, sum(json.loads(line)["seed"] == seed for line in lines), rounds


def record(found: dict[str, Any]) -> None:
    """Append the result of a round to RECORD, with the commit that was tested."""
    commit = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=TREE, text=True).strip()
    with RECORD.open("a") as file:
        print(json.dumps({"commit": commit[:12], **found}), file=file)


def test_the_host_is_as_before_or_kept(machines: Machines) -> None:
    """However a trial of `try` ends or is disturbed, the settings are then the former ones or those
    that it keeps, and `try --status` says which.
    """
    guest = with_defaults(machines.get("cloud", mem="2G", cpus=2, swap="1G"), GROUP)
    seed, first, rounds = begin()
    faults, other = list[str](), list[str]()

    def take(line: str) -> None:
        if not line.startswith("{"):
            other.append(line)
            return
        found = json.loads(line)
        faults.append(found["fault"])
        if MORE in os.environ:
            record(found)

    must(guest, "modprobe mmpolicy")
    words = f"{SCRIPT} {ENDS} {seed} {first} {rounds} /{GROUP.partition('cgroup/')[2]}"
    result = guest.run(f"{words} {shlex.quote(LOAD)}", 300 + 120 * rounds, sink=by_line(take))
    assert (result.rc, other) == (0, []), "\n".join(other)
    assert faults == [""] * rounds, faults
    must(guest, f"echo 1 >{GROUP}/cgroup.kill; umount /var/lib/mmpolicy; rmmod mmpolicy")
