# SPDX-License-Identifier: GPL-2.0
"""Give back the empty part of large folios by letting the kernel split them.

From Linux 6.12 on, a page of a split anonymous folio that holds only zeroes is replaced by the
zero page, and freed. The kernel checks the page again while it is write-protected, so a write of
the program after the check of this command is safe. A split to an order other than 0 frees
nothing.

If a program has unmapped some pages of a folio, the kernel keeps these pages until the folio is
split. They belong to no RSS, but stay charged to the cgroup. So they count as empty, too.

Empty memory that is not given back is counted by cause, for the report.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from errno import EINVAL, ENOENT, ESRCH
from itertools import islice
from typing import NamedTuple

from mmpolicy.errors import OUTSIDE, Error, Exit
from mmpolicy.host.cgroups import cgroup_folders
from mmpolicy.host.evidence import SIZE, THP
from mmpolicy.host.files import SPLIT, Tree
from mmpolicy.host.knobs import chosen
from mmpolicy.host.machine import Host
from mmpolicy.host.pagemap import PAGE
from mmpolicy.host.processes import Process, seen
from mmpolicy.memory.folios import Frames, Stretch, read_stretches, wanted_areas
from mmpolicy.memory.holds import Holds
from mmpolicy.memory.pressure import LOOK_S, Pressure
from mmpolicy.memory.space import HUGE, Details, Space, Vma

# file that exists only in kernels that free the empty pages of split folios
FEATURE = f"{THP}/shrink_underused"
LOCKDOWN = "/sys/kernel/security/lockdown"
# VmFlags of memory with MADV_HUGEPAGE, and of memory with mlock(), whose empty pages the kernel
# keeps
ASKED, LOCKED = "hg", "lo"
LARGE = re.compile(rb"([1-9])\1*")
LEAST, MOST = 512, 16384  # fewest and most pages that one write splits
# One write blocks mmap() and munmap() of the program. After a write shorter than SHORT_S, the next
# one splits more pages; after one longer than LONG_S, fewer.
SHORT_S, LONG_S = 0.001, 0.002
HALF = 0.5  # largest share of the elapsed time that writes which split folios may take
KHUGEPAGED = f"{THP}/khugepaged/max_ptes_none"
FEW = 64  # if max_ptes_none is larger, the user is told that khugepaged may refill the memory
ALL = 511  # if max_ptes_none is lower, khugepaged does not fill holes for folios below 2 MB
# The reason in words why a write to SPLIT fails, on hosts without the securityfs file that would
# report lockdown.
SEALED = (
    f"the kernel lets nobody write to {SPLIT}: lockdown (Secure Boot) is on, or this is a container"
)
RESTART = "restart the program; or let reclaim split 2 MB folios of which 80 % is empty"
DEBUG, FILESYSTEMS = "/sys/kernel/debug", "/proc/filesystems"
MOUNT = f"mount -t debugfs none {DEBUG}, which helps unless the kernel is under lockdown; else "
SMALLER = (
    f"restart the program with smaller folios: after echo madvise >{THP}/enabled, only "
    "programs that ask for 2 MB folios get them"
)
# Reasons why empty memory is not given back: key, text, and next step.
CAUSES = {
    "asked": "the program asked for these folios by MADV_HUGEPAGE: "
    "--include-madvised gives them back, too",
    "unknown": (
        "it would take too long to find out whether the program asked for these folios: "
        "--include-madvised gives them back in any case, a longer --hold allows the time"
    ),
    "few": "the empty share of each of these folios is below --min-empty",
    "locked": "the program has locked this memory by mlock(), which keeps empty pages, too",
    "pinned": "the kernel did not split these folios: they are pinned, for example by a pipe, "
    "io_uring, RDMA or VFIO",
    "shared": "shared memory in 2 MB folios was not searched: a split gives none of it back",
    "hugetlb": "this memory is hugetlb, whose pages stay in their pool",
}


WHOLE = ((0, 1 << 63),)  # one address range, which includes all memory of a process


class Piece(NamedTuple):
    """A range of addresses with large folios, some of whose pages are empty."""

    start: int
    end: int
    empty: int  # number of empty pages, including pages that no process maps


@dataclass
class Trimmed:
    """The result of giving back the empty memory of one process."""

    empty: int = 0  # number of empty pages found
    writes: int = 0
    longest_s: float = 0.0
    stopped: str = ""  # the reason why the run ended early, if it did
    ended: bool = False  # True if the process has ended
    # number of empty pages that were not given back, by cause
    left: Counter[str] = field(default_factory=Counter)


def remains(tree: Tree, cgroup: str = "") -> str:
    """Return what a user can do where the kernel lets nobody split folios.

    cgroup: name of the cgroup in question; memory.reclaim is named only if that cgroup has it, as
    cgroup v1 and kernels before 5.19 do not.
    """
    found = f"{RESTART}: echo 409 >{KHUGEPAGED}"
    try:
        folders = cgroup_folders(tree, cgroup)[:1] if cgroup else []
    except Error:
        folders = []
    file = next((f"{each}/memory.reclaim" for each in folders), "")
    if file and tree.exists(file):
        return f"{found}; echo SIZE >{file}, which also reclaims other memory"
    return f"{found}; reclaim then splits them when memory is short"


def check_possible(tree: Tree, writes: bool = True, cgroup: str = "") -> None:
    """Raise an error if this kernel cannot free empty pages, or forbids splitting.

    cgroup: name of the cgroup whose memory is to be given back, for the next step; "" for any.
    """
    if not tree.exists(FEATURE):
        text = (
            "this kernel keeps the empty pages of a folio that it splits; Linux 6.12 and "
            "newer free them"
        )
        raise Error(text, Exit.LACKING, SMALLER)
    mode = chosen(tree.read(LOCKDOWN)) if tree.exists(LOCKDOWN) else "none"
    if mode != "none":
        text = f"lockdown is '{mode}' (Secure Boot), so the kernel lets nobody write to {SPLIT}"
        raise Error(text, Exit.DENIED, remains(tree, cgroup))
    if not tree.exists(SPLIT):
        if not tree.is_root() or tree.is_confined():
            raise Error(f"no permission to write {SPLIT}", Exit.DENIED, tree.who_may())
        hint = MOUNT if _may_mount(tree) else ""
        raise Error(f"no {tree.real(SPLIT)}", Exit.LACKING, hint + remains(tree, cgroup))
    if writes and tree.is_root() and not tree.opens(SPLIT):
        hint = OUTSIDE if tree.is_confined() else remains(tree, cgroup)
        raise Error(SEALED, Exit.DENIED, hint)


def _may_mount(tree: Tree) -> bool:
    """Return whether a mount of debugfs may bring SPLIT: the kernel has debugfs, which is not
    mounted yet.
    """
    try:
        return "debugfs" in tree.read(FILESYSTEMS).split() and not tree.names(DEBUG)
    except Error:
        return True


def modes(tree: Tree) -> dict[int, str]:
    """Return the mode of each folio size in kB: always, madvise or never, with "inherit" resolved.

    A kernel without settings for each size has only 2 MB.
    """
    usual = chosen(tree.read(f"{THP}/enabled")) if tree.exists(f"{THP}/enabled") else "never"
    found = {}
    for name in tree.dirs(THP) if tree.is_dir(THP) else ():
        size = SIZE.fullmatch(name)
        if size and tree.exists(f"{THP}/{name}/enabled"):
            mode = chosen(tree.read(f"{THP}/{name}/enabled"))
            found[int(size[1])] = usual if mode == "inherit" else mode
    return {2048: usual} | found


def only_advised(tree: Tree) -> bool:
    """Return whether this kernel gives large folios only to memory that asked for them."""
    return "always" not in modes(tree).values()


def comes_back(tree: Tree, advised: bool = False) -> str:
    """Return a note on how khugepaged may refill memory that was given back; "" if it does not.

    khugepaged makes folios of 2 MB; from Linux 7.3 on, which has statistics for each size, of all
    enabled sizes.
    """
    try:
        enabled = {"always", "madvise"} if advised else {"always"}
        sizes = sorted(size for size, mode in modes(tree).items() if mode in enabled)
        most = int(tree.read(KHUGEPAGED))
    except (Error, ValueError):
        return ""
    all_sizes = any(name.startswith("collapse_") for name in _counters(tree))
    fills = [size for size in sizes if (most > FEW if size == 2048 else all_sizes and most >= ALL)]
    if not fills:
        return ""
    what = ", ".join("2 MB" if size == 2048 else f"{size} kB" for size in fills)
    return (
        f"note: khugepaged may fill this memory again, as it takes up to {most} empty pages of 512 "
        f"into folios of {what}; echo 0 >{KHUGEPAGED} stops that, for all programs"
    )


def _counters(tree: Tree) -> list[str]:
    folder = f"{THP}/hugepages-2048kB/stats"
    return tree.names(folder) if tree.is_dir(folder) else []


class Finder:
    """Finds empty memory of a process that can be given back, and counts other empty memory by
    cause.
    """

    def __init__(self, space: Space, least: float, advised: bool) -> None:
        self.space, self._least, self._advised = space, least, advised
        # number of empty pages by cause; for shared memory and hugetlb, of all pages
        self.left = Counter[str]()
        self._frames = Frames(space.tree)

    def pieces(self, within: Sequence[tuple[int, int]] = WHOLE) -> Iterator[Piece]:
        """Yield pieces of memory to give back from the given address ranges, during the search.

        A stretch of 16 MiB without memory to give back yields a piece with no empty pages, so that
        the caller can stop. Folios with a smaller empty share than the minimum are left alone.
        Without `advised`, folios for which the program has called madvise(MADV_HUGEPAGE), or may
        have called it, are left alone, too.
        """
        sizes, areas = self.space.sizes(), self.space.areas()
        needed = sizes.locked or not self._advised
        details: Mapping[tuple[int, int], Details | None] = (
            self.space.details(areas) if needed else {}
        )
        self.left.update(
            shared=self._shared(areas) if sizes.shared else 0, hugetlb=sizes.hugetlb // 4
        )
        for area in wanted_areas(self.space.looked_at(areas), False, False):
            told = details.get((area.start, area.end))
            cause = cause_of(told, bool(sizes.locked), self._advised)
            for part in parts_of(area, within):
                yield from self._pieces_of(part, cause)

    def _shared(self, areas: Iterable[Vma]) -> int:
        """Return how many pages of shared memory are mapped as 2 MB."""
        return sum(
            region.pages
            for area in areas
            if area.shared_memory
            for region in self.space.regions(area.start, area.end, HUGE)
            if region.categories & HUGE
        )

    def _pieces_of(self, area: Vma, cause: str) -> Iterator[Piece]:
        for each in read_stretches(self.space, self._frames, area, True, Counter()):
            begin, last = area.start // PAGE + each.first, None
            for page, end, empty in _blocks(begin, each):
                if cause or empty < self._least * (end - page):
                    self.left[cause or "few"] += empty
                    continue
                if last and last.end == page * PAGE:
                    last = Piece(last.start, end * PAGE, last.empty + empty)
                    continue
                if last:
                    yield last
                last = Piece(page * PAGE, end * PAGE, empty)
            yield last or Piece(begin * PAGE, begin * PAGE, 0)

    def look_again(self, piece: Piece) -> None:
        """Count as "pinned" the empty pages that are still in large folios after a write has tried
        to split these.
        """
        area = Vma(piece.start, piece.end, "rw-p", 0, "")
        self._frames.forget()
        for each in read_stretches(self.space, self._frames, area, True, Counter()):
            for _, _, empty in _blocks(area.start // PAGE + each.first, each):
                self.left["pinned"] += empty


def cause_of(details: Details | None, locks: bool, advised: bool) -> str:
    """Return the key in CAUSES why memory of an area is not given back; "" if it can be given back.

    details: None if smaps would take too long to show the area. locks: the process has locked
    memory. advised: memory with MADV_HUGEPAGE is given back, too.
    """
    if details and locks and LOCKED in details.flags:
        return "locked"
    if advised:
        return ""
    if details is None:
        return "unknown"
    return "asked" if ASKED in details.flags else ""


def parts_of(area: Vma, within: Sequence[tuple[int, int]]) -> Iterator[Vma]:
    """Yield the parts of an area that lie in the given ranges, which are sorted and do not
    overlap.
    """
    first = max(bisect_right(within, (area.start, area.end)) - 1, 0)
    for start, end in islice(within, first, None):
        if start >= area.end:
            break
        if end > area.start:
            yield area._replace(start=max(start, area.start), end=min(end, area.end))


def _blocks(begin: int, stretch: Stretch) -> Iterator[tuple[int, int, int]]:
    """Yield for each large folio of a stretch with empty pages: first page, end, number of empty
    pages.

    Folios are aligned, unless mremap() has moved them; a moved folio may be reported in two parts.
    """
    _, kinds, zeroes, lost = stretch
    for run in LARGE.finditer(kinds):
        size = 1 << int(run[1])
        page, end = begin + run.start(), begin + run.end()
        while page < end:
            after = min((page // size + 1) * size, end)
            empty = zeroes.count(1, page - begin, after - begin)
            if lost:
                empty += sum(lost.get(at, 0) for at in range(page - begin, after - begin))
            if empty:
                yield page, after, empty
            page = after


class Splitter:
    """Splits folios in short writes, with a pause after each write, so that writes take at most
    `share` of the time.
    """

    def __init__(
        self, host: Host, pressure: Pressure, holds: Holds | None = None, share: float = HALF
    ) -> None:
        self._host, self._pressure = host, pressure
        self._holds = holds or Holds(host.tree)
        self._pages, self._share = LEAST, share
        self._looked = -LOOK_S

    def split(self, pid: int, pieces: Iterable[Piece], finder: Finder | None = None) -> Trimmed:
        """Split the large folios in all pieces of a process's memory, until it ends or memory is
        short; return what was done.
        """
        done = Trimmed()
        process = finder.space.process if finder else seen(self._host.tree, pid)
        try:
            for piece in pieces:
                if self._must_stop(done):
                    break
                done.empty += piece.empty
                start = piece.start
                while start < piece.end and not self._must_stop(done):
                    end = min(start + self._pages * PAGE, piece.end)
                    self._step(done, process, start, end)
                    start = end
                if finder and piece.empty and start >= piece.end:
                    finder.look_again(piece)
        except Error as err:
            gone = err.errno in (ENOENT, ESRCH, EINVAL)
            if not gone and not process.loss(self._host.tree):
                raise
            done.ended = True
        if finder:
            done.left = +finder.left
        return done

    def _must_stop(self, done: Trimmed) -> bool:
        if self._host.clock() - self._looked >= LOOK_S:
            self._looked = self._host.clock()
            done.stopped = self._pressure.too_high()
        return bool(done.stopped)

    def _step(self, done: Trimmed, process: Process, start: int, end: int) -> None:
        process.check(self._host.tree)  # the file names a process by its PID alone
        with self._holds.undisturbed():
            begin = self._host.clock()
            self._host.tree.split(process.pid, start, end)
            took = self._host.clock() - begin
        self._holds.took(took)
        done.writes += 1
        done.longest_s = max(done.longest_s, took)
        if took > LONG_S:
            self._pages = max(self._pages // 2, LEAST)
        elif took < SHORT_S:
            self._pages = min(self._pages * 2, MOST)
        self._host.sleep(max(took * (1 / self._share - 1), 0.001))
