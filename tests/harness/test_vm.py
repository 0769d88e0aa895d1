# SPDX-License-Identifier: GPL-2.0
"""The parts of the guest runner that need no guest."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from lab.files import ACCESS_PLATFORM, FEATURES, GET_FEATURES, HEADER, Relay, listen
from lab.guest import Reply, find_splat
from lab.machine import VmError, cpio, memory, parse_size


@pytest.mark.parametrize(
    "line",
    [
        "kasan: KernelAddressSanitizer initialized (generic)",
        "BUG: KCSAN: data-race in do_anonymous_page / try_to_unmap_one",
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
        "BUG: KCSAN: data-race in mmp_lease_show [mmpolicy] / mmp_lease_store [mmpolicy]",
        "BUG: KCSAN: data-race in walk_pgd_range / mmp_pages_free+0x10 [mmpolicy]",
        "BUG: KCSAN: data-race in mm_policy_enable / mm_policy_enable",
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
    """The end is found wherever the data is cut, and NULs pass through."""
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


def test_memory_of_one_node_and_cpus_of_another() -> None:
    words = memory("1G", nodes=2, cpus=2, bare=1)
    assert "-m 1024M" in words and "size=1024M" in words
    assert "nodeid=0,memdev=m0,cpus=0" in words
    assert words.endswith("nodeid=1,cpus=1")


def test_initramfs_archive() -> None:
    archive = cpio({"bin": (0o040755, b""), "bin/x": (0o100755, b"hello")})
    listed = subprocess.run(
        ["busybox", "cpio", "-t"], input=archive, capture_output=True, check=True
    )
    assert listed.stdout.split() == [b"bin", b"bin/x"]


def test_relay(tmp_path: Path) -> None:
    """Messages and files pass in both directions; the reply about features has one more."""
    with listen(tmp_path / "server") as server, socket.socket(socket.AF_UNIX) as qemu:
        relay = Relay(tmp_path / "relay", tmp_path / "server")
        qemu.connect(str(tmp_path / "relay"))
        end, _ = server.accept()
        with end, Path("/dev/null").open() as null:
            socket.send_fds(qemu, [HEADER.pack(GET_FEATURES, 1, 0)], [null.fileno()])
            text, files, _, _ = socket.recv_fds(end, 100, 9)
            assert (text, len(files)) == (HEADER.pack(GET_FEATURES, 1, 0), 1)
            os.close(files[0])
            answer = (
                HEADER.pack(GET_FEATURES, 5, 8) + FEATURES.pack(3) + HEADER.pack(9, 5, 2) + b"x"
            )
            for byte in (answer[:12], answer[12:15], answer[15:], b"y"):
                end.sendall(byte)
            answer = answer.replace(FEATURES.pack(3), FEATURES.pack(3 | ACCESS_PLATFORM)) + b"y"
            assert qemu.recv(len(answer), socket.MSG_WAITALL) == answer
            relay.close()
            assert end.recv(1) == qemu.recv(1) == b""
