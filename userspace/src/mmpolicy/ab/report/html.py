# SPDX-License-Identifier: GPL-2.0
"""The report as one self-contained HTML file; needs matplotlib and jinja2."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from io import StringIO
from math import isfinite
from typing import Any

import matplotlib as mpl
from jinja2 import Environment, PackageLoader
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mmpolicy.ab.design import Pairs, differences
from mmpolicy.ab.report.metric_result import MetricResult
from mmpolicy.ab.report.report import Report
from mmpolicy.ab.sources import ARMS
from mmpolicy.errors import Exit

COLOURS = {"control": "#4878a8", "treatment": "#d1603d"}
GREY = "#888888"
INLINE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "mmpolicy",
    "font.family": "sans-serif",
    "text.parse_math": False,  # a name may contain dollar signs
}

PAGES = Environment(loader=PackageLoader("mmpolicy", "ab/report"), autoescape=True)


def _figure(width: float, height: float) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def as_element(figure: Figure, text: str) -> Markup:
    """Return a figure as inline SVG; text: its label for screen readers."""
    out = StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :]
    return Markup(svg.replace("<svg", _labelled(text), 1))


def _labelled(text: str) -> str:
    return f'<svg role="img" aria-label="{escape(text)}"'


def forest(rows: Sequence[MetricResult]) -> Markup | None:
    """Return a forest plot of the effects and intervals of all metrics with an effect in percent;
    None if there is none.
    """
    shown = [row for row in rows if row.effect and row.relative]
    if not shown:
        return None
    figure, axes = _figure(8, 0.9 + 0.45 * len(shown))
    for place, row in enumerate(reversed(shown)):
        _bar(axes, place, row)
    axes.set_xlim(*_limits(shown))
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(shown)), [row.metric.name for row in reversed(shown)])
    axes.set_ylim(-0.6, len(shown) - 0.4)
    axes.set_xlabel("effect of the treatment in %, with 95 % interval; grey: A/A floor")
    return as_element(figure, "effects with their intervals")


def _limits(rows: Sequence[MetricResult]) -> tuple[float, float]:
    """Return the low and the high end of the plot's axis in percent. The axis contains 0 and all
    intervals; a far larger A/A floor, the difference between equal arms, may be cut.
    """
    effects = [row.effect for row in rows if row.effect]
    ends = [end for each in effects for end in (each.low, each.estimate, each.high)]
    shown = [0.0, *(rows[0].shown(end) for end in ends if isfinite(end))]
    margin = 0.3 * (max(shown) - min(shown)) or 1.0
    return min(shown) - margin, max(shown) + margin


def _bar(axes: Any, place: int, row: MetricResult) -> None:
    effect = row.effect
    if row.noise is not None:
        ends = row.shown(-row.noise), row.shown(row.noise)
        axes.barh(place, ends[1] - ends[0], left=ends[0], color="#dddddd", height=0.7)
    assert effect
    colour = COLOURS["treatment"] if row.found else GREY
    if isfinite(effect.low):
        axes.plot([row.shown(effect.low), row.shown(effect.high)], [place] * 2, color=colour)
    axes.plot(row.shown(effect.estimate), place, "o", color=colour)


def course(row: MetricResult) -> Markup:
    """Return a plot with the values of both arms in each pair, in order of time; the A/A phase
    comes first.
    """
    figure, axes = _figure(8, 2.6)
    pairs = [*row.aa_pairs, *row.pairs]
    places = range(1, len(pairs) + 1)
    axes.vlines(places, *zip(*pairs), color="#cccccc", linewidth=1)
    for side, arm in enumerate(ARMS):
        values = [pair[side] for pair in pairs]
        axes.plot(places, values, "o", color=COLOURS[arm], label=arm, markersize=4)
    if row.aa_pairs and row.pairs:
        axes.axvspan(0.5, len(row.aa_pairs) + 0.5, color="#eeeeee", label="A/A")
    axes.set_xlabel("pair")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel(row.metric.name)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    return as_element(figure, f"values of {row.metric.name} in both arms")


def scatter(row: MetricResult) -> Markup:
    """Return a plot with the difference between the arms in each pair, and the interval of the
    effect.
    """
    figure, axes = _figure(8, 1.6)
    phases: list[tuple[str, Pairs]] = [("A/A", row.aa_pairs), ("A/B", row.pairs)]
    names = [name for name, pairs in phases if pairs]
    for place, (_, pairs) in enumerate(phase for phase in phases if phase[1]):
        scale, found = differences(pairs)
        values = [100 * value if scale == "totals" else value for value in found]
        values = [row.shown(value) for value in found] if scale == "ratio" else values
        axes.plot(values, [place] * len(values), "|", color=GREY, markersize=14)
    if row.effect and isfinite(row.effect.low):
        ends = [row.shown(row.effect.low), row.shown(row.effect.high)]
        axes.plot(ends, [len(names) - 1] * 2, color=COLOURS["treatment"], linewidth=3)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(-0.7, len(names) - 0.3)
    axes.set_xlabel(f"treatment against control of each pair{' in %' * row.relative}")
    return as_element(figure, f"differences of the pairs of {row.metric.name}")


def _details(rows: Sequence[MetricResult]) -> Iterator[dict[str, Any]]:
    for row in rows:
        plots = [course(row), scatter(row)] if row.pairs or row.aa_pairs else []
        yield {"name": row.metric.name, "verdict": row.verdict(), "plots": plots}


def page(report: Report, trial: Sequence[str] = ()) -> str:
    """Return the report as an HTML page. trial: lines about the trial of `try` that the report
    belongs to; they are printed above the report.
    """
    head, lines = report.table()
    with mpl.rc_context(INLINE):
        plots = {"forest": forest(report.rows), "details": list(_details(report.rows))}
    return PAGES.get_template("report.html").render(
        plots,
        title="{treatment[given]} against {control[given]}".format(**report.header),
        outcome="shown" if report.exit == Exit.DONE else report.exit.name.lower(),
        report=report,
        trial=trial,
        facts=report.facts(),
        head=head,
        lines=lines,
    )
