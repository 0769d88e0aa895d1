# SPDX-License-Identifier: GPL-2.0
"""Values taken from a file of samples, block by block, and refused files."""

from __future__ import annotations

import json
from dataclasses import replace
from math import exp, inf, log, log1p, nan
from typing import Any

import numpy as np
import pytest

from mmpolicy.ab.design import differences
from mmpolicy.ab.metrics import Metric
from mmpolicy.ab.panel import Cell, centred, neighbours, pairs_of, sides, usual
from mmpolicy.ab.report.balance import Balance, balance_of
from mmpolicy.ab.report.carry import Carry, carry_of
from mmpolicy.ab.report.metric_result import MetricResult
from mmpolicy.ab.report.neighbours import Neighbours
from mmpolicy.ab.report.report import OWN, Doubt, Report
from mmpolicy.ab.report.stats import Effect, growth_p, left_in_units, left_over
from mmpolicy.ab.samples import Recording, line_of, parse
from mmpolicy.errors import Error

from .test_ab_report import STOCK, Lines
from .test_ab_report import usual as complete

FAULTS = Metric.parse("vmstat.pgfault/s lower")
LEVEL = Metric.parse("vmstat.nr_mapped lower")
DESIGN = "the header has no valid design, block length, seed or margin"


def recorded(lines: Any) -> Recording:
    """Return the recording of some lines."""
    return parse(lines, "x.jsonl")


def block(number: int, phase: str, pair: int, arm: str, **more: Any) -> dict[str, Any]:
    """Return a block of 4 s."""
    times = {"began": 4.0 * number, "ended": 4.0 * number + 4}
    return {"kind": "block", "number": number, "phase": phase, "pair": pair, "arm": arm,
            **times, **more}  # fmt: skip


def run_of(*blocks: dict[str, Any], **header: Any) -> Recording:
    """Return a run of these blocks, of which number N counts N faults in each of its 2 s."""
    found = Recording({**Lines(**header).records[0], "interval_s": 1})
    for each in blocks:
        number = each["number"]
        for second in range(3):
            host = {"vmstat.pgfault": float(number * second), "vmstat.nr_mapped": float(number)}
            found.add({"kind": "sample", "t": each["began"] + 1 + second, "block": number,
                       "host": host, "arms": {}})  # fmt: skip
        found.add(each)
    return found


# Refused files


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "sample"}, "the first line is not a header of version 1 to 2"),
        ({"version": 3}, "the first line is not a header of version 1 to 2"),
        ({"version": 0}, "the first line is not a header of version 1 to 2"),
        ({"version": 2}, "the identity has no field 'experiment'"),
        ({"block_s": "3"}, "the field 'block_s' of the header has the wrong kind of value: '3'"),
        (
            {"treatment": {"given": 1, "settings": {}}},
            "the header has no valid settings of arm 'treatment'",
        ),
        ({"control": {"given": "x"}}, "the header has no valid settings of arm 'control'"),
        ({"metrics": []}, "the header has no valid metrics"),
        ({"metrics": [1]}, "the header has no valid metrics"),
        ({"guards": [1]}, "the header has no valid metrics"),
        ({"design": "other"}, DESIGN),
        ({"washout_s": 3}, DESIGN),
        ({"washout_s": -1}, DESIGN),
        ({"seed": -1}, DESIGN),
        ({"margin": 100}, DESIGN),
        ({"margin": -1}, DESIGN),
        ({"interval_s": 0}, DESIGN),
        ({"interval_s": 2.9e-6}, DESIGN),
    ],
)
def test_headers_that_are_refused(change: dict[str, Any], said: str) -> None:
    header, *rest = complete(0.0)
    with pytest.raises(Error) as refused:
        recorded([json.dumps(json.loads(header) | change) + "\n", *rest])
    assert refused.value.message == f"x.jsonl, line 1, is not a valid record: {said}"


@pytest.mark.parametrize(
    "change",
    [
        {"washout_s": 0},
        {"seed": 0},
        {"margin": 99.9},
        {"margin": None},
        {"interval_s": 3.1e-6},
        {"interval_s": 3e-6},
    ],
)
def test_headers_at_the_bounds(change: dict[str, Any]) -> None:
    header, *rest = complete(0.0)
    found = recorded([json.dumps(json.loads(header) | change) + "\n", *rest])
    assert len(found.blocks) == 40
    assert found.end["status"] == "done"


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        ("block", {"phase": "no"}, "this block has an unknown phase or arm"),
        ("block", {"arm": "no"}, "this block has an unknown phase or arm"),
        (
            "block",
            {"decisions": {"control": "3"}},
            "'decisions' of a block has the count '3', which is not",
        ),
        (
            "block",
            {"missed": {"control": 3.0}},
            "'missed' of a block has the count 3.0, which is not a whole number",
        ),
        (
            "block",
            {"timed": {"control": True}},
            "'timed' of a block has the count True, which is not a whole number",
        ),
        (
            "block",
            {"units": {"/a": "other"}},
            "this block has units in neither arm: {'/a': 'other'}",
        ),
        (
            "block",
            {"ended": None},
            "the field 'ended' of the block has the wrong kind of value: None",
        ),
        ("sample", {"host": {"x": "1"}}, "'1' is not a number"),
        ("sample", {"arms": {"control": {"x": "1"}}}, "'1' is not a number"),
        ("sample", {"t": None}, "the field 't' of the sample has the wrong kind of value: None"),
        ("end", {"reason": 3}, "the field 'reason' of the end has the wrong kind of value: 3"),
    ],
)
def test_lines_that_are_refused(kind: str, change: dict[str, Any], said: str) -> None:
    lines = complete(0.0)
    number = next(at for at, each in enumerate(lines.records) if each["kind"] == kind)
    lines.records[number] |= change
    with pytest.raises(Error) as refused:
        recorded(lines)
    assert f"x.jsonl, line {number + 1}, is not a valid record: {said}" in refused.value.message


def test_lines_that_nobody_knows_are_passed_over() -> None:
    lines = complete(0.0)
    lines.add("news", text="of a later version")
    assert recorded(lines).pairs(FAULTS, "ab") == recorded(complete(0.0)).pairs(FAULTS, "ab")


def test_what_is_no_number_is_null() -> None:
    assert json.loads(line_of("sample", {"a": [1.0, inf, (nan,)], "b": {"c": -inf}})) == {
        "kind": "sample", "a": [1.0, None, [None]], "b": {"c": None},
    }  # fmt: skip


# Values of blocks


def test_values_of_pairs() -> None:
    found = run_of(
        block(0, "aa", 0, "control"), block(1, "aa", 0, "treatment"),
        block(2, "ab", 0, "treatment"), block(3, "ab", 0, "control"),
        block(4, "ab", 1, "control"), block(5, "ab", 1, "treatment"), block(6, "ab", 2, "control"),
        block(7, "saturation", 0, "treatment"), block(8, "saturation", 0, "control"),
    )  # fmt: skip
    assert found.pairs(FAULTS, "aa") == [(0, 1)]
    assert found.by_pair(FAULTS, "ab") == {0: (3, 2), 1: (4, 5)}
    assert found.by_pair(FAULTS, "saturation") == {0: (8, 7)}
    assert found.firsts() == {0: True, 1: False, 2: False}
    assert found.course(FAULTS) == ([1, 2, 3, 4, 5], [True, False])
    assert found.lost(FAULTS) == {"control": 0, "treatment": 0}
    assert [found.value(FAULTS, 5, "control", part) for part in ("", "first", "second")] == [5] * 3
    assert found.value(LEVEL, 5, "control") == 5
    assert found.value(FAULTS, 99, "control") is None
    assert found.planned == 12
    found.add({"kind": "plan", "pairs": 5})
    assert found.planned == 5


@pytest.mark.parametrize(
    ("missing", "pairs", "lost"),
    [
        ("", 3, (0, 0)),
        ("", 5, (2, 0)),
        ("0t", 3, (1, 1)),
        ("0c", 3, (1, 1)),
        ("0c 1t", 3, (2, 0)),
        ("0t 1t 2c", 3, (3, 1)),
        ("0c 0t", 3, (1, 0)),
        ("0t 1t", 3, (2, 2)),
    ],
)
def test_what_one_arm_loses_more(missing: str, pairs: int, lost: tuple[int, int]) -> None:
    """Blocks that one arm loses more count against it.

    c, t: the block of the control, or treatment, of this pair has no value.
    """
    found = run_of(*(block(2 * pair + turn, "ab", pair, arm) for pair in range(3)
                     for turn, arm in enumerate(("control", "treatment"))))  # fmt: skip
    for each in missing.split():
        window = found.windows[2 * int(each[0]) + (each[1] == "t")]
        window[-1].host["vmstat.pgfault"] = 1e160
    assert found.lost_pairs(FAULTS, pairs) == lost


def test_halves_of_a_block_share_the_sample_in_the_middle() -> None:
    found = run_of(block(0, "ab", 0, "control"))
    for second, faults in enumerate((0.0, 10.0, 70.0)):
        found.windows[0][second].host["vmstat.pgfault"] = faults
    assert [found.value(FAULTS, 0, "", part) for part in ("first", "second")] == [10, 60]


@pytest.mark.parametrize(
    ("value", "kept"), [(0.9e150, True), (-1.1e150, False), (1.1e150, False), (1e150, False)]
)
def test_what_is_too_large_is_no_value(value: float, kept: bool) -> None:
    found = run_of(block(0, "ab", 0, "control"))
    for sample in found.windows[0]:
        sample.host["vmstat.nr_mapped"] = value
    assert (found.value(LEVEL, 0, "control") is not None) == kept


@pytest.mark.parametrize(
    ("length", "off", "kept"),
    [(3, 0.9, True), (3, 1.1, False), (3, -0.9, True), (3, -1.1, False), (30, 2.9, True),
     (30, 3.1, False), (30, -3.1, False)],
)  # fmt: skip
def test_a_clock_that_jumped(length: float, off: float, kept: bool) -> None:
    """A clock that jumped by less than a tenth of a block or a second does no harm; a level does
    not depend on the time.
    """
    found = Recording({**Lines().records[0], "block_s": length})
    for number in range(5):
        span = length - 1 + (off if number == 2 else 0)
        for t in (0.0, span):
            host = {"vmstat.pgfault": 60 * t, "vmstat.nr_mapped": 5.0}
            found.add({"kind": "sample", "t": 100.0 * number + t, "block": number, "host": host,
                       "arms": {}})  # fmt: skip
        found.add(block(number, "ab", number // 2, "treatment" if number % 2 else "control"))
    assert found.usual_s() == length - 1
    assert found.value(LEVEL, 2, "control") == 5
    value = found.value(FAULTS, 2, "control")
    assert value == (pytest.approx(60) if kept else None)
    assert found.lost(FAULTS) == {"control": int(not kept), "treatment": 0}


def test_a_slow_host_is_usual_and_a_clock_never_goes_back() -> None:
    """If most blocks take longer than planned, they are kept; a block in which time goes
    back is not.
    """
    found = Recording(Lines().records[0])
    for number in range(4):
        for t in (0.0, 5.0 if number else 2.0):
            found.add({"kind": "sample", "t": 9.0 * number + t, "block": number,
                       "host": {"vmstat.pgfault": t}, "arms": {}})  # fmt: skip
    assert found.usual_s() == 5
    values = [found.value(FAULTS, number, "control") for number in range(4)]
    assert values == [None, 1, 1, 1]
    found.windows[1].append(found.windows[1][1]._replace(t=13.9))
    assert found.value(FAULTS, 1, "control") is None


def test_seconds_of_each_arm() -> None:
    """The seconds of each arm: A/A is all control, split and saturation are both, and an unfinished
    block counts, too.
    """
    pair = [block(2, "ab", 0, "treatment"), block(3, "ab", 0, "control")]
    found = run_of(block(0, "aa", 0, "control"), block(1, "aa", 0, "treatment"), *pair)
    assert found.exposure() == (12, 4)
    found.add({"kind": "end", "status": "guard", "reason": "", "arm": "treatment", "after_s": 1.5})
    assert found.exposure() == (12, 5.5)
    assert found.stopped_in_treatment
    del found.end["after_s"]
    assert found.exposure() == (12, 7)
    found.end["arm"] = "control"
    assert found.exposure() == (12, 4)
    assert not found.stopped_in_treatment
    found.end |= {"status": "lost", "arm": "treatment"}
    assert not found.stopped_in_treatment
    split = run_of(block(0, "aa", 0, ""), block(1, "ab", 0, ""), design="split")
    assert split.exposure() == (8, 4)
    sated = run_of(block(0, "saturation", 0, "control"), block(1, "saturation", 0, "treatment"))
    assert sated.exposure() == (8, 8)


def test_counts_of_arms() -> None:
    counts = {"control": 3, "treatment": 5}
    found = run_of(
        block(0, "aa", 0, "control", decisions={"control": 50}),
        block(1, "ab", 0, "control", decisions=counts),
        block(2, "ab", 0, "treatment", decisions=counts, timed={"treatment": 1}),
        block(3, "ab", 1, "control", decisions=counts), block(4, "ab", 1, "treatment"),
    )  # fmt: skip
    assert found.counted("decisions") == {"control": 6, "treatment": 5}
    assert found.counted("timed") == {"treatment": 1}
    assert found.counted("missed") == {}


@pytest.mark.parametrize(
    ("settings", "decisions", "idle"),
    [
        ({"anon_order/policy": "fixed"}, 0, ["treatment"]),
        ({"anon_order/policy": "fixed"}, 1, []),
        ({"anon_order/policy": "fixed"}, None, []),
        ({"anon_order/policy": "stock"}, 0, []),
        ({"anon_order/policy": "stock", "compact/policy": "eager"}, 0, ["treatment"]),
        ({"anon_order/fixed/policy": "1"}, 0, []),
        ({"anon_order/shadow": "fixed"}, 0, []),
    ],
)
def test_arms_that_decided_nothing(
    settings: dict[str, str], decisions: int | None, idle: list[str]
) -> None:
    counts = {} if decisions is None else {"control": 0, "treatment": decisions}
    blocks = [block(0, "ab", 0, "treatment", decisions=counts), block(1, "ab", 0, "control")]
    found = run_of(*blocks, treatment={"given": "x", "settings": settings})
    assert found.idle() == idle


@pytest.mark.parametrize(
    ("pairs", "samples", "tested"), [(6, 2, True), (6, 1, False), (5, 3, False)]
)
def test_carry_over_by_one_of_two_signs(pairs: int, samples: int, tested: bool) -> None:
    """Blocks of two samples have no halves; those of one have no rate at all."""
    arms = ["control", "treatment"]
    found = run_of(*(block(2 * pair + at + 1, "ab", pair, arms[at ^ pair % 2])
                     for pair in range(pairs) for at in range(2)))  # fmt: skip
    for window in found.windows.values():
        del window[1 : 2 if samples == 2 else 3 if samples == 1 else 1]
    assert carry_of(found, FAULTS, "ratio", 1).tested == tested


def turns(pairs: int, values: Any, source: str, samples: int = 3) -> Recording:
    """Return a run whose blocks have these values, after one without the treatment that has 5.

    values: by pair, arm and second. The coins are arbitrary.
    """
    coins = np.random.default_rng(2).integers(0, 2, pairs)
    blocks = [block(0, "aa", 0, "control")]
    blocks += [block(2 * pair + at + 1, "ab", pair, ARMS[at ^ int(coins[pair])])
               for pair in range(pairs) for at in range(2)]  # fmt: skip
    found = run_of(*blocks)
    for each in blocks:
        for second, sample in enumerate(found.windows[each["number"]][:samples]):
            value = values(each["pair"], each["arm"], second) if each["phase"] == "ab" else 5.0
            sample.host[source] = value
        del found.windows[each["number"]][samples:]
    return found


ARMS = ("control", "treatment")
LEVELS = np.random.default_rng(3).normal(0, 0.1, (9, 2, 3))


@pytest.mark.parametrize(
    ("scale", "shift", "of"),
    [
        ("ratio", 0.0, np.exp), ("difference", -5.0, lambda level: level),
        ("totals", 0.0, lambda level: np.where(level[:, :, 1:2] < -0.3, 0.0, level + 2)),
        ("totals", 0.0, lambda level: (level + 2) * ([[[1], [1e-3]]] + [[[1], [0]]] * 8)),
    ],
)  # fmt: skip
def test_both_signs_of_carry_over(scale: str, shift: float, of: Any) -> None:
    """Both signs of carry-over are tested, by the values of all blocks in turn and by those of
    their halves.
    """
    levels = of(LEVELS + np.array([0.0, -0.3])[None, :, None] * np.array([0.5, 1, 1.5])) + shift
    found = turns(9, lambda pair, arm, second: float(levels[pair, ARMS.index(arm), second]),
                  "vmstat.nr_mapped")  # fmt: skip
    carried = carry_of(found, LEVEL, scale, 4)
    values, first = found.course(LEVEL)
    y = np.array(values, float)
    y = np.log(y) if scale == "ratio" else y
    share, share_p = left_over(y, np.array(first), 4)
    sides = [levels[:, :, part].mean(axis=2) for part in (slice(0, 2), slice(1, 3))]
    (known, early), (also, late) = (differences(side.tolist()) for side in sides)
    assert known == also == scale
    assert (carried.tested, carried.share, carried.share_p) == (True, share, share_p)
    means = [float(np.mean(each)) for each in (early, late)]
    means = [log1p(max(mean, -0.99)) for mean in means] if scale == "totals" else means
    assert (carried.first, carried.second) == pytest.approx(tuple(means))
    assert carried.halves_p == growth_p(np.array(early), np.array(late), 4)
    other = carry_of(found, LEVEL, "totals" if scale != "totals" else "difference", 4)
    assert (other.first, other.second, other.halves_p) == (0, 0, 1)


def test_blocks_without_a_logarithm_are_left_out_of_carry_over() -> None:
    found = turns(7, lambda pair, arm, second: 0.0 if (pair, arm) == (3, "control") else 2.0 + pair,
                  "vmstat.nr_mapped")  # fmt: skip
    values, first = found.course(LEVEL)
    y = np.array([log(each) if each else nan for each in values])
    carried = carry_of(found, LEVEL, "ratio", 4)
    assert (carried.share, carried.share_p) == left_over(y, np.array(first), 4)


def test_carry_over_of_units() -> None:
    """Carry-over of units is tested by two or more units present in each block, and the arms that
    they had.
    """
    metric, rng = Metric.parse("unit:memory.current"), np.random.default_rng(6)
    arms = [rng.permuted([0, 1, 1]).tolist() for _ in range(7)]
    levels = np.exp(rng.normal(0, 0.1, (7, 3)) - 0.3 * np.array(arms))
    names = ("/a", "/b", "/c")

    def run(blocks: int, units: int) -> Recording:
        found = run_of(*(
            block(n, "ab", n, "", units={names[u]: ARMS[arms[n][u]] for u in range(3)})
            for n in range(blocks)
        ), design="split")  # fmt: skip
        for number, samples in found.windows.items():
            there = range(units if number == 2 else 3)
            own = {names[u]: {metric.top.text: float(levels[number, u])} for u in there}
            found.windows[number] = [sample._replace(units=own) for sample in samples]
        return found

    for units in (3, 2):
        y = np.log(levels[:, :units])
        expected = left_in_units(y, np.array(arms)[:, :units] == 1, 4)
        carried = carry_of(run(7, units), metric, "ratio", 4)
        assert carried.tested
        assert (carried.share, carried.share_p) == pytest.approx(expected)
    alone = carry_of(run(7, 1), metric, "ratio", 4)
    assert (alone.share, alone.share_p) == (0, 1)
    assert not carry_of(run(5, 3), metric, "ratio", 4).tested
    assert not carry_of(run_of(design="split"), metric, "ratio", 4).tested
    assert carry_of(run(7, 3), FAULTS, "ratio", 4) == Carry()


def test_units_of_arms() -> None:
    """Units of arms are those drawn in each block, except with saturation; or the kernel's count
    for each arm.
    """
    drawn = {"/a": "control", "/b": "treatment", "/c": "treatment"}
    found = run_of(block(0, "aa", 0, "", units=drawn), block(1, "ab", 0, "", units=drawn),
                   block(2, "saturation", 0, "control", units=drawn))  # fmt: skip
    assert found.units() == (2, 4)
    counted = recorded(Lines("split", metrics=["arm.anon_order.n/s"]).pairs("ab", 3))
    assert counted.units() == (150, 153)
    for window in counted.windows.values():
        window[0].arms["control"]["units"] = window[1].arms["treatment"]["units"] = 1
    assert counted.units() == (150, 153)  # the counts at the end of each block
    assert run_of(block(0, "ab", 0, "control")).units() == (0, 0)
    assert (
        balance_of(counted).text()
        == "150 units (processes or cgroups) in control, 153 in treatment (p = 0.86)"
    )


def test_the_balance_of_time() -> None:
    """The balance of time is the mean time of complete pairs, with its p by their signs, and the
    delay of samples.
    """
    arms = ["control", "treatment"]
    found = run_of(*(block(2 * pair + at, "ab", pair, arms[at]) for pair in range(5)
                     for at in range(2)), block(10, "ab", 5, "control"),
                   block(11, "aa", 0, "control"))  # fmt: skip
    for number, late in ((1, 0.25), (3, 0.25), (5, 0.25), (7, 0.5), (9, 0.25), (11, 0.375)):
        found.windows[number][-1] = found.windows[number][-1]._replace(t=4 * number + 3 + late)
    del found.windows[10]
    assert balance_of(found) == Balance("seconds", 2.0, 2.3, 2 / 32, 2.0, 0.5)
    assert balance_of(run_of()) == Balance("seconds", 0.0, 0.0, 1.0, 2.0, 0.0)
    few = run_of(block(0, "ab", 0, "", units={"/a": "control"}), design="split")
    assert balance_of(few).of == "units"
    few.header["design"] = "switchback"
    assert balance_of(few).of == "seconds"
    assert balance_of(run_of(block(0, "ab", 0, ""), design="split")).of == "seconds"


# Units


CONTROL, TREATMENT = "control", "treatment"


def cells(**values: tuple[str, float]) -> dict[str, Cell]:
    """Return a block of units."""
    return {unit: Cell(*each) for unit, each in values.items()}


def test_what_is_usual_before_each_block() -> None:
    found = usual([{"a": 2.0}, {"a": 4.0, "b": 1.0}, {"b": 3.0}])
    assert found == [{}, {"a": 2}, {"a": 3, "b": 1}, {"a": 3, "b": 2}]
    blocks = [{"a": 2.0, "z": 0.0}, {"a": 4.0, "b": 1.0}]
    assert centred(blocks, True, True) == [{}, {"a": 2}]
    assert centred(blocks, True, False) == [{"a": -1, "z": 0}, {"a": 1, "b": 0}]
    assert centred(blocks, False, False) == [{"a": 2 / 3 - 1}, {"a": 4 / 3 - 1, "b": 0}]


def test_pairs_of_units_have_the_whole_effect() -> None:
    """Pairs of units show the whole effect: units differ by a hundredfold, and the treatment
    doubles each of them.
    """
    sizes = {"a": 1.0, "b": 100.0}
    blocks = [cells(**{unit: (arm, size * (2 if arm == TREATMENT else 1))
                       for (unit, size), arm in zip(sizes.items(), arms, strict=True)})
              for arms in [(CONTROL, TREATMENT), (TREATMENT, CONTROL)] * 3]  # fmt: skip
    for both in pairs_of(blocks):
        assert both
        assert both[1] / both[0] == pytest.approx(2)
    middle = pairs_of(blocks)[0]
    assert middle
    assert middle[0] * middle[1] == pytest.approx(exp(2 * (log(10) + log(2) / 2)))
    assert pairs_of(blocks, past=True)[0] is None
    assert pairs_of([cells(a=(CONTROL, 1), b=(CONTROL, 2))]) == [None]
    levels = [cells(a=(arms[0], 0.0 if arms[0] == CONTROL else 4.0), b=(arms[1], 2.0))
              for arms in [(CONTROL, TREATMENT), (TREATMENT, CONTROL)] * 3]  # fmt: skip
    assert pairs_of(levels)[0] == pytest.approx((0, 2))
    assert pairs_of(levels)[1] == pytest.approx((2, 4))


def test_a_block_without_one_of_the_arms_has_no_sides() -> None:
    arms = {"a": CONTROL, "b": TREATMENT, "c": TREATMENT}
    assert sides({"a": 1.0, "b": 3.0, "c": 4.0}, arms) == (1, 3.5)
    assert sides({"a": 1.0}, arms) is None
    assert sides({"b": 3.0, "c": 4.0}, arms) is None


@pytest.mark.parametrize(
    ("scale", "size"),
    [("difference", "+0.5 (+0.1 .. +0.9) if"), ("ratio", "+64.9 % (+10.5 % .. +146 %) if")],
)
def test_what_is_said_of_neighbours(scale: str, size: str) -> None:
    """A difference has no unit, a ratio is in percent."""
    effect = Effect(scale, 8, 0.5, 0.1, 0.9, 0.01, 0.2)
    assert size in Neighbours("x", (10, 90), effect, 0.02).text()


def test_pairs_of_units_by_phase() -> None:
    """For a result valid at any look, usual values of units come from the blocks before, including
    the A/A phase.
    """
    metric, rng = Metric.parse("unit:memory.current"), np.random.default_rng(8)
    phases = ["aa"] * 3 + ["ab"] * 4 + ["saturation"] * 4
    arms = [[CONTROL, TREATMENT, CONTROL][n % 2 :][:2] for n in range(11)]
    values = np.exp(rng.normal(0, 0.1, (11, 2)))
    blocks = []
    for n, phase in enumerate(phases):
        whole = [CONTROL, CONTROL] if phase == "saturation" else arms[n]
        turn = ("", "") if phase != "saturation" else (TREATMENT, CONTROL)
        pair = {"aa": n, "ab": n - 3, "saturation": (n - 7) // 2}[phase]
        drawn = dict(zip(("/a", "/b"), whole, strict=True))
        blocks.append(block(n, phase, pair, turn[n % 2], units=drawn))
    rows = [cells(a=(arms[n][0], values[n, 0]), b=(arms[n][1], values[n, 1])) for n in range(11)]
    for length in ("", "anytime"):
        found = run_of(*blocks, design="split", length=length)
        for number, samples in found.windows.items():
            own = {name: {metric.top.text: float(values[number, at])}
                   for at, name in enumerate(("/a", "/b"))}  # fmt: skip
            found.windows[number] = [sample._replace(units=own) for sample in samples]
        past = length == "anytime"
        aa, ab = pairs_of(rows[:3], past), pairs_of(rows[0 if past else 3 : 7], past)[-4:]
        for phase, pairs in (("aa", aa), ("ab", ab)):
            known = {n: pytest.approx(each) for n, each in enumerate(pairs) if each}
            assert found.by_pair(metric, phase) == known
        assert len(found.by_pair(metric, "aa")) == (2 if past else 3)
        means = np.exp(np.log(values).mean(axis=1))
        low, high = means[7::2], means[8::2]
        both: list[Any] = [pytest.approx(each) for each in zip(low, high, strict=True)]
        assert [*found.by_pair(metric, "saturation").items()] == [*enumerate(both)]
        assert found.lost_pairs(metric, 6) == (2, 2)
        del found.windows[5]
        assert found.lost(metric) == {CONTROL: 1, TREATMENT: 1}
        assert found.lost_pairs(metric, 6) == (3, 3)
    alone = run_of(block(0, "saturation", 0, CONTROL, units={"/a": CONTROL}), design="split")
    assert alone.by_pair(metric, "saturation") == {}


def test_sides_are_means_of_their_units() -> None:
    arms = {"a": CONTROL, "b": CONTROL, "c": TREATMENT, "d": TREATMENT, "e": TREATMENT}
    values = {"a": 1.0, "b": 4.0, "c": 2.0, "d": 3.0, "e": 10.0}
    assert sides(values, arms) == (2.5, 5)
    assert sides({"a": 1.0}, arms) is None
    assert sides({"c": 1.0}, arms) is None
    assert sides({}, arms) is None
    always = cells(a=(CONTROL, 1), b=(TREATMENT, 2))
    assert pairs_of([always] * 3) == [None] * 3  # usual values hold the whole effect
    assert pairs_of([]) == []


def test_neighbours_are_the_control_of_both_blocks() -> None:
    low = cells(a=(CONTROL, 1), b=(CONTROL, 4), c=(TREATMENT, 9), d=(CONTROL, 9))
    high = cells(a=(CONTROL, 2), b=(CONTROL, 8), c=(CONTROL, 9), d=(TREATMENT, 9))
    assert neighbours(low, high) == pytest.approx((2, 4))
    assert neighbours(cells(a=(CONTROL, 0), b=(CONTROL, 4)), high) == (2, 5)
    assert neighbours(low, cells(z=(CONTROL, 1))) is None


# One metric of a report


def result(effect: float, low: float, high: float, p: float, **more: Any) -> MetricResult:
    """Return a result of ten pairs."""
    scale = more.pop("scale", "ratio")
    pairs = more.pop("pairs", [(10.0, 10.0 * exp(min(effect, 700)))] * 10)
    d = np.array([log(max(after, 1e-9) / max(before, 1e-9)) for before, after in pairs])
    found = Effect(scale, 10, effect, low, high, p, 0.1, d)
    defaults: dict[str, Any] = {"aa": None, "seed": 1, "planned": 10, "corrected": p}
    return MetricResult(more.pop("metric", FAULTS), pairs, [], found, **defaults | more)


@pytest.mark.parametrize(
    ("effect", "better", "said"),
    [
        (-0.1, "lower", "fell by 9.52 %, which is better"),
        (0.1, "lower", "rose by 10.5 %, which is worse"),
        (-0.1, "higher", "fell by 9.52 %, which is worse"),
        (0.1, "", "rose by 10.5 %"),
        (1.0, "", "rose by 172 %"),
        (1.1, "", "rose to 3 times"),
        (800.0, "", "rose to 1.01e+304 times"),
    ],
)
def test_findings_in_words(effect: float, better: str, said: str) -> None:
    found = result(effect, effect, effect, 0.01, metric=Metric.parse(f"vmstat.pgfault/s {better}"))
    assert found.finding() == said
    assert found.worse == said.endswith("worse")


def test_texts_of_numbers() -> None:
    ratio, plain = result(0.1, 0.0, 0.2, 0.01), result(0.1, 0.0, 0.2, 0.01, scale="difference")
    assert [ratio.text(log(times)) for times in (1.01234, 10.99, 11, 20)] == [
        "+1.23 %", "+999 %", "+1000 %", "+1900 %",
    ]  # fmt: skip
    assert [plain.text(value) for value in (-1.23456, 12345.6)] == ["-1.235", "+12350"]
    assert plain.text(2.0, "") == "2"
    assert (ratio.ends(-inf, inf), ratio.ends(log(0.5), 0.0)) == ("any", "-50 % .. +0 %")
    assert plain.finding() == "rose by 0.1, which is worse"


@pytest.mark.parametrize(
    ("p", "corrected", "found"), [(0.01, 0.049, True), (0.01, 0.05, False), (0.04, 0.2, False)]
)
def test_found_after_correction(p: float, corrected: float, found: bool) -> None:
    assert result(-0.1, -0.2, -0.01, p, corrected=corrected).found == found


@pytest.mark.parametrize(
    ("planned", "complete_pairs", "lost", "uneven", "too_many"),
    [
        (10, 9, {"control": 1, "treatment": 0}, False, False),
        (10, 8, {"control": 1, "treatment": 1}, False, True),
        (40, 36, {"control": 2, "treatment": 2}, False, False),
        (40, 35, {"control": 3, "treatment": 2}, False, True),
        (200, 194, {"control": 6, "treatment": 0}, True, True),
        (200, 195, {"control": 5, "treatment": 0}, False, False),
        (200, 200, {}, False, False),
    ],
)
def test_pairs_that_are_lost(
    planned: int, complete_pairs: int, lost: dict[str, int], uneven: bool, too_many: bool
) -> None:
    """Of twenty blocks one may be lost, if chance explains the arms of lost blocks."""
    found = result(-0.1, -0.2, 0, 0.01, planned=planned, lost=lost,
                   pairs=[(1.0, 0.9)] * complete_pairs)  # fmt: skip
    assert (found.uneven_lost, found.too_many_lost) == (uneven, too_many)


@pytest.mark.parametrize(
    ("factor", "pairs", "length", "shown"),
    [(1.04, 5, "", True), (1.04, 4, "", False), (1.06, 9, "", False), (1.04, 5, "size", True),
     (1.04, 4, "size", False)],
)  # fmt: skip
def test_no_worse_than_a_margin(factor: float, pairs: int, length: str, shown: bool) -> None:
    """5 pairs that all agree show that the treatment is no worse: p is 1 in 32, which is below 3.5
    % as well.
    """
    found = result(log(factor), -1, 1, 0.5, pairs=[(1.0, factor)] * pairs, margin=5.0,
                   length=length, planned=pairs)  # fmt: skip
    assert found.no_worse == shown
    assert found.open != shown
    assert found.margin_p == pytest.approx(2.0**-pairs if factor < 1.05 else 1)
    assert f"no worse than 5 %: {'shown' if shown else 'not shown'}" in found.verdict()


@pytest.mark.parametrize(
    ("better", "factor", "shown"),
    [("higher", 0.96, True), ("higher", 0.94, False), ("lower", 0.5, True), ("higher", 2.0, True)],
)
def test_which_way_is_worse(better: str, factor: float, shown: bool) -> None:
    metric = Metric.parse(f"vmstat.pgfault/s {better}")
    found = result(log(factor), -1, 1, 0.5, metric=metric, pairs=[(1.0, factor)] * 10, margin=5.0)
    assert found.no_worse == shown


@pytest.mark.parametrize(("against", "shown"), [(0, True), (1, False)])
def test_lost_pairs_are_against_a_margin(against: int, shown: bool) -> None:
    """Lost pairs count against a margin: one as clear as the others makes 2 of 64 of 1 of 32, one
    of 6 the other way 7.
    """
    found = result(0.0, -1, 1, 1.0, pairs=[(1.0, 1.0)] * 5, margin=5.0, against=against)
    assert found.no_worse == shown
    assert found.margin_p == pytest.approx(7 / 64 if against else 1 / 32)


def test_lost_pairs_are_in_the_verdict() -> None:
    words = "inconclusive: 2 pairs without a value may contradict it; any effect between"
    assert result(-0.1, -0.2, 0.1, 0.2, against=2).verdict().startswith(words)
    assert "lost" not in result(-0.1, -0.2, 0.1, 0.2).verdict()


def test_no_verdict_and_no_difference() -> None:
    none = MetricResult(FAULTS, [(1.0, 2.0)], [], None, None, 1, 12)
    assert (
        none.verdict()
        == "no verdict: 1 pairs have a value in both blocks, and a verdict takes at least 2"
    )
    assert list(none.cells()) == ["vmstat.pgfault/s", "1 of 12", "1", "2", *["-"] * 7]
    same = result(0.0, 0.0, 0.0, 1.0)
    assert same.verdict() == "no difference between the arms in any pair"
    few = result(-0.1, -inf, inf, 0.2, metrics=3)
    assert few.verdict() == "inconclusive: 10 pairs are too few to show an effect, take 7 or more"


def test_the_floor_is_of_the_same_scale() -> None:
    aa = Effect("ratio", 8, 0.01, -1, 1, 0.5, 0.1)
    assert result(-0.1, -0.2, 0, 0.01, aa=aa).noise is not None
    assert result(-0.1, -0.2, 0, 0.01, aa=aa, scale="difference").noise is None
    assert result(-0.1, -0.2, 0, 0.01).noise is None


# The answer


def report_of(*rows: MetricResult, doubts: tuple[str, ...] = (), **header: Any) -> Report:
    """Return a report on these metrics."""
    found = Report(recorded(complete(0.0, **header)))
    found.rows, found.doubts = [*rows], [*doubts]
    found.reasons = [Doubt(OWN, each) for each in doubts]
    found.judged = [row for row in rows if row.margin and row.metric.better]
    return found


GUARD = Metric.parse("g=vmstat.nr_mapped lower guard 5%")
UNSAID = Metric.parse("u=vmstat.nr_mapped")
PLAIN = [(10.0, 10.6)] * 10
BETTER = result(-0.1, -0.2, -0.05, 0.01)
WORSE = result(0.1, 0.05, 0.2, 0.01)
NOTHING = result(0.0, -0.1, 0.1, 0.9)
OTHER = result(0.1, 0.05, 0.2, 0.01, metric=UNSAID)
SHOWN = result(0.0, -0.1, 0.1, 0.9, metric=GUARD, margin=5.0)
OPEN = result(0.05, -0.1, 0.1, 0.9, metric=GUARD, margin=5.0, pairs=PLAIN)
SLIGHT = result(0.02, 0.01, 0.03, 0.01, margin=5.0)  # worse, by less than the margin
LEFT = Carry(True, 0.5, 0.001)


@pytest.mark.parametrize(
    ("rows", "code", "said"),
    [
        (
            [BETTER],
            0,
            "with the treatment, vmstat.pgfault/s fell by 9.52 %, which is better; these 10 blocks",
        ),
        ([WORSE], 8, "with the treatment, vmstat.pgfault/s rose by 10.5 %, which is worse"),
        ([NOTHING], 7, "inconclusive: no metric shows an effect larger than its noise"),
        ([OTHER], 0, "with the treatment, u rose by 10.5 %; these 10 blocks may have"),
        ([BETTER, SHOWN], 0, "which is better; no worse than 5 %: g; these 10 blocks may"),
        ([BETTER, OPEN], 7, "which is better; not shown to be no worse than 5 %: g"),
        (
            [BETTER, NOTHING],
            7,
            "which is better; not shown to be no worse (no margin was given): vm",
        ),
        (
            [OTHER, NOTHING],
            7,
            "u rose by 10.5 %; not shown to be no worse (no margin was given): vm",
        ),
        ([WORSE, SHOWN], 8, "which is worse; no worse than 5 %: g"),
        ([SHOWN], 0, "with the treatment, no worse than 5 %: g; these 10 blocks may"),
        ([OPEN], 7, "inconclusive: not shown to be no worse than 5 %: g"),
        (
            [SLIGHT],
            0,
            "rose by 2.02 %, which is worse; no worse than 5 %: vmstat.pgfault/s; these 10 blocks",
        ),
        ([SLIGHT, SHOWN], 0, "which is worse; no worse than 5 %: vmstat.pgfault/s, g; these 10"),
        (
            [NOTHING, SHOWN],
            7,
            "no worse than 5 %: g; not shown to be no worse (no margin was given)",
        ),
    ],
)
def test_answers(rows: list[MetricResult], code: int, said: str) -> None:
    found = report_of(*rows)
    assert found.exit == code
    assert said in found.verdict()
    assert found.verdict().startswith(said[:12]) or not said.startswith(("with", "inconcl"))
    assert found.conclusive == (code != 7)
    doubted = report_of(*rows, doubts=("this", "that"))
    assert (doubted.exit, doubted.verdict()) == (7, "inconclusive: this")
    assert not doubted.conclusive


def test_a_margin_for_all() -> None:
    """If the margin is the only question, the run needs no finding."""
    shown = replace(SHOWN, metric=FAULTS)
    for rows, margin, only in (
        ([SHOWN], 0.0, True), ([shown], 5.0, True), ([shown], 0.0, False),
        ([shown, SHOWN], 5.0, False), ([BETTER], 0.0, False),
    ):  # fmt: skip
        found = report_of(*rows)
        found.margin = margin
        assert found.only_margin == only


def test_carry_over_is_told_of_what_was_found() -> None:
    told = "carry-over from block to block was seen, so the effect is underestimated"
    assert told in report_of(replace(BETTER, carry=LEFT)).verdict()
    assert told not in report_of(BETTER, replace(SHOWN, carry=LEFT)).verdict()
    hidden = "g: carry-over hides how much worse the treatment is"
    for row, doubted in ((replace(SHOWN, carry=LEFT), True), (SHOWN, False),
                         (replace(OPEN, carry=LEFT), False)):  # fmt: skip
        found = [each.text for each in report_of(row)._doubts_of(row)]
        assert (hidden in found) == doubted


def test_carry_over_in_the_facts() -> None:
    tested = replace(BETTER, carry=Carry(True))
    told = [dict(report_of(row).facts())["carry-over"] for row in (BETTER, tested)]
    assert told == ["not tested: too few pairs or samples", "not seen"]
    both = report_of(replace(BETTER, carry=LEFT), replace(SHOWN, carry=LEFT))
    assert dict(both.facts())["carry-over"] == "vmstat.pgfault/s, g"


@pytest.mark.parametrize(
    ("margin", "own", "given", "said"),
    [
        (5.0, "", 5.0, "on the mean, chosen before the run"),
        (5.0, "", None, "on the mean, chosen after the run"),
        (5.0, "", 4.0, "on the mean, chosen after the run"),
        (5.0, " guard 5%", None, "on the mean, chosen before the run"),
        (4.0, " guard 5%", None, "on the mean, chosen after the run"),
    ],
)
def test_when_a_margin_was_chosen(margin: float, own: str, given: float | None, said: str) -> None:
    metric = Metric.parse(f"vmstat.pgfault/s lower{own}")
    found = report_of(replace(NOTHING, metric=metric, margin=margin), margin=given)
    facts = dict(found.facts())
    assert facts[f"margin {margin:g} %"].startswith(
        f"{said}; to show that the treatment is no worse, "
    )


def test_an_effect_within_the_floor() -> None:
    noisy = Effect("ratio", 10, 0.0, -1, 1, 0.9, 0.5)
    notes = ["\n".join(report_of(row).notes()) for row in (
        replace(BETTER, aa=noisy), BETTER, replace(NOTHING, aa=noisy),
        replace(BETTER, aa=replace(noisy, deviation=0.1)),
    )]  # fmt: skip
    assert ["the effect is within the A/A floor" in note for note in notes] == [
        True, False, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("aa", "metrics", "noted"), [(0, 1, 0), (1, 1, 8), (7, 1, 8), (8, 1, 0), (8, 2, 9), (9, 2, 0)]
)
def test_a_short_aa_phase(aa: int, metrics: int, noted: int) -> None:
    found = report_of(*[BETTER, SHOWN][:metrics])
    found.header["aa_pairs"] = aa
    notes = [note for note in found.notes() if "A/A pairs" in note]
    text = f"{aa} A/A pairs are too few to show that equal arms differ; it takes {noted}"
    assert notes == [text] * bool(noted)


@pytest.mark.parametrize(
    ("end", "more", "harmed", "doubt"),
    [
        ({"status": "done"}, {}, False, None),
        ({"status": "lost"}, {}, False, "the run did not go to its planned end: lost, a"),
        ({"status": "lost"}, {"length": "anytime"}, False, None),
        ({"status": "guard", "arm": "control"}, {}, False, "planned end: guard, a"),
        (
            {"status": "guard", "arm": "treatment"},
            {},
            False,
            "a guard stopped the run while the treatment was active: a; if it breaks",
        ),
        ({"status": "guard", "arm": "treatment"}, {"treatment": STOCK}, False, "planned end"),
    ],
)
def test_how_a_run_ended(
    end: dict[str, Any], more: dict[str, Any], harmed: bool, doubt: str | None
) -> None:
    lines = Lines(**more).pairs("aa", 8).pairs("ab", 12)
    found = Report(recorded(lines.end(reason="a", **end)))
    assert found.harmed == harmed
    assert [(doubt or "none") in each for each in found.doubts] == [True] * (doubt is not None)


@pytest.mark.parametrize(("aa", "harmed"), [(9, False), (10, True)])
def test_harm_is_what_chance_does_not_do(aa: int, harmed: bool) -> None:
    """A guard that breaks in the treatment is harm if chance does it in 5 % at most: here 80 s
    without the treatment and 4 s with it.
    """
    lines = Lines().pairs("aa", aa)
    lines.end("guard", "a guard", arm="treatment", after_s=4.0)
    found = Report(recorded(lines))
    assert found.harmed == harmed
    assert found.exit == (8 if harmed else 7)
    assert (
        found.verdict().startswith("the run was stopped, as the treatment does harm: a guard")
        == harmed
    )


def test_both_arms_the_same_and_yet() -> None:
    yet = Report(recorded(complete(-0.5, treatment=STOCK)))
    assert yet.verdict().startswith("both arms are the same, and yet: vmstat.pgfault/s fell by")
    assert (yet.exit, yet.same) == (0, True)
