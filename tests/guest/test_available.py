# SPDX-License-Identifier: GPL-2.0
"""Policies give smaller folios while memory is short, whichever CPU notices it, and whether a NUMA
node, a cgroup or the host is short.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lab.guest import Guest
from lab.machine import Kernel
from lab.programs import ran, workload

from .conftest import Machines
from .tools import POINT, counters, folios, histograms, must, ops_command, switch

DENSE = "map 4096 touch 0 4096 folios 0 4096"
LARGE = "map {0} touch 0 {0} folios 0 {0}"
SMALL = "map 1024 touch 0 1024 folios 0 1024"
LIMIT_MB = 32
FILES = "/usr/bin/qemu-system-x86_64 /usr/lib/x86_64-linux-gnu/*.so.*"
LARGE_FILES = "/usr/bin/qemu-system-x86_64 /usr/lib/gcc/x86_64-linux-gnu/*/cc1"
# The most that a fault may cost while memory is short, relative to a fault with max_order=0. The
# key says whether the guest is arm64, where a fault of order 0 takes fewer instructions.
SHORT = {False: 1.07, True: 1.1}
# pages that the program uses, one in each 64 kB; if all were in folios of 64 kB, it would exceed
# the limit of its cgroup
PLACES = 560
SPARSE = f"map {16 * PLACES} every 0 {16 * PLACES} 16 folios 0 {16 * PLACES}"
CGROUP = "/sys/fs/cgroup/mmpolicy-available"


@contextmanager
def filled(guest: Guest, mib: int, command: str = "") -> Iterator[None]:
    """Fill `mib` MiB of the guest's memory with a file in tmpfs, for the time of a `with` block.
    command: a prefix of the command that writes the file.
    """
    must(guest, "mkdir -p /fill && mount -t tmpfs -o size=95% fill /fill")
    must(guest, f"{command} head -c {mib}M /dev/zero >/fill/f; sleep 0.3")
    try:
        yield
    finally:
        must(guest, "umount /fill")


def test_while_a_cpu_idles(machines: Machines) -> None:
    """The module notices that memory is short although the CPU that sampled it first idles, while
    another CPU uses up the memory.
    """
    guest = machines.get(mem="1G", cpus=4, append="isolcpus=3 tsc=reliable")
    must(guest, "modprobe mmpolicy; for irq in /proc/irq/*/smp_affinity; do echo 1 >$irq; done; :")
    must(guest, f"taskset 8 sh -c 'echo fixed >{POINT}/policy'; sleep 1")
    must(guest, f"echo 30 >{POINT}/min_available_percent")
    with filled(guest, 800, "taskset 1"):
        (shown,) = histograms(must(guest, f"taskset 1 {ops_command(DENSE)}"))
    assert shown.get(4, 0) < 4096 // 2
    assert counters(guest)["lowered"] > 0


def test_pages_of_hugetlb_do_not_lower_orders(machines: Machines) -> None:
    """Pages of hugetlb do not count in the share of available memory, so a large pool does not make
    policies lower the order.
    """
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
    """Make a cgroup with a memory limit and two children, for the time of a `with` block; yield the
    shell commands with which a shell enters the first child.
    """
    must(guest, "echo +memory >/sys/fs/cgroup/cgroup.subtree_control")
    must(guest, f"mkdir {CGROUP} && echo +memory >{CGROUP}/cgroup.subtree_control")
    must(guest, f"mkdir {CGROUP}/one {CGROUP}/two && echo {LIMIT_MB}M >{CGROUP}/{limit}")
    try:
        yield f"echo $$ >{CGROUP}/one/cgroup.procs; exec"
    finally:
        must(guest, f"rmdir {CGROUP}/one {CGROUP}/two {CGROUP}")


@pytest.mark.parametrize("limit", ("memory.max", "one/memory.max", "memory.high"))
def test_near_a_limit_folios_are_small(loaded: Guest, limit: str) -> None:
    """Policies give small folios if large ones would make the cgroup of the program, or an ancestor
    of it, reclaim memory.

    The program runs on one CPU, as each CPU charges up to 256 kB in advance.
    """
    must(loaded, ops_command(SMALL))  # reads the program's file first, outside of the cgroup
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
    """A cgroup whose limit is reached by file pages is not treated as short of memory, whichever of
    its children has read the files.
    """
    must(loaded, "echo 3 >/proc/sys/vm/drop_caches")
    switch(loaded, "fixed", max_order=4)
    with cgroups(loaded, limit) as begin:
        read = begin.replace("one", reader)
        full = f"[ $(cat {CGROUP}/memory.current) -gt {int(LIMIT_MB * 0.97 * 2**20)} ]"
        fill = f"for i in $(seq 9); do sh -c '{read} cat {FILES}' >/dev/null; {full} && break; done"
        # Repeated, because reclaim sometimes frees more than needed, so that the limit is not
        # reached.
        must(loaded, fill)
        must(loaded, f"{full} && sleep 1")  # the module's worker looks at the cgroups meanwhile
        before = counters(loaded)["lowered"]
        (shown,) = histograms(must(loaded, f"sh -c '{begin} {ops_command(SMALL)}'"))
        assert counters(loaded)["lowered"] == before
    assert shown[4] > 512  # nor does the kernel reclaim for these folios


READ_IN_TURNS = """
import os, sys
top, children = sys.argv[1], int(sys.argv[2])
files = [os.open(name, os.O_RDONLY) for name in sys.argv[3:]]
for i in range(children // 2):
    with open(f"{top}/{children // 2 + i}/cgroup.procs", "w") as procs:
        procs.write(str(os.getpid()))
    for file in files:
        part = os.fstat(file).st_size // (children // 2) + 1
        os.pread(file, part, part * i)
"""


@contextmanager
def full_of_files(guest: Guest, children: int) -> Iterator[None]:
    """Make children of CGROUP, for the time of a `with` block. Each child in the newer half of them
    has read a part of large files, which no other child reads.
    """
    names = f"$(seq 0 {children - 1})"
    must(guest, "echo +memory >/sys/fs/cgroup/cgroup.subtree_control")
    must(guest, f"mkdir {CGROUP} && echo +memory >{CGROUP}/cgroup.subtree_control")
    must(guest, f"cd {CGROUP} && mkdir {names} && echo 3 >/proc/sys/vm/drop_caches")
    try:
        image = Kernel.of_flavor(guest.series, guest.flavor).image
        files = image if guest.arch.root else LARGE_FILES  # a root of arm64 has no large files
        read = f"python3 -c {shlex.quote(READ_IN_TURNS)} {CGROUP} {children} {files}"
        must(guest, f"(exec setarch -R {read})", timeout=120)
        yield
    finally:
        must(guest, f"cd {CGROUP} && rmdir {names} && cd / && rmdir {CGROUP}")


@pytest.mark.flavor("cloud")
def test_files_of_many_fill_a_limit(machines: Machines) -> None:
    """A cgroup is not treated as short of memory if its limit is reached by files that 200 children
    have read, and faults in it cost no more.

    The kernel does not reclaim in this test, which compares the instructions of a fault with the
    limit and without it.
    """
    guest = machines.get("cloud", mem="2G", icount=True)
    must(guest, "modprobe mmpolicy")
    switch(guest, "fixed", max_order=4)
    must(guest, f"echo 20 >{POINT}/min_available_percent")
    program = f"exec {workload('touch')} forward 2 96"
    touched = {}
    with full_of_files(guest, 200):
        limited = f"$(($(cat {CGROUP}/memory.current) + (4 << 20)))"
        for name, limit in ("free", "max"), ("limited", limited):
            must(guest, f"echo {limit} >{CGROUP}/memory.max; sleep 1")
            touched[name] = ran(guest, f"sh -c 'echo $$ >{CGROUP}/7/cgroup.procs; {program}'")
        events = must(guest, f"cat {CGROUP}/memory.events").split()
    assert events[events.index("max") + 1] == "0"
    assert touched["limited"]["pages"] == touched["free"]["pages"]
    assert touched["limited"]["pages"]["4"] >= 500
    assert counters(guest)["lowered"] == 0
    assert touched["limited"]["ticks"] <= 1.02 * touched["free"]["ticks"]


@pytest.mark.flavor("cloud")
def test_who_is_short_does_not_pay_for_it(machines: Machines) -> None:
    """In a program under three nested cgroups that are short of memory, each fault gets a single
    page, and costs little more than a fault with max_order=0.

    The module checks memory once per tick. The test counts instructions.
    """
    guest = machines.get("cloud", mem="2G", icount=True)
    must(guest, "modprobe mmpolicy; echo +memory >/sys/fs/cgroup/cgroup.subtree_control")
    names = [CGROUP, f"{CGROUP}/b", f"{CGROUP}/b/c"]
    for name in names:
        must(guest, f"mkdir {name}; echo 84M >{name}/memory.max")
        must(guest, f"[ {name} = {names[-1]} ] || echo +memory >{name}/cgroup.subtree_control")
    must(guest, f"echo 90 >{POINT}/min_available_percent")
    taken = f"{workload('ops')} map 3072 touch 0 3072 sh"  # 12 MiB of 84: less than 90 % is left
    touch = f'"{workload("touch")} forward 64 5"'
    run = f"sh -c 'echo 0 >{names[-1]}/cgroup.procs; exec {taken} {touch}'"
    found = {}
    for order in 0, 2:
        switch(guest, "fixed", max_order=order)
        found[order] = min((ran(guest, run) for _ in range(3)), key=lambda each: each["ticks"])
    must(guest, f"rmdir {' '.join(reversed(names))}")
    assert found[2]["pages"]["0"] > 0.98 * found[0]["pages"]["0"]
    assert found[2]["ticks"] <= SHORT[bool(guest.arch.root)] * found[0]["ticks"]


@pytest.mark.flavor("cloud")
def test_a_process_outgrows_its_node(machines: Machines) -> None:
    """If a process fills its NUMA node, its folios stay large on this node and on the next one."""
    guest = machines.get("cloud", mem="1536M", cpus=2, nodes=2)
    must(guest, "modprobe mmpolicy; echo 3 >/proc/sys/vm/drop_caches")
    switch(guest, "fixed", max_order=4)
    must(guest, f"echo 20 >{POINT}/min_available_percent")
    pages = 1000 << 8
    (shown,) = histograms(must(guest, f"taskset 1 {ops_command(LARGE.format(pages))}"))
    assert shown[4] >= 0.99 * pages
    assert counters(guest)["lowered"] <= 0.01 * pages / 16


@pytest.mark.flavor("cloud")
def test_who_is_bound_to_a_full_node(machines: Machines) -> None:
    """If the only NUMA node that a process may use is full, it gets small folios, although the node
    of its CPU has free memory.
    """
    guest = machines.get("cloud", mem="1536M", cpus=2, nodes=2)
    must(guest, "modprobe mmpolicy; echo 3 >/proc/sys/vm/drop_caches")
    switch(guest, "fixed", max_order=4)
    must(guest, f"echo 30 >{POINT}/min_available_percent")
    words = f"{workload('nodes')} hold -100 0 sh 'sleep 0.5' map 16 0"
    must(guest, f"taskset 2 {words} mbind 2 1 touch 1")
    assert counters(guest)["lowered"] > 0
    lowered = counters(guest)["lowered"]
    must(guest, f"taskset 1 {words} touch 1")
    assert counters(guest)["lowered"] == lowered
