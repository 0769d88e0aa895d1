# SPDX-License-Identifier: GPL-2.0
"""Primary metrics, and guards that must not become worse: exit code 0 hides none."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from mmpolicy.ab.metrics import Metric
from mmpolicy.ab.report.report import Report
from mmpolicy.ab.samples import load
from mmpolicy.errors import Exit

from .ab_world import FIXED, SWITCHBACK, World
from .fakes import FakeTree, Run
from .simulate import DEFAULT_PAIRS, Rng, Two
from .test_ab_anytime import explained

FULL = pytest.mark.full
MARGIN = 5


@pytest.fixture
def clock(tree: FakeTree) -> World:
    """Return time in which scheduled events happen."""
    return World(tree)


def two(rng: Rng, pairs: int, worse: float, second: str, gain: float = 0.9) -> Report:
    """Return a report: the first metric is gain times the control, the second 1 + worse."""
    return Report(Two(gain, 1 + worse, second=second, pairs=pairs).run(rng))


def test_the_grammar_of_roles() -> None:
    metric = Metric.parse("m=vmstat.nr_free higher guard 2.5%")
    assert (metric.name, metric.better, metric.guard, metric.margin) == ("m", "higher", True, 2.5)
    assert Metric.parse("vmstat.nr_free lower guard").margin == 0
    assert Metric.parse("vmstat.nr_free lower").guard is False
    assert Metric.parse("cmd:echo guard 5 lower").guard is False


@pytest.mark.parametrize(
    ("metric", "text"),
    [
        (
            "vmstat.pgfault/s guard 5%",
            ("a guard needs the word `lower` or `higher`, to say which is better"),
        ),
        ("vmstat.pgfault/s lower guard 100%", "the margin of a guard must be below 100 %"),
        ("vmstat.pgfault/s lower guard", "this guard has no margin. Write `guard 5%`"),
    ],
)
def test_a_guard_that_says_too_little(ab: Run, tree: FakeTree, metric: str, text: str) -> None:
    result = ab(*SWITCHBACK, *FIXED, "--metric", f"second={metric}", "--pairs", "8")
    assert (result.code, text in result.err, tree.writes) == (2, True, []), result.err


def test_roles_are_written_down(ab: Run, run: Run, clock: World, tree: FakeTree) -> None:
    out = str(tree.real("/ab.jsonl"))
    guard = ["--metric", "mapped=vmstat.nr_mapped lower guard 3%"]
    assert ab(*SWITCHBACK, *FIXED, *guard, "--out", out).code == 0
    result = run("ab", "report", out)
    assert result.code == 0, result.out
    assert "which is better; no worse than 3 %: mapped" in result.out.splitlines()[-1]
    assert re.search(r"margin 3 % +on the mean, chosen before the run", result.out)
    found = run("ab", "report", out, "--json").json["metrics"]
    assert [each["role"] for each in found] == ["primary", "guard"]


@pytest.mark.parametrize("runs", [60, pytest.param(4000, marks=FULL)])
@pytest.mark.parametrize("pairs", [DEFAULT_PAIRS, 30])
@pytest.mark.parametrize("worse", [0.02, 0.03])
def test_without_a_margin_exit_0_hides_no_second_metric(
    pairs: int, worse: float, runs: int
) -> None:  # fmt: skip
    """Without a margin, exit code 0 hides no second metric: with a clear gain and a second metric
    slightly worse, the sentence names it.
    """
    exits = []
    for seed in range(runs):
        report = two(np.random.default_rng(seed), pairs, worse, "lower")
        exits.append(report.exit)
        if report.exit == Exit.INCONCLUSIVE and report.rows[0].found and not report.doubts:
            assert "not shown to be no worse (no margin was given): second" in report.verdict()
    assert explained(exits.count(Exit.DONE), runs, 0.01, "greater")


@pytest.mark.parametrize("runs", [200, pytest.param(4000, marks=FULL)])
def test_a_guard_at_its_margin_passes_in_5_percent(runs: int) -> None:
    """A guard at its margin passes in 5 %; with equal arms in nearly all runs, so that a gain is
    found.
    """
    passed = 0
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        passed += two(rng, 30, MARGIN / 100, f"lower guard {MARGIN}%").exit == Exit.DONE
    words = f"lower guard {MARGIN}%"
    equal = [two(np.random.default_rng(seed), 30, 0.0, words) for seed in range(60)]
    assert explained(passed, runs, 0.05, "greater")
    assert sum(report.exit == Exit.DONE for report in equal) >= 50


def test_a_guard_alone_is_no_success() -> None:
    """A guard alone is no success: without an improvement, the exit code is 7, even if no metric is
    worse.
    """
    report = two(np.random.default_rng(1), 30, 0.0, "lower guard 10%", gain=1.0)
    assert report.exit == Exit.INCONCLUSIVE
    assert "not shown to be no worse (no margin was given): first" in report.verdict()
    assert "no worse than 10 %: second" in report.verdict()


def test_a_guard_does_not_cost_the_primary_its_power() -> None:
    """The correction is for the primary metrics alone."""
    (first, _) = two(np.random.default_rng(3), 12, 0.0, "lower guard 10%").rows
    assert first.effect
    assert (first.corrected, first.metrics) == (first.effect.p, 1)
    (first, _) = two(np.random.default_rng(3), 12, 0.0, "lower").rows
    assert first.effect
    assert first.corrected == pytest.approx(2 * first.effect.p)
    assert first.metrics == 2


# The file describes itself


def test_the_file_says_which_experiment_and_which_host(
    ab: Run, run: Run, clock: World, tree: FakeTree, out: Path
) -> None:
    tree.put("/proc/meminfo", "MemTotal: 2048 kB")
    tree.put("/proc/cpuinfo", "processor\t: 0\nmodel name\t: A CPU\n")
    tree.put("/sys/devices/system/node/node0/meminfo", "")
    found = []
    for machine, words in [
        ("a1-machine", ["--seed", "7"]),
        ("b2", ["--seed", "7"]),
        ("a1-machine", ["--pairs", "7"]),
    ]:
        tree.put("/etc/machine-id", machine)
        labels = ["--label", "rack=r1", "--label", "tier=db"]
        assert ab(*SWITCHBACK, *FIXED, *labels, *words).code == 0
        found.append(load(out))
        out.unlink()
    first, second, third = (each.header for each in found)
    assert first["version"] == 2
    assert first["digest"] == second["digest"] == third["digest"] == first["experiment"]
    assert first["host"]["id"] == third["host"]["id"] != second["host"]["id"]
    assert first["seed"] != second["seed"]
    assert "a1-machine" not in json.dumps(first["host"])
    about = {"cpu": "A CPU", "memory_bytes": 2 << 20, "nodes": 1}
    assert about.items() <= first["host"].items()
    assert first["host"]["labels"] == {"rack": "r1", "tier": "db"}
    role = {"role": "primary", "better": "lower", "margin": None}
    assert first["roles"] == {"vmstat.pgfault/s": role}
    times = [datetime.fromisoformat(block["at"]) for block in found[0].blocks.values()]
    assert times == sorted(times)
    assert ab(*SWITCHBACK, *FIXED, "--margin", "3", "--experiment", "e1").code == 0
    header = load(out).header
    assert (header["experiment"], header["digest"] == first["digest"]) == ("e1", False)
    assert "experiment   e1" in run("ab", "report", str(out)).out


def test_a_label_that_is_none(ab: Run, tree: FakeTree) -> None:
    result = ab(*SWITCHBACK, "--label", "rack")
    assert (result.code, "'rack' is not of the form KEY=VALUE" in result.err) == (2, True)
    assert tree.writes == []


def test_a_file_of_version_2_has_its_identity(run: Run, ab: Run, out: Path, clock: World) -> None:
    assert ab(*SWITCHBACK, *FIXED).code == 0
    head, *rest = out.read_text().splitlines()
    for name in ("experiment", "digest", "started", "roles"):
        header = json.loads(head)
        del header[name]
        out.write_text("\n".join([json.dumps(header), *rest]) + "\n")
        assert f"the identity has no field '{name}'" in run("ab", "report", str(out)).err
