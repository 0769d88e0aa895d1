# SPDX-License-Identifier: GPL-2.0
"""Results of a benchmark that are gathered over several runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from machine import TREE
from vm import Guest

sys.path.insert(0, str(TREE / "bench"))

import common
import evidence
import programs

ABOUT = {"cpu": "one", "sources": "abc"}
ARMS = [common.Arm("stock"), common.Arm("fixed")]


def sample(arm: str, case: str, ticks: float = 1.0) -> common.Sample:
    """What one arm did."""
    return common.Sample(arm, case, {"ticks": ticks})


def test_what_was_measured_is_not_measured_again(tmp_path: Path) -> None:
    """A run that was broken off goes on where it was; only whole cases are shown."""
    path = tmp_path / "results.json"
    results = common.Results.resume(path, "programs", ABOUT)
    for each in sample("stock", "a", 7), sample("stock", "b"), sample("fixed", "a"):
        results.samples.append(each)
        results.save(path)
    again = common.Results.resume(path, "programs", ABOUT)
    assert again == results
    both = [programs.Program(name, "") for name in "ab"]
    names = [[each.name for each in programs.missing(again, arm, both)] for arm in ARMS]
    assert names == [[], ["b"]]
    shown = programs.only(again, ["fixed", "stock"])
    assert shown.samples == [sample("fixed", "a"), sample("stock", "a", 7)]
    assert [path] == list(tmp_path.iterdir())


def test_figures_of_other_sources_are_not_mixed(tmp_path: Path) -> None:
    """Nor with those of another benchmark."""
    path = tmp_path / "results.json"
    common.Results.resume(path, "programs", ABOUT).save(path)
    for bench, about in ("bulk", ABOUT), ("programs", {**ABOUT, "sources": "abd"}):
        with pytest.raises(common.BenchError, match="remove it, or give another name"):
            common.Results.resume(path, bench, about)


def test_each_sample_is_kept_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the next one fails."""
    path = tmp_path / "results.json"

    class Fake:
        def __enter__(self) -> Guest:
            return cast("Guest", self)

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(common, "counting_guest", lambda *_: Fake())
    monkeypatch.setattr(common, "must", lambda *_: "6.12\n")

    def take(_guest: Guest, arm: common.Arm) -> Iterator[common.Sample]:
        yield sample(arm.name, "a")
        raise common.BenchError("the guest is gone")

    with pytest.raises(common.BenchError, match="gone"):
        common.measure(common.Results("programs", dict(ABOUT)), ARMS, "1G", take, path)
    assert common.Results.resume(path, "programs", ABOUT).samples == [sample("stock", "a")]


def test_the_page_is_what_the_results_say() -> None:
    """python3 bench/evidence.py makes it anew."""
    assert evidence.PAGE.read_text() == evidence.page()
