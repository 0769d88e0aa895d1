# SPDX-License-Identifier: GPL-2.0
"""Read docs/sysfs-abi.txt, so that tests can compare it with the live files."""

import re
from dataclasses import dataclass
from pathlib import Path

FIELD = re.compile(r"^\t\t(Mode|Range|Values|Default|Unit|Errors): (.+)$", re.MULTILINE)
COUNTER = re.compile(r"^\t\t- (\S+): ", re.MULTILINE)


@dataclass(frozen=True)
class Entry:
    """What the document says of one kind of file."""

    pattern: str  # path with placeholders, such as <profile>
    description: str
    mode: int
    range: tuple[int, int] | None  # of a number
    values: tuple[str, ...]  # of a choice
    default: str | None  # None: it cannot be read, or changes by itself
    errors: tuple[str, ...]  # names of errno that a bad write gives
    counters: tuple[str, ...]  # with placeholders, such as wanted_order_<n>

    @property
    def is_abi(self) -> bool:
        """Whether programs may rely on it."""
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
    texts = re.split(r"^What:\t+", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [parse_entry(text, path) for text in texts[1:]]


def parse_entry(text: str, path: Path) -> Entry:
    """Read one entry, from the path on."""
    pattern, _, rest = text.partition("\n")
    _, _, description = rest.partition("Description:\n")
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
        errors=tuple(fields.get("Errors", "").split()),
        counters=tuple(COUNTER.findall(description)) if "/debug/" in pattern else (),
    )
