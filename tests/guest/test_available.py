# SPDX-License-Identifier: GPL-2.0
"""Memory that is short lowers orders: on whatever CPU that is seen, and for whom it is short."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from vm import Guest

from .conftest import Machines
from .tools import POINT, counters, folios, histograms, must, ops_command, switch

DENSE = "map 4096 touch 0 4096 folios 0 4096"
SMALL = "map 1024 touch 0 1024 folios 0 1024"
LIMIT_MB = 32
FILES = "/usr/bin/qemu-system-x86_64 /usr/lib/x86_64-linux-gnu/*.so.*"
PLACES = 560  # one page of each 64 kB; as large folios more than the limit
SPARSE = f"map {16 * PLACES} every 0 {16 * PLACES} 16 folios 0 {16 * PLACES}"
CGROUP = "/sys/fs/cgroup/mmpolicy-available"


@contextmanager
def filled(guest: Guest, mib: int, command: str = "") -> Iterator[None]:
    """So much of the memory is in a file in memory, written by a command that begins so."""
    must(guest, "mkdir -p /fill && mount -t tmpfs -o size=95% fill /fill")
    must(guest, f"{command} head -c {mib}M /dev/zero >/fill/f; sleep 0.3")
    try:
        yield
    finally:
        must(guest, "umount /fill")


def test_while_a_cpu_idles(machines: Machines) -> None:
    """The CPU on which the looking began has nothing to do; another one uses memory up."""
    guest = machines.get(mem="1G", cpus=4, append="isolcpus=3 tsc=reliable")
    must(guest, "modprobe mmpolicy; for irq in /proc/irq/*/smp_affinity; do echo 1 >$irq; done; :")
    must(guest, f"taskset 8 sh -c 'echo fixed >{POINT}/policy'; sleep 1")
    must(guest, f"echo 30 >{POINT}/min_available_percent")
    with filled(guest, 800, "taskset 1"):
        (shown,) = histograms(must(guest, f"taskset 1 {ops_command(DENSE)}"))
    assert shown.get(4, 0) < 4096 // 2
    assert counters(guest)["lowered"] > 0


def test_huge_pages_of_others_are_not_missed(machines: Machines) -> None:
    """What hugetlb has taken out of a node is not short in it."""
    guest = machines.get(mem="2G", cpus=2, swap="1G")
    must(guest, "modprobe mmpolicy; echo 3 >/proc/sys/vm/drop_caches")
    must(guest, "echo 880 >/proc/sys/vm/nr_hugepages; grep -q 880 /proc/sys/vm/nr_hugepages")
    switch(guest, "fixed", max_order=4)
    must(guest, f"echo 30 >{POINT}/min_available_percent; sleep 0.5")
    try:
        assert folios(guest, DENSE) == [{4: 4096}]
        assert counters(guest)["lowered"] == 0
    finally:
        must(guest, "echo 0 >/proc/sys/vm/nr_hugepages")


@contextmanager
def cgroups(guest: Guest, limit: str) -> Iterator[str]:
    """A cgroup with two below it, and a limit; the beginning of commands in the first."""
    must(guest, "echo +memory >/sys/fs/cgroup/cgroup.subtree_control")
    must(guest, f"mkdir {CGROUP} && echo +memory >{CGROUP}/cgroup.subtree_control")
    must(guest, f"mkdir {CGROUP}/one {CGROUP}/two && echo {LIMIT_MB}M >{CGROUP}/{limit}")
    try:
        yield f"echo $$ >{CGROUP}/one/cgroup.procs; exec"
    finally:
        must(guest, f"rmdir {CGROUP}/one {CGROUP}/two {CGROUP}")


@pytest.mark.parametrize("limit", ("memory.max", "one/memory.max", "memory.high"))
def test_near_a_limit_folios_are_small(loaded: Guest, limit: str) -> None:
    """Where large ones would make the cgroup reclaim, or one above, there are small ones.

    On one CPU: each keeps up to 256 kB that it has charged in advance.
    """
    must(loaded, ops_command(SMALL))  # so that its program is not charged to the cgroup
    switch(loaded, "fixed", max_order=4)
    with cgroups(loaded, limit) as begin:
        (shown,) = histograms(must(loaded, f"taskset 1 sh -c '{begin} {ops_command(SPARSE)}'"))
        events = must(loaded, f"cat {CGROUP}/memory.events").split()
    assert shown[4] // 16 + shown[0] <= PLACES
    assert shown[4] * 4096 > LIMIT_MB << 19
    assert shown[0] > 0 < counters(loaded)["lowered"]
    assert {key: n for key, n in zip(events[::2], events[1::2], strict=True) if n != "0"} == {}


@pytest.mark.parametrize(("limit", "reader"), [("one/memory.max", "one"), ("memory.max", "two")])
def test_files_fill_a_limit(loaded: Guest, limit: str, reader: str) -> None:
    """A cgroup that is full of pages of files is not short, whichever below it has them."""
    must(loaded, "echo 3 >/proc/sys/vm/drop_caches")
    switch(loaded, "fixed", max_order=4)
    with cgroups(loaded, limit) as begin:
        read = begin.replace("one", reader)
        full = f"[ $(cat {CGROUP}/memory.current) -gt {int(LIMIT_MB * 0.97 * 2**20)} ]"
        fill = f"for i in $(seq 9); do sh -c '{read} cat {FILES}' >/dev/null; {full} && break; done"
        must(loaded, fill)  # reclaim frees more than it has to, now and then
        must(loaded, full)
        (shown,) = histograms(must(loaded, f"sh -c '{begin} {ops_command(SMALL)}'"))
    assert shown[4] > 512  # the kernel does not reclaim for them either
    assert counters(loaded)["lowered"] == 0
