# SPDX-License-Identifier: GPL-2.0
"""Tests of limits.py: repeated runs and their limits; they boot no guest."""

from __future__ import annotations

import pytest

from lab.counting import Results, Sample

from .limits import RUNS, Passed, Repeated, lost

pytestmark = pytest.mark.flavor()


def repeated(*figures: float) -> Repeated:
    """Return a measurement whose runs give these figures, one after the other, without a guest."""
    left = iter(figures)

    def take(arms: frozenset[str]) -> Results:
        return Results("limits", samples=[Sample("a", "c", {"x": next(left)})])

    return Repeated(take)


def figure(run: Results) -> float:
    """Return the figure of a run that hold() compares with the limit."""
    return run.value("a", "c", "x")


@pytest.mark.parametrize("figures", [(1.0,), (3.0, 1.0, 1.0)])
def test_within(figures: tuple[float, ...]) -> None:
    """If the figure of the first run is within the limit, there are no further runs; else the
    median of three runs decides. No run is made twice.
    """
    runs = repeated(*figures)
    for _ in range(2):
        runs.hold(2, figure, "x", "a")
    assert len(runs.runs) == len(figures)


@pytest.mark.parametrize("figures", [(3.0, 3.0, 1.0), (3.0, 1.0, 3.0)])
def test_beyond(figures: tuple[float, ...]) -> None:
    """If a figure exceeds its limit, the message has the figures of all runs, and the limit."""
    with pytest.raises(pytest.fail.Exception, match=r"x: 3\.0000, .*, limit 2"):
        repeated(*figures).hold(2, figure, "x", "a")


class Program:
    """Stands for a program with two tests: "good" passes in each run, "bad" in the runs that
    `passes` says.
    """

    def __init__(self, *passes: bool) -> None:
        self.left = list(passes)

    def __call__(self) -> Passed:
        """Imitate one run of the program; return the names of the tests that passed."""
        return frozenset({"good", "bad"} if self.left.pop(0) else {"good"})


BOTH = frozenset({"good", "bad"})


def test_what_passes_at_once_is_run_once() -> None:
    """If all tests of a program pass in the first run, the program does not run again, and not at
    all at stock.
    """
    assert lost(BOTH, Program(True), Program()) == []


@pytest.mark.parametrize(
    ("ours", "stock", "found"),
    [(0, 6, True), (1, 6, True), (3, 6, True), (4, 6, False), (1, 5, True), (2, 5, False)],
)
def test_what_passes_less_often_than_at_stock(ours: int, stock: int, found: bool) -> None:
    """A test that passes in few of six runs is reported as lost, unless it passes as rarely at
    stock.
    """
    here = Program(*(number >= RUNS - ours for number in range(RUNS)))
    there = Program(*(number < stock for number in range(RUNS)))
    expected = [f"bad: passes in {ours} of 6 runs, at stock in {stock}"] if found else []
    assert lost(BOTH, here, there) == expected
    assert not here.left and not there.left
