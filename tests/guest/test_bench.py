# SPDX-License-Identifier: GPL-2.0
"""`mmpolicy bench` on Debian's own kernel: it applies a policy to one command, sets knobs of the
kernel, and restores the former values of both.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab.guest import Guest

from .conftest import Machines
from .test_stock_kernel import HOOKED, SIZES
from .tools import ROOT, SCRIPT, THP, back_to_boot, must, ops_command

pytestmark = pytest.mark.flavor("cloud")
SECONDS = 50.0  # rough duration of each test, for the schedule
DENSE = ops_command("map 4096 touch 0 4096 folios 0 4096")
OFF = f"off: {THP}/enabled=never"
LARGE = f"64 kB: {THP}/enabled=never,{THP}/hugepages-64kB/enabled=always"
STATE = f"{SIZES}; {HOOKED} | grep mmp; ls {ROOT}/profiles; cat {ROOT}/state"


@pytest.fixture
def guest(machines: Machines) -> Guest:
    """Return a guest with Debian's kernel, in which the module is loaded and all policies are at
    stock.
    """
    guest = machines.get("cloud", mem="2G", cpus=2)
    back_to_boot(guest)
    must(guest, "modprobe mmpolicy")
    return guest


def bench(guest: Guest, *arms: str) -> list[dict[str, Any]]:
    """Compare by `mmpolicy bench` how many faults a program with dense access takes in each arm;
    return the figures of each arm.
    """
    words = " ".join(f"--arm '{arm}'" for arm in arms)
    command = f"mmpolicy bench --metric faults --runs 7 --out /run/bench.json {words} -- {DENSE}"
    must(guest, f"rm -f /run/bench.json; {command}")
    found: list[dict[str, Any]] = json.loads(must(guest, "cat /run/bench.json"))["arms"]
    return found


@pytest.mark.full
def test_a_policy_decides_for_the_command_alone(guest: Guest) -> None:
    before = must(guest, STATE)
    neighbour = guest.start(f"for i in $(seq 20); do {DENSE}; done")
    off, fixed, knobs = bench(
        guest, OFF, f"{OFF.partition(': ')[2]},anon_order=fixed,max_order=3", LARGE
    )
    sizes = {line for line in neighbour.wait().out.splitlines() if "none" in line}
    assert not fixed["settings"].keys() <= knobs["settings"].keys()
    assert fixed["ratio"]["faults"]["high"] < 0.2 and fixed["found"]
    assert knobs["ratio"]["faults"]["high"] < 0.2 and knobs["found"]
    assert fixed["mean"]["large_folios"] > 15 << 20 > off["mean"]["large_folios"]
    assert sizes <= {'{"0": 4096, "none": 0}', '{"4": 4096, "none": 0}'}  # counters of the policy
    assert must(guest, STATE) == before


@pytest.mark.long
def test_killed_under_a_policy(guest: Guest) -> None:
    """If `mmpolicy bench` is killed while a policy is in force, the measured program dies, too. The
    policy, the profile of the bench and all settings are then as before.
    """
    before = must(guest, STATE)
    command = "mmpolicy bench --arm anon_order=fixed --runs 1000 -- sleep 5"
    must(guest, f"{command} & until pgrep -x sleep; do sleep 0.1; done; kill -KILL $!")
    must(guest, "for i in $(seq 600); do pgrep -x sleep || exit 0; sleep 0.1; done; exit 1")
    gone = f"for i in $(seq 600); do [ -e {ROOT}/profiles/bench-1 ] || exit 0; sleep 0.1; done"
    must(guest, f"{gone}; exit 1")
    assert must(guest, STATE) == before


@pytest.mark.full
def test_killed_at_random_moments(guest: Guest) -> None:
    """After `mmpolicy bench` was killed at any moment, all knobs of the kernel get their former
    values, even if its watchdog process was killed, too.
    """
    before = must(guest, STATE)
    script = Path(__file__).with_name("bench_kills.py")
    found = json.loads(must(guest, f"{SCRIPT} {script} 1 100", timeout=3600))
    print(found)
    assert found.pop("wrong") == []
    assert found["alone"] + found["with its watchdog"] == 100
    assert found.get("put back by ab restore", 0) > 5
    assert must(guest, STATE) == before
