# SPDX-License-Identifier: GPL-2.0
"""`ab pool`: one experiment on many hosts."""

import json
import tracemalloc
from collections.abc import Iterator
from math import log, log1p
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

from mmpolicy.ab.design import ALPHA, Design
from mmpolicy.ab.fleet import _size
from mmpolicy.ab.identity import seed_here
from mmpolicy.ab.pool import HostEffect, HostRun, Pool, pooled, tau_squared, variances_of
from mmpolicy.ab.samples import Recording, parse

from .fakes import FakeTree, Result, Run
from .simulate import DEFAULT_PAIRS, Rng, Vector
from .test_ab_report import Lines

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
    """Return hosts that differ by tau and share the shocks of each time; all type one --seed."""
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
    """Without an effect 6.5 % are found at most; the interval holds one in 93 to 97 %."""
    rng, held, false, here = np.random.default_rng([32, hosts]), 0, 0, 0
    for typed in range(runs):
        found = pooled(hosts_of(rng, machines[:hosts], tau, typed, 0.05), tosses=1)
        held += found.low <= 0.05 <= found.high
        equal = pooled(hosts_of(rng, machines[:hosts], tau, typed), tosses=199)
        false += equal.p < ALPHA
        here += equal.p_here < ALPHA
    shares = f"holds it in {held / runs:.2%}, found in {false / runs:.2%}, here {here / runs:.2%}"
    print(f"{hosts} hosts, {tau:.0%}: {shares}")
    assert binomtest(false, runs, 0.065, alternative="greater").pvalue > 0.001
    assert binomtest(held, runs, 0.93, alternative="less").pvalue > 0.001
    assert binomtest(held, runs, 0.97, alternative="greater").pvalue > 0.001
    assert tau or binomtest(here, runs, 0.065, alternative="greater").pvalue > 0.001


def test_the_same_coins_on_all_hosts_would_find_shocks(machines: list[FakeTree]) -> None:
    """That is what a seed of their own is for: with one, a fifth and more of equal arms."""
    rng, false = np.random.default_rng(33), 0
    for typed in range(60):
        hosts = hosts_of(rng, machines[:1] * 6, 0.0, typed)
        false += pooled(hosts, tosses=1).p < ALPHA
    print(f"found in {false / 60:.0%}")
    assert false >= 6


@pytest.mark.parametrize("runs", [100, pytest.param(4000, marks=FULL)])
@pytest.mark.parametrize("hosts", [3, 6])
def test_coins_of_these_hosts(machines: list[FakeTree], hosts: int, runs: int) -> None:
    """Without any effect, 5 % are found, though all hosts have the same shocks."""
    rng, found = np.random.default_rng(hosts), 0
    for typed in range(runs):
        effects = hosts_of(rng, machines[:hosts], 0.0, typed)
        found += pooled(effects, tosses=999).p_here < ALPHA
    print(f"found in {found / runs:.1%}")
    assert binomtest(found, runs, 0.05).pvalue > 0.001


def test_the_noise_of_few_pairs_is_that_of_all_hosts() -> None:
    """Unless hosts differ by more than chance; then each keeps about its own."""
    rng = np.random.default_rng(34)
    alike = variances_of([HostEffect(str(n), rng.normal(0, NOISE, 12)) for n in range(40)])
    assert np.std(np.log(alike)) < 0.2  # 0.43 by themselves
    assert alike.mean() == pytest.approx(NOISE**2 / 12, rel=0.15)
    sizes = np.array([0.01, 0.1, 1.0] * 10)
    apart = variances_of([HostEffect(str(s), rng.normal(0, s, 30)) for s in sizes])
    assert np.log(apart) == pytest.approx(np.log(sizes**2 / 30), abs=1)


def test_the_variance_between_hosts() -> None:
    """Paule and Mandel: with it, the sum of weighted squares is what is expected."""
    effects, variances = np.array([0.1, 0.2, -0.3, 0.0]), np.array([0.01, 0.02, 0.005, 0.01])
    tau2 = tau_squared(effects, variances)
    weights = 1 / (variances + tau2)
    mean = (weights * effects).sum() / weights.sum()
    assert (weights * (effects - mean) ** 2).sum() == pytest.approx(3)
    assert tau_squared(np.array([0.1, 0.1, 0.11]), variances[:3]) == 0


def test_hosts_on_which_nothing_differs() -> None:
    """A metric that is the same in all blocks, such as memory that is locked."""
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
    """What stays of a host would let 10,000 of them fit into a tenth of a gigabyte."""
    held: list[int] = []

    def recordings() -> Iterator[tuple[str, Recording]]:
        for number in range(hosts):
            recording = parse(lines_of(number).end(), str(number))
            recording.header["notes"] = "x" * 20_000  # as if all were kept that a file has
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
    assert "verdict: better on these hosts, and on hosts like these" in result.out
    data = json.loads(pool([-0.1, -0.12, -0.09, -0.11], "--json").out)
    (metric,) = data["metrics"]
    assert metric["low"] < -10 < metric["high"] < -5
    assert metric["next_low"] < metric["low"]
    assert [host["pairs"] for host in metric["hosts"]] == [12] * 4


def test_hosts_that_do_not_agree(pool: Any) -> None:
    """All of them clear, and in both directions: nothing is said of the next one."""
    result = pool([-0.2, 0.2, -0.2, 0.15])
    assert (result.code, "verdict: inconclusive" in result.out) == (7, True)
    assert pool([0.1, 0.12, 0.09, 0.11]).code == 8


def test_a_host_that_was_stopped_is_counted(pool: Any) -> None:
    end = {"status": "guard", "arm": "treatment", "reason": "a guard"}
    result = pool([-0.1, -0.12, -0.09, -0.11], end=end)
    assert result.code == 7
    assert "stopped in the treatment by a guard: host0 (1 of 4 hosts)" in result.out
    assert "a guard broke in the treatment on host0" in result.out.splitlines()[-1]


@pytest.mark.parametrize(
    ("header", "text"),
    [
        ({"digest": "other"}, "is of another experiment than"),
        ({"version": 1, "digest": ""}, "has version 1, and does not say which host"),
        ({"seed": 1}, "have the same seed and overlap in time"),
        ({"seed": 2}, "0.jsonl and "),
    ],
)
def test_files_that_cannot_be_pooled(pool: Any, header: dict[str, Any], text: str) -> None:
    result = pool([-0.1, -0.1, -0.1], header=header)
    assert (result.code, text in result.err) == (2, True), result.err


def test_the_place_in_the_pair_is_taken_out() -> None:
    """The second block of each pair has half as many faults more, on each host."""
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


def test_one_file_is_no_pool(pool: Any) -> None:
    assert "one file is no pool" in pool([-0.1]).err


# How long a fleet takes


@pytest.mark.parametrize("runs", [100, pytest.param(2000, marks=FULL)])
@pytest.mark.parametrize(("hosts", "tau"), [(4, 0.0), (6, 0.025), (20, 0.05)])
def test_the_planned_size_finds_it(hosts: int, tau: float, runs: int) -> None:
    """5 % in 80 % of fleets, with the pairs that the plan says."""
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
    """More hosts need fewer pairs; hosts that differ too much are too few."""
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
    assert f"5 hosts cannot find 5 %, however long; take {lost['hosts']} or more" in told
    short = tmp_path / "short.jsonl"
    short.write_text("".join(Lines().pairs("aa", 2).pairs("ab", 6).end()))
    assert "no file has 3 pairs" in run("ab", "plan", str(short), "--hosts", "5").err
