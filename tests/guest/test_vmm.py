# SPDX-License-Identifier: GPL-2.0
"""The profile for virtual machines, with QEMU running on Debian's own kernel in a guest."""

from __future__ import annotations

import pytest

from bench import vmm
from lab.guest import Guest, new_guest
from lab.programs import ran

from .conftest import Machines
from .tools import POINT, THP, back_to_boot, must

pytestmark = [pytest.mark.flavor("cloud"), pytest.mark.amd64("runs qemu-system-x86_64")]
SECONDS = 75.0  # rough duration of each test, for the schedule


def started(machines: Machines, arm: str) -> dict[str, float]:
    """Start QEMU in a new guest whose memory is fragmented; return the figures of this start."""
    machines.end()
    with new_guest("cloud", **vmm.NEEDS) as guest:
        return vmm.start_machine(guest, vmm.ARMS[arm])


@pytest.mark.full
def test_a_start_does_not_stall(machines: Machines) -> None:
    """With the profile for virtual machines, a start of QEMU takes at most two thirds of the work
    that it takes at stock, and QEMU gets about as many huge pages.
    """
    stock, profile = started(machines, "stock"), started(machines, "vm")
    assert profile["qemu"] < stock["qemu"] * 2 / 3
    assert profile["kernel"] < stock["kernel"] * 0.9
    assert profile["huge"] > 0.9 * stock["huge"] > 0
    assert profile["pgscan_direct"] == 0


@pytest.fixture
def guest(machines: Machines) -> Guest:
    """Return a guest with a policy that gives huge pages to each process, even if the process does
    not request them.
    """
    guest = machines.get("cloud", mem="2G", cpus=1)
    back_to_boot(guest)
    must(guest, f"modprobe mmpolicy; echo never >{THP}/enabled")
    must(guest, f"echo 9 >{POINT}/fixed/max_order; echo fixed >{POINT}/policy")
    must(guest, f"echo 1 >{POINT}/override_madvise")
    return guest


@pytest.mark.parametrize(
    ("backend", "asks"), [("ram", True), ("ram,share=on", False), ("memfd", False)]
)
def test_who_asks(guest: Guest, backend: str, asks: bool) -> None:
    """The policy decides about the private memory of QEMU, and never about its shared memory. The
    share in huge pages that `thp --vms` prints shows it.
    """
    kind = f"memory-backend-{backend}"
    must(guest, vmm.qemu(64, kind))
    try:
        (machine,) = ran(guest, "mmpolicy thp --vms --json")["machines"]
        assert (machine["huge_percent"] > 50) == asks
    finally:
        must(guest, "kill $(cat /run/qemu.pid)")
