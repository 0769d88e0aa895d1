# SPDX-License-Identifier: GPL-2.0
"""`map`: on a process made of files."""

import sys
from array import array
from pathlib import Path
from xml.etree import ElementTree

import pytest

from mmpolicy.memory.folios import PAGE, read_areas, totals
from mmpolicy.memory.picture import COLOURS, cell_pages

from .fakes import FakeTree, Run

HEAD, TAIL, ZERO = 1 << 15, 1 << 16, 1 << 24
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


@pytest.fixture
def process(tree: FakeTree) -> FakeTree:
    """Make a process with one folio of order 4, half of it written, and pages of other kinds."""
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
    tree.put("/proc/kpageflags", array("Q", flags).tobytes())
    write_at(tree, f"/proc/{PID}/pagemap", START // PAGE * 8, entries.tobytes())
    file = array("Q", [PRESENT | 600]).tobytes()
    write_at(tree, f"/proc/{PID}/pagemap", START * 3 // PAGE * 8, file)
    memory = b"".join(b"x" + bytes(PAGE - 1) for _ in range(8)) + bytes(8 * PAGE)
    write_at(tree, f"/proc/{PID}/mem", START, memory)
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
    assert area.kinds == b"4" * 16 + b"...." + b"0z99s" + b"." * 39
    assert area.zeroes[:16] == bytes(8) + b"\1" * 8
    assert [(run.page, run.pages, run.kind, run.zero) for run in area.runs()] == [
        (0, 8, "4", False), (8, 8, "4", True), (20, 1, "0", False), (21, 1, "z", False),
        (22, 2, "9", False), (24, 1, "s", False),
    ]  # fmt: skip
    found = totals([area])
    assert found[4] == (1, 16, 8)
    assert found[0] == (1, 1, 0)


def test_terminal(run: Run, process: FakeTree) -> None:
    lines = run("map", str(PID)).out.splitlines()
    assert lines[0] == f"{START:x} 256 kB [anon:my heap]"
    assert lines[1] == f"  {START:012x} 44444444________....0z99s" + "." * 39
    assert "one mark: 4 kB" in lines[2]
    rows = [line.split() for line in lines[4:]]
    assert ["4", "64", "kB", "1", "64", "32", "50%"] in rows
    assert ["0", "4", "kB", "1", "4", "0", "-"] in rows


def test_without_contents_and_with_files(run: Run, process: FakeTree) -> None:
    process.remove(f"/proc/{PID}/mem")
    assert "_" not in run("map", str(PID), "--no-content").out.splitlines()[1]
    assert run("map", str(PID)).code == 0  # what cannot be read is not called zero
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


def test_png_needs_matplotlib(
    run: Run, process: FakeTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = run("map", str(PID), "-o", str(tmp_path / "map.png"))
    assert (result.code, "pip install 'mmpolicy[ab]'" in result.err) == (1, True)


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


def test_refusals(run: Run, process: FakeTree, tmp_path: Path) -> None:
    assert "no process 11" in run("map", "11").err
    assert run("map", str(PID), "-o", str(tmp_path / "map.gif")).code == 2
    assert run("map", str(PID), "-o", str(tmp_path / "no/map.svg")).code == 1
    write_at(process, f"/proc/{PID}/pagemap", START // PAGE * 8, PRESENT.to_bytes(8, "little"))
    result = run("map", str(PID))  # what an ordinary user sees
    assert (result.code, "next: run it as root" in result.err) == (4, True)


def test_a_large_process_gets_larger_cells(process: FakeTree) -> None:
    areas = read_areas(process, PID, contents=True, files=False)
    assert [cell_pages(areas, cells) for cells in (64, 63, 2)] == [1, 2, 32]
