# SPDX-License-Identifier: GPL-2.0
"""Output: aligned plain text for people, versioned JSON for programs."""

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click

JSON_VERSION = 1


def paint(text: str, colour: str) -> str:
    """Colour text, on a terminal only and never against NO_COLOR."""
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        return click.style(text, fg=colour)
    return text


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return lines with the columns aligned."""
    cells = [list(header), *([str(cell) for cell in row] for row in rows)]
    widths = [
        max(len(click.unstyle(cell)) for cell in column) for column in zip(*cells, strict=True)
    ]
    return ["  ".join(map(_pad, row, widths)).rstrip() for row in cells]


def _pad(cell: str, width: int) -> str:
    return cell + " " * (width - len(click.unstyle(cell)))


def as_json(command: str, data: dict[str, Any], indent: int | None = 2) -> str:
    """Return data as the JSON of a command."""
    return json.dumps({"version": JSON_VERSION, "command": command, **data}, indent=indent)


def emit(command: str, want_json: bool, data: dict[str, Any], lines: Iterable[str]) -> None:
    """Print either the data as JSON or the lines."""
    for line in [as_json(command, data)] if want_json else lines:
        click.echo(line)


def emit_plan(command: str, want_json: bool, plan: Iterable[tuple[str, str]]) -> None:
    """Print the writes that a dry run leaves out."""
    writes = [{"path": path, "value": value} for path, value in plan]
    data = {"dry_run": True, "writes": writes}
    emit(command, want_json, data, [f"{write['path']} <- {write['value']}" for write in writes])
