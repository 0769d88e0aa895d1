# SPDX-License-Identifier: GPL-2.0
"""TOML: a writer for nested tables of numbers and strings, and the line of each key in a file.

The standard library only reads TOML and does not tell where a key stands.
"""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

Key = tuple[str, ...]


def dumps(table: Mapping[str, Any], above: Key = ()) -> str:
    """Return a table as TOML: values first, then the tables in it."""
    values = {name: value for name, value in table.items() if not isinstance(value, Mapping)}
    lines = [f"{_name(name)} = {_value(value)}" for name, value in values.items()]
    if above and (lines or not table):
        lines.insert(0, f"\n[{'.'.join(map(_name, above))}]")
    text = "".join(f"{line}\n" for line in lines)
    tables = {name: value for name, value in table.items() if name not in values}
    return text + "".join(dumps(each, (*above, name)) for name, each in tables.items())


def _name(name: str) -> str:
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else _value(name)


def _value(value: int | str) -> str:
    """Return a value; JSON's strings are TOML's but for DEL, which TOML wants escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def leaves(table: Mapping[str, Any], above: Key = ()) -> Iterator[tuple[Key, Any]]:
    """Yield the key, from the top, and the value of all that is no table, or an empty one."""
    for name, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, (*above, name))
        else:
            yield (*above, name), value


def key_lines(text: str) -> dict[Key, int]:
    """Return the number of the line on which each key of a valid file begins."""
    found: dict[Key, int] = {}
    table: Key = ()
    statement, start = "", 1
    for number, line in enumerate(text.splitlines(), start=1):
        start = start if statement else number
        statement += f"{line}\n"
        try:
            keys = [key for key, _ in leaves(tomllib.loads(statement))]
        except tomllib.TOMLDecodeError:
            continue  # it goes on in the next line
        if statement.lstrip().startswith("["):
            (table,) = keys
            keys = [()]
        found |= {(*table, *key): start for key in keys}
        statement = ""
    return found
