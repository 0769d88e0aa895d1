# SPDX-License-Identifier: GPL-2.0
"""How often `try` keeps a setting, in simulated trials whose truth is known.

CPU time has noise of 5 % in a block and memory of 2 %, unless said otherwise; a trial has 60 pairs
at most, as by default, and ends with its answer. A rate that fails is one that chance explains in
fewer than one of 10,000 such tests.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from scipy.stats import binom

from mmpolicy.ab import anytime
from mmpolicy.ab.metrics import Metric
from mmpolicy.ab.presets import read
from mmpolicy.ab.report.report import Report
from mmpolicy.verbs.try_run import CPU, MEMORY

from .worlds import NOISES, Noise, Rng, Vector, normal, paired, recorded, two

PAIRS = int(read("adaptive")["pairs"])
TEXTS = ("a=cmd:a lower", f"b=cmd:b lower guard {MEMORY}%")  # CPU time, and memory
METRICS = [Metric.parse(text) for text in TEXTS]
UNLIKELY = 1e-4
HARM, GAIN = 0.025, 0.8
CALM = normal(0.02)
Runs = [pytest.param(150, id="few"), pytest.param(4000, marks=pytest.mark.full, id="all")]


class UnansweredError(Exception):
    """A trial that has come to its end without an answer, so nothing is kept."""


def until(values: Mapping[str, Vector], treated: Vector) -> int:
    """Return the number of pairs after which the trial has its answer."""
    found = {name: paired(each, treated) for name, each in values.items()}

    def answered(pairs: int) -> bool:
        return anytime.answered(METRICS, {name: f[:pairs] for name, f in found.items()}, None)

    low, high = 1, PAIRS
    if not answered(high):
        raise UnansweredError
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if answered(middle) else (middle + 1, high)
    return low


def keeps(rng: Rng, cpu: float, memory: float, noise: tuple[Noise, Noise]) -> bool:
    """Tell if a trial keeps a setting that takes so many percent more of each."""
    draw = two(cpu, memory, noise)
    try:
        run = recorded(rng, draw, TEXTS, pairs=PAIRS, until=until, length="anytime")
    except UnansweredError:
        return False
    return Report(run).exit == 0


def kept(name: str, runs: int, cpu: float, memory: float, noise: tuple[Noise, Noise]) -> int:
    """Return how many of so many trials keep the setting."""
    seeds = np.random.SeedSequence([len(name), *name.encode()]).spawn(runs)
    found = sum(keeps(np.random.default_rng(seed), cpu, memory, noise) for seed in seeds)
    print(f"{name}: kept in {found} of {runs}")
    return found


@pytest.mark.parametrize("runs", Runs)
@pytest.mark.parametrize(
    ("cpu", "memory", "noise"),
    [
        (-2.0 * CPU, MEMORY + 0.01, (normal(), CALM)),
        (-2.0 * CPU, MEMORY + 0.01, (normal(), normal())),
        (-2.0 * CPU, MEMORY + 0.01, (normal(), NOISES["bursts of 3 blocks, x5"])),
        (-20.0, 1.5 * MEMORY, (normal(), CALM)),
        (CPU + 0.01, 0.0, (normal(), CALM)),
        (CPU + 0.01, -10.0, (normal(0.3), CALM)),
        (0.0, 0.0, (NOISES["Student's t, 2.5"], CALM)),
    ],
)
def test_harm_is_not_kept(cpu: float, memory: float, noise: tuple[Noise, Noise], runs: int) -> None:
    """A setting that is worse by more than a margin is kept in at most 2.5 % of trials."""
    hits = kept(f"{cpu:+g} % CPU, {memory:+g} % memory", runs, cpu, memory, noise)
    assert binom.sf(hits - 1, runs, HARM) > UNLIKELY


@pytest.mark.parametrize("runs", Runs)
@pytest.mark.parametrize("noise", [(normal(), CALM), (NOISES["AR(1), 0.9"], CALM)])
def test_a_gain_is_kept(noise: tuple[Noise, Noise], runs: int) -> None:
    """A gain of twice the margin is kept in 80 % of trials or more, within the time told."""
    hits = kept("a gain", runs, -2.0 * CPU, 0.0, noise)
    assert binom.cdf(hits, runs, GAIN) > UNLIKELY
