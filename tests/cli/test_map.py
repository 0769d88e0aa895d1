# SPDX-License-Identifier: GPL-2.0
"""`map`: on a process made of files."""

from __future__ import annotations

import sys
import tracemalloc
from array import array
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any
from xml.etree import ElementTree

import pytest

from mmpolicy.host.pagemap import PAGE
from mmpolicy.memory import folios, space
from mmpolicy.memory.folios import Pages, read_areas, totals
from mmpolicy.memory.picture import COLOURS, cell_pages, draw
from mmpolicy.verbs import memory_map

from .fakes import Clock, FakeTree, Run

HEAD, TAIL, ZERO = 1 << 15, 1 << 16, 1 << 24
OWN = 1 << 12 | 1 << 14  # anonymous, and backed by swap
PRESENT, SWAPPED = 1 << 63, 1 << 62
PID, START, PAGES = 10, 0x10000000, 64
SMAPS = f"""\
{START:x}-{START + PAGES * PAGE:x} rw-p 00000000 00:00 0 [anon:my heap]
Rss:                 100 kB
Swap:                  4 kB
{START * 2:x}-{START * 2 + PAGE:x} rw-p 00000000 00:00 0
Rss:                   0 kB
Swap:                  0 kB
{START * 3:x}-{START * 3 + PAGE:x} r-xp 00000000 fe:00 77 /usr/bin/a b
Rss:                   4 kB
"""


def maps_of(smaps: str) -> str:
    """Return the lines of smaps that maps has as well."""
    return "\n".join(line for line in smaps.splitlines() if " kB" not in line)


def make_process(tree: FakeTree) -> None:
    """Make a process with one folio of order 4, half of which was written, and pages of
    other kinds.
    """
    flags = [0] * 2048
    flags[528] = HEAD
    flags[529:544] = [TAIL] * 15
    flags[700] = ZERO | HEAD
    flags[1024:2048] = [HEAD, *[TAIL] * 1023]  # more than a PMD
    frames = {page: 528 + page for page in range(16)}  # at the start of the area
    frames |= {20: 600, 21: 700, 22: 1040, 23: 1600}
    entries = array("Q", [0] * PAGES)
    for page, frame in frames.items():
        entries[page] = PRESENT | frame
    entries[24] = SWAPPED
    tree.put(f"/proc/{PID}/comm", "redis <server>")
    tree.put(f"/proc/{PID}/smaps", SMAPS)
    tree.put(f"/proc/{PID}/maps", maps_of(SMAPS))
    tree.put(f"/proc/{PID}/status", "VmRSS:\t104 kB\nRssAnon:\t100 kB\nRssFile:\t4 kB")
    tree.put("/proc/kpageflags", array("Q", flags).tobytes())
    write_at(tree, f"/proc/{PID}/pagemap", START // PAGE * 8, entries.tobytes())
    file = array("Q", [PRESENT | 600]).tobytes()
    write_at(tree, f"/proc/{PID}/pagemap", START * 3 // PAGE * 8, file)
    memory = b"".join(b"x" + bytes(PAGE - 1) for _ in range(8)) + bytes(8 * PAGE)
    write_at(tree, f"/proc/{PID}/mem", START, memory)


@pytest.fixture
def process(tree: FakeTree) -> FakeTree:
    """Return a host with that process."""
    make_process(tree)
    return tree


def write_at(tree: FakeTree, path: str, offset: int, data: bytes) -> None:
    if not tree.exists(path):
        tree.put(path, b"")
    with tree.real(path).open("r+b") as file:
        file.seek(offset)
        file.write(data)


def test_kinds_and_zeroes(process: FakeTree) -> None:
    (area,) = read_areas(process, PID, contents=True, files=False)
    assert (area.start, area.name) == (START, "[anon:my heap]")
    assert area.kinds.cut(0, PAGES) == b"4" * 16 + b"...." + b"0z99s" + b"." * 39
    assert area.zeroes.cut(0, 16) == bytes(8) + b"\1" * 8
    assert [(run.page, run.pages, run.kind, run.zero) for run in area.runs()] == [
        (0, 8, "4", False), (8, 8, "4", True), (20, 1, "0", False), (21, 1, "z", False),
        (22, 2, "9", False), (24, 1, "s", False),
    ]  # fmt: skip
    found = totals([area])
    assert found[4] == (1, 16, 8)
    assert found[0] == (1, 1, 0)


def test_a_huge_page_is_unmapped_after_the_scan(
    process: FakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scan reports a huge page; when its entries are read, its first page is gone."""
    (before,) = read_areas(process, PID, contents=True)
    huge = space.Region(START + 16 * PAGE, START + PAGES * PAGE, space.PRESENT | space.HUGE)
    found = [space.Region(START, huge.start, space.PRESENT), huge]
    monkeypatch.setattr(space.Space, "regions", lambda _, start, *__: found * (start == START))
    (area,) = read_areas(process, PID, contents=True)
    assert area.kinds.cut(0, PAGES) == before.kinds.cut(0, PAGES)


def test_terminal(run: Run, process: FakeTree) -> None:
    lines = run("map", str(PID)).out.splitlines()
    at = lines.index(f"{START:x} 256 kB [anon:my heap]")
    assert lines[at + 1] == f"  {START:012x} 44444444________....0z99s" + "." * 39
    assert "one character: 4 kB" in lines[at + 2]
    rows = [line.split() for line in lines[:at]]
    assert ["4", "64", "kB", "1", "64", "32", "50%"] in rows
    assert ["0", "4", "kB", "1", "4", "0", "-"] in rows


def test_without_contents_and_with_files(run: Run, process: FakeTree) -> None:
    process.remove(f"/proc/{PID}/mem")
    assert "4_" not in run("map", str(PID), "--no-content").out
    assert run("map", str(PID)).code == 0  # unreadable pages are not reported as zero
    assert "/usr/bin/a b" in run("map", str(PID), "--files").out
    assert "/usr/bin" not in run("map", str(PID)).out


def test_json(run: Run, process: FakeTree) -> None:
    data = run("map", str(PID), "--json").json
    assert (data["version"], data["pid"], data["page_bytes"]) == (1, PID, PAGE)
    assert data["orders"]["4"] == {"folios": 1, "pages": 16, "zero": 8}
    assert data["areas"][0]["runs"][1] == {"page": 8, "pages": 8, "kind": "4", "zero": True}


def test_svg(run: Run, process: FakeTree, tmp_path: Path) -> None:
    path = tmp_path / "map.svg"
    assert run("map", str(PID), "-o", str(path)).code == 0
    root = ElementTree.fromstring(path.read_text())
    space = "{http://www.w3.org/2000/svg}"
    told = [title.text or "" for title in root.iter(f"{space}title")]
    assert f"{START:x}: 32 kB, 4" in told
    assert f"{START + 8 * PAGE:x}: 32 kB, _" in told
    assert "process 10 (redis <server>)" in [text.text for text in root.iter(f"{space}text")]


def test_png_has_a_box_of_each_colour(run: Run, process: FakeTree, tmp_path: Path) -> None:
    from matplotlib.image import imread

    path = tmp_path / "map.png"
    assert run("map", str(PID), "-o", str(path)).code == 0
    # Scaled by 2; the first row of cells begins below title, legend and the area's own line.
    y, x = 2 * (5 * 18 + 6 + 5), 2 * (110 + 12 * 4)
    image = (imread(path) * 255).round().astype(int)
    assert image.shape[2] == 4
    for cell, mark in ((0, "4"), (8, "_"), (14, ".")):
        red, green, blue = image[y, x + 2 * 12 * cell][:3]
        assert f"#{red:02x}{green:02x}{blue:02x}" == COLOURS[mark]
    drawing = draw("process 10 (redis <server>)", read_areas(process, PID, True, False))
    assert image.shape[:2] == (2 * drawing.height, 2 * drawing.width)
    # The box of order 4 in the legend, near the upper edge, has its colour.
    colour = [int(COLOURS["4"][at : at + 2], 16) for at in (1, 3, 5)]
    ys, xs = (image[:80, :, :3] == colour).all(axis=2).nonzero()
    box = drawing.boxes[4]
    assert abs(xs.mean() + 0.5 - 2 * (box.x + box.width / 2)) < 0.6
    assert abs(ys.mean() + 0.5 - 2 * (box.y + 4.5)) < 0.6
    # The box of swapped pages, far to the right and below, has its colour.
    colour = [int(COLOURS["s"][at : at + 2], 16) for at in (1, 3, 5)]
    ys, xs = (image[160:, :, :3] == colour).all(axis=2).nonzero()
    box = drawing.boxes[-1]
    assert abs(xs.mean() + 0.5 - 2 * (box.x + box.width / 2)) < 0.6
    assert abs(ys.mean() + 160.5 - 2 * (box.y + 4.5)) < 0.6


def test_refusals(run: Run, process: FakeTree, tmp_path: Path) -> None:
    assert "there is no process 11" in run("map", "11").err
    assert run("map", str(PID), "-o", str(tmp_path / "map.gif")).code == 2
    assert run("map", str(PID), "-o", str(tmp_path / "no/map.svg")).code == 1
    write_at(process, f"/proc/{PID}/pagemap", START // PAGE * 8, PRESENT.to_bytes(8, "little"))
    result = run("map", str(PID))  # the view of an ordinary user
    assert (result.code, "next: run the command as root" in result.err) == (4, True)


def test_a_process_that_has_just_ended(process: FakeTree) -> None:
    """The kernel shows no memory of an exited process."""
    process.put(f"/proc/{PID}/maps", "")
    assert list(read_areas(process, PID, contents=True, files=True)) == []


def test_a_large_process_gets_larger_cells(process: FakeTree) -> None:
    areas = read_areas(process, PID, contents=True, files=False)
    assert [cell_pages(areas, cells) for cells in (64, 63, 2)] == [1, 2, 32]


def make_reservation(tree: FakeTree, pid: int, pages: int, present: int) -> None:
    """Make a process with one mapping that has one page; files have holes."""
    end = START + pages * PAGE
    tree.put(f"/proc/{pid}/comm", "go")
    smaps = f"{START:x}-{end:x} rw-p 00000000 00:00 0\nRss:  4 kB\nSwap:  0 kB\n"
    tree.put(f"/proc/{pid}/smaps", smaps)
    tree.put(f"/proc/{pid}/maps", maps_of(smaps))
    tree.put(f"/proc/{pid}/status", "VmRSS:\t4 kB\nRssAnon:\t4 kB")
    tree.put("/proc/kpageflags", bytes(8 * 2048))
    pagemap = f"/proc/{pid}/pagemap"
    tree.put(pagemap, b"")
    with tree.real(pagemap).open("r+b") as file:
        file.truncate(end // PAGE * 8)
        file.seek((START // PAGE + present) * 8)
        file.write((PRESENT | 600).to_bytes(8, "little"))


def test_a_mapping_beyond_a_tebibyte_is_seen_to_its_end(run: Run, tree: FakeTree) -> None:
    """A mapping beyond a tebibyte is read to its end; one read of all its pagemap would be cut at 2
    GiB.
    """
    pages = (1 << 28) + (1 << 16)
    make_reservation(tree, 20, pages, pages - 3)
    tracemalloc.start()
    (area,) = read_areas(tree, 20, contents=False, files=False)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert area.runs() == [(pages - 3, 1, "0", False)]
    assert totals([area]) == {0: (1, 1, 0)}
    assert len(area.kinds) == pages
    assert most < 10 << 20


def test_what_is_not_there_costs_next_to_nothing(tree: FakeTree) -> None:
    """A reservation of 16 GiB with one page costs far fewer executed lines than its pages."""
    make_reservation(tree, 21, 1 << 22, 12345)
    lines = 0

    def count(frame: FrameType, event: str, _arg: object) -> Callable[..., Any] | None:
        nonlocal lines
        lines += event == "line"
        return count if frame.f_code.co_filename == folios.__file__ else None

    sys.settrace(count)
    try:
        areas = read_areas(tree, 21, contents=True, files=False)
    finally:
        sys.settrace(None)
    assert [run.page for run in areas[0].runs()] == [12345]
    assert lines < 100_000


@pytest.mark.parametrize("first", [4090, 4096, 8200, 64 * 4096 - 5, 64 * 4096 + 3])
def test_a_folio_anywhere_in_a_large_mapping(tree: FakeTree, first: int) -> None:
    """Half of a folio of 16 pages is zero-filled; a page in swap follows."""
    pages = 64 * 4096 + 40
    make_reservation(tree, 22, pages, pages - 1)
    flags = array("Q", [0] * 1024)
    flags[512:528] = array("Q", [HEAD, *[TAIL] * 15])
    tree.put("/proc/kpageflags", flags.tobytes())
    entries = array("Q", [*(PRESENT | 512 + page for page in range(16)), SWAPPED])
    write_at(tree, "/proc/22/pagemap", (START // PAGE + first) * 8, entries.tobytes())
    memory = b"x" * (8 * PAGE) + bytes(8 * PAGE)
    write_at(tree, "/proc/22/mem", START + first * PAGE, memory)
    (area,) = read_areas(tree, 22, contents=True, files=False)
    assert area.runs() == [
        (first, 8, "4", False), (first + 8, 8, "4", True), (first + 16, 1, "s", False),
        (pages - 1, 1, "0", False),
    ]  # fmt: skip
    assert totals([area]) == {0: (1, 1, 0), 4: (1, 16, 8)}


def test_runs_go_on_over_the_stretches_that_are_read(tree: FakeTree) -> None:
    pages = Pages(10000, b".")
    pages.put(0, b"." * 4000 + b"0" * 96)
    pages.put(4096, b"0" * 4096)
    area = folios.Area(0, "", pages, Pages(10000, b"\0"), Counter())
    assert area.runs() == [(4000, 96 + 4096, "0", False)]
    assert pages.cut(3999, 4098) == b"." + b"0" * 98
    assert pages.cut(8190, 8194) == b"00.."
    assert pages.cut(9998, 20000) == b".."


def test_a_picture_does_not_go_through_a_link(run: Run, process: FakeTree, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "map.svg").symlink_to(tmp_path / "precious")
    result = run("map", str(PID), "-o", str(tmp_path / "map.svg"))
    assert (result.code, "ELOOP" in result.err) == (1, True)
    assert (tmp_path / "precious").read_text() == "precious"


def test_a_large_process_shows_how_far_it_is(
    run: Run, tree: FakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal, `map` shows its progress for a large process, as reading gigabytes of single
    pages takes seconds.
    """
    shown = list[tuple[str, bool]]()
    monkeypatch.setattr(memory_map, "progress_line", lambda *words: shown.append(words))
    make_process(tree)
    assert run("map", str(PID)).code == 0
    assert shown == []
    monkeypatch.setattr(memory_map, "LONG_KIB", 100)
    assert run("map", str(PID)).code == 0
    assert [is_last for _, is_last in shown] == [False, True]
    assert shown[-1][0] == "looked at 100 % of 0 MiB"


def test_it_ends_after_a_time(
    run: Run, tree: FakeTree, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`map` ends after its time, reports that with the missing amount and how to see all, and shows
    the part read so far.
    """
    pages, plain = 4 * 4096, folios._entries
    make_reservation(tree, 23, pages, 0)
    entries = array("Q", [PRESENT | 600] * pages).tobytes()
    write_at(tree, "/proc/23/pagemap", START // PAGE * 8, entries)
    tree.put("/proc/23/status", f"VmRSS:\t{pages * 4} kB\nRssAnon:\t{pages * 4} kB")

    def slow(*words: Any) -> Any:
        clock.now += 1
        return plain(*words)

    monkeypatch.setattr(folios, "_entries", slow)
    data = run("map", "23", "--seconds", "2", "--json").json
    assert data["stopped_after_s"] == 2
    assert data["orders"]["0"]["pages"] == 2 * 4096
    assert data["not_shown_kib"] == {"memory for which there was no time": 2 * 4096 * 4}
    lines = run("map", "23", "--seconds", "2", "--summary").out.splitlines()
    told = (
        "the look was stopped after 2 s, so memory at higher addresses is missing; "
        "--seconds 0 looks at all of it"
    )
    assert told in lines
    for seconds in "4", "0":
        whole = run("map", "23", "--seconds", seconds, "--json").json
        assert (whole["stopped_after_s"], whole["not_shown_kib"]) == (None, {})
