# SPDX-License-Identifier: GPL-2.0
"""On Debian's own kernels: whatever a process holds, it holds up neither a file nor the reset."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lab.guest import Guest
from lab.programs import workload

from .conftest import Machines
from .tools import ROOT, back_to_boot, must

pytestmark = pytest.mark.flavor("cloud")
SECONDS = 20.0  # each test, about

DEFAULT = f"{ROOT}/profiles/default"
POLICY = f"{DEFAULT}/anon_order/policy"
HOOKED = "cat /sys/kernel/tracing/enabled_functions"


@pytest.fixture
def guest(machines: Machines, stock: str) -> Guest:
    """The guest of test_stock_kernel.py; the module is not loaded."""
    guest = machines.get(stock, mem="2G", cpus=2, swap="1G")
    back_to_boot(guest)
    return guest


@contextmanager
def held(guest: Guest, command: str, ready: str = "held") -> Iterator[None]:
    """Meanwhile a program is held by user space, from when it says that it is."""
    job = guest.start(f"rm -f /run/held; exec {command} >/run/held")
    try:
        must(
            guest,
            f"for i in $(seq 600); do grep -q {ready} /run/held && exit; sleep 0.1; done",
        )
        yield
    finally:
        job.stop()


def stacks(guest: Guest, name: str) -> str:
    """What the kernel has on the stacks of all threads of a program."""
    found = must(guest, f"for pid in $(pidof {name}); do cat /proc/$pid/task/*/stack; done")
    assert found
    return found


def each_answers(guest: Guest) -> None:
    """No write and no read waits for a process that user space holds.

    Ten seconds are for a busy host: what waits here waits until the process is killed.
    """
    writes = [
        "echo 5 >{0}/anon_order/min_available_percent",
        "echo stock >{0}/anon_order/policy",
    ]
    for write in [
        *writes,
        f"cat {ROOT}/experiment/*",
        f"cat {ROOT}/bpf/*/*",
        f"cat {ROOT}/state",
    ]:
        must(guest, f"timeout -s KILL 10 sh -c {shlex.quote(write.format(DEFAULT))}")
    must(guest, f"timeout -s KILL 10 sh -c 'echo 1 >{ROOT}/reset'")


@pytest.mark.parametrize("time_faults", [False, True], ids=["policy", "time-faults"])
@pytest.mark.parametrize("kind", ["huge", "small", "read", "wp", "minor", "fork"])
def test_userfaultfd(loaded: Guest, kind: str, time_faults: bool) -> None:
    """A fault that waits for a handler that is dead has nothing of ours on its stack."""
    if time_faults:
        must(
            loaded,
            f"""cd {ROOT} && echo a >profiles/create && echo b >profiles/create || exit
            cd experiment && echo a >control && echo b >treatment && echo 1 >time_faults || exit
            echo 1 >enabled""",
        )
    else:
        must(loaded, f"echo never >{POLICY}")
    program = workload("uffd")
    threads = 1 if kind == "fork" else 20
    with held(loaded, f"{program} {kind} {threads}"):
        found = stacks(loaded, program.name)
        assert found.count("handle_userfault") == threads
        assert "mmp" not in found
        each_answers(loaded)
        must(
            loaded,
            f"timeout -s KILL 20 sh -c 'until grep -q stock {ROOT}/state; do sleep 0.1; done'",
        )
        assert "mmp" not in must(loaded, HOOKED)
        must(loaded, "timeout -s KILL 20 rmmod mmpolicy")
