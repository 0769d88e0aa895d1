# SPDX-License-Identifier: GPL-2.0
"""In which pieces, and in which order, workers take the tests.

A worker takes a piece at a time, and keeps its guest for the next one if that has the same needs.
The long pieces come first: one at the end would leave the other workers idle.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

MOST_S = 90.0  # of a piece that can be cut
PIECES = "MMPOLICY_PIECES"  # names the file by which workers tell what they have cut
UNKNOWN_S = 5.0  # of a test that has never run here, if its file does not say more


@dataclass(frozen=True)
class Planned:
    """A test: where it is, what it needs, and how long it took."""

    name: str
    file: str
    kernels: frozenset[str]
    together: bool  # with the others of its file that use what the file measures or sets up once
    seconds: float


def pieces(tests: Iterable[Planned]) -> list[list[Planned]]:
    """Cut tests into pieces of one file and kernel, the longest piece first."""
    cut: dict[tuple[str, frozenset[str], bool], list[list[Planned]]] = {}
    for test in tests:
        chain = cut.setdefault((test.file, test.kernels, test.together), [[]])
        full = sum(each.seconds for each in chain[-1]) + test.seconds > MOST_S
        if chain[-1] and full and not test.together:
            chain.append([])
        chain[-1].append(test)
    found = [piece for chain in cut.values() for piece in chain]
    return sorted(found, key=lambda piece: -sum(test.seconds for test in piece))


def recorded(path: Path) -> dict[str, float]:
    """How long tests took when they last ran; nothing if none did."""
    try:
        found: dict[str, float] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found


def write_json(path: Path, what: object) -> None:
    """All of a file, or nothing."""
    new = path.with_name(f"{path.name}.{os.getpid()}")
    path.parent.mkdir(parents=True, exist_ok=True)
    new.write_text(json.dumps(what, indent=0, sort_keys=True))
    new.replace(path)
