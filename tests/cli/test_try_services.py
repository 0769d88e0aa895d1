# SPDX-License-Identifier: GPL-2.0
"""Eight kinds of service, each judged 20 times on modelled data: 19 answers have to be right.

The figures of a look have noise: 10 % in faults and CPU time, and waste as far off as its error
says. A trial is a simulated switchback, see test_try_rates.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mmpolicy.memory.worth import NOT_NOW, NOT_WORTH, OUT_OF_REACH, WORTH, Seen, judge
from mmpolicy.verbs.try_now import short_of_memory

from .test_try import HERE, MIB, REST
from .test_try_rates import CALM, keeps
from .worlds import Rng, normal

TIMES, RIGHT = 20, 19
LOADED = replace(HERE, loaded=True)
Figures = dict[str, Any]

# What a look at each would find without noise.
BURST = {"private_kib": 300 * MIB, "waste_kib": 240 * MIB, "error_kib": 8 * MIB}
SORTS = {"faults": 20_000, "gain": 3.0, "fault_cpu": 4.0, "cpu": 80, "kernel": 9.0}
PYTHON = {"faults": 12_000, "gain": 1.8, "fault_cpu": 2.4, "cpu": 60, "kernel": 5.0}
GO = {"faults": 40, "gain": 0.01, "fault_cpu": 0.4, "huge": 0.9, "waste_kib": 6 * MIB,
      "error_kib": 3 * MIB}  # fmt: skip
IDLE = {"faults": 1, "gain": 0.0, "fault_cpu": 0.0, "cpu": 0.1, "kernel": 0.01}
SHORT = {**BURST, "stalled": 35.0}
FORBIDS = {**SORTS, "barred": 1.0, "barriers": ("large folios are forbidden to all of it",)}
WORSE = {"faults": 9_000, "gain": 2.0, "fault_cpu": 2.6, "cpu": 40, "kernel": 6.0}


def seen(rng: Rng, figures: Figures) -> Seen:
    """Return what one look finds."""
    noisy: Figures = {name: figures[name] * rng.lognormal(0, 0.1)
             for name in ("faults", "gain", "fault_cpu", "cpu", "kernel", "stalled")
             if name in figures}  # fmt: skip
    if "waste_kib" in figures:
        noisy["waste_kib"] = max(rng.normal(figures["waste_kib"], figures["error_kib"]), 0.0)
    found = replace(REST, **{**figures, **noisy})
    return replace(found, not_now=short_of_memory(found.stalled, found.compactions))


def first(rng: Rng, figures: Figures) -> tuple[str, str]:
    """Return the verdict, and the best candidate."""
    verdict, _, found = judge(seen(rng, figures), LOADED)
    return verdict, found[0].name if found else ""


def right(name: str, ask: Callable[[Rng], bool]) -> int:
    """Return how many answers are right, each with its own noise."""
    seeds = np.random.SeedSequence([len(name), *name.encode()]).spawn(TIMES)
    return sum(ask(np.random.default_rng(seed)) for seed in seeds)


@pytest.mark.parametrize(
    ("name", "figures", "answer"),
    [
        ("redis after a burst", BURST, (WORTH, "trim")),
        ("PostgreSQL sorts", SORTS, (WORTH, "adaptive")),
        ("Python", PYTHON, (WORTH, "adaptive")),
        ("Go", GO, (NOT_WORTH, "")),
        ("idle", IDLE, (NOT_WORTH, "")),
        ("short of memory", SHORT, (NOT_NOW, "trim")),
        ("forbids them", FORBIDS, (OUT_OF_REACH, "")),
        ("worse under 64 kB", WORSE, (WORTH, "adaptive")),  # a look cannot know; the trial tells
    ],
)
def test_the_look(name: str, figures: Figures, answer: tuple[str, str]) -> None:
    assert right(name, lambda rng: first(rng, figures) == answer) >= RIGHT


@pytest.mark.parametrize(
    ("name", "cpu", "memory", "keep"),
    [
        ("PostgreSQL sorts", -9.0, 1.0, True),
        ("Python", -6.0, 2.0, True),
        ("Go", 0.0, 0.0, False),
        ("worse under 64 kB, by memory", -6.0, 40.0, False),
        ("worse under 64 kB, by CPU time", 4.0, 0.0, False),
    ],
)
def test_the_trial(name: str, cpu: float, memory: float, keep: bool) -> None:
    noise = (normal(), CALM)
    assert right(name, lambda rng: keeps(rng, cpu, memory, noise) == keep) >= RIGHT
