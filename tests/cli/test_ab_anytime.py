# SPDX-License-Identifier: GPL-2.0
"""The end of a run: by sizes alone, or at any look. Simulated, with a known truth."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from math import log
from os import getpid, kill
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest

from mmpolicy.ab.anytime import evidence, p_below_anytime, sequence
from mmpolicy.ab.design import pairs_by_size
from mmpolicy.ab.report.metric_result import ALPHA_BY_SIZE
from mmpolicy.ab.report.stats import interval, p_below, p_value
from mmpolicy.ab.samples import load

from .ab_world import FIXED, PGFAULT, World
from .fakes import FakeTree, Run
from .simulate import Rng, Vector, dependent

FULL = pytest.mark.full
BACK = ["--design", "switchback", *PGFAULT, "--block", "4", "--washout", "1", "--seed", "1"]
Noise = Callable[[Rng, int], Vector]
MOST = 200


def between(blocks: Vector) -> Vector:
    """Return second - first of pairs of blocks."""
    return np.asarray(np.diff(blocks.reshape(-1, 2), axis=1)[:, 0])


def stalls(rng: Rng, pairs: int) -> Vector:
    """Return noise in which 6 % of the blocks, in either arm, are twelvefold."""
    hits = rng.random(2 * pairs) < 0.06
    return between(rng.normal(0, 0.1, 2 * pairs) + log(12) * hits)


NOISES: dict[str, Noise] = {  # of pairs: second - first block
    "independent": lambda rng, pairs: between(rng.normal(0, 0.1, 2 * pairs)),
    "dependent": lambda rng, pairs: between(dependent(rng, 2 * pairs, 0.1, 0.9)),
    "walk": lambda rng, pairs: between(np.cumsum(rng.normal(0, 0.05, 2 * pairs))),
    "heavy": lambda rng, pairs: between(rng.pareto(1.5, 2 * pairs)),
    "stalls": stalls,
    "period": lambda rng, pairs: between(rng.normal(0, 0.03, 2 * pairs)) + 0.2,
}


def explained(hits: int, runs: int, rate: float, side: str) -> bool:
    """Return whether chance explains this number of hits at that rate."""
    print(f"{hits} of {runs}, {hits / runs:.2%}; {rate:.1%} should be the limit")
    return bool(binomtest(hits, runs, rate, alternative=side).pvalue > 0.001)


@pytest.mark.parametrize("runs", [60, pytest.param(4000, marks=FULL)])
@pytest.mark.parametrize("noise", NOISES)
def test_looks_after_each_of_200_pairs(noise: str, runs: int) -> None:
    """With equal arms and a look after each of 200 pairs, at most 5 % of runs find a difference."""
    rng, found = np.random.default_rng(11), 0
    for _ in range(runs):
        d = NOISES[noise](rng, MOST) * rng.choice([-1, 1], MOST)
        found += evidence(d.tolist()) >= 20
    assert explained(found, runs, 0.05, "greater")


@pytest.mark.parametrize("runs", [60, pytest.param(4000, marks=FULL)])
@pytest.mark.parametrize(("effect", "fixed"), [(0.3, 90), (0.5, 34), (1.0, 10), (2.0, 8)])
def test_power_at_twice_the_fixed_length(effect: float, fixed: int, runs: int) -> None:
    """effect: in units of the noise of a pair; fixed: planned pairs that find it with 80 %."""
    rng, found = np.random.default_rng(12), 0
    for _ in range(runs):
        found += evidence(rng.normal(effect, 1, 2 * fixed).tolist()) >= 20
    assert explained(found, runs, 0.8, "less")


@pytest.mark.parametrize("runs", [30, pytest.param(4000, marks=FULL)])
@pytest.mark.parametrize("counts", [False, True])
def test_all_intervals_of_a_run_hold_the_truth(counts: bool, runs: int) -> None:
    rng, held = np.random.default_rng(13), 0
    for _ in range(runs):
        control, treatment = np.exp(rng.normal(0, 0.1, (2, 60)))
        pairs = [*zip(control.tolist(), (1.1 * treatment).tolist(), strict=True)]
        if counts:
            pairs[0] = (0.0, 0.0)
        ends = [sequence(pairs[:number])[2:] for number in (8, 12, 20, 40, 60)]
        held += all(low <= log(1.1) <= high for low, high in ends)
        assert ends[-1][1] - ends[-1][0] < 0.2
    assert explained(held, runs, 0.95, "less")


@pytest.mark.parametrize("runs", [60, pytest.param(4000, marks=FULL)])
def test_a_margin_at_any_look(runs: int) -> None:
    """With a look after each pair, a treatment that is worse by just the margin passes in at most 5
    % of runs.
    """
    rng, passed = np.random.default_rng(14), 0
    for _ in range(runs):
        passed += p_below_anytime(rng.normal(0, 0.1, MOST).tolist()) < 0.05
    assert explained(passed, runs, 0.05, "greater")
    assert p_below_anytime([-0.1] * 12) < 0.05 < p_below_anytime([0.1] * 12)


def changing(before: float, after: float) -> Noise:
    """Return noise whose deviation changes after 16 blocks."""
    return lambda rng, n: rng.normal(0, 1, n) * np.where(np.arange(n) < 16, before, after)


# Noise of blocks, the limit of --pairs, and the largest mean number of pairs allowed.
WORLDS: dict[str, tuple[Noise, int, float]] = {
    "iid 5 %": (lambda rng, n: rng.normal(0, 0.05, n), MOST, 29),
    "AR(1) 0.7, 10 %": (lambda rng, n: dependent(rng, n, 0.1, 0.7), MOST, 32),
    "3 %, then 6 %": (changing(0.03, 0.06), MOST, 29),
    "10 %, then 4 %": (changing(0.1, 0.04), MOST, 38),
    "heavy": (lambda rng, n: 0.01 * rng.pareto(1.5, n), MOST, 40),
    "rare stalls": (
        lambda rng, n: rng.normal(0, 0.04, n) + log(12) * (rng.random(n) < 0.01),
        600,
        180,
    ),
}


def by_size(d: Vector) -> Vector:
    """Return the pairs after which a run of --detect 5 ends."""
    pairs = 1
    while pairs < len(d) and pairs < pairs_by_size(d[:pairs].tolist(), 5):
        pairs += 1
    return d[:pairs]


@pytest.mark.parametrize("runs", [100, pytest.param(4000, marks=FULL)])
@pytest.mark.parametrize("world", WORLDS)
def test_length_by_sizes(world: str, runs: int) -> None:
    """With --detect and no A/A phase, equal arms are found in 5 % of runs, and a change of 5 % in
    80 %.
    """
    noise, allowed, most = WORLDS[world]
    rng, lengths, found, covered = np.random.default_rng(15), [], 0, 0
    false = 0
    for _ in range(runs):
        d = between(noise(rng, 2 * allowed)) * rng.choice([-1, 1], allowed)
        false += p_value(by_size(d), 1) < 0.05
        seen = by_size(d + log(1.05))
        lengths.append(len(seen))
        found += p_value(seen, 1) < 0.05
        low, high = interval(seen, 1)
        covered += low <= log(1.05) <= high
    print(f"{np.mean(lengths):.0f} pairs")
    assert explained(false, runs, 0.05, "two-sided")
    assert explained(found, runs, 0.8, "less")
    assert explained(covered, runs, 0.93, "less")
    assert np.mean(lengths) <= most


@pytest.mark.parametrize("runs", [200, pytest.param(4000, marks=FULL)])
@pytest.mark.parametrize("deviation", [0.05, 0.1])
def test_a_margin_where_sizes_decide(deviation: float, runs: int) -> None:
    """Where sizes decide the length, a treatment worse by just 5 % passes in 5 % of runs, by the
    stricter level.
    """
    rng, passed = np.random.default_rng(16), 0
    for _ in range(runs):
        d = by_size(rng.normal(log(1.05), deviation, MOST))
        passed += p_below(d - log(1.05), 1) < ALPHA_BY_SIZE
    assert explained(passed, runs, 0.05, "greater")


# The command


@pytest.fixture
def clock(tree: FakeTree) -> World:
    """Return time in which scheduled events happen."""
    return World(tree)


def test_a_run_that_ends_with_its_answer(ab: Run, run: Run, out: Path) -> None:
    result = ab(*BACK, *FIXED, "--stop", "anytime")
    assert result.code == 0, result.err
    assert "rule: until the result is clear (anytime-valid), at most 200 pairs" in result.err
    assert "vmstat.pgfault/s: no estimate of the effect yet" in result.err
    recording = load(out)
    assert (recording.header["aa_pairs"], recording.header["length"]) == (0, "anytime")
    pairs = recording.plan["pairs"]
    assert 6 <= pairs < 20
    assert len(recording.blocks) == 2 * pairs
    said = run("ab", "report", str(out))
    assert said.code == 0, said.out
    assert "which is better" in said.out.splitlines()[-1]


def test_a_run_that_was_cut_off_still_has_its_answer(
    ab: Run, run: Run, out: Path, clock: World, tree: FakeTree
) -> None:
    """A run that ends while a guard is open still has its answer, and so has an interim report."""
    more = ["--metric", "cost=vmstat.pgfault/s higher guard 1%", "--stop", "anytime"]
    clock.at = [(161.0, lambda: kill(getpid(), signal.SIGTERM))]
    assert ab(*BACK, *FIXED, *more).code == 128 + signal.SIGTERM
    result = run("ab", "report", str(out), "--json")
    assert result.code == 8, result.out
    data = json.loads(result.out)
    assert data["doubts"] == []
    assert "the run was interrupted" in " ".join(data["notes"])
    assert data["metrics"][0]["found"]
    lines = out.read_text().splitlines()
    planned = [line.replace('"length": "anytime"', '"length": ""') for line in lines]
    out.write_text("\n".join(planned) + "\n")
    assert run("ab", "report", str(out)).code == 7


def test_detect_ends_by_sizes(ab: Run, out: Path) -> None:
    result = ab(*BACK, *FIXED, "--detect", "5")
    assert result.code == 0, result.err
    recording = load(out)
    assert (recording.header["aa_pairs"], recording.header["length"]) == (0, "size")
    # Each pair differs by 10 %, and so the rule asks for more than for a change of 5 %.
    d, *_ = {round(log(after / before), 3) for before, after in
            recording.pairs(recording.metrics()[0], "ab")}  # fmt: skip
    assert recording.plan["pairs"] == pairs_by_size([d] * 40, 5) == len(recording.blocks) / 2
    assert f"the result is clear after {recording.plan['pairs']} pairs" in result.err


def test_both_rules_at_once_are_refused(ab: Run) -> None:
    result = ab(*BACK, *FIXED, "--detect", "5", "--stop", "anytime")
    assert (result.code, "both set the end" in result.err) == (2, True)


def test_nothing_is_shown_before_it_can_mean_something(ab: Run) -> None:
    """With equal arms, an interval of the progress line excludes 0 in at most 5 % of runs."""
    result = ab(*BACK, *FIXED, "--pairs", "12", "--aa-pairs", "0")
    lines = [line for line in result.err.splitlines() if line.startswith("block ")]
    shown = ["so far" in line for line in lines]
    assert shown == sorted(shown)
    assert not any(shown[:10])
    assert shown[-1]
