# SPDX-License-Identifier: GPL-2.0
"""Benchmarks, and what they share: settings of huge pages on this machine, tables in documents."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

THP = Path("/sys/kernel/mm/transparent_hugepage")


def with_table(text: str, name: str, lines: Iterable[str]) -> str:
    """Return the text of a document with these lines between the two marks of the benchmark `name`,
    in place of the old lines.
    """
    begin, end = f"<!-- {name}: made by ./dev bench {name} -->\n", f"<!-- end of {name} -->"
    before, _, rest = text.partition(begin)
    return "\n".join([f"{before}{begin}", *lines, "", f"{end}{rest.partition(end)[2]}"])


def unwind_on_signals() -> None:
    """Make SIGTERM and SIGINT raise an exception, so that the benchmark restores the settings of
    this machine before it ends.
    """
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job with & ignores SIGINT


@contextmanager
def thp_settings(wanted: Mapping[str, str]) -> Iterator[None]:
    """Write values to files below transparent_hugepage on this machine, by relative path; restore
    the former values at the end of the `with` block.
    """

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
