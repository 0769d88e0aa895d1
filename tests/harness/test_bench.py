# SPDX-License-Identifier: GPL-2.0
"""Results of a benchmark that are gathered over several runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from bench import __main__ as benchmarks
from bench import evidence, programs
from lab import counting
from lab.guest import ONE_KERNEL, Guest
from lab.programs import BenchError

ABOUT = {"cpu": "one", "sources": "abc"}
ARMS = [counting.Arm("stock"), counting.Arm("fixed")]


def sample(arm: str, case: str, ticks: float = 1.0) -> counting.Sample:
    return counting.Sample(arm, case, {"ticks": ticks})


def test_what_was_measured_is_not_measured_again(tmp_path: Path) -> None:
    """An interrupted run continues where it stopped; only whole cases are shown."""
    path = tmp_path / "results.json"
    results = counting.Results.resume(path, "programs", ABOUT)
    for each in sample("stock", "a", 7), sample("stock", "b"), sample("fixed", "a"):
        results.samples.append(each)
        results.save(path)
    again = counting.Results.resume(path, "programs", ABOUT)
    assert again == results
    both = [programs.Program(name, "") for name in "ab"]
    names = [[each.name for each in programs.missing(again, arm, both)] for arm in ARMS]
    assert names == [[], ["b"]]
    shown = programs.only(again, ["fixed", "stock"])
    assert shown.samples == [sample("fixed", "a"), sample("stock", "a", 7)]
    assert [path] == list(tmp_path.iterdir())


def test_figures_of_other_sources_are_not_mixed(tmp_path: Path) -> None:
    """Results of another benchmark or of other sources are refused."""
    path = tmp_path / "results.json"
    counting.Results.resume(path, "programs", ABOUT).save(path)
    for bench, about in ("bulk", ABOUT), ("programs", {**ABOUT, "sources": "abd"}):
        with pytest.raises(BenchError, match="remove it, or give another name"):
            counting.Results.resume(path, bench, about)


def test_each_sample_is_kept_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample is saved even if the next one fails."""
    path = tmp_path / "results.json"

    class Fake:
        def __enter__(self) -> Guest:
            return cast("Guest", self)

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(counting, "counting_guest", lambda *_: Fake())
    monkeypatch.setattr(counting, "must", lambda *_: "6.12\n")

    def take(_guest: Guest, arm: counting.Arm) -> Iterator[counting.Sample]:
        yield sample(arm.name, "a")
        raise BenchError("the guest is gone")

    with pytest.raises(BenchError, match="gone"):
        counting.measure(counting.Results("programs", dict(ABOUT)), ARMS, "1G", take, path)
    assert counting.Results.resume(path, "programs", ABOUT).samples == [sample("stock", "a")]


def test_arms_that_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the named arms and the first run, in the benchmark's order; a wrong name is an error."""
    monkeypatch.delenv(ONE_KERNEL, raising=False)
    assert counting.of_kernel(ARMS) == ARMS
    assert counting.of_kernel(ARMS, ["fixed", "stock"]) == ARMS
    more = counting.Arm("more", setup="x")
    assert counting.of_kernel([*ARMS, more], ["more"]) == [ARMS[0], more]
    with pytest.raises(BenchError, match="no arm other; there are: stock fixed"):
        counting.of_kernel(ARMS, ["other", "fixed"])


def test_what_is_offered_is_a_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    """A benchmark is each file whose main() takes the words after its name, and no other."""
    assert benchmarks.main([]) == 2
    names = capsys.readouterr().err.partition("one of: ")[2].split()
    main = "\ndef main(argv: list[str]) -> None:"
    found = [path.stem for path in evidence.TREE.glob("bench/*.py") if main in path.read_text()]
    assert sorted(names) == sorted(stem.removeprefix("host_") for stem in found)


def test_the_page_is_what_the_results_say() -> None:
    """python3 -m bench.evidence writes the page."""
    assert evidence.DOCUMENT.read_text() == evidence.page()


def test_what_faults_explain() -> None:
    """150 faults spared at 2,000 ns each, less ten folios that take 4,500 ns more than a page."""
    means = {
        "off": {"cpu": 0.1, "system": 0.05, "faults": 200.0},
        "to 64": {"cpu": 0.09, "system": 0.045, "faults": 50.0},
    }
    ratio = {"scale": "ratio", "estimate": 0.9, "low": 0.8, "high": 1.1}
    arms = [
        {"name": name, "mean": mean, "ratio": {"cpu": ratio, "system": ratio}}
        for name, mean in means.items()
    ]
    costs = [{"size": 4096, "ns": 2000.0}, {"size": 65536, "ns": 6500.0}]
    once = {"programs": {"a": {"arms": arms}}, "calibration": costs}
    # Calibrations right before and after a program replace one made an hour earlier.
    both = [[{**each, "ns": each["ns"] * part} for each in costs] for part in (0.8, 1.2)]
    beside = {"arms": arms, "calibrations": both}
    early = [{**each, "ns": each["ns"] * 3} for each in costs]
    for results in (once, {"programs": {"a": beside}, "calibration": early}):
        row = "| a | 150 | 10.0 ms (-10.0 .. 20.0) | 5.0 ms (-5.0 .. 10.0) | 2.00 µs | 0.3 ms |"
        assert row in list(evidence.faults(results))
    assert not list(evidence.faults({"programs": {}}))
    assert not list(evidence.faults({"programs": {"a": {"arms": arms}}}))


def test_what_is_saved_without_a_ratio() -> None:
    """The means are used if some runs took no tick of system time, or the rounds were few."""
    few = {"scale": "ratio", "estimate": 0.9, "low": None, "high": None}
    for found in (None, few, {"scale": "difference", "estimate": 0.1, "low": 0.0, "high": 0.2}):
        arm = {"ratio": {"system": found}, "mean": {"system": 0.004}}
        assert evidence.saved_ms(arm, {"system": 0.010}, "system") == "6.0 ms"


def test_a_ratio_of_few_rounds_has_no_interval() -> None:
    found = {"scale": "ratio", "estimate": 0.9, "low": None, "high": None}
    arm = {"ratio": {"cpu": found}, "mean": {"cpu": 0.09}}
    assert evidence.ratio(arm, "cpu", 0.1) == "0.90"


def test_means_that_lie_elsewhere_are_told() -> None:
    found = {"scale": "ratio", "estimate": 0.9, "low": 0.89, "high": 0.92}
    arm = {"ratio": {"cpu": found}, "mean": {"cpu": 0.096}}
    assert evidence.ratio(arm, "cpu", 0.1) == "0.90 (0.89 .. 0.92), means 0.96"
    assert evidence.ratio(arm, "cpu", 0.102) == "0.90 (0.89 .. 0.92)"
