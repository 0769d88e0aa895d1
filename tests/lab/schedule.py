# SPDX-License-Identifier: GPL-2.0
"""Cut tests into pieces for parallel workers, and order the pieces.

A worker takes one piece at a time, and keeps its guest for the next piece if that needs an equal
guest. Long pieces come first: a long piece at the end would leave the other workers idle.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

MOST_S = 90.0  # seconds: a piece is cut before the test that would make it longer
# environment variable that names the file in which workers record the pieces
PIECES = "MMPOLICY_PIECES"
# seconds assumed for a test that has never run on this machine, unless its file names a duration
UNKNOWN_S = 5.0


@dataclass(frozen=True)
class Planned:
    """A test to run: its file, the kernels that it needs, and its expected duration."""

    name: str
    file: str
    kernels: frozenset[str]
    together: bool  # run in one piece with the tests of its file that share a costly setup
    seconds: float


def pieces(tests: Iterable[Planned]) -> list[list[Planned]]:
    """Cut tests into pieces of one file and one set of kernels; return the longest piece first."""
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
    """Return the seconds that each test took in earlier runs, by name; {} if there were none."""
    try:
        found: dict[str, float] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found


def write_json(path: Path, what: object) -> None:
    """Write an object as JSON to a file, atomically."""
    new = path.with_name(f"{path.name}.{os.getpid()}")
    path.parent.mkdir(parents=True, exist_ok=True)
    new.write_text(json.dumps(what, indent=0, sort_keys=True))
    new.replace(path)
