# SPDX-License-Identifier: GPL-2.0
"""The text of `ab report` on a run, word for word and number for number."""

from __future__ import annotations

from dataclasses import replace
from math import exp, expm1, inf, log
from typing import Any

import numpy as np
import pytest
from scipy import stats as known

from mmpolicy.ab.anytime import p_below_anytime
from mmpolicy.ab.design import suggest_pairs, with_lost
from mmpolicy.ab.metrics import Metric
from mmpolicy.ab.report import metric_result
from mmpolicy.ab.report.carry import Carry
from mmpolicy.ab.report.metric_result import MetricResult
from mmpolicy.ab.report.neighbours import Neighbours, neighbours_of, unseen_by_split
from mmpolicy.ab.report.report import HEAD
from mmpolicy.ab.report.stats import Effect, analyse, floor, holm, means_by_logs, totals

from .test_ab_samples import (
    BETTER,
    FAULTS,
    GUARD,
    NOTHING,
    PLAIN,
    SHOWN,
    UNSAID,
    block,
    report_of,
    result,
    run_of,
)

AA = Effect("ratio", 8, 0.01, -0.05, 0.07, 0.6, 0.02)
EVEN = ("in a block, 2.00 s were measured in control and 2.00 s in treatment, of 2.00 s planned; "
        "the latest sample came 0.00 s late")  # fmt: skip
RARE = "these 10 blocks may have missed events that occur in up to 26 % of blocks"
MORE = "the more runs there are, the likelier one of them shows an effect by chance"


def test_the_facts_of_a_run() -> None:
    facts = report_of(BETTER).facts()
    assert facts == [
        ("control", "stock"), ("treatment", "anon_order=fixed"),
        ("design", (
            "switchback, blocks of 3 s, the first 1 s of each not measured (wash-out), seed 1"
        )),
        ("rule", "a rule"), ("balance", EVEN),
        ("carry-over", "not tested: too few pairs or samples"), ("not seen", RARE),
        ("guards", "none"), ("to find 5 %", "vmstat.pgfault/s: 6 pairs"), ("host", "kernel 6.12"),
    ]  # fmt: skip
    host = {"kernel": "6.12", "cpus": 4, "labels": {"rack": "r1"}}
    rows = [BETTER, replace(SHOWN, margin=3.0), replace(SHOWN, metric=FAULTS)]
    more = report_of(*rows, guards=["a < 1", "b < 2"], at_switch="x", experiment="e", host=host)
    more.recording.blocks[0]["decisions"] = {"control": 3}
    last = [number for number, _, arm in more.recording.of_phase("ab") if arm == "control"][-1]
    counts = {"decisions": {"control": 5}, "timed": {"control": 2}, "missed": {"control": 0}}
    more.recording.blocks[last] |= counts
    facts = more.facts()
    assert facts[7:] == [
        ("guards", "a < 1, b < 2"), ("at switch", "x"), ("decisions", "5 in control"),
        ("timed faults", "2 in control"), ("faults missed", "0 in control"),
        ("to find 5 %", "vmstat.pgfault/s: 6 pairs, g: 6 pairs, vmstat.pgfault/s: 6 pairs"),
        ("margin 3 % and 5 %", (
            "on the mean, chosen after the run; to show that the treatment is no worse, g: 5 "
            "pairs, vmstat.pgfault/s: 5 pairs"
        )),
        ("experiment", "e"), ("host", "kernel 6.12, cpus 4, rack r1"),
    ]  # fmt: skip
    assert dict(report_of(replace(BETTER, pairs=[])).facts())["not seen"] == "anything"
    assert dict(report_of(replace(BETTER, pairs=PLAIN[:2])).facts())["to find 5 %"] == "not known"


def test_neighbours_are_a_fact() -> None:
    found = report_of(BETTER)
    effect = result(0.1, 0.05, 0.2, 0.01).effect
    assert effect
    found.neighbours = [Neighbours("m", (10, 90), effect, 0.02)]
    said = ("m of untreated units differs by +10.5 % (+5.13 % .. +22.1 %) if 90 % of the units "
            "are treated instead of 10 %, p = 0.02")  # fmt: skip
    assert dict(found.facts())["neighbours"] == said
    plain = Neighbours("m", (10, 90), replace(effect, scale="difference"), 0.05)
    assert plain.text().startswith("m of untreated units differs by +0.1 (+0.05 .. +0.2) if 90")
    assert [each.found for each in (*found.neighbours, plain)] == [True, False]
    assert found.neighbours[0].doubt() == (
        f"the treatment also acts on untreated units: {said}; use --design switchback"
    )
    ends = {"estimate": 0.1, "low": 0.05, "high": 0.2}
    about = {"metric": "m", "percent": [10, 90]}
    assert plain.data() == about | ends | {"scale": "difference", "p": 0.05, "found": False}
    percent = {name: pytest.approx(100 * expm1(end)) for name, end in ends.items()}
    rest = {"scale": "ratio", "p": 0.02, "found": True}
    assert found.data()["neighbours"] == [about | percent | rest]


@pytest.mark.parametrize("pairs", [1, 2, 4])
def test_neighbours_by_the_pairs_of_saturation(pairs: int) -> None:
    """The effect on neighbours is reported for each metric with two pairs of saturation, corrected
    for their number.
    """
    texts = ["vmstat.pgfault/s lower", "vmstat.nr_mapped", "lost=vmstat.nr_mapped"]
    blocks = [block(2 * n + at + 1, "saturation", n, ("control", "treatment")[at])
              for n in range(pairs) for at in range(2)]  # fmt: skip
    found = run_of(*blocks, metrics=texts, seed=4)
    assert neighbours_of(found) == []
    found.header["saturation"] = [20, 70]
    for window in found.windows.values():
        for sample in window:
            sample.host["vmstat.nr_mapped"] **= 2
    values = [[(2 * n + 1.0, 2 * n + 2.0) for n in range(pairs)] for _ in range(2)]
    values[1] = [(before**2, after**2) for before, after in values[1]]
    effects = [analyse(each, 4) for each in (*values, values[1])] if pairs > 1 else []
    ps = holm([each.p for each in effects]) if effects else []
    names = ["vmstat.pgfault/s", "vmstat.nr_mapped", "lost"]
    assert [(each.metric, each.levels, each.corrected, each.effect.estimate)
            for each in neighbours_of(found)] == [
        (name, (20, 70), p, effect.estimate)
        for name, p, effect in zip(names, ps, effects, strict=False)
    ]  # fmt: skip


def test_what_split_does_not_see() -> None:
    texts = ["unit:memory.current", "a=arm.p.n", "arm.units"]
    metrics = [Metric.parse(text) for text in texts]
    common, blind = unseen_by_split(metrics)
    assert common.startswith("--design split compares units (processes or cgroups) side by side")
    assert blind.startswith("a, arm.units: memory that a unit keeps from the block before")
    assert [*unseen_by_split(metrics[:1])] == [common]


def spread(*d: float) -> list[tuple[float, float]]:
    """Return pairs that differ by this."""
    return [(1.0, exp(each)) for each in d]


@pytest.mark.parametrize(
    ("aa", "pairs", "of"),
    [
        ([0.1, 0.2, 0.4], [0.1, 0.1, 0.1], "aa"),
        ([0.1, 0.2], [0.1, 0.3, 0.1], "pairs"),
        ([0.1, 0.2], [0.1, 0.3], ""),
        ([], [0.1, 0.2, 0.4], "pairs"),
    ],
)
def test_the_length_is_by_the_noise_of_equal_arms(
    aa: list[float], pairs: list[float], of: str
) -> None:
    """The length follows the noise of equal arms, of at least 3 pairs; without an A/A phase, that
    of the run's own pairs.
    """
    row = replace(SHOWN, aa_pairs=spread(*aa), pairs=spread(*pairs), metrics=2, margin=3.0)
    found = report_of(row, NOTHING)
    found.detect = 4.0
    noise = {"aa": aa, "pairs": pairs}.get(of, [])
    rest = [] if not of else [("g", suggest_pairs(noise, 4.0, 2))]
    assert [*found.lengths()] == [*rest, ("vmstat.pgfault/s", 6)]
    assert [*found.margin_lengths()] == [
        (name, suggest_pairs(noise, 3.0, risk=0.05)) for name, _ in rest
    ]
    zeros = replace(row, aa_pairs=[], pairs=[(-1.0, 2.0), (1.0, 2.0), (2.0, 2.0)])
    assert [*report_of(zeros).lengths()] == []


@pytest.mark.parametrize(
    ("rows", "design", "said"),
    [
        ([Carry()], "switchback", "not tested: too few pairs or samples"),
        ([Carry(), Carry(True)], "switchback", "not seen"),
        ([Carry(True, 0.5, 0.001), Carry()], "switchback", "m0"),
        ([Carry(), Carry(True)], "split", "not seen; only metrics of unit: show carry-over from"),
        ([Carry(True, 0.5, 0.001), Carry()], "split", "m0; only metrics of unit: show carry-over"),
    ],
)
def test_where_carry_over_was_looked_for(rows: list[Carry], design: str, said: str) -> None:
    found = report_of(*(
        replace(BETTER, carry=carry, metric=Metric.parse(f"m{n}=vmstat.nr_a"))
        for n, carry in enumerate(rows)
    ))  # fmt: skip
    found.header["design"] = design
    assert found._carry().startswith(said)
    units = [replace(row, metric=Metric.parse("unit:memory.stat:anon")) for row in found.rows]
    found.rows = units
    assert "block to block" not in found._carry()
    found.rows = [*units, BETTER]
    assert ("block to block" in found._carry()) == (design == "split")


def test_a_report_for_programs() -> None:
    found = report_of(BETTER, doubts=("this",), metrics=["vmstat.pgfault/s lower"])
    data = found.data()
    assert {name: value for name, value in data.items() if name not in ("metrics", "notes")} == {
        "verdict": "inconclusive: this", "conclusive": False, "exit": 7, "doubts": ["this"],
        "margin": None, "design": "switchback",
        "arms": {"control": "stock", "treatment": "anon_order=fixed"}, "rule": "a rule",
        "balance": {"of": "seconds", "control": 2, "treatment": 2, "p": 1, "planned": 2, "late": 0},
        "counted": {"decisions": {}, "timed": {}, "missed": {}}, "neighbours": [],
        "pairs_to_find": {"percent": 5, "pairs": {"vmstat.pgfault/s": 6}},
    }  # fmt: skip
    assert data["metrics"] == [BETTER.data()]
    found.margin = 4.0
    assert found.data()["margin"] == 4


def test_a_report_in_lines() -> None:
    found = report_of(BETTER, runs_this_week=2)
    facts = found.facts()
    lines = found.lines()
    assert lines[: len(facts) + 1] == [f"{name:12}"[: max(len(name), 11)].ljust(11) + f"  {value}"
                                       for name, value in facts] + [""]  # fmt: skip
    assert lines[len(facts) + 1].split("  ")[0] == "METRIC"
    note = "this is run 2 with these arms within a week on this host"
    assert lines[len(facts) + 3 :] == [
        "", f"vmstat.pgfault/s: {BETTER.verdict()}", f"note: {note}: {MORE}", "",
        f"verdict: {found.verdict()}",
    ]  # fmt: skip
    doubted = report_of(BETTER, doubts=("this", "that")).lines()
    assert doubted[-4:-1] == ["doubt: this", "doubt: that", ""]
    assert len(HEAD) == len(BETTER.cells())


# One metric


RATIO = replace(BETTER, aa=AA, aa_pairs=[(1.0, 1.1)] * 8, corrected=0.012, aa_corrected=0.7,
                lost={"control": 1, "treatment": 2}, planned=13)  # fmt: skip
DIFFERENCE = result(2.0, 1.0, 3.5, 0.01, scale="difference", metric=UNSAID,
                    pairs=[(-1.0, 1.0), (3.0, 5.5)], metrics=2)  # fmt: skip


def least(deviation: float, pairs: int, metrics: int) -> float:
    """Return the smallest effect that a number of pairs finds, by the t distribution."""
    t = known.t(pairs - 1)
    return float((t.ppf(1 - 0.025 / metrics) + t.ppf(0.8)) * deviation / pairs**0.5)


def test_the_row_of_a_metric() -> None:
    ratio = 100 * expm1(least(0.1, 10, 1))
    noise = 100 * expm1(floor(AA, 10))
    assert RATIO.cells() == (
        "vmstat.pgfault/s", "10 of 13", "10", "9.0484", "-9.52 %", "-18.1 % .. -4.88 %", "0.01",
        "0.012", "-9.52 % (-9.52 % .. -9.52 %)", f"{ratio:.3g} %", f"±{noise:.3g} %",
    )  # fmt: skip
    assert DIFFERENCE.cells() == (
        "u", "2 of 10", "1", "3.25", "+2", "+1 .. +3.5", "0.01", "0.01", "-",
        f"{least(0.1, 10, 2):.4g}", "-",
    )  # fmt: skip
    bare = MetricResult(FAULTS, [], [], None, AA, 1, 12)
    assert bare.cells() == (
        "vmstat.pgfault/s", "0 of 12", *["-"] * 8, f"±{100 * expm1(floor(AA, 8)):.3g} %",
    )  # fmt: skip
    assert bare.means() is None
    assert replace(bare, aa_pairs=[(1.0, 2.0), (3.0, 6.0)]).means() == (2, 4)
    assert MetricResult(FAULTS, [], [], None, None, 1, 12).scale == "difference"


def test_a_metric_for_programs() -> None:
    noise = pytest.approx(100 * expm1(floor(AA, 10)))
    total = dict.fromkeys(("estimate", "low", "high"), pytest.approx(-9.5162582))
    carry = {"tested": False, "seen": False, "left": {"share": 0, "p": 1},
             "halves": {"first": 0, "second": 0, "p": 1}}  # fmt: skip
    percent = {"estimate": pytest.approx(-9.5162582), "low": pytest.approx(-18.126925),
               "high": pytest.approx(-4.8770575)}  # fmt: skip
    of_aa = {"estimate": pytest.approx(1.0050167), "low": pytest.approx(-4.8770575),
             "high": pytest.approx(7.2508181)}  # fmt: skip
    assert RATIO.data() == {
        "metric": "vmstat.pgfault/s", "better": "lower", "role": "primary",
        "pairs": {"planned": 13, "complete": 10, "lost": {"control": 1, "treatment": 2}},
        "control": 10, "treatment": pytest.approx(9.0483742), "scale": "ratio", "unit": "percent",
        "verdict": "fell by 9.52 %, which is better", "found": True, "worse": False,
        "noise_floor": noise,
        "aa": {"pairs": 8, **of_aa, "p": 0.6, "p_corrected": 0.7, "deviation": 0.02},
        "effect": {"pairs": 10, **percent, "p": 0.01, "p_corrected": 0.012, "deviation": 0.1},
        "carry_over": carry, "totals": {**total, "agree": True},
        "largest_block": {"control": 1, "treatment": pytest.approx(1)},
        "detectable": pytest.approx(100 * expm1(least(0.1, 10, 1))),
    }  # fmt: skip
    data = DIFFERENCE.data()
    assert (data["better"], data["unit"], data["noise_floor"], data["aa"]) == (
        None, "unit of the metric", None, None,
    )  # fmt: skip
    assert [data["effect"][name] for name in ("estimate", "low", "high")] == [2, 1, 3.5]
    assert not {"totals", "margin", "largest_block"} & set(data)
    none = MetricResult(GUARD, [], [], None, None, 1, 12).data()
    assert (none["role"], none["control"], none["treatment"], none["effect"]) == (
        "guard", None, None, None,
    )  # fmt: skip
    assert "detectable" not in none
    guarded = SHOWN.data()
    assert guarded["margin"] == {
        "percent": 5, "p": pytest.approx(2**-10), "shown": True, "of": "mean",
    }  # fmt: skip


def test_what_is_not_clear_in_words() -> None:
    smallest = f"{100 * expm1(least(0.1, 10, 3)):.3g} %"
    words = (
        "any effect between -10 % and +10 % is possible; a run like this shows an effect of "
        f"{smallest} or more"
    )
    unclear = result(0.01, log(0.9), log(1.1), 0.2, metrics=3)
    assert unclear.verdict() == f"inconclusive: {words}"
    alone = (
        "there is an effect if this metric is taken alone (p = 0.04), not after correction for "
        "3 metrics; taken alone, "
    )
    for p, said in ((0.04, alone), (0.05, "")):
        found = result(0.01, log(0.9), log(1.1), p, metrics=3, corrected=0.2)
        assert found.verdict() == f"inconclusive: {said}{words}"
    judged = replace(unclear, margin=5.0, pairs=spread(*[0.0] * 10))
    assert judged.verdict() == (
        "no difference between the arms in any pair; no worse than 5 %: shown (p = 0.00098)"
    )
    unsaid = replace(unclear, margin=5.0, metric=UNSAID)
    assert unsaid.verdict() == unclear.verdict()
    nothing = MetricResult(FAULTS, [], [], None, None, 1, 12, margin=5.0)
    assert nothing.verdict() == (
        "no verdict: 0 pairs have a value in both blocks, and a verdict takes at least 2; "
        "no worse than 5 %: not shown"
    )


# Pairs and totals


def told(row: MetricResult, **known_already: Any) -> MetricResult:
    """Return a row with some values given, whatever its pairs are."""
    row.__dict__.update(known_already)
    return row


@pytest.mark.parametrize(
    ("effect", "found", "denied"),
    [
        (-0.1, (-0.04, -0.3, 0.0), True),
        (-0.1, (-0.04, -0.3, -0.001), False),
        (-0.1, (-0.05, -0.3, 0.1), False),
        (-0.1, (-0.06, -0.3, 0.1), False),
        (0.1, (0.04, 0.0, 0.3), True),
        (0.1, (0.04, 0.001, 0.3), False),
        (0.1, (0.05, -0.1, 0.3), False),
        (0.1, (0.06, -0.1, 0.3), False),
        (0.1, None, False),
    ],
)
@pytest.mark.parametrize("how", [{"scale": "totals"}, {"length": "anytime"}])
def test_totals_that_deny_what_was_found(
    effect: float, found: tuple[float, float, float] | None, denied: bool, how: dict[str, str]
) -> None:
    """Totals contradict a finding if they have 0 in their interval, and lie beyond the interval of
    the pairs, 0.05 to 0.2.
    """
    ends = sorted((effect / 2, effect * 2))
    row = result(effect, ends[0], ends[1], 0.01, metric=UNSAID, **how)
    assert told(row, totals=found, spread_p=(0.5, 0.5)).denied == denied
    row = result(effect, ends[0], ends[1], 0.06, metric=UNSAID, **how)
    assert not told(row, totals=found, spread_p=(0.5, 0.5)).denied


@pytest.mark.parametrize(
    ("better", "found", "denied"),
    [
        ("lower", (0.03, 0.0, log(1.05)), True), ("lower", (0.03, 0.0, 0.048), False),
        ("lower", (0.02, 0.0, 0.1), False), ("higher", (-0.03, log(0.95), 0.0), True),
        ("higher", (-0.03, -0.051, 0.0), False), ("higher", (-0.02, -0.1, 0.0), False),
    ],
)  # fmt: skip
def test_totals_that_deny_a_margin(
    better: str, found: tuple[float, float, float], denied: bool
) -> None:
    """Totals contradict a margin if they have it in their interval, and lie beyond the interval of
    the pairs, -0.02 to 0.02.
    """
    metric = Metric.parse(f"vmstat.pgfault/s {better}")
    row = result(0.0, -0.02, 0.02, 0.9, metric=metric, margin=5.0, scale="totals")
    assert row.no_worse
    assert told(row, totals=found).denied == denied
    other = result(0.0, -0.02, 0.02, 0.9, metric=metric, scale="totals")
    assert not told(other, totals=found).denied


@pytest.mark.parametrize(
    ("effect", "ends", "spread_p", "scale", "denied"),
    [
        (-0.1, (-0.2, 0.0), (0.19, 0.9), "ratio", True),
        (-0.1, (-0.2, -0.001), (0.19, 0.9), "ratio", False),
        (-0.1, (-0.2, 0.0), (0.2, 0.9), "ratio", False),
        (-0.1, (-0.2, 0.0), (0.9, 0.01), "ratio", False),
        (-0.1, (-0.2, 0.0), (0.01, 0.9), "totals", False),
        (0.1, (0.0, 0.2), (0.9, 0.19), "ratio", True),
        (0.1, (0.001, 0.2), (0.9, 0.19), "ratio", False),
        (0.1, (0.0, 0.2), (0.01, 0.9), "ratio", False),
    ],
)
@pytest.mark.parametrize("which", ["totals", "means_by_logs"])
def test_blocks_that_vary_more_need_firmer_means(
    monkeypatch: pytest.MonkeyPatch, which: str, effect: float, ends: tuple[float, float],
    spread_p: tuple[float, float], scale: str, denied: bool,
) -> None:  # fmt: skip
    """The arm that varies more has lower logarithms, so only lower results are in question."""
    row = result(effect, -0.3, 0.3, 0.01, metric=UNSAID, scale=scale)
    row = told(row, totals=(effect, -0.3, 0.3), spread_p=spread_p, _of_pairs=(-0.3, 0.3))
    clear = (effect, min(effect, 0.0) - 0.5 * (effect < 0) + 0.01, -0.01 if effect < 0 else 0.5)
    for name in ("totals", "means_by_logs"):
        found = (effect, *ends) if name == which else clear
        monkeypatch.setattr(metric_result, name, lambda *_, found=found: found)
    assert row.denied == denied


def test_a_margin_is_of_the_mean() -> None:
    """A margin is about the mean: the treatment's mean is 10 % higher, but its logarithms are 2 %
    lower, as they vary more.
    """
    rng = np.random.default_rng(8)
    logs = rng.normal(0, 1, 40)
    treatment = np.exp(0.5 * (logs - logs.mean()) / logs.std() - 0.02)
    control = np.exp(rng.normal(0, 0.05, 40))
    pairs = [*zip(control.tolist(), treatment.tolist())]
    row = replace(BETTER, pairs=pairs, effect=analyse(pairs, 1), margin=15.0, corrected=1.0)
    assert row.margin_p is not None and row.margin_p < 0.05
    assert not row.no_worse
    assert "no worse than 15 %: not shown (p = " in row.verdict()
    assert row.verdict().endswith("differently, so their means may be farther apart than that)")
    higher = replace(row, pairs=[(after, before) for before, after in pairs])
    assert replace(higher, effect=analyse(higher.pairs, 1), margin=40.0).no_worse


def test_the_interval_of_totals_is_the_wider_of_two_where_arms_vary_differently() -> None:
    rng = np.random.default_rng(5)
    for size in (0.05, 0.4):
        logs = rng.normal([0.0, -0.5], [size, 0.1], (12, 2))
        row = replace(BETTER, pairs=[(exp(a), exp(b)) for a, b in logs], seed=3)
        mean, low, high = totals(row.pairs, 3)
        _, *ends = means_by_logs(logs[:, 1] - logs[:, 0], logs.sum(axis=1), 0.025)
        wider = (mean, min(low, ends[0]), max(high, ends[1]))
        assert told(replace(row), spread_p=(0.9, 0.024)).totals == pytest.approx(wider)
        assert told(replace(row), spread_p=(0.9, 0.025)).totals == (mean, low, high)
    assert row.worst() == pytest.approx([max(side) / np.mean(side)
                                         for side in zip(*row.pairs, strict=True)])  # fmt: skip
    assert replace(row, effect=None).totals is None
    assert DIFFERENCE.totals is None


@pytest.mark.parametrize(
    ("length", "p", "shown"),
    [("", 0.049, True), ("", 0.05, False), ("size", 0.034, True), ("size", 0.035, False),
     ("anytime", 0.049, True), ("anytime", 0.05, False)],
)  # fmt: skip
def test_the_level_of_a_margin(length: str, p: float, shown: bool) -> None:
    row = told(replace(NOTHING, margin=5.0, length=length), margin_p=p)
    assert row.no_worse == shown
    assert row.open != shown
    better = told(replace(BETTER, margin=5.0, length=length), margin_p=p)
    assert not better.open


def test_who_can_say_what_a_margin_is() -> None:
    """A margin is no percent of 0, and needs a metric with a direction."""
    for row in (replace(SHOWN, metric=UNSAID), replace(SHOWN, margin=0.0),
                replace(SHOWN, effect=None)):  # fmt: skip
        assert (row.margin_p, row.no_worse) == (None, False)
    nothing = result(0.0, -1, 1, 0.9, scale="difference", margin=5.0, pairs=[(0.0, 0.0)] * 10)
    assert nothing.margin_p == 1
    fell = result(0.0, -1, 1, 0.9, scale="difference", margin=5.0, pairs=[(0.0, -1.0)] * 10)
    assert fell.margin_p == 1
    below = result(0.0, -1, 1, 0.9, scale="difference", margin=5.0, pairs=[(-1.0, -1.0)] * 10)
    assert below.margin_p == 1
    some = result(0.0, -1, 1, 0.9, scale="difference", margin=5.0, pairs=[(1.0, 1.0)] * 10)
    assert some.margin_p == 2**-10
    early = replace(SHOWN, length="anytime", against=1)
    d = [*[log(1 / 1.05)] * 10]
    assert early.margin_p == p_below_anytime(with_lost(d, 1, 1.0))


def test_the_ends_of_words() -> None:
    assert BETTER.text(inf) == "+inf %"
    assert [result(each, each, each, 0.01, metric=UNSAID).finding() for each in (1.0, 1.0001)] == [
        "rose by 172 %", "rose to 2.72 times",
    ]  # fmt: skip
    rows = (BETTER, replace(BETTER, effect=None), replace(BETTER, metric=UNSAID))
    assert [row.good for row in rows] == [True, None, None]
    assert result(0.0, 0, 0, 0.01).good is False
    assert BETTER.shown(-inf) == -inf


# Doubts and notes


def test_doubts_of_a_metric() -> None:
    found = report_of(BETTER)
    few = told(replace(BETTER, pairs=[(10.0, 9.0)] * 9 + [(10.0, 19.0)]), spread_p=(0.01, 0.9),
               totals=(-0.1, -0.2, 0.0))  # fmt: skip
    assert [*found._doubts_of(few)] == [("totals",
        (
            "vmstat.pgfault/s: a few large blocks outweigh the others: the effect is -9.52 % "
            "by pairs, and -9.52 % by totals (-18.1 % .. +0 %); the largest block has 1.9 "
            "times the mean in treatment, 1 times in control"
        ), "vmstat.pgfault/s")
    ]  # fmt: skip
    lost = replace(BETTER, planned=40, lost={"control": 20, "treatment": 13})
    missing = ("vmstat.pgfault/s has a value in 10 of 40 pairs; the value is missing or not a "
               "number in 20 blocks of control, 13 blocks of treatment")  # fmt: skip
    assert [*found._doubts_of(lost)] == [("", missing, "vmstat.pgfault/s")]
    assert [*found._doubts_of(replace(lost, planned=10))] == []
    units = Metric.parse("u=unit:memory.current")
    gone = replace(BETTER, metric=units, lost={"control": 0, "treatment": 6})
    assert [*found._doubts_of(gone)] == [
        (
            "",
            (
                "u: more units ended within their blocks in one arm than in the other: 0 in "
                "control, 6 in treatment"
            ),
            "u",
        )
    ]
    assert [*found._doubts_of(replace(gone, lost={"control": 0, "treatment": 5}))] == []
    assert [*found._doubts_of(replace(gone, metric=FAULTS))] == []
    found.recording.end["status"] = "killed"
    assert [*found._doubts_of(lost)] == []


@pytest.mark.parametrize(("against", "said"), [
    (2, (
        "2 of the pairs without a value are counted as results against the effect"
    )), (0, "both arms have lost as many blocks"),
])  # fmt: skip
def test_few_lost_pairs_are_noted(against: int, said: str) -> None:
    lost = {"control": 1, "treatment": 1}
    found = report_of(replace(BETTER, planned=11, lost=lost, against=against))
    (note,) = found.notes()
    assert note == (
        "vmstat.pgfault/s has a value in 10 of 11 pairs; the value is missing or not a number in "
        f"1 blocks of control, 1 blocks of treatment; {said}"
    )
    assert [*report_of(replace(BETTER, planned=40, lost=lost)).notes()] == []


@pytest.mark.parametrize(
    ("row", "header", "end", "said"),
    [
        (BETTER, {}, {}, []),
        (replace(BETTER, aa_corrected=0.0099), {}, {},
         ["equal arms differed in the A/A phase: vmstat.pgfault/s"]),
        (replace(BETTER, aa_corrected=0.01), {}, {}, []),
        (BETTER, {"rare": 26.0}, {}, []),  # 3 in 10 would be seen by 10 pairs, 2.5 by 11
        (BETTER, {"rare": 25.0}, {},
         [f"there are too few blocks for --detect-rare: {RARE}; --detect-rare 25 takes 11 pairs"]),
        (replace(BETTER, metric=Metric.parse("a=psi.cpu.some.avg10")), {}, {},
         [(
             "metrics with a moving average, which includes earlier blocks: a; use the total "
             "instead, such as psi.memory.full.total/s"
         )]),
        (BETTER, {}, {"status": "lost", "reason": "x"},
         ["the run did not go to its planned end: lost, x"]),
        (BETTER, {"length": "anytime"}, {"status": "lost", "reason": "x"}, []),
        (BETTER, {}, None,
         ["the run did not go to its planned end: killed, its file has no last record"]),
    ],
)  # fmt: skip
def test_doubts_of_a_run(
    row: MetricResult, header: dict[str, Any], end: dict[str, str] | None, said: list[str]
) -> None:
    found = report_of(row)
    for window in found.recording.windows.values():
        for sample in window:
            sample.host.setdefault("psi.cpu.some.avg10", 1.0)
    found.header |= header
    found.recording.end = {} if end is None else found.recording.end | end
    assert [each.text for each in found._reasons()] == said


def test_notes_of_a_metric() -> None:
    def notes(row: MetricResult) -> list[str]:
        return [*report_of(row).notes()]

    within = (
        "the effect is within the A/A floor of ±10.5 %, by which equal arms may differ in a run"
    )
    assert notes(told(replace(BETTER), noise=0.1 + 1e-9)) == [
        f"vmstat.pgfault/s: {within} of this length; repeat the run"
    ]
    assert notes(told(replace(BETTER), noise=0.1)) == []
    assert notes(told(replace(BETTER, corrected=0.05), noise=0.2)) == []
    carried = replace(BETTER, carry=Carry(True, 0.5, 0.001, -0.1, -0.2, 0.002))
    what = (
        "The effect is underestimated, as memory that the other arm has left behind still "
        "acts, and the interval may miss it; take longer blocks and a longer --washout, or "
        "--at-switch"
    )  # fmt: skip
    assert notes(carried) == [
        (
            "carry-over of vmstat.pgfault/s: 50 % of the effect was still there in the next "
            f"block, which had the other arm (p = 0.001). {what}"
        ),
        (
            "carry-over of vmstat.pgfault/s: the effect was -9.52 % in the first half of the "
            f"blocks, -18.1 % in the second (p = 0.002). {what}"
        ),
    ]
    cut = report_of(BETTER, length="anytime")
    assert [*cut.notes()] == []
    cut.recording.end["status"] = "interrupted"
    assert [*cut.notes()] == [
        (
            "the run was interrupted; its result up to then is valid, as --stop anytime "
            "permits to end at any time"
        )
    ]
    late = report_of(BETTER)
    late.balance = replace(late.balance, control=2.5, late=0.5)
    assert [*late.notes()] == [
        f"blocks took longer than planned: {late.balance.text()}; take longer intervals"
    ]
    late.rows = []
    assert late._unseen() == "anything"
