# SPDX-License-Identifier: GPL-2.0
"""Error rates and power of `ab report`, `ab pool`, `bench` and `try`: docs/rates.md.

The benchmark simulates experiments in the worlds of tests/cli/worlds.py, in which the true effect
is known, and counts the outcomes. Results in bench/rates.json are not computed again, so the
benchmark can be stopped at any time. With --build, the code of an older commit judges the same
simulated values.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from math import sqrt
from multiprocessing import Pool
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cli.worlds import ANY, World, rates, worlds

from lab import counting
from lab.machine import TREE

KEPT = TREE / "bench/rates.json"
BEFORE = TREE / "bench/rates-before.json"  # what an older build has found, measured with --build
DOCUMENT = TREE / "docs/rates.md"
OLD = "5248c87"  # the commit that `--build` compares with
# objects allocated between two garbage collections; the default is less, and the simulations make
# few cycles
SELDOM = 100_000
STEP = 100  # number of runs between two writes of the result file
# by outcome: number of runs with this outcome, and of runs in which it was possible
Counts = dict[str, list[int]]
# some runs of a world: its title, number of the first run, and number after the last one
Part = tuple[str, int, int]

HEAD = """\
<!-- SPDX-License-Identifier: GPL-2.0; made by bench/rates.py -->
# Rates: how often an experiment is wrong

`./dev bench rates` makes this page: it runs each world, in which the truth is known, as often
as the table says, and counts the decisions of [`ab report`, `ab pool`](ab.md) and
[`bench`](bench.md), and of [`try`](cli.md#measured-before-and-after) of what it measures before
and after.
The worlds are in `tests/cli/worlds.py`; `./dev test --full` runs them, too.
A rate is followed by its Monte Carlo error, one standard error, and by the rate that is
promised.
**Bold** rates are further from their promise than three such errors: they do not keep it.
Worlds with "not held" in their name are those that a run of this length cannot judge, and why.

- *exit 0*, *exit 8*: the exit code, of all that it looks at.
- *found*: p is small enough; of a pool, both p are.
- *false find*: any arm of a bench that is equal to the first one was found to differ.
- *held*: the 95 % interval has the truth in it; *totals held*: that of the totals.
- *carry-over*: it was reported, and there is none.
- *ran*: `try` ran the verb, as the values before promised a narrow interval; *exit 0* is of
  these trials alone.
- *doubted*: the phase of equal arms, or of neighbours, raised a doubt.

Without another word a run has 12 pairs and noise of 5 % in a block, and the treatment is equal.
Of `try` the noise named is that of CPU time in a part; memory and work have half of it.
"""


def error(hits: int, runs: int) -> float:
    """Return the standard error of a rate, in percent.

    For no hit at all it is computed as if there was one, and for hits alone as if there was one
    miss, as it would be 0.
    """
    share = min(max(hits, 1), runs - 1) / runs if runs > 1 else 0.5
    return 100 * sqrt(share * (1 - share) / runs)


def within(hits: int, runs: int, should: tuple[float, float]) -> bool:
    """Return whether a rate is in the range `should` that is promised for it, in percent, or at
    most three standard errors away.
    """
    rate, slack = 100 * hits / runs, 3 * error(hits, runs)
    return should[0] - slack <= rate <= should[1] + slack


def cell(hits: int, runs: int, should: tuple[float, float]) -> str:
    """Format a rate with its error and the range that is promised for it, in percent; a rate that
    breaks the promise is bold.
    """
    text = f"{100 * hits / runs:.1f} ± {error(hits, runs):.1f}"
    low, high = should
    if (low, high) == ANY:
        return text
    wanted = f"≥ {low:g}" if high >= 100 else f"≤ {high:g}" if not low else f"{low:g} to {high:g}"
    marked = text if within(hits, runs, should) else f"**{text}**"
    return f"{marked} ({wanted})"


def lines(kept: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of docs/rates.md, without the comparison with an older build."""
    yield HEAD
    for verb in dict.fromkeys(world.verb for title, world in known().items() if title in kept):
        yield (
            f"## `{verb}`\n"
            if " " in verb or verb in ("bench", "pool", "report")
            else f"## {verb}\n"
        )
        yield "| world | rates, % | runs |"
        yield "|---|---|---|"
        for title, world in known().items():
            if world.verb == verb and title in kept:
                yield row(world, kept[title])
        yield ""


def row(world: World, found: Mapping[str, Any]) -> str:
    """Return the row of a world in the table: its name, the rates of those outcomes for which
    something is promised, and its number of runs.
    """
    told = []
    for name, should in world.should.items():
        hits, runs = found["outcomes"].get(name, (0, 0))
        if not runs:
            continue
        whole = name == "rounds"
        told.append(f"{hits / runs:.1f} rounds" if whole else f"{name} {cell(hits, runs, should)}")
    return f"| {world.name} | {'; '.join(told)} | {found['runs']:,} |"


def read(path: Path = KEPT) -> dict[str, Any]:
    """Return the results stored in a file; {} without one."""
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


@lru_cache(maxsize=1)
def known() -> Mapping[str, World]:
    """Return all worlds by title; each process makes them once."""
    return worlds()


def measured(part: Part) -> tuple[Part, Counts, float]:
    """Run a part of a world; return the part, its outcomes, and its CPU time in seconds."""
    title, first, last = part
    start = time.process_time()
    found = rates(known()[title], range(first, last))
    should = known()[title].should
    return (
        part,
        {name: found[name] for name in should if name in found},
        (time.process_time() - start),
    )


def parts_of(title: str, first: int, last: int) -> Iterator[Part]:
    """Yield the runs from `first` to `last` - 1 of a world, in parts of STEP runs."""
    for start in range(first, last, STEP):
        yield title, start, min(start + STEP, last)


def fill(path: Path, titles: Sequence[str], runs: int, jobs: int) -> None:
    """Run the missing parts of worlds: first one part of each world, which also shows its speed,
    then all others, those of fast worlds first.
    """
    kept, took = read(path), dict[str, float]()

    def take(parts: Sequence[Part]) -> None:
        for number, ((title, first, last), counts, seconds) in enumerate(
            pool.imap(measured, parts), start=1
        ):
            took[title] = seconds / (last - first)
            found = kept.setdefault(title, {"runs": 0, "outcomes": {}})
            found["runs"] = last
            for name, (hits, of) in counts.items():
                both = found["outcomes"].setdefault(name, [0, 0])
                found["outcomes"][name] = [both[0] + hits, both[1] + of]
            save(path, kept)
            counting.progress(f"{number} of {len(parts)}, {last} runs: {title}")

    with Pool(jobs, gc.set_threshold, (SELDOM,)) as pool:
        begun = {title: kept.get(title, {}).get("runs", 0) for title in titles}
        take([next(parts_of(title, at, runs)) for title, at in begun.items() if at < runs])
        rest = sorted(took, key=lambda title: took[title])
        take([each for title in rest for each in parts_of(title, kept[title]["runs"], runs)])


def main(argv: list[str]) -> None:
    """Run the missing runs of all worlds, and write docs/rates.md."""
    parser = argparse.ArgumentParser(prog="./dev bench rates", description=__doc__)
    parser.add_argument("--runs", type=int, default=2000, help="number of runs of each world")
    parser.add_argument("--only", default="", metavar="TEXT", help="worlds with this in their name")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes at a time")
    parser.add_argument("--build", metavar="COMMIT", help=f"judge by older code, such as {OLD}")
    parser.add_argument("--page", action="store_true", help="only write the page")
    parser.add_argument("--before", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    titles = [each.title for each in worlds().values() if given.only in each.title]
    if given.build:
        ask(given.build, [*argv, "--before"])
    elif given.before:
        fill(BEFORE, [each for each in titles if known()[each].power], given.runs, given.jobs)
        return
    elif not given.page:
        fill(KEPT, titles, given.runs, given.jobs)
    DOCUMENT.write_text(page(read(), read(BEFORE)))


def ask(commit: str, options: Sequence[str]) -> None:
    """Run this benchmark with the modules of mmpolicy from an older commit."""
    git = ["git", "-C", str(TREE), "worktree"]
    with TemporaryDirectory() as folder:
        old = f"{folder}/tree"
        subprocess.run([*git, "add", "--quiet", "--detach", old, commit], check=True)
        try:
            path = f"{old}/userspace/src:{os.environ['PYTHONPATH']}"
            command = [sys.executable, "-m", "bench", "rates", *options]
            command = [each for each in command if each not in ("--build", commit)]
            subprocess.run(command, check=True, cwd=TREE, env={**os.environ, "PYTHONPATH": path})
        finally:
            subprocess.run([*git, "remove", "--force", old], check=True)


def save(path: Path, kept: Mapping[str, Any]) -> None:
    """Write the result file, so that a crash leaves either the old or the new content."""
    order = [title for title in known() if kept.get(title, {}).get("runs")]
    rows = ",\n".join(f"{json.dumps(title)}: {json.dumps(kept[title])}" for title in order)
    new = Path(f"{path}.new")
    new.write_text(f"{{\n{rows}\n}}\n")
    new.replace(path)


def page(kept: Mapping[str, Any], before: Mapping[str, Any]) -> str:
    """Return the text of docs/rates.md."""
    return "\n".join([*lines(kept), *compared(kept, before)]).rstrip() + "\n"


COMPARED = f"""\
## What stricter decisions cost

`./dev bench rates --build {OLD}` runs the worlds in which there is something to find with the
command as it was in commit {OLD}.
Margins and pools did not keep to the mean then, nor pools to what each host could be told.
Both commands saw equal values, run by run; the rate is exit 0, or *found* of a bench.

| world | {OLD}, % | now, % | points | runs |
|---|---|---|---|---|"""


def compared(kept: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[str]:
    """Yield a comparison of what the older build and this one find, for worlds with an effect."""
    both = [title for title in known() if title in kept and title in before]
    if both:
        yield COMPARED
    for title in both:
        sides = (before[title], kept[title])
        for name in ("exit 0", "found", "rounds"):
            if all(name in each["outcomes"] for each in sides):
                yield difference(title if name != "rounds" else f"{title}: rounds", name, sides)
    if both:
        yield ""


def difference(title: str, name: str, sides: Sequence[Mapping[str, Any]]) -> str:
    """Return the row that compares a rate of a world in the older build and in this one."""
    counts = [each["outcomes"][name] for each in sides]
    runs = " and ".join(dict.fromkeys(f"{of:,}" for _, of in counts))
    if name == "rounds":
        then, now = (hits / of for hits, of in counts)
        return f"| {title} | {then:.1f} | {now:.1f} | {100 * (now / then - 1):+.0f} % | {runs} |"
    then, now = (100 * hits / of for hits, of in counts)
    off = [error(hits, of) for hits, of in counts]
    cells = " | ".join(f"{rate:.1f} ± {each:.1f}" for rate, each in zip((then, now), off))
    points = f"{now - then:+.1f} ± {sqrt(off[0] ** 2 + off[1] ** 2):.1f}"
    return f"| {title} | {cells} | {points} | {runs} |"
