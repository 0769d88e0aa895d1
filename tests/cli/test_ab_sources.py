# SPDX-License-Identifier: GPL-2.0
"""Sources, guards and goals of an experiment: the grammar, its bounds, and the length."""

from __future__ import annotations

import errno
import hashlib
import hmac
import json
import os
import random
from collections import deque
from dataclasses import fields
from math import isnan, nan
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

from mmpolicy.ab.anytime import answered
from mmpolicy.ab.arms import settings_of_arm, split_arm
from mmpolicy.ab.design import Block, Design
from mmpolicy.ab.guards import Guard, Watch
from mmpolicy.ab.identity import (
    EQUAL,
    about_host,
    digest_of,
    host_id,
    labels_of,
    roles_of,
    seed_here,
)
from mmpolicy.ab.metrics import Metric, all_sources, of_samples, parse_source
from mmpolicy.ab.run import outfile
from mmpolicy.ab.run.commands import Commands
from mmpolicy.ab.run.decisions import Decisions, _is_decision, risen
from mmpolicy.ab.run.live import Live, place_of
from mmpolicy.ab.run.policy_arms import StoppedError
from mmpolicy.ab.run.preflight import (
    _check_meaning,
    check_commands,
    check_units,
    first_look,
    wants_times,
)
from mmpolicy.ab.run.runner import Length
from mmpolicy.ab.run.scope import scope_of
from mmpolicy.ab.run.units import arms_of, balanced, siphash, units_of
from mmpolicy.ab.sources import ARMS, Reader, Sample, only_rises
from mmpolicy.control.experiment import LIVE
from mmpolicy.control.keys import Setting, choice
from mmpolicy.control.model import Control
from mmpolicy.control.state import read_state
from mmpolicy.errors import Error, Exit
from mmpolicy.host.knobs import read_knobs
from mmpolicy.verbs.ab_plan import RunOptions, design_of, length_of, usual_design

from .fakes import COUNTERS, THP, VM, FakeTree
from .test_host import raised

# Sources


@pytest.mark.parametrize(
    ("text", "kind", "facts"),
    [
        ("vmstat.pgfault", "Vmstat", {"key": "pgfault", "path": "/proc/vmstat"}),
        ("vmstat.pgfault/s", "Vmstat", {"key": "pgfault", "rate": True}),
        ("cpu.busy/s", "CpuTime", {"key": "busy", "path": "/proc/stat", "rate": True}),
        ("psi.memory.full.total", "Psi", {"resource": "memory", "key": "full.total",
                                          "path": "/proc/pressure/memory"}),
        ("thp.hugepages-64kB/stats/swpout", "HugePages",
         {"file": "hugepages-64kB/stats/swpout", "key": "",
          "path": f"{THP}/hugepages-64kB/stats/swpout"}),
        ("cgroup:/a b/memory.stat:anon", "CgroupFile", {"file": "/a b/memory.stat", "key": "anon"}),
        ("cgroup:/a/memory.current", "CgroupFile", {"file": "/a/memory.current", "key": ""}),
        ("unit:memory.stat:anon/s", "UnitFile", {"file": "memory.stat", "key": "anon",
                                                 "rate": True}),
        ("unit:memory.current", "UnitFile", {"file": "memory.current", "key": ""}),
        ("arm.units", "Units", {}),
        ("arm.bulk.n", "Arm", {"point": "bulk", "counter": "n"}),
        ("arm.p.fault_ns", "ArmTimes", {"counter": "fault_ns", "percentile": None}),
        ("arm.p.fault_ns.p99", "ArmTimes", {"percentile": 99}),
        ("arm.p.fault_ns.p99.9", "ArmTimes", {"percentile": 99.9}),
        ("cmd:a.b/c /s", "Command", {"command": "a.b/c ", "rate": True}),
    ],
)  # fmt: skip
def test_forms_of_sources(text: str, kind: str, facts: dict[str, Any]) -> None:
    found = parse_source(text)
    assert type(found).__name__ == kind
    assert found.text == text.removesuffix("/s")
    for name, value in facts.items():
        assert getattr(found, name) == value
    assert found.rate == facts.get("rate", False)


@pytest.mark.parametrize(
    "text",
    ["vmstat", "vmstat.", "cpu.", "cpu.a/b", "psi.memory", "psi..x", "thp.", "cgroup:a/b",
     "cgroup:/../x", "unit:a/b", "arm.p", "arm.p.fault_ns.p", "arm.p.fault_ns.p100",
     "arm.p.fault_ns.x", "cmd:", "other", "",
     "thp.../../x"],
)  # fmt: skip
def test_what_is_no_source(text: str) -> None:
    with pytest.raises(click.UsageError):
        parse_source(text)


@pytest.mark.parametrize(
    ("text", "level", "counts", "averaged"),
    [
        ("vmstat.nr_free", True, False, False), ("vmstat.pgnr_x", False, True, False),
        ("cpu.busy", False, True, False),
        ("psi.cpu.some.total", False, True, False), ("psi.cpu.some.avg10", True, False, True),
        ("thp.stats/nr_anon", True, False, False), ("thp.nr_x/split", False, True, False),
        ("cgroup:/a/memory.current", True, False, False),
        ("cgroup:/a/memory.stat:anon", True, False, False),
        ("cgroup:/a/memory.stat:pgfault", True, True, False),
        ("cgroup:/a/memory.pressure:some.avg60", True, False, True),
        ("cgroup:/a/x:some.avg60", True, False, False),
        ("unit:memory.pressure:some.avg60", True, False, True),
        ("unit:memory.pressure:some.total", True, True, False),
        ("unit:memory.stat:avg10", True, False, False),
        ("arm.p.n", False, True, False), ("arm.units", True, False, False),
        ("cmd:x", True, False, False), ("cmd:x/s", True, True, False),
    ],
)  # fmt: skip
def test_levels_and_counters(text: str, level: bool, counts: bool, averaged: bool) -> None:
    found = parse_source(text)
    assert (found.level, found.counts, found.averaged) == (level, counts, averaged)
    assert found.momentary == (level and not found.rate)
    metric = Metric.parse(f"vmstat.nr_a / {text}") if not text.startswith(("cmd", "unit")) else None
    if metric:
        assert (metric.averaged, metric.momentary) == (averaged, found.momentary)


@pytest.mark.parametrize(
    ("file", "key", "rises"),
    [
        ("memory.stat", "pgfault", True), ("memory.numa_stat", "workingset_x.N0", True),
        ("memory.stat", "thp_fault_alloc", True), ("memory.stat", "zswpout", True),
        ("memory.stat", "zswapped", False), ("memory.stat", "file", False),
        ("memory.events", "oom", True), ("memory.events.local", "low", True),
        ("cgroup.events", "populated", False), ("cpu.stat", "usage_usec", True),
        ("cpu.stat.local", "throttled_usec", True), ("io.stat", "8:0.rbytes", True),
        ("memory.pressure", "some.total", True), ("memory.pressure", "some.avg10", False),
        ("xmemory.stat", "pgfault", False),
    ],
)  # fmt: skip
def test_what_only_rises(file: str, key: str, rises: bool) -> None:
    assert only_rises(file, key) == rises


def test_cpu_time_of_the_host(tree: FakeTree) -> None:
    """CPU time of the host is in seconds; time in which CPUs wait, or in which another guest has
    them, is not included.
    """
    tree.put("/proc/stat", "cpu  100 200 300 9000 50 1 2 70 40 30\ncpu0 1 1 1 1 1 1 1 1 1 1")
    hertz = os.sysconf("SC_CLK_TCK")
    metric = Metric.parse("cpu.busy/s / cpu.steal/s")
    first = Reader(tree, metric.sources(), {}).read(0.0)
    assert first.host == pytest.approx({"cpu.busy": 603 / hertz, "cpu.steal": 70 / hertz})
    tree.put("/proc/stat", "cpu  150 200 300 9900 0 1 2 80")
    second = Reader(tree, metric.sources(), {}).read(2.0)
    assert metric.over([first, second], "") == pytest.approx(5)
    wrong = raised(lambda: Reader(tree, [parse_source("cpu.busi/s")], {}).read(0.0))
    assert (wrong.exit_code, wrong.next_step) == (Exit.USAGE, "did you mean busy?")


def window(*values: float, key: str = "vmstat.nr_a", step: float = 2.0) -> list[Sample]:
    """Return samples, a fixed number of seconds apart."""
    return [Sample(at * step, {key: value}, {}) for at, value in enumerate(values)]


def test_numbers_over_a_window() -> None:
    level, rate = Metric.parse("vmstat.nr_a"), Metric.parse("vmstat.nr_a/s")
    assert level.over(window(1, 2, 6), "") == 3
    assert rate.over(window(1, 2, 6), "") == 1.25
    assert rate.over(window(6, 2, 1), "") == -1.25  # a level may fall
    assert Metric.parse("vmstat.a").over(window(1, 4, key="vmstat.a"), "") == 3
    for metric in (rate, Metric.parse("vmstat.a")):
        for samples in ([], window(5, key=metric.top.text)):
            assert metric.over(samples, "") is None
    assert level.over([], "") is None
    assert level.over(window(7), "") == 7
    assert rate.over(window(1, 5, step=0.0), "") is None


def test_ratios() -> None:
    metric = Metric.parse("vmstat.nr_a / vmstat.nr_b")
    assert [each.text for each in metric.sources()] == ["vmstat.nr_a", "vmstat.nr_b"]
    for top, bottom, value in ((6.0, 2.0, 3), (6.0, 0.0, None), (0.0, 2.0, 0)):
        sample = Sample(0.0, {"vmstat.nr_a": top, "vmstat.nr_b": bottom}, {})
        assert metric.over([sample], "") == value
    with pytest.raises(click.UsageError):
        Metric.parse("unit:memory.current / vmstat.nr_b")
    both = [metric, Metric.parse("vmstat.nr_b/s"), Metric.parse("arm.p.fault_ns lower")]
    assert [each.text for each in all_sources(both)] == ["vmstat.nr_a", "vmstat.nr_b",
                                                         "arm.p.fault_ns"]  # fmt: skip
    assert (wants_times(both, []), wants_times(both[:2], [])) == (True, False)


@pytest.mark.parametrize(
    ("of", "value"), [("p1", 1), ("p10", 1), ("p11", 2), ("p50", 5), ("p51", 6), ("p99", 10),
                      ("max", 10), ("spread", 3.02765)]
)  # fmt: skip
def test_percentiles_by_rank(of: str, value: float) -> None:
    assert of_samples([float(n) for n in (3, 1, 2, 10, 9, 8, 4, 5, 6, 7)], of) == pytest.approx(
        value
    )


def test_samples_that_are_too_few() -> None:
    most = Metric.parse("max(vmstat.nr_a)")
    assert most.over(window(5), "") is None
    assert most.over(window(5, 9), "") == 9
    rates = Metric.parse("max(vmstat.a/s)")
    assert rates.over(window(0, 4, key="vmstat.a"), "") is None
    assert rates.over(window(0, 4, 10, key="vmstat.a"), "") == 3
    assert rates.over(window(0, 4, 3, key="vmstat.a"), "") is None


def test_numbers_of_arms() -> None:
    def arms(**numbers: float) -> dict[str, dict[str, float]]:
        return {"control": numbers}

    units = parse_source("arm.units")
    samples = [Sample(0.0, {}, arms(units=3)), Sample(1.0, {}, arms(units=7))]
    assert (units.over(samples, "control"), units.over([], "control")) == (7, None)
    count = parse_source("arm.p.n")
    samples = [Sample(0.0, {}, arms()), Sample(2.0, {}, arms(**{"p.n": 6.0}))]
    assert count.over(samples, "control") == 6
    times = parse_source("arm.p.fault_ns.p50")
    first = {"p.fault_ns_log2_9": 4.0}
    samples = [
        Sample(0.0, {}, arms(**first)),
        Sample(1.0, {}, arms(**first, **{"p.fault_ns_log2_10": 2.0})),
    ]
    assert times.over(samples, "control") == 1536
    assert times.over(samples[::-1], "control") is None
    once = [Sample(0.0, {}, arms(**{"p.fault_ns_log2_9": 1.0})), Sample(1.0, {}, arms())]
    assert times.over(once, "control") is None
    mean = parse_source("arm.p.fault_ns")
    sums = [each._replace(arms=arms(**each.arms["control"], **{"p.fault_ns": spent}))
            for each, spent in zip(samples, (500.0, 2900.0), strict=True)]  # fmt: skip
    assert (mean.over(sums, "control"), mean.over(samples, "control")) == (1200, 1536)
    assert times.over([], "control") is None
    unit = parse_source("unit:memory.current")
    assert unit.value(Sample(0.0, {}, {}, {"/a": {unit.text: 5.0}}), "/a") == 5
    assert isnan(unit.value(Sample(0.0, {}, {}, {"/a": {}}), "/a"))
    assert isnan(unit.value(Sample(0.0, {}, {}), "/b"))


def test_what_is_read_at_once(tree: FakeTree) -> None:
    tree.make_cgroup("/a")
    tree.put("/sys/fs/cgroup/a/memory.stat", "anon 5\nfile 6")
    tree.put("/sys/fs/cgroup/a/memory.current", "7")
    tree.put("/proc/vmstat", "nr_free 3\nallocstall_dma 1\nallocstall_normal 2")
    tree.put(f"{COUNTERS}/anon_order/stats", "n 5\nm 0")
    tree.put("/sys/kernel/debug/mmpolicy/experiment/units", "control 4")
    texts = ["vmstat.nr_free", "vmstat.allocstall", "cgroup:/a/memory.stat:file"]
    texts += ["arm.anon_order.n", "arm.units", "unit:memory.stat:anon", "unit:memory.x"]
    texts += ["unit:memory.current"]
    reader = Reader(tree, map(parse_source, texts), {"control": "default"})
    found = reader.read(9.0, {"cmd:x": 1.0}, ["/a", "/gone"])
    assert found.t == 9
    assert found.host == {"vmstat.nr_free": 3, "vmstat.allocstall": 3,
                          "cgroup:/a/memory.stat:file": 6, "cmd:x": 1}  # fmt: skip
    assert found.arms == {"control": {"anon_order.n": 5, "units": 4}}
    assert found.units == {"/a": {"unit:memory.stat:anon": 5, "unit:memory.current": 7},
                           "/gone": {}}  # fmt: skip
    units = Reader(tree, map(parse_source, texts[4:5]), {"treatment": "default"})
    assert units.read(0.0).arms == {"treatment": {"units": 0}}
    tree.remove("/sys/kernel/debug/mmpolicy/experiment/units")
    assert reader.read(0.0).arms == {"control": {"anon_order.n": 5, "units": 0}}
    assert Reader(tree, map(parse_source, texts[:3]), {"control": "x"}).read(0.0).arms == {}
    assert Reader(tree, map(parse_source, texts[:3]), {}).read(0.0, None, ["/a"]).units == {}


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("vmstat.nr_fre", "/proc/vmstat has no number 'nr_fre'", "did you mean nr_free?"),
        ("vmstat.zzz", "/proc/vmstat has no number 'zzz'", "look into /proc/vmstat"),
        ("cgroup:/ab/memory.current", "no cgroup '/ab' in ", "did you mean /a?"),
        (
            "cgroup:/zzzzz/memory.current",
            ("no cgroup '/zzzzz' in "),
            "mmpolicy thp --cgroup /",
        ),
        (
            "cgroup:/a/memory.no",
            "there is no file 'memory.no' in ",
            "look into /sys/fs/cgroup/a for",
        ),
    ],
)
def test_what_is_not_there(tree: FakeTree, text: str, said: str, hint: str) -> None:
    tree.make_cgroup("/a")
    tree.put("/proc/vmstat", "nr_free 3")
    told = raised(Reader(tree, [parse_source(text)], {}).read, 0.0)
    assert said in told.message
    assert told.next_step.startswith(hint)
    assert told.exit_code == Exit.USAGE


# Guards


@pytest.mark.parametrize(
    ("sign", "below", "at", "above"),
    [("<", True, False, False), ("<=", True, True, False), (">", False, False, True),
     (">=", False, True, True)],
)  # fmt: skip
def test_signs_of_guards(sign: str, below: bool, at: bool, above: bool) -> None:
    guard = Guard.parse(f"vmstat.nr_a{sign}5")
    assert [guard.holds(value) for value in (4.9, 5, 5.1)] == [below, at, above]
    assert (guard.metric.name, guard.limit, guard.momentary) == ("vmstat.nr_a", 5, True)


@pytest.mark.parametrize(
    "text",
    ["vmstat.nr_a", "vmstat.nr_a < x", "vmstat.nr_a < nan", "vmstat.nr_a < inf", "vmstat.nr_a = 5",
     "< 5", "cmd:x < 5", "unit:memory.current < 5"],
)  # fmt: skip
def test_what_is_no_guard(text: str) -> None:
    with pytest.raises(click.UsageError):
        Guard.parse(text)


def test_what_guards_look_at() -> None:
    level, rate = Guard.parse("vmstat.nr_a < 5"), Guard.parse("vmstat.a/s < 5")
    assert level.values(deque(window(9, 9, 1))) == [(1, "")]
    assert rate.values(deque(window(0, 8, key="vmstat.a"))) == [(4, "")]
    assert rate.values(deque(window(0, key="vmstat.a"))) == []
    arms = Guard.parse("arm.p.n/s < 5")
    assert (arms.of_arms, level.of_arms, Guard.parse("arm.units < 9").of_arms) == (
        True,
        False,
        True,
    )
    samples = [Sample(float(t), {}, {"control": {"p.n": 2.0 * t}, "treatment": {"p.n": 9.0 * t}})
               for t in range(2)]  # fmt: skip
    assert arms.values(deque(samples)) == [(2, "control"), (9, "treatment")]
    watch = Watch([arms])
    assert watch.look(samples[0]) is None
    assert watch.look(samples[1]) == (
        "guard 'arm.p.n/s < 5' is violated: the value is 9",
        "treatment",
    )
    assert watch.last == {"arm.p.n/s < 5": 9}


def test_the_window_of_guards_is_a_second() -> None:
    watch = Watch([Guard.parse("vmstat.a < 1e9")])
    for at in range(0, 30, 4):
        watch.look(Sample(at / 10, {"vmstat.a": 1.0 * at}, {}))
    assert [sample.t for sample in watch.window] == pytest.approx([1.6, 2.0, 2.4, 2.8])
    watch.look(Sample(9.0, {"vmstat.a": 90.0}, {}))
    assert [sample.t for sample in watch.window] == [2.8, 9]


@pytest.mark.parametrize(
    ("times", "kept"),
    [([0], [0]), ([0, 5], [0, 5]), ([0, 1, 2], [1, 2]), ([0, 1, 1.99], [0, 1, 1.99]),
     ([0, 1, 1.5, 2], [1, 1.5, 2]), ([0, 0.5, 1, 9], [1, 9])],
)  # fmt: skip
def test_what_is_left_of_the_window_covers_a_second(times: list[float], kept: list[float]) -> None:
    watch = Watch([])
    for t in times:
        assert watch.look(Sample(t, {}, {})) is None
    assert [sample.t for sample in watch.window] == kept


def test_decisions_are_what_is_not_left_to_the_kernel() -> None:
    names = ("stock", "raised", "fault_ns", "cost_x", "shadow_y", "default_x")
    assert [_is_decision(name) for name in names] == [False, True, False, False, False, True]
    before = {"decisions": {"control": 3}}
    now = {"decisions": {"control": 5, "treatment": 2}, "timed": {"control": 4}}
    assert risen(before, now) == {"decisions": {"control": 2, "treatment": 2},
                                  "timed": {"control": 4}}  # fmt: skip


def test_what_the_policies_of_each_arm_decided(tree: FakeTree) -> None:
    """Decisions of each arm are counted for the points that it sets: in its profile, or in default
    for points of the host.
    """
    order, bulk = choice("default", "anon_order"), choice("default", "bulk")
    settings = {
        "control": {order: "stock", bulk: "stock"},
        "treatment": {order: "fixed", bulk: "fixed", choice("default", "compact"): "stock",
                      Setting("default", "thp_gfp", "fixed", "x"): "3"},
    }  # fmt: skip
    base = "/sys/kernel/debug/mmpolicy"
    tree.remove(base)
    assert Decisions(tree, settings, True).read() == {}
    counted = "raised 5\nstock 7\nfault_ns 9\ncost_x 1\nshadow_y 1\nlowered 2\n"
    timed = "fault_ns_log2_10_1 6\nfault_ns_log2_9_0 2\nfault_missed 3"
    tree.put(f"{base}/ab-treatment/anon_order/stats", counted + timed)
    tree.put(f"{base}/ab-treatment/compact/stats", "n 100")
    tree.put(f"{base}/default/bulk/stats", "n 40\nstock 1")
    tree.put(f"{base}/default/thp_gfp/stats", "n 1000")
    tree.put(f"{base}/ab-control/anon_order/stats", "n 3")
    decided = {"decisions": {"treatment": 47}}
    assert Decisions(tree, settings, False).read() == decided
    assert Decisions(tree, settings, True).read() == decided | {
        "timed": {"control": 0, "treatment": 8}, "missed": {"control": 0, "treatment": 3},
    }  # fmt: skip
    assert Decisions(tree, {"control": {}}, False).read() == {"decisions": {}}


def test_an_answer_by_margins_alone() -> None:
    """A run that has margins alone is answered if each metric is shown; one without a direction
    cannot be.
    """
    pairs = [(100.0, 100.0 + (-1) ** n) for n in range(60)]
    lower, plain = Metric.parse("a=vmstat.nr_a lower"), Metric.parse("b=vmstat.nr_b")
    both = {"a": pairs, "b": pairs}
    assert answered([lower], both, 5.0)
    assert not answered([lower], both, 0.0)
    assert not answered([lower], both, 0.1)
    assert not answered([lower, plain], both, 5.0)
    assert not answered([lower], {"a": []}, 5.0)
    guard = Metric.parse("a=vmstat.nr_a lower guard 5%")
    assert answered([guard], both, 0.0)
    found = {"a": [(100.0, 50.0 + n % 2) for n in range(60)], "b": both["b"]}
    assert answered([lower, plain], found, 0.0)


# Units


def test_the_hash_of_units() -> None:
    """The hash of units is siphash_2u64(): the reference vector of 16 bytes, 0 to 15."""
    key = (0x0706050403020100, 0x0F0E0D0C0B0A0908)
    assert siphash(0x0706050403020100, 0x0F0E0D0C0B0A0908, key) == 0x3F2ACC7F57C29BDB


def test_shares_of_units() -> None:
    units = {str(n): n for n in range(1, 2001)}
    for percent in (0, 10, 50, 90, 100):
        treated = sum(arm == "treatment" for arm in arms_of(units, 7, percent).values())
        assert treated == pytest.approx(20 * percent, abs=60 if 0 < percent < 100 else 0)
    few = {unit for unit, arm in arms_of(units, 7, 10).items() if arm == "treatment"}
    many = {unit for unit, arm in arms_of(units, 7, 90).items() if arm == "treatment"}
    assert few < many


@pytest.mark.parametrize(("number", "percent"), [(2, 50), (3, 50), (10, 50), (10, 90), (4, 10)])
def test_seeds_that_balance(number: int, percent: int) -> None:
    units = {str(n): n * 7919 for n in range(number)}
    for seed in range(20):
        arms = [*arms_of(units, balanced(units, seed, percent), percent).values()]
        assert 0 < arms.count("treatment") < number
        assert abs(arms.count("treatment") - number * percent / 100) < 1
    assert len({balanced(units, seed, percent) for seed in range(20)}) > 10
    assert balanced({}, 5) >= 0


def test_arms_are_those_of_the_kernel() -> None:
    """Arms are those of the kernel: a keyed hash of a cgroup's id, modulo 10,000, below the
    percentage times 100.
    """
    units = {str(n): n for n in (*range(1, 600), 12962, 10617)}  # at 10 and 50 %, the last two
    for percent in (10, 50):
        expected = {
            name: ("control", "treatment")[
                siphash(number, 0, (7, 0x6D6D706F6C696379)) % 10_000 < 100 * percent
            ]
            for name, number in units.items()
        }
        assert arms_of(units, 7, percent) == expected
        assert percent == 10 or arms_of(units, 7) == expected
        assert expected["12962" if percent == 10 else "10617"] == "control"


@pytest.mark.parametrize(
    ("number", "percent"), [(2, 50), (7, 50), (10, 90), (11, 10), (300, 90), (1200, 50)]
)
def test_the_seed_is_the_first_good_one_of_a_random_row(number: int, percent: int) -> None:
    """The seed is the first good one of a random row, or the best one that 5,000 hashes find."""
    units = {str(n): n * 7919 for n in range(number)}

    def off(seed: int) -> float:
        arms = [*arms_of(units, seed, percent).values()]
        treated = arms.count("treatment")
        return abs(treated - number * percent / 100) if 0 < treated < number else number

    for seed in range(4 if number < 100 else 1):
        rng = random.Random(seed)
        row = [rng.randrange(2**63) for _ in range(min(5000 // number, 40))]
        good = [each for each in row if off(each) < 1]
        assert balanced(units, seed, percent) == (good or [min(row, key=off)])[0]
        assert percent != 50 or balanced(units, seed) == balanced(units, seed, 50)
    for few in ({}, {"a": 1}):
        assert balanced(few, 5) == random.Random(5).randrange(2**63)


def test_who_is_a_unit(tree: FakeTree) -> None:
    for path, procs in (("/a", "1"), ("/a/b", "2"), ("/a/c", ""), ("/ab", "3"), ("/d", "4")):
        tree.make_cgroup(path)
        tree.put(f"/sys/fs/cgroup{path}/cgroup.procs", procs)
    tree.put("/sys/fs/cgroup/cgroup.procs", "9")
    assert set(units_of(tree, "/a")) == {"/a", "/a/b"}
    assert set(units_of(tree, "/a", ["/a/b"])) == {"/a"}
    assert set(units_of(tree, "/", ["/d"])) == {"/", "/a", "/a/b", "/ab"}
    assert units_of(tree, "/d")["/d"] == tree.inode("/sys/fs/cgroup", "d")
    tree.remove("/sys/fs/cgroup/d/cgroup.procs")
    assert units_of(tree, "/d") == {}


def test_two_units_are_enough(tree: FakeTree) -> None:
    for name in ("a", "b"):
        tree.make_cgroup(f"/s/{name}")
        tree.put(f"/sys/fs/cgroup/s/{name}/cgroup.procs", "1")
        tree.put(f"/sys/fs/cgroup/s/{name}/memory.current", "5")
    own = Metric.parse("unit:memory.current")
    assert list(check_units(scope_of(tree, "/s"), [own], "cgroup")) == []


def test_too_few_units(tree: FakeTree) -> None:
    for number in range(20):
        tree.make_cgroup(f"/s/{number}")
        tree.put(f"/sys/fs/cgroup/s/{number}/cgroup.procs", str(number))
        if number < 19:
            tree.put(f"/sys/fs/cgroup/s/{number}/memory.current", "5")
    scope = scope_of(tree, "/s")
    own, arm = Metric.parse("unit:memory.current"), Metric.parse("arm.anon_order.n")
    assert list(check_units(scope, [own], "cgroup")) == [
        (
            "metric 'unit:memory.current': 1 of 20 cgroups do not have this number, and are "
            "left out of the metric"
        )
    ]
    assert list(check_units(scope, [arm], "cgroup")) == []
    assert list(check_units(scope, [arm], "process")) == []
    with pytest.raises(click.UsageError):
        list(check_units(scope, [own], "process"))
    tree.remove("/sys/fs/cgroup/s/19")
    (warning,) = check_units(scope, [own, arm], "cgroup")
    assert warning.startswith("with only 19 cgroups, a counter of an arm depends mostly")
    assert list(check_units(scope, [own], "cgroup")) == []
    for number in range(1, 19):
        tree.remove(f"/sys/fs/cgroup/s/{number}/memory.current")
    told = raised(lambda: list(check_units(scope, [own], "cgroup")))
    assert (
        told.message
        == "metric 'unit:memory.current': only 1 of 19 cgroups have this number in the file"
    )
    told = raised(lambda: list(check_units(scope_of(tree, "/s/0"), [arm], "cgroup")))
    assert told.message.endswith("at or below /s/0 there are 1")


@pytest.mark.parametrize(
    ("text", "design", "said"),
    [
        ("vmstat.pgfault", "switchback", ""), ("cmd:x", "switchback", ""),
        ("cmd:x/s", "switchback", ""), ("arm.p.n", "split", ""), ("arm.units", "split", ""),
        ("arm.p.fault_ns", "split", ""), ("unit:memory.current", "split", ""),
        ("unit:memory.stat:pgfault/s", "split", ""), ("cgroup:/a/cpu.stat:x/s", "switchback", ""),
        ("cgroup:/a/memory.current", "switchback", ""),
        ("psi.memory.full.avg10", "switchback",
         "is a moving average, which includes earlier blocks: use "
         "psi.memory.full.total/s; only a guard may use the average"),
        ("unit:memory.pressure:some.avg60", "split",
         "is a moving average, which includes earlier blocks: use "
         "unit:memory.pressure:some.total/s; only a guard may use the average"),
        ("cgroup:/a/cpu.stat:x", "switchback",
         "is a counter, which only increases, so its mean says nothing: use its rate, "
         "cgroup:/a/cpu.stat:x/s"),
        ("unit:cpu.stat:x", "split",
         "is a counter, which only increases, so its mean says nothing: use its rate, "
         "unit:cpu.stat:x/s"),
        ("unit:memory.current", "switchback",
         "is for --design split, which compares units: use cgroup:PATH/FILE:KEY, or give "
         "--design split with --unit cgroup"),
        *((each, "split", (
            "is measured on the whole host, where --design split runs both arms at once: use "
            "arm.POINT.COUNTER or unit:FILE:KEY as the metric, or --design switchback"
        ))
          for each in ("vmstat.pgfault", "cmd:x", "cgroup:/a/memory.current")),
    ],
)  # fmt: skip
def test_what_would_not_mean_what_it_seems_to(text: str, design: str, said: str) -> None:
    source = parse_source(text)
    if not said:
        _check_meaning(source, design)
        return
    with pytest.raises(click.UsageError) as refused:
        _check_meaning(source, design)
    assert refused.value.message == f"metric '{source.text}' {said}"


@pytest.mark.parametrize(
    ("guards", "looks", "faults", "said"),
    [
        ([], 1, 0, ""),
        (["vmstat.nr_a < 8"], 1, 0, ""),
        (["vmstat.nr_a < 7"], 1, 0, "guard 'vmstat.nr_a < 7' is violated: the value is 7"),
        (["vmstat.nr_a < 8", "vmstat.a/s < 11"], 6, 2, ""),
        (["vmstat.a/s < 10"], 2, 3, "guard 'vmstat.a/s < 10' is violated: the value is 15"),
        (["arm.p.n/s < 1"], 1, 0, ""),
    ],
)
def test_guards_are_looked_at_before_a_run(
    tree: FakeTree, guards: list[str], looks: int, faults: int, said: str
) -> None:
    """Guards are checked before a run: levels once, rates for a second."""

    class Timed:
        """A host whose time passes as told."""

        def __init__(self) -> None:
            self.tree, self.now, self.looks, self.faults = tree, 100.0, 1, 0
            tree.put("/proc/vmstat", "nr_a 7\na 0")

        def clock(self) -> float:
            """Return the time."""
            return self.now

        def sleep(self, seconds: float) -> None:
            """Let time pass, with some faults."""
            assert seconds == 0.2
            self.now, self.looks = round(self.now + seconds, 6), self.looks + 1
            self.faults += faults
            tree.put("/proc/vmstat", f"nr_a 7\na {self.faults}")

    host: Any = Timed()
    parsed = [Guard.parse(text) for text in guards]
    if said:
        told = raised(first_look, host, parsed)
        assert told.message == f"{said}, before the run has begun; nothing was changed"
    else:
        first_look(host, parsed)
    assert host.looks == looks


# Length


def options(**given: Any) -> RunOptions:
    """Return options of `ab run`, with defaults for all but the given ones."""
    usual: dict[str, Any] = dict.fromkeys(field.name for field in fields(RunOptions))
    usual |= {"design": "switchback", "block": 30.0, "washout": 5.0, "interval": 1.0, "seed": 1,
              "stop": "planned"}  # fmt: skip
    return RunOptions(**usual | given)


@pytest.mark.parametrize(
    ("given", "metrics", "aa", "pairs"),
    [
        ({}, 1, 8, 12), ({}, 2, 9, 12), ({"pairs": 6}, 1, 8, 6), ({"pairs": 7}, 2, 9, 7),
        ({"aa": 0}, 1, 0, 12), ({"aa": 3, "pairs": 9}, 1, 3, 9), ({"detect": 3.0}, 1, 0, 200),
        ({"stop": "anytime"}, 1, 0, 200), ({"detect": 3.0, "aa": 8, "pairs": 40}, 1, 8, 40),
        ({"rare": 5.0}, 1, 8, 59), ({"rare": 50.0}, 1, 8, 12),
        ({"rare": 20.0, "pairs": 14}, 1, 8, 14),
        ({"duration": 840.0}, 1, 8, 6), ({"duration": 899.0}, 1, 8, 6),
        ({"duration": 900.0}, 1, 8, 7), ({"design": "split", "duration": 420.0}, 1, 8, 6),
        ({"design": "split", "duration": 780.0, "saturation": (10, 90)}, 1, 8, 6),
    ],
)  # fmt: skip
def test_lengths(given: dict[str, Any], metrics: int, aa: int, pairs: int) -> None:
    asked = options(**given)
    design = Design(asked.design, asked.block, asked.washout, asked.interval, 1)
    texts = [f"m{n}=vmstat.nr_a" for n in range(metrics)]
    found = length_of(asked, design, [Metric.parse(text) for text in texts])
    assert (found.aa_pairs, found.pairs) == (aa, pairs)
    assert (found.detect, found.anytime) == (given.get("detect", 0.0), "stop" in given)
    assert found.saturation == given.get("saturation")


@pytest.mark.parametrize(
    ("given", "metrics", "said"),
    [
        (
            {"pairs": 5},
            1,
            (
                "5 pairs are too few to show an effect with 1 metric: the run needs 6 or more, "
                "which take 14:00 with"
            ),
        ),
        (
            {"pairs": 6},
            2,
            "6 pairs are too few to show an effect with 2 metrics: the run needs 7 or more",
        ),
        ({"duration": 839.0}, 1, "5 pairs are too few"),
        ({"duration": 1.0}, 1, "0 pairs are too few"),
        (
            {"pairs": 13, "rare": 20.0},
            1,
            "13 pairs may miss an event that happens in 20 % of the bl",
        ),
        ({"pairs": 9, "duration": 9.0}, 1, "--pairs and --duration both set the length"),
        ({"stop": "anytime", "detect": 1.0}, 1, "--detect and --stop anytime both set the"),
        ({"rare": 5.0, "detect": 1.0}, 1, "--detect-rare sets the length"),
        ({"rare": 5.0, "stop": "anytime"}, 1, "--detect-rare sets the length"),
    ],
)
def test_lengths_that_show_nothing(given: dict[str, Any], metrics: int, said: str) -> None:
    texts = [f"m{n}=vmstat.nr_a" for n in range(metrics)]
    design = Design("switchback", 30, 5, 1, 1)
    with pytest.raises(click.UsageError) as refused:
        length_of(options(**given), design, [Metric.parse(text) for text in texts])
    assert refused.value.message.startswith(said)


def test_blocks_and_rules() -> None:
    split, turns = Design("split", 30, 5, 1, 1), Design("switchback", 30, 5, 1, 1)
    plain, sated = Length(8, 12), Length(8, 12, saturation=(10, 90))
    assert [plain.blocks(split), plain.blocks(turns), plain.blocks(turns, 3)] == [20, 40, 22]
    assert [sated.blocks(split), sated.blocks(split, 3)] == [44, 17]
    assert [each.way for each in (plain, Length(0, 9, 3.0), Length(0, 9, 0.0, True))] == [
        "", "size", "anytime",
    ]  # fmt: skip
    fixed = "12 pairs after 8 of A/A, fixed beforehand"
    assert plain.rule() == f"{fixed}; more if some pairs get no value, at most 48"
    assert Length(8, 12, stretches=False).rule() == fixed
    assert [each.most for each in (plain, Length(0, 9, 3.0), Length(0, 9, 0.0, True))] == [48, 9, 9]
    more = "then as many pairs of blocks with 10 and 90 % of the units treated"
    assert sated.rule() == f"{plain.rule()}; {more}"
    assert Length(0, 9, 3.0).rule().startswith("as many pairs as find 3 % with 80 % probability")
    assert Length(0, 9, 3.0).rule().endswith("whatever their signs, at most 9")
    assert Length(0, 9, 0.0, True).rule().endswith("is clear (anytime-valid), at most 9 pairs")


def test_designs(tree: FakeTree) -> None:
    class Known:
        """A host of which only the files matter."""

    host: Any = Known()
    host.tree = tree
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"washout": 30.0}, "--washout has to be shorter"),
        ({"saturation": (1, 2)}, "--exposure is for --design split"),
    ]
    for given, said in wrong:
        with pytest.raises(click.UsageError) as refused:
            design_of(host, options(**given))
        assert refused.value.message.startswith(said)
    assert design_of(host, options(washout=29.0, seed=0)).seed == 0
    seeds = {design_of(host, options(seed=None)).seed for _ in range(5)}
    assert len(seeds) == 5
    for control, treatment, kind in (
        ("default", None, "split"), ("default", "anon_order=fixed", "split"),
        ("default", "hugepages-64kB/enabled=always", "switchback"),
        ("vm/min_free_kbytes=9", "default", "switchback"), ("default", "web", "split"),
    ):  # fmt: skip
        assert usual_design(host, {"control": control, "treatment": treatment}) == kind


def test_arms(tree: FakeTree) -> None:
    control, state = Control(tree), read_state(tree)
    order, most = choice("default", "anon_order"), "max_order"
    assert settings_of_arm(control, state, "stock") == {}
    assert settings_of_arm(control, state, "default")[order] == "stock"
    assert settings_of_arm(control, state, "anon_order=fixed,max_order=3,bulk=fixed") == {
        order: "fixed", Setting("default", "anon_order", "fixed", most): "3",
        choice("default", "bulk"): "fixed",
    }  # fmt: skip
    for text in ("anon_order=", "anon_order=fixed,max_order"):
        with pytest.raises(click.UsageError):
            settings_of_arm(control, state, text)
    for text in ("none", "=3", "anon_order=no", "nothing=3", "anon_order=fixed,no=3"):
        assert raised(settings_of_arm, control, state, text).exit_code == Exit.USAGE
    knobs = read_knobs(tree)
    rest, own = split_arm(tree, knobs, "anon_order=fixed, hugepages-*/enabled=never")
    assert rest == "anon_order=fixed"
    assert set(own.values()) == {"never"}
    assert len(own) == 2
    assert split_arm(tree, knobs, "vm/min_free_kbytes=7") == ("", {f"{VM}/min_free_kbytes": "7"})


# Identity


def test_digests() -> None:
    """Settings that must be equal change the digest; properties of the host do not."""
    header: dict[str, Any] = dict.fromkeys(EQUAL, 1)
    header |= {arm: {"settings": {}, "given": ""} for arm in ("control", "treatment")}
    first = digest_of(header)
    assert len(first) == 16
    others = [digest_of(header | {name: 2}) for name in EQUAL]
    others += [
        digest_of(header | {arm: {"settings": {"a": "b"}}}) for arm in ("control", "treatment")
    ]
    assert len({first, *others}) == len(EQUAL) + 3
    assert digest_of(header | {"host": 5, "control": {"settings": {}, "given": "x"}}) == first
    known = {"design": "split", "seed": 3} | {arm: {"settings": {"a": "b"}} for arm in ARMS}
    names = ("design", "block_s", "washout_s", "interval_s", "metrics", "margin", "length",
             "detect", "unit", "cgroup_path", "at_switch")  # fmt: skip
    text = json.dumps({**{name: known.get(name) for name in names},
                       **{arm: {"a": "b"} for arm in ARMS}}, sort_keys=True)  # fmt: skip
    assert digest_of(known) == hashlib.sha256(text.encode()).hexdigest()[:16]
    without = {name: value for name, value in header.items() if name != "saturation"}
    assert digest_of(without) == digest_of(header | {"saturation": None}) != first


def test_machines(tree: FakeTree) -> None:
    assert (host_id(tree), seed_here(tree, 7)) == ("", 7)
    tree.put("/etc/machine-id", "abc")
    assert len(host_id(tree)) == 32
    assert seed_here(tree, 7) == seed_here(tree, 7) != seed_here(tree, 8)
    assert 0 <= seed_here(tree, 7) < 2**63
    seen = (host_id(tree), seed_here(tree, 7))
    tree.put("/etc/machine-id", "abd")
    assert host_id(tree) != seen[0]
    assert seed_here(tree, 7) != seen[1]


def test_the_seed_and_the_name_of_a_machine(tree: FakeTree) -> None:
    """The seed and the name of a machine are keyed hashes of its id, as other programs compute
    them.
    """

    def keyed(text: str) -> bytes:
        return hmac.digest(b"abc", b"mmpolicy ab" + text.encode(), "sha256")

    tree.put("/etc/machine-id", "abc")
    assert host_id(tree) == keyed("").hex()[:32]
    assert seed_here(tree, 7) == int.from_bytes(keyed("7")[:8], "little") % 2**63


def test_what_is_told_of_a_host(tree: FakeTree) -> None:
    class Known:
        """A host of which only the files matter."""

        def release(self) -> str:
            """Return the version of its kernel."""
            return "6.12"

    host: Any = Known()
    host.tree = tree
    tree.put("/proc/sys/kernel/random/boot_id", "b")
    bare = {"kernel": "6.12", "machine": os.uname().machine, "cpus": os.cpu_count(),
            "name": os.uname().nodename, "boot": "b", "id": ""}  # fmt: skip
    for path in ("/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system/node"):
        tree.remove(path)
    assert about_host(host, {}) == bare
    tree.put("/proc/cpuinfo", "model name\t: A CPU")
    tree.put("/proc/meminfo", "MemTotal: 3 kB")
    for name in ("node0/x", "node12/x", "xnode3/x", "node/x", "power/x"):
        tree.put(f"/sys/devices/system/node/{name}", "")
    more = {"cpu": "A CPU", "memory_bytes": 3072, "nodes": 2, "labels": {"a": "b"}}
    assert about_host(host, {"a": "b"}) == bare | more


class Kept:
    """A tree of which only the stored files matter."""

    def __init__(self, *, there: bool = True, full: bool = False) -> None:
        self.there, self.full = there, full
        self.kept: list[Any] = []

    def keep(self, path: str, text: str, mode: int) -> None:
        """Store a file, if there is room for it."""
        if self.full:
            raise Error("full", Exit.FAILED, "")
        assert (path, mode) == (LIVE, 0o644)
        self.kept.append(json.loads(text))

    def exists(self, path: str) -> bool:
        """Return whether the file exists."""
        assert path == LIVE
        return self.there

    def drop(self, path: str) -> None:
        """Remove it."""
        assert path == LIVE
        self.kept.append("dropped")


def test_where_a_run_is_is_told_once_a_second_and_at_changes() -> None:
    tree: Any = Kept()
    live = Live(tree, {"a": 1})
    told: list[tuple[float, dict[str, Any], bool]] = [
        (0.0, {"left_s": 9.0}, True), (0.9, {"left_s": 8.0, "guards": {"x": 1.0}}, False),
        (1.0, {"left_s": nan}, True), (1.1, {"phase": "aa"}, True), (1.2, {"phase": "aa"}, False),
        (1.3, {"phase": "ab", "left_s": 7.0}, True), (2.2, {"phase": "ab"}, False),
        (2.3, {"phase": "ab"}, True),
    ]  # fmt: skip
    count = 0
    for now, what, written in told:
        live.tell(now, **what)
        count += written
        assert len(tree.kept) == count
    assert tree.kept[0] == {"a": 1, "left_s": 9}
    assert tree.kept[1] == {"a": 1, "left_s": None, "guards": {"x": 1}}
    assert tree.kept[-1] == {"a": 1, "left_s": 7, "guards": {"x": 1}, "phase": "ab"}
    live.end()
    assert tree.kept[-1] == "dropped"
    full: Any = Kept(full=True, there=False)
    other = Live(full, {})
    other.tell(0.0, phase="aa")
    other.end()
    assert full.kept == []


@pytest.mark.parametrize(
    ("phase", "arm", "told"),
    [("aa", "treatment", "control"), ("aa", "", "control"), ("ab", "treatment", "treatment"),
     ("ab", "", "both"), ("saturation", "control", "control")],
)  # fmt: skip
def test_the_place_of_a_block(phase: str, arm: str, told: str) -> None:
    found = place_of(Block(4, phase, 2, arm, 0))
    assert found == {"phase": phase, "pair": 2, "arm": told, "block": 5}


def test_labels_and_roles() -> None:
    assert labels_of(["a=b", "c=d=e"]) == {"a": "b", "c": "d=e"}
    for wrong in ("a", "=b", "a="):
        with pytest.raises(click.UsageError):
            labels_of(["x=y", wrong])
    texts = ["a=vmstat.nr_a lower", "b=vmstat.nr_b lower guard 3%", "c=vmstat.nr_c"]
    found = roles_of([Metric.parse(text) for text in texts], 5.0)
    assert found == {
        "a": {"role": "primary", "better": "lower", "margin": 5.0},
        "b": {"role": "guard", "better": "lower", "margin": 3.0},
        "c": {"role": "primary", "better": None, "margin": 5.0},
    }


# Commands and files


def test_commands_are_run_at_once_and_within_a_time() -> None:
    ticks: list[int] = []
    commands = Commands(60.0, lambda: ticks.append(1))
    assert commands.numbers(["echo x 3", "sleep 0.3; echo 4.5"]) == [3, 4.5]
    assert ticks
    assert commands.numbers([]) == []
    assert commands.run("printf 'a\\nb'") == "a\nb"
    for command, said in (("echo x", "the output of the command 'echo x' does not end in a number"),
                          ("true", "the output of the command 'true' does not end in a number"),
                          ("exit 3", "the command 'exit 3' ended with status 3")):  # fmt: skip
        with pytest.raises(StoppedError) as stopped:
            commands.numbers([command])
        assert (stopped.value.status, stopped.value.reason) == ("failed", said)
    with pytest.raises(StoppedError, match="did not end within 0 s"):
        Commands(0.0, lambda: None).run("sleep 60")


def test_commands_that_there_are_not() -> None:
    check_commands([Metric.parse("cmd:echo 1")], "true")
    check_commands([Metric.parse("cmd:$(x) 1")], None)
    for metrics, at_switch in (
        ([Metric.parse("cmd:no-such-thing 1")], None),
        ([], "no-such-thing"),
    ):
        told = raised(check_commands, metrics, at_switch)
        assert (
            told.message
            == "there is no command 'no-such-thing', which a metric or --at-switch names"
        )


HEADER, SAMPLE, END = '{"kind": "header"}\n', '{"kind": "sample"}\n', '{"kind": "end"}\n'


@pytest.mark.parametrize(
    ("text", "empty"),
    [(HEADER + END, True), (HEADER + SAMPLE + END, False), (HEADER, False), ("", False),
     ("{", False), ("[]\n", False), ("7\n", False)],
)  # fmt: skip
def test_a_file_with_nothing_to_lose(tmp_path: Path, text: str, empty: bool) -> None:
    path = tmp_path / "x"
    assert not outfile.is_empty(path)
    path.write_text(text)
    assert outfile.is_empty(path) == empty
    if empty:
        mask = os.umask(0o022)
        outfile.OutFile(path).close()
        os.umask(mask)
        assert (path.read_text(), path.stat().st_mode & 0o777) == ("", 0o644)
    else:
        told = raised(outfile.OutFile, path)
        assert (told.next_step, path.read_text()) == ("give --out", text)


def test_the_last_line_gets_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last line gets room: earlier lines except the header are dropped; a line without room is
    not started.
    """
    room, write = [20], os.write

    def full(file: int, data: bytes) -> int:
        left = room[0] - os.fstat(file).st_size
        if left <= 0:
            raise OSError(errno.ENOSPC, "")
        return write(file, data[:left])

    monkeypatch.setattr("mmpolicy.ab.run.outfile.os.write", full)
    file = outfile.OutFile(tmp_path / "x")
    for line in ("header\n", "one\n", "two\n"):
        file.write(line)
    assert raised(file.write, "more than\n").exit_code == Exit.FAILED
    assert (tmp_path / "x").read_text() == "header\none\ntwo\n"
    file.write_last("end end\n")
    assert (tmp_path / "x").read_text() == "header\none\nend end\n"
    room[0] = 5
    assert raised(file.write_last, "end\n").exit_code == Exit.FAILED
    assert (tmp_path / "x").read_text() == "header\n"
    file.close()


def test_the_spread_of_samples_is_that_of_numpy() -> None:
    values = [3.0, 1.0, 4.0, 1.0, 5.0]
    assert of_samples(values, "spread") == pytest.approx(np.std(values, ddof=1))
