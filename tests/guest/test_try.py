# SPDX-License-Identifier: GPL-2.0
"""`try` on Debian's own kernel: its answers, and the state after its end."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from lab.guest import Guest
from lab.programs import must, workload

from .conftest import Machines
from .tools import ROOT, TOP, with_defaults

pytestmark = [pytest.mark.flavor("cloud"), pytest.mark.full]
SECONDS = 100.0  # rough duration of each test, for the schedule
GROUP = f"{TOP}/tried"
STATE = f"cd {ROOT}; grep -rs . experiment profiles lease_ms | sort; ls /etc/mmpolicy"
TRY = f"mmpolicy try --cgroup {GROUP}"
TRIAL = f"{TRY} --candidate adaptive --yes --foreground --block 3 --pairs 8 --lease 1h"
RECORDS = "rm -rf /var/lib/mmpolicy/try /var/lib/mmpolicy/ab"


@pytest.fixture
def guest(machines: Machines) -> Guest:
    """Return a guest with Debian's defaults for huge pages, and an empty cgroup for the tried
    program.
    """
    guest = with_defaults(machines.get("cloud", mem="2G", cpus=2, swap="1G"), GROUP)
    must(guest, RECORDS)
    return guest


@contextmanager
def working(guest: Guest, command: str, ready: str = "true") -> Iterator[None]:
    """Run a program in the cgroup that `try` looks at, during a `with` block; ready: a shell
    condition that is true when the program works.
    """
    job = guest.start(f"exec sh -c {shlex.quote(f'echo $$ >{GROUP}/cgroup.procs; {command}')}")
    try:
        must(guest, f"until grep -q . {GROUP}/cgroup.procs && {ready}; do sleep 0.1; done")
        yield
    finally:
        must(guest, f"echo 1 >{GROUP}/cgroup.kill")
        job.wait()


def answer(guest: Guest) -> Any:
    """Return what `try` says about the program in the cgroup, without a trial."""
    return json.loads(must(guest, f"{TRY} --seconds 5 --dry-run --json 2>/dev/null"))


def test_answers(guest: Guest) -> None:
    """`try` gives the right answer about three programs: an idle one, one with empty huge pages,
    and one that faults all the time and has forbidden huge pages for itself.
    """
    idle = f"{workload('ops')} map 1 touch 0 1 sh 'exec sleep infinity'"
    with working(guest, idle):
        found = answer(guest)
        assert (found["verdict"], found["candidates"]) == ("not worth it", [])
    touches = " ".join(f"touch {page} {page + 1}" for page in range(0, 16384, 128))
    sparse = f"{workload('ops')} map 16384 {touches} sh 'touch /run/mapped; exec sleep infinity'"
    must(guest, "rm -f /run/mapped")
    with working(guest, sparse, "[ -e /run/mapped ]"):
        found = answer(guest)
        assert (found["verdict"], found["candidates"][0]["name"]) == ("worth trying", "trim")
        assert 50 << 10 < found["seen"]["waste_kib"] <= 64 << 10
        result = guest.run(f"{TRY} --seconds 5 --yes --foreground --block 12", 600)
        # In emulation, the CPU time may exceed its margin or not, so the trial may end either way.
        assert result.rc in (0, 7, 8), result.out
        status = json.loads(must(guest, "mmpolicy try --status --json"))
        assert status["standing"] == ("done once" if result.rc == 0 else "back")
        page = status["trial"]["page"]
        (given_back,) = [line.split()[2] for line in page if line.startswith("did ")]
        assert 50 < int(given_back) <= 64
        (memory,) = [line for line in page if line.startswith("metric     memory: ")]
        assert memory.startswith("metric     memory: -")
        assert answer(guest)["verdict"] == "not worth it"


def faults(guest: Guest) -> Any:
    """Run a program that faults all the time in the cgroup that `try` looks at, during a `with`
    block.
    """
    return working(guest, f"while :; do {workload('touch')} forward 8 >/dev/null; sleep 0.1; done")


def test_a_trial_ends_as_it_says(guest: Guest) -> None:
    """A trial keeps or restores the setting as its exit code says. If it keeps the setting, the
    commands in its report undo that.

    CPU time in an emulated guest is not reliable, so the test accepts either end.
    """
    must(guest, "modprobe mmpolicy")
    before = must(guest, STATE)
    with faults(guest):
        result = guest.run(TRIAL, 600)
    status = json.loads(must(guest, "mmpolicy try --status --json"))
    kept = result.rc == 0
    assert result.rc in (0, 7, 8), result.out
    assert status["standing"] == ("kept" if kept else "back")
    assert (must(guest, STATE) != before) == kept
    if kept:
        must(guest, status["trial"]["undo"])
        assert must(guest, STATE) == before
    must(guest, f"{RECORDS}; rmmod mmpolicy")
