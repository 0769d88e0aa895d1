# SPDX-License-Identifier: GPL-2.0
"""Figures in documents agree with the benchmark's own files, or with the page of the table."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import click
import pytest

from bench import callers, collapse, damon, evidence, kept, live, maintain, rates, verbs, with_table
from mmpolicy.cli import main
from mmpolicy.memory.findings import GAIN

from .worlds import worlds

TREE = Path(__file__).parents[2]
FIGURES = TREE / "docs/measured.md"
IMAGES = TREE / "docs/img"
OFF, FIXED, ADAPTIVE = "stock-4k", "fixed-4", "adaptive-4"


Values = dict[tuple[str, str], dict[str, float]]  # results of a benchmark, by arm and case


def values_of(name: str) -> Values:
    """Return the results of a benchmark."""
    samples = json.loads((IMAGES / name).read_text())["samples"]
    return {(each["arm"], each["case"]): each["values"] for each in samples}


def ratio(values: Values, arm: str, case: str, what: str) -> float:
    """Return a figure relative to that with all sizes off."""
    return values[arm, case][what] / values[OFF, case][what]


WHOLE, WHOLE_HOOKS = values_of("programs.json"), values_of("programs_hooks.json")
CASES = tuple(dict.fromkeys(case for _, case in WHOLE))
PROGRAMS = {
    "redis": "redis", "Go": "go", "Java, serial collector": "java-serial", "Python": "python",
    "PostgreSQL, a sort": "postgres", "gcc, the worst of all": "gcc",
}  # fmt: skip
OVERVIEW = {
    "[redis](workloads/redis.md)": "redis", "[PostgreSQL](workloads/postgresql.md), a sort":
    "postgres", "[Go](workloads/go.md)": "go", "[JVM](workloads/jvm.md), serial collector":
    "java-serial", "[Python](workloads/python.md)": "python",
    "[gcc](#compilers), the worst of all": "gcc",
}  # fmt: skip
PAGES = {
    "redis.md": [("", "redis")], "postgresql.md": [("", "postgres")], "python.md": [("", "python")],
    "go.md": [("current | ", "go"), ("1.19 | ", "go-1.19")],
    "jvm.md": [("serial | ", "java-serial"), ("G1 | ", "java-G1")],
}  # fmt: skip
PROFILES = {
    "redis": "redis", "go": "go", "postgres": "postgres", "jvm": "java-serial", "python": "python",
}  # fmt: skip


def measured(arm: str, case: str, what: str) -> float:
    """Return a program's figure in the benchmark."""
    return float(WHOLE[arm, case][what])


def faults(arm: str, case: str) -> str:
    """Return the faults of a program as tables show them."""
    return f"{measured(arm, case, 'faults'):,.0f}"


def memory(arm: str, case: str) -> str:
    """Return the memory relative to that with small pages."""
    return f"{ratio(WHOLE, arm, case, 'kb'):.2f}"


def fewer(case: str) -> str:
    """Return the share of faults, with small pages, that `adaptive` 4 avoids."""
    return f"-{100 * (1 - ratio(WHOLE, ADAPTIVE, case, 'faults')):.0f} %"


def row(name: str) -> str:
    """Return a row of a page about one program, from its first figure on."""
    both = f"{memory(ADAPTIVE, name)} ({memory(FIXED, name)})"
    return f"{faults(OFF, name)} | {faults(ADAPTIVE, name)} | {fewer(name)} | {both} |"


@pytest.mark.parametrize(("name", "case"), PROGRAMS.items())
def test_programs(name: str, case: str) -> None:
    cells = f"{faults(OFF, case)} | {faults(ADAPTIVE, case)} | {memory(ADAPTIVE, case)}"
    assert f"\n| {name} | {cells} |\n" in FIGURES.read_text()


@pytest.mark.parametrize(("name", "case"), OVERVIEW.items())
def test_overview(name: str, case: str) -> None:
    cells = f"{faults(OFF, case)} | {faults(ADAPTIVE, case)} | {fewer(case)}"
    text = (TREE / "docs/workloads.md").read_text()
    profile = re.escape(f"{cells} | {memory(ADAPTIVE, case)} |")
    assert re.search(rf"^\| {re.escape(name)} \| [^|]*\| {profile}$", text, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES)
def test_pages(page: str) -> None:
    text = (TREE / "docs/workloads" / page).read_text()
    for begin, case in PAGES[page]:
        assert f"| {begin}{row(case)}\n" in text


def test_compilers() -> None:
    expected = row("gcc").replace(" |", " (gcc) |", 1)
    assert f"\n| {expected}\n" in (TREE / "docs/workloads.md").read_text()


@pytest.mark.parametrize(("profile", "case"), PROFILES.items())
def test_examples(profile: str, case: str) -> None:
    text = (TREE / "debian/examples/workloads.toml").read_text()
    told = f"# faults {fewer(case)}, memory {memory(ADAPTIVE, case)}"
    assert re.search(rf"^{re.escape(told)}[^\n]*\n\[profiles\.{profile}\.", text, re.MULTILINE)


def test_debian_and_hooks() -> None:
    """All programs on both kernels; faults and memory agree within 2 %."""
    text = (TREE / "docs/policies/anon_order.md").read_text()
    both = WHOLE, WHOLE_HOOKS
    for case in CASES:
        ticks, memory = (
            [f"{ratio(each, ADAPTIVE, case, what):.3f}" for each in both]
            for what in ("ticks", "kb")
        )
        debian, hooks = (each[ADAPTIVE, case]["faults"] for each in both)
        cells = [*ticks, f"{debian:,.0f}", f"{hooks:,.0f}", *memory]
        assert f"\n| {case} | {' | '.join(cells)} |\n" in text
        assert debian / hooks == pytest.approx(1, abs=0.02)
        assert float(memory[0]) == pytest.approx(float(memory[1]), abs=0.02)


def test_worst_memory_and_best_faults_are_told() -> None:
    """The first lines of README summarise all programs, whichever they are."""
    text = " ".join((TREE / "README.md").read_text().split())
    ticks = [ratio(WHOLE, ADAPTIVE, case, "ticks") for case in CASES]
    fewer = [1 - value for value in ticks if value < 1]
    assert f"{100 * min(fewer):.1f} to {100 * max(fewer):.1f} % fewer instructions" in text
    assert f"in {len(fewer)} of {len(CASES)} programs" in text
    (worse,) = [value - 1 for value in ticks if value >= 1]
    assert f"{100 * worse:.1f} % more in one" in text
    saved = [1 - ratio(WHOLE, ADAPTIVE, case, "faults") for case in CASES]
    assert f"{100 * min(saved):.0f} to {100 * max(saved):.0f} % fewer page faults" in text
    grown = {case: 100 * (float(memory(ADAPTIVE, case)) - 1) for case in CASES}
    assert f"Under `adaptive`, gcc takes {grown.pop('gcc'):.0f} % more memory, and the " in text
    rest = f"{min(grown.values()):.0f} to {max(grown.values()):.0f} % more."
    assert f" and the other {len(grown)} programs {rest}" in text


def test_picture_of_readme() -> None:
    """The picture of README has words for readers who do not see it, and the sizes of folios in
    each strip.
    """
    text = " ".join((TREE / "README.md").read_text().split())
    mib, empty, kinds = dict[str, float](), dict[str, float](), dict[str, set[str]]()
    for arm, runs in json.loads((IMAGES / "map.json").read_text()).items():
        there = [run for run in runs if run["kind"] != "."]
        mib[arm] = sum(run["pages"] for run in there) / 256
        empty[arm] = sum(run["pages"] for run in there if run["zero"]) / 256
        kinds[arm] = {run["kind"] for run in there}
    small, large, adaptive = mib
    assert f"with 4 kB pages: {mib[small]:.0f} MiB. " in text
    told = f"With 64 kB for all: {mib[large]:.0f} MiB, of which {empty[large]:.0f} are empty. "
    assert f"{told}Under adaptive: {mib[adaptive]:.0f} MiB, almost none of it empty." in text
    assert empty[small] == 0 and empty[adaptive] < 0.03 * mib[adaptive]
    assert (kinds[small], kinds[large], max(kinds[adaptive])) == ({"0"}, {"4"}, "4")


def test_the_experiment_of_the_tutorial() -> None:
    """README and the page of redis repeat the report that the tutorial shows."""
    line = r"^{} +\d+ of .* {}([\d.]+) % +{}([\d.]+) % \.\. {}([\d.]+) %"
    (fewer, most, least), (more, low, high) = (
        [
            f"{float(each):.0f}"
            for each in re.findall(line.format(name, *[sign] * 3), report, re.M)[0]
        ]
        for report in [(TREE / "docs/tutorial.md").read_text()]
        for name, sign in (("faults", "-"), ("memory", r"\+"))
    )
    readme, redis = (
        " ".join((TREE / page).read_text().split())
        for page in ("README.md", "docs/workloads/redis.md")
    )
    assert f"filled and emptied took {more} % more ({low} to {high} %)" in readme
    assert f"{more} % more memory ({low} to {high} %)" in redis
    assert f"{fewer} % fewer faults ({least} to {most} %)" in redis


# Policies in BPF


def test_who_asks() -> None:
    """The table of docs/asks.md is generated from results of ./dev bench callers."""
    text = callers.DOCUMENT.read_text()
    assert callers.page(callers.read(), text) == text


def read(path: Path) -> Any:
    """Return the results in a JSON file."""
    return json.loads(path.read_text())


def test_a_big_heap() -> None:
    """The tables of big heaps are generated from results of the benchmarks."""
    for bench in collapse, damon, live, maintain:
        text, lines = bench.PAGE.read_text(), bench.lines(read(bench.KEPT))
        assert with_table(text, bench.__name__.rpartition(".")[2], lines) == text
    text, lines = maintain.PAGE.read_text(), maintain.guest_lines(read(maintain.IN_GUESTS))
    assert with_table(text, "maintain --guests", lines) == text


def test_what_is_kept() -> None:
    """The table of programs with hundreds of MB is generated from results of ./dev bench kept."""
    text = kept.PAGE.read_text()
    assert with_table(text, "kept", kept.lines(kept.read())) == text


def test_areas_are_added_up() -> None:
    """Areas are added up by their advice; shared memory has no anonymous pages."""
    smaps = """\
7f00-7f10 rw-p 00000000 00:00 0
Anonymous:           100 kB
AnonHugePages:        64 kB
VmFlags: rd wr mr mw me hg
7f20-7f30 rw-p 00000000 00:00 0
Anonymous:            30 kB
AnonHugePages:         0 kB
VmFlags: rd wr mr mw me nh
7f40-7f50 rw-s 00000000 00:01 5
Anonymous:             0 kB
AnonHugePages:         0 kB
VmFlags: rd wr sh mr mw me hg
"""
    assert callers.areas(smaps) == {"anon": 130, "huge": 64, "asked": 100, "refused": 30}


def test_rates_of_experiments() -> None:
    """The page is generated from results of ./dev bench rates, and has each of its worlds."""
    kept, before = rates.read(), rates.read(rates.BEFORE)
    assert rates.DOCUMENT.read_text() == rates.page(kept, before)
    assert set(before) | set(kept) <= set(worlds())
    assert min(found["runs"] for found in [*kept.values(), *before.values()]) >= 100


def test_gains_that_a_trial_keeps() -> None:
    """docs/cli.md has the lowest share of trials that keep a gain, but for the noise it names."""
    world = re.compile(r"try --candidate (trim: memory -10|collapse: CPU time -6) %, (AR.*, )?\d %")
    found = {title: each for title, each in rates.read().items() if world.fullmatch(title)}
    shares = [each["outcomes"]["exit 0"][0] / each["runs"] for each in found.values()]
    page = " ".join((TREE / "docs/cli.md").read_text().split())
    assert len(shares) == 9
    assert f"a gain of twice the margin is kept in {int(100 * min(shares))} % or more" in page


def words_of(command: click.Command, words: str = "") -> list[str]:
    """Return every verb, as it is typed."""
    if not isinstance(command, click.Group):
        return [words]
    context = click.Context(command)
    children = {name: command.get_command(context, name) for name in command.list_commands(context)}
    return [
        each
        for name, child in children.items()
        if child
        for each in words_of(child, f"{words} {name}".strip())
    ]


def test_trials_ended_at_drawn_moments() -> None:
    """docs/testing.md counts the rounds of the record, and none has a fault."""
    lines = (TREE / "bench/try-ends.jsonl").read_text().splitlines()
    rounds = [json.loads(line) for line in lines]
    at, stands, ends = (Counter(each[key] for each in rounds) for key in ("at", "standing", "end"))
    assert not any(each["fault"] for each in rounds)
    page = " ".join((TREE / "docs/testing.md").read_text().split())
    assert (
        f"It has {len(rounds)} rounds, of which none ended wrong: {at['start']} ended while they "
        f"started, {at['blocks']} in their blocks, {at['keeping']} while they kept the setting, "
        f"and {at['back']} after they had gone back. Then {stands['back']} trials had restored "
        f"stock themselves, {stands['cut off']} were cut off, at stock by the lease or the boot, "
        f"{stands['no record']} had not begun, {stands['kept']} were kept, and "
        f"{stands['half kept']} were half kept, as a SIGKILL came while they bound the cgroup."
    ) in page
    told = "back", "cut off", "no record", "kept", "half kept", "changed nothing"
    assert sum(stands[each] for each in told) == len(rounds), stands
    assert f"Each way to end was drawn {min(ends.values())} times or more." in page


def test_verbs_by_kernel() -> None:
    """Each verb was typed on each kernel, and the table is generated from the results."""
    kept = verbs.read()
    assert verbs.PAGE.read_text() == verbs.page(kept)
    assert list(kept) == list(verbs.SERIES)
    assert {tuple(found) for found in kept.values()} == {verbs.LINES}
    typed = [f"{line} " for line in (*verbs.LINES, *verbs.FILES_ALONE)]
    missing = [each for each in words_of(main) if not any(t.startswith(f"{each} ") for t in typed)]
    assert missing == []


def test_examples_of_bpf() -> None:
    """Each cell has the faults, then the memory, relative to those with sizes off."""
    values = values_of("examples.json")
    arms = [arm for arm in dict.fromkeys(arm for arm, _ in values) if arm not in (OFF, "never")]
    text = (TREE / "docs/writing-a-policy.md").read_text()
    assert "\n| | " + " | ".join(f"`{arm}`" for arm in arms) + " |\n" in text
    for case in dict.fromkeys(case for _, case in values):
        both = ([ratio(values, arm, case, what) for what in ("faults", "kb")] for arm in arms)
        pairs = [f"{faults:.2f}, {memory:.2f}" for faults, memory in both]
        assert f"\n| {case} | {' | '.join(pairs)} |\n" in text


# Access patterns

DEBIAN, HOOKS = values_of("anon_order_stock.json"), values_of("anon_order.json")
PATTERNS = {
    "forward": "forward 64M", "four streams": "streams 64M", "heap (brk)": "brk 64M",
    "one page in 64 kB": "every_64k 64M", "a random quarter of the pages": "random_quarter 64M",
    "dense, then one page in 64 kB: second half": "dense_sparse.2 256M",
    "`malloc` of 128 MB, header touched": "malloc 128M",
}  # fmt: skip
COLUMNS = ("stock-64k", "fixed-4", "adaptive-4")


def as_exact(text: str, value: float) -> str:
    """Return a number with as many digits as the text has."""
    return f"{value:.{len(text.partition('.')[2])}f}"


@pytest.mark.parametrize(("name", "case"), PATTERNS.items())
def test_patterns(name: str, case: str) -> None:
    text = FIGURES.read_text()
    cells = text.partition(f"\n| {name} | ")[2].splitlines()[0].rstrip(" |").split(" | ")
    assert len(cells) == len(COLUMNS)
    for arm, cell in zip(COLUMNS, cells, strict=True):
        found = re.fullmatch(r"([\d.]+)(?: \(([\d.]+) x\))?", cell)
        assert found
        assert found[1] == as_exact(found[1], ratio(DEBIAN, arm, case, "ticks"))
        memory = found[2] or "1.00"
        assert memory == as_exact(memory, ratio(DEBIAN, arm, case, "kb"))


SAVED = {
    "forward": "forward 64M", "one page in 64 kB": "every_64k 64M",
    "a random quarter of the pages": "random_quarter 64M",
    "a quarter of the pages, some parts more often": "skewed 128M",
    "even pages, then odd ones": "even_odd 128M",
    "pieces of 32 kB in a random order": "random_32k 128M",
    "16 MB in full and 16 MB with a page in 64 kB, in turn": "in_turn 128M",
    "1 to 20 pages, then a gap of 1 to 20": "clusters 128M",
    "dense, then one page in 64 kB: second half": "dense_sparse.2 256M",
}  # fmt: skip


@pytest.mark.parametrize(("name", "case"), SAVED.items())
def test_what_is_saved(name: str, case: str) -> None:
    text = FIGURES.read_text().partition("\n### What is saved\n")[2]
    assert f"\n| {name} | {ratio(DEBIAN, ADAPTIVE, case, 'ticks'):.3f} | " in text


def test_the_cost_while_nothing_is_on() -> None:
    """The cost while nothing is on is the worst of all patterns but one with few faults, which is
    listed separately.
    """
    text = " ".join(FIGURES.read_text().split())
    few, cases = "malloc 128M", {case for arm, case in HOOKS if arm == "patched"}
    for arm, words in {
        "patched": "{} with the hooks and no module", "unloaded": "{} after unload",
        "loaded": "{} with the module loaded and all points at `stock`",
    }.items():  # fmt: skip
        worst = max(ratio(HOOKS, arm, case, "ticks") for case in cases - {few})
        assert words.format(f"{worst:.4f}") in text
        assert abs(ratio(HOOKS, arm, few, "ticks") - 1) < 0.035
    assert f"{HOOKS['patched', few]['faults']:.0f} faults in all, and moves by 1.03" in text


# Other policies, whose tables are in pages of their own


def cells(page: str, begin: str) -> list[str]:
    """Return the cells of the first row of a page that begins so, after the row's name."""
    lines = (TREE / page).read_text().splitlines()
    row = next(line for line in lines if line.startswith(begin))
    return [cell.strip() for cell in row.removeprefix(begin).strip("| ").split("|")]


def figures(page: str, begin: str) -> list[float]:
    """Return the figures of a row, without parentheses."""
    found = cells(f"docs/policies/{page}", begin)
    return [float(re.sub(r",| M$| \(.*", "", cell)) for cell in found]


def told(name: str) -> str:
    """Return the text about a policy."""
    return cells("docs/measured.md", f"| {name} |")[0]


def test_only_compact() -> None:
    stock, legacy, only, either, *_ = figures("thp_gfp.md", "| million instructions | 438.0 |")
    row = "more mapped than a node full of pinned memory has left, without MGLRU"
    text = told(f"`thp_gfp` `only_compact`, {row}")
    assert text.startswith(f"{only / legacy:.3f} of the instructions of node-local huge pages")
    assert f", and {only / stock:.2f} times those of stock," in text
    assert f"{either / stock:.3f} of the" in told("`thp_gfp` `only_compact_any`, the same")


def test_compact() -> None:
    page = (TREE / "docs/policies/compact.md").read_text()
    text = told("`compact` `eager`, fragmented, as much asked for as is free")
    for load, words in ("idle", "{:.2f} of the huge pages,"), ("busy", "busy {:.2f};"):
        stock, _, eager = figures("compact.md", f"| {load}, short | huge pages |")
        assert words.format(eager / stock) in text
        price = page.partition(f"| {load}, short | huge pages |")[2].splitlines()[2]
        assert "(2.4" in price and "for 2.4 times the instructions" in text
    hopeless = page.partition("| hopeless | huge pages |")[2].splitlines()[1]
    (budget,) = re.findall(r"\((0\.\d+)\)", hopeless)
    assert f"{budget} of the pages" in told("`compact` `budget`, nothing can be compacted")
    stock, budget_of, _ = figures("compact.md", "| busy | huge pages |")
    row = "`compact` `budget`, fragmented and busy, more asked for than there can be"
    assert told(row).endswith(f", {budget_of / stock:.2f} of the huge pages")


def test_bulk() -> None:
    loads = figures("bulk.md", "| `adaptive` / best `fixed` |")
    text = told("`bulk` `adaptive`, five loads")
    assert len(loads) == 5
    assert text == f"{min(loads):.2f} to {max(loads):.2f} of the best fixed size"


def test_madv_free() -> None:
    """docs/policies/madv_free.md has the measured figures: for a chunk of 128 kB and more at 1.5
    and 1.25 times, for 4 kB at 1.125 times too.
    """
    lines = (TREE / "docs/policies/madv_free.md").read_text().splitlines()
    rows = [line for line in lines if re.match(r"\| \d+ x \d+ of \d+ kB \|", line)]
    kept = {line: [float(each) for each in re.findall(r"\((0\.\d+)\)", line)] for line in rows}
    large = [value for line in rows if re.search(r"of (128|1024) kB", line)
             for value in kept[line][:2]]  # fmt: skip
    (small,) = (kept[line][:3] for line in rows if " of 4 kB" in line)
    row = "an allocator's loop with chunks of 128 kB and more, a cap of 1.25 times what is free"
    assert told(f"`madv_free` `cap`, {row} and more") == (
        f"{min(large):.2f} to {max(large):.2f} of what lazy freeing gains; "
        f"{min(small):.2f} to {max(small):.2f} with chunks of 4 kB"
    )


def test_a_bound_cgroup() -> None:
    (found,) = re.findall(r"\| the cgroup of the task \| [\d.]+ \| ([\d.]+) \|",
                          (TREE / "docs/measured.md").read_text())  # fmt: skip
    text = told("a bound cgroup, at any depth, with the hooks")
    assert text == f"{float(found):.3f} of a fault under `default`"


def test_pages_of_evidence() -> None:
    """The tables of times are generated from the results."""
    assert evidence.DOCUMENT.read_text() == evidence.page()
    page = evidence.DATA.read_text()
    assert page == with_table(page, "time", evidence.data_table())


def test_time() -> None:
    """Times in README agree with the machines of its evidence."""
    text = " ".join((TREE / "README.md").read_text().split())
    files = [json.loads(path.read_text()) for path in (TREE / "bench/evidence").glob("*.json")]
    (found, *others) = [file["programs"] for file in files]
    assert all(each.keys() == found.keys() for each in others)
    programs = [each for file in files for each in file["programs"].values()]
    arms = [{arm["name"]: arm for arm in each["arms"]} for each in programs]
    saved = [100 * (1 - each["to 64"]["ratio"]["cpu"]["estimate"]) for each in arms]
    said = f"{len(found)} programs take {min(saved):.0f} to {max(saved):.0f} % less CPU time"
    assert said in text
    assert GAIN.startswith(f"{len(found)} programs")
    assert f"saved {min(saved):.0f} to {max(saved):.0f} % of their CPU time" in GAIN
    huge = [each["2 MB"]["ratio"]["cpu"] for each in arms]
    less = [100 * (1 - each["estimate"]) for each in huge if each["high"] < 1]
    more = [100 * (each["estimate"] - 1) for each in huge if each["low"] > 1]
    sizes = [each["off"]["mean"]["peak_rss"] / 2**20 for each in arms]
    saves = f"save {min(less):.0f} to {max(less):.0f} % in {len(less)}"
    costs = f"cost {min(more):.0f} to {max(more):.0f} % in {len(more)}"
    said = f"In these {len(huge)} measurements, 2 MB pages {saves} and {costs}; the others show no"
    assert said in text
    assert f"have {min(sizes):.0f} to {max(sizes):.0f} MiB" in text
    grown = [[100 * each["to 64"]["ratio"]["peak_rss"]["estimate"] - 100
              for name, each in zip([*found] * len(files), arms) if (name == "gcc") == is_gcc]
             for is_gcc in (False, True)]  # fmt: skip
    most = f"most programs take {min(grown[0]):.0f} to {max(grown[0]):.0f} % more memory"
    assert f"{most}, gcc takes {max(grown[1]):.0f} % more." in text
    assert f"{min(grown[1]):.0f}" == f"{max(grown[1]):.0f}"
    heap = (TREE / "docs/workloads/big-heap.md").read_text()
    before, after = re.findall(r"a random access before, after \| (\d+), (\d+) ns", heap)[0]
    assert f"took {before} ns before and {after} ns after" in text
