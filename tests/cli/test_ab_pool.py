# SPDX-License-Identifier: GPL-2.0
"""`ab pool`: one experiment on many hosts."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from math import exp, expm1, inf, log, log1p, nan, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats as known
from scipy.stats import binomtest

from mmpolicy.ab.design import ALPHA, Design
from mmpolicy.ab.identity import seed_here
from mmpolicy.ab.metrics import Metric
from mmpolicy.ab.report import fleet
from mmpolicy.ab.report.fleet import _size
from mmpolicy.ab.report.pool import (
    Coins,
    HostEffect,
    HostRun,
    Left,
    Pool,
    Pooled,
    _check_own,
    _effect,
    _forest,
    _span,
    means_of,
    pooled,
    shared_jump,
    tau_squared,
    variances_of,
)
from mmpolicy.ab.report.pool_means import Means
from mmpolicy.ab.report.report import AA, CARRY, LOST, OWN, TOTALS, Doubt, Report
from mmpolicy.ab.samples import Recording, parse
from mmpolicy.ab.sources import ARMS
from mmpolicy.errors import Exit

from .fakes import FakeTree, Result, Run
from .simulate import DEFAULT_PAIRS, Rng, Vector
from .test_ab_report import Lines
from .test_host import raised
from .worlds import normal, plain, recorded

FULL = pytest.mark.full
NOISE = 0.1


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> list[FakeTree]:
    """Return 20 machines."""
    found = [FakeTree(tmp_path_factory.mktemp("host")) for _ in range(20)]
    for number, tree in enumerate(found):
        tree.put("/etc/machine-id", f"{number:032x}")
    return found


def tossed(seed: int) -> Vector:
    """Return the coins of `ab run` with a seed: 1 where the second block has the treatment."""
    blocks = Design("switchback", 3, 1, 1, seed).blocks("ab", DEFAULT_PAIRS)
    return np.array([1.0 if block.arm == "treatment" else -1.0 for block in blocks][1::2])


def hosts_of(
    rng: Rng, machines: list[FakeTree], tau: float, typed: int, effect: float = 0.0
) -> list[HostEffect]:
    """Return hosts that differ by tau and share the shocks of each time; all use one --seed."""
    shocks = rng.normal(0, NOISE, DEFAULT_PAIRS)
    found = []
    for number, machine in enumerate(machines):
        later = shocks + rng.normal(0, NOISE, DEFAULT_PAIRS)
        d = tossed(seed_here(machine, typed)) * later
        found.append(HostEffect(str(number), rng.normal(effect, tau) + d))
    return found


@pytest.mark.parametrize("runs", [40, pytest.param(4000, marks=FULL)])
@pytest.mark.parametrize("tau", [0.0, 0.03, 0.1])
@pytest.mark.parametrize("hosts", [3, 6, 20])
def test_hosts_that_differ_and_share_shocks(
    machines: list[FakeTree], hosts: int, tau: float, runs: int
) -> None:
    """On hosts that differ and share shocks, 6.5 % of equal arms are found at most; the interval
    holds the truth in 93 to 99 %.
    """
    rng, held, false, here = np.random.default_rng([32, hosts]), 0, 0, 0
    for typed in range(runs):
        found = pooled(hosts_of(rng, machines[:hosts], tau, typed, 0.05), tosses=399)
        held += found.low <= 0.05 <= found.high
        equal = pooled(hosts_of(rng, machines[:hosts], tau, typed), tosses=199)
        false += equal.p < ALPHA
        here += equal.p_here < ALPHA
    shares = f"holds it in {held / runs:.2%}, found in {false / runs:.2%}, here {here / runs:.2%}"
    print(f"{hosts} hosts, {tau:.0%}: {shares}")
    assert binomtest(false, runs, 0.065, alternative="greater").pvalue > 0.001
    assert binomtest(held, runs, 0.93, alternative="less").pvalue > 0.001
    assert binomtest(held, runs, 0.99, alternative="greater").pvalue > 0.001
    assert tau or binomtest(here, runs, 0.065, alternative="greater").pvalue > 0.001


def test_the_same_coins_on_all_hosts_would_find_shocks(machines: list[FakeTree]) -> None:
    """With the same coins on all hosts, a fifth and more of equal arms would be found; so each host
    has a seed of its own.
    """
    rng, false = np.random.default_rng(33), 0
    for typed in range(60):
        hosts = hosts_of(rng, machines[:1] * 6, 0.0, typed)
        false += pooled(hosts, tosses=1).p < ALPHA
    print(f"found in {false / 60:.0%}")
    assert false >= 6


@pytest.mark.parametrize("runs", [100, pytest.param(4000, marks=FULL)])
@pytest.mark.parametrize("hosts", [3, 6])
def test_coins_of_these_hosts(machines: list[FakeTree], hosts: int, runs: int) -> None:
    """By the coins of these hosts, 5 % of equal arms are found, though all hosts have
    equal shocks.
    """
    rng, found = np.random.default_rng(hosts), 0
    for typed in range(runs):
        effects = hosts_of(rng, machines[:hosts], 0.0, typed)
        found += pooled(effects, tosses=999).p_here < ALPHA
    print(f"found in {found / runs:.1%}")
    assert binomtest(found, runs, 0.05).pvalue > 0.001


def test_the_noise_of_few_pairs_is_that_of_all_hosts() -> None:
    """The noise of a host with few pairs is that of all hosts, unless hosts differ by more than
    chance; then each keeps about its own.
    """
    rng = np.random.default_rng(34)
    alike = variances_of([HostEffect(str(n), rng.normal(0, NOISE, 12)) for n in range(40)])
    assert np.std(np.log(alike)) < 0.2  # 0.43 without pooling
    assert alike.mean() == pytest.approx(NOISE**2 / 12, rel=0.15)
    sizes = np.array([0.01, 0.1, 1.0] * 10)
    apart = variances_of([HostEffect(str(s), rng.normal(0, s, 30)) for s in sizes])
    assert np.log(apart) == pytest.approx(np.log(sizes**2 / 30), abs=1)


def test_the_variance_between_hosts() -> None:
    """With the variance between hosts of Paule and Mandel, the sum of weighted squares has its
    expected value.
    """
    effects, variances = np.array([0.1, 0.2, -0.3, 0.0]), np.array([0.01, 0.02, 0.005, 0.01])
    tau2 = tau_squared(effects, variances)
    weights = 1 / (variances + tau2)
    mean = (weights * effects).sum() / weights.sum()
    assert (weights * (effects - mean) ** 2).sum() == pytest.approx(3)
    assert tau_squared(np.array([0.1, 0.1, 0.11]), variances[:3]) == 0
    for size in (1e-3, 1e3):
        apart, little = size * np.array([1.0, -1.0]), size**2 * np.array([1e-4, 3e-4])
        tau2 = tau_squared(apart, little)
        weights = 1 / (little + tau2)
        mean = (weights * apart).sum() / weights.sum()
        assert (weights * (apart - mean) ** 2).sum() == pytest.approx(1)


def test_hosts_on_which_nothing_differs() -> None:
    """Hosts on which a metric is constant in all blocks, such as locked memory, give a result."""
    found = pooled([HostEffect(str(number), np.zeros(6)) for number in range(3)])
    assert (found.mean, found.p, found.p_here) == (0, 1, 1)
    gain = pooled([HostEffect(str(number), np.full(6, -0.1)) for number in range(3)])
    assert max(gain.p, gain.p_here) < ALPHA


def lines_of(number: int, effect: float = -0.04) -> Lines:
    """Return the lines of a host of a fleet."""
    lines = Lines(
        version=2, digest="d", experiment="e", started="2026-01-01T00:00:00+00:00",
        roles={}, seed=number, host={"name": f"host{number}", "kernel": "6.12"},
    )  # fmt: skip
    lines.rng.seed(number)
    return lines.pairs("aa", 8).pairs("ab", 12, effect)


@pytest.mark.parametrize("hosts", [40, pytest.param(1000, marks=FULL)])
def test_a_fleet_takes_little_memory(hosts: int) -> None:
    """Pooling a fleet takes little memory: 10,000 hosts would take a tenth of a gigabyte."""
    held: list[int] = []

    def recordings() -> Iterator[tuple[str, Recording]]:
        for number in range(hosts):
            recording = parse(lines_of(number).end(), str(number))
            recording.header["notes"] = "x" * 20_000  # as if the whole file were kept
            held.append(tracemalloc.get_traced_memory()[0])
            yield f"host{number}.jsonl", recording

    tracemalloc.start()
    try:
        found = Pool(recordings())
    finally:
        tracemalloc.stop()
    quarter = hosts // 4
    each = (held[-1] - held[quarter]) / (len(held) - 1 - quarter)
    print(f"{each:.0f} bytes for each host; {found.verdict()}")
    assert 0 < each < 10_000
    assert found.exit == 0 and len(found.runs) == hosts


@pytest.fixture
def pool(run: Run, tmp_path: Path) -> Any:
    """Return a function that pools the runs of hosts, of which each has its effect."""

    def pool(effects: list[float], *words: str, **change: Any) -> Result:
        files = []
        for number, effect in enumerate(effects):
            lines = lines_of(number, effect)
            lines.end(**({"status": "done"} | (change.get("end", {}) if number == 0 else {})))
            lines.records[0] |= change.get("header", {}) if number == 0 else {}
            file = tmp_path / f"{number}.jsonl"
            file.write_text("".join(lines))
            files.append(str(file))
        return run("ab", "pool", *files, *words)

    return pool


def test_a_gain_on_all_hosts(pool: Any) -> None:
    result = pool([-0.1, -0.12, -0.09, -0.11])
    assert result.code == 0, result.out
    assert "host2" in result.out
    assert "verdict: the treatment is better on these hosts, and on hosts like these" in result.out
    data = json.loads(pool([-0.1, -0.12, -0.09, -0.11], "--json").out)
    (metric,) = data["metrics"]
    assert metric["low"] < -10 < metric["high"] < -5
    assert metric["next_low"] < metric["low"]
    assert [host["pairs"] for host in metric["hosts"]] == [12] * 4


def test_hosts_that_do_not_agree(pool: Any) -> None:
    """If all hosts are clear, but in both directions, there is no prediction for the next host."""
    result = pool([-0.2, 0.2, -0.2, 0.15])
    assert (result.code, "verdict: inconclusive" in result.out) == (7, True)
    assert pool([0.1, 0.12, 0.09, 0.11]).code == 8


def test_a_host_that_was_stopped_is_counted(pool: Any) -> None:
    end = {"status": "guard", "arm": "treatment", "reason": "a guard"}
    result = pool([-0.1, -0.12, -0.09, -0.11], end=end)
    assert result.code == 7
    assert "hosts where a guard stopped the run in the treatment: host0 (1 of 4)" in result.out
    assert "a guard stopped the run in the treatment on host0" in result.out.splitlines()[-1]


@pytest.mark.parametrize(
    ("header", "text"),
    [
        ({"digest": "other"}, "0.jsonl are not of the same experiment"),
        ({"version": 1, "digest": ""}, "was written by an old version of mmpolicy, which did"),
        ({"seed": 1}, "have the same seed and overlap in time"),
        ({"seed": 2}, "0.jsonl and "),
    ],
)
def test_files_that_cannot_be_pooled(pool: Any, header: dict[str, Any], text: str) -> None:
    result = pool([-0.1, -0.1, -0.1], header=header)
    assert (result.code, text in result.err) == (2, True), result.err


def test_the_place_in_the_pair_is_taken_out() -> None:
    """The place in the pair is taken out: on each host, the second block of each pair has half as
    many faults more.
    """
    lines = Lines(version=2, digest="d", experiment="e", started="", roles={}, pairs=12)
    for pair in range(12):
        arms = ["control", "treatment"]
        lines.rng.shuffle(arms)
        for place, arm in enumerate(arms):
            rate = 1000 * (1 + place / 2) * (0.9 if arm == "treatment" else 1.0)
            lines.block("ab", pair, arm, {arm: rate * lines.rng.gauss(1, 0.01)}, 50)
    (effect,) = HostRun.of("x", parse(lines.end(), "x")).effects.values()
    assert effect.mean == pytest.approx(log(0.9), abs=0.02)
    assert effect.noise < 0.01


@pytest.mark.parametrize(
    ("seed", "span", "refused"),
    [
        (1, "24", True), (1, "25", True), (1, "13", True), (1, "56", False), (1, "01", False),
        (1, "12", True), (2, "24", False),
    ],
)  # fmt: skip
def test_coins_that_are_tossed_twice(seed: int, span: str, refused: bool) -> None:
    """Coins that were tossed twice are refused: other runs with this seed took from 2 to 4, and
    from 7 to 9.
    """
    files = {"b": (1, "24"), "c": (1, "79"), "a": (seed, span), "d": (0, "19"), "e": (3, "19")}
    runs = [HostRun(path, "d", number, (times[0], times[1]), path, {}, [], False)
            for path, (number, times) in files.items()]  # fmt: skip
    if not refused:
        _check_own(runs)
        return
    told = raised(_check_own, runs)
    assert told.message == (
        "a and b have the same seed and overlap in time: they assigned the arms by the "
        "same random choices, so they do not count as two hosts"
    )


def test_a_clock_that_was_set_back_has_run_for_no_time() -> None:
    found = Recording({"started": "5"}, {0: {}, 1: {"at": "3"}, 2: {"at": "4"}})
    assert _span(found) == ("5", "5")
    found.blocks[1]["at"] = "7"
    assert _span(found) == ("5", "7")


# Results of hosts together


def seen(
    mean: float = -0.1, p: float = 0.01, here: float | None = None, low: float = -0.2,
    high: float = -0.05,
) -> Pooled:  # fmt: skip
    """Return a pooled result, with defaults for all but the given values."""
    p_here = p if here is None else here
    return Pooled(mean + 0.01, p_here, mean, low, high, p, 0.02, 0.3, 0.45, -0.3, 0.1)


def pool_of(
    texts: list[str], results: list[Pooled | None], margin: float = 0.0, stopped: str = "",
    effects: list[HostEffect] | None = None, runs: int = 2,
) -> Pool:  # fmt: skip
    """Return a pool of hosts, of which only the results matter."""
    found = Pool.__new__(Pool)
    found.metrics, found.margin = [Metric.parse(text) for text in texts], margin
    named = [(each.name, one) for each, one in zip(found.metrics, results, strict=True)]
    found.results = {name: one for name, one in named if one}
    found.means = dict.fromkeys(found.results, Means())
    found.effects = {each.name: effects or [] for each in found.metrics}
    found.runs = [HostRun(str(n), "d", n, ("", ""), f"host{n}", {}, [], str(n) in stopped)
                  for n in range(runs)]  # fmt: skip
    return found


LOWER, HIGHER, UNSAID = "a=vmstat.nr_a lower", "h=vmstat.nr_h higher", "u=vmstat.nr_u"
GUARD = "g=vmstat.nr_g lower guard 5%"
EQUAL = seen(0.0, 0.9, low=-0.04, high=0.04)
GAIN, OPEN, BAD = Exit.DONE, Exit.INCONCLUSIVE, Exit.WORSE


@pytest.mark.parametrize(
    ("texts", "results", "margin", "code"),
    [
        ([LOWER], [seen()], 0, GAIN),
        ([LOWER], [seen(p=0.049)], 0, GAIN),
        ([LOWER], [seen(p=0.05, here=0.01)], 0, OPEN),
        ([LOWER], [seen(here=0.05)], 0, OPEN),
        ([LOWER], [seen(0.1)], 0, BAD),
        ([LOWER], [seen(0.0)], 0, BAD),
        ([LOWER], [seen(0.1, 0.5)], 0, OPEN),
        ([HIGHER], [seen()], 0, BAD),
        ([HIGHER], [seen(0.1)], 0, GAIN),
        ([UNSAID], [seen(0.1)], 0, GAIN),
        ([UNSAID], [seen(-0.1)], 0, GAIN),
        ([UNSAID], [seen(-0.1, 0.5)], 0, OPEN),
        ([LOWER, UNSAID], [seen(), seen(0.1, 0.9)], 0, GAIN),
        ([LOWER, HIGHER], [seen(p=0.024), seen(0.1, p=0.024)], 0, GAIN),
        ([LOWER, HIGHER], [seen(p=0.024), seen(0.1, p=0.025)], 0, OPEN),
        ([LOWER, HIGHER], [seen(), None], 0, OPEN),
        ([LOWER, GUARD], [seen(p=0.049), EQUAL], 0, GAIN),
        ([LOWER, GUARD], [seen(), seen(0.0, 0.9, high=0.05)], 0, OPEN),
        ([LOWER, GUARD], [seen(), seen(0.0, 0.9, high=log(1.05))], 0, OPEN),
        ([LOWER, GUARD], [seen(), seen(0.2, high=0.3)], 0, BAD),
        ([LOWER, GUARD], [seen(), seen(0.02, high=0.03)], 0, GAIN),
        ([LOWER, GUARD], [seen(), seen(0.0, 0.9, high=0.1)], 50, OPEN),
        ([GUARD], [seen()], 0, OPEN),
        ([GUARD], [EQUAL], 0, OPEN),
        ([GUARD], [seen(0.1, 0.04, high=0.2)], 0, BAD),
        ([LOWER, HIGHER], [seen(), EQUAL], 5, GAIN),
        ([LOWER, HIGHER], [seen(), EQUAL], 3, OPEN),
        ([LOWER, HIGHER], [seen(), seen(0.0, 0.9, low=log(0.95))], 5, OPEN),
        ([LOWER, HIGHER], [seen(), EQUAL], 0, OPEN),
    ],
)
def test_the_exit_of_a_pool(
    texts: list[str], results: list[Pooled | None], margin: float, code: Exit
) -> None:
    """The exit code of a pool follows the margins: 5 % of 0.95 times is -0.0513, of 1.05 times
    0.0488; two metrics are tested at 2.5 % each.
    """
    found = pool_of(texts, results, margin)
    assert found.exit == code
    said = {GAIN: "the treatment is better on these hosts, and on hosts like these",
            BAD: "the treatment is worse on these hosts, and on hosts like these"}  # fmt: skip
    assert found.verdict() == said.get(
        code, "inconclusive: not every metric that needs to get better is shown to be better"
    )
    broke = pool_of(texts, results, margin, stopped="1")
    assert broke.exit == (BAD if code == BAD else OPEN)
    told = "inconclusive: a guard stopped the run in the treatment on host1"
    assert broke.verdict() == (said[BAD] if code == BAD else told)


def test_a_pool_in_words() -> None:
    hosts = [HostEffect("a", np.array([-0.1, -0.2, -0.15])),
             HostEffect("long", np.array([0.1, -0.1, 0.0, 0.2]))]  # fmt: skip
    found = pool_of([LOWER, UNSAID], [seen(), None], effects=hosts, stopped="02", runs=3)
    found.runs[1].doubts.extend([Doubt(OWN, "this"), Doubt(TOTALS, "that")])
    found.runs[0].left["a"] = "ab pool compares ratios, and some values are 0 or less"
    ends = [host.d.mean() + t * known.sem(host.d)
            for host in hosts for t in known.t.ppf([0.025, 0.975], len(host.d) - 1)]  # fmt: skip
    percent = [f"{100 * expm1(each):+.3g} %" for each in ends]
    cells = [f"{'-' * 9}o{'-' * 9} |{' ' * 20}", f"{' ' * 9}{'-' * 11}|---o{'-' * 15} "]
    rows = [
        f"  a     {cells[0]}  -13.9 % ({percent[0]} .. {percent[1]})",
        f"  long  {cells[1]}  +5.13 % ({percent[2]} .. {percent[3]})",
    ]
    assert found.lines() == [
        LOWER, *rows,
        "  effect on these 2 hosts: -8.61 % (p = 0.01, by redrawing all random assignments)",
        "  effect on hosts like these: -9.52 % (-18.1 % .. -4.88 %), p = 0.01",
        "  effect on the next host, as a rough guide: -25.9 % .. +10.5 %; the effect differs "
        "between hosts by 2 % (I2 45 %, "
        "p = 0.3)",
        "", UNSAID, *rows, "  no result: fewer than 2 hosts have enough pairs", "",
        "host left out: host0: a: ab pool compares ratios, and some values are 0 or less",
        "doubt: host1: this", "note: host1: that",
        "hosts where a guard stopped the run in the treatment: host0, host2 (2 of 3)",
        "verdict: inconclusive: a guard stopped the run in the treatment on host0, host2",
    ]  # fmt: skip
    whole = pool_of([LOWER], [seen()], effects=hosts).lines()
    assert [line for line in whole if "left out" in line] == []
    assert whole[-2:] == [
        "hosts where a guard stopped the run in the treatment: none (0 of 2)",
        "verdict: the treatment is better on these hosts, and on hosts like these",
    ]


def test_a_pool_for_programs() -> None:
    hosts = [HostEffect("a", np.array([-0.1, -0.2, -0.15])), HostEffect("b", np.zeros(4))]
    pool = pool_of([LOWER, UNSAID], [seen(), None], effects=hosts, stopped="1")
    pool.runs[0].doubts.append(Doubt(OWN, "this"))
    pool.runs[1].left["u"] = "why"
    found = pool.data()
    of_hosts = [{"host": "a", "pairs": 3, "effect": pytest.approx(100 * expm1(-0.15))},
                {"host": "b", "pairs": 4, "effect": 0}]  # fmt: skip
    effects = {"here": -0.09, "mean": -0.1, "low": -0.2, "high": -0.05, "next_low": -0.3,
               "next_high": 0.1}  # fmt: skip
    numbers = {name: pytest.approx(100 * expm1(each)) for name, each in effects.items()}
    rest = {"p_here": 0.01, "p": 0.01, "tau": 0.02, "heterogeneity_p": 0.3, "i2": 0.45}
    assert found == {
        "verdict": "inconclusive: a guard stopped the run in the treatment on host1", "exit": 7,
        "metrics": [{"metric": "a", "hosts": of_hosts, **numbers, **rest},
                    {"metric": "u", "hosts": of_hosts}],
        "stopped": ["host1"], "in_doubt": [{"host": "host0", "reason": "this"}],
        "left_out": [{"host": "host1", "reason": "u: why"}],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("d", "cells", "effect"),
    [
        (0.0, f"{'-' * 20}o{'-' * 20}", "+0 %"),  # no noise counts as very little noise
        (0.1, f"{' ' * 20}|{' ' * 19}o", "+10.5 %"),
        (-0.1, f"o{' ' * 19}|{' ' * 20}", "-9.52 %"),
    ],
)
def test_hosts_are_drawn_about_0(d: float, cells: str, effect: str) -> None:
    (drawn,) = _forest([HostEffect("x", np.full(3, d))])
    assert drawn.startswith(f"  x  {cells}  {effect} (")
    assert _forest([]) == []


@pytest.mark.parametrize(
    ("pairs", "firsts", "design", "known_host"),
    [(3, 3, "switchback", True), (2, 2, "switchback", False), (3, 0, "split", True)],
)
def test_hosts_with_enough_pairs(pairs: int, firsts: int, design: str, known_host: bool) -> None:
    metric = "arm.anon_order.n/s" if design == "split" else "vmstat.pgfault/s"
    lines = Lines(design, version=2, started="", metrics=[metric])
    recording = Recording(lines.records[0])
    for record in lines.pairs("ab", pairs).records[1:]:
        recording.add(record)
    found = _effect("x", recording, Metric.parse(metric))
    assert len(recording.firsts()) == firsts
    if known_host:
        assert isinstance(found, HostEffect)
        assert (found.name, len(found.d), len(found.sums)) == ("x", pairs, pairs)
    else:
        assert found == Left("2 pairs have a value in both blocks, and ab pool needs 3")


def test_an_interval_is_never_narrower_than_that_of_the_coins() -> None:
    """An interval is never narrower than that of the coins: if the coins of three hosts agree about
    a jump, only they show that it may be one.
    """
    rng, jump = np.random.default_rng(4), np.zeros(12)
    jump[6] = log(2)
    hosts = [HostEffect(str(n), rng.normal(0, 0.04, 12) + jump) for n in range(3)]
    found, coins = pooled(hosts), Coins.of(hosts, 1, 9999)
    assert coins.low < 0 < coins.high
    assert (found.low, found.high) == (coins.low, coins.high)
    assert found.p < 0.05 < found.p_here


def test_the_coins_of_few_pairs_can_be_counted() -> None:
    """For two hosts with 3 pairs, the interval has the means of all but the outermost subsets."""
    hosts = [HostEffect("a", np.array([0.1, 0.2, 0.3])), HostEffect("b", np.array([1.0, 1.1, 1.2]))]
    d = np.concatenate([host.d for host in hosts])
    means = sorted(float(d[[bool(n >> at & 1) for at in range(6)]].mean()) for n in range(1, 64))
    found = Coins.of(hosts, 3, 9999)
    assert (found.low, found.high) == pytest.approx((means[1], means[-2]))


def test_lost_pairs_count_against_what_hosts_show() -> None:
    """Lost pairs count against the result: on these hosts as in a report, on hosts like these by as
    much as they may move the mean.
    """
    rng = np.random.default_rng(5)
    hosts = [HostEffect(str(n), rng.normal(-0.05, 0.03, 12)) for n in range(4)]
    plain = pooled(hosts)
    assert max(plain.p, plain.p_here) < 0.05
    found = pooled([replace(host, against=1) for host in hosts])
    clearest = [replace(host, d=np.append(max(abs(host.d)), host.d)) for host in hosts]
    assert (found.p_here, found.here) == (pooled(clearest).p_here, plain.here)
    one = replace(hosts[0], against=2)
    farthest = [one.mean + sign * max(abs(one.d - one.mean)) for sign in (-1, 1)]
    moved = [np.append([end] * 2, one.d).mean() - one.mean for end in farthest]
    assert moved == pytest.approx([-one.off, one.off])
    assert found.low < plain.low < plain.high < found.high
    assert found.high - plain.high == pytest.approx(plain.low - found.low)
    assert plain.p < found.p
    many = pooled([replace(host, against=30) for host in hosts])
    assert many.p_here == 1


def lost_doubt(rng: Rng, number: int) -> list[str]:
    """Return the doubts of a run of 12 pairs with a number of lost blocks, in alternating arms."""

    def draw(rng: Rng, treated: Vector) -> dict[str, Vector]:
        values = plain(normal(0.01), -10)(rng, treated)["m"]
        for pair in range(number):
            values[np.flatnonzero((treated > 0) == pair % 2)[pair]] = nan
        return {"m": values}

    return [doubt.kind for doubt in Report(recorded(rng, draw)).reasons]


def test_a_pool_judges_lost_pairs_of_a_host_by_all_hosts() -> None:
    """If a host has lost two of 12 pairs by chance in either arm, its report has no doubt, but the
    pool may.
    """
    rng, usual = np.random.default_rng(3), plain(normal(0.01), -10)

    def lossy(rng: Rng, treated: Vector) -> dict[str, Vector]:
        values = usual(rng, treated)["m"]
        for side, pair in ((treated == 0, 2), (treated > 0, 7)):
            values[np.flatnonzero(side)[pair]] = nan
        return {"m": values}

    runs = [recorded(rng, draw) for draw in (lossy, usual, usual, usual)]
    pool = Pool((f"h{number}", run) for number, run in enumerate(runs))
    assert Report(runs[0]).exit == Exit.INCONCLUSIVE
    assert [host.against for host in pool.effects["m"]] == [2, 0, 0, 0]
    assert (pool.exit, pool.open_doubts) == (Exit.DONE, [])
    name = pool.runs[0].label
    assert f"  pairs without a value are counted against the result: {name} (2)" in pool.lines()
    text = (
        "m has a value in 10 of 12 pairs; the value is missing or not a number in "
        "1 blocks of control, "
    )
    assert f"note: {name}: {text}1 blocks of treatment" in pool.lines()
    assert [lost_doubt(rng, number) for number in (2, 4, 5)] == [[LOST], [LOST], [OWN]]
    held_back = pool_of([LOWER], [EQUAL], effects=[replace(pool.effects["m"][0], name="h")])
    assert held_back.verdict().endswith(
        "to be better; pairs without a value are counted against the result: h (2)"
    )


def test_a_jump_that_hosts_share_is_looked_for() -> None:
    """A jump of several hosts at one time is reported, whatever their coins; a jump of one host is
    not.
    """
    rng = np.random.default_rng(6)

    def host(name: str, at: int, start: float, size: float = 1.0) -> HostEffect:
        d = rng.normal(0, 0.03, 12)
        d[at] = size
        return HostEffect(name, d, np.zeros(12), np.asarray(start + 60.0 * np.arange(12)))

    hosts = [host("a", 3, 0), host("b", 2, 70, -1.0), host("c", 3, 600), host("d", 3, 0, 0.05)]
    assert shared_jump(hosts) == ["a", "b"]
    assert shared_jump([hosts[0], *hosts[2:]]) == []
    found = pool_of([LOWER], [seen()], effects=hosts)
    jump = "  the values of a, b jump at the same time, so these hosts are not independent; the"
    assert (
        f"{jump} interval for hosts like these was therefore widened to contain that of the "
        "redrawn assignments" in found.lines()
    )


@pytest.mark.parametrize(
    ("doubts", "hosts", "code"),
    [
        ([(OWN, 1)], 30, OPEN), ([(TOTALS, 9)], 30, GAIN), ([(LOST, 9)], 30, GAIN),
        ([(AA, 1)], 30, GAIN),
        ([(AA, 4)], 30, OPEN), ([(AA, 1)], 2, GAIN), ([(AA, 2)], 3, OPEN),
        ([(CARRY, 4)], 30, GAIN), ([(CARRY, 6)], 30, OPEN), ([], 2, GAIN),
    ],
)  # fmt: skip
def test_doubts_of_hosts_count(doubts: list[tuple[str, int]], hosts: int, code: Exit) -> None:
    """Doubts that chance raises on one host in a hundred, or twenty, need more hosts."""
    found = pool_of([LOWER], [seen()], runs=hosts)
    for kind, number in doubts:
        for run in found.runs[:number]:
            run.doubts.append(Doubt(kind, "why"))
    assert found.exit == code
    assert (
        found.verdict() == "inconclusive: the results of these hosts are in doubt: host0 (why)"
    ) == (doubts == [(OWN, 1)])
    if doubts == [(AA, 4)]:
        told = "host0 (why), host1 (why), host2 (why) and 1 more"
        assert found.verdict() == f"inconclusive: the results of these hosts are in doubt: {told}"


def test_a_host_that_is_left_out_is_named() -> None:
    found = pool_of([LOWER], [seen()])
    found.runs[1].left["a"] = "ab pool compares ratios, and some values are 0 or less"
    assert found.exit == OPEN
    told = "host1 (a: ab pool compares ratios, and some values are 0 or less)"
    assert found.verdict() == f"inconclusive: these hosts had to be left out: {told}"
    assert pool_of([LOWER, HIGHER], [seen(0.1), None]).exit == BAD  # despite other questions


def test_means_have_to_bear_it_out() -> None:
    """Means must confirm the result: the arm that varies more has lower logarithms, in which a few
    large blocks hardly count.
    """
    calm = Means(0.5, 0.5, pairs=(-0.2, 0.0), total=-0.1, totals=(-0.2, 0.1))
    assert calm.bear(True, 0.0, -0.1, -0.05) and calm.bear(False, -0.2, -0.1, -0.15)
    more = Means(0.19, 0.81, 0.06, 0.01, 0.01, pairs=(-0.2, 0.0), total=-0.1, totals=(-0.2, 0.1))
    assert not more.bear(True, 0.0, -0.1, -0.05)
    assert more.bear(True, 0.02, -0.1, -0.05) and more.bear(False, -0.2, -0.1, -0.15)
    less = Means(0.81, 0.19, -0.06, 0.01, 0.01, pairs=(-0.2, 0.0), total=-0.1, totals=(-0.2, 0.1))
    assert less.bear(True, 0.0, -0.1, -0.05) and not less.bear(False, -0.2, -0.1, -0.15)
    spiked = Means(pairs=(-0.2, -0.1), total=-0.09, totals=(-0.2, 0.0))
    assert not spiked.bear(True, 0.0, -0.15, -0.05) and spiked.bear(True, 0.01, -0.15, -0.05)
    sunk = Means(pairs=(0.1, 0.2), total=0.09, totals=(0.0, 0.2))
    assert not sunk.bear(False, 0.0, 0.15, 0.05) and sunk.bear(False, -0.01, 0.15, 0.05)


def test_the_means_of_hosts() -> None:
    """In the means of hosts, the totals of each host have equal weight, even if the treatment
    varies fivefold.
    """
    rng = np.random.default_rng(7)
    hosts = []
    for number in range(4):
        control, treatment = rng.normal(number, 0.1, 12), rng.normal(number, 0.5, 12)
        hosts.append(HostEffect(str(number), treatment - control, treatment + control))
    found = means_of(hosts)
    assert found.more_p < 0.001 and found.less_p == pytest.approx(1 - found.more_p)
    halves = [(np.var((h.sums + h.d) / 2, ddof=1) - np.var((h.sums - h.d) / 2, ddof=1)) / 2
              for h in hosts]  # fmt: skip
    assert found.rise == pytest.approx(np.mean(halves))
    sums = np.zeros(2)
    for h in hosts:
        both = np.stack([np.exp((h.sums + h.d) / 2), np.exp((h.sums - h.d) / 2)])
        sums += both.mean(axis=1) / both.mean()
    assert found.total == pytest.approx(log(sums[0] / sums[1]))
    assert found.totals[0] < found.total < found.totals[1]
    equal = means_of([HostEffect("x", np.zeros(5), np.ones(5))] * 2)
    assert (equal.more_p, equal.rise, equal.total) == (0.5, 0, 0)


def test_one_file_is_no_pool(pool: Any) -> None:
    assert "ab pool needs the files of two" in pool([-0.1]).err


# Length of an experiment on a fleet


@pytest.mark.parametrize("runs", [100, pytest.param(2000, marks=FULL)])
@pytest.mark.parametrize(("hosts", "tau"), [(4, 0.0), (6, 0.025), (20, 0.05)])
def test_the_planned_size_finds_it(hosts: int, tau: float, runs: int) -> None:
    """The planned size of a fleet finds 5 % in 80 % of fleets."""
    pairs, _ = _size(hosts, NOISE, log1p(0.05), tau, 1)
    assert pairs
    rng, found = np.random.default_rng(hosts), 0
    for _ in range(runs):
        d = rng.normal(log1p(0.05) + rng.normal(0, tau, (hosts, 1)), NOISE, (hosts, pairs))
        effects = [HostEffect(str(number), each) for number, each in enumerate(d)]
        found += pooled(effects, tosses=9).p < 0.05
    print(f"{hosts} hosts that differ by {tau:.1%}, {pairs} pairs: found in {found / runs:.1%}")
    assert binomtest(found, runs, 0.8, alternative="less").pvalue > 0.001
    assert pairs == 3 or found < 0.95 * runs


def test_a_plan_from_files(run: Run, tmp_path: Path) -> None:
    """More hosts need fewer pairs; if hosts differ too much, no number is enough."""
    files = []
    for number in range(3):
        lines = Lines(seed=number)
        lines.rng.seed(number)
        file = tmp_path / f"{number}.jsonl"
        file.write_text("".join(lines.pairs("aa", 20, noise=0.07).pairs("ab", 2).end()))
        files.append(str(file))
    words = ["ab", "plan", *files, "--detect", "5", "--json"]
    assert run(*words, "--hosts", "5").err == ""
    few, many = (run(*words, "--hosts", hosts).json["metrics"][0] for hosts in ("5", "20"))
    assert few["noise"] == pytest.approx(0.1, rel=0.3)
    assert few["pairs"] > many["pairs"] >= 3
    lost = run(*words, "--hosts", "5", "--differ", "10").json["metrics"][0]
    assert lost["pairs"] is None
    assert lost["hosts"] > 20
    told = run("ab", "plan", *files, "--hosts", "5", "--differ", "10").out
    assert (
        "5 hosts cannot show a change of 5 %, however many pairs each has; use "
        f"{lost['hosts']} hosts or more"
    ) in told
    short = tmp_path / "short.jsonl"
    short.write_text("".join(Lines().pairs("aa", 2).pairs("ab", 6).end()))
    assert (
        "none of the files has 3 pairs of blocks"
        in run("ab", "plan", str(short), "--hosts", "5").err
    )


class Noisy:
    """The parts of a file that the plan of a fleet needs."""

    def __init__(self, aa: list[float], ab: list[float], same: bool = False) -> None:
        self.d = {"aa": aa, "ab": ab}
        policies = ("stock", "stock" if same else "fixed")
        self.header = {arm: {"settings": {"anon_order/policy": each}}
                       for arm, each in zip(ARMS, policies, strict=True)}  # fmt: skip
        self.texts = [LOWER]

    def metrics(self) -> list[Metric]:
        """Return the metrics of the run."""
        return [Metric.parse(text) for text in self.texts]

    def pairs(self, metric: Metric, phase: str) -> list[tuple[float, float]]:
        """Return pairs with these differences of logarithms; none for another metric."""
        return [(1.0, exp(each)) for each in self.d[phase]] if metric.name == "a" else []


@pytest.mark.parametrize(
    ("aa", "ab", "same", "noise"),
    [
        ([0.1, 0.2, 0.3], [9.0], False, [0.01]),
        ([0.1, 0.2], [9.0], False, []),
        ([0.1, 0.2], [0.3], True, [0.01]),
        ([], [0.1, 0.2, 0.3, 0.4], True, [0.05 / 3]),
        ([], [0.1, 0.2, 0.3, 0.4], False, []),
        ([-inf, 0.2, 0.3, 0.4], [], True, []),
    ],
)
def test_the_noise_of_equal_arms(
    aa: list[float], ab: list[float], same: bool, noise: list[float]
) -> None:
    """The noise of equal arms is taken from 3 pairs or more, all above 0; A/B pairs count if both
    arms are equal.
    """
    file: Any = Noisy(aa, ab, same)
    assert fleet.noise_of({"x": file}, file.metrics()[0]) == pytest.approx(noise)


@pytest.mark.parametrize(
    ("texts", "metrics"), [([LOWER, UNSAID, GUARD], 2), (["a=vmstat.nr_a lower guard 5%"], 1)]
)
def test_what_a_plan_asks_for(
    monkeypatch: pytest.MonkeyPatch, texts: list[str], metrics: int
) -> None:
    """A plan uses the mean noise of all files, the change and the differences between hosts, as
    logarithms.
    """
    asked: list[tuple[Any, ...]] = []

    def size(*of: Any) -> tuple[int, None]:
        asked.append(of)
        return 7, None

    monkeypatch.setattr(fleet, "_size", size)
    files: Any = {"x": Noisy([0.1, 0.2, 0.3], []), "y": Noisy([0.1, 0.3, 0.5], [])}
    files["x"].texts = texts
    noise = sqrt((0.01 + 0.04) / 2)
    (found,) = fleet.plan_fleet(files, 5, 4.0, 2.0)
    assert found == fleet.FleetPlan("a", pytest.approx(noise), 2, 7, None)  # type: ignore[arg-type]
    assert asked == [(5, pytest.approx(noise), pytest.approx(log(1.04)), 0.02, metrics)]


@pytest.mark.parametrize(
    ("enough", "size"),
    [
        (lambda hosts, pairs: pairs >= 3, (3, None)),
        (lambda hosts, pairs: pairs >= 100_000, (100_000, None)),
        (lambda hosts, pairs: pairs > 100_000 and hosts >= 2, (None, 2)),
        (lambda hosts, pairs: hosts >= 10_000, (None, 10_000)),
        (lambda hosts, pairs: hosts > 10_000, (None, None)),
    ],
)
def test_the_most_that_a_plan_asks_for(
    monkeypatch: pytest.MonkeyPatch, enough: Any, size: tuple[int | None, int | None]
) -> None:
    def power(hosts: int, error: float, _effect: float, _metrics: int) -> float:
        pairs = round(1 / (error**2 - 1)) if error > 1 else inf
        return 0.8 if enough(hosts, pairs) else 0.79

    monkeypatch.setattr(fleet, "power", power)
    assert fleet._size(1, 1.0, 0.05, 1.0, 1) == size


def test_a_plan_in_words() -> None:
    plans = [fleet.FleetPlan("a", 0.1234, 2, 7, None), fleet.FleetPlan("b", 0.05, 1, 12, None)]
    head = (
        "to find a change of 4 % with 80 % probability, if the change differs between hosts by "
        "2.5 %:"
    )
    rows = [
        "a: 7 pairs on each of 5 hosts (a single pair varies by 12.3 %, estimated from 2 files)",
        "b: 12 pairs on each of 5 hosts (a single pair varies by 5 %, estimated from 1 file)",
    ]
    then = "next: mmpolicy ab run --pairs 12 ... on each host, then mmpolicy ab pool"
    assert fleet.lines(plans, 5, 4.0, 2.5) == [head, *rows, then]
    lost = [fleet.FleetPlan("a", 0.1, 2, None, 30), fleet.FleetPlan("b", 0.1, 2, None, None)]
    none = "5 hosts cannot show a change of 4 %, however many pairs each has"
    told = [f"a: {none}; use 30 hosts or more", f"b: {none}; no number of hosts is enough"]
    assert fleet.lines(lost, 5, 4.0, 2.5) == [head, *told]
    assert fleet.lines([plans[0], lost[1]], 5, 4.0, 2.5) == [head, rows[0], told[1]]
    assert fleet.lines([], 5, 4.0, 2.5) == [head]
