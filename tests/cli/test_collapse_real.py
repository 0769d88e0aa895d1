# SPDX-License-Identifier: GPL-2.0
"""`collapse` on this machine's own kernel: its effect on memory, never its duration."""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner

from mmpolicy.cli import main
from mmpolicy.control.maintained import LIVE, live
from mmpolicy.errors import Error
from mmpolicy.host.advice import BLOCK, Advice
from mmpolicy.host.files import Tree
from mmpolicy.host.machine import Host
from mmpolicy.memory.collapse import CHUNK, LAZY, LOCKED, SHARED, Collapser, Done, Limits, Target
from mmpolicy.memory.holds import Holds
from mmpolicy.memory.pressure import Pressure
from mmpolicy.memory.space import HUGE, PRESENT, Space

BLOCKS = 12
SOURCE = Path(__file__).parents[2] / "userspace/src"
# A program that fills some pages of each 2 MB in random order, takes commands, and checks itself.
PROGRAM = """
import ctypes, mmap, os, random, sys
blocks, layout = int(sys.argv[1]), sys.argv[2]
block, page = 2 << 20, 4096
memory = mmap.mmap(-1, (blocks + 1) * block, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
first = -start % block
memory.madvise(15, 0, len(memory))
def used(number, at):
    half = layout == "half" or (layout == "mixture" and number % 2)
    return at < 256 if half else at % 16 == 0 if layout == "sixteenth" else True
pages = [n * 512 + at for n in range(blocks) for at in range(512) if used(n, at)]
random.Random(1).shuffle(pages)
def text(number):
    return b"%016d" % (number * 7919) * 256
for number in pages:
    memory[first + number * page : first + (number + 1) * page] = text(number)
if layout != "forbidden":
    memory.madvise(14, 0, len(memory))
libc = ctypes.CDLL(None, use_errno=True)
if layout == "locked":
    assert libc.mlock(ctypes.c_void_p(start + first), ctypes.c_size_t(blocks * block)) == 0
if layout in ("lazy", "used again"):
    memory.madvise(8, first, blocks * block)
if layout == "used again":
    for number in pages:
        memory[first + number * page : first + (number + 1) * page] = text(number)
if layout == "reservation":
    keep = mmap.mmap(-1, 1 << 44, 0x4022, prot=3)  # NORESERVE
    keep[1 << 36] = 1
child = 0
if layout == "shared":
    here, there = os.pipe()
    child = os.fork()
    if not child:
        os.close(there)
        os.read(here, 1)
        os._exit(0)
print(f"{start + first:x}", flush=True)
for line in sys.stdin:
    word = line.strip()
    if word == "check":
        bad = sum(memory[first + n * page : first + (n + 1) * page] != text(n) for n in pages)
        print(bad, flush=True)
    elif word == "split":
        for n in range(100, blocks * 512, 512):
            memory.madvise(4, first + n * page, page)
            memory[first + n * page : first + (n + 1) * page] = text(n)
        print("done", flush=True)
    elif word == "unmap":  # each 2 MB keeps its folio, which 512 entries map then
        for at in range(start + first, start + first + blocks * block, block):
            for rights in (1, 3):
                assert libc.mprotect(ctypes.c_void_p(at), ctypes.c_size_t(page), rights) == 0
        print("done", flush=True)
    elif word == "exec":
        os.execv(sys.executable, [sys.executable, "-c", "print('over', flush=True); input()"])
"""


def lacking() -> str:
    """Return the feature that this machine lacks to collapse memory of other processes."""
    if os.geteuid():
        return "not root"
    try:
        Advice().time_collapses(1, Holds(Tree("/")).undisturbed)
    except Error as err:
        return err.message
    return "" if os.access("/proc/kpageflags", os.R_OK) else "no /proc/kpageflags"


pytestmark = pytest.mark.skipif(bool(lacking()), reason=lacking())


class Program:
    """A program with a heap."""

    def __init__(self, process: subprocess.Popen[str], heap: int = 0) -> None:
        self.process, self.pid, self.heap = process, process.pid, heap

    def say(self, word: str) -> str:
        """Send it a command, and return its answer."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def kib(self, name: str) -> int:
        """Return a figure of smaps for its heap."""
        inside = False
        for line in Path(f"/proc/{self.pid}/smaps").read_text().splitlines():
            if head := re.match("([0-9a-f]+)-([0-9a-f]+) ", line):
                inside = int(head[1], 16) <= self.heap < int(head[2], 16)
            elif inside and line.startswith(f"{name}:"):
                return int(line.split()[1])
        return 0


@contextmanager
def program(layout: str, blocks: int = BLOCKS) -> Iterator[Program]:
    """Start one, and wait until its heap is filled."""
    words = [sys.executable, "-c", PROGRAM, str(blocks), layout]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as each:
        try:
            assert each.stdout
            yield Program(each, int(each.stdout.readline(), 16))
        finally:
            each.kill()


def collapsed(one: Program, *words: str) -> int:
    """Run the verb without pauses, and return its exit code."""
    free = ("--max-stop", "10000", "--max-pressure", "100", "--cpu", "100", "--reserve", "0")
    args = ["collapse", "--pid", str(one.pid), *free, *words]
    return CliRunner().invoke(main, args, obj=Host(Tree("/"), log=lambda _line: None)).exit_code


@pytest.mark.parametrize(
    ("layout", "huge"),
    [
        ("full", BLOCKS), ("half", 0), ("sixteenth", 0), ("mixture", BLOCKS // 2),
        ("forbidden", 0), ("locked", 0), ("shared", 0), ("lazy", 0),
    ],
)  # fmt: skip
def test_only_what_is_full(layout: str, huge: int) -> None:
    """Only full memory gets 2 MB pages; the size of the memory and all data are unchanged, and what
    the kernel may take back (MADV_FREE) stays so.
    """
    with program(layout) as one:
        before, lazy = one.kib("Rss"), one.kib("LazyFree")
        assert (lazy > 0) == (layout == "lazy")
        assert collapsed(one) == 0
        assert one.kib("AnonHugePages") == huge * BLOCK >> 10
        # the kernel marks pages as lazily freed in batches, so a few may follow
        assert one.kib("Rss") == before and one.kib("LazyFree") >= lazy
        assert one.say("check") == "0"


@pytest.mark.parametrize(
    ("layout", "cause"), [("locked", LOCKED), ("shared", SHARED), ("lazy", LAZY)]
)
def test_a_dry_run_judges_each_block(layout: str, cause: str) -> None:
    """A dry run judges each block, also in ranges of CHUNK blocks in which no page is missing,
    which the first look takes.
    """
    blocks = 3 * CHUNK
    with program(layout, blocks) as one:
        words = ["collapse", "--pid", str(one.pid), "--dry-run", "--json"]
        words += ["--max-stop", "10000", "--reserve", "0"]
        result = CliRunner().invoke(main, words, obj=Host(Tree("/")))
        data = json.loads(result.output)
        assert (data["areas"], data["processes"][0]["made_kib"]) == ([], 0)
        assert data["skipped_kib"][cause] >= blocks * BLOCK >> 10


def test_lazily_freed_memory_that_is_used_again() -> None:
    """Memory that was lazily freed and is used again gets 2 MB pages, if smaps may tell."""
    with program("used again", 2) as one:
        assert one.kib("LazyFree") == 0
        assert collapsed(one) == 0
        assert one.kib("AnonHugePages") == 2 * BLOCK >> 10
        assert one.say("check") == "0"


@pytest.mark.parametrize("scans", [True, False])
def test_reserved_memory_is_passed_over(scans: bool) -> None:
    """Of a reservation of 16 TB, as sanitizers and runtimes make, only the parts with pages are
    read; a kernel without PAGEMAP_SCAN is asked for longer and longer parts.
    """
    reads = list[int]()

    class Counting(Space):
        @property
        def can_scan(self) -> bool:
            return scans and super().can_scan

        def raw_entries(self, start: int, pages: int) -> bytes:
            reads.append(start)
            raw = bytearray(super().raw_entries(start, pages))
            raw[6::8] = bytes([0x80]) * (len(raw) // 8)  # soft-dirty, as Debian's kernel says
            return bytes(raw)

    with program("reservation") as one:
        space = Counting(Tree("/"), one.pid, Holds(Tree("/")))
        if scans and not space.can_scan:
            pytest.skip("this kernel has no PAGEMAP_SCAN")
        (area,) = (each for each in space.areas() if each.end - each.start >= 1 << 44)
        end = area.end if scans else area.start + (1 << 37)
        assert space.next_page(area.start, end) == area.start + (1 << 36)
        assert space.next_page(area.start + (1 << 36) + 4096, end) == end
        assert len(reads) < (1 if scans else 600)


def test_consecutive_frames_are_no_huge_page() -> None:
    """512 entries with consecutive frames are not taken for a huge page: the kernel makes one
    again.
    """
    with program("full") as one:
        if not Space(Tree("/"), one.pid, Holds(Tree("/"))).can_scan:
            pytest.skip("this kernel has no PAGEMAP_SCAN")
        assert collapsed(one) == 0
        assert one.say("unmap") == "done"
        assert one.kib("AnonHugePages") == 0
        assert collapsed(one) == 0
        assert one.kib("AnonHugePages") == BLOCKS * BLOCK >> 10
        assert one.say("check") == "0"


def test_holes_are_filled_on_request() -> None:
    with program("half", 2) as one:
        before = one.kib("Rss")
        assert collapsed(one, "--min-used", "50", "--max-growth", "100") == 0
        assert one.kib("AnonHugePages") == 2 * BLOCK >> 10
        assert one.kib("Rss") == before + (BLOCK >> 10)
        assert one.say("check") == "0"


KILLS = int(os.environ.get("MMPOLICY_KILLS", "10"))


def test_killed_at_any_moment() -> None:
    """If `collapse` is killed at any moment, the program keeps all of its memory, and no priority
    or setting is left changed.
    """
    rng, states = random.Random(4), set[int]()
    with program("full", 24) as one:
        words = [sys.executable, "-m", "mmpolicy", "collapse", "--pid", str(one.pid)]
        words += ["--cpu", "20", "--max-stop", "10000", "--max-pressure", "100", "--reserve", "0"]
        threads = [path.stat().st_ino for path in Path(f"/proc/{one.pid}/task").iterdir()]
        for _ in range(KILLS):
            assert one.say("split") == "done"
            tool = subprocess.Popen(
                words, env={**os.environ, "PYTHONPATH": str(SOURCE)},
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            assert tool.stderr and "ranges of 2 MB" in tool.stderr.readline()
            time.sleep(rng.uniform(0, 0.5))
            tool.send_signal(signal.SIGKILL)
            tool.wait()
            tool.stderr.close()
            states.add(one.kib("AnonHugePages") * 1024 // BLOCK)
            assert os.sched_getscheduler(one.pid) == os.SCHED_OTHER
            assert one.say("check") == "0"
        assert len(states) > 1 or KILLS == 10, states
        assert [path.stat().st_ino for path in Path(f"/proc/{one.pid}/task").iterdir()] == threads
        assert one.say("split") == "done"
        assert collapsed(one) == 0
        assert one.kib("AnonHugePages") == 24 * BLOCK >> 10
        assert one.say("check") == "0"


@contextmanager
def kept(one: Program) -> Iterator[subprocess.Popen[str]]:
    """Run `maintain` for it, one on this machine at a time; it is killed at the end."""
    words = [sys.executable, "-m", "mmpolicy", "maintain", "--pid", str(one.pid), "--settle", "2s"]
    words += ["--cpu", "50", "--max-stop", "10000", "--max-pressure", "100", "--reserve", "0"]
    with Path(tempfile.gettempdir(), "mmpolicy-test.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        yield from _kept(words)


def _kept(words: list[str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        words, env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True,
    ) as tool:  # fmt: skip
        try:
            yield tool
        finally:
            tool.kill()
            tool.wait()
            Path(LIVE).unlink(missing_ok=True)


def reached(tool: subprocess.Popen[str], test: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Return its report of the service once the test holds."""
    for _ in range(3000):
        told = live(Tree("/"))
        if told.get("pid") == tool.pid:
            (service,) = told["services"]
            if test(service):
                return cast("dict[str, Any]", service)
            assert told["waits"] == ""
        assert tool.poll() is None
        time.sleep(0.1)
    raise AssertionError(told)


def test_maintained() -> None:
    """Only full memory is collapsed, and once, as the program is left alone then."""
    with program("mixture") as one:
        before = one.kib("Rss")
        with kept(one) as tool:
            made = reached(tool, lambda service: service["looks"] and not service["full_kib"])
            assert (one.kib("AnonHugePages"), one.kib("Rss")) == (BLOCKS // 2 * BLOCK >> 10, before)
            later = reached(tool, lambda service: service["looks"] >= made["looks"] + 2)
            assert (later["collapsed_kib"], later["again"]) == (made["collapsed_kib"], 0)
        assert live(Tree("/")) == {}
        assert os.sched_getscheduler(one.pid) == os.SCHED_OTHER
        assert one.say("check") == "0"


def ready(one: Program) -> tuple[Collapser, Iterator[int]]:
    """Return a collapser that has examined a program, and its steps."""
    host = Host(Tree("/"), log=lambda _line: None)
    target = Target(host, one.pid, Holds(host.tree), 0)
    collapser = Collapser(host, Limits(1.0, 10.0, 1 << 30, 0.0), Pressure(host, 100))
    return collapser, collapser.run({one.pid: target}, target.look().areas)


def test_a_program_that_ends_meanwhile() -> None:
    with program("full") as one:
        collapser, steps = ready(one)
        next(steps)
        one.process.kill()
        one.process.wait()
        list(steps)
    done: Done = collapser.done
    assert (done.stopped, sum(done.made.values()), done.ended) == ("", 1, {one.pid})


def test_another_program_at_the_same_addresses() -> None:
    """After exec() no memory of the new program is changed."""
    with program("full") as one:
        collapser, steps = ready(one)
        next(steps)
        assert one.say("exec") == "over"
        list(steps)
        assert collapser.done.ended == {one.pid}
        assert one.kib("AnonHugePages") == 0


# Memory that is inherited, moved, unmapped and written while it is collapsed.
RESTLESS = """
import ctypes, mmap, os, random, sys, time
block, blocks = 2 << 20, 8
libc = ctypes.CDLL(None)
libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
def area(size):
    return libc.mmap(None, ctypes.c_size_t(size), 3, 0x22, -1, ctypes.c_long(0))
size = (blocks + 1) * block
rng, bad, rounds = random.Random(int(sys.argv[1])), 0, 0
print("ready", flush=True)
end = time.monotonic() + 6
while time.monotonic() < end:
    rounds += 1
    start = area(size)
    libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), 15)
    for page in range(0, size, 4096):
        ctypes.memset(start + page, page // 4096 % 251 + 1, 4096)
    libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), 14)
    time.sleep(rng.uniform(0, 0.1))
    if rng.random() < 0.5:
        pid = os.fork()
        if not pid:
            time.sleep(0.02)
            os._exit(0)
        os.waitpid(pid, 0)
    if rng.random() < 0.5:
        start = libc.mremap(ctypes.c_void_p(start), ctypes.c_size_t(size), ctypes.c_size_t(size),
                            3, ctypes.c_void_p(area(size)))
    time.sleep(rng.uniform(0, 0.1))
    for page in range(0, size, 4096):
        want = bytes([page // 4096 % 251 + 1]) * 4096
        bad += ctypes.string_at(start + page, 4096) != want
    libc.munmap(ctypes.c_void_p(start), ctypes.c_size_t(size))
print(bad, rounds, flush=True)
"""


def test_memory_that_is_moved_inherited_and_unmapped() -> None:
    words = [sys.executable, "-c", RESTLESS, "1"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdout.readline() == "ready\n"
        one, made = Program(process), 0
        while process.poll() is None:
            with suppress(Error):  # it has just exited
                collapser, steps = ready(one)
                list(steps)
                assert collapser.done.stopped == ""
                made += sum(collapser.done.made.values())
        bad, rounds = map(int, process.stdout.readline().split())
    assert (bad, process.returncode) == (0, 0)
    assert made and rounds > 1


BRIEF = """
import mmap, time
memory = mmap.mmap(-1, 10 << 21, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(15)
for page in range(0, len(memory), 4096):
    memory[page] = 1
memory.madvise(14)
time.sleep(3)
"""


def test_bench_has_an_arm_for_it() -> None:
    """The memory of the command is collapsed in that arm alone."""
    words = ["bench", "--collapse", "--runs", "1", "--warmup", "0", "--json", "--"]
    host = Host(Tree("/"), log=lambda _line: None)
    result = CliRunner().invoke(main, [*words, sys.executable, "-c", BRIEF], obj=host)
    assert result.exit_code == 0, result.output
    as_is, arm = json.loads(result.output[result.output.index("{") :])["arms"]
    assert (as_is["name"], as_is["mean"]["collapsed"]) == ("as-is", 0)
    assert (arm["name"], arm["settings"]) == ("collapse", {"collapse": "2 MB"})
    assert arm["mean"]["collapsed"] >= 9 * BLOCK


def test_own_memory_is_given_back() -> None:
    """The cost of one collapse is measured on memory that is unmapped again."""
    before = len(Path("/proc/self/maps").read_text().splitlines())
    times = Advice().time_collapses(3, Holds(Tree("/")).undisturbed)
    assert len(times) == 3 and all(0 < each < 10 for each in times)
    assert len(Path("/proc/self/maps").read_text().splitlines()) <= before + 1
    assert mmap.PAGESIZE == 4096


def test_the_kind_of_a_range() -> None:
    """The kind of a range is: before, all pages present in small folios; after, huge; with a hole,
    neither.
    """
    with program("full") as one:
        space = Space(Tree("/"), one.pid, Holds(Tree("/")))
        end = one.heap + BLOCKS * BLOCK
        if not space.can_scan:
            assert space.kind(one.heap, end) == 0
            pytest.skip("this kernel has no PAGEMAP_SCAN")
        assert space.kind(one.heap, end) == PRESENT
        assert collapsed(one) == 0
        assert space.kind(one.heap, end) == PRESENT | HUGE
        assert one.say("split") == "done"
        assert space.kind(one.heap, end) == PRESENT
    with program("half") as one:
        assert Space(Tree("/"), one.pid, Holds(Tree("/"))).kind(one.heap, one.heap + BLOCK) == 0
