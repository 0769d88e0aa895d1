# SPDX-License-Identifier: GPL-2.0
"""Output: aligned plain text for people, versioned JSON for programs."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import click

Lines = Iterable[str] | Callable[[], Iterable[str]]

JSON_VERSION = 1
WIDE = 10_000  # columns: a table is never cut, the terminal may wrap it


def coloured() -> bool:
    """Tell if output may have colours: on a terminal only and never against NO_COLOR."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def paint(text: str, colour: str) -> str:
    """Colour text, where output may have colours."""
    return click.style(text, fg=colour) if coloured() else text


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return lines with the columns aligned."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for name in header:
        grid.add_column(Text(name), no_wrap=True)
    for row in rows:
        grid.add_row(*(Text.from_ansi(str(cell)) for cell in row))
    console = Console(
        width=WIDE, force_terminal=coloured(), color_system="standard" if coloured() else None
    )
    with console.capture() as capture:
        console.print(grid)
    return [line.rstrip() for line in capture.get().splitlines()]


def show_live(frames: Iterator[list[str]]) -> None:
    """Print frames until there are no more, or Ctrl-C; on a terminal, each over the last one."""
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
    """Return data as the JSON of a command."""
    return json.dumps({"version": JSON_VERSION, "command": command, **data}, indent=indent)


def emit(command: str, want_json: bool, data: dict[str, Any], lines: Lines) -> None:
    """Print either the data as JSON or the lines; those may be made only if they are wanted."""
    if want_json:
        click.echo(as_json(command, data))
        return
    for line in lines() if callable(lines) else lines:
        click.echo(line)


def emit_error(command: str, error: dict[str, Any]) -> None:
    """Print an error as JSON, on standard error."""
    click.echo(as_json(command, {"error": error}), err=True)


def emit_plan(command: str, want_json: bool, plan: Iterable[tuple[str, str]]) -> None:
    """Print the writes that a dry run leaves out."""
    writes = [{"path": path, "value": value} for path, value in plan]
    data = {"dry_run": True, "writes": writes}
    emit(command, want_json, data, [f"{write['path']} <- {write['value']}" for write in writes])
