# SPDX-License-Identifier: GPL-2.0
"""The figures of `ab report --html`: their elements, places and highlights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import exp, inf, log
from typing import Any

import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mmpolicy.ab.metrics import Metric
from mmpolicy.ab.report import html
from mmpolicy.ab.report.metric_result import MetricResult
from mmpolicy.ab.report.stats import Effect, floor

from .test_ab_samples import UNSAID, report_of, result

BLUE, RED, GREY, BLACK = "#4878a8", "#d1603d", "#888888", "#000000"
ZERO = ([0, 0], [0, 1], BLACK, "-", "None", 0.8)  # the line at no effect
FOUND = result(log(0.9), log(0.8), log(0.95), 0.01)
UNCLEAR = result(log(1.1), log(0.9), log(1.3), 0.5, metric=UNSAID)
NO_ENDS = replace(UNCLEAR, effect=replace(FOUND.effect, low=-inf, high=inf))  # type: ignore[type-var]


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have the figures themselves instead of their SVG; return the description of each."""
    said: list[str] = []

    def keep(figure: Figure, text: str) -> Figure:
        said.append(text)
        return figure

    monkeypatch.setattr(html, "as_element", keep)
    return said


def lines_of(figure: Any) -> list[tuple[Any, ...]]:
    """Return each line of a figure: place, colour and style."""
    return [
        (pytest.approx(list(each.get_xdata())), list(each.get_ydata()), to_hex(each.get_color()),
         each.get_linestyle(), each.get_marker(), each.get_linewidth())
        for each in figure.axes[0].lines
    ]  # fmt: skip


def boxes_of(figure: Any) -> list[tuple[float, ...]]:
    """Return place and size of each box: left, bottom, width and height."""
    return [each.get_bbox().bounds for each in figure.axes[0].patches]


def looks(figure: Any) -> Iterator[object]:
    """Yield the size of a figure, the ends of its upright axis, and its labels."""
    (axes,) = figure.axes
    yield tuple(figure.get_size_inches())
    yield axes.get_ylim()
    yield {label.get_position()[1]: label.get_text() for label in axes.get_yticklabels()}
    yield [axes.spines[side].get_visible() for side in ("top", "right", "left")]


def test_effects_below_each_other(texts: list[str]) -> None:
    """Effects are drawn below each other: ratios only, the first one on top; one without an
    interval is a point alone.
    """
    others = [result(1.0, 0, 2, 0.1, scale="difference"), replace(FOUND, effect=None)]
    aa = Effect("ratio", 8, 0.01, -1, 1, 0.5, 0.02)
    drawn = html.forest([replace(FOUND, aa=aa), *others, UNCLEAR])
    assert texts == ["effects with their intervals"]
    assert [*looks(drawn)] == [
        (8, pytest.approx(0.9 + 0.45 * 2)), (-0.6, 1.6), {0: "u", 1: "vmstat.pgfault/s"},
        [False, False, True],
    ]  # fmt: skip
    assert lines_of(drawn) == [
        ([-10, 30], [0, 0], GREY, "-", "None", 1.5), ([10], [0], GREY, "None", "o", 1.5),
        ([-20, -5], [1, 1], RED, "-", "None", 1.5), ([-10], [1], RED, "None", "o", 1.5), ZERO,
    ]  # fmt: skip
    noise = floor(aa, 10)
    left, right = 100 * (exp(-noise) - 1), 100 * (exp(noise) - 1)
    assert boxes_of(drawn) == [pytest.approx((left, 0.65, right - left, 0.7))]
    assert drawn and drawn.axes[0].get_xlim() == pytest.approx((-20 - 15, 30 + 15))  # type: ignore[attr-defined]
    assert drawn.axes[0].get_xlabel().startswith("effect of the treatment in %, with 95 %")  # type: ignore[attr-defined]
    assert html.forest(others) is None
    bare = html.forest([NO_ENDS])
    assert lines_of(bare) == [([-10], [0], GREY, "None", "o", 1.5), ZERO]
    assert (boxes_of(bare), next(looks(bare))) == ([], (8, pytest.approx(1.35)))


@pytest.mark.parametrize(
    ("ends", "limits"),
    [
        ((0.9, 0.8, 0.95), (-26, 6)),  # 0 is always in range
        ((1.1, 1.05, 1.2), (-6, 26)),
        ((1.0, 1.0, 1.0), (-1, 1)),
        ((1.1, 0, inf), (-3, 13)),
    ],
)
def test_the_axis_of_effects(ends: tuple[float, ...], limits: tuple[float, float]) -> None:
    middle, low, high = (log(each) if each else -inf for each in ends)
    assert html._limits([result(middle, low, high, 0.01)]) == pytest.approx(limits)


def test_the_course_of_a_run(texts: list[str]) -> None:
    """The course of a run is drawn pair by pair, first those of the A/A phase on a background of
    their own.
    """
    pairs = [(1.0, 2.0), (3.0, 4.0)]
    row = replace(FOUND, pairs=pairs, aa_pairs=[(5.0, 6.0)])
    drawn: Any = html.course(row)
    assert texts == ["values of vmstat.pgfault/s in both arms"]
    (axes,) = drawn.axes
    assert (tuple(drawn.get_size_inches()), axes.get_xlabel(), axes.get_ylabel()) == (
        (8, 2.6), "pair", "vmstat.pgfault/s",
    )  # fmt: skip
    assert lines_of(drawn) == [
        ([1, 2, 3], [5, 1, 3], BLUE, "None", "o", 1.5),
        ([1, 2, 3], [6, 2, 4], RED, "None", "o", 1.5),
    ]
    assert [line.get_markersize() for line in axes.lines] == [4, 4]
    (between,) = axes.collections
    assert between.get_linewidth() == [1]
    assert [each.tolist() for each in between.get_segments()] == [
        [[1, 5], [1, 6]], [[2, 1], [2, 2]], [[3, 3], [3, 4]],
    ]  # fmt: skip
    assert [bounds[::2] for bounds in boxes_of(drawn)] == [(0.5, 1)]
    assert isinstance(axes.xaxis.get_major_locator(), MaxNLocator)
    assert all(tick == int(tick) for tick in axes.xaxis.get_major_locator().tick_values(1, 3))
    legend = axes.legend_
    assert [each.get_text() for each in legend.get_texts()] == ["control", "treatment", "A/A"]
    assert not legend.get_frame_on()
    corner = axes.transAxes.inverted().transform(legend.get_bbox_to_anchor().get_points()[0])
    assert corner == pytest.approx((1, 1))
    for part in (replace(row, aa_pairs=[]), replace(row, pairs=[])):
        assert boxes_of(html.course(part)) == []


@pytest.mark.parametrize(
    ("scale", "pairs", "effect", "values", "ends"),
    [
        ("ratio", [(1.0, 1.1), (1.0, 0.9)], (log(0.8), log(1.2)), [10, -10], [-20, 20]),
        ("totals", [(0.0, 2.0), (4.0, 2.0)], (log(0.8), log(1.2)), [100, -100], [-20, 20]),
        ("difference", [(-1.0, 2.0), (4.0, 3.0)], (-3.0, 5.0), [3, -1], [-3, 5]),
        ("ratio", [(1.0, 1.1), (1.0, 0.9)], (-inf, inf), [10, -10], None),
    ],
)
def test_differences_of_pairs(
    texts: list[str], scale: str, pairs: list[tuple[float, float]], effect: tuple[float, float],
    values: list[float], ends: list[float] | None,
) -> None:  # fmt: skip
    row = result(0.0, *effect, 0.5, scale=scale, pairs=pairs)
    drawn: Any = html.scatter(replace(row, aa_pairs=pairs[:1]))
    assert texts == ["differences of the pairs of vmstat.pgfault/s"]
    assert [*looks(drawn)][:3] == [(8, 1.6), (-0.7, 1.7), {0: "A/A", 1: "A/B"}]
    dashes = lines_of(drawn)
    interval = [(ends, [1, 1], RED, "-", "None", 3)] if ends else []
    assert dashes[1:] == [(values, [1, 1], GREY, "None", "|", 1.5), *interval, ZERO]
    assert (dashes[0][1:3], len(dashes)) == (([0], GREY), 3 + bool(ends))
    assert {line.get_markersize() for line in drawn.axes[0].lines[:2]} == {14}
    unit = "" if scale == "difference" else " in %"
    assert drawn.axes[0].get_xlabel() == f"treatment against control of each pair{unit}"
    alone: Any = html.scatter(replace(row, effect=None, aa=row.effect))
    assert [*looks(alone)][1:3] == [(-0.7, 0.7), {0: "A/B"}]
    assert lines_of(alone)[1:] == [ZERO]


def test_metrics_that_have_figures(texts: list[str]) -> None:
    def plots(row: MetricResult) -> int:
        (found,) = html._details([row])
        assert (found["name"], found["verdict"]) == (row.metric.name, row.verdict())
        return len(found["plots"])

    pairs = [(1.0, 2.0), (1.0, 2.0)]
    nothing = MetricResult(Metric.parse("vmstat.nr_a"), [], [], None, None, 1, 12)
    assert [plots(row) for row in (
        nothing, replace(nothing, pairs=pairs), replace(nothing, aa_pairs=pairs), FOUND,
    )] == [0, 2, 2, 2]  # fmt: skip


def test_a_figure_is_an_element_that_says_what_it_shows() -> None:
    figure, _ = html._figure(2, 1)
    element = html.as_element(figure, "more < less")
    assert element.startswith('<svg role="img" aria-label="more &lt; less" ')
    assert element.count("aria-label") == 1
    assert "<dc:date>" not in element
    assert isinstance(figure, Figure)


@pytest.mark.parametrize(
    ("effect", "doubts", "outcome"),
    [((-0.1, 0.01), (), "shown"), ((0.1, 0.01), (), "worse"), ((0.1, 0.9), (), "inconclusive"),
     ((-0.1, 0.01), ("x",), "inconclusive")],
)  # fmt: skip
def test_the_outcome_is_marked(
    effect: tuple[float, float], doubts: tuple[str, ...], outcome: str
) -> None:
    middle, p = effect
    text = html.page(report_of(result(middle, middle - 0.1, middle + 0.1, p), doubts=doubts))
    assert f'<p class="verdict {outcome}">' in text
    assert "<title>stock against anon_order=fixed</title>" in text or "against stock" in text
    assert text.count('role="img"') == 3
