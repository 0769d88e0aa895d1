# SPDX-License-Identifier: GPL-2.0
"""Benchmarks."""

from __future__ import annotations

from collections.abc import Iterable


def with_table(text: str, name: str, lines: Iterable[str]) -> str:
    """Return a document with the lines of a benchmark between its two marks."""
    begin, end = f"<!-- {name}: made by ./dev bench {name} -->\n", f"<!-- end of {name} -->"
    before, _, rest = text.partition(begin)
    return "\n".join([f"{before}{begin}", *lines, "", f"{end}{rest.partition(end)[2]}"])
