# SPDX-License-Identifier: GPL-2.0
"""Gives back the empty part of large folios: lets the kernel split them.

From Linux 6.12 on, a page of a split anonymous folio that holds zeroes alone is mapped to the page
of zeroes, and is free. The kernel looks at it again while nobody can write to it, so it does not
matter what a program writes after we looked. A split to any other size gives nothing back.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from errno import EINVAL, ENOENT, ESRCH
from typing import NamedTuple

from mmpolicy.errors import Error, Exit
from mmpolicy.host.evidence import PRESSURE, THP, pressure_in
from mmpolicy.host.files import SPLIT, Tree
from mmpolicy.host.knobs import chosen
from mmpolicy.host.machine import Host
from mmpolicy.memory.folios import (
    PAGE,
    Frames,
    Mapping,
    of_memory,
    read_mappings,
    read_stretches,
)

FEATURE = f"{THP}/shrink_underused"  # came with the kernel that frees what is empty
LOCKDOWN = "/sys/kernel/security/lockdown"
ASKED, LOCKED = "hg", "lo"  # VmFlags: by MADV_HUGEPAGE; by mlock(), which keeps empty pages too
LARGE = re.compile(rb"([1-9])\1*")
LEAST, MOST = 512, 16384  # pages of a write
SHORT_S, LONG_S = 0.002, 0.005  # a write holds up mmap() and munmap() of the program meanwhile
LOOK_S = 0.25  # between two looks at the pressure
KHUGEPAGED = f"{THP}/khugepaged/max_ptes_none"
FILES = (f"{THP}/enabled", f"{THP}/hugepages-2048kB/enabled")
FEW = 64  # pages of 512: more may be empty in what khugepaged makes, unless this is lowered
REMAINS = (
    "restart the program; or let reclaim split 2 MB folios of which 80 % is empty: "
    f"echo 409 >{KHUGEPAGED}; echo SIZE >CGROUP/memory.reclaim, which also reclaims other memory"
)


class Piece(NamedTuple):
    """A range of addresses with large folios that have empty pages."""

    start: int
    end: int
    empty: int  # pages


@dataclass
class Trimmed:
    """What was done to a process."""

    empty: int = 0  # pages that were seen
    writes: int = 0
    longest_s: float = 0.0
    stopped: str = ""  # why, if it was before the end
    ended: bool = False  # has the process?


def check_possible(tree: Tree) -> None:
    """Fail where this kernel cannot do it, or is not allowed to."""
    if not tree.exists(FEATURE):
        text = "this kernel keeps the empty pages of a folio that it splits (Linux 6.12 frees them)"
        raise Error(text, Exit.LACKING, "restart the program, with smaller folios")
    mode = chosen(tree.read(LOCKDOWN)) if tree.exists(LOCKDOWN) else "none"
    if mode != "none":
        text = f"lockdown is '{mode}' (Secure Boot), so the kernel lets nobody write to {SPLIT}"
        raise Error(text, Exit.DENIED, REMAINS)
    if not tree.exists(SPLIT):
        if not tree.is_root():
            raise Error(f"no permission to write {SPLIT}", Exit.DENIED, "run it as root")
        hint = "mount -t debugfs none /sys/kernel/debug; where the kernel has none: "
        raise Error(f"no {tree.real(SPLIT)}", Exit.LACKING, hint + REMAINS)


def comes_back(tree: Tree) -> str:
    """Tell how the kernel would fill again what was given back, empty if it would not."""
    try:
        modes = {chosen(tree.read(file)) for file in FILES if tree.exists(file)}
        most = int(tree.read(KHUGEPAGED))
    except (Error, ValueError):
        return ""
    if most <= FEW or "always" not in modes:
        return ""
    return (
        f"note: khugepaged may fill it again, as it takes up to {most} empty pages into 2 MB; "
        f"echo 0 >{KHUGEPAGED} stops that, for all programs"
    )


def find_pieces(tree: Tree, pid: int, least: float, asked: bool) -> Iterator[Piece]:
    """Yield what can be given back, while it looks at the memory of a process.

    A stretch of 16 MiB without anything yields a piece of no length, so that the caller can stop.
    Folios of which less than a part is empty are left alone, and without `asked` those that the
    program has asked for by MADV_HUGEPAGE.
    """
    for mapping in read_mappings(tree, pid):
        unwanted = {LOCKED} if asked else {LOCKED, ASKED}
        if of_memory(mapping) and not unwanted & mapping.flags:
            yield from _pieces_of(tree, pid, mapping, least)


def _pieces_of(tree: Tree, pid: int, mapping: Mapping, least: float) -> Iterator[Piece]:
    frames, folios = Frames(tree), Counter[int]()
    for first, kinds, zeroes in read_stretches(tree, pid, frames, mapping, True, folios):
        begin, last = mapping.start // PAGE + first, None
        for page, end, empty in _blocks(begin, kinds, zeroes):
            if empty < least * (end - page):
                continue
            if last and last.end == page * PAGE:
                last = Piece(last.start, end * PAGE, last.empty + empty)
                continue
            if last:
                yield last
            last = Piece(page * PAGE, end * PAGE, empty)
        yield last or Piece(begin * PAGE, begin * PAGE, 0)


def _blocks(begin: int, kinds: bytes, zeroes: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield the folios of a stretch with empty pages: first page, end, and how many are empty.

    Folios are aligned, unless mremap() has moved them; then some are cut in two.
    """
    for run in LARGE.finditer(kinds):
        size = 1 << int(run[1])
        page, end = begin + run.start(), begin + run.end()
        while page < end:
            after = min((page // size + 1) * size, end)
            empty = zeroes.count(1, page - begin, after - begin)
            if empty:
                yield page, after, empty
            page = after


class Pressure:
    """Tells when the host is short of memory."""

    def __init__(self, host: Host, limit: float) -> None:
        self._host, self._limit = host, limit
        self._path = f"{PRESSURE}/memory"
        self._last = self._read()
        self.known = self._last is not None
        self._when = host.clock()

    def _read(self) -> tuple[float, float] | None:
        """Return how long tasks have waited, in seconds, and the share of the last ten."""
        try:
            some = pressure_in(self._host.tree, self._path)["some"]
            return int(some["total"]) / 1e6, float(some["avg10"])
        except (Error, KeyError, ValueError):
            return None

    def too_high(self) -> str:
        """Return why to stop, empty if there is no reason."""
        now, seconds = self._read(), self._host.clock() - self._when
        if not now or not self._last:
            return ""
        share = now[1]
        if seconds >= LOOK_S:
            share = max(share, 100 * (now[0] - self._last[0]) / seconds)
            self._last, self._when = now, self._host.clock()
        if share <= self._limit:
            return ""
        return f"tasks wait for memory {share:.0f} % of the time, more than {self._limit:g} %"


class Splitter:
    """Writes in steps that are short, with as long a pause after each."""

    def __init__(self, host: Host, pressure: Pressure) -> None:
        self._host, self._pressure = host, pressure
        self._pages = LEAST
        self._looked = -LOOK_S

    def split(self, pid: int, pieces: Iterable[Piece]) -> Trimmed:
        """Split all pieces of a process, unless it ends or memory is short."""
        done = Trimmed()
        try:
            for piece in pieces:
                if self._must_stop(done):
                    break
                done.empty += piece.empty
                start = piece.start
                while start < piece.end and not self._must_stop(done):
                    end = min(start + self._pages * PAGE, piece.end)
                    self._step(done, pid, start, end)
                    start = end
        except Error as err:
            gone = err.errno in (ENOENT, ESRCH, EINVAL)
            if not gone and self._host.tree.is_dir(f"/proc/{pid}"):
                raise
            done.ended = True
        return done

    def _must_stop(self, done: Trimmed) -> bool:
        if self._host.clock() - self._looked >= LOOK_S:
            self._looked = self._host.clock()
            done.stopped = self._pressure.too_high()
        return bool(done.stopped)

    def _step(self, done: Trimmed, pid: int, start: int, end: int) -> None:
        begin = self._host.clock()
        self._host.tree.split(pid, start, end)
        took = self._host.clock() - begin
        done.writes += 1
        done.longest_s = max(done.longest_s, took)
        if took > LONG_S:
            self._pages = max(self._pages // 2, LEAST)
        elif took < SHORT_S:
            self._pages = min(self._pages * 2, MOST)
        self._host.sleep(max(took, 0.001))
