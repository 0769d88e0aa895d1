# SPDX-License-Identifier: GPL-2.0
"""Figures of the memory of processes: bounds, sums and words, one piece at a time."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from math import sqrt
from random import Random
from unittest.mock import ANY, call, patch

import pytest

from mmpolicy.host.cgroups import Charged
from mmpolicy.host.files import Reader
from mmpolicy.host.machine import Host
from mmpolicy.host.pagemap import PAGE
from mmpolicy.host.tracing import Decision
from mmpolicy.memory import trim
from mmpolicy.memory.explain import all_of, explain_areas
from mmpolicy.memory.findings import (
    Evidence,
    Finding,
    Module,
    _named,
    _trim,
    _wastes,
    find,
    name_of,
)
from mmpolicy.memory.folios import (
    NO_FOLIO,
    STRETCH,
    Area,
    Frames,
    Pages,
    Stretch,
    _kinds,
    read_areas,
    read_spot,
    read_stretches,
    totals,
    wanted_areas,
)
from mmpolicy.memory.holds import Holds
from mmpolicy.memory.picture import (
    MARGIN,
    WIDTH,
    Box,
    Drawing,
    _cell,
    as_png,
    as_svg,
    cell_pages,
    draw,
    terminal,
)
from mmpolicy.memory.pressure import Pressure
from mmpolicy.memory.sample import SPOT, Layout, Looker, Places, Sample, together
from mmpolicy.memory.space import Sizes, Space, Vma
from mmpolicy.memory.survey import (
    FIGURES,
    PLANNED,
    Budget,
    Process,
    Rates,
    Row,
    Survey,
    Usage,
    _rates,
    _row,
    read_usage,
)
from mmpolicy.memory.trim import (
    Finder,
    Piece,
    Splitter,
    _blocks,
    comes_back,
    modes,
    only_advised,
)

from .fakes import SLOW, THP, Clock, FakeTree
from .sparse import SHRINK, count, make_sparse, make_thp, pressure, sizes
from .test_map import (
    HEAD,
    PRESENT,
    START,
    SWAPPED,
    TAIL,
    ZERO,
    make_reservation,
    write_at,
)


def area(kinds: bytes, zeroes: bytes = b"", start: int = START, name: str = "") -> Area:
    """Return an area with these pages."""
    pages, empty = Pages(len(kinds), b"."), Pages(len(kinds), b"\0")
    pages.put(0, kinds)
    empty.put(0, zeroes.ljust(len(kinds), b"\0"))
    orders = Counter({int(chr(each)): kinds.count(each) >> int(chr(each))
                      for each in set(kinds) if chr(each).isdigit()})  # fmt: skip
    return Area(start, name, pages, empty, orders)


# Folios


def space_of(tree: FakeTree, pid: int) -> Space:
    """Return the memory of a process; files have no PAGEMAP_SCAN."""
    return Space(tree, pid, Holds(tree))


def test_areas_of_maps(tree: FakeTree) -> None:
    """Areas of maps are private, shared, reserved, or the kernel's own."""
    lines = [
        "1000-3000 rw-p 00000000 00:00 0 [heap]", "3000-4000 ---p 00000000 00:00 0",
        "4000-5000 r--p 00001000 fe:00 77 /lib/a b", "5000-6000 r-xp 00000000 00:00 0 [vdso]",
        "6000-7000 rw-s 00000000 00:01 9 /memfd:heap (deleted)",
        "7000-8000 rw-s 00000000 00:01 9 /var/a",
    ]  # fmt: skip
    tree.put("/proc/7/maps", "\n".join(lines))
    tree.put("/proc/7/pagemap", b"")
    tree.put("/proc/7/status", "VmRSS:\t4 kB")
    found = space_of(tree, 7).areas()
    assert [(each.start, each.end, each.name) for each in found] == [
        (0x1000, 0x3000, "[heap]"), (0x3000, 0x4000, ""), (0x4000, 0x5000, "/lib/a b"),
        (0x5000, 0x6000, "[vdso]"), (0x6000, 0x7000, "/memfd:heap (deleted)"),
        (0x7000, 0x8000, "/var/a"),
    ]  # fmt: skip
    assert [each.anonymous for each in found] == [True, True, False, False, False, False]
    assert [each.usable for each in found] == [True, False, True, False, True, True]
    assert [each.shared_memory for each in found] == [False] * 4 + [True, False]
    for words, expected in (
        ((False, False), ["[heap]", ""]),
        ((True, False), ["[heap]", "", "/memfd:heap (deleted)"]),
        ((False, True), ["[heap]", "", "/lib/a b", "/memfd:heap (deleted)", "/var/a"]),
    ):
        space = space_of(tree, 7)
        assert [each.name for each in wanted_areas(space.looked_at(found), *words)] == expected


def test_pages_behind_prot_none_are_looked_at(tree: FakeTree) -> None:
    """Garbage collectors keep pages behind PROT_NONE: these count as others do. A reservation of
    60 TB costs no look.
    """
    tree.make_unloaded()
    make_thp(tree)
    make_sparse(tree, 10)
    end = START + 4096 * PAGE
    area = f"{START:x}-{end:x} ---p 00000000 00:00 0"
    tree.put("/proc/10/maps", f"{area}\n{end + (1 << 30):x}-{60 << 40:x} ---p 00000000 00:00 0")
    (found,) = read_areas(tree, 10, contents=True)
    assert found.folios == {9: 8} and found.empty()[ord("9")] == 4096 * 15 // 16
    survey = Survey(tree, 1.0, seed=1)
    survey.turn(1.0, 5.0)
    assert survey.seen() == 1.0 and survey.processes[10].waste_kib > 14 << 10


@pytest.mark.parametrize("few", [False, True])
def test_kinds_of_frames(tree: FakeTree, few: bool) -> None:
    """Frames are of each order up to a PMD; of tails alone, at the end of the file, and
    beyond it.
    """
    flags = [0] * 1536
    at = {order: 512 + (1 << order) for order in range(1, 9)}
    for order, first in at.items():
        flags[first : first + (1 << order)] = [HEAD, *[TAIL] * ((1 << order) - 1)]
    flags[3], flags[4] = ZERO, HEAD
    flags[1024:1536] = [TAIL] * 512
    tree.put("/proc/kpageflags", b"".join(each.to_bytes(8, "little") for each in flags))
    frames = Frames(tree, few)
    for order, first in at.items():
        assert [chr(frames.kind(first + n)) for n in (0, (1 << order) - 1)] == [str(order)] * 2
    assert [chr(frames.kind(frame)) for frame in (0, 3, 4, 5, 513, 1024, 1535, 1536, 9999)] == [
        "0", "z", "0", "0", "0", "9", "9", "0", "0",
    ]  # fmt: skip


def test_other_bits_of_pagemap_are_no_frame(tree: FakeTree) -> None:
    """Other bits of pagemap are no frame: soft-dirty, exclusive, userfaultfd and guard; all 55 bits
    below are the frame.
    """
    make_reservation(tree, 20, 4, 0)
    write_at(tree, "/proc/kpageflags", 515 * 8, ZERO.to_bytes(8, "little"))
    entries = [PRESENT | 0xF << 55 | 515, SWAPPED | 1 << 55 | 7, 1 << 55, SWAPPED | 1 << 58]
    data = b"".join(each.to_bytes(8, "little") for each in entries)
    write_at(tree, "/proc/20/pagemap", START // PAGE * 8, data)
    (found,) = read_areas(tree, 20, contents=False, files=False)
    assert found.kinds.cut(0, 4) == b"zs.g"


def test_pages_and_the_folios_that_they_are_of(tree: FakeTree) -> None:
    """A folio that continues is counted once; the zero page is not a folio."""

    class Known(Frames):
        def kind(self, frame: int, few: bool = False) -> int:
            return ord({1: "1", 2: "0", 4: "0", 5: "z"}.get(frame, "9"))

    tree.put("/proc/kpageflags", "")
    folios = Counter[int]()
    entries = array("Q", [*(PRESENT | n for n in (1, 2, 4, 5, 512, 513, 1024)), SWAPPED | 7, 0])
    assert _kinds(Known(tree), entries, folios, NO_FOLIO, {}) == (b"100z999s.", (2, 9))
    assert +folios == {0: 2, 1: 1, 9: 2}
    folios.clear()
    assert _kinds(Known(tree), array("Q", [PRESENT | 513]), folios, (1, 9), {}) == (b"9", (1, 9))
    assert not +folios


def test_contents_are_read_only_if_they_are_wanted(tree: FakeTree) -> None:
    make_thp(tree)
    make_sparse(tree, 10, pages=1024)
    space = space_of(tree, 10)
    (vma,) = space.areas()
    for contents in (True, False):
        folios = Counter[int]()
        ((first, kinds, zeroes, lost),) = read_stretches(space, Frames(tree), vma, contents, folios)
        assert (first, kinds, folios, lost) == (0, b"9" * 1024, {9: 2}, {})
        assert zeroes == (b"\0" + b"\1" * 15) * (64 * contents)


def test_runs_of_pages() -> None:
    assert area(b"44..444s", b"\0\0\0\0\0\1\1").runs() == [
        (0, 2, "4", False), (4, 1, "4", False), (5, 2, "4", True), (7, 1, "s", False),
    ]  # fmt: skip


def test_a_spot_ends_where_pagemap_does(tree: FakeTree) -> None:
    """A spot ends where pagemap does, within an entry too; without a page, there is no spot."""
    make_thp(tree)
    make_sparse(tree, 10, pages=512, step=2)
    with tree.real("/proc/10/pagemap").open("r+b") as file:
        file.truncate((START // PAGE + 2) * 8 + 4)
    space, frames = space_of(tree, 10), Frames(tree, few=True)
    spot = read_spot(space, frames, START, 16)
    assert spot
    assert spot[1:] == (b"99", b"\0\1")
    assert read_spot(space, frames, START - 32 * PAGE, 16) is None


def test_few_frames_cost_few_bytes(tree: FakeTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few frames cost few bytes: a small page is known by its own flags; of a large folio, its
    block is read, once.
    """
    make_thp(tree)
    make_sparse(tree, 10, pages=512)
    sizes, read = list[int](), Reader.read

    def note(reader: Reader, size: int, offset: int) -> bytes:
        sizes.append(size)
        return read(reader, size, offset)

    monkeypatch.setattr(Reader, "read", note)
    for few, expected in ((True, [8, 8, 8, 4096, 8]), (False, [4096, 4096])):
        frames = Frames(tree, few)
        sizes.clear()
        assert [chr(frames.kind(frame)) for frame in (9, 10, 512, 513)] == ["0", "0", "9", "9"]
        assert sizes == expected


def test_totals_by_order() -> None:
    one = area(b"4" * 16 + b"0.z" + b"9" * 512, b"\0" * 8 + b"\1" * 8)
    assert totals([one, area(b"00")]) == {0: (3, 3, 0), 4: (1, 16, 8), 9: (1, 512, 0)}


# Samples


def test_shares_of_a_sample() -> None:
    sample = Sample()
    assert (sample.share, sample.error, sample.sizes()) == (0, 1, {})
    sample.add(b"....szzs", bytes(8))
    assert (sample.spots, sample.share) == (0, 0)
    sample.add(b"4444", b"\1\1\0\0")
    assert (sample.share, sample.error) == (0.5, 1)
    sample.add(b"40", b"\0\0")
    assert sample.spots == 2
    assert sample.share == pytest.approx(1 / 3)
    assert sample.sizes() == {4: 5 / 6, 0: 1 / 6}
    # The ratio estimator: of spots with 4 and 2 pages, of which 2 and 0 are empty.
    rest = [2 - 4 / 3, 0 - 2 / 3]
    deviation = sqrt(sum(each**2 for each in rest) * 2) / 6
    assert sample.error == pytest.approx(min(2 * deviation + 1 / 4, 1))
    for _ in range(30):
        sample.add(b"4444", b"\1\1\0\0")
    many = [2 - 4 * sample.share] * 31 + [-2 * sample.share]
    deviation = sqrt(sum(each**2 for each in many) * 32 / 31) / (31 * 4 + 2)
    assert sample.error == pytest.approx(2 * deviation + 1 / 64)
    unlike = Sample()
    unlike.add(b"4444", b"\1\1\1\1")
    unlike.add(b"4444", b"\0\0\0\0")
    assert (unlike.share, unlike.error) == (0.5, 1)


def test_a_sample_is_worth_half_after_30_seconds() -> None:
    sample = Sample()
    sample.add(b"44", b"\1\1")
    sample.add(b"00", b"\0\0")
    assert [sample.weight(now) for now in (0, 30, 60)] == [2, 1, 0.5]
    sample.age(30)
    assert (sample.spots, sample.pages, sample.empty, sample.share) == (1, 2, 1, 0.5)
    assert sample.orders == {4: 1, 0: 1}
    assert sample.weight(60) == 0.5
    assert together([(3.0, 3.0), (5.0, 4.0)]) == (8, 5)
    assert together([]) == (0, 0)


def test_a_spot_has_the_pages_that_are_asked_for(tree: FakeTree) -> None:
    make_thp(tree)
    make_sparse(tree, 10, pages=512)
    frames, space = Frames(tree, few=True), space_of(tree, 10)
    for pages in (1, 8, 16):
        spot = read_spot(space, frames, START, pages)
        assert spot
        assert [len(each) for each in spot] == [pages] * 3


def look(tree: FakeTree, pid: int, wanted: int, tries: int = 8) -> Sample:
    """Return the result of sampling a number of spots of a process."""
    space, layout, found = space_of(tree, pid), Layout(), Sample()
    layout.refresh(space, space.sizes(), 0.0)
    Looker(tree, Random(1)).take(space, layout.private, found, wanted, tries)
    return found


@pytest.mark.parametrize(("pages", "wanted"), [(512, 8), (1024, 32), (24, 32)])
def test_spots_that_are_taken(tree: FakeTree, pages: int, wanted: int) -> None:
    """The wanted number of spots is taken if memory is dense; in sparse memory, some of them four
    times.
    """
    make_thp(tree)
    make_sparse(tree, 10, pages=max(pages, 512))
    if pages < 512:
        line = f"{START:x}-{START + pages * PAGE:x} rw-p 00000000 00:00 0"
        tree.put("/proc/10/maps", line)
        sizes(tree, 10, pages)
    sample = look(tree, 10, wanted)
    assert sample.share == pytest.approx(15 / 16, abs=0.04)
    assert sample.spots == (wanted if pages >= 512 else 8)
    assert sample.sizes() == {9: 1}
    tree.put("/proc/10/maps", "")
    assert look(tree, 10, wanted).spots == 0


def test_places_are_drawn_alike(tree: FakeTree) -> None:
    """Places are drawn alike: each spot of each range, also the last one of a range with fewer
    pages.
    """
    places = Places([(0, 20 * PAGE), (100 * PAGE, 116 * PAGE), (7, 7)])
    drawn = Counter(places.draw(Random(n)) for n in range(600))
    assert set(drawn) == {(0, 16), (16 * PAGE, 4), (100 * PAGE, 16)}
    assert min(drawn.values()) > 150
    assert Places([]).spots == 0


def test_few_places_are_drawn_in_turn() -> None:
    """Each spot of a small process is read once before any is read again, so that what few of its
    pages have is found.
    """
    places, rng = Places([(0, 1000 * SPOT * PAGE)]), Random(1)
    turns = [[places.draw(rng) for _ in range(1000)] for _ in range(2)]
    assert turns[0] != turns[1]
    assert len(set(turns[0])) == len(set(turns[1])) == 1000


def test_where_areas_are_asked_for_what_is_there(tree: FakeTree) -> None:
    """In a reservation with one page, one piece is sampled, not the whole reservation."""
    make_reservation(tree, 20, 1 << 22, 12345)
    layout, space = Layout(), space_of(tree, 20)
    layout.refresh(space, space.sizes(), 0.0)
    assert layout.private.spots == (2 << 20) // PAGE // 16  # of 16 GiB
    start, pages = layout.private.draw(Random(1))
    assert START <= start < START + (12345 + 1024) * PAGE
    assert pages == 16


def test_areas_are_read_again_when_they_are_old(tree: FakeTree) -> None:
    make_thp(tree)
    make_sparse(tree, 10, pages=512)
    layout, space = Layout(), space_of(tree, 10)
    layout.refresh(space, space.sizes(), 0.0)
    tree.put("/proc/10/maps", "")
    layout.refresh(space, space.sizes(), 29.0)
    assert layout.private.spots == 32
    layout.refresh(space, space.sizes()._replace(rss=4096), 29.0)  # it has grown
    assert layout.private.spots == 0


def test_a_spot_costs_little_where_pages_are_small(
    tree: FakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a small page, its own flags are read and not those of its whole block."""
    make_reservation(tree, 20, 8, 4)
    write_at(tree, "/proc/kpageflags", 600 * 8, (1 << 12 | 1 << 14).to_bytes(8, "little"))
    tree.put("/proc/20/maps", f"{START:x}-{START + 8 * PAGE:x} rw-p 00000000 00:00 0")
    largest, read = [0], Reader.read

    def note(reader: Reader, size: int, offset: int) -> bytes:
        if "kpage" in reader._path:
            largest[0] = max(largest[0], size)
        return read(reader, size, offset)

    monkeypatch.setattr(Reader, "read", note)
    assert (look(tree, 20, 1).pages, largest) == (1, [8])


# The survey


def test_a_budget() -> None:
    spent = [0.0]
    budget = Budget(0.1 / PLANNED, lambda: spent[0])
    assert budget.left() == 0
    budget.grant(10)
    assert budget.left() == pytest.approx(1)
    spent[0] = 0.4
    assert budget.left() == pytest.approx(0.6)
    assert budget.floor(10) == 0
    assert budget.pause(10) == 10
    budget.grant(5)  # an unused rest is lost
    assert budget.left() == pytest.approx(0.5)
    spent[0] = 1.9
    assert budget.left() == pytest.approx(-1)
    assert budget.floor(5) == pytest.approx(-1.25)
    assert budget.pause(5) == pytest.approx(5 + 10 - 2.5)
    budget.grant(5)  # a debt is kept
    assert budget.left() == pytest.approx(-0.5)
    budget.forgive(5)
    assert budget.left() == pytest.approx(0.5)


def test_what_stat_says(tree: FakeTree) -> None:
    count(tree, 7, "a) (b", 300, 1234, 50)
    assert read_usage(tree, 7) == ("a) (b", Usage(777, 1234, 50, 50, 300, False))
    fields = "7 (x) S 1 1 1 0 -1 0 10 0 5 0 30 7 0 0 20 0 1 0 99 {} 0"
    tree.put("/proc/7/stat", fields.format(0))
    assert read_usage(tree, 7) == ("x", Usage(99, 15, 30, 7, 0, True))
    tree.put("/proc/7/stat", fields.format(4096).replace(" 99 ", " x "))
    assert read_usage(tree, 7) is None
    tree.put("/proc/7/stat", fields.format(4096).removesuffix(" 0"))
    assert read_usage(tree, 7) is None
    assert read_usage(tree, 8) is None


def test_rates_between_two_looks() -> None:
    old, new = Usage(1, 100, 10, 20, 5, False), Usage(1, 300, 60, 70, 5, False)
    assert _rates(old, 2.0, new, 4.0) == Rates(100, 0.5, 0.25)
    assert _rates(old, 2.0, new, 2.0) == Rates()
    process = Process(1, "x", "/", new, 4.0)
    assert process.mean == Rates()
    process.first = (old, 2.0)
    assert process.mean == Rates(100, 0.5, 0.25)


@pytest.mark.parametrize(
    ("text", "cgroup"),
    [
        ("0::/a", "/a"),
        ("12:cpu,cpuacct:/x\n7:memory:/b", "/b"),
        ("3:cpu,memory,x:/c\n0::/d", "/c"),
        ("7:memoryx:/b\n1:name=systemd:/y", "/"),
        ("", "/"),
    ],
)
def test_the_cgroup_that_accounts_for_memory(tree: FakeTree, text: str, cgroup: str) -> None:
    tree.put("/proc/7/cgroup", text)
    assert Charged(tree).name(7) == cgroup
    assert Charged(tree).name(8) == "/"


def test_rows_of_a_survey(tree: FakeTree) -> None:
    """Each sampled process has a row in a survey; those below 1 MiB and kernel threads
    have none.
    """
    make_thp(tree)
    make_sparse(tree, 10, "a", 1024, 16, "/s")
    make_sparse(tree, 11, "b", 3072, 2, "/s", forbids=True)
    tree.put("/sys/fs/cgroup/s/memory.current", str(16 << 20))
    tree.put("/sys/fs/cgroup/s/memory.stat", f"anon {16 << 20}")
    count(tree, 12, "small", 255)
    count(tree, 13, "kernel", 0)
    tree.put("/proc/13/stat", tree.read("/proc/13/stat").replace(" 4096000 ", " 0 "))
    tree.put("/proc/12/cgroup", "0::/t")
    survey = Survey(tree, 100.0, seed=1)
    survey.turn(0.0, 1.0)
    assert set(survey.processes) == {10, 11, 12}
    assert survey.seen() == pytest.approx(4096 / 4351)
    cgroups, processes = survey.most(lambda each: each.usage.pages, 2)
    assert [row.name for row in cgroups] == ["/s", "/t"]
    assert [row.pids for row in processes] == [(11,), (10,)]
    both, small = cgroups
    assert (both.is_cgroup, both.rss_kib, both.anon_kib, both.seen) == (True, 16384, 16384, 1)
    assert both.waste_kib == pytest.approx(4096 * 15 / 16 + 12288 / 2, rel=0.02)
    assert both.error_kib == pytest.approx(
        sqrt(sum(row.error_kib**2 for row in processes)), rel=0.01
    )
    assert both.sizes == {9: 1}
    assert both.forbids == ("b",)
    assert (small.rss_kib, small.anon_kib, small.seen, small.sizes) == (1020, 0, 0, {})
    count(tree, 12, "small", 256, faults=50, ticks=10)
    tree.put("/proc/12/maps", "")
    sizes(tree, 12, 256)
    tree.put("/proc/12/pagemap", "")
    survey.turn(2.0, 1.0)
    (row,) = (row for row in survey.most(lambda each: -each.pid, 9)[1] if row.pids == (12,))
    assert (row.rates, row.anon_kib) == (Rates(25, 0.1, 0.05), 0)
    assert (row.kinds["private"], row.unseen) == (1024, {"private": 1024})


def test_a_process_that_began_since_has_paid_all_of_it(tree: FakeTree) -> None:
    make_thp(tree)
    count(tree, 11, "old", 100)
    survey = Survey(tree, 100.0, seed=1)
    survey.turn(1.0, 1.0)
    count(tree, 12, "new", 100, faults=50, ticks=10)
    survey.turn(3.0, 1.0)
    assert survey.processes[12].rates == survey.processes[12].mean == Rates(25, 0.1, 0.05)


def test_a_survey_keeps_to_its_budget(tree: FakeTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """A survey keeps to its budget: the largest of the least known processes come first."""
    make_thp(tree)
    for pid, pages in ((10, 1000), (11, 300), (12, 256), (13, 255)):
        count(tree, pid, "x", pages)
    survey = Survey(tree, 1.0 / PLANNED, cpu=lambda: 0.0)
    survey.budget.grant(1.0)
    survey._visit([10, 11, 12, 13], 0.0, 1.25)
    assert not survey.processes
    survey._visit([10, 11, 12, 13], 0.0, 0.99)
    assert len(survey.processes) == 4
    survey.processes[10].sample.spots = 3.0
    looked: list[int] = []
    monkeypatch.setattr(
        Survey, "_look", lambda _survey, _looker, each, _now: looked.append(each.pid)
    )
    survey._sample(0.0, 1.0)
    assert looked == []
    survey._sample(0.0, 0.75)
    assert looked == [11, 12, 10]
    looked.clear()
    Survey(tree, 0.5, cpu=lambda: 0.0).turn(0.0, 1.0)
    assert looked == [10, 11, 12]


def test_figures_of_what_nobody_has_looked_into() -> None:
    idle = Process(1, "x", "/", Usage(1, 0, 0, 0, 0, False), 0.0)
    assert (Rates(), idle.rates, idle.waste_kib) == ((0, 0, 0), (0, 0, 0), 0)
    nothing = _row("x", False, [idle])
    assert (nothing.rss_kib, nothing.seen, nothing.sizes) == (0, 1, {})
    idle.sample.add(b"4444", bytes(4))
    assert _row("x", False, [idle]).sizes == {}
    idle.usage = idle.usage._replace(pages=5)
    assert FIGURES["waste"](idle) == 5 / 1e9
    idle.sizes = Sizes(20, 8, 0, 0, 0, 0, 0, 0, 0, True)
    assert FIGURES["waste"](idle) == 0


def test_a_number_that_is_used_again_is_another_process(tree: FakeTree) -> None:
    make_thp(tree)
    count(tree, 12, "old", 100, faults=900)
    survey = Survey(tree, 100.0, seed=1)
    survey.turn(0.0, 1.0)
    count(tree, 12, "new", 100, faults=5)
    tree.put("/proc/12/stat", tree.read("/proc/12/stat").replace(" 777 ", " 888 "))
    survey.turn(1.0, 1.0)
    assert survey.processes[12].rates == Rates()
    assert survey.processes[12].name == "new"
    tree.remove("/proc/12")
    survey.turn(2.0, 1.0)
    assert not survey.processes
    assert survey.seen() == 1


# Pictures


def test_cells() -> None:
    assert [_cell(*each) for each in (
        (b"....", bytes(4)), (b"44..", b"\1\1\0\0"), (b"44..", b"\1\0\0\0"), (b"0044", bytes(4)),
        (b"0444", bytes(4)), (b"s...", bytes(4)),
    )] == [".", "_", "4", "0", "4", "s"]  # fmt: skip
    areas = [area(b"0" * 100), area(b"0" * 28)]
    assert [cell_pages(areas, cells) for cells in (128, 127, 64, 63, 1)] == [1, 2, 2, 4, 128]


def test_rows_are_aligned() -> None:
    """Each row begins at a multiple of its size; cells outside the area are blank."""
    one = area(b"0" * 70 + b"." * 130 + b"9", start=(WIDTH * 5 + 60) * PAGE, name="[heap]")
    lines = list(terminal([one]))
    assert lines[0] == f"{one.start:x} 804 kB [heap]"
    assert lines[1] == f"  {WIDTH * 5 * PAGE:012x} {' ' * 60}0000"
    assert lines[2] == f"  {WIDTH * 6 * PAGE:012x} {'0' * 64}"
    assert lines[3] == f"  {WIDTH * 7 * PAGE:012x} 00{'.' * 62}"
    assert lines[4] == f"  {WIDTH * 9 * PAGE:012x} ....9"
    assert lines[5].startswith("one character: 4 kB; 0-9 order")
    assert len(lines) == 6
    assert next(terminal([area(b"0" * 256)])) == f"{START:x} 1 MiB (anonymous)"
    assert list(terminal([area(b"0" * 256)], 32))[-1].startswith("one character: 32 kB;")
    inside = area(b"9..00", start=START + PAGE)  # its first cell begins before it
    assert list(terminal([inside], 3))[1] == f"  {START:012x} 9.0"


def test_places_in_a_drawing() -> None:
    drawing = draw("t", [area(b"00.44", name="x"), area(b"s")])
    boxes = drawing.boxes[12:]
    assert [(box.x - MARGIN, box.width, box.mark) for box in boxes] == [
        (0, 24, "0"), (36, 24, "4"), (0, 12, "s"),
    ]  # fmt: skip
    assert [box.told for box in boxes] == [
        f"{START:x}: 8 kB, 0", f"{START + 3 * PAGE:x}: 8 kB, 4", f"{START:x}: 4 kB, s",
    ]  # fmt: skip
    sizes = ("4 kB", "8 kB", "16 kB", "32 kB", "64 kB", "128 kB", "256 kB", "512 kB", "1 MiB",
             "2 MiB")  # fmt: skip
    assert drawing.texts == [
        (4, 18, "t"),
        *((126 + n % 6 * 130, 36 + n // 6 * 18, f"order {n}, {size}")
          for n, size in enumerate(sizes)),
        (646, 54, "mostly zero-filled"), (776, 54, "swapped out"),
        (4, 90, f"{START:x}  20 kB  x"), (4, 105, f"{START:x}"),
        (4, 124, f"{START:x}  4 kB  "), (4, 139, f"{START:x}"), (4, 158, "one cell: 4 kB"),
    ]  # fmt: skip
    assert (drawing.width, drawing.height) == (886, 176)
    assert [box.y for box in boxes] == [96, 96, 130]
    legend = drawing.boxes[:12]
    assert [(box.x - MARGIN, box.y) for box in legend[4:8]] == [
        (520, 27), (650, 27), (0, 45), (130, 45),
    ]  # fmt: skip


def test_pictures_have_so_many_cells() -> None:
    assert [*terminal([area(b"." * 2048)])][-1].startswith("one character: 4 kB;")
    assert [*terminal([area(b"." * 2049)])][-1].startswith("one character: 8 kB;")
    assert draw("", [area(b"." * 32768)]).texts[-1][2] == "one cell: 4 kB"
    assert draw("", [area(b"." * 32769)]).texts[-1][2] == "one cell: 8 kB"


def test_where_a_png_has_what_a_drawing_has() -> None:
    drawing = Drawing(200, 100, [Box(10, 20, 24, "9", "told")], [(4, 18, "title")])
    with patch("matplotlib.figure.Figure") as figure:
        as_png(drawing)
    assert figure.mock_calls == [
        call(figsize=(2, 1), dpi=200),
        call().add_axes((0, 0, 1, 1), xlim=(0, 200), ylim=(100, 0)),
        call().add_axes().set_axis_off(),
        call().add_axes().broken_barh([(10, 24)], (20, 9), facecolors="#8b1a89"),
        call().add_axes().text(4, 18, "title", family="monospace", size=7),
        call().savefig(ANY, format="png"),
    ]


def test_an_svg_has_what_a_drawing_has() -> None:
    drawing = Drawing(200, 100, [Box(10, 20, 24, "s", "a<b")], [(4, 18, "t&t")])
    assert as_svg(drawing).splitlines() == [
        '<svg xmlns="http://www.w3.org/2000/svg" width="200" height="100" '
        'viewBox="0 0 200 100" font-family="monospace" font-size="10">',
        '<rect width="100%" height="100%" fill="white"/>',
        '<rect x="10" y="20" width="24" height="9" fill="#e8a33d"><title>a&lt;b</title></rect>',
        '<text x="4" y="18">t&amp;t</text>',
        "</svg>",
    ]


# Trimming


def test_folios_with_empty_pages() -> None:
    """Folios with empty pages are aligned; moved ones are cut in two."""
    zeroes = bytes([0, 1, 1, 1] + [1] * 4 + [0] * 4 + [1] * 4 + [0, 1])
    kinds = b"22222222" + b"0000" + b"2222" + b"11"
    assert list(_blocks(64, Stretch(0, kinds, zeroes, {}))) == [
        (64, 68, 3), (68, 72, 4), (76, 80, 4), (80, 82, 1),
    ]  # fmt: skip
    found = Stretch(0, b"2222", b"\0\1\1\1", {})
    assert list(_blocks(66, found)) == [(66, 68, 1), (68, 70, 2)]
    found = Stretch(0, b"2.22", b"\0\0\0\1", {0: 3, 2: 2})
    assert list(_blocks(64, found)) == [(64, 65, 3), (66, 68, 3)]


def test_pieces_of_areas(tree: FakeTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neighbouring pieces of areas are one piece; a stretch without empty pages has a piece of no
    length.
    """
    first, other = START // PAGE, START // PAGE + STRETCH
    found = [
        Stretch(0, b"111111..11", b"\1\0\1\1\0\0\0\0\1\0", {}),
        Stretch(STRETCH, b"00..", bytes(4), {}),
        Stretch(STRETCH + 64, b"2222", b"\1\1\1\0", {}),
    ]
    plain = Vma(START, START + 4 * STRETCH * PAGE, "rw-p", 0, "")
    asked = plain._replace(start=0, end=PAGE)
    lines = [
        f"{each.start:08x}-{each.end:08x} rw-p 00000000 00:00 0\nVmFlags: rd wr {flags}"
        for each, flags in ((asked, "hg"), (plain, ""))
    ]
    tree.put("/proc/7/smaps", "\n".join(lines))
    tree.put("/proc/7/maps", "\n".join(line.partition("\n")[0] for line in lines))
    sizes(tree, 7, 10)
    tree.put("/proc/kpageflags", b"")
    monkeypatch.setattr(
        trim, "read_stretches",
        lambda _space, _frames, each, contents, _folios: iter(found[: 3 * contents])
        if each.start == START else iter([Stretch(0, b"11", b"\1\1", {})]),
    )  # fmt: skip
    pieces = [
        (first, first + 4, 3), (first + 8, first + 10, 1), (other, other, 0),
        (other + 64, other + 68, 3),
    ]  # fmt: skip
    for least, by_advice, expected, left in (
        (0.5, False, [(0, 0, 0), *pieces], {"asked": 2}),
        (0.51, False, [(0, 0, 0), (first + 2, first + 4, 2), *pieces[2:]], {"asked": 2, "few": 2}),
        (0.5, True, [(0, 2, 2), *pieces], {}),
    ):
        finder = Finder(space_of(tree, 7), least, by_advice)
        assert list(finder.pieces()) == [
            (start * PAGE, end * PAGE, empty) for start, end, empty in expected
        ]
        assert +finder.left == left


def host_of(tree: FakeTree, clock: Clock) -> Host:
    """Return a host."""
    return Host(tree, sleep=clock.sleep, clock=lambda: clock.now)


def test_pressure_since_the_last_look(tree: FakeTree, clock: Clock) -> None:
    pressure(tree, 5, total=1_000_000)
    found = Pressure(host_of(tree, clock), 10)
    assert found.known
    pressure(tree, 5, total=1_100_000)
    clock.now = 0.2
    assert found.too_high() == ""  # not yet
    clock.now = 0.25
    said = "tasks wait for memory 40 % of the time, more than 10 %"
    assert found.too_high() == said
    assert found.too_high() == ""
    clock.now = 1.5
    pressure(tree, 10, total=1_200_000)
    assert found.too_high() == ""
    pressure(tree, 10.6, total=1_200_000)
    assert found.too_high() == "tasks wait for memory 11 % of the time, more than 10 %"
    tree.remove("/proc/pressure")
    assert found.too_high() == ""
    assert not Pressure(host_of(tree, clock), 10).known


def test_pressure_is_measured_from_the_beginning(tree: FakeTree, clock: Clock) -> None:
    clock.now = 100.0
    pressure(tree, 5, total=1_100_000)
    found = Pressure(host_of(tree, clock), 10)
    assert found._read() == (1.1, 5)
    clock.now = 101.0
    pressure(tree, 5, total=1_300_000)
    assert found.too_high() == "tasks wait for memory 20 % of the time, more than 10 %"
    tree.remove("/proc/pressure")
    unknown = Pressure(host_of(tree, clock), 10)
    pressure(tree, 50)
    assert unknown.too_high() == ""


class Pressed(Pressure):
    """Pressure that records when it is read."""

    looks: list[float]

    def too_high(self) -> str:
        self.looks.append(self._host.clock())
        return ""


def test_steps_at_their_bounds(
    tree: FakeTree, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of exactly the target time neither grows nor shrinks; the test also checks when
    pressure is read.
    """
    make_thp(tree)
    pressure(tree, 0)
    tree.make_process(10)
    monkeypatch.setattr("mmpolicy.memory.trim.SHORT_S", 1 / 512)
    monkeypatch.setattr("mmpolicy.memory.trim.LONG_S", 1 / 16)
    monkeypatch.setattr("mmpolicy.memory.trim.LEAST", 8)
    took = [3 / 2048, 1 / 512, 1 / 16, 1 / 8, 1 / 8, 1 / 8, 1 / 16]
    tree.splits = lambda _value: setattr(clock, "now", clock.now + took.pop(0))
    clock.steps = [lambda: None] * 999
    host = host_of(tree, clock)
    pressed = Pressed(host, 10)
    pressed.looks = []
    splitter = Splitter(host, pressed)
    splitter._pages = 16
    done = splitter.split(10, [Piece(0, 128 * PAGE, 7)])
    ends = [[int(each, 16) // PAGE for each in value.split(",")[1:3]] for _, value in tree.writes]
    assert [end - start for start, end in ends] == [16, 32, 32, 32, 16][: len(ends)]
    assert done.longest_s == 1 / 8
    assert pressed.looks[0] == 0
    assert all(b - a >= 0.25 for a, b in pairwise(pressed.looks))


@pytest.mark.parametrize(
    ("took", "steps"),
    [
        (0.0009, [512, 1024, 2048, 4096, 8192, 16384, 16384, 1360]),
        (0.0011, [512] * 97 + [336]),
        (0.0019, [512] * 97 + [336]),
    ],
)
def test_steps(tree: FakeTree, clock: Clock, took: float, steps: list[int]) -> None:
    """Steps grow below 1 ms, to 64 MiB at most; the pause is as long as the step, or 1 ms."""
    make_thp(tree)
    pressure(tree, 0)
    tree.make_process(10)
    tree.splits = lambda _value: setattr(clock, "now", clock.now + took)
    clock.steps = [lambda: None] * 999
    host = host_of(tree, clock)
    done = Splitter(host, Pressure(host, 10)).split(10, [Piece(0, 50000 * PAGE, 7)])
    ends = [[int(each, 16) // PAGE for each in value.split(",")[1:3]] for _, value in tree.writes]
    assert [end - start for start, end in ends] == steps
    assert (done.empty, done.writes, done.stopped, done.ended) == (7, len(steps), "", False)
    assert done.longest_s == pytest.approx(took)
    assert clock.now == pytest.approx((took + max(took, 0.001)) * len(steps))


ALWAYS, ASKING, NEVER = (
    "[always] inherit madvise never", "always inherit [madvise] never",
    "always inherit madvise [never]",
)  # fmt: skip
INHERIT = "always [inherit] madvise never"


@pytest.mark.parametrize(
    ("enabled", "size", "small", "most", "counts", "advised", "told"),
    [
        ("[always] madvise never", None, None, 65, False, False, "2 MB"),
        ("[always] madvise never", None, None, 64, False, False, ""),
        ("always [madvise] never", ALWAYS, None, 511, False, False, "2 MB"),
        ("always [madvise] never", INHERIT, None, 511, False, False, ""),
        ("always [madvise] never", INHERIT, None, 511, False, True, "2 MB"),
        ("[always] madvise never", NEVER, None, 511, False, False, ""),  # 6.12 without 2 MB
        ("[always] madvise never", NEVER, ALWAYS, 511, False, False, ""),
        ("[always] madvise never", NEVER, ALWAYS, 511, True, False, "64 kB"),  # 7.3
        ("[always] madvise never", NEVER, ALWAYS, 510, True, False, ""),
        ("[always] madvise never", INHERIT, ALWAYS, 511, True, False, "64 kB, 2 MB"),
        ("[always] madvise never", INHERIT, ASKING, 511, True, False, "2 MB"),
        ("[always] madvise never", None, None, None, False, False, ""),
    ],
)
def test_what_khugepaged_would_fill(
    tree: FakeTree, enabled: str, size: str | None, small: str | None, most: int | None,
    counts: bool, advised: bool, told: str,
) -> None:  # fmt: skip
    tree.put(f"{THP}/enabled", enabled)
    for kib, mode in ((2048, size), (64, small), (16, None)):
        tree.remove(f"{THP}/hugepages-{kib}kB")
        if mode:
            tree.put(f"{THP}/hugepages-{kib}kB/enabled", mode)
    if counts:
        tree.put(f"{THP}/hugepages-2048kB/stats/collapse_alloc", "0")
    tree.put(f"{THP}/khugepaged/max_ptes_none", "x" if most is None else str(most))
    note = comes_back(tree, advised)
    if told:
        assert f"takes up to {most} empty pages of 512 into folios of {told};" in note
    else:
        assert note == ""


def test_who_gets_large_folios(tree: FakeTree) -> None:
    """Inherited sizes follow the global setting; if no size is always, all folios were advised."""
    make_thp(tree)
    tree.put(f"{THP}/enabled", "always [madvise] never")
    tree.put(f"{THP}/hugepages-2048kB/enabled", INHERIT)
    assert modes(tree) == {2048: "madvise", **dict.fromkeys((64, 32, 16), "never")}
    assert only_advised(tree)
    tree.put(f"{THP}/hugepages-64kB/enabled", ALWAYS)
    assert not only_advised(tree)
    tree.remove(THP)
    assert only_advised(tree)


# Advice


def row(waste_mib: float, error_mib: float, anon_mib: int, name: str = "/a.service") -> Row:
    """Return a row with some waste."""
    mib = 1024
    return Row(name, name.startswith("/"), (7,), name, anon_mib * mib, anon_mib * mib, 1.0,
               waste_mib * mib, error_mib * mib, Rates(), {}, ())  # fmt: skip


@pytest.mark.parametrize(
    ("waste", "error", "anon", "much"),
    [(33, 1, 100, True), (33, 1.1, 100, False), (50, 0, 1000, True), (50, 0, 1001, False)],
)
def test_waste_that_is_worth_a_line(waste: float, error: float, anon: int, much: bool) -> None:
    assert _wastes(row(waste, error, anon)) == much


def test_who_can_be_named_to_a_command() -> None:
    """Commands can name cgroups other than the root, whose processes are listed apart."""
    root = row(3, 0, 9, "/")
    alone = replace(row(5, 0, 9, "x"), cgroup="/")
    inside = replace(row(9, 0, 9, "y"), cgroup="/a")
    group = row(4, 0, 9, "/a")
    assert _named([root, group], [inside, alone]) == [alone, group]


def test_names_and_lines() -> None:
    names = ["/system.slice/a.service", "/a.slice/b.scope", "/a b", "x"]
    assert [name_of(row(1, 1, 1, name)) for name in names] == [
        "--unit a.service", "--cgroup /a.slice/b.scope", "--cgroup '/a b'", "--pid 7",
    ]  # fmt: skip
    assert Finding("a", "b").line() == "a: b"
    assert Finding("a", "b", ("c", "d"), "e").line() == "a: b; do: c && d; price: e"


@pytest.mark.parametrize(
    ("faults", "ticks", "told"),
    [(5000, 10, True), (5000, 9, False), (9, 500, False)],
)
def test_faults_that_are_worth_a_line(tree: FakeTree, faults: int, ticks: int, told: bool) -> None:
    """Faults are worth a line from 1 % of a CPU in the kernel, as the host is not calibrated, and a
    fault a second.
    """
    make_thp(tree)
    count(tree, 11, "web", 100)
    survey = Survey(tree, 100.0, seed=1)
    survey.turn(0.0, 10.0)
    count(tree, 11, "web", 100, faults, ticks)
    survey.turn(10.0, 10.0)
    found = [each.worth for each in find(Evidence(tree, survey, {}, {}, SLOW, Module(False)))]
    assert found == ([told] if faults >= 10 else [])
    for stalls in 4.9, 5.0:
        known = find(Evidence(tree, survey, {"compact_stall": stalls}, {}, SLOW, Module(False)))
        assert any(each.who == "host" for each in known) == (stalls == 5.0)


def test_waste_that_the_kernel_keeps(tree: FakeTree) -> None:
    make_thp(tree)
    waste = "50 MiB (+- 5) of the 100 MiB of private memory are empty parts of large folios"
    price = "the program loses these huge pages; without --bind the kernel may make them again"
    where = row(50, 5, 100)
    survey = Survey(tree, 1.0)
    found = _trim(survey, where)
    assert found[:4] == ("/a.service", waste, ("mmpolicy trim --unit a.service",), price)
    tree.remove(SHRINK)
    kept = (
        "this kernel keeps the empty pages of a folio that it splits; Linux 6.12 and newer "
        "free them"
    )
    found = _trim(survey, where)
    assert found[:4] == ("/a.service", f"{waste}; {kept}", (), "")
    assert found.next_step == (
        f"restart the program with smaller folios: after echo madvise >{THP}/enabled, only "
        "programs that ask for 2 MB folios get them"
    )


# Reasons


def test_areas_are_explained() -> None:
    one = area(b"4" * 16 + b"00", b"\1" * 4, name="[heap]")
    other = area(b"0", start=START + 18 * PAGE)
    end = START + 18 * PAGE
    decisions = [
        Decision(False, START, 4, "dense_neighbour"),
        Decision(False, end - 1, 4, "dense_neighbour"),
        Decision(False, end - 1, 0, "no_neighbour"), Decision(True, START, 0, "odd"),
        Decision(False, end, 0, "no_neighbour"), Decision(False, START - 1, 9, "dense_neighbour"),
        Decision(False, end + PAGE, 9, "dense_neighbour"),
    ]  # fmt: skip
    found = explain_areas([one, other], decisions)
    assert list(found[0].lines()) == [
        "  has     72 kB: 64 kB in folios of 64 kB, 25% of it never used",
        "  wanted  3 page faults: 64 kB 2, 4 kB 1 (reasons: 67 %: memory nearby was used in full; "
        "33 %: no memory nearby was used in full)",
        "  shadow  1 page faults: 4 kB 1 (reasons: 100 %: odd)",
    ]
    assert next(found[1].lines()) == "  has     4 kB: all in single pages"
    assert (found[0].unused_share, found[1].unused_share) == (0.25, 0)
    whole = all_of(found)
    assert (whole.start, whole.end, whole.name) == (0, 0, "all")
    assert (whole.pages, whole.large, whole.unused) == (19, {4: 16}, {4: 4})
    assert whole.wanted.as_data() == {
        "orders": {0: 2, 4: 2},
        "reasons": {"dense_neighbour": 2, "no_neighbour": 2},
    }
    assert whole.shadow.as_data() == {"orders": {0: 1}, "reasons": {"odd": 1}}
