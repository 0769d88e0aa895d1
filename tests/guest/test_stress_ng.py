# SPDX-License-Identifier: GPL-2.0
"""stress-ng uses memory in every way and verifies its content, under each policy."""

from __future__ import annotations

import re

import pytest

from .conftest import Machines
from .tools import TURNS, must, turn_policies

# Number of operations for each stressor of stress-ng, so that each runs for some seconds.
OPERATIONS = {
    "vm": 20_000,
    "madvise": 10,
    "mremap": 40,
    "fork": 1000,
    "numa": 20,
    "userfaultfd": 20_000,
}
SMALL = "--vm-bytes 16M --mremap-bytes 16M --userfaultfd-bytes 16M"


# On the kernel with lockdep, only turn 0 runs: `adaptive`, and the first policy of each other hook
# point.
RUNS = [("patched", turn) for turn in range(TURNS)] + [("debug", 0)]


@pytest.mark.full
@pytest.mark.parametrize(
    ("flavor", "turn"),
    [pytest.param(*run, marks=pytest.mark.flavor(run[0])) for run in RUNS],
)
def test_stress(machines: Machines, flavor: str, turn: int) -> None:
    """Under each policy, stress-ng finds no wrong data. Two instances of each stressor run at the
    same time.
    """
    guest = machines.get(flavor, mem="1G", cpus=2, nodes=2, swap="1G")
    turn_policies(guest, turn)
    words = [f"--{name} 2 --{name}-ops {number}" for name, number in OPERATIONS.items()]
    command = f"stress-ng --verify --metrics-brief --timeout 30m {SMALL} {' '.join(words)}"
    told = must(guest, f"cd /tmp && {command}", timeout=2000)
    done = dict(re.findall(r"metrc: \[\d+\] (\w+) +(\d+) ", told))
    assert "successful run completed" in told
    for name, number in OPERATIONS.items():
        assert int(done[name]) >= number, told
