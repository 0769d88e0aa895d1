# SPDX-License-Identifier: GPL-2.0
"""Commands that change settings, and experiments, are killed at random moments on Debian's own
kernel.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Machines
from .tools import SCRIPT, must

pytestmark = pytest.mark.flavor("cloud")
SECONDS = 150.0  # rough duration of each test, for the schedule

CUT = Path(__file__).with_name("cut.py")
# Commands that make three cgroups, which stand for services of a host, and a systemctl that does
# nothing, to save time.
HOST = """
rm -rf /etc/mmpolicy /var/lib/mmpolicy /run/mmpolicy
mkdir -p /run/bin /sys/fs/cgroup/cut0 /sys/fs/cgroup/cut1 /sys/fs/cgroup/cut2
printf '#!/bin/sh\\n' >/run/bin/systemctl && chmod +x /run/bin/systemctl
modprobe mmpolicy
"""


@pytest.mark.parametrize(
    "times", [pytest.param(20, marks=pytest.mark.long), pytest.param(500, marks=pytest.mark.full)]
)
def test_sigkill(machines: Machines, times: int) -> None:
    """After a command was killed by SIGKILL at a random moment, its change is complete, undone or
    reported, and each stored file can be read.
    """
    guest = machines.get("cloud", mem="2G", cpus=2)
    must(guest, HOST)
    command = f"cd /tmp && PATH=/run/bin:$PATH {SCRIPT} {CUT} {times} {times}"
    found = json.loads(must(guest, command, timeout=60 + 10 * times))
    print(found)
    assert found.pop("wrong") == []
    assert sum(found[verb] for verb in ("apply", "set", "bind", "revert", "ab")) > times / 3
    assert found.get("cut off", 0) > times / 40
    must(guest, "echo 1 >/sys/kernel/mmpolicy/reset; rmdir /sys/fs/cgroup/cut*")
