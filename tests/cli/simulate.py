# SPDX-License-Identifier: GPL-2.0
"""Simulated runs of switchback: recordings of `ab run` in a world with a known truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmpolicy.ab.report.report import Report
from mmpolicy.ab.samples import Recording

Vector = NDArray[np.float64]
Rng = np.random.Generator
NUMBER = "cmd:number"
SAMPLES = 3  # in a block
DEFAULT_AA = 1 + ceil(log2(1 / 0.01))  # of ab run with one metric
DEFAULT_PAIRS = 12
ARMS = ("control", "treatment")


def dependent(rng: Rng, blocks: int, deviation: float = 0.1, phi: float = 0.7) -> Vector:
    """Return AR(1) noise, which depends on the block before, in logarithms."""
    steps = rng.normal(0, deviation * (1 - phi**2) ** 0.5, blocks)
    noise = np.zeros(blocks)
    noise[0] = rng.normal(0, deviation)
    for place in range(1, blocks):
        noise[place] = phi * noise[place - 1] + steps[place]
    return noise


@dataclass
class World:
    """The truth. A block of the treatment has the value of a control block, times the effect."""

    effect: float = 1.0  # ratio of the treatment to the control
    carry: float = 0.0  # share of the state that is carried over from the block before
    stalls: float = 0.0  # share of blocks of the treatment that take 12 times the control
    aa: int = DEFAULT_AA
    pairs: int = DEFAULT_PAIRS
    better: str = "lower"

    @property
    def blocks(self) -> int:
        """Return how many blocks a run has."""
        return 2 * (self.aa + self.pairs)

    def run(self, rng: Rng, noise: Vector) -> Recording:
        """Return a run, determined by the random coins and the noise."""
        texts = [f"m={NUMBER} {self.better}".strip()]
        run = Recording(header(texts, self.aa, self.pairs, int(rng.integers(2**32))))
        state, number = 0.0, 0
        for pair in range(-self.aa, self.pairs):
            for arm in rng.permuted(ARMS):
                treated = float(pair >= 0 and arm == "treatment")
                state = self.carry * state + (1 - self.carry) * treated
                value = np.exp(noise[number]) * self.effect**state
                if treated and rng.random() < self.stalls:
                    value = 12 * np.exp(noise[number])
                phase = "aa" if pair < 0 else "ab"
                place = {"phase": phase, "pair": pair + self.aa * (pair < 0), "arm": str(arm)}
                add_block(run, number, place, [float(value)] * SAMPLES)
                number += 1
        run.add({"kind": "end", "status": "done", "reason": "all pairs are complete"})
        return run

    def report(self, rng: Rng, noise: Vector | None = None, margin: float = 0.0) -> Report:
        """Return the report on a run; noise defaults to AR(1)."""
        if noise is None:
            noise = dependent(rng, self.blocks)
        return Report(self.run(rng, noise), margin=margin)


def header(metrics: Sequence[str], aa: int, pairs: int, seed: int) -> dict[str, Any]:
    """Return the header of a run."""
    return {
        "kind": "header", "version": 1, "design": "switchback", "block_s": 3, "washout_s": 1,
        "interval_s": 1, "seed": seed, "rule": "", "aa_pairs": aa, "pairs": pairs, "guards": [],
        "metrics": metrics, "host": {}, "control": {"given": "stock", "settings": {}},
        "treatment": {"given": "new", "settings": {"anon_order/policy": "fixed"}},
    }  # fmt: skip


def add_block(
    run: Recording, number: int, place: dict[str, Any], values: Sequence[float | None]
) -> None:
    """Add a block with a sample for each value."""
    began = 3.0 * number
    for second, value in enumerate(values, start=1):
        sample = {"kind": "sample", "t": began + second, "block": number, "arms": {}}
        run.add(sample | {"host": {NUMBER: value}})
    run.add({"kind": "block", "number": number, **place, "began": began, "ended": began + 3})


@dataclass
class Two:
    """Runs of two metrics with noise of their own: `first` and `second`."""

    gain: float = 1.0
    other: float = 1.0
    second: str = "lower"
    noise: float = 0.05
    pairs: int = DEFAULT_PAIRS

    def run(self, rng: Rng) -> Recording:
        """Return a run without A/A phase."""
        texts = ["first=cmd:first lower", f"second=cmd:second {self.second}"]
        run = Recording(header(texts, 0, self.pairs, int(rng.integers(2**32))))
        for number in range(2 * self.pairs):
            if number % 2 == 0:
                arms = rng.permuted(ARMS)
            arm = str(arms[number % 2])
            treated = arm == "treatment"
            noise = np.exp(rng.normal(0, self.noise, 2))
            values = {"cmd:first": noise[0] * self.gain**treated}
            values["cmd:second"] = noise[1] * self.other**treated
            for second in range(1, SAMPLES + 1):
                sample = {"kind": "sample", "t": 3.0 * number + second, "block": number}
                run.add(sample | {"host": {k: float(v) for k, v in values.items()}, "arms": {}})
            place = {"phase": "ab", "pair": number // 2, "arm": arm, "began": 3.0 * number}
            run.add({"kind": "block", "number": number, **place, "ended": 3.0 * number + 3})
        run.add({"kind": "end", "status": "done", "reason": "all pairs are complete"})
        return run
