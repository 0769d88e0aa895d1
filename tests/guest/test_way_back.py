# SPDX-License-Identifier: GPL-2.0
"""When all policies go to stock, by a reset or an expiry of the lease, this waits neither for
memory, nor for a writer, nor for a process.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from lab.guest import Guest
from lab.programs import ran, workload

from .conftest import Machines
from .tools import ROOT, must

LATEST_MS = 1500
# limit in ms for one of three expiries of the lease, as the host may be busy for a while
LATEST_ONCE_MS = 5000
STATS = "/sys/kernel/debug/mmpolicy/default/anon_order/stats"
DEFAULT = f"{ROOT}/profiles/default"
# Commands that let a writer of the module's files sleep for 6 s while it holds the module's lock,
# so that other writers wait.
STUCK = f"""
echo a >{ROOT}/profiles/create
rmmod mmpolicy_slow_listener 2>/dev/null
modprobe mmpolicy_slow_listener ms=6000 &
sleep 0.2
echo $$ >{ROOT}/profiles/a/pids
"""
COMES_AND_GOES = f"""
while :; do echo w >{ROOT}/profiles/create; echo w >{ROOT}/profiles/delete; done
"""
# A program with single pages, some of them freed lazily. It forks again and again; each fork copies
# its page tables while it holds its mmap_lock.
FORKS = """
import mmap, os
area = mmap.mmap(-1, 600 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
area.madvise(mmap.MADV_NOHUGEPAGE)
area.write(bytes(len(area)))
while True:
    area.madvise(mmap.MADV_FREE, 0, 1 << 20)
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
"""


@contextmanager
def going_on(guest: Guest, *commands: str) -> Iterator[None]:
    """Run these commands of the shell in the background during a `with` block."""
    with ExitStack() as stack:
        for command in commands:
            stack.callback(guest.start(command).stop)
        must(guest, "sleep 1")
        yield


def stays_on(guest: Guest, file: str, text: str) -> int:
    """Write a text to a file of the module, which ends the policy; return for how many ms after the
    write the policy is still asked.
    """
    found = ran(guest, f"{workload('until_off')} {STATS} {ROOT}/{file} {text}")
    assert found["off_ms"] >= found["on_ms"]
    return int(found["on_ms"])


def everything_on(guest: Guest) -> None:
    """Choose a policy that is asked at each fault, and one that has a worker in the kernel."""
    must(guest, f"echo fixed >{DEFAULT}/anon_order/policy; echo cap >{DEFAULT}/madv_free/policy")


WAYS = pytest.mark.parametrize(
    ("file", "text", "state"),
    [("lease_ms", "1000", "expired"), ("reset", "1", "stock")],
    ids=["lease", "reset"],
)


@WAYS
def test_while_a_writer_is_stuck(loaded: Guest, file: str, text: str, state: str) -> None:
    """A reset, or the end of the lease, does not wait for a writer that sleeps while it holds the
    module's lock. The change of that writer is not applied afterwards.
    """
    everything_on(loaded)
    start = "" if file == "reset" else f"while grep -q '^0' {ROOT}/lease_ms; do :; done"
    with going_on(loaded, f"{start}{STUCK}"):
        assert stays_on(loaded, file, text) <= LATEST_MS
        must(loaded, f"until grep -q {state} {ROOT}/state; do sleep 0.1; done")
    must(loaded, "until rmmod mmpolicy_slow_listener; do sleep 0.5; done 2>/dev/null")
    assert "[stock]" in must(loaded, f"cat {DEFAULT}/anon_order/policy")
    assert must(loaded, f"cd {ROOT}/profiles && ls -d */") == "default/\n"


def test_expiry_while_memory_is_fought_for(machines: Machines) -> None:
    """While memory is very short, all policies go to stock each time when the lease expires, and
    two of three times as fast as usual.
    """
    guest = machines.get(mem="1G", cpus=2, swap="512M")
    must(guest, "modprobe mmpolicy")
    hog = f"while :; do {workload('ops')} map 200000 touch 0 200000; done"
    taken = []
    for _ in range(3):
        everything_on(guest)
        with going_on(guest, hog, hog, COMES_AND_GOES):
            taken.append(stays_on(guest, "lease_ms", "1000"))
        must(guest, f"echo 1 >{ROOT}/reset")
    assert sorted(taken)[1] <= LATEST_MS and max(taken) <= LATEST_ONCE_MS, taken


def test_expiry_while_a_large_process_forks(loaded: Guest) -> None:
    """When the lease expires, the way to stock does not wait for a large process that forks again
    and again, and so holds its mmap_lock nearly all the time.
    """
    everything_on(loaded)
    with going_on(loaded, f"exec /usr/bin/python3 -c {shlex.quote(FORKS)}"):
        must(loaded, "sleep 5")
        assert stays_on(loaded, "lease_ms", "1000") <= LATEST_MS
