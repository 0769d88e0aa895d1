# SPDX-License-Identifier: GPL-2.0
"""Figures of random hosts: never more than the kernel reports, and true."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

import pytest

from mmpolicy.memory import survey as surveys
from mmpolicy.memory.folios import Frames, read_areas, totals
from mmpolicy.memory.holds import Holds
from mmpolicy.memory.sample import Looker, Sample
from mmpolicy.memory.space import Sizes, Space
from mmpolicy.memory.survey import FIGURES, Process, Row, Survey
from mmpolicy.memory.trim import Finder

from .random_hosts import World

SOME = 25  # number of hosts in which a planted fault is found
SLACK_KIB = 8.0  # for rounding
EXACT = ("private", "shared", "file", "swapped", "hugetlb", "ksm")  # from counters
SAMPLED = ("lazily_freed", "locked", "partly_unmapped")
SURELY = 4.5  # times the error of 95 in 100 cases, so once in 10^18


def survey_of(world: World, seed: int) -> Survey:
    found = Survey(world.tree, 1.0, cpu=lambda: 0.0, seed=seed)
    found.turn(1.0, 5.0)
    return found


def too_much(row: Row) -> Iterator[str]:
    """Yield figures of a cgroup or a process that exceed the kernel's."""
    whole = row.rss_kib + SLACK_KIB
    kinds = {name: kib for name, kib in row.kinds.items() if name in ("private", "shared", "file")}
    for name, kib in {
        "waste": row.waste_kib,
        "sampled": row.anon_kib,
        "kinds": sum(kinds.values()),
        "unseen": sum(kib for name, kib in row.unseen.items() if name != "hugetlb"),
        "with what nobody maps": sum(kinds.values())
        + (row.kinds.get("partly_unmapped", 0.0) if row.is_cgroup else 0.0),
    }.items():
        if not 0 <= kib <= whole:
            yield f"{row.name}: {name} {kib:.0f} of {row.rss_kib}"
    if not 0 <= row.waste_shared_kib <= row.waste_kib + SLACK_KIB:
        yield f"{row.name}: shared waste {row.waste_shared_kib:.0f} of {row.waste_kib:.0f}"
    if not 0 <= row.seen <= 1:
        yield f"{row.name}: {row.seen} seen"


def not_the_kernels(world: World, row: Row) -> Iterator[str]:
    """Yield figures of a cgroup that differ from memory.current and memory.stat."""
    memory, private, shared = (4 * pages for pages in world.charged(row.name, False))
    if row.name == "/" and world.version == 2:
        memory = private + shared  # the root has no memory.current
    said = (row.rss_kib, row.kinds["private"], row.kinds["shared"])
    if any(abs(a - b) > SLACK_KIB for a, b in zip(said, (memory, private, shared))):
        yield f"{row.name}: {said} for {memory, private, shared}"


def miscounted(world: World, survey: Survey) -> Iterator[str]:
    """Yield cgroups and kinds of which some page was not counted once, if all were examined."""
    if not all(each.sample.spots or each.shared.spots for each in survey.processes.values()):
        return
    used = {id(folio) for process in world.processes for folio in process.folios}
    charges = survey._charges()
    for name in world.cgroups:
        for kind in ("private", "shared"):
            some = [each for each in charges.get(name, ()) if each.kind == kind]
            truth = 4 * sum(
                len(each.mapped) for each in world.folios
                if each.cgroup == name and each.shared == (kind == "shared") and id(each) in used
            )  # fmt: skip
            seen = sum(each.kib for each in some)
            parts = [each.parts[kind == "shared"] for each in survey.processes.values()]
            # The cgroup charged with a page, and the number of its users, are as uncertain as a
            # share.
            squares = ((SURELY * kib) ** 2 / 4 / max(part.spots, 1) for part, kib in parts)
            error = sum(squares) ** 0.5
            if abs(seen - truth) > error + SLACK_KIB:
                yield f"{name}: {kind} {seen:.0f} of {truth} (+- {error:.0f})"


def untrue(world: World, survey: Survey, rows: list[Row]) -> Iterator[str]:
    """Yield waste of processes that is beyond its error."""
    by_pid = {process.pid: process for process in world.processes}
    for row in rows:
        if row.seen:
            truth = world.waste_of(by_pid[row.pids[0]])
            if abs(row.waste_kib - truth) > SURELY / 2 * row.error_kib + SLACK_KIB:
                yield f"{row.name}: waste {row.waste_kib:.0f} (+- {row.error_kib:.0f}) of {truth}"


def other_kinds(world: World, rows: list[Row]) -> Iterator[str]:
    """Yield kinds of a process whose figures are wrong."""
    by_pid = {process.pid: process for process in world.processes}
    for row in rows:
        truth = by_pid[row.pids[0]].kinds
        if not row.kinds:
            continue
        yield from (
            f"{row.name}: {row.kinds.get(kind)} kB {kind} of {truth[kind]}"
            for kind in EXACT
            if abs(row.kinds.get(kind, -1.0) - truth[kind]) > SLACK_KIB
        )


def exactly(world: World) -> Iterator[str]:
    """Yield a line for each process of which `map` or `trim` reports wrong numbers."""
    for process in world.processes:
        areas = read_areas(world.tree, process.pid, contents=True, shared=True)
        found = {order: (each.pages, each.zero) for order, each in totals(areas).items()}
        truth = {order: each for order, each in process.orders().items() if each[0]}
        if found != truth:
            yield f"p{process.pid}: map {found} of {truth}"
        finder = Finder(Space(world.tree, process.pid, Holds(world.tree)), 0.0, True)
        empty = sum(piece.empty for piece in finder.pieces())
        if empty != process.to_give_back():
            yield f"p{process.pid}: trim {empty} of {process.to_give_back()}"


class Sums:
    """Sampled kinds: estimates over many processes, and the truth."""

    def __init__(self) -> None:
        self._seen, self._truth = Counter[str](), Counter[str]()

    def add(self, world: World, rows: list[Row]) -> None:
        by_pid = {process.pid: process for process in world.processes}
        for row in (row for row in rows if row.seen):
            for kind in SAMPLED:
                self._seen[kind] += round(row.kinds.get(kind, 0.0))
                self._truth[kind] += by_pid[row.pids[0]].kinds[kind]

    def faults(self) -> list[str]:
        """Return kinds whose sums differ by more than chance explains."""
        return [
            f"{kind}: {self._seen[kind]} kB of {self._truth[kind]}"
            for kind in SAMPLED
            if abs(self._seen[kind] - self._truth[kind]) > self._truth[kind] / 4
        ]


def faults_of(seed: int, sums: Sums, everything: bool) -> list[str]:
    world = World(seed)
    survey = survey_of(world, seed)
    cgroups, processes = survey.most(FIGURES["waste"], 99)
    sums.add(world, processes)
    found = [text for row in (*cgroups, *processes) for text in too_much(row)]
    found += [text for row in cgroups for text in not_the_kernels(world, row)]
    found += [*miscounted(world, survey), *untrue(world, survey, processes)]
    found += [*other_kinds(world, processes), *(exactly(world) if everything else ())]
    names = {row.name for row in cgroups}
    owned = {process.cgroup for process in world.processes}
    found += [f"{name}: no row" for name in owned - names]
    world.tree.files.clear()  # otherwise they stay until the garbage collection
    return found


@pytest.fixture(autouse=True)
def few_spots(monkeypatch: pytest.MonkeyPatch) -> None:
    """With few spots, errors are unchanged, and the test takes less time."""
    monkeypatch.setattr("mmpolicy.memory.survey.ENOUGH", 96)


@pytest.mark.parametrize("worlds", [60, pytest.param(10_000, marks=pytest.mark.full)])
def test_what_is_shown_is_what_there_is(worlds: int) -> None:
    sums = Sums()
    found = {seed: text for seed in range(worlds) if (text := faults_of(seed, sums, True))}
    assert not found
    assert not sums.faults()


def is_found(everything: bool = False) -> bool:
    sums = Sums()
    return any(faults_of(seed, sums, everything) for seed in range(SOME)) or bool(sums.faults())


def share_twice(looker: Looker, frame: int) -> int:
    return 1


def own_alone(looker: Looker, frame: int) -> int:
    return -1


def twice(sizes: Sizes, name: str) -> Sizes:
    return sizes._replace(**{name: 2 * getattr(sizes, name)})


def none_lost(frames: Frames, head: int, order: int) -> int:
    return 0


PLAIN_LOST = Frames._lost


def lost_twice(frames: Frames, head: int, order: int) -> int:
    return 2 * PLAIN_LOST(frames, head, order)


PLANTED = {
    "pages that are shared count for each": (Looker, "_maps", share_twice),
    "pages are those of who maps them": (Looker, "_owner", own_alone),
    "pages that nobody maps are dropped": (Frames, "_lost", none_lost),
    "pages that nobody maps count twice": (Frames, "_lost", lost_twice),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_faults_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, what, fault = PLANTED[name]
    monkeypatch.setattr(where, what, fault)
    assert is_found(everything=True)


@pytest.mark.parametrize("name", ["anon", "shared", "file", "swap", "hugetlb"])
def test_a_counter_that_counts_twice_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Space.sizes
    monkeypatch.setattr(Space, "sizes", lambda space: twice(plain(space), name))
    assert is_found()


@pytest.mark.parametrize("name", SAMPLED)
def test_a_note_that_is_made_twice_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Sample.note

    def note(sample: Sample, kind: str, pages: float) -> None:
        plain(sample, kind, 2 * pages if kind == name else pages)

    monkeypatch.setattr(Sample, "note", note)
    assert is_found()


def test_pages_of_ksm_that_count_twice_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = surveys.ksm_of
    monkeypatch.setattr(surveys, "ksm_of", lambda tree, pid: 2 * plain(tree, pid))
    assert is_found()


@pytest.mark.parametrize("kind", [*EXACT, *SAMPLED])
def test_a_dropped_kind_is_found(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = vars(Process)["kinds"].fget

    def kinds(process: Process) -> dict[str, float]:
        return {name: kib for name, kib in plain(process).items() if name != kind}

    monkeypatch.setattr(Process, "kinds", property(kinds))
    assert is_found()


def test_shared_memory_that_nobody_looks_into_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shared memory that was not sampled is not reported as examined, empty or in use."""
    plain = Survey._look

    def look(survey: Survey, looker: Looker, process: Process, now: float) -> None:
        plain(survey, looker, process, now)
        process.shared = Sample()

    monkeypatch.setattr(Survey, "_look", look)
    assert is_found()


def test_kinds_that_were_not_looked_at_are_told() -> None:
    """Memory that was not sampled is reported in MiB by kind: kinds too small to be sampled, and
    pools.
    """
    told = defaultdict[str, float](float)
    for seed in range(SOME):
        _, rows = survey_of(World(seed), seed).most(FIGURES["memory"], 99)
        for row in rows:
            for kind, kib in row.unseen.items():
                told[kind] += kib
    assert told["any"] and told["hugetlb"]
