# SPDX-License-Identifier: GPL-2.0
"""Processes made of files, with partly empty large folios."""

from __future__ import annotations

import re
from array import array

from mmpolicy.host.pagemap import PAGE

from .fakes import THP, FakeTree
from .test_map import HEAD, OWN, PRESENT, START, TAIL, ZERO, write_at

SPLIT = "/sys/kernel/debug/split_huge_pages"
SHRINK = f"{THP}/shrink_underused"
ZERO_FRAME = 8
BLOCK = 512


def make_thp(tree: FakeTree) -> None:
    """Make the files of a kernel that can split huge pages and free their empty pages."""
    tree.put("/proc/kpageflags", array("Q", [0] * BLOCK).tobytes())
    write_at(tree, "/proc/kpageflags", ZERO_FRAME * 8, (ZERO | HEAD).to_bytes(8, "little"))
    tree.put(SHRINK, "1")
    tree.put(SPLIT, "")
    tree.put(f"{THP}/khugepaged/max_ptes_none", "0")
    for kb in (16, 32, 64):
        tree.put(f"{THP}/hugepages-{kb}kB/enabled", "always inherit madvise [never]")
    pressure(tree, 0)
    tree.put("/proc/vmstat", "pgfault 100\ncompact_stall 5")


def pressure(tree: FakeTree, avg10: float, total: int = 0) -> None:
    """Set the memory pressure."""
    line = f"avg10={avg10} avg60=0.00 avg300=0.00 total={total}"
    tree.put("/proc/pressure/memory", f"some {line}\nfull {line}")


def sizes(tree: FakeTree, pid: int, pages: int, forbids: bool = False, more: str = "") -> None:
    """Make the counters of a process with pages of private memory."""
    kib = f"{pages * 4:8} kB"
    status = f"Name:\tx\nVmRSS:\t{kib}\nRssAnon:\t{kib}\nTHP_enabled:\t{int(not forbids)}\n{more}"
    tree.put(f"/proc/{pid}/status", status)


def count(tree: FakeTree, pid: int, name: str, pages: int, faults: int = 0, ticks: int = 0) -> None:
    """Set a counter of a process."""
    counts = f"1 1 1 0 -1 0 {faults} 0 0 0 {ticks} {ticks} 0 0 20 0 1 0 777 4096000 {pages}"
    tree.put(f"/proc/{pid}/stat", f"{pid} ({name}) S {counts} 18446744073709551615 0")
    tree.put(f"/proc/{pid}/statm", f"{2 * pages} {pages} 0 0 0 0 0")
    tree.put(f"/proc/{pid}/comm", name)
    rollup = f"Rss: {pages * 4:20} kB\nLazyFree: {0:10} kB"
    tree.put(f"/proc/{pid}/smaps_rollup", rollup)


def make_sparse(
    tree: FakeTree, pid: int, name: str = "redis", pages: int = 4096, step: int = 16,
    cgroup: str = "/redis.service", flags: str = "rd wr", forbids: bool = False,
) -> None:  # fmt: skip
    """Make a process with 2 MB folios in which one page of step pages is used."""
    first = len(tree.read_bytes("/proc/kpageflags")) // 8
    blocks = array("Q", [HEAD | OWN, *[TAIL | OWN] * (BLOCK - 1)] * (pages // BLOCK))
    write_at(tree, "/proc/kpageflags", first * 8, blocks.tobytes())
    entries = array("Q", [PRESENT | (first + page) for page in range(pages)])
    write_at(tree, f"/proc/{pid}/pagemap", START // PAGE * 8, entries.tobytes())
    write_at(tree, f"/proc/{pid}/mem", START + pages * PAGE - 1, b"\0")
    with tree.real(f"/proc/{pid}/mem").open("r+b") as memory:
        for page in range(0, pages, step):
            memory.seek(START + page * PAGE + page % PAGE)
            memory.write(b"x")
    line = f"{START:x}-{START + pages * PAGE:x} rw-p 00000000 00:00 0"
    tree.put(f"/proc/{pid}/maps", line)
    tree.put(f"/proc/{pid}/smaps", f"{line}\nRss: {pages * 4} kB\nSwap: 0 kB\nVmFlags: {flags}")
    sizes(tree, pid, pages, forbids)
    tree.put(f"/proc/{pid}/cgroup", f"0::{cgroup}")
    tree.make_cgroup(cgroup)
    tree.put(f"/sys/fs/cgroup{cgroup}/cgroup.procs", str(pid))
    tree.put(f"/sys/fs/cgroup{cgroup}/memory.current", str(pages * PAGE))
    tree.put(f"/sys/fs/cgroup{cgroup}/memory.stat", f"anon {pages * PAGE}\nanon_thp 0\nfile 0")
    tree.put(f"/sys/fs/cgroup{cgroup}/memory.pressure", tree.read("/proc/pressure/memory"))
    count(tree, pid, name, pages)


def make_services(tree: FakeTree, other: str) -> None:
    """Make a host without the module, with a service that wastes memory and one that does not."""
    tree.make_unloaded()
    make_thp(tree)
    make_sparse(tree, 10)
    make_sparse(tree, 11, other, 2048, 1, "/web.service")


def split(tree: FakeTree, value: str) -> None:
    """Model a split by the kernel: empty pages of the range are mapped to the zero page."""
    found = re.fullmatch(r"(\d+),0x([0-9a-f]+),0x([0-9a-f]+),0", value)
    assert found
    pid, start, end = found.groups()
    for address in range(int(start, 16), int(end, 16), PAGE):
        at = address // PAGE * 8
        entry = int.from_bytes(tree.read_at(f"/proc/{pid}/pagemap", 8, at), "little")
        if not entry & PRESENT:
            continue
        write_at(tree, "/proc/kpageflags", (entry & ~PRESENT) * 8, OWN.to_bytes(8, "little"))
        if tree.read_at(f"/proc/{pid}/mem", PAGE, address) == bytes(PAGE):
            zero = (PRESENT | ZERO_FRAME).to_bytes(8, "little")
            write_at(tree, f"/proc/{pid}/pagemap", at, zero)
    raw = array("Q", tree.read_bytes(f"/proc/{pid}/pagemap")[START // PAGE * 8 :])
    there = sum(1 for entry in raw if entry & PRESENT and entry != PRESENT | ZERO_FRAME)
    cgroup = tree.read(f"/proc/{pid}/cgroup").removeprefix("0::")
    tree.put(f"/sys/fs/cgroup{cgroup}/memory.current", str(there * PAGE))
    count(tree, int(pid), tree.read(f"/proc/{pid}/comm"), there)
    sizes(tree, int(pid), there)


def reuse(tree: FakeTree, pid: int) -> None:
    """Let a process end, and another program, with the same memory, get its PID."""
    head, _, rest = tree.read(f"/proc/{pid}/stat").rpartition(")")
    fields = rest.split()
    fields[19] = str(int(fields[19]) + 1)
    tree.put(f"/proc/{pid}/stat", f"{head}) {' '.join(fields)}")
