# SPDX-License-Identifier: GPL-2.0
"""`split` of a few cgroups: the arms of units, and the results of a row per unit and block."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from math import exp, log
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binomtest

from mmpolicy.ab.panel import Cell, Cells, pairs_of
from mmpolicy.ab.report.neighbours import neighbours_of
from mmpolicy.ab.report.report import Report
from mmpolicy.ab.report.stats import analyse, analyse_anytime, left_in_units
from mmpolicy.ab.run.units import SALT, arms_of, balanced, siphash
from mmpolicy.ab.samples import Recording, load

from .ab_world import FIXED, SHORT, World
from .fakes import CONTROL, FakeTree, Run
from .simulate import ARMS, Rng, Vector, dependent, header

FULL = pytest.mark.full
PAIRS = 30
SOURCE = "unit:memory.stat:pgfault"
WORDS = ["--design", "split", "--unit", "cgroup", "--metric", f"{SOURCE}/s lower", *SHORT, *FIXED]


def explained(hits: int, runs: int, rate: float, side: str = "two-sided") -> bool:
    """Return whether chance explains this number of hits at that rate."""
    print(f"{hits} of {runs}, {hits / runs:.2%}, where {rate:.1%} should be")
    return bool(binomtest(hits, runs, rate, alternative=side).pvalue > 0.001)


# Arms of units


def test_the_hash_of_the_kernel() -> None:
    """The hash is that of the kernel: a vector of the reference implementation, 16 bytes from 0 on,
    with the key from 0 on.
    """
    low, high = (int.from_bytes(bytes(range(8 * n, 8 * n + 8)), "little") for n in (0, 1))
    assert siphash(low, high, (low, high)) == 0x3F2ACC7F57C29BDB


@pytest.mark.parametrize("units", [2, 3, 10])
def test_both_arms_have_half(units: int) -> None:
    """Each unit is equally often in either arm, and so is each way to share an odd number."""
    numbers = {str(number): 1000 + number for number in range(units)}
    treated, sizes = Counter[str](), Counter[int]()
    for seed in range(400):
        arms = arms_of(numbers, balanced(numbers, seed))
        treated.update(unit for unit, arm in arms.items() if arm == "treatment")
        sizes[sum(arm == "treatment" for arm in arms.values())] += 1
    assert set(sizes) == {units // 2, (units + 1) // 2}
    assert all(explained(treated[unit], 400, 0.5) for unit in numbers)
    assert explained(sizes[units // 2], 400, 0.5) or units % 2 == 0


def test_few_and_many() -> None:
    """Units treated among few are also treated among many; some are left in both."""
    numbers = {str(number): number for number in range(20)}
    for seed in range(20):
        many = balanced(numbers, seed, 90)
        few, most = (arms_of(numbers, many, percent) for percent in (10, 90))
        treated = [{u for u in arms if arms[u] == "treatment"} for arms in (few, most)]
        assert treated[0] <= treated[1]
        assert len(treated[1]) == 18


# A row for each unit and block

Noise = Callable[[Rng, int], Vector]
NOISES: dict[str, Noise] = {
    "independent": lambda rng, n: rng.normal(0, 0.1, n),
    "dependent": dependent,
    "walk": lambda rng, n: np.cumsum(rng.normal(0, 0.05, n)),
    "heavy": lambda rng, n: 0.05 * rng.pareto(1.5, n),
    "stalls": lambda rng, n: rng.normal(0, 0.1, n) + log(12) * (rng.random(n) < 0.02),
}


def drawn(rng: Rng, units: int) -> NDArray[np.bool_]:
    """Return the treated units: half of them, and of an odd number one more or less."""
    half = (units + int(rng.integers(2)) * (units % 2)) // 2
    return np.asarray(rng.permuted(np.arange(units)) < half, np.bool_)


def blocks_of(rng: Rng, noise: Noise, units: int = 2, effect: float = 0.0) -> list[Cells]:
    """Return the rows of a run in which the first unit has 90 % of the load."""
    loads = np.log([9.0 * (units - 1), *[1.0] * (units - 1)])
    y = np.stack([noise(rng, PAIRS) for _ in range(units)], axis=1) + loads
    blocks: list[Cells] = []
    for row in y:
        arms = drawn(rng, units)
        values = np.exp(row + effect * arms)
        blocks.append({str(n): Cell(ARMS[int(arms[n])], float(values[n])) for n in range(units)})
    return blocks


def known(blocks: Sequence[Cells], past: bool = False) -> list[tuple[float, float]]:
    """Return the complete pairs."""
    return [each for each in pairs_of(blocks, past) if each]


@pytest.mark.parametrize("runs", [40, pytest.param(4000, marks=FULL)])
@pytest.mark.parametrize("units", [2, 3])
@pytest.mark.parametrize("noise", NOISES)
def test_equal_arms_of_few_units(noise: str, units: int, runs: int) -> None:
    found = looked = 0
    for seed in range(runs):
        rng = np.random.default_rng([1, units, seed])
        blocks = blocks_of(rng, NOISES[noise], units)
        found += analyse(known(blocks), 1).p < 0.05
        looked += analyse_anytime(known(blocks, past=True), 1).p < 0.05
    assert explained(found, runs, 0.05)
    assert explained(looked, runs, 0.05, "greater")


@pytest.mark.parametrize("runs", [40, pytest.param(4000, marks=FULL)])
@pytest.mark.parametrize("units", [2, 3, 4, 8])
def test_few_units_of_which_one_has_90_percent_of_the_load(units: int, runs: int) -> None:
    """If one of few units has 90 % of the load, -20 % in 30 blocks with noise of 10 % is found in
    95 % or more; 93 to 97 % of intervals hold it.
    """
    found = covered = 0
    for seed in range(runs):
        rng = np.random.default_rng([2, seed])
        effect = analyse(known(blocks_of(rng, dependent, units, log(0.8))), 1)
        found += effect.p < 0.05
        covered += effect.low <= log(0.8) <= effect.high
    assert found >= 0.95 * runs
    assert explained(covered, runs, 0.93, "less")
    assert explained(covered, runs, 0.97, "greater")


def test_values_of_0_are_shares_of_what_is_usual() -> None:
    rng = np.random.default_rng(3)
    blocks: list[Cells] = []
    for number in range(PAIRS):
        rows: dict[str, Cell] = {}
        for place, arm in enumerate(rng.permuted(ARMS)):
            rate = (500 if place else 5) * (0.5 if arm == "treatment" else 1)
            count = 0.0 if number % 10 == 0 else float(rng.poisson(rate))
            rows[str(place)] = Cell(str(arm), count)
        blocks.append(rows)
    effect = analyse(known(blocks), 1)
    assert effect.scale == "totals"
    assert effect.p < 0.05
    assert exp(effect.estimate) == pytest.approx(0.5, rel=0.2)


def test_a_unit_that_comes_and_goes() -> None:
    """A unit that comes and goes counts in its blocks; a block in which an arm has no
    unit is lost.
    """
    rng = np.random.default_rng(4)
    blocks = blocks_of(rng, NOISES["independent"], effect=log(0.5))
    for number in (3, 20):
        blocks[number] = {unit: cell for unit, cell in blocks[number].items() if unit == "0"}
    pairs = pairs_of(blocks)
    assert [number for number, each in enumerate(pairs) if each is None] == [3, 20]
    effect = analyse([each for each in pairs if each], 1)
    assert effect.low < log(0.5) < effect.high


# Carry-over from block to block


@pytest.mark.parametrize("runs", [12, pytest.param(1000, marks=FULL)])
@pytest.mark.parametrize(
    ("units", "left", "least"), [(2, 0.3, 0.8), (2, 0.6, 0.8), (50, 0.1, 0.95)]
)
def test_what_is_left_of_the_block_before(units: int, left: float, least: float, runs: int) -> None:
    """If long-lived units keep some state of the other arm, that is found, and only then."""
    seen = dict.fromkeys((0.0, left), 0)
    for share in seen:
        for seed in range(runs):
            rng = np.random.default_rng([5, seed])
            treated = np.stack([drawn(rng, units) for _ in range(PAIRS)])
            state, y = np.zeros(units), rng.normal(0, 0.05, (PAIRS, units))
            for number, arms in enumerate(treated):
                state = share * state + (1 - share) * arms
                y[number] += log(0.8) * state
            found, p = left_in_units(y, treated, seed)
            seen[share] += p < 0.025 and found > 0.05
    print(f"{units} units, {left:.0%} left: seen in {seen[left] / runs:.0%}")
    assert explained(seen[0.0], runs, 0.025, "greater")
    assert seen[left] >= least * runs


# Neighbours


def saturated(rng: Rng, spill: float, units: int = 6, pairs: int = 20) -> Recording:
    """Return a run in which each treated unit changes all others; few are 1 of 6, many are 5."""
    given = header([f"m={SOURCE} lower"], 0, pairs, 1)
    run = Recording(given | {"design": "split", "saturation": [10, 90], "unit": "cgroup"})
    number = 0
    for pair in range(pairs):
        order = rng.permuted(np.arange(units))
        for arm in rng.permuted(ARMS):
            treated = 5 if arm == "treatment" else 1
            values = np.exp(rng.normal(0, 0.05, units) + spill * treated / units)
            own = {str(n): ARMS[int(order[n] < treated)] for n in range(units)}
            for second in (1, 2, 3):
                cells = {str(n): {SOURCE: float(values[n])} for n in range(units)}
                sample = {"kind": "sample", "t": 3.0 * number + second, "block": number}
                run.add(sample | {"host": {}, "arms": {}, "units": cells})
            place = {"phase": "saturation", "pair": pair, "arm": str(arm), "units": own}
            times = {"began": 3.0 * number, "ended": 3.0 * number + 3}
            run.add({"kind": "block", "number": number, **place, **times})
            number += 1
    run.add({"kind": "end", "status": "done", "reason": ""})
    return run


@pytest.mark.parametrize("runs", [60, pytest.param(4000, marks=FULL)])
def test_effects_on_neighbours_are_found(runs: int) -> None:
    """An effect of +10 % by all other units is found in 95 % or more; without
    spill-over, in 5 %.
    """
    found = dict.fromkeys((0.0, log(1.1)), 0)
    for spill in found:
        for seed in range(runs):
            (seen,) = neighbours_of(saturated(np.random.default_rng([6, seed]), spill))
            found[spill] += seen.found
    assert explained(found[0.0], runs, 0.05)
    assert explained(found[log(1.1)], runs, 0.95, "less")


def test_effects_on_neighbours_are_measured() -> None:
    """An effect on untreated units is measured with 1 and with 5 of 6 units treated, and the run
    has no conclusion.
    """
    run = saturated(np.random.default_rng(7), log(1.3))
    (spilled,) = neighbours_of(run)
    assert spilled.found
    assert spilled.effect.low < log(1.3) * 4 / 6 < spilled.effect.high
    report = Report(run)
    assert report.exit == 7
    assert report.doubts[-1].startswith(
        "the treatment also acts on untreated units: m of untreated units"
    )


# The command


class Cgroups(World):
    """Two working cgroups, one with 90 % of the load; the treatment makes 20 % fewer faults."""

    UNITS = ("/web.slice/big", "/web.slice/small")

    def __init__(self, tree: FakeTree) -> None:
        self.faults_of = dict.fromkeys(self.UNITS, 0.0)
        for unit in self.UNITS:
            tree.make_cgroup(unit)
            tree.put(f"/sys/fs/cgroup{unit}/cgroup.procs", "17")
        self.seen: list[tuple[int, dict[str, str]]] = []  # seconds by arms of the kernel
        super().__init__(tree)

    def arms(self) -> dict[str, str]:
        """Return the arms as written to the kernel."""
        ids = {unit: self.tree.inode("/sys/fs/cgroup", unit.strip("/")) for unit in self.UNITS}
        seed, percent = (
            int(self.tree.read(f"{CONTROL}/experiment/{name}")) for name in ("seed", "percent")
        )
        return {
            unit: ARMS[siphash(number, 0, (seed, SALT)) % 10000 < 100 * percent]
            for unit, number in ids.items()
        }

    def sleep(self, seconds: float) -> None:
        arms = self.arms() if self.tree.read(f"{CONTROL}/experiment/enabled") == "1" else {}
        for unit, rate in zip(self.UNITS, (900.0, 100.0), strict=True):
            acts = "[fixed]" in self.policy(f"ab-{arms.get(unit, '')}")
            self.faults_of[unit] += rate * (0.8 if acts else 1.0) * seconds
        super().sleep(seconds)

    def put(self) -> None:
        super().put()
        for unit, faults in self.faults_of.items():
            self.tree.put(f"/sys/fs/cgroup{unit}/memory.stat", f"pgfault {faults:.0f}")


@pytest.fixture
def clock(tree: FakeTree) -> World:
    """Return time in which both work."""
    return Cgroups(tree)


def test_two_cgroups(ab: Run, run: Run, out: Path, clock: Cgroups) -> None:
    result = ab(*WORDS, "--pairs", "16", "--cgroup", "/web.slice", "--exposure", "10,90")
    assert result.code == 0, result.err
    recording = load(out)
    phases = Counter(block["phase"] for block in recording.blocks.values())
    assert phases == {"aa": 2, "ab": 16, "saturation": 32}
    for block in recording.blocks.values():
        assert set(block["units"]) == set(clock.UNITS)
        if block["phase"] != "saturation":
            assert set(block["units"].values()) == set(ARMS)
    said = run("ab", "report", str(out), "--json")
    told = run("ab", "report", str(out)).out
    (metric,) = json.loads(said.out)["metrics"]
    assert metric["effect"]["estimate"] == pytest.approx(-20, abs=0.5)
    assert metric["found"], said.out
    assert "depend mostly on which units" not in result.err  # no arm requires it
    out.unlink()
    more = [
        "--metric",
        "arm.anon_order.allocated_order_4/s",
        "--pairs",
        "8",
        "--cgroup",
        "/web.slice",
    ]
    assert "with only 2 cgroups, a counter of an arm depends mostly" in ab(*WORDS, *more).err
    assert "not that on other units" in told
    assert "makes the effect look smaller" not in told  # carry-over in units is tested
    assert f"neighbours   {SOURCE}/s of untreated units differs by" in told


def test_what_few_units_cannot_be(ab: Run, tree: FakeTree, clock: World) -> None:
    """Each error names an alternative, and no setting changes."""
    tree.put("/sys/fs/cgroup/lone/cgroup.procs", "5")
    base = ["--design", "split", *SHORT, *FIXED, "--metric"]
    cases = [
        ([f"{SOURCE}/s"], "give --unit cgroup"),
        (
            [f"{SOURCE}/s", "--unit", "cgroup", "--cgroup", "/lone"],
            "needs two cgroups with processes or more",
        ),
        (["unit:memory.stat:no/s", "--unit", "cgroup"], "only 0 of 2 cgroups have this number"),
        ([SOURCE, "--unit", "cgroup", "--cgroup", "/web.slice"], "only increases"),
        (
            [f"{SOURCE} / arm.units", "--unit", "cgroup"],
            "in a ratio, either both sources begin with unit:, or none does",
        ),
        (["arm.units", "--exposure", "90,10"], "not of the form FEW,MANY"),
    ]
    writes = list(tree.writes)
    for words, text in cases:
        if words[0].startswith("unit:memory.stat:no"):
            words = [*words, "--cgroup", "/web.slice"]
        result = ab(*base, *words)
        assert (result.code, text in result.err) == (2, True), result.err
    result = ab("--design", "switchback", *SHORT, "--metric", f"{SOURCE}/s")
    assert (result.code, "is for --design split, which compares units" in result.err) == (2, True)
    assert tree.writes == writes
