# SPDX-License-Identifier: GPL-2.0
"""`calibrate`: the cost of a fault, and its use by other verbs."""

from __future__ import annotations

import json
import os
import random
from itertools import count, cycle, islice
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from mmpolicy.bench import all_cpus, calibrate
from mmpolicy.bench.calibrate import Piece
from mmpolicy.control.shadow import shadow_of
from mmpolicy.host.calibration import (
    FILE,
    Calibration,
    FaultCost,
    Together,
    dear_in,
    keep_calibration,
    read_calibration,
)
from mmpolicy.host.knobs import read_knobs
from mmpolicy.verbs import calibrate as verb

from .fakes import RELEASE, Clock, FakeTree, Run

TREE = Path(__file__).parents[2]
COSTS = [FaultCost(4096, 2000.0, 1900.0, 2100.0), FaultCost(64 << 10, 6500.0, 6400.0, 6600.0)]
COSTS += [FaultCost(2 << 20, 130_000.0, 120_000.0, 140_000.0)]


def keep(tree: FakeTree, kernel: str = RELEASE) -> None:
    """Store a calibration under this kernel."""
    kept = {"version": 1, "kernel": kernel, "faults": [each._asdict() for each in COSTS]}
    tree.put(FILE, json.dumps(kept))


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """End after 24 turns, however busy the machine is."""
    if "turns" not in request.fixturenames:
        monkeypatch.setattr(calibrate, "MOST_S", 0.0)


def test_a_fault_is_measured_and_kept(run: Run, tree: FakeTree) -> None:
    before = read_knobs(tree)
    result = run("calibrate", "--json")
    assert result.code == 0, result.err
    assert read_knobs(tree) == before
    costs = read_calibration(tree)
    assert costs
    assert 50 < costs.ns(0) < 100_000  # nanoseconds, whatever the machine
    assert result.json["faults"][0]["ns"] == pytest.approx(costs.ns(0))
    assert result.json["kept"] == FILE


def test_sizes_take_turns(run: Run, tree: FakeTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes take turns: each is enabled for madvise while all others are never; then all are
    restored.
    """
    before, seen = read_knobs(tree), []
    tune = tree.tune

    def note(path: str, value: str) -> None:
        tune(path, value)
        seen.append({p: v for p, v in read_knobs(tree).items() if v == "madvise"})

    monkeypatch.setattr(tree, "tune", note)
    plan = run("calibrate", "--dry-run")
    assert "hugepages-64kB/enabled <- madvise" in plan.out and not seen
    assert run("calibrate").code == 0
    assert read_knobs(tree) == before


def test_it_ends_where_others_set_a_size(
    run: Run, tree: FakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If another program sets a size, calibration ends with a one-line error, and keeps
    that setting.
    """
    size = "/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled"
    before = read_knobs(tree)
    monkeypatch.setattr(verb, "_tell", lambda _seconds: tree.put(size, "[always] madvise never"))
    result = run("calibrate")
    assert result.code == 1
    text = (
        "another program has changed a knob of the experiment: "
        "transparent_hugepage/hugepages-64kB/enabled=always"
    )
    assert result.err.splitlines()[-2:] == [f"mmpolicy: {text}", "next: give the command again"]
    assert read_knobs(tree) == before | {size: "always"}
    assert not tree.exists(FILE)


def test_without_root_only_pages(run: Run, tree: FakeTree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "writable", lambda _path: False)
    found = run("calibrate", "--json").json
    assert [each["size"] for each in found["faults"]] == [4096] and found["kept"] is None
    assert not tree.exists(FILE)


@pytest.mark.parametrize(("slowed", "turns"), [(0, 24), (50, 24), (51, 27)])
def test_a_busy_host_takes_more_turns(
    monkeypatch: pytest.MonkeyPatch, slowed: int, turns: int
) -> None:
    """On a busy host, calibration takes more turns, until half of all faults take at most 1.05
    times as long as the fastest, or for ten seconds.

    The fastest faults count: the others were slowed down by neighbours, here two of three.
    """
    entered: list[int] = []
    slow = Piece(1150.0 + slowed, 200, 50)
    pieces = cycle([Piece(1150.0, 200, 50), slow, slow])
    clock = count(step=0.375)  # seconds of a turn
    monkeypatch.setattr(calibrate, "of_a_piece", lambda _size: (next(pieces), True))
    monkeypatch.setattr("mmpolicy.bench.calibrate.time.monotonic", lambda: next(clock))
    told: list[float] = []
    (cost,) = calibrate.measure([4096], entered.append, told.append)
    assert cost == FaultCost(4096, 1000, 1000, 1000 + slowed)
    assert len(entered) == turns and told == [0.375 * turn for turn in range(1, turns + 1)]


def test_limits_promise_no_share_of_the_pieces() -> None:
    """The limits of a time promise no share of the pieces: if each is slowed by itself, fewer than
    half lie within.
    """
    rng = random.Random(1)
    pieces = [
        Piece(*(time * rng.choice([1, 1, 1.5]) * rng.uniform(1, 1.05) for time in (1150, 200, 50)))
        for _ in range(500)
    ]
    cost = calibrate._cost(4096, pieces)
    sides = list(zip(*pieces))
    assert cost.low == min(sides[0]) - min(sides[1]) + min(sides[2])
    assert cost.high == median(sides[0]) - median(sides[1]) + median(sides[2])
    within = [cost.low <= first - again + back <= cost.high for first, again, back in pieces]
    assert sum(within) < 0.45 * len(pieces)
    text = (TREE / "docs/bench.md").read_text()
    assert "are no interval for" in text and "Half of all pieces lie" not in text


def test_all_cpus_are_used_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """All CPUs are used in turn, so the neighbours of one CPU do not decide; afterwards all may be
    used as before.
    """
    before, used = os.sched_getaffinity(0), list[set[int]]()

    def piece(_size: int) -> tuple[Piece, bool]:
        used.append(os.sched_getaffinity(0))
        return Piece(1150.0, 200, 50), True

    monkeypatch.setattr(calibrate, "of_a_piece", piece)
    calibrate.measure([4096], lambda _size: None, lambda _seconds: None)
    turns = cycle(sorted(before))
    assert used == [{cpu} for cpu in islice(turns, 24) for _ in range(4)]
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize("text", ["", "{", '{"kernel": "x"}', '{"kernel": "other", "faults": []}'])
def test_what_is_not_of_this_kernel_is_not_believed(tree: FakeTree, text: str) -> None:
    tree.put(FILE, text)
    assert read_calibration(tree) is None
    keep(tree, "6.1.0-1-amd64")
    assert read_calibration(tree) is None


def test_sizes_between_lie_on_a_line() -> None:
    costs = Calibration(COSTS)
    assert [round(costs.ns(order)) for order in (0, 2, 4, 9)] == [2000, 2900, 6500, 130_000]
    assert costs.percent(12_000) == pytest.approx((2.4, 0.12))


def test_a_shadow_tells_of_time() -> None:
    """A shadow tells the saved time: 160 faults in ten blocks are ten of 6,500 ns in place of 160
    of 2,000, or the costs on this host.
    """
    counters = {"shadow_requested_order_4": 160, "shadow_allocated_order_4": 10}
    shadow = shadow_of(counters)
    assert shadow and "CPU time" not in shadow.text()
    assert "about 78 to 81 % of the CPU time of all these faults" in shadow.text(Calibration(COSTS))
    (least, _), (most, _) = shadow.saved(Calibration(COSTS))
    assert least == pytest.approx((150 * 1900 - 10 * (6600 - 1900)) / 1e9)
    assert most == pytest.approx((150 * 2100 - 10 * (6400 - 2100)) / 1e9)


def test_stats_tell_of_it(run: Run, tree: FakeTree) -> None:
    path = "/sys/kernel/debug/mmpolicy/default/anon_order/stats"
    tree.put(path, "shadow_requested_order_4 160\nshadow_allocated_order_4 10\n")
    assert "CPU time" not in run("stats").out
    keep(tree)
    assert "about 78 to 81 % of the CPU time of all these faults" in run("stats").out


# All CPUs at once

KIB = 1024
SIZES = [4 * KIB, 16 * KIB, 32 * KIB, 64 * KIB, 128 * KIB, 2 << 20]


def host_of(ns_for_64k: dict[int, list[float]]) -> list[Together]:
    """Return the rows of a host; given is the time for 64 kB in folios of each size, by CPUs."""
    return [
        Together(cpus, size, ns * size / (64 * KIB), ns * 0.98 * size / (64 * KIB), ns)
        for cpus, costs in ns_for_64k.items() for size, ns in zip(SIZES, costs)
    ]  # fmt: skip


SIXTEEN = host_of({
    1: [27_000, 11_700, 8500, 8500, 6000, 3900], 4: [28_000, 19_500, 14_500, 12_100, 9400, 7500],
    8: [32_000, 28_600, 21_000, 16_300, 14_300, 12_500],
    16: [41_000, 47_000, 24_000, 22_000, 16_000, 15_000],
})  # fmt: skip
SMALL_PAYS = host_of({1: [27_000, 12_000, 9000, 8000, 6000, 5000],
                      4: [30_000, 15_000, 12_000, 10_000, 9000, 8000]})  # fmt: skip
NOTHING_PAYS = host_of({1: [10_000, 10_500, 11_000, 12_000, 12_000, 13_000],
                        2: [10_000, 11_500, 12_000, 14_000, 15_000, 20_000]})  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (SIXTEEN, (
            "these sizes cost more than single pages: 16 kB where 16 CPUs fault at once; turn "
            "on only 32 kB, 64 kB, 128 kB, 2048 kB"
        )),
        (SMALL_PAYS, "each folio size costs less than single pages, on 1 to 4 CPUs at once"),
        (NOTHING_PAYS, (
            "no folio size costs less than single pages on 1 to 2 CPUs: leave all sizes off"
        )),
    ],
)  # fmt: skip
def test_which_sizes_pay_on_all_cpus(rows: list[Together], told: str) -> None:
    """Advice names the sizes that pay on all CPUs: on a measured host of 16 CPUs, 16 kB are 2.3
    times faster on one CPU only.
    """
    assert all_cpus.advice(rows) == told


def test_costs_are_those_of_as_many_cpus_as_are_busy(tree: FakeTree) -> None:
    keep_calibration(tree, RELEASE, COSTS, SIXTEEN)
    found = []
    for load in ("0.30", "1.90", "5.00", "15.99", "64.00"):
        tree.put("/proc/loadavg", f"{load} 0.2 0.1 1/99 5")
        costs = read_calibration(tree)
        assert costs
        found.append(round(costs.ns(2)))
    assert found == [2900, 2900, 4875, 7150, 11750]  # a line between 4 and 64 kB; 4, 8, 16 CPUs
    assert [dear_in(SIXTEEN, size) for size in SIZES[2:]] == [None] * 4


def test_numbers_of_cpus() -> None:
    assert [all_cpus.levels(number) for number in (1, 2, 3, 16, 24)] == [
        [1], [1, 2], [1, 2, 3], [1, 2, 4, 8, 16], [1, 2, 4, 8, 16, 24],
    ]  # fmt: skip
    assert all_cpus.levels(200) == [1, 4, 16, 64, 200]
    assert all_cpus.spread(range(8), 2) == [0, 4]
    assert all_cpus.spread(range(6), 4) == [0, 1, 3, 4]


class Model:
    """CPUs on which a fault takes 1,000 ns times their number, and more in disturbed turns."""

    cpus = (0, 1)

    def __init__(self, disturbed: float = 1.0, lacks: int = 0) -> None:
        self.calls: list[tuple[int, int]] = []
        self.disturbed, self.lacks = disturbed, lacks

    def fault(self, size: int, number: int, seconds: float) -> list[all_cpus.Reply]:
        """Return the measurements of each CPU."""
        assert 0 < seconds <= all_cpus.WINDOW_S
        again = self.calls.count((size, number)) % 2
        self.calls.append((size, number))
        ns = 1000.0 * number * (self.disturbed if again else 1)
        return [None if size == self.lacks else ns] * number


@pytest.mark.parametrize(("disturbed", "quiet"), [(1.0, True), (1.09, True), (1.12, False)])
def test_a_host_that_is_not_quiet(disturbed: float, quiet: bool) -> None:
    """If every other turn is slower by less than 10 %, the median is kept, else no result is."""
    entered: list[int] = []
    shares: list[float] = []
    model: Any = Model(disturbed, lacks=16 * KIB)
    sizes = [4096, 16 * KIB, 64 * KIB]
    turns = all_cpus.measure_together(model, sizes, entered.append, shares.append)
    assert entered == sizes * 7
    assert shares == pytest.approx([step / 21 for step in range(1, 22)])
    assert (all_cpus.unquiet(turns) == "") == quiet
    rows = all_cpus.rows_of(turns)
    assert [(each.cpus, each.size) for each in rows] == [
        (cpus, size) for cpus in (1, 2) for size in (4096, 64 * KIB)
    ]
    assert [each.low for each in rows] == [1000, 1000, 2000, 2000]


@pytest.fixture
def idle(tree: FakeTree, clock: Clock) -> FakeTree:
    """Return a host with memory that is idle during each look."""
    clock.steps += [lambda: None] * 4
    tree.put("/proc/stat", "cpu  10 0 10 1000 0 0 0 0 0 0\n")
    tree.put("/proc/meminfo", f"MemTotal: {1 << 30} kB\nMemAvailable: {1 << 30} kB\n")
    return tree


def test_all_cpus_are_measured_and_kept(
    run: Run, idle: FakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All CPUs are measured by processes that fault; afterwards sizes are restored, and no process
    is left.
    """
    monkeypatch.setattr(all_cpus, "AGREE", 1000.0)  # this machine has other work
    before = read_knobs(idle)
    keep_calibration(idle, RELEASE, COSTS)
    result = run("calibrate", "--all-cpus", "--yes", "--json")
    assert result.code == 0, result.err
    assert read_knobs(idle) == before
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
    rows = result.json["together"]
    cpus = len(os.sched_getaffinity(0))
    assert [each["cpus"] for each in rows if each["size"] == 4096] == all_cpus.levels(cpus)
    assert all(50 < each["low"] <= each["ns"] <= each["high"] for each in rows)
    kept = read_calibration(idle, busy=0.0)
    assert kept and kept.costs == COSTS and len(kept.together) == len(rows)
    assert run("calibrate").code == 0  # one CPU at a time: keeps the others
    again = read_calibration(idle, busy=0.0)
    assert again and again.together == kept.together


def test_all_cpus_is_refused(
    run: Run, idle: FakeTree, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--all-cpus is refused on a host with work, without memory, or unasked: no setting, result or
    process is made.
    """

    def refused(code: int, text: str, *words: str) -> None:
        result = run("calibrate", "--all-cpus", *words)
        assert (result.code, idle.exists(FILE)) == (code, False)
        assert text in result.err

    monkeypatch.setattr(verb, "crew_of", None)  # would fail
    refused(2, "the command asks before it begins, and there is no terminal: give --yes")
    assert "takes all" in run("calibrate", "--all-cpus").err
    idle.put("/proc/meminfo", "MemTotal: 1000000 kB\nMemAvailable: 65536 kB\n")
    refused(5, "only 64 MiB of memory are available, and --all-cpus needs ", "--yes")
    clock.steps[:] = [lambda: idle.put("/proc/stat", "cpu  30 0 16 1074 0 0 0 0")]
    refused(5, "other processes use 26 % of the CPUs, more than 25 %", "--yes")
    assert run("calibrate", "--yes").code == 2


def test_not_quiet_keeps_nothing(run: Run, idle: FakeTree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(all_cpus, "AGREE", 0.5)
    before = read_knobs(idle)
    result = run("calibrate", "--all-cpus", "--yes")
    assert result.code == 4
    assert "the host is not quiet, so no result is stored: a fault of" in result.err
    assert read_knobs(idle) == before and not idle.exists(FILE)


def test_it_ends_where_tasks_wait_for_memory(
    run: Run, idle: FakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle.put("/proc/pressure/memory", "some avg10=40.00 avg60=0.00 avg300=0.00 total=5\n")
    result = run("calibrate", "--all-cpus", "--yes")
    assert result.code == 5
    assert "tasks wait for memory 40 % of the time, more than 10 %" in result.err
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_set_warns_of_a_size_that_is_slow_on_all_cpus(run: Run, tree: FakeTree) -> None:
    """`set` warns of a size that is slow on all CPUs, for that size alone, and only on a measured
    host; the size is still set.
    """
    words = ("set", "anon_order", "fixed")
    assert run(*words, "max_order=2").err == ""
    keep_calibration(tree, RELEASE, COSTS, SIXTEEN)
    found = run(*words, "max_order=2")
    assert (found.code, found.err) == (0, (
        "warning: max_order=2: folios of 16 kB cost more than single pages where 16 CPUs fault at "
        "once, by mmpolicy calibrate --all-cpus\n"
    ))  # fmt: skip
    assert run(*words, "max_order=4").err == ""
    assert "warning: max_order=2" in run("set", "anon_order", "max_order=2", "--dry-run").err
