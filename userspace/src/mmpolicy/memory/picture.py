# SPDX-License-Identifier: GPL-2.0
"""Pictures of the memory of a process: text for a terminal, SVG, and PNG with matplotlib."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from html import escape
from io import BytesIO
from itertools import groupby
from typing import NamedTuple

from mmpolicy.host.pagemap import PAGE
from mmpolicy.memory.folios import Area
from mmpolicy.render import paint

WIDTH = 64  # number of cells in a row of the picture
MOSTLY_ZERO = "_"
LEGEND = (
    "0-9 order of the folio, _ mostly zero-filled in a large folio, s swapped, z zero page, "
    "g guard region, h hugetlb"
)
COLOURS = {
    **dict(zip("0123456789", (
        "#c9d1d9", "#bfe3c8", "#9fd6b0", "#76c79c", "#45b38d", "#2f9aa0", "#3a7db8", "#4d5fb3",
        "#6a3fa0", "#8b1a89",
    ))),
    "s": "#e8a33d", "g": "#8c6d46", "h": "#2b2b6f", "z": "#eeeeee",
    ".": "#ffffff", MOSTLY_ZERO: "#d9534f",
}  # fmt: skip
PAINTS = {"9": "magenta", "s": "yellow", MOSTLY_ZERO: "red"}


def cell_pages(areas: list[Area], cells: int) -> int:
    """Return the pages per cell, a power of 2, so that at most `cells` cells cover all areas."""
    pages = 1
    while sum(len(area.kinds) for area in areas) > pages * cells:
        pages *= 2
    return pages


def _cell(kinds: bytes, zeroes: bytes) -> str:
    """Return the letter of a cell of the picture: the most frequent kind of its pages, MOSTLY_ZERO
    if more than half of them are zero-filled in large folios, "." if it has none.
    """
    there = kinds.replace(b".", b"")
    if not there:
        return "."
    if zeroes.count(1) * 2 > len(there):
        return MOSTLY_ZERO
    counts = Counter(there)
    return chr(max(counts, key=counts.__getitem__))


def _rows(area: Area, pages: int) -> Iterator[tuple[int, str]]:
    """Yield address and letters of each row that has any page; rows are aligned to their size."""
    row = pages * WIDTH
    first = area.start // PAGE
    for begin in range(first // row * row, first + len(area.kinds), row):
        marks = ""
        for cell in range(begin, begin + row, pages):
            here = max(cell - first, 0), cell + pages - first
            outside = cell + pages <= first or cell >= first + len(area.kinds)
            marks += " " if outside else _cell(area.kinds.cut(*here), area.zeroes.cut(*here))
        if marks.strip(" ."):
            yield begin * PAGE, marks.rstrip()


def terminal(areas: list[Area], cells: int = 2048) -> Iterator[str]:
    """Yield the lines of a picture of the memory areas that is made of letters."""
    pages = cell_pages(areas, cells)
    for area in areas:
        yield f"{area.start:x} {_size(len(area.kinds))} {area.name or '(anonymous)'}"
        for address, marks in _rows(area, pages):
            yield f"  {address:012x} {''.join(map(_paint, marks))}"
    yield f"one character: {_size(pages)}; {LEGEND}"


def _paint(mark: str) -> str:
    return paint(mark, PAINTS.get(mark, "green")) if mark in "123456789_s" else mark


def _size(pages: int) -> str:
    return f"{pages * PAGE >> 20} MiB" if pages >= 256 else f"{pages * PAGE >> 10} kB"


class Box(NamedTuple):
    """A rectangle of a drawing, with its letter and its tooltip."""

    x: int
    y: int
    width: int
    mark: str
    told: str


class Drawing(NamedTuple):
    """Rectangles and lines of text; x and y count from the upper left corner."""

    width: int
    height: int
    boxes: list[Box]
    texts: list[tuple[int, int, str]]


CELL, ROW, LINE, MARGIN = 12, 10, 18, 110


def draw(title: str, areas: list[Area], cells: int = 32768) -> Drawing:
    """Return the picture of all areas below a title and a legend."""
    pages = cell_pages(areas, cells)
    boxes, texts = [], [(4, LINE, title)]
    y = LINE * 2
    for number, (mark, meaning) in enumerate(_legend()):
        x = MARGIN + number % 6 * 130
        boxes.append(Box(x, y + number // 6 * LINE - ROW + 1, CELL, mark, meaning))
        texts.append((x + CELL + 4, y + number // 6 * LINE, meaning))
    y += LINE * 3
    for area in areas:
        texts.append((4, y, f"{area.start:x}  {_size(len(area.kinds))}  {area.name}"))
        y += 6
        for address, marks in _rows(area, pages):
            texts.append((4, y + ROW - 1, f"{address:x}"))
            boxes += _boxes(y, address, marks, pages)
            y += ROW
        y += LINE
    texts.append((4, y, f"one cell: {_size(pages)}"))
    return Drawing(MARGIN + WIDTH * CELL + 8, y + LINE, boxes, texts)


def _legend() -> Iterator[tuple[str, str]]:
    for order in range(10):
        yield str(order), f"order {order}, {_size(1 << order)}"
    yield from {MOSTLY_ZERO: "mostly zero-filled", "s": "swapped out"}.items()


def _boxes(y: int, address: int, marks: str, pages: int) -> Iterator[Box]:
    cell = 0
    for mark, group in groupby(marks):
        cells = len(list(group))
        if mark not in " .":
            told = f"{address + cell * pages * PAGE:x}: {_size(cells * pages)}, {mark}"
            yield Box(MARGIN + cell * CELL, y, cells * CELL, mark, told)
        cell += cells


def as_svg(drawing: Drawing) -> str:
    width, height, boxes, texts = drawing
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="monospace" font-size="10">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for x, y, wide, mark, told in boxes:
        box = f'<rect x="{x}" y="{y}" width="{wide}" height="{ROW - 1}" fill="{COLOURS[mark]}">'
        lines.append(f"{box}<title>{escape(told)}</title></rect>")
    lines += [f'<text x="{x}" y="{y}">{escape(text)}</text>' for x, y, text in texts]
    return "\n".join([*lines, "</svg>", ""])


def as_png(drawing: Drawing) -> bytes:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(drawing.width / 100, drawing.height / 100), dpi=200)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, drawing.width), ylim=(drawing.height, 0))
    axes.set_axis_off()
    for x, y, wide, mark, _told in drawing.boxes:
        axes.broken_barh([(x, wide)], (y, ROW - 1), facecolors=COLOURS[mark])
    for x, y, text in drawing.texts:
        axes.text(x, y, text, family="monospace", size=7)
    picture = BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()
