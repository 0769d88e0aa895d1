# SPDX-License-Identifier: GPL-2.0
"""The parts of the guest runner that need no guest."""

import subprocess

import pytest
from machine import VmError, cpio, memory, parse_size
from vm import Reply, find_splat


@pytest.mark.parametrize(
    "line",
    [
        "kasan: KernelAddressSanitizer initialized (generic)",
        "Lock dependency validator: Copyright (c) 2006 Red Hat, Inc., Ingo Molnar",
        "kmemleak: Kernel memory leak detector initialized (mem pool available: 15772)",
        "rcu: \tRCU lockdep checking is enabled.",
        "rcu: RCU calculated value of scheduler-enlistment delay is 25 jiffies.",
        "MMIO Stale Data: Unknown: No mitigations, data leak possible",
        "Out of memory: Killed process 91 (sh)",
        "traps: tr[1161] general protection fault ip:7ffff7c8a1b2 sp:7fffffffe0d8 error:0",
        "tr[1162]: segfault at 8 ip 000055555555b2c0 sp 00007fffffffe0d0 error 4 in tr[55555]",
    ],
)
def test_harmless_lines(line: str) -> None:
    assert find_splat(f"first\n[    0.1] {line}\nlast\n") is None


@pytest.mark.parametrize(
    "line",
    [
        "BUG: KASAN: slab-use-after-free in mmp_show+0x10/0x20 [mmpolicy]",
        "WARNING: possible circular locking dependency detected",
        "WARNING: CPU: 1 PID: 77 at mm/page_alloc.c:4567 __alloc_pages+0x1/0x2",
        "WARNING: suspicious RCU usage",
        "BUG: sleeping function called from invalid context at mm/util.c:5",
        "rcu: INFO: rcu_preempt self-detected stall on CPU",
        "Oops: general protection fault, probably for non-canonical address 0xdead: 0000 [#1] SMP",
        "general protection fault, probably for non-canonical address 0xdead000000000: 0000 [#1]",
        "general protection fault: 0000 [#1] PREEMPT SMP",
        "rcu: INFO: rcu_sched detected expedited stalls on CPUs/tasks: { 1-.... } 21 jiffies",
        "rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:",
        "unreferenced object 0xffff888004c5f000 (size 1024):",
        "BUG: unable to handle page fault for address: ffffffffc0000000",
        "kmemleak: 3 new suspected memory leaks (see /sys/kernel/debug/kmemleak)",
    ],
)
def test_splats(line: str) -> None:
    found = find_splat(f"first\n[    0.1] {line}\nlast\n")
    assert found and line in found and "last" in found


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_reply_in_pieces(size: int) -> None:
    """The end is found wherever the pieces are cut, and NULs pass through."""
    reply = Reply("0123456789abcdef", None)
    output = b"a\0b\0012345" * 20
    sent = output + reply.mark + b"42\n"
    ends = [reply.feed(sent[at : at + size]) for at in range(0, len(sent), size)]
    assert [end for end in ends if end is not None] == [42]
    assert b"".join(reply.chunks) == output


def test_sizes() -> None:
    assert parse_size("512M") == 512 << 20
    with pytest.raises(VmError, match="bad size"):
        parse_size("lots")


def test_memory_of_two_nodes() -> None:
    words = memory("1G", nodes=2, cpus=3)
    assert "-m 1024M" in words
    assert "nodeid=0,memdev=m0,cpus=0,cpus=2" in words
    assert "nodeid=1,memdev=m1,cpus=1" in words


def test_initramfs_archive() -> None:
    archive = cpio({"bin": (0o040755, b""), "bin/x": (0o100755, b"hello")})
    listed = subprocess.run(
        ["busybox", "cpio", "-t"], input=archive, capture_output=True, check=True
    )
    assert listed.stdout.split() == [b"bin", b"bin/x"]
