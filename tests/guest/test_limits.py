# SPDX-License-Identifier: GPL-2.0
"""Which runs decide about a limit; no guest is booted here."""

from __future__ import annotations

import pytest
from common import Results, Sample

from .limits import Repeated


def repeated(*figures: float) -> Repeated:
    """Measurements that give these figures, one after the other."""
    left = iter(figures)

    def take(arms: frozenset[str]) -> Results:
        return Results("limits", samples=[Sample("a", "c", {"x": next(left)})])

    return Repeated(take)


def figure(run: Results) -> float:
    """What is held."""
    return run.value("a", "c", "x")


@pytest.mark.parametrize("figures", [(1.0,), (3.0, 1.0, 1.0)])
def test_within(figures: tuple[float, ...]) -> None:
    """One run is enough; else the median of three decides, of runs that are kept."""
    runs = repeated(*figures)
    for _ in range(2):
        runs.hold(2, figure, "x", "a")
    assert len(runs.runs) == len(figures)


@pytest.mark.parametrize("figures", [(3.0, 3.0, 1.0), (3.0, 1.0, 3.0)])
def test_beyond(figures: tuple[float, ...]) -> None:
    """The message has all figures and the limit."""
    with pytest.raises(pytest.fail.Exception, match=r"x: 3\.0000, .*, limit 2"):
        repeated(*figures).hold(2, figure, "x", "a")
