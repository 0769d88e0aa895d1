# SPDX-License-Identifier: GPL-2.0
"""`ab report`: its findings, its doubts, and statements that it must never make."""

from __future__ import annotations

import itertools
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
            "seed": 1, "rule": "a rule", "aa_pairs": 8, "pairs": 12, "guards": [],
            "metrics": ["vmstat.pgfault/s lower"],
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
        host = {"vmstat.pgfault": self.faults, "vmstat.nr_mapped": 0.0}
        self.add("sample", t=self.t, block=self.number, host=host, arms=arms)

    def block(self, phase: str, pair: int, arm: str, rates: dict[str, float], units: int) -> None:
        """Add a block in which each arm counts at its rate."""
        counts, began = dict.fromkeys(rates, 0.0), self.t - 1
        for _ in range(3):
            arms = {each: {"anon_order.n": count, "units": units} for each, count in counts.items()}
            if self.design == "split":
                arms["treatment"]["units"] += self.number % 3
            self.sample(arms if self.design == "split" else {})
            self.t += 1
            counts = {each: count + rates[each] for each, count in counts.items()}
            self.faults += rates.get(arm, 0.0)
        place = {"phase": phase, "pair": pair, "arm": arm}
        self.add("block", number=self.number, **place, began=began, ended=self.t)
        self.number += 1

    def pairs(self, phase: str, number: int, effect: float = 0.0, noise: float = 0.02) -> Lines:
        """Add pairs with noise, and an effect in the treatment; all of them were planned."""
        self.records[0]["pairs" if phase == "ab" else "aa_pairs"] = number
        for pair in range(number):
            arms = {"control": 0.0, "treatment": effect}
            rates = {arm: 1000 * self.rng.gauss(1, noise) * (1 + e) for arm, e in arms.items()}
            for arm in [""] if self.design == "split" else self.rng.sample([*arms], 2):
                self.block(phase, pair, arm, rates, units=50)
        return self

    def end(self, status: str = "done", reason: str = "", **fields: Any) -> Lines:
        """Add the last line."""
        self.add("end", status=status, reason=reason, **fields)
        return self

    def __iter__(self) -> Iterator[str]:
        return (json.dumps(record) + "\n" for record in self.records)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return the path of the samples."""
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
    return Lines(**header).pairs("aa", 8).pairs("ab", 12, effect).end()


@pytest.mark.parametrize("design", ["switchback", "split"])
def test_an_effect_is_found(report: Run, design: str) -> None:
    metric = ["arm.anon_order.n/s lower"] if design == "split" else ["vmstat.pgfault/s lower"]
    result = report(usual(-0.1, design=design, metrics=metric))
    assert result.code == 0
    name = metric[0].partition(" ")[0]
    verdict = result.out.splitlines()[-1]
    assert re.fullmatch(
        rf"verdict: with the treatment, {name} fell by \d+\.?\d* %, which is better; "
        r"these 12 blocks may have missed events that occur in up to 22 % of blocks",
        verdict,
    )
    data = report(usual(-0.1, design=design, metrics=metric), "--json").json
    (found,) = data["metrics"]
    effect = found["effect"]
    assert effect["low"] < -10 < effect["high"] < -5
    assert effect["low"] < effect["estimate"] < effect["high"]
    assert (effect["p"], effect["pairs"]) == (pytest.approx(2 / 2**12), 12)
    assert found["aa"]["pairs"] == 8
    assert 0 < found["detectable"] < 5
    assert 0 < found["noise_floor"] < 5
    assert data["pairs_to_find"]["pairs"][name] >= 6
    assert all(1 < times < 1.1 for times in found["largest_block"].values())
    totals = found["totals"]
    assert totals["agree"]
    assert totals["low"] < -10 < totals["high"] < -5


def test_nothing_there_is_inconclusive(report: Run) -> None:
    result = report(usual(0.0))
    assert result.code == 7
    assert "inconclusive: any effect between -" in result.out
    assert result.out.endswith(
        "verdict: inconclusive: no metric shows an effect larger than its noise\n"
    )


def test_both_arms_the_same(report: Run) -> None:
    result = report(usual(0.0, treatment=STOCK))
    assert result.code == 7
    assert "verdict: both arms are the same, and no difference was found" in result.out


def test_p_is_corrected_for_the_number_of_metrics(report: Run) -> None:
    metrics = ["vmstat.pgfault/s", "vmstat.nr_mapped", "vmstat.pgfault"]
    data = report(usual(-0.1, metrics=metrics), "--json").json
    first, second, third = (each["effect"] for each in data["metrics"])
    assert first["p_corrected"] == pytest.approx(3 * first["p"])
    assert (second["estimate"], second["p_corrected"]) == (0, 1)
    assert third["p_corrected"] == first["p_corrected"]
    assert data["metrics"][1]["scale"] == "difference"
    assert data["metrics"][1]["verdict"] == "no difference between the arms in any pair"


@pytest.mark.parametrize("status", ["guard", "interrupted", "lost", "failed"])
def test_a_run_that_was_stopped_concludes_nothing(report: Run, status: str) -> None:
    lines = Lines().pairs("aa", 8).pairs("ab", 12, -0.5).end(status, "a reason")
    lines.records[0]["pairs"] = 20
    result = report(lines)
    text = f"verdict: inconclusive: the run did not go to its planned end: {status}, a reason"
    assert (result.code, result.out.splitlines()[-1]) == (7, text)
    assert result.out.count("doubt:") == 1  # missing pairs cause no second doubt


def test_a_run_that_was_killed(report: Run) -> None:
    lines = [*Lines().pairs("aa", 8).pairs("ab", 12, -0.5)]
    lines[-1] = lines[-1][:20]
    result = report(lines)
    assert (result.code, "planned end: killed" in result.out) == (7, True)


def test_units_out_of_balance(report: Run) -> None:
    lines = Lines("split", metrics=["arm.anon_order.n/s"])
    lines.pairs("aa", 8).pairs("ab", 12, -0.5).end()
    assert report(lines).code == 0
    for record in lines.records:
        if record["kind"] == "sample":
            record["arms"]["treatment"]["units"] += 20
    result = report(lines)
    assert result.code == 7
    assert "inconclusive: the arms are out of balance: 1000 units (processes" in result.out


def test_a_difference_of_equal_arms(report: Run) -> None:
    result = report(Lines().pairs("aa", 10, -0.3).pairs("ab", 12, -0.5).end())
    assert result.code == 7
    assert "equal arms differed in the A/A phase: vmstat.pgfault/s" in result.out


def test_an_effect_within_the_floor_is_noted(report: Run) -> None:
    """The A/A phase was noisier than the rest, so equal arms may lie as far apart."""
    lines = Lines().pairs("aa", 8, noise=0.3).pairs("ab", 12, -0.1).end()
    result = report(lines)
    assert "fell by" in result.out
    assert re.search(
        r"note: vmstat\.pgfault/s: the effect is within the A/A floor of ±\d+\.?\d* %", result.out
    )
    assert "within the A/A floor" not in report(usual(-0.1)).out


def test_a_treatment_that_is_worse(report: Run) -> None:
    result = report(usual(0.5))
    assert result.code == 8
    assert re.search(
        r"verdict: with the treatment, .* rose by [45][\d.]+ %, which is worse", result.out
    )
    data = report(usual(0.5), "--json").json
    assert (data["exit"], data["conclusive"], data["metrics"][0]["worse"]) == (8, True, True)
    assert report(usual(0.5, metrics=["vmstat.pgfault/s"])).code == 0
    assert report(usual(0.5, metrics=["vmstat.pgfault/s higher"])).code == 0
    assert report(usual(-0.5, metrics=["vmstat.pgfault/s higher"])).code == 8


@pytest.mark.parametrize(
    ("arm", "pairs", "code", "said"),
    [
        ("treatment", 0, 8, "the run was stopped, as the treatment does harm: guard 'x"),
        (
            "treatment",
            7,
            7,
            "inconclusive: a guard stopped the run while the treatment was active: guard 'x",
        ),
        ("control", 7, 7, "inconclusive: the run did not go to its planned"),
        ("", 7, 7, "inconclusive: the run did not go to its planned"),
    ],
)
def test_a_guard_that_broke_at_once_in_the_treatment_stopped_it_for_harm(
    report: Run, arm: str, pairs: int, code: int, said: str
) -> None:
    """A guard that broke at once in the treatment, after 16 blocks without it, is harm; later, it
    may have been by chance.
    """
    lines = Lines().pairs("aa", 8).pairs("ab", pairs, -0.5)
    lines.end("guard", "guard 'x < 5' is violated: the value is 7", arm=arm, block=30, after_s=1.5)
    result = report(lines)
    assert result.code == code
    assert f"verdict: {said}" in result.out


def test_margin(report: Run) -> None:
    """A margin of 5 % is shown for equal arms, also for slightly worse ones; not for others."""
    for effect, words, code in [
        (0.0, ["--margin", "5"], 0),
        (0.02, ["--margin", "5"], 0),
        (0.0, ["--margin", "0.1"], 7),
        (0.2, ["--margin", "5"], 8),
        (-0.2, ["--margin", "5"], 0),
    ]:
        result = report(usual(effect), *words)
        shown = "not shown" if code else "shown"
        assert (result.code, f"no worse than {words[1]} %: {shown} (p = " in result.out) == (
            code,
            True,
        )
        assert (
            "chosen after the run; to show that the treatment is no worse, vmstat.pgfault/s:"
            in result.out
        )
    result = report(usual(0.0, margin=5.0))
    assert (result.code, "chosen before the run" in result.out) == (0, True)
    assert (
        "\nverdict: with the treatment, no worse than 5 %: vmstat.pgfault/s; these " in result.out
    )
    assert report(usual(0.0, margin=5.0), "--margin", "0.1").code == 7
    data = report(usual(0.0), "--margin", "5", "--json").json
    assert data["metrics"][0]["margin"]["p"] < 0.05
    assert report(usual(0.0, metrics=["vmstat.pgfault/s"]), "--margin", "5").code == 2
    assert report(usual(0.0), "--margin", "100").code == 2


def test_margin_where_nothing_is(report: Run) -> None:
    """A margin has no meaning where the control is 0, as there are no percents of zero."""
    lines = usual(0.0, metrics=["vmstat.nr_mapped lower", "vmstat.pgfault/s lower"])
    result = report(lines, "--margin", "5")
    assert result.code == 7
    assert "not shown to be no worse than 5 %: vmstat.nr_mapped" in result.out


def test_found_alone_but_not_after_correction(report: Run) -> None:
    metrics = ["vmstat.pgfault/s", *(f"n{n}=vmstat.nr_mapped" for n in range(9))]
    for seed in range(40):
        lines = Lines(metrics=metrics, seed=seed)
        lines.rng.seed(seed)
        data = report(lines.pairs("aa", 11).pairs("ab", 12, -0.015).end(), "--json").json
        effect = data["metrics"][0]["effect"]
        if effect["p"] < 0.05 <= effect["p_corrected"]:
            break
    assert effect["high"] < 0
    said = (
        f"there is an effect if this metric is taken alone (p = {effect['p']:.2g}), not after "
        "correction for 10 metrics; taken alone"
    )
    assert said in data["metrics"][0]["verdict"]
    assert not data["conclusive"]


def test_blocks_without_a_value_are_counted(report: Run) -> None:
    lines = usual(-0.5)
    lost = [record["number"] for record in lines.records if record.get("arm") == "treatment"][-5:]
    lines.records = [record for record in lines.records if record.get("block") not in lost]
    result = report(lines)
    assert (result.code, " 7 of 12  " in result.out) == (7, True)
    assert "in 0 blocks of control, 5 blocks of treatment" in result.out
    lost = report(lines, "--json").json["metrics"][0]["pairs"]
    assert lost == {"planned": 12, "complete": 7, "lost": {"control": 0, "treatment": 5}}


@pytest.mark.parametrize("bad", ["NaN", "Infinity", "-Infinity", "1e999", "null"])
def test_what_is_no_number_is_no_result(report: Run, bad: str) -> None:
    lines = [*usual(-0.5)]
    place = max(n for n, line in enumerate(lines) if '"sample"' in line)
    lines[place] = re.sub(r'("vmstat.pgfault": )[\d.]+', rf"\g<1>{bad}", lines[place])
    result = report(lines, "--json")
    assert result.code == 0
    data = json.loads(result.out, parse_constant=pytest.fail)
    assert "has a value in 11 of 12 pairs" in " ".join(data["notes"])
    effect = data["metrics"][0]["effect"]
    assert (effect["pairs"], effect["p"]) == (11, pytest.approx(26 / 2**12))  # with one against it


def test_extremes_are_no_traceback(report: Run, tmp_path: Path) -> None:
    for big, small in [(1e149, 1e-300), (1e308, 1e300), (5e-324, 5e-324), (0.0, 1e149)]:
        lines = usual(0.0, metrics=["n=vmstat.nr_mapped lower"])
        for number, record in enumerate(lines.records):
            if record["kind"] == "sample":
                record["host"]["vmstat.nr_mapped"] = big if number % 3 else small
        result = report(lines, "--json", "--html", str(tmp_path / "page"), "--margin", "5")
        json.loads(result.out, parse_constant=pytest.fail)


def stretched(arm: str, factor: float) -> Lines:
    """Return a run in which the blocks of an arm are measured for longer."""
    lines = usual(-0.5)
    arms = {record["number"]: record["arm"] for record in lines.records if "number" in record}
    began = {record["number"]: record["began"] for record in lines.records if "number" in record}
    for record in lines.records:
        if record["kind"] == "sample" and arms[record["block"]] in arm.split():
            start = began[record["block"]]
            record["t"] = start + 1 + (record["t"] - start - 1) * factor
    return lines


def test_balance_of_time(report: Run) -> None:
    fair = report(usual(-0.5))
    text = "in a block, 2.00 s were measured in control and 2.00 s in treatment, of 2.00 s planned"
    assert (fair.code, text in fair.out) == (0, True)
    result = report(stretched("treatment", 1.05))
    assert result.code == 7
    assert (
        "inconclusive: the arms are out of balance: in a block, 2.00 s were measured" in result.out
    )
    assert (
        "2.10 s in treatment, of 2.00 s planned; the latest sample came 0.10 s late" in result.out
    )
    assert report(stretched("treatment", 1.005)).code == 0
    both = report(stretched("control treatment", 1.5))
    assert (both.code, "note: blocks took longer than planned: in a block, 3.00 s" in both.out) == (
        0,
        True,
    )


def test_what_split_does_not_see(report: Run) -> None:
    """Counters of arms do not show which unit had which arm before."""
    result = report(usual(-0.5, design="split", metrics=["arm.anon_order.n/s"]))
    assert (
        "note: --design split compares units (processes or cgroups) side by side, so it"
        in result.out
    )
    assert (
        "note: arm.anon_order.n/s: memory that a unit keeps from the block before makes"
        in result.out
    )
    assert "makes the effect look smaller" not in report(usual(-0.5)).out


def test_nobody_took_part(report: Run) -> None:
    lines = usual(-0.5, design="split", metrics=["arm.anon_order.n/s"])
    for record in lines.records:
        if record["kind"] == "sample":
            record["arms"]["control"]["units"] = record["arms"]["treatment"]["units"] = 0
    result = report(lines)
    assert (result.code, "no unit (process or cgroup) took part" in result.out) == (7, True)


def test_a_short_aa_phase_is_noted(report: Run) -> None:
    result = report(Lines().pairs("aa", 6).pairs("ab", 12, -0.5).end())
    assert (
        "note: 6 A/A pairs are too few to show that equal arms differ; it takes 8"
    ) in result.out
    assert "note:" not in report(usual(-0.5)).out


def test_runs_before_are_noted(report: Run) -> None:
    result = report(usual(-0.5, runs_this_week=3))
    assert (
        "note: this is run 3 with these arms within a week on this host: the more runs"
        in result.out
    )


def test_too_few_pairs(report: Run) -> None:
    for pairs in (0, 1, 3):
        result = report(Lines().pairs("ab", pairs, -0.5).end(), "--json")
        assert result.code == 7
        (metric,) = json.loads(result.out, parse_constant=pytest.fail)["metrics"]
        assert metric["found"] is False
    assert "no verdict: 1 pairs" in report(Lines().pairs("ab", 1).end()).out
    assert (
        "3 pairs are too few to show an effect, take 6" in report(Lines().pairs("ab", 3).end()).out
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("{}\n", "line 1, is not a valid record"),
        ("[]\n", "line 1"),
        ("no\n", "line 1"),
    ],
)
def test_no_samples(report: Run, text: str, said: str) -> None:
    result = report(text)
    assert (result.code, said in result.err) == (2, True)
    assert "next: give a file that mmpolicy ab run has written" in result.err


def test_a_damaged_line(report: Run, run: Run, tmp_path: Path) -> None:
    lines = [*usual(0.0)]
    lines[5] = "{\n"
    assert "line 6, is not a valid record" in report(lines).err
    assert run("ab", "report", str(tmp_path / "none")).code == 1


def test_a_damaged_header(report: Run) -> None:
    """A damaged header, with any missing or wrong entry, gives one clear error."""
    header, *rest = usual(-0.1)
    good = json.loads(header)
    optional = 0
    wrongs: list[Any] = [None, [], -1, "", {}, "no"]
    for name, wrong in itertools.product(good, wrongs):
        for changed in (good | {name: wrong}, {key: good[key] for key in good if key != name}):
            result = report([json.dumps(changed) + "\n", *rest])
            assert result.code in (0, 2)
            optional += result.code == 0
            if result.code:
                assert "line 1, is not a valid record" in result.err or "not a source" in result.err
    assert optional < 20


def test_any_damage_is_one_clear_error(report: Run) -> None:
    """A few bytes or words changed at random give one clear error, or a report."""
    rng = random.Random(8)
    text = "".join(Lines().pairs("aa", 2).pairs("ab", 6, -0.1).end())
    words = ["null", "-1", "1e400", "[]", "{}", '"x"', "true", "NaN", "", '"ab"', '"treatment"']
    codes = set()
    for _ in range(300):
        start = rng.choice([match.start() for match in re.finditer(r"[\[{:,]", text)]) + 1
        end = start + re.match(r'\s*("[^"]*"|[\w.+-]*)', text[start:])[0].__len__()  # type: ignore[index]
        result = report([text[:start], rng.choice(words), text[end:]])
        codes.add(result.code)
        assert result.code in (0, 2, 7)
        assert result.code != 2 or "next: give a file" in result.err or "Usage:" in result.err
    assert codes == {0, 2, 7}


class Page(HTMLParser):
    """Collects the external resources of a page, and its text."""

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
    metrics = ["a.b=vmstat.pgfault/s", "vmstat.nr_mapped"]
    guards = ["psi.memory.full.avg10 < 5"]
    report(usual(-0.1, metrics=metrics, guards=guards), "--html", str(page))
    text = page.read_text()
    found = Page(text)
    assert all(each.startswith("#") for each in found.loads)
    assert found.tags.count("svg") == 5
    assert "script" not in found.tags
    assert "a.b fell by" in text
    assert "psi.memory.full.avg10 &lt; 5" in text
    assert '<p class="verdict shown">with the treatment' in text
    report(usual(0.5), "--html", str(page))
    assert '<p class="verdict worse">with the treatment' in page.read_text()
    assert report(usual(0.0, metrics=metrics), "--html", str(tmp_path)).code == 2
    assert report(usual(0.0), "--html", str(tmp_path / "no/where")).code == 1


def test_html_of_names_with_dollars(report: Run, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    report(usual(-0.1, metrics=["vmstat.pgfault/s", "vmstat.nr_mapped"]))
    lines = usual(-0.1, metrics=['cmd:echo "$(a)_{b" $x <b> lower'])
    for record in lines.records:
        if record["kind"] == "sample":
            record["host"] = {'cmd:echo "$(a)_{b" $x <b>': record["t"] + 1}
    assert report(lines, "--html", str(page)).code == 7
    text = page.read_text()
    assert 'cmd:echo "$(a)_{b" $x &lt;b&gt;' in text or "$(a)_{b&#34; $x &lt;b&gt;" in text
    assert "<b>" not in text


def test_html_of_almost_nothing(report: Run, tmp_path: Path) -> None:
    for pairs in (0, 1, 2):
        page = tmp_path / f"{pairs}.html"
        report(Lines().pairs("ab", pairs).end(), "--html", str(page))
        assert "inconclusive" in page.read_text()


def test_without_the_extra(report: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mmpolicy.ab.report.report", "mmpolicy.ab.report.stats"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "scipy", None)
    result = report(usual(0.0))
    assert result.code == 3
    assert "this command needs the Python library scipy, which is not installed" in result.err
    assert f"next: {sys.prefix}/bin/pip install scipy\n" in result.err
