# SPDX-License-Identifier: GPL-2.0
"""`ab run`: the lines that it writes, its samples, and that the state is always restored."""

from __future__ import annotations

import json
import os
import signal
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mmpolicy.ab.run.policy_arms import PolicyArms
from mmpolicy.ab.samples import load

from .ab_world import FIXED, PGFAULT, SHORT, SPLIT, SWITCHBACK, World
from .fakes import CONTROL, FakeTree, Result, Run, read_named

LOCK = "/run/mmpolicy/ab.lock"


@pytest.fixture
def clock(tree: FakeTree) -> World:
    """Return time in which scheduled events happen."""
    return World(tree)


def test_switchback(ab: Run, out: Path, tree: FakeTree, clock: World) -> None:
    before = read_named(tree)
    result = ab(*SWITCHBACK, *FIXED)
    assert result.code == 0, result.err
    assert read_named(tree) == before
    recording = load(out)
    arms = [block["arm"] for block in recording.blocks.values()]
    assert len(arms) == 16
    assert {tuple(sorted(arms[i : i + 2])) for i in range(0, 16, 2)} == {("control", "treatment")}
    (metric,) = recording.metrics()
    assert len(recording.pairs(metric, "aa")) == 2
    for pair in recording.pairs(metric, "aa"):
        assert pair == pytest.approx((1000, 1000), rel=0.001)
    assert len(recording.pairs(metric, "ab")) == 6
    for pair in recording.pairs(metric, "ab"):
        assert pair == pytest.approx((1000, 900), rel=0.001)
    assert clock.now == pytest.approx(16 * 4, abs=0.5)
    assert (
        "block 14 of 16 (ab), 0:08 left; vmstat.pgfault/s: no estimate of the effect yet"
        in result.err
    )
    assert f"next: mmpolicy ab report {out}" in result.out


def test_order_is_random_but_repeats_with_the_seed(ab: Run, out: Path) -> None:
    orders = []
    for seed in ("1", "1", "2"):
        ab(*SWITCHBACK, *FIXED, "--seed", seed)
        orders.append([block["arm"] for block in load(out).blocks.values()])
        out.unlink()
    assert orders[0] == orders[1] != orders[2]


def test_the_same_seed_on_another_machine_tosses_other_coins(
    ab: Run, out: Path, tree: FakeTree
) -> None:
    """The same seed on another machine tosses other coins, as runs can be pooled only if each host
    has its own.
    """
    found = []
    for machine in ("a1", "b2", "a1"):
        tree.put("/etc/machine-id", machine)
        assert ab(*SWITCHBACK, "--seed", "42").code == 0
        recording = load(out)
        assert recording.header["seed_given"] == 42
        found.append([block["arm"] for block in recording.blocks.values()])
        out.unlink()
    assert found[0] == found[2] != found[1]


def test_split_assigns_anew_in_each_block(ab: Run, out: Path, tree: FakeTree) -> None:
    before = read_named(tree)
    result = ab(*SPLIT, *FIXED)
    assert result.code == 0, result.err
    assert read_named(tree) == before
    seeds = [value for path, value in tree.writes if path == f"{CONTROL}/experiment/seed"]
    assert len(set(seeds[:-1])) == 8  # and the seed of the run before
    percent = f"{CONTROL}/experiment/percent"
    assert (tree.read(percent), [path for path, _ in tree.writes if path == percent]) == ("50", [])
    recording = load(out)
    (metric,) = recording.metrics()
    assert recording.units() == (8 * 40, 8 * 44)
    control, treatment = recording.pairs(metric, "ab")[0]
    assert (control, treatment) == pytest.approx((3 * 500 / 40, 3 * 450 / 44), rel=0.001)
    assert recording.pairs(metric, "aa")[0][1] == pytest.approx(3 * 500 / 44, rel=0.001)


def test_the_treatment_waits_for_the_aa_phase(ab: Run, clock: World) -> None:
    clock.states = []
    ab(*SWITCHBACK, *FIXED)
    seen = [state["profiles/ab-treatment/anon_order/policy"] for state in clock.states]
    assert seen[0] == "stock"
    assert seen.index("fixed") == pytest.approx(len(seen) / 4, abs=6)
    assert set(seen[seen.index("fixed") :]) == {"fixed"}


def test_the_lease_comes_first_and_is_renewed(ab: Run, tree: FakeTree) -> None:
    ab(*SWITCHBACK, *FIXED, "--lease", "2s")
    assert tree.writes[0] == (f"{CONTROL}/lease_ms", "2000")
    assert tree.writes[-1] == (f"{CONTROL}/lease_ms", "0")
    assert tree.writes.count((f"{CONTROL}/lease_ms", "2000")) == pytest.approx(64 / 0.5, rel=0.25)


def test_profiles_as_arms_are_copied(run: Run, ab: Run, tree: FakeTree, clock: World) -> None:
    run("profile", "create", "db")
    run("set", "anon_order", "adaptive", "max_order=7", "--profile", "db")
    before = read_named(tree)
    clock.at = [(60.0, lambda: setattr(clock, "states", []))]
    assert ab(*SWITCHBACK, "--control", "stock", "--treatment", "db").code == 0
    assert read_named(tree) == before
    assert clock.states
    last = clock.states[-2]
    assert last["profiles/ab-treatment/anon_order/policy"] == "adaptive"
    assert last["profiles/ab-treatment/anon_order/adaptive/max_order"] == "7"
    assert last["profiles/ab-control/anon_order/policy"] == "stock"


def test_points_of_the_whole_host_take_turns_in_default(
    ab: Run, out: Path, tree: FakeTree, clock: World
) -> None:
    before = read_named(tree)
    clock.states = []
    assert ab(*SWITCHBACK, "--treatment", "bulk=fixed").code == 0
    assert read_named(tree) == before
    seen = {
        (state["experiment/percent"], state["profiles/default/bulk/policy"])
        for state in clock.states[len(clock.states) // 2 :]
    }
    assert seen == {("0", "stock"), ("100", "fixed")}
    out.unlink()
    result = ab(*SPLIT, "--treatment", "bulk=fixed")
    assert (result.code, "give --design switchback" in result.err) == (2, True)
    assert read_named(tree) == before


def test_without_treatment_both_arms_are_what_runs_now(
    run: Run, ab: Run, out: Path, clock: World
) -> None:
    run("set", "anon_order", "fixed", "max_order=3")
    clock.at = [(60.0, lambda: setattr(clock, "states", []))]
    assert ab(*SWITCHBACK).code == 0
    assert clock.states
    assert clock.states[-2]["profiles/ab-treatment/anon_order/fixed/max_order"] == "3"
    header = load(out).header
    assert header["control"] == header["treatment"]


@pytest.mark.parametrize("design", [SWITCHBACK, SPLIT])
def test_a_broken_guard_restores_at_once(
    ab: Run, out: Path, tree: FakeTree, clock: World, design: list[str]
) -> None:
    before = read_named(tree)

    def pressure() -> None:
        tree.put("/proc/pressure/memory", "full avg10=9.50 avg60=0.00 total=0")
        clock.put = lambda: None  # type: ignore[method-assign]

    clock.at = [(30.0, pressure)]
    result = ab(*design, *FIXED, "--guard", "psi.memory.full.avg10 < 5")
    assert result.code == 1
    assert "guard 'psi.memory.full.avg10 < 5' is violated: the value is 9.5" in result.err
    assert "the former state was restored" in result.err
    assert read_named(tree) == before
    assert clock.now - 30 <= 0.4
    end = load(out).end
    assert (end["status"], end["restored"]) == ("guard", True)


def test_guards_on_rates(ab: Run, clock: World) -> None:
    assert ab(*SWITCHBACK, *FIXED, "--guard", "vmstat.allocstall/s < 10").code == 0
    result = run_guarded(ab, clock, "vmstat.pgfault/s <= 990")
    assert "the value is 1" in result.err


def run_guarded(ab: Run, clock: World, guard: str) -> Result:
    """Run with a guard that breaks."""
    result = ab(*SWITCHBACK, *FIXED, "--out", str(clock.tree.real("/second")), "--guard", guard)
    assert result.code == 1
    return result


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_restore(ab: Run, out: Path, tree: FakeTree, clock: World, number: int) -> None:
    before = read_named(tree)
    clock.at = [(21.0, lambda: os.kill(os.getpid(), number))]
    result = ab(*SWITCHBACK, *FIXED)
    assert (result.code, read_named(tree)) == (128 + number, before)
    assert f"interrupted: by {signal.Signals(number).name}" in result.err
    assert load(out).end["status"] == "interrupted"
    assert tree.read(LOCK) == ""


def test_lease_that_ran_out(ab: Run, out: Path, tree: FakeTree, clock: World) -> None:
    clock.at = [(21.0, tree.expire)]
    result = ab(*SWITCHBACK, *FIXED)
    assert result.code == 1
    assert "mmpolicy reset acknowledges it" in result.err
    assert tree.read(f"{CONTROL}/state") == "expired"
    assert load(out).end["status"] == "lost"


def test_a_lease_that_runs_out_on_the_way_back(
    ab: Run, tree: FakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the lease expires during the rollback, on a host too busy to read the state in time,
    settings of the run are gone.
    """
    halt = PolicyArms.halt

    def slowly(arms: PolicyArms) -> None:
        halt(arms)
        tree.expire()

    monkeypatch.setattr(PolicyArms, "halt", slowly)
    result = ab(*SWITCHBACK, *FIXED)
    assert (
        "the kernel is at stock, as the lease expired before the former state was restored"
        in result.out
    )
    assert "the former state was restored in" not in result.out


def test_a_reset_by_somebody_else_is_respected(ab: Run, tree: FakeTree, clock: World) -> None:
    clock.at = [(21.0, tree.make_stock)]
    result = ab(*SWITCHBACK, *FIXED)
    assert (result.code, "another command has ended the experiment" in result.err) == (1, True)
    assert tree.read(f"{CONTROL}/state") == "stock"
    assert tree.dirs(f"{CONTROL}/profiles") == ["default"]


def test_what_others_change_meanwhile_stays(ab: Run, tree: FakeTree, clock: World) -> None:
    path = f"{CONTROL}/profiles/default/anon_order/fixed/max_order"
    before = read_named(tree)
    clock.at = [(21.0, lambda: tree.put(path, "8"))]
    assert ab(*SWITCHBACK, *FIXED).code == 0
    assert read_named(tree) == before | {"profiles/default/anon_order/fixed/max_order": "8"}


@pytest.mark.parametrize("path", ["experiment/enabled", "profiles/create", "experiment/treatment"])
def test_a_refused_write_restores(ab: Run, tree: FakeTree, path: str) -> None:
    before = read_named(tree)
    tree.refusals[f"{CONTROL}/{path}"] = 22
    result = ab(*SWITCHBACK, *FIXED)
    assert (result.code, "EINVAL" in result.err) == (5, True)
    assert read_named(tree) == before


def test_a_value_that_the_kernel_refuses(ab: Run, out: Path, tree: FakeTree) -> None:
    before = read_named(tree)
    result = ab(*SWITCHBACK, "--treatment", "anon_order=fixed,max_order=99")
    assert (result.code, "ERANGE" in result.err) == (5, True)
    assert read_named(tree) == before
    assert load(out).end["status"] == "failed"


def test_where_the_way_back_fails_all_is_stock(
    ab: Run, tree: FakeTree, clock: World, run: Run
) -> None:
    run("set", "anon_order", "adaptive")
    clock.at = [(21.0, lambda: tree.refusals.update({f"{CONTROL}/profiles/delete": 16}))]
    result = ab(*SWITCHBACK, *FIXED)
    assert result.code == 0
    assert "the kernel is at stock now, as the former state could not be restored" in result.out
    assert tree.read(f"{CONTROL}/state") == "stock"


def test_commands(ab: Run, out: Path, tmp_path: Path) -> None:
    script = f"echo some text >>{tmp_path}/calls; echo size 12.5"
    assert ab("--design", "switchback", "--metric", f"size=cmd:{script}", *SHORT).code == 0
    recording = load(out)
    (metric,) = recording.metrics()
    assert (metric.name, recording.pairs(metric, "ab")) == ("size", [(12.5, 12.5)] * 6)
    assert len((tmp_path / "calls").read_text().splitlines()) == 16 * 4


@pytest.mark.parametrize(
    ("command", "text"),
    [("exit 3", "'exit 3' ended with status 3"), ("echo much", "does not end in a number")],
)
def test_commands_that_fail(ab: Run, tree: FakeTree, command: str, text: str) -> None:
    before = read_named(tree)
    result = ab("--design", "switchback", "--metric", f"cmd:{command}", *SHORT)
    assert (result.code, text in result.err) == (1, True)
    assert read_named(tree) == before


@pytest.mark.parametrize(("metrics", "pairs"), [(1, 8), (2, 9), (5, 10)])
def test_the_aa_phase_can_show_that_equal_arms_differ(ab: Run, metrics: int, pairs: int) -> None:
    words = ["--design", "switchback", "--dry-run", "--pairs", "12"]
    for number in range(metrics):
        words += ["--metric", f"n{number}=vmstat.pgfault/s"]
    result = ab(*words)
    assert f"12 pairs after {pairs} of A/A" in result.out
    assert result.err == ""
    short = ab(*words, "--aa-pairs", str(pairs - 1))
    assert f"warning: {pairs - 1} A/A pairs are too few to show that equal arms differ" in short.err


def test_margin_is_written_down_before_the_run(ab: Run, out: Path, run: Run) -> None:
    assert ab(*SWITCHBACK, *FIXED, "--margin", "5").code == 0
    assert load(out).header["margin"] == 5
    said = run("ab", "report", str(out)).out
    assert "no worse than 5 %: shown (p = 0.016)" in said
    assert "chosen before the run" in said
    words = ["--design", "switchback", "--metric", "vmstat.pgfault/s", *SHORT, "--margin", "5"]
    assert "needs a metric with `lower` or `higher`" in ab(*words).err


@pytest.mark.parametrize("word", ["nan", "inf", "-inf", "NaN"])
def test_a_command_that_prints_no_number_for_once(
    ab: Run, run: Run, out: Path, tmp_path: Path, word: str
) -> None:
    """If a command once prints no number, that block has no value, the file is JSON, and the report
    says so.
    """
    count = tmp_path / "count"
    command = f"n=$(cat {count} 2>/dev/null); echo $((n + 1)) >{count}; "
    command += f"[ $n = 40 ] && echo {word} || echo $((100 + n % 3))"
    assert ab("--design", "switchback", "--metric", f"m=cmd:{command}", *SHORT).code == 0
    for line in out.read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)
    result = run("ab", "report", str(out))
    assert result.code == 7
    assert "note: m has a value in 10 of 11 pairs" in result.out


def test_a_second_run_is_refused(ab: Run, run: Run, tree: FakeTree, clock: World) -> None:
    seen: list[Any] = []
    other = ["ab", "run", "--out", str(tree.real("/other")), *SWITCHBACK]
    clock.at = [(5.0, lambda: seen.append((read_named(tree), run(*other), read_named(tree))))]
    assert ab(*SWITCHBACK, *FIXED).code == 0
    before, second, after = seen[0]
    assert (second.code, before) == (1, after)
    assert f"is locked by ab run, pid {os.getpid()}, until about 20" in second.err


def test_the_lock_of_the_dead_is_free(ab: Run, tree: FakeTree) -> None:
    tree.put(LOCK, "ab run, pid 1")
    assert ab(*SWITCHBACK).code == 0


def test_dry_run(run: Run, tree: FakeTree, tmp_path: Path) -> None:
    words = ["ab", "run", *SWITCHBACK, *FIXED, "--dry-run", "--out", str(tmp_path / "no")]
    lines = run(*words).out.splitlines()
    assert lines[:3] == [
        f"{CONTROL}/lease_ms <- 10000  (0 -> 10000)",
        f"{CONTROL}/profiles/create <- ab-control  (- -> exists)",
        f"{CONTROL}/profiles/create <- ab-treatment  (- -> exists)",
    ]
    assert f"{CONTROL}/profiles/ab-treatment/anon_order/fixed/max_order <- 3  (- -> 3)" in lines
    assert lines[-2:] == ["blocks: 16 of 4 s", "time: 1:04"]
    assert json.loads(run(*words, "--json").out)["writes"][0]["value"] == "10000"
    assert (tree.writes, (tmp_path / "no").exists()) == ([], False)


def test_the_file_is_named_by_a_time_that_comes_once(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is named by a time that occurs once: in local time, an hour of autumn
    occurs twice.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TZ", "LMT-14")
    time.tzset()
    try:
        before = datetime.now(UTC).replace(microsecond=0)
        assert run("ab", "run", *SWITCHBACK).code == 0
        (file,) = tmp_path.iterdir()
        found = datetime.strptime(file.name, "ab-%Y%m%d-%H%M%S.jsonl").replace(tzinfo=UTC)
        assert before <= found <= datetime.now(UTC)
    finally:
        monkeypatch.undo()
        time.tzset()


def test_json(ab: Run, out: Path) -> None:
    data = ab(*SWITCHBACK, *FIXED, "--json").json
    assert (data["command"], data["status"], data["restored"]) == ("ab run", "done", True)
    assert (data["file"], data["pairs"], data["blocks"]) == (str(out), 6, 16)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--metric", "vmstat.nothing", *SHORT, "--design", "switchback"], "no number 'nothing'"),
        (["--metric", "load", *SHORT], "'load' is not a source for a metric"),
        (["--metric", "arm.anon_order.fault_ns.p", *SHORT], "not a source for a metric"),
        ([*PGFAULT, *SHORT], "is measured on the whole host"),
        (
            [*SWITCHBACK, "--pairs", "5"],
            "5 pairs are too few to show an effect with 1 metric: the run needs 6 or more",
        ),
        (
            [*SWITCHBACK, "--metric", "vmstat.nr_mapped"],
            "6 pairs are too few to show an effect with 2 metrics",
        ),
        ([*SWITCHBACK, "--duration", "1m"], "both set the length"),
        ([*SWITCHBACK, "--washout", "4"], "--washout has to be shorter"),
        ([*SWITCHBACK, "--block", "soon"], "not a time such as"),
        ([*SWITCHBACK, "--lease", "0.1"], "not a time such as"),  # it could not be renewed in time
        ([*SWITCHBACK, "--guard", "pressure"], "not of the form"),
        ([*SWITCHBACK, "--guard", "cmd:date < 3"], "too slow to be run for each sample"),
        ([*SWITCHBACK, "--guard", "psi.io.full.avg10 < 3"], "/proc/pressure/io"),
        ([*SWITCHBACK, "--treatment", "anon_ordr=never"], "did you mean anon_order"),
        ([*SWITCHBACK, "--treatment", "anon_order=nevr"], "did you mean never"),
        ([*SWITCHBACK, "--treatment", "anon_order=never,max=1"], "no knob of anon_order/never"),
        ([*SWITCHBACK, "--treatment", "anon_order=never,2"], "not of the form"),
        ([*SWITCHBACK, "--treatment", "db"], "no profile 'db'"),
        ([*SWITCHBACK, "--cgroup", "/none"], "no cgroup '/none'"),
    ],
)
def test_wrong_usage_changes_nothing(ab: Run, tree: FakeTree, words: list[str], text: str) -> None:
    result = ab(*words)
    assert text in result.err
    assert (result.code in (2, 3), tree.writes) == (True, [])


def test_it_does_not_begin_where_something_is_in_the_way(
    run: Run, ab: Run, tree: FakeTree, out: Path
) -> None:
    run("profile", "create", "ab-control")
    assert "the profile ab-control, which an experiment creates" in ab(*SWITCHBACK).err
    run("profile", "delete", "ab-control")
    tree.put(f"{CONTROL}/experiment/enabled", "1")
    assert "an experiment is enabled in the kernel already" in ab(*SWITCHBACK).err
    tree.expire()
    assert "mmpolicy reset acknowledges it; then start the experiment again" in ab(*SWITCHBACK).err
    assert not out.exists()


def test_no_file_is_overwritten(ab: Run, out: Path, tree: FakeTree) -> None:
    out.write_text("precious")
    result = ab(*SWITCHBACK)
    assert (result.code, out.read_text(), tree.writes) == (1, "precious", [])
    assert "next: give --out" in result.err
