# SPDX-License-Identifier: GPL-2.0
"""The pictures of README match the figures, fit their frame, and are readable."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest

from bench import pictures

DRAWN = pictures.drawn()
BACKGROUND = {"light": "#ffffff", "dark": "#0d1117"}


def luminance(colour: str) -> float:
    """Return the relative luminance, as WCAG 2.1 defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Return a contrast from 1 to 21; WCAG demands 4.5 for text, and 3 for graphics."""
    dark, light = sorted(map(luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("path", DRAWN, ids=lambda path: str(path.name))
def test_the_file_is_what_is_drawn(path: Path) -> None:
    """After a new measurement, `./dev bench pictures --draw` writes the files."""
    assert path.read_text() == DRAWN[path]


@pytest.mark.parametrize("path", DRAWN, ids=lambda path: str(path.name))
def test_nothing_sticks_out(path: Path) -> None:
    """Letters are at most 0.6 em wide on average, and at least 13 pixels high on a phone.

    The demo is a terminal of 65 columns, so its letters have 9 pixels.
    """
    svg = DRAWN[path]
    width, height = map(int, re.findall(r'viewBox="0 0 (\d+) (\d+)"', svg)[0])
    text = r'<text x="([\d.]+)" y="([\d.]+)" font-size="(\d+)"[^>]*>([^<]*)'
    for x, y, size, words in re.findall(text, svg):
        wide = 0.6 if path == pictures.DEMO else 0.55
        assert float(x) + wide * int(size) * len(unescape(words)) <= width, words
        assert int(size) <= float(y) <= height
        assert int(size) * 360 / width >= (9 if path == pictures.DEMO else 13)
    box = r'<rect class="\w+" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"'
    for x, y, wide, high in re.findall(box, svg):
        assert float(x) + float(wide) <= width
        assert float(y) + float(high) <= height


@pytest.mark.parametrize("scheme", BACKGROUND)
def test_contrast(scheme: str) -> None:
    """Text contrasts with the background, and used and empty cells with absent ones."""
    light, dark = pictures.STYLE.split("@media")
    colours = dict(re.findall(r"\.?(\w+) \{[^}]*fill: (#\w+)", light))
    if scheme == "dark":
        colours |= dict(re.findall(r"\.?(\w+) \{[^}]*fill: (#\w+)", dark))
    assert contrast(colours["text"], BACKGROUND[scheme]) >= 4.5
    for kind in ("used", "empty", "other"):
        assert contrast(colours[kind], BACKGROUND[scheme]) >= 3
    assert contrast(colours["used"], colours["back"]) >= 2
    assert contrast(colours["empty"], colours["back"]) >= 2
