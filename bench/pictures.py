# SPDX-License-Identifier: GPL-2.0
"""Draw the pictures of README: the memory of a program, and its cost.

`./dev bench pictures` runs `mmpolicy map` on a program in guests with Debian's own kernel, stores
the result in docs/img/map.json, and draws it. The figures of the bars come from `./dev bench
anon_order` on the same kernel, in docs/img/anon_order_stock.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

from bench.anon_order import policy, stock_size
from lab import counting
from lab.guest import new_guest
from lab.machine import TREE
from lab.programs import BenchError, must, workload

IMAGES = TREE / "docs/img"
SEEN, MAP, BARS = IMAGES / "map.json", IMAGES / "map.svg", IMAGES / "gain.svg"
TYPED, DEMO = IMAGES / "demo.txt", IMAGES / "demo.svg"  # ./dev demo --draw writes both

# The program uses 4 MiB in full, one page in 64 kB of the next 4 MiB, and so on in turn.
PART, PARTS, STEP = 1024, 8, 16
ARMS = {
    "4 kB": "echo never >{thp}/enabled",
    "64 kB for all": stock_size(64),
    "adaptive": policy("adaptive", 4),
}


def look(setup: str) -> list[dict[str, Any]]:
    """Return the program's runs of similar pages, as `map` reports them."""
    words = [f"map {PART * PARTS}"]
    for begin in range(0, PART * PARTS, 2 * PART):
        words += [f"touch {begin} {begin + PART}"]
        words += [f"every {begin + PART} {begin + 2 * PART} {STEP}"]
    command = f"{workload('ops')} {' '.join(words)} sh 'exec mmpolicy map --json $PPID'"
    with new_guest("cloud", mem="1G") as guest:
        # with Debian's `always`, faults and khugepaged make 2 MB pages
        must(guest, f"echo madvise >{counting.THP}/enabled; {setup.format(thp=counting.THP)}")
        areas = json.loads(must(guest, command, 120))["areas"]
        guest.check()
    pages = [area for area in areas if area["end"] - area["start"] == PART * PARTS * 4096]
    if len(pages) != 1:
        raise BenchError(f"the program has {len(pages)} areas of {PART * PARTS * 4} kB, not one")
    return [dict(run) for run in pages[0]["runs"]]


def blocks(runs: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """Return the used and the empty pages of each 64 kB."""
    found = [[0, 0] for _ in range(PART * PARTS // STEP)]
    for run in runs:
        if run["kind"] != ".":
            for page in range(run["page"], run["page"] + run["pages"]):
                found[page // STEP][run["zero"]] += 1
    return [(used, empty) for used, empty in found]


# Drawing. Letters are large for readers on a phone, where 720 units are 360 px wide.

WIDTH, COLUMNS, CELL, LETTER = 720, 64, 11, 28
STYLE = """<style>
text { font-family: system-ui, sans-serif; fill: #1f2328 }
.back { fill: #d0d7de } .used { fill: #2da44e } .empty { fill: #d1242f } .other { fill: #8c959f }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .back { fill: #30363d } .used { fill: #3fb950 } .empty { fill: #f85149 }
}
</style>"""


def picture(height: int, title: str, parts: list[str]) -> str:
    """Return an SVG with a title for screen readers."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">'
    return "\n".join([head, f"<title>{title}</title>", STYLE, *parts, "</svg>", ""])


def text(x: float, y: float, words: str, size: int = LETTER, more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}"{more}>{words}</text>'


def box(x: float, y: float, width: float, height: float, kind: str) -> str:
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"/>'


def strip(y: int, found: list[tuple[int, int]]) -> Iterator[str]:
    """Yield a cell for each 64 kB: used pages at the bottom, empty ones above."""
    for row in range(len(found) // COLUMNS):
        top, left = y + row * (STEP + 2), 8
        for (used, empty), alike in groupby(found[row * COLUMNS : (row + 1) * COLUMNS]):
            width = CELL * len(list(alike))
            for kind, low, pages in (("back", 0, STEP), ("empty", used, empty), ("used", 0, used)):
                if pages:
                    yield box(left, top + STEP - low - pages, width, pages, kind)
            left += width


def draw_map(seen: dict[str, list[dict[str, Any]]]) -> str:
    """Return an SVG with the memory of the program under each arm, one strip below the other."""
    parts, y = [], 0
    for name, runs in seen.items():
        found = blocks(runs)
        used, empty = (sum(each[kind] for each in found) / 256 for kind in (0, 1))
        y += LETTER + 12
        wasted = f"{empty:.1f}" if empty else "none"
        parts.append(text(8, y, f"{name}: {used + empty:.0f} MiB, {wasted} of them empty"))
        y += 14
        parts += strip(y, found)
        y += PART * PARTS // STEP // COLUMNS * (STEP + 2)
    for x, kind, words in (
        (8, "used", "used"),
        (140, "empty", "empty"),
        (288, "back", "not there"),
    ):
        parts += [box(x, y + 22, 22, 22, kind), text(x + 30, y + 42, words)]
    title = "The same program with 4 kB pages, with 64 kB for all, and under adaptive"
    return picture(y + 60, title, parts)


def draw_bars(results: counting.Results) -> str:
    """Return an SVG with bars: instructions of dense access, and memory of sparse access, for three
    arms each.
    """
    arms = {"4 kB": "stock-4k", "64 kB for all": "stock-64k", "adaptive": "adaptive-4"}
    parts, y = [], LETTER + 8
    waste = results.ratio("stock-64k", "stock-4k", "every_64k 64M", "kb")
    title = f"64 kB for all: {waste:.0f} times the memory of 4 kB"
    parts += [text(8, y, title, more=' font-weight="bold"')]
    parts += [text(8, y + LETTER + 8, "adaptive: 1.00, and as little work as 64 kB")]
    y += LETTER + 8
    for heading, case, key in (
        ("Instructions, dense access", "forward 64M", "ticks"),
        ("Memory, one page in 64 kB used", "every_64k 64M", "kb"),
    ):
        y += 2 * LETTER
        parts.append(text(8, y, heading))
        ratios = {name: results.ratio(arm, "stock-4k", case, key) for name, arm in arms.items()}
        for name, value in ratios.items():
            y += LETTER + 12
            long = 360 * value / max(ratios.values())
            kind = {"adaptive": "used", "64 kB for all": "empty" if key == "kb" else "other"}
            parts += [text(28, y, name, 26), box(230, y - 22, long, 26, kind.get(name, "other"))]
            parts.append(text(238 + long, y, f"{value:.2f}", 26))
    return picture(y + 24, title, parts)


def draw_demo(typed: str) -> str:
    """Return an SVG of a terminal with the text of the demo, with commands in bold."""
    size, parts = 18, []
    lines = typed.splitlines()
    for number, line in enumerate(lines, start=1):
        more = ' style="font-family: monospace; white-space: pre"'
        more += ' font-weight="bold"' if line.startswith("# ") else ""
        if line:
            parts.append(text(8, number * (size + 6), escape(line), size, more))
    return picture(len(lines) * (size + 6) + 16, "What ./dev demo types, and what it shows", parts)


def drawn() -> dict[Path, str]:
    """Return the content of each picture file, by path."""
    results = counting.Results.resume(IMAGES / "anon_order_stock.json", "anon_order", {})
    return {
        MAP: draw_map(json.loads(SEEN.read_text())),
        BARS: draw_bars(results),
        DEMO: draw_demo(TYPED.read_text()),
    }


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="./dev bench pictures", description=__doc__)
    parser.add_argument("--draw", action="store_true", help="only draw, from the stored figures")
    if not parser.parse_args(argv).draw:
        seen = {name: look(setup) for name, setup in ARMS.items()}
        SEEN.write_text(json.dumps(seen) + "\n")
    for path, content in drawn().items():
        path.write_text(content)
        print(f"written: {path.relative_to(TREE)}")
