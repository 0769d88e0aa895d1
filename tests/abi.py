# SPDX-License-Identifier: GPL-2.0
"""Read docs/sysfs-abi.txt, so that tests can compare it with the live files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FIELD = re.compile(r"^\t\t(Mode|Range|Values|Default|Unit|Errors): (.+)$", re.MULTILINE)
WHAT = re.compile(r"^What:\t+(.+)$", re.MULTILINE)
ENTRY = re.compile(r"((?:^What:.+\n)+)((?:(?!What:).*\n)+)", re.MULTILINE)
COUNTER = re.compile(r"^\t\t- (\S+): ", re.MULTILINE)


@dataclass(frozen=True)
class Entry:
    """The entry of one kind of file."""

    pattern: str  # path with placeholders, such as <profile>
    description: str
    mode: int
    range: tuple[int, int] | None  # of a number
    values: tuple[str, ...]  # of a choice
    default: str | None  # None: it cannot be read, or changes by itself
    unit: str | None
    errors: tuple[str, ...]  # names of errno that a bad write gives
    counters: tuple[str, ...]  # with placeholders, such as requested_order_<n>

    @property
    def is_abi(self) -> bool:
        """Tell if programs may rely on it."""
        return "No ABI" not in self.description

    def matches(self, path: str) -> bool:
        """Whether a file is of this kind."""
        return fits(self.pattern, path)

    def counts(self, name: str) -> bool:
        """Whether a counter is among those of this file."""
        return any(fits(counter, name) for counter in self.counters)


def fits(pattern: str, text: str) -> bool:
    """Compare with a pattern; a placeholder stands for anything but a slash."""
    parts = (re.escape(part) for part in re.split(r"<\w+>", pattern))
    return re.fullmatch("[^/]+".join(parts), text) is not None


def parse(path: Path) -> list[Entry]:
    """Return the entries of a document."""
    found = ENTRY.findall(path.read_text(encoding="utf-8"))
    return [parse_entry(what, rest, path) for names, rest in found for what in WHAT.findall(names)]


def parse_entry(pattern: str, text: str, path: Path) -> Entry:
    """Read the entry of one of its paths."""
    _, _, description = text.partition("Description:\n")
    fields = dict(FIELD.findall(description))
    bounds = re.fullmatch(r"(\d+)\.\.(\d+)", fields.get("Range", "0..0"))
    if not description or "Mode" not in fields or not bounds:
        raise ValueError(f"{path}: {pattern}: needs Description, Mode and a Range like 0..9")
    return Entry(
        pattern=pattern,
        description=description,
        mode=int(fields["Mode"], 8),
        range=(int(bounds[1]), int(bounds[2])) if "Range" in fields else None,
        values=tuple(fields.get("Values", "").split()),
        default=fields.get("Default"),
        unit=fields.get("Unit"),
        errors=tuple(fields.get("Errors", "").split()),
        counters=tuple(COUNTER.findall(description)) if "/debug/" in pattern else (),
    )
