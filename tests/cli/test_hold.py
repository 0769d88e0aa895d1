# SPDX-License-Identifier: GPL-2.0
"""Readers hold no lock of a process for long: on a real process of this machine."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mmpolicy.host.files import Reader, Tree
from mmpolicy.host.pagemap import ANY, PAGE, SCAN
from mmpolicy.memory.folios import Area, read_areas
from mmpolicy.memory.holds import SMAPS_NS, Holds, _address
from mmpolicy.memory.lazily import memory_of_process
from mmpolicy.memory.space import Space, huge_of
from mmpolicy.memory.survey import FIGURES, Survey
from mmpolicy.memory.trim import Finder

PAGES = 96 << 8  # 96 MiB in single pages, in a reservation of 64 GiB
PROGRAM = f"""
import ctypes, mmap, sys
how = sys.argv[1]
sharing = mmap.MAP_SHARED if how == "shared" else mmap.MAP_PRIVATE
memory = mmap.mmap(-1, 64 << 30, sharing | mmap.MAP_ANONYMOUS | 0x4000)  # NORESERVE
memory.madvise(mmap.MADV_NOHUGEPAGE)
if how == "emptied":  # its page tables stay
    for page in range(0, 512 * {PAGES}, 512):
        memory[page * {PAGE}] = 1
    memory.madvise(mmap.MADV_DONTNEED)
step = 512 if how == "spread" else 1
for page in range({PAGES}):
    memory[page * step * {PAGE}] = 1
if how == "areas":  # almost as many as the kernel lets a process have
    start, libc = ctypes.addressof(ctypes.c_char.from_buffer(memory)), ctypes.CDLL(None)
    for page in range(0, min({PAGES}, 60_000), 2):
        libc.mprotect(ctypes.c_void_p(start + page * {PAGE}), {PAGE}, 1)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module", params=["together", "spread", "areas", "emptied", "shared"])
def pid(request: pytest.FixtureRequest) -> Iterator[int]:
    """Start a process that uses little of its reservation."""
    argv = [sys.executable, "-c", PROGRAM, request.param]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout
        assert job.stdout.readline() == "ready\n"
        yield job.pid
        assert job.stdin
        job.stdin.close()


class Watched(Tree):
    """The files of this machine; records reads of a process, and their sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.read_files: set[str] = set()
        self.found: list[int] = []

    def reader(self, path: str) -> Reader:
        self.read_files.add(path)
        return WatchedReader(self, path)

    def read_bytes(self, path: str) -> bytes:
        self.read_files.add(path)
        return super().read_bytes(path)


class WatchedReader(Reader):
    """Records the number of pages that a scan has found."""

    def __init__(self, tree: Watched, path: str) -> None:
        super().__init__(path)
        self._tree = tree

    def ioctl(self, request: int, argument: bytearray) -> int:
        number = super().ioctl(request, argument)
        if request == SCAN:
            numbers = memoryview(argument).cast("Q")
            place, most = numbers[5], numbers[7]
            assert numbers[10] & ANY == ANY  # skipped pages do not count against the limit
            from ctypes import c_uint64

            out = (c_uint64 * (3 * number)).from_address(place)
            found = sum(out[n + 1] - out[n] for n in range(0, 3 * number, 3)) // PAGE
            assert not most or found <= most
            self._tree.found.append(found)
        return number


def of_survey(tree: Tree, pid: int) -> object:
    survey = Survey(tree, 0.2, seed=1)
    survey._list = lambda: [pid]  # type: ignore[method-assign]
    survey.turn(1.0, 5.0)
    survey.turn(6.0, 5.0)
    _, (row,) = survey.most(FIGURES["waste"], 9)
    assert row.seen == 1
    assert sum(sample.spots for sample, _ in survey.processes[pid].parts) > 50
    return row


LOOKS: dict[str, Callable[[Tree, int], object]] = {
    "top, recommend": of_survey,
    "map, explain": lambda tree, pid: read_areas(tree, pid, False, shared=True),
    "trim": lambda tree, pid: [*Finder(Space(tree, pid, Holds(tree)), 0.1, False).pieces()],
    "show": lambda tree, pid: memory_of_process(tree, pid, Holds(tree)),
    "thp --vms": huge_of,
}


@pytest.mark.parametrize("name", LOOKS)
def test_no_read_is_longer_than_it_may_be(
    name: str, pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """smaps is never read as a whole where a page of it costs what is usual, and no scan reads more
    pages at once than its limit.
    """
    monkeypatch.setattr(Holds, "_measure_smaps", lambda holds: SMAPS_NS)
    tree = Watched()
    LOOKS[name](tree, pid)
    assert f"/proc/{pid}/smaps_rollup" not in tree.read_files
    assert f"/proc/{pid}/numa_maps" not in tree.read_files
    if tree.found:  # if the kernel can scan
        assert max(tree.found) <= Holds(Tree()).limit_s * 1e9 / 5


def test_neighbouring_entries_are_read_at_once(pid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neighbouring entries are read at once: a read for each of a million spread pages took
    minutes, mostly in the scheduler.
    """
    reads, plain = list[int](), Space.entries

    def entries(space: Space, start: int, pages: int) -> array[int]:
        reads.append(pages)
        return plain(space, start, pages)

    monkeypatch.setattr(Space, "entries", entries)
    areas = read_areas(Tree(), pid, False, shared=True)
    assert sum(len(part) - part.count(b".") for _, part in of_all(areas)) >= PAGES
    assert len(reads) < PAGES // 8 + 500 + len(Space(Tree(), pid, Holds(Tree())).areas())


def of_all(areas: list[Area]) -> Iterator[tuple[int, bytes]]:
    """Yield all stretches."""
    for area in areas:
        yield from area.kinds.stretches()


def referenced(start: int) -> int:
    """Return how many kB of an area of this process were accessed."""
    text, seen = Path("/proc/self/smaps").read_text(), False
    for line in text.splitlines():
        first = line.split()[0]
        if "-" in first:
            begin, end = (int(each, 16) for each in first.split("-"))
            seen = begin <= start < end
        elif seen and first == "Referenced:":
            return int(line.split()[1])
    return 0


def test_only_contents_are_marked_as_accessed() -> None:
    """Only contents are marked as accessed: Referenced of smaps stays, except for pages of large
    folios whose contents are read.
    """
    size = 4 << 20
    with mmap.mmap(-1, 2 * size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        for page in range(2 * size // PAGE):
            memory[page * PAGE] = 1
        start = _address(memory)
        Path("/proc/self/clear_refs").write_text("1")
        before = referenced(start)
        space = Space(Tree(), os.getpid(), Holds(Tree()))
        assert sum(each.pages for each in space.regions(start, start + size)) == size // PAGE
        assert all(space.entries(start, 512))
        read_areas(Tree(), os.getpid(), contents=True)  # it has single pages only
        assert referenced(start) == before < size >> 10
        assert space.contents(start, 16) != b""
        assert referenced(start) >= before + 64


@pytest.mark.parametrize(
    ("policy", "nice", "may", "text"),
    [
        (os.SCHED_OTHER, 0, False, ""),
        (os.SCHED_OTHER, -5, False, ""),
        (os.SCHED_OTHER, 19, False, "its nice value is 19"),
        (os.SCHED_OTHER, 19, True, ""),
        (os.SCHED_BATCH, 0, False, "its scheduling policy is SCHED_BATCH"),
        (os.SCHED_IDLE | os.SCHED_RESET_ON_FORK, 0, False, "its scheduling policy is SCHED_IDLE"),
        (os.SCHED_IDLE, 0, True, ""),
        (os.SCHED_FIFO, 19, False, ""),
    ],
)
def test_what_slows_a_reader_down(
    policy: int, nice: int, may: bool, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A verb warns of it where SCHED_FIFO is not permitted."""
    now = [policy]

    def switch(_pid: int, wanted: int, _param: object) -> None:
        if not may:
            raise PermissionError
        now[0] = wanted

    monkeypatch.setattr(os, "sched_getscheduler", lambda _pid: now[0])
    monkeypatch.setattr(os, "sched_setscheduler", switch)
    monkeypatch.setattr(os, "getpriority", lambda _which, _pid: nice)
    assert Holds(Tree()).slowed() == text
    assert now == [policy]
