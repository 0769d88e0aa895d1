# SPDX-License-Identifier: GPL-2.0
"""Processes made of files, with memory to collapse to 2 MB pages, and a model of the kernel."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from errno import EAGAIN, EBUSY, EINVAL, ENOMEM

from mmpolicy.host.advice import BLOCK, Advice, ProcessMemory
from mmpolicy.host.files import Tree
from mmpolicy.host.pagemap import PAGE

from .fakes import THP, FakeTree
from .sparse import pressure
from .test_map import write_at

PAGES = BLOCK // PAGE
START = 0x10000000
PRESENT, SWAPPED, FILE, GUARD, TRACKED, EXCLUSIVE = (1 << bit for bit in (63, 62, 61, 58, 57, 56))
OWN = PRESENT | EXCLUSIVE
ZERO, MLOCKED, COMPOUND_HEAD = 1 << 24, 1 << 18, 1 << 15
ZERO_FRAME, LOCKED_FRAME = 8, 9
SCATTERED, HUGE, ROW = 0x100000, 0x4000000, 0x6000000  # page frames
MOST = 64
ZONEINFO = """\
Node 0, zone   Normal
  pages free     {free}
        min      10
        low      15
        high     20
        spanned  268435456
        present  2621440
        managed  2621440
  pagesets
    cpu: 0
              count:    5
              high:     3733
  start_pfn:           0
"""


def block(kind: str, number: int) -> array[int]:
    """Return the entries of 2 MB: `full`, `empty`, or full with the exception named by the kind."""
    own = [OWN | (SCATTERED + number * PAGES + PAGES - 1 - page) for page in range(PAGES)]
    first = {
        "full": own[0], "locked": OWN | LOCKED_FRAME,
        "swapped": SWAPPED | 5, "guard": SWAPPED | GUARD, "zero": PRESENT | ZERO_FRAME,
        "shared": PRESENT | SCATTERED, "tracked": own[0] | TRACKED, "hole": 0,
    }  # fmt: skip
    if kind in first:
        return array("Q", [first[kind], *own[1:]])
    if kind == "half":
        return array("Q", [*own[: PAGES // 2], *[0] * (PAGES // 2)])
    # broken: one page was written while a child shared it; row: small pages with such frames
    if kind in ("huge", "broken", "row"):
        begin = (ROW if kind == "row" else HUGE) + number * PAGES
        entries = array("Q", [OWN | (begin + page) for page in range(PAGES)])
        entries[100] = own[100] if kind == "broken" else entries[100]
        return entries
    return array("Q", [0] * PAGES)


class FakeMemory(ProcessMemory):
    """The memory of a process made of files."""

    def __init__(self, advice: FakeAdvice, pid: int) -> None:
        self._advice, self._pid, self._fd = advice, pid, -1

    def permits(self, address: int) -> int:
        return EINVAL if self._pid in self._advice.forbidden else self._advice.denied

    def collapse(self, start: int, blocks: int = 1) -> int:
        """Collapse the range: go on after other failures, but not without memory, as the
        kernel does.
        """
        last = 0
        for address in range(start, start + blocks * BLOCK, BLOCK):
            last = self._collapse(address) or last
            if last in (ENOMEM, EBUSY):
                break
        return last

    def _collapse(self, address: int) -> int:
        advice, at = self._advice, address // PAGE * 8
        advice.calls.append(address)
        advice.before()
        number = advice.denied or advice.refusals.get(address, 0)
        if number == EAGAIN and advice.calls.count(address) > 1 and address in advice.brief:
            number = 0
        if not number and address not in advice.silent:
            entries = block("huge", (address - START) // BLOCK)
            with advice.tree.real(f"/proc/{self._pid}/pagemap").open("r+b") as file:
                file.seek(at)
                file.write(entries.tobytes())
        return number

    def read(self, addresses: Sequence[int], size: int) -> bytes:
        file = f"/proc/{self._pid}/mem"
        return b"".join(self._advice.tree.read_at(file, size, each) for each in addresses)


class FakeAdvice(Advice):
    """A model of the kernel that collapses memory unless told to refuse."""

    def __init__(self, tree: FakeTree) -> None:
        self.tree: Tree = tree
        self.calls: list[int] = []
        self.refusals: dict[int, int] = {}  # by address
        self.brief: set[int] = set()  # refused once
        self.silent: set[int] = set()  # collapses that succeed without effect
        self.forbidden: set[int] = set()  # processes, by prctl
        self.denied = 0
        self.one_s = 0.005

    def before(self) -> None:
        """Called during each collapse."""

    def can_collapse(self) -> bool:
        return True

    def open(self, pid: int) -> FakeMemory:
        return FakeMemory(self, pid)

    def time_collapses(
        self, number: int, undisturbed: Callable[[], AbstractContextManager[None]]
    ) -> list[float]:
        return [self.one_s] * number


def make_heap(
    tree: FakeTree, kinds: Sequence[str], pid: int = 20, cgroup: str = "/db.service",
    start: int = START, name: str = "postgres",
) -> None:  # fmt: skip
    """Make a process with one area of blocks of these kinds."""
    entries = array("Q")
    for number, kind in enumerate(kinds):
        entries += block(kind, number)
    tree.put(f"/proc/{pid}/pagemap", b"")
    with tree.real(f"/proc/{pid}/pagemap").open("r+b") as file:
        file.seek(START // PAGE * 8)
        file.write(entries.tobytes())
    tree.put(f"/proc/{pid}/mem", b"")
    with tree.real(f"/proc/{pid}/mem").open("r+b") as file:
        for page in range(len(entries)):
            file.seek(START + page * PAGE)
            file.write(b"x")
        file.truncate(START + len(entries) * PAGE)
    end = START + len(kinds) * BLOCK
    tree.put(f"/proc/{pid}/maps", f"{start:x}-{end:x} rw-p 00000000 00:00 0")
    tree.put(f"/proc/{pid}/comm", name)
    tree.put(f"/proc/{pid}/status", f"VmRSS: {len(entries) * 4} kB\nRssShmem: 0 kB")
    tree.put(f"/proc/{pid}/stat", f"{pid} ({name}) S {'0 ' * 18}7 0 {len(entries)}")
    tree.put(f"/proc/{pid}/cgroup", f"0::{cgroup}")
    tree.make_cgroup(cgroup)
    tree.put(f"/sys/fs/cgroup{cgroup}/cgroup.procs", str(pid))
    tree.put(f"/sys/fs/cgroup{cgroup}/memory.current", str(len(entries) * PAGE))
    for limit in "max", "high":
        tree.put(f"/sys/fs/cgroup{cgroup}/memory.{limit}", "max")


def make_collapsible(tree: FakeTree, kinds: Sequence[str]) -> FakeAdvice:
    """Make a host without the module, with one process and enough free memory to collapse it."""
    tree.make_unloaded()
    flags = array("Q", [0] * 16)
    flags[ZERO_FRAME], flags[LOCKED_FRAME] = ZERO, MLOCKED
    tree.put("/proc/kpageflags", flags.tobytes())
    for number in range(MOST):  # of the blocks that a test makes
        write_at(tree, "/proc/kpageflags", (HUGE + number * PAGES) * 8,
                 COMPOUND_HEAD.to_bytes(8, "little"))  # fmt: skip
    pressure(tree, 0)
    free_blocks(tree, 1000)
    make_heap(tree, kinds)
    assert tree.read(f"{THP}/hpage_pmd_size") == str(BLOCK)
    advice = FakeAdvice(tree)
    tree.advice = advice
    return advice


def free_blocks(tree: FakeTree, blocks: int, free: int = 1 << 20) -> None:
    """Set the numbers of free 2 MB blocks, and of free pages."""
    tree.put("/proc/vmstat", "pgfault 100\npglazyfree 5")
    tree.put("/proc/zoneinfo", ZONEINFO.format(free=free))
    counts = " ".join(["7"] * 9)
    tree.put("/proc/buddyinfo", f"Node 0, zone   Normal {counts} {blocks % 2} {blocks // 2}")
