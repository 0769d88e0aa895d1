# SPDX-License-Identifier: GPL-2.0
"""Numbers as people read them: rounded, without an exponent."""

from __future__ import annotations

from math import floor, log10

LEAST, MOST = 1e-12, 1e15  # a smaller number is 0, a larger one has an exponent


def figure(value: float, digits: int = 6, sign: str = "") -> str:
    """Return a number rounded to some significant digits; sign: "+" for a sign in any case."""
    text = f"{value:{sign}.{digits}g}"
    if "e" not in text or abs(value) >= MOST:
        return text
    if abs(value) < LEAST:
        return f"{0.0:{sign}.0f}"
    if abs(value) >= 1:
        return f"{float(text):{sign}.0f}"
    places = digits - 1 - floor(log10(abs(value)))
    return f"{float(text):{sign}.{places}f}".rstrip("0")
