# SPDX-License-Identifier: GPL-2.0
"""Keep the memory of services in 2 MB pages where it is fully used, and give it back where it is
empty.

A process is checked soon after its memory counters have changed, and rarely otherwise. Full memory
is collapsed as by `collapse`, and empty memory is split as by `trim`.

After an attempt to collapse or split a 2 MB block, the next attempt on this block waits for a
settling time in which all checks have found the block full, or all have found it empty. The
settling time doubles with each further attempt. So `maintain` does not undo its own work again and
again, or that of khugepaged or the program. A block that is found empty waits for the settling
time even before the first attempt, as memory that was just faulted in is empty.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import NamedTuple

from mmpolicy.errors import Error, Exit
from mmpolicy.figures import figure
from mmpolicy.host.advice import BLOCK, NO_COLLAPSE
from mmpolicy.host.files import Tree
from mmpolicy.host.machine import Host
from mmpolicy.host.pagemap import PAGE
from mmpolicy.memory import collapse, trim
from mmpolicy.memory.collapse import (
    HUGE,
    NOT_FULL,
    PAGES,
    Candidates,
    Collapser,
    Limits,
    Seen,
    Target,
    Verdict,
    time_one,
)
from mmpolicy.memory.holds import Holds
from mmpolicy.memory.pressure import Pressure
from mmpolicy.memory.space import Space, gone
from mmpolicy.memory.trim import Finder, Piece, Splitter

# Kinds of a 2 MB block besides HUGE and NOT_FULL: a FULL block can be collapsed, a GONE block has
# no pages now.
FULL, GONE = "", "gone"
OFTEN = 60  # most checks of a process within one settling time, that is, Rules.settle_s
SELDOM = 2  # fewest checks within one settling time, if the counters of the process change
DOUBLINGS = 6  # most times that the settling time of a block is doubled
# after this many seconds, the collapsing of one process is interrupted, so that the others get a
# turn
TURN_S = 30.0
# seconds to pause after memory was short or a collapse was slow, and the longest pause if that
# repeats
RESUME_S, LONGEST_S = 60.0, 600.0
# a process is checked early if at least this many pages were mapped, unmapped or faulted in since
# its last check
MOVED = PAGES


@dataclass(frozen=True)
class Rules:
    """The CPU budget and the limits of `maintain`."""

    share: float  # share of one CPU for all work of `maintain` together
    longest_s: float  # collapses that take longer than this many seconds count as slow
    reserve: float  # share of each NUMA node's memory to leave free as 2 MB blocks
    min_empty: float  # smallest empty share of a folio that is worth a split
    settle_s: float
    hold_s: float  # longest time in seconds that one read may hold mmap_lock


@dataclass
class Block:
    """An aligned 2 MB block, with the results of its checks."""

    kind: str  # FULL, HUGE, NOT_FULL, GONE or another cause of `collapse`
    pages: int  # number of pages in the block that no other process shares
    # time of the first of the latest checks, all of which have found this kind and this number of
    # pages
    since: float
    empty_since: float = inf  # time since which all checks have found it empty; inf: it is not
    attempts: int = 0
    last: float = -inf  # time of the last attempt to collapse or split the block
    done: int = 0  # number of attempts that changed the block

    def see(self, kind: str, pages: int, now: float) -> None:
        """Record what a check has found: the kind of the block and its number of pages."""
        if (kind, pages) != (self.kind, self.pages):
            self.since = now
        self.kind, self.pages = kind, pages

    def due(self, since: float, settle_s: float) -> float:
        """Return when the block may be collapsed or split, if it has not changed since `since`."""
        return max(since, self.last) + settle_s * (1 << min(max(self.attempts - 1, 0), DOUBLINGS))

    def tried(self, now: float, was_done: bool) -> int:
        """Record an attempt; return 1 if it changed a block that an earlier attempt had changed,
        else 0.
        """
        again = int(was_done and self.done > 0)
        self.attempts, self.last, self.done = self.attempts + 1, now, self.done + was_done
        return again


class Counts(NamedTuple):
    """The kernel's counters of a process; the reader takes no lock of the process."""

    start: int  # start time of the process since boot; it tells processes with the same PID apart
    faults: int
    pages: int  # number of resident pages

    def moved_from(self, other: Counts) -> bool:
        """Return whether resident pages or faults have changed since `other` by MOVED or more,
        which is worth a check.
        """
        return max(abs(self.pages - other.pages), self.faults - other.faults) >= MOVED


@dataclass
class Watched:
    """A process, with the schedule of its checks."""

    pid: int
    counts: Counts
    blocks: dict[int, Block] = field(default_factory=dict)
    pause_s: float = 0.0  # seconds between the last check and `earliest`
    earliest: float = -inf  # earliest time of the next check, if the counters change
    latest: float = -inf  # time of the next check if the counters do not change
    pages: int = 0
    huge: int = 0
    full: int = 0  # number of pages that could become part of 2 MB pages
    empty: int = 0  # estimated number of empty pages in large folios
    # number of pages that are neither collapsed nor split, by cause
    skipped: Counter[str] = field(default_factory=Counter)


@dataclass
class Work:
    """The work done for a service since `maintain` began."""

    name: str
    processes: dict[int, Watched] = field(default_factory=dict)
    made: int = 0  # number of 2 MB pages made
    freed: int = 0  # number of empty pages given back
    again: int = 0  # number of attempts that changed a block which an earlier one had changed
    looks: int = 0  # number of checks of a process
    longest_s: float = 0.0  # duration of the longest collapse in seconds
    # reasons for not collapsing that were printed already
    told: set[str] = field(default_factory=set)

    def left(self) -> Counter[str]:
        """Return the number of pages that are neither collapsed nor split, by cause."""
        return sum((each.skipped for each in self.processes.values()), Counter[str]())


class Maintainer:
    """Collapses and splits memory of one process after another."""

    def __init__(
        self, host: Host, rules: Rules, pressure: Pressure, tell: Callable[[str, str], None],
        over: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._host, self.rules, self._pressure = host, rules, pressure
        self._tell, self._over = tell, over
        self.holds = Holds(host.tree, rules.hold_s)
        self._one_s, self._timed = 0.0, -inf
        self.waits, self._resume, self._pause_s = "", -inf, RESUME_S
        self.no_trim = _why_not(trim.check_possible, host.tree)
        self.no_collapse = _why_not(collapse.check_possible, host.tree)
        if not host.advice.can_collapse():
            self.no_collapse = NO_COLLAPSE

    @property
    def every_s(self) -> float:
        """Return the seconds between two rounds over all processes."""
        return self.rules.settle_s / OFTEN

    def round(
        self, work: Work, pids: Sequence[int], forbids: Callable[[int], str],
        rest: Callable[[], None],
    ) -> None:  # fmt: skip
        """Collapse and split memory of each process of a service in turn, and call rest() after
        each process.

        Nothing is done during a pause, see _heed(). forbids(): returns the reason why a process
        must not get 2 MB pages, or "".
        """
        if self._host.clock() < self._resume:
            return
        for pid in [each for each in work.processes if each not in pids]:
            del work.processes[pid]
        for pid in pids:
            if pid != os.getpid() and not self._over():
                self._try(work, pid, partial(self._turn, work, pid, forbids))
                rest()
            if self._host.clock() < self._resume:
                return
        if self.waits:
            self.waits, self._pause_s = "", RESUME_S

    def look(self, work: Work, pid: int, forbids: Callable[[int], str]) -> None:
        """Check the memory of a process and record the result in `work`, but collapse and split
        nothing.
        """

        def look() -> None:
            each = Watched(pid, self._counts(pid))
            self._look(each, Target(self._host, pid, self.holds, 0), self._host.clock())
            self._forbidden(each, forbids)
            work.processes[pid] = each

        if pid != os.getpid():
            self._try(work, pid, look)

    def _try(self, work: Work, pid: int, do: Callable[[], None]) -> None:
        try:
            do()
        except Error as err:
            if err.exit_code == Exit.DENIED:
                raise
            if gone(err) or not self._host.tree.is_dir(f"/proc/{pid}"):
                work.processes.pop(pid, None)
            else:
                self._heed(err.message)

    def _turn(self, work: Work, pid: int, forbids: Callable[[int], str]) -> None:
        counts = self._counts(pid)
        each = work.processes.get(pid)
        if not each or each.counts.start != counts.start:
            small = counts.pages < MOVED
            latest = self._host.clock() + self.rules.settle_s if small else -inf
            each, moved = Watched(pid, counts, latest=latest), not small
            work.processes[pid] = each
        else:
            moved = counts.moved_from(each.counts)
        now = self._host.clock()
        if now < each.earliest or not (moved or now >= each.latest):
            return
        each.counts = counts
        target = Target(self._host, pid, self.holds, 0)
        seen = self._look(each, target, now)
        work.looks += 1
        did = self._collapse(work, each, target, seen, forbids)
        did += self._trim(work, each, target)
        self._plan(each, did > 0)

    def _counts(self, pid: int) -> Counts:
        text = self._host.tree.read(f"/proc/{pid}/stat").rpartition(")")[2]
        fields = text.split()
        return Counts(int(fields[19]), int(fields[7]), int(fields[21]))

    def _plan(self, each: Watched, did: bool) -> None:
        """Schedule the next check of a process: soon after work, else at growing intervals."""
        settle_s, now = self.rules.settle_s, self._host.clock()
        most = settle_s / SELDOM
        each.pause_s = self.every_s if did else min(2 * each.pause_s or self.every_s, most)
        due = min((at for block in each.blocks.values() for at in self._dues(block)), default=inf)
        each.earliest = now + each.pause_s
        each.latest = max(min(due, now + settle_s), each.earliest)

    def _dues(self, block: Block) -> Iterator[float]:
        if block.kind == FULL and block.empty_since == inf:
            yield self._full_due(block)
        if block.empty_since < inf:
            yield block.due(block.empty_since, self.rules.settle_s)

    def _full_due(self, block: Block) -> float:
        return block.due(block.since, self.rules.settle_s) if block.attempts else block.since

    def _look(self, each: Watched, target: Target, now: float) -> Seen:
        """Check all memory of a process, and update the state of each 2 MB block."""
        found = set[int]()

        def note(start: int, verdict: Verdict) -> None:
            found.add(start)
            block = each.blocks.setdefault(start, Block(verdict.cause, verdict.pages, now))
            block.see(verdict.cause, verdict.pages, now)

        seen = target.look(note)
        for start in each.blocks.keys() - found:
            block = each.blocks[start]
            block.see(GONE, 0, now)
            block.empty_since = inf
            if not block.attempts or block.due(block.since, self.rules.settle_s) < now:
                del each.blocks[start]
        self._look_for_empty(each, target, now)
        each.pages, each.huge, each.skipped = seen.pages, seen.huge, seen.skipped
        each.full = sum(len(area.starts) for area in seen.areas) * PAGES
        return seen

    def _look_for_empty(self, each: Watched, target: Target, now: float) -> None:
        empty = 0.0
        for start, block in each.blocks.items():
            looked = not self.no_trim and block.kind in (HUGE, FULL, NOT_FULL)
            share = target.emptiness(start) if looked else 0.0
            if not looked or share < self.rules.min_empty / 2:
                block.empty_since = inf
            else:
                empty += share * PAGES
                block.empty_since = min(block.empty_since, now)
        each.empty = round(empty)

    def _collapse(
        self, work: Work, each: Watched, target: Target, seen: Seen,
        forbids: Callable[[int], str],
    ) -> int:  # fmt: skip
        """Collapse full memory of a process in its turn; return the number of 2 MB pages made."""
        now = self._host.clock()

        def may(block: Block) -> bool:
            is_full = block.kind == FULL and block.empty_since == inf
            return is_full and now >= self._full_due(block)

        areas = [
            Candidates(area.pid, [at for at in area.starts if may(each.blocks[at])], 0)
            for area in seen.areas
        ]
        areas = [area for area in areas if area.starts]
        if why := self._forbidden(each, forbids):
            if areas and why not in work.told:
                work.told.add(why)
                self._tell(work.name, f"maintain collapses nothing for now: {why}")
            return 0
        if not areas:
            return 0
        limits = Limits(self.rules.share, self.rules.longest_s, 0, self.rules.reserve)
        collapser, began, number = Collapser(self._host, limits, self._pressure), now, 0
        if not collapser.ready(target, areas[0].starts[0]) or self._is_slow():
            self._heed(collapser.done.stopped)
            return 0
        for left in collapser.run({each.pid: target}, areas):
            number = sum(len(area.starts) for area in areas) - left
            if self._over() or self._host.clock() - began > TURN_S:
                break
        done = collapser.done
        ordered = [at for area in sorted(areas, key=lambda one: -len(one.starts))
                   for at in area.starts]  # fmt: skip
        for start in ordered[: max(number - bool(done.stopped), 0)]:
            is_made = start in done.starts
            work.again += each.blocks[start].tried(self._host.clock(), is_made)
            if is_made:
                each.blocks[start].see(HUGE, PAGES, self._host.clock())
        made = len(done.starts)
        work.made, work.longest_s = work.made + made, max(work.longest_s, done.longest_s)
        each.huge, each.full = each.huge + made * PAGES, each.full - made * PAGES
        self._heed(done.stopped)
        return made

    def _forbidden(self, each: Watched, forbids: Callable[[int], str]) -> str:
        """Return why the full memory of a process may not be collapsed, or ""; count its pages as
        skipped for this reason.
        """
        why = self.no_collapse or (forbids(each.pid) if each.full else "")
        if why:
            each.skipped[why] += each.full
        return why

    def _is_slow(self) -> bool:
        """Return whether one collapse takes longer than the limit now, as on a busy host."""
        now = self._host.clock()
        if now - self._timed >= self.rules.settle_s:
            self._one_s, self._timed = time_one(self._host, self.holds), now
        if self._one_s <= self.rules.longest_s:
            return False
        self._timed = -inf
        limit = self.rules.longest_s * 1000
        self._heed(
            f"a collapse takes {self._one_s * 1000:.1f} ms on this host now, more than "
            f"--max-stop {figure(limit)} ms"
        )
        return True

    def _trim(self, work: Work, each: Watched, target: Target) -> int:
        """Give back memory of a process that has been empty for long enough; return the number of
        pages given back.
        """
        now = self._host.clock()
        starts = [
            start for start, block in sorted(each.blocks.items())
            if now >= block.due(block.empty_since, self.rules.settle_s)
        ]  # fmt: skip
        if not starts or self._over() or now < self._resume:
            return 0
        space = Space(self._host.tree, each.pid, self.holds)
        finder = Finder(space, self.rules.min_empty, advised=False)
        splitter = Splitter(self._host, self._pressure, self.holds, self.rules.share)
        found = dict[int, int]()  # number of empty pages, by start address of the 2 MB block
        pieces = _counted(finder.pieces(_ranges(starts)), found, self._over)
        try:
            done = splitter.split(each.pid, pieces, finder)
        except Error as err:
            if err.exit_code != Exit.DENIED:
                raise
            self.no_trim = err.message
            self._tell(
                work.name, f"maintain gives no empty memory back on this host: {self.no_trim}"
            )
            return 0
        freed = max(done.empty - done.left["pinned"], 0)
        for start in starts:
            was_done = bool(freed and start in found)
            block = each.blocks[start]
            work.again += block.tried(self._host.clock(), was_done)
            block.empty_since = inf
            if was_done and block.kind == HUGE:
                each.huge -= PAGES
                block.see(NOT_FULL, 0, self._host.clock())
        for cause, pages in done.left.items():
            each.skipped[f"empty, {cause}"] += pages
        work.freed += freed
        each.pages -= min(freed, each.pages)
        self._heed(done.stopped)
        return freed

    def _heed(self, stopped: str) -> None:
        """Pause all work if `stopped` is the text of a reason; do nothing if it is "".

        The reason is printed unless it is the same as for the last pause. Each pause in a row is
        twice as long as the last, up to LONGEST_S.
        """
        if not stopped:
            return
        if stopped != self.waits:
            self._tell("", f"waits: {stopped}")
        self.waits, self._resume = stopped, self._host.clock() + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_S)


def _why_not(check: Callable[[Tree], None], tree: Tree) -> str:
    try:
        check(tree)
    except Error as err:
        return err.message
    return ""


def _ranges(starts: Sequence[int]) -> list[tuple[int, int]]:
    """Return sorted addresses of 2 MB blocks as address ranges."""
    found = list[tuple[int, int]]()
    for start in starts:
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], start + BLOCK)
        else:
            found.append((start, start + BLOCK))
    return found


def _counted(
    pieces: Iterator[Piece], found: dict[int, int], over: Callable[[], bool]
) -> Iterator[Piece]:
    """Yield pieces of empty memory until over() returns True; add their number of empty pages to
    `found`, by address of the 2 MB block.
    """
    for piece in pieces:
        if over():
            return
        if piece.empty:
            for start in range(piece.start // BLOCK * BLOCK, piece.end, BLOCK):
                found[start] = found.get(start, 0) + piece.empty
        yield piece


def kib(pages: int) -> int:
    return pages * PAGE >> 10
