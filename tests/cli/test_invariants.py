# SPDX-License-Identifier: GPL-2.0
"""What `top` shows of hosts made by chance: never more than the kernel says, and the truth."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import pytest

from mmpolicy.memory.sample import Looker, Sample
from mmpolicy.memory.survey import FIGURES, Process, Row, Survey

from .random_hosts import World

SOME = 25  # hosts in which a planted fault is found
SLACK_KIB = 8.0  # for what is rounded
SURELY = 4.5  # times the error of 95 in 100 cases, so once in 10^18


def survey_of(world: World, seed: int) -> Survey:
    found = Survey(world.tree, 1.0, cpu=lambda: 0.0, seed=seed)
    found.turn(1.0, 5.0)
    return found


def too_much(row: Row) -> Iterator[str]:
    """Yield what is shown of a cgroup or a process and exceeds what the kernel says of it."""
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
    """Yield figures of a cgroup that are not those of memory.current and memory.stat."""
    memory, private, shared = (4 * pages for pages in world.charged(row.name, False))
    if row.name == "/" and world.version == 2:
        memory = private + shared  # the root has no memory.current
    said = (row.rss_kib, row.kinds["private"], row.kinds["shared"])
    if any(abs(a - b) > SLACK_KIB for a, b in zip(said, (memory, private, shared))):
        yield f"{row.name}: {said} for {memory, private, shared}"


def miscounted(world: World, survey: Survey) -> Iterator[str]:
    """Yield cgroups and kinds of which not each page was counted once, where all were looked at."""
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
            # Whom pages are charged to, and how many share them, is as uncertain as a share is.
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


def faults_of(seed: int) -> list[str]:
    world = World(seed)
    survey = survey_of(world, seed)
    cgroups, processes = survey.most(FIGURES["waste"], 99)
    found = [text for row in (*cgroups, *processes) for text in too_much(row)]
    found += [text for row in cgroups for text in not_the_kernels(world, row)]
    found += [*miscounted(world, survey), *untrue(world, survey, processes)]
    names = {row.name for row in cgroups}
    owned = {process.cgroup for process in world.processes}
    found += [f"{name}: no row" for name in owned - names]
    return found


@pytest.fixture(autouse=True)
def few_spots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors are as large as they are; the time is not."""
    monkeypatch.setattr("mmpolicy.memory.survey.ENOUGH", 96)


@pytest.mark.parametrize("worlds", [100, pytest.param(10_000, marks=pytest.mark.full)])
def test_what_is_shown_is_what_there_is(worlds: int) -> None:
    found = {seed: text for seed in range(worlds) if (text := faults_of(seed))}
    assert not found


def share_twice(looker: Looker, frame: int) -> int:
    return 1


def own_alone(looker: Looker, frame: int) -> int:
    return -1


PLANTED = {
    "pages that are shared count for each": (Looker, "_maps", share_twice),
    "pages are those of who maps them": (Looker, "_owner", own_alone),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_faults_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, what, fault = PLANTED[name]
    monkeypatch.setattr(where, what, fault)
    assert any(faults_of(seed) for seed in range(SOME))


def test_a_dropped_kind_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shared memory that nobody looks into cannot pass for looked at, empty or in use."""
    plain = Survey._look

    def look(survey: Survey, looker: Looker, process: Process, now: float) -> None:
        plain(survey, looker, process, now)
        process.shared = Sample()

    monkeypatch.setattr(Survey, "_look", look)
    assert any(faults_of(seed) for seed in range(SOME))


def test_kinds_that_were_not_looked_at_are_told() -> None:
    """In MiB by kind: what is too small to be sampled, and pools."""
    told = defaultdict[str, float](float)
    for seed in range(SOME):
        _, rows = survey_of(World(seed), seed).most(FIGURES["memory"], 99)
        for row in rows:
            for kind, kib in row.unseen.items():
                told[kind] += kib
    assert told["any"] and told["hugetlb"]
