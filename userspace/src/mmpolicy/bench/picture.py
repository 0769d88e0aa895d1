# SPDX-License-Identifier: GPL-2.0
"""The result of a bench as a picture and as an HTML page; needs matplotlib and jinja2."""

from __future__ import annotations

from io import BytesIO
from math import exp, isfinite
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from mmpolicy.ab.report.html import COLOURS, GREY, INLINE, PAGES, as_element
from mmpolicy.bench.result import METRICS, Result
from mmpolicy.host.disk import save_as

SHOWN = ("cpu", "wall", "peak_rss")


def draw(result: Result) -> Figure:
    """Return a figure with the ratios of all arms and their intervals, for time and memory."""
    arms = list(reversed(result.arms[1:]))
    figure = Figure(figsize=(9, 1.2 + 0.45 * len(arms)), layout="constrained")
    for number, (name, axes) in enumerate(zip(SHOWN, figure.subplots(1, len(SHOWN), sharey=True))):
        axes.spines[["top", "right"]].set_visible(False)
        axes.axvline(1, color="black", linewidth=0.8)
        axes.set_title(METRICS[name][0].lower() if number else "CPU time")
        axes.set_yticks(range(len(arms)), [arm.name for arm in arms])
        for place, arm in enumerate(arms):
            _bar(axes, place, result, arm.name, name)
    figure.supxlabel(f"as a multiple of {result.arms[0].name}, with 95 % interval", size=9)
    return figure


def _bar(axes: Any, place: int, result: Result, arm: str, name: str) -> None:
    effect = result.compared[arm][name].effect
    if not effect or effect.scale == "difference":
        return
    known = isfinite(effect.low) and not effect.low <= 0 <= effect.high
    colour = COLOURS["treatment"] if known else GREY
    if isfinite(effect.low):
        axes.plot([exp(effect.low), exp(effect.high)], [place] * 2, color=colour)
    axes.plot(exp(effect.estimate), place, "o", color=colour)


def save_picture(result: Result, path: Path) -> None:
    """Save the figure in a file; the suffix selects the format."""
    kind, drawn = path.suffix.removeprefix("."), BytesIO()
    with mpl.rc_context(INLINE):
        metadata = {"Date": None} if kind == "svg" else None
        draw(result).savefig(drawn, format=kind, metadata=metadata)
    save_as(path, drawn.getvalue())


def page(result: Result, title: str, facts: list[tuple[str, str]]) -> str:
    """Return the result as an HTML page."""
    with mpl.rc_context(INLINE):
        picture = as_element(draw(result), "ratios of all arms with their intervals")
    return PAGES.get_template("bench.html").render(
        title=title, facts=facts, picture=picture, tables=result.tables(),
        sentences=[result.sentence(arm) for arm in result.arms[1:]], by_median=result.by_median,
    )  # fmt: skip
