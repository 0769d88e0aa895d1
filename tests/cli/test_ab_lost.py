# SPDX-License-Identifier: GPL-2.0
"""Lost blocks, loads with the period of a block, and guards that break by chance."""

from __future__ import annotations

from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import norm

from mmpolicy.ab.design import STRETCH, pairs_for_lost
from mmpolicy.ab.report.report import Report
from mmpolicy.ab.report.stats import analyse, p_value
from mmpolicy.ab.samples import load
from mmpolicy.errors import Exit

from . import ab_world
from .ab_world import FIXED, PGFAULT, SHORT
from .fakes import FakeTree, Run
from .simulate import ARMS, Two, Vector, World, dependent
from .test_ab_anytime import between
from .test_ab_rates import explained

FULL = pytest.mark.full
METRIC = ["first=cmd:first lower"]
NOISE = Two().noise
RUNS_OF_100 = 1000  # pairs, each of which takes a tenth of a second


def lossy(seed: int, pairs: int, rate: float, gain: float, unfair: bool = False) -> Report:
    """Return a run that loses blocks at a rate; unfair: the worst ones of the treatment.

    It goes on for as long as a run with this number of pairs does.
    """
    rng, most = np.random.default_rng(seed), STRETCH * pairs
    lost = rng.random((most, 2)) < ((0.0, 2 * rate) if unfair else (rate, rate))
    done = pairs
    while done < (need := needed(lost[:done], pairs, most)):
        done = need
    run = Two(gain, pairs=done).run(rng)
    run.header |= {"metrics": METRIC, "pairs": pairs}
    run.plan = {"pairs": done}
    for number, pair, arm in run.of_phase("ab"):
        if lost[pair, ARMS.index(arm)]:
            del run.windows[number]
        elif unfair and arm == ARMS[1]:  # the worst blocks are missing
            value = gain * np.exp(NOISE * norm.ppf(rng.random() * (1 - 2 * rate)))
            for sample in run.windows[number]:
                sample.host["cmd:first"] = float(value)
    return Report(run)


def needed(lost: NDArray[np.bool_], pairs: int, most: int) -> int:
    """Return the number of pairs planned if these blocks are lost."""
    control, treatment = lost.sum(axis=0)
    return pairs_for_lost(pairs, int(lost.any(axis=1).sum()), abs(int(treatment - control)), most)


@pytest.mark.parametrize("runs", [25, pytest.param(4000, marks=FULL)])
@pytest.mark.parametrize("rate", [0.01, 0.03])
@pytest.mark.parametrize("pairs", [12, 30, pytest.param(100, marks=FULL)])
def test_lost_blocks_cost_no_power(rate: float, pairs: int, runs: int) -> None:
    """Lost blocks cost no power: -10 % with noise of 5 % is found as often as without, unless more
    than 5 % are lost in the end.
    """
    runs = min(runs, RUNS_OF_100) if pairs == 100 else runs
    reports = [lossy(seed, pairs, rate, 0.9) for seed in range(runs)]
    known = [report for report in reports if not report.rows[0].too_many_lost]
    few = 0.04 * (rate > 0.02) + 0.01
    print(f"{np.mean([len(report.recording.blocks) / 2 for report in reports]):.1f} pairs")
    assert explained(runs - len(known), runs, few, "greater")
    assert explained(sum(report.exit == Exit.DONE for report in known), len(known), 0.97)


@pytest.mark.parametrize("runs", [25, pytest.param(4000, marks=FULL)])
@pytest.mark.parametrize("rate", [0.01, 0.03])
@pytest.mark.parametrize(("pairs", "gain"), [(12, 0.938), pytest.param(30, 0.963, marks=FULL)])
def test_lost_blocks_cost_little_power(rate: float, pairs: int, gain: float, runs: int) -> None:
    """Lost blocks cost little power for an effect that is found in 80 % without losses."""
    found = sum(lossy(seed, pairs, rate, gain).exit == Exit.DONE for seed in range(runs))
    assert explained(found, runs, 0.8 - 4 * rate)


@pytest.mark.parametrize("runs", [25, pytest.param(4000, marks=FULL)])
@pytest.mark.parametrize("rate", [0.002, 0.01, 0.03])
@pytest.mark.parametrize("pairs", [12, pytest.param(30, marks=FULL), pytest.param(100, marks=FULL)])
def test_blocks_that_are_lost_for_being_bad(rate: float, pairs: int, runs: int) -> None:
    """With equal arms of which the treatment loses its worst blocks, a difference is found in 5 %
    at most.
    """
    runs = min(runs, RUNS_OF_100) if pairs == 100 else runs
    found = sum(lossy(seed, pairs, rate, 1.0, unfair=True).exit != 7 for seed in range(runs))
    assert explained(found, runs, 0.05, "greater")


@pytest.fixture
def clock(tree: FakeTree) -> ab_world.World:
    """Return time in which scheduled events happen."""
    return ab_world.World(tree)


def test_how_many_pairs_there_are_for_lost_ones() -> None:
    """A lost pair is replaced by a new pair, by pairs that outweigh it, and by enough to make the
    loss small; else by none.
    """
    cases = {(0, 0): 12, (1, 0): 13, (1, 1): 19, (2, 0): 20, (4, 0): 40, (5, 0): 12}
    assert {each: pairs_for_lost(12, *each, 48) for each in cases} == cases


def test_more_than_a_twentieth_is_a_doubt() -> None:
    report = lossy(1, 30, 0.0, 0.8)
    assert report.exit == Exit.DONE
    run = report.recording
    for number in (3, 8, 20, 31):
        del run.windows[number]
    (doubt,) = Report(run).doubts
    assert "has a value in 26 of 30 pairs" in doubt


def test_there_are_more_pairs_for_lost_ones(
    ab: Run, run: Run, out: Path, clock: ab_world.World
) -> None:
    """A counter that restarts in a block costs that pair, and the run is longer for it."""

    def restart() -> None:
        clock.faults = 0.0

    clock.at = [(18.0, restart)]  # in the first pair of six
    result = ab(*ab_world.SWITCHBACK, *FIXED)
    assert result.code == 0, result.err
    assert "6 pairs after 2 of A/A, fixed beforehand; more if some pairs get no value" in result.err
    assert "1 pairs have no value, so the run takes 11 pairs instead of 6" in result.err
    recording = load(out)
    assert (recording.planned, len(recording.blocks)) == (11, 26)
    result = run("ab", "report", str(out))
    assert result.code == 0, result.out
    assert "1 of the pairs without a value are counted as results against the effect" in result.out


@pytest.mark.parametrize("words", [["--duration", "64s"], ["--pairs", "6"]])
def test_what_cannot_be_made_good(
    ab: Run, out: Path, clock: ab_world.World, words: list[str]
) -> None:
    """Losses that cannot be made good: a run of a given time keeps to it, and one that loses all
    pairs ends.
    """

    def restart() -> None:
        clock.faults = 0.0

    times = [18.0] if words[0] == "--duration" else [2.0 + 4 * n for n in range(60)]
    clock.at = [(time, restart) for time in times]
    base = ["--design", "switchback", *PGFAULT, "--block", "4", "--washout", "1", "--aa-pairs", "2"]
    assert ab(*base, *FIXED, *words).code == 0
    assert (load(out).planned, len(load(out).blocks)) == (6, 16)


# A load with the period of a block


def period(rng: np.random.Generator, pairs: int, size: float = 0.2) -> tuple[Vector, list[bool]]:
    """Return differences of equal arms where each second block has more load, and the order."""
    first = rng.random(pairs) < 0.5
    later = between(rng.normal(0, 0.03, 2 * pairs)) + 2 * size
    return np.where(first, -later, later), first.tolist()


@pytest.mark.parametrize("runs", [100, pytest.param(4000, marks=FULL)])
@pytest.mark.parametrize("size", [0.0, 0.02, 0.2])
@pytest.mark.parametrize("pairs", [12, 30])
def test_the_place_in_the_pair(pairs: int, size: float, runs: int) -> None:
    """The place in the pair does no harm: -5 % is found, equal arms in 5 % of runs, and the
    interval holds the truth.
    """
    rng, effect = np.random.default_rng(pairs), log(0.95)
    found = false = held = before = 0
    for _ in range(runs):
        d, first = period(rng, pairs, size)
        false += analyse([(1.0, float(x)) for x in np.exp(d)], 1, first).p < 0.05
        values = [(1.0, float(x)) for x in np.exp(d + effect)]
        seen = analyse(values, 1, first)
        found += seen.p < 0.05
        held += seen.low <= effect <= seen.high
        before += p_value(d + effect, 1) < 0.05
    print(f"{pairs} pairs, ±{size:.0%}: found {before / runs:.0%} before, {found / runs:.0%} now")
    assert explained(false, runs, 0.05, "two-sided")
    assert explained(held, runs, 0.94)
    assert size == 0.02 or explained(found, runs, 0.85)


# Guards


def stopped(rng: np.random.Generator, rate: float, only: str = "") -> Report | None:
    """Return the report of a run in which a guard broke or not: by chance, in either arm."""
    world = World()
    run = world.run(rng, dependent(rng, world.blocks))
    for number, block in sorted(run.blocks.items()):
        arm = "control" if block["phase"] == "aa" else block["arm"]
        if rng.random() < (rate if only in ("", arm) else 0):
            end: dict[str, Any] = {"status": "guard", "reason": "a guard", "arm": arm}
            run.end = {**end, "block": number, "after_s": float(rng.uniform(0, 3))}
            run.blocks = {n: b for n, b in run.blocks.items() if n < number}
            return Report(run)
    return None


@pytest.mark.parametrize("runs", [150, pytest.param(4000, marks=FULL)])
@pytest.mark.parametrize("rate", [0.001, 0.01, 0.03])
def test_what_breaks_as_often_in_both_arms_is_no_harm(rate: float, runs: int) -> None:
    rng, harm = np.random.default_rng(5), 0
    for _ in range(runs):
        report = stopped(rng, rate)
        harm += report is not None and report.exit == Exit.WORSE
    assert explained(harm, runs, 0.05, "greater")


def test_what_breaks_with_the_treatment_at_once_is_harm() -> None:
    """A guard that breaks within the first seconds of the first treatment, after 16 blocks without
    it, counts as harm.
    """
    rng, exits = np.random.default_rng(6), []
    for _ in range(20):
        report = stopped(rng, 1.0, "treatment")
        assert report
        exits.append(report.exit)
        if report.exit != Exit.WORSE:
            assert "as often in both arms, this happens in" in report.verdict()
    assert exits.count(Exit.WORSE) >= 12


def test_it_says_what_may_not_have_been_seen() -> None:
    facts = dict(World().report(np.random.default_rng(1)).facts())
    assert (
        facts["not seen"]
        == "these 12 blocks may have missed events that occur in up to 22 % of blocks"
    )


def test_what_is_rare_takes_many_pairs(ab: Run, run: Run, out: Path) -> None:
    """With --detect-rare 20, a run of 14 pairs sees it in 95 %; a run with losses may not."""
    words = ["--design", "switchback", *PGFAULT, *SHORT, *FIXED, "--detect-rare", "20"]
    result = ab(*words)
    assert (result.code, "6 pairs may miss an event that happens in 20 %" in result.err) == (
        2,
        True,
    )
    assert "the run needs 14 or more" in result.err
    assert ab(*words, "--stop", "anytime").code == 2
    words[words.index("--pairs") + 1] = "14"
    assert ab(*words).code == 0
    assert load(out).header["rare"] == 20
    assert run("ab", "report", str(out)).code == 0
    lines = out.read_text().splitlines()
    out.write_text("\n".join(each for each in lines if '"block": 9,' not in each) + "\n")
    result = run("ab", "report", str(out))
    assert result.code == 7
    assert (
        "these 13 blocks may have missed events that occur in up to 21 % of blocks; "
        "--detect-rare 20 takes 14 pairs" in result.out.splitlines()[-1]
    )
