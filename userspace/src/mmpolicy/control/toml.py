# SPDX-License-Identifier: GPL-2.0
"""Find the line of each key in a TOML file, as the TOML library does not report lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mmpolicy import tomllib

TomlKey = tuple[str, ...]


def leaves(table: Mapping[str, Any], above: TomlKey = ()) -> Iterator[tuple[TomlKey, Any]]:
    """Yield the full key and the value of each entry that is not a table, and of each
    empty table.
    """
    for name, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, (*above, name))
        else:
            yield (*above, name), value


def key_lines(text: str) -> dict[TomlKey, int]:
    """Return the line number of each key in the text of a valid file; a table counts as a key."""
    found: dict[TomlKey, int] = {}
    table: TomlKey = ()
    statement, start = "", 1
    for number, line in enumerate(text.splitlines(), start=1):
        start = start if statement else number
        statement += f"{line}\n"
        if any(statement.count(quotes) % 2 for quotes in ('"""', "'''")):
            continue  # the line is inside a text of several lines
        try:
            keys = [key for key, _ in leaves(tomllib.loads(statement))]
        except tomllib.TOMLDecodeError:
            continue  # the statement continues on the next line
        if statement.lstrip().startswith("["):
            (table,) = keys
            keys = [()]
        found |= {(*table, *key): start for key in keys}
        statement = ""
    return found
