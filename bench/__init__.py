# SPDX-License-Identifier: GPL-2.0
"""Benchmarks."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

THP = Path("/sys/kernel/mm/transparent_hugepage")


def with_table(text: str, name: str, lines: Iterable[str]) -> str:
    """Return a document with the output of a benchmark between its two marks."""
    begin, end = f"<!-- {name}: made by ./dev bench {name} -->\n", f"<!-- end of {name} -->"
    before, _, rest = text.partition(begin)
    return "\n".join([f"{before}{begin}", *lines, "", f"{end}{rest.partition(end)[2]}"])


def unwind_on_signals() -> None:
    """Make SIGTERM and SIGINT raise, so that a benchmark restores this machine."""
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's & has disabled


@contextmanager
def thp_settings(wanted: Mapping[str, str]) -> Iterator[None]:
    """Write files below transparent_hugepage on this machine, and restore them."""

    def write(values: Mapping[str, str]) -> None:
        for name, value in values.items():
            (THP / name).write_text(value)

    before = {}
    for name in wanted:
        text = (THP / name).read_text()
        before[name] = text.partition("[")[2].partition("]")[0] or text.strip()
    try:
        write(wanted)
        yield
    finally:
        write(before)
