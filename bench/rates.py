# SPDX-License-Identifier: GPL-2.0
"""How often `ab report`, `ab pool` and `bench` are wrong, and what they find: docs/rates.md.

Runs the worlds of tests/cli/worlds.py, in which the truth is known, and counts what comes out.
What bench/rates.json has already is not run again, so it can be stopped at any time.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from math import sqrt
from pathlib import Path
from typing import Any

from cli.worlds import ANY, World, rates, worlds

from lab import counting
from lab.machine import TREE

KEPT = TREE / "bench/rates.json"
DOCUMENT = TREE / "docs/rates.md"
STEP = 100  # runs between two times that it is kept
Counts = dict[str, list[int]]  # hits, and runs in which they could be, by outcome

HEAD = """\
<!-- SPDX-License-Identifier: GPL-2.0; made by bench/rates.py -->
# Rates: how often an experiment is wrong

`./dev bench rates` makes this page: it runs each world, in which the truth is known, as often
as the table says, and counts what [`ab report`, `ab pool`](ab.md) and [`bench`](bench.md) make
of it.
The worlds are in `tests/cli/worlds.py`; `./dev test --full` runs them, too.
A rate is followed by its Monte Carlo error, one standard error, and by what it should be.
**Bold** is what is further from that than three such errors: it is not held.
Worlds with "not held" in their name are those that a run of this length cannot judge, and why.

- *exit 0*, *exit 8*: the exit code, of all that it looks at.
- *found*: p is small enough; of a pool, both p are.
- *false find*: any arm of a bench that is equal to the first one was found to differ.
- *held*: the 95 % interval has the truth in it; *totals held*: that of the totals.
- *carry-over*: it was reported, and there is none.
- *doubted*: the phase of equal arms, or of neighbours, raised a doubt.

Without another word a run has 12 pairs and noise of 5 % in a block, and the treatment is equal.
"""


def error(hits: int, runs: int) -> float:
    """Return the standard error of a rate, in percent; that of one hit where there is none."""
    share = min(max(hits, 1), runs - 1) / runs if runs > 1 else 0.5
    return 100 * sqrt(share * (1 - share) / runs)


def within(hits: int, runs: int, should: tuple[float, float]) -> bool:
    """Tell if a rate is where it should be, or no further away than three standard errors."""
    rate, slack = 100 * hits / runs, 3 * error(hits, runs)
    return should[0] - slack <= rate <= should[1] + slack


def cell(hits: int, runs: int, should: tuple[float, float]) -> str:
    """Return a rate with its error, and what it should be."""
    text = f"{100 * hits / runs:.1f} ± {error(hits, runs):.1f}"
    low, high = should
    if (low, high) == ANY:
        return text
    wanted = f"≥ {low:g}" if high >= 100 else f"≤ {high:g}" if not low else f"{low:g} to {high:g}"
    marked = text if within(hits, runs, should) else f"**{text}**"
    return f"{marked} ({wanted})"


def lines(kept: dict[str, Any]) -> Iterator[str]:
    """Yield the page."""
    yield HEAD
    known = worlds()
    for verb in dict.fromkeys(world.verb for title, world in known.items() if title in kept):
        yield (
            f"## `{verb}`\n"
            if " " in verb or verb in ("bench", "pool", "report")
            else f"## {verb}\n"
        )
        yield "| world | rates, % | runs |"
        yield "|---|---|---|"
        for title, world in known.items():
            if world.verb == verb and title in kept:
                yield row(world, kept[title])
        yield ""


def row(world: World, found: dict[str, Any]) -> str:
    """Return the line of a world: the outcomes that should be somewhere."""
    told = []
    for name, should in world.should.items():
        hits, runs = found["outcomes"][name]
        told.append(f"{name} {cell(hits, runs, should)}")
    return f"| {world.name} | {'; '.join(told)} | {found['runs']:,} |"


def read() -> dict[str, Any]:
    """Return what is kept."""
    found: dict[str, Any] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    return found


def run(world: World, found: dict[str, Any], runs: int) -> Iterator[dict[str, Any]]:
    """Run a world until it has so many; yield what there is so far, to be kept."""
    while found["runs"] < runs:
        step = min(STEP, runs - found["runs"])
        for name, (hits, of) in rates(world, range(found["runs"], found["runs"] + step)).items():
            if name not in world.should:
                continue
            counts = found["outcomes"].setdefault(name, [0, 0])
            counts[0] += hits
            counts[1] += of
        found["runs"] += step
        yield found


def main(argv: list[str]) -> None:
    """Run what is missing, and write the page."""
    parser = argparse.ArgumentParser(prog="./dev bench rates", description=__doc__)
    parser.add_argument("--runs", type=int, default=2000, help="of each world")
    parser.add_argument("--only", default="", metavar="TEXT", help="worlds with this in their name")
    given = parser.parse_args(argv)
    kept = read()
    chosen = [each for each in worlds().values() if given.only in each.title]
    for number, world in enumerate(chosen, start=1):
        found = kept.setdefault(world.title, {"runs": 0, "outcomes": {}})
        for done in run(world, found, given.runs):
            save(kept)
            counting.progress(f"{number} of {len(chosen)}, {done['runs']} runs: {world.title}")
    DOCUMENT.write_text(page(kept))


def save(kept: dict[str, Any]) -> None:
    """Keep it; a file that is cut off is never there."""
    order = [title for title in worlds() if kept.get(title, {}).get("runs")]
    rows = ",\n".join(f"{json.dumps(title)}: {json.dumps(kept[title])}" for title in order)
    new = Path(f"{KEPT}.new")
    new.write_text(f"{{\n{rows}\n}}\n")
    new.replace(KEPT)


def page(kept: dict[str, Any]) -> str:
    """Return the page."""
    return "\n".join(lines(kept)).rstrip() + "\n"
