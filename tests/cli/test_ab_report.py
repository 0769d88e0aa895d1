# SPDX-License-Identifier: GPL-2.0
"""`ab report`: what it finds, what it doubts, and what it never says."""

import json
import random
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from .fakes import Result, Run

STOCK: dict[str, Any] = {"given": "stock", "settings": {}}
FIXED = {"given": "anon_order=fixed", "settings": {"anon_order/policy": "fixed"}}


class Lines:
    """Makes the lines of a file of samples."""

    def __init__(self, design: str = "switchback", **header: Any) -> None:
        self.header: dict[str, Any] = {
            "version": 1, "design": design, "block_s": 3, "washout_s": 1, "interval_s": 1,
            "seed": 1, "rule": "a rule", "guards": [], "metrics": ["vmstat.pgfault/s lower"],
            "control": STOCK, "treatment": FIXED, "host": {"kernel": "6.12"},
        } | header  # fmt: skip
        self.design = design
        self.number, self.t, self.faults = 0, 0.0, 0.0
        self.rng = random.Random(1)
        self.records: list[dict[str, Any]] = []
        self.add("header", **self.header)

    def add(self, kind: str, **fields: Any) -> None:
        """Add one line."""
        self.records.append({"kind": kind, **fields})

    def sample(self, arms: dict[str, Any]) -> None:
        """Add one sample."""
        host = {"vmstat.pgfault": self.faults, "psi.memory.full.avg10": 0.0}
        self.add("sample", t=self.t, block=self.number, host=host, arms=arms)

    def block(self, phase: str, pair: int, arm: str, rates: dict[str, float], units: int) -> None:
        """Add a block in which each arm counts at its rate."""
        counts = dict.fromkeys(rates, 0.0)
        for _ in range(3):
            arms = {each: {"anon_order.n": count, "units": units} for each, count in counts.items()}
            if self.design == "split":
                arms["treatment"]["units"] += self.number % 3
            self.sample(arms if self.design == "split" else {})
            self.t += 1
            counts = {each: count + rates[each] for each, count in counts.items()}
            self.faults += rates.get(arm, 0.0)
        self.add("block", number=self.number, phase=phase, pair=pair, arm=arm)
        self.number += 1

    def pairs(self, phase: str, number: int, effect: float = 0.0, noise: float = 0.02) -> "Lines":
        """Add pairs with noise, and an effect in the treatment."""
        for pair in range(number):
            arms = {"control": 0.0, "treatment": effect}
            rates = {arm: 1000 * self.rng.gauss(1, noise) * (1 + e) for arm, e in arms.items()}
            for arm in [""] if self.design == "split" else self.rng.sample([*arms], 2):
                self.block(phase, pair, arm, rates, units=50)
        return self

    def end(self, status: str = "done", reason: str = "") -> "Lines":
        """Add the last line."""
        self.add("end", status=status, reason=reason)
        return self

    def __iter__(self) -> Iterator[str]:
        return (json.dumps(record) + "\n" for record in self.records)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return where the samples are."""
    return tmp_path / "samples.jsonl"


@pytest.fixture
def report(run: Run, file: Path) -> Run:
    """Return a function that reports on lines."""

    def report(lines: Any, *words: str) -> Result:
        file.write_text("".join(lines))
        return run("ab", "report", str(file), *words)

    return report


def usual(effect: float, **header: Any) -> Lines:
    """Return a complete run."""
    return Lines(**header).pairs("aa", 6).pairs("ab", 12, effect).end()


@pytest.mark.parametrize("design", ["switchback", "split"])
def test_an_effect_is_found(report: Run, design: str) -> None:
    metric = ["arm.anon_order.n/s lower"] if design == "split" else ["vmstat.pgfault/s lower"]
    result = report(usual(-0.1, design=design, metrics=metric))
    assert result.code == 0
    name = metric[0].partition(" ")[0]
    verdict = result.out.splitlines()[-1]
    assert re.fullmatch(
        rf"verdict: with the treatment, {name} fell by \d+\.?\d* %, which is better", verdict
    )
    data = report(usual(-0.1, design=design, metrics=metric), "--json").json
    (found,) = data["metrics"]
    effect = found["effect"]
    assert effect["low"] < -10 < effect["high"] < -5
    assert effect["low"] < effect["estimate"] < effect["high"]
    assert (effect["p"], effect["pairs"]) == (pytest.approx(2 / 2**12), 12)
    assert found["aa"]["pairs"] == 6
    assert 0 < found["detectable"] < 5
    assert 0 < found["noise_floor"] < 5
    assert data["pairs_to_find"]["pairs"][name] >= 6


def test_nothing_there_is_inconclusive(report: Run) -> None:
    result = report(usual(0.0))
    assert result.code == 7
    assert "inconclusive: anything between -" in result.out
    assert result.out.endswith(
        "verdict: inconclusive: no metric shows an effect beyond its noise\n"
    )


def test_both_arms_the_same(report: Run) -> None:
    result = report(usual(0.0, treatment=STOCK))
    assert result.code == 7
    assert "verdict: both arms are the same, and no difference was found" in result.out


def test_p_is_corrected_for_the_number_of_metrics(report: Run) -> None:
    metrics = ["vmstat.pgfault/s", "psi.memory.full.avg10", "vmstat.pgfault"]
    data = report(usual(-0.1, metrics=metrics), "--json").json
    first, second, third = (each["effect"] for each in data["metrics"])
    assert first["p_corrected"] == pytest.approx(3 * first["p"])
    assert (second["estimate"], second["p_corrected"]) == (0, 1)
    assert third["p_corrected"] == first["p_corrected"]
    assert data["metrics"][1]["scale"] == "difference"
    assert data["metrics"][1]["verdict"] == "no difference in any pair"


@pytest.mark.parametrize("status", ["guard", "interrupted", "lost", "failed"])
def test_a_run_that_was_stopped_concludes_nothing(report: Run, status: str) -> None:
    lines = Lines().pairs("aa", 6).pairs("ab", 12, -0.5).end(status, "a reason")
    result = report(lines)
    text = f"verdict: inconclusive: the run did not go to its planned end: {status}, a reason"
    assert (result.code, result.out.splitlines()[-1]) == (7, text)


def test_a_run_that_was_killed(report: Run) -> None:
    lines = [*Lines().pairs("aa", 6).pairs("ab", 12, -0.5)]
    lines[-1] = lines[-1][:20]
    result = report(lines)
    assert (result.code, "planned end: killed" in result.out) == (7, True)


def test_units_out_of_balance(report: Run) -> None:
    lines = Lines("split", metrics=["arm.anon_order.n/s"])
    lines.pairs("aa", 6).pairs("ab", 12, -0.5).end()
    assert report(lines).code == 0
    for record in lines.records:
        if record["kind"] == "sample":
            record["arms"]["treatment"]["units"] += 20
    result = report(lines)
    assert result.code == 7
    assert "inconclusive: assignment is out of balance: 900 units in control" in result.out


def test_a_difference_of_equal_arms(report: Run) -> None:
    result = report(Lines().pairs("aa", 10, -0.3).pairs("ab", 12, -0.5).end())
    assert result.code == 7
    assert "equal arms differed in the A/A phase: vmstat.pgfault/s" in result.out


def test_too_few_pairs(report: Run) -> None:
    for pairs in (0, 1, 3):
        result = report(Lines().pairs("ab", pairs, -0.5).end(), "--json")
        assert result.code == 7
        (metric,) = json.loads(result.out, parse_constant=pytest.fail)["metrics"]
        assert metric["found"] is False
    assert "no verdict: 1 pairs" in report(Lines().pairs("ab", 1).end()).out
    assert "3 pairs can show nothing, take 6" in report(Lines().pairs("ab", 3).end()).out


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "is empty"), ("{}\n", "line 1, is no sample"), ("[]\n", "line 1"), ("no\n", "line 1")],
)
def test_no_samples(report: Run, text: str, said: str) -> None:
    result = report(text)
    assert (result.code, said in result.err) == (2, True)
    assert "next: give a file that mmpolicy ab run has written" in result.err


def test_a_damaged_line(report: Run, run: Run, tmp_path: Path) -> None:
    lines = [*usual(0.0)]
    lines[5] = "{\n"
    assert "line 6, is no sample" in report(lines).err
    assert run("ab", "report", str(tmp_path / "none")).code == 1


class Page(HTMLParser):
    """Collects what a page would load, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        names = {"src", "href", "xlink:href"}
        self.loads += [value or "" for name, value in attrs if name in names]


def test_html(report: Run, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    metrics = ["a.b=vmstat.pgfault/s", "psi.memory.full.avg10"]
    guards = ["psi.memory.full.avg10 < 5"]
    report(usual(-0.1, metrics=metrics, guards=guards), "--html", str(page))
    text = page.read_text()
    found = Page(text)
    assert all(each.startswith("#") for each in found.loads)
    assert found.tags.count("svg") == 5
    assert "script" not in found.tags
    assert "a.b fell by" in text
    assert "psi.memory.full.avg10 &lt; 5" in text
    assert report(usual(0.0, metrics=metrics), "--html", str(tmp_path)).code == 2
    assert report(usual(0.0), "--html", str(tmp_path / "no/where")).code == 1


def test_html_of_almost_nothing(report: Run, tmp_path: Path) -> None:
    for pairs in (0, 1, 2):
        page = tmp_path / f"{pairs}.html"
        report(Lines().pairs("ab", pairs).end(), "--html", str(page))
        assert "inconclusive" in page.read_text()


def test_without_the_extra(report: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mmpolicy.ab.report", "mmpolicy.ab.stats"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "scipy", None)
    result = report(usual(0.0))
    assert result.code == 3
    assert "a report needs scipy and matplotlib" in result.err
    assert "next: pip install 'mmpolicy[ab]'" in result.err
