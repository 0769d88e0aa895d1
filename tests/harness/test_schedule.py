# SPDX-License-Identifier: GPL-2.0
"""Pieces of tests for workers: cut where possible, long ones first."""

from __future__ import annotations

from pathlib import Path

from lab.schedule import MOST_S, Planned, pieces, recorded, write_json

CLOUD, HOOKS = frozenset({"cloud"}), frozenset({"patched"})


def of_file(
    file: str, *seconds: float, kernels: frozenset[str] = CLOUD, together: bool = False
) -> list[Planned]:
    """Return tests with these durations."""
    return [Planned(f"{file}::{n}", file, kernels, together, s) for n, s in enumerate(seconds)]


def names(found: list[list[Planned]]) -> list[list[str]]:
    """Return the names in the pieces."""
    return [[test.name for test in piece] for piece in found]


def test_each_test_is_in_one_piece() -> None:
    """A long file is cut, in order; a test longer than a piece is a piece of its own."""
    planned = of_file("a", 50, 40, 50, 200, 1)
    assert names(pieces(planned)) == [["a::3"], ["a::0", "a::1"], ["a::2"], ["a::4"]]


def test_what_is_set_up_once_stays_together() -> None:
    """Tests with a shared setup are never cut, however long they are."""
    planned = of_file("a", 100, 100, together=True) + of_file("a", 70, 70)
    assert names(pieces(planned))[0] == ["a::0", "a::1"]
    assert len(pieces(planned)) == 3


def test_kernels_and_files_are_not_mixed() -> None:
    """The shortest piece comes last."""
    planned = of_file("a", 5) + of_file("b", 7) + of_file("a", 6, kernels=HOOKS)
    assert names(pieces(planned)) == [["b::0"], ["a::0"], ["a::0"]]
    assert pieces(planned)[1][0].kernels == HOOKS and MOST_S > 18


def test_durations_are_kept(tmp_path: Path) -> None:
    """A damaged file counts as missing."""
    path = tmp_path / "new/durations.json"
    assert recorded(path) == {}
    write_json(path, {"a": 1.0, "b": 2.0})
    assert recorded(path) == {"a": 1.0, "b": 2.0} and list(path.parent.iterdir()) == [path]
    path.write_text("{")
    assert recorded(path) == {}
