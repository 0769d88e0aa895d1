# SPDX-License-Identifier: GPL-2.0
"""Read the needs of the module's points (needs.h), and the tested kernel builds (tested.h)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import NamedTuple

COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
TOKEN = re.compile(r'\s*(?:"([^"]*)"|(\w+|[(){},]))')
ROW = re.compile(r"^MMP_(HOOK|CALL|VARIABLE|MEMBER|NOTHING)(?=\()", re.MULTILINE)
TESTED = re.compile(r"\{\s*0x[0-9a-f]{16},\s*\"([^\"]+)\"\s*\}")
GUARD = re.compile(r"^#(ifdef|endif)(?:[ \t]+(\w+))?", re.MULTILINE)
# macro by which needs.h marks the needs of one architecture (module/arch/*/site.h define it)
ONLY = {"x86": "MMP_DECODES", "arm64": "MMP_FOLDS"}
NEVER: frozenset[str] = frozenset()
QUOTE = '"'  # stands before a token that is a string, to tell it from a word


class One(NamedTuple):
    """One alternative that meets a need of a point, and the kernel variant that follows if it
    exists.
    """

    name: str
    kind: str  # prototype of a function, or type of a member
    follows: frozenset[str]


class Need(NamedTuple):
    """A need of a point: on kernels with the variants `when` and without those in `unless`, one of
    the alternatives must exist.
    """

    row: str
    point: str
    when: frozenset[str]
    unless: frozenset[str]
    structure: str
    ones: tuple[One, ...]
    only: str = ""  # macro of the only architecture that has this need; "" if all have it


def _tokens(text: str) -> Iterator[str]:
    """Yield the tokens of a row of needs.h, up to its closing parenthesis."""
    at = depth = 0
    while found := TOKEN.match(text, at):
        at = found.end()
        depth += {"(": 1, ")": -1}.get(found[2] or "", 0)
        yield found[2] or QUOTE + found[1]
        if not depth:
            return
    raise ValueError(f"needs.h: a row without an end: {text[:40]}")


def _ones(tokens: Sequence[str]) -> Iterator[One]:
    """Yield the alternatives of a row of needs.h; each is in braces, with its strings and the
    variant that it implies.
    """
    for inside in re.findall(r"\{([^{}]*)\}", "\0".join(tokens)):
        words = [word for word in inside.split("\0") if word not in ("", ",")]
        strings = [word[1:] for word in words if word.startswith(QUOTE)]
        ways = words[words.index("MMP_WAY") + 2 :][:1] if "MMP_WAY" in words else []
        yield One(strings[0], "".join(strings[1:]), frozenset(ways))


def _need(row: str, tokens: list[str]) -> Need:
    point, rest = tokens[1].lower(), tokens[5:]
    if row == "NOTHING":
        return Need(row, point, NEVER, NEVER, "", (One(rest[0][1:], "", NEVER),))
    condition = rest[0]
    way, after = (NEVER, rest[2:]) if condition == "MMP_ALWAYS" else ({rest[2]}, rest[5:])
    when, unless = (way, NEVER) if condition == "MMP_IF" else (NEVER, way)
    structure = after[0] if row == "MEMBER" else ""
    return Need(row, point, frozenset(when), frozenset(unless), structure, tuple(_ones(after)))


def _only(text: str, at: int) -> str:
    """Return the macro of the #ifdef around an offset in needs.h; "" if there is none."""
    *_, last = [None, *GUARD.finditer(text, 0, at)]
    return last[2] if last and last[1] == "ifdef" else ""


def read_needs(text: str) -> list[Need]:
    """Return the rows of needs.h in their order."""
    text = COMMENT.sub("", text)
    rows = ((row, _need(row[1], list(_tokens(text[row.end() :])))) for row in ROW.finditer(text))
    return [need._replace(only=_only(text, row.start())) for row, need in rows]


def needs(machine: str = "x86") -> list[Need]:
    """Return the needs of this version's module on an architecture, a key of ONLY."""
    rows = read_needs((files(__package__) / "needs.h").read_text())
    return [need for need in rows if need.only in ("", ONLY[machine])]


def tried() -> set[str]:
    """Return the kernel releases on which the point anon_order was tested."""
    return set(TESTED.findall((files(__package__) / "tested.h").read_text()))
