# SPDX-License-Identifier: GPL-2.0
"""Output: aligned plain text for people, versioned JSON for programs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Union

import click

Lines = Union[Iterable[str], Callable[[], Iterable[str]]]

JSON_VERSION = 1
# columns of a line if standard output is no terminal: readers of a pipe get a row on one line
WIDE = 10_000
GAP = "  "  # text between two columns of a table
# the last column of a table is wrapped only if the terminal leaves it this many characters
LEAST = 30


def coloured() -> bool:
    """Return whether output may be coloured: only on a terminal, and never if NO_COLOR is set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def paint(text: str, colour: str) -> str:
    """Colour text if output may be coloured."""
    return click.style(text, fg=colour) if coloured() else text


def columns() -> int:
    """Return the columns of a line: the width of the terminal, or WIDE without one."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or WIDE
    except OSError:  # standard output is a pipe or a file
        return WIDE


def progress_line(text: str, is_last: bool) -> None:
    """Overwrite the progress line on standard error; do nothing if that is not a terminal.

    is_last: end the line, as no other text will overwrite it.
    """
    if sys.stderr.isatty():
        click.echo(f"\r{text} \x1b[K", err=True, nl=is_last)


@contextmanager
def own_line() -> Iterator[None]:
    """Clear the progress line at the end of the `with` block, also if an exception or a signal ends
    the work.
    """
    try:
        yield
    finally:
        progress_line("", is_last=False)


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return a table as lines, with the columns aligned."""
    return [line for block in blocks(header, rows) for line in block]


def blocks(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[list[str]]:
    """Return the lines of the header and of each row, with the columns aligned.

    On a terminal that is too narrow, the last column is wrapped within its width. If its width
    would be too small, the last columns are printed below their row. No text is lost.
    """
    texts = [list(header), *([str(cell) for cell in row] for row in rows)]
    widths = [max(_width(row[at]) for row in texts) for at in range(len(header))]
    beside, room = len(widths), columns()
    before = sum(widths[:-1]) + len(GAP) * len(widths[:-1])
    if before + widths[-1] > room >= before + LEAST:
        return [_hanging(row, widths, before) for row in texts]
    while beside > 1 and sum(widths[:beside]) + len(GAP) * (beside - 1) > room:
        beside -= 1
    return [_block(row[:beside], row[beside:], widths) for row in texts]


def _hanging(row: list[str], widths: list[int], before: int) -> list[str]:
    line = _padded(_line(row[:-1], widths), before)
    first, *others = wrapped(row[-1], " " * before, "") or [line]
    return [(line + first[before:]).rstrip(), *others]


def _block(beside: list[str], below: list[str], widths: list[int]) -> list[str]:
    line, rest = _line(beside, widths), GAP.join(filter(None, below))
    return [line] * bool(line) + (wrapped(rest) if rest.strip("- ") else [])


def _line(cells: list[str], widths: list[int]) -> str:
    pairs = zip(cells, widths)
    return GAP.join(_padded(text, width) for text, width in pairs).rstrip()


def _padded(text: str, width: int) -> str:
    return text + " " * (width - _width(text))


def _width(text: str) -> int:
    return len(click.unstyle(text))


def wrapped(text: str, indent: str = "    ", hanging: str = "  ") -> list[str]:
    """Return text as indented lines that fit the terminal. hanging: the further indent of all lines
    but the first.
    """
    import textwrap

    return textwrap.wrap(
        text, columns(), initial_indent=indent, subsequent_indent=indent + hanging,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def show_live(frames: Iterator[list[str]]) -> None:
    """Print frames, each of which is a list of lines, until they end or Ctrl-C is pressed; on a
    terminal, each frame overwrites the last.
    """
    try:
        if sys.stdout.isatty():
            _show_on_terminal(frames)
            return
        for lines in frames:
            click.echo("\n".join([*lines, ""]))
    except KeyboardInterrupt:
        pass


def _show_on_terminal(frames: Iterator[list[str]]) -> None:
    from rich.live import Live
    from rich.text import Text

    with Live(auto_refresh=False, vertical_overflow="crop") as live:
        for lines in frames:
            live.update(Text.from_ansi("\n".join(lines)), refresh=True)


def as_json(command: str, data: dict[str, Any], indent: int | None = 2) -> str:
    """Return data as the JSON text that a command prints, with the version of the format."""
    return json.dumps({"version": JSON_VERSION, "command": command, **data}, indent=indent)


def emit(command: str, want_json: bool, data: dict[str, Any], lines: Lines) -> None:
    """Print data as JSON, or else as lines; a function given for the lines is called only if
    needed.
    """
    if want_json:
        click.echo(as_json(command, data))
        return
    for line in lines() if callable(lines) else lines:
        click.echo(line)


def emit_error(command: str, error: dict[str, Any]) -> None:
    """Print an error as JSON, on standard error."""
    click.echo(as_json(command, {"error": error}), err=True)


def duration(seconds: float) -> str:
    """Return a time as text, in seconds, minutes or hours."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
