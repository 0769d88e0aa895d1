# SPDX-License-Identifier: GPL-2.0
"""`ab run`: experiments that cannot have an effect, and measurements in addition to the metrics."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mmpolicy.ab.samples import load

from .ab_world import DEBUG, FIXED, PGFAULT, SHORT, SPLIT, SWITCHBACK, World
from .fakes import CONTROL, FakeTree, Run, read_named

TIMES = f"{CONTROL}/experiment/time_faults"
BACK = ["--design", "switchback", *SHORT]


@pytest.fixture
def clock(tree: FakeTree) -> World:
    """Return time in which scheduled events happen."""
    return World(tree)


def cgroup(tree: FakeTree, path: str) -> str:
    """Make a cgroup that has memory, and return its id."""
    number = tree.make_cgroup(path)
    tree.put(f"/sys/fs/cgroup{path}/memory.stat", "anon 4096\npgfault 7\nworkingset_refault_anon 1")
    tree.put(f"/sys/fs/cgroup{path}/memory.events", "low 0\noom_kill 0")
    tree.put(f"/sys/fs/cgroup{path}/cpu.stat", "usage_usec 10")
    tree.put(f"/sys/fs/cgroup{path}/memory.pressure", "some avg10=0.00 total=0")
    return number


# Mistyped options


@pytest.mark.parametrize(
    ("words", "text", "hint"),
    [
        (
            ["--metric", "arm.anon_order.allocated_ordr_4"],
            "no counter of the hook point anon_order",
            "allocated_order_4?",
        ),
        (["--metric", "arm.anon_ordr.allocated_order_4"], "no point 'anon_ordr'", "anon_order?"),
        (
            ["--metric", "arm.compact.fault_ns"],
            "no counter of the hook point compact 'fault_ns'",
            "next:",
        ),
        (
            [*PGFAULT, "--guard", "arm.anon_order.no_such < 1"],
            "no counter of the hook point anon_order",
            "next:",
        ),
        ([*PGFAULT, "--guard", "vmstat.pgfalt/s < 1"], "no number 'pgfalt'", "pgfault?"),
        ([*PGFAULT, "--guard", "vmstat.alocstall/s < 1"], "no number 'alocstall'", "allocstall?"),
        ([*PGFAULT, "--guard", "psi.memory.full.avg1 < 1"], "no number 'full.avg1'", "full.avg10?"),
        ([*PGFAULT, "--guard", "cgroup:/a/memory.stat:anonn < 1"], "no number 'anonn'", "anon?"),
        (["--metric", "cgroup:/a/memory.stat:anonn"], "no number 'anonn'", "anon?"),
    ],
)
def test_a_mistyped_name_is_refused_before_the_first_block(
    ab: Run, tree: FakeTree, clock: World, out: Path, words: list[str], text: str, hint: str
) -> None:
    cgroup(tree, "/a")
    result = ab(*BACK, *FIXED, *words)
    assert (result.code, text in result.err, hint in result.err) == (2, True, True), result.err
    assert (tree.writes, out.exists(), clock.now) == ([], False, 0)


@pytest.mark.parametrize(
    "key", ["memory.stat:pgfault", "memory.stat:workingset_refault_anon", "memory.events:oom_kill",
            "cpu.stat:usage_usec", "memory.pressure:some.total"]
)  # fmt: skip
def test_a_mean_of_what_only_rises_is_refused(ab: Run, tree: FakeTree, key: str) -> None:
    cgroup(tree, "/a")
    for metric in (f"cgroup:/a/{key} lower", f"vmstat.pgfault / cgroup:/a/{key}"):
        result = ab(*BACK, *FIXED, "--metric", metric)
        assert result.code == 2
        assert (
            f"only increases, so its mean says nothing: use its rate, cgroup:/a/{key}/s"
            in result.err
        )
    assert tree.writes == []
    assert ab(*BACK, *FIXED, "--metric", f"cgroup:/a/{key}/s lower").code == 0
    assert ab(*BACK, "--metric", "cgroup:/a/memory.stat:anon", "--dry-run").code == 0
    guard = ["--guard", f"cgroup:/a/{key} < 100"]
    assert ab(*SWITCHBACK, *guard, "--dry-run").code == 0


# Cgroups that take part


@pytest.mark.parametrize("bound", ["/a", "/a/b"])
def test_what_is_bound_takes_no_part(ab: Run, run: Run, tree: FakeTree, bound: str) -> None:
    for path in ("/a", "/a/b", "/c"):
        cgroup(tree, path)
    run("profile", "create", "db")
    run("bind", "--cgroup", bound, "db")
    writes = list(tree.writes)
    for words in ([], ["--dry-run"]):
        result = ab(*SWITCHBACK, *FIXED, "--cgroup", "/a/b", *words)
        assert result.code == 2
        text = f"cgroup {bound} is bound to db, and a binding overrides an experiment"
        assert f"{text}: no arm of the experiment would decide for /a/b" in result.err
        assert f"next: mmpolicy unbind --cgroup {bound}" in result.err
    assert tree.writes == writes
    assert ab(*SWITCHBACK, *FIXED, "--cgroup", "/c", "--dry-run").err.count("takes no part") == 0
    above = ab(*SWITCHBACK, *FIXED, "--dry-run")
    assert (
        f"warning: cgroup {bound} takes no part in the experiment, as it is bound to the profile db"
        in above.err
    )
    above = ab(*SWITCHBACK, *FIXED, "--cgroup", "/a", "--dry-run")
    assert (above.code, "takes no part" in above.err) == ((2, False), (0, True))[bound == "/a/b"]


@pytest.mark.parametrize("anew", [False, True])
def test_a_cgroup_that_vanishes_ends_the_run(
    ab: Run, out: Path, tree: FakeTree, clock: World, anew: bool
) -> None:
    cgroup(tree, "/a")
    before = read_named(tree)

    def restart() -> None:
        tree.remove("/sys/fs/cgroup/a")
        for number in range(3 * anew):  # so that ids do not agree by chance
            tree.make_cgroup(f"/other{number}")
        if anew:
            cgroup(tree, "/a")

    clock.at = [(21.0, restart)]
    result = ab(*SWITCHBACK, *FIXED, "--cgroup", "/a")
    assert result.code == 1
    assert "lost: cgroup /a was removed, maybe by a restart of its service" in result.err
    assert load(out).end["status"] == "lost"
    assert clock.now < 25
    assert read_named(tree) == before


def test_a_file_says_what_took_part(ab: Run, out: Path, tree: FakeTree, clock: World) -> None:
    tree.make_cgroup("/a")
    assert ab(*SWITCHBACK, *FIXED, "--cgroup", "/a").code == 0
    assert load(out).header["cgroup_path"] == "/a"


@pytest.mark.parametrize("design", [SWITCHBACK, SPLIT])
def test_a_treatment_that_decides_nothing(
    ab: Run, run: Run, out: Path, clock: World, design: list[str]
) -> None:
    assert ab(*design, *FIXED).code == 0
    report = run("ab", "report", str(out))
    assert re.search(r"^decisions +[1-9]\d* in treatment$", report.out, re.MULTILINE)
    assert "no decision" not in report.out
    out.unlink()
    clock.active = False
    result = ab(*design, *FIXED)
    assert (
        result.err.count("warning: no policy has decided anything yet in treatment, after 3 pairs")
        == 1
    )
    report = run("ab", "report", str(out))
    assert report.code == 7
    assert (
        "doubt: no policy decided anything in treatment, so nothing was compared; does any "
        "process in the scope have page faults?"
    ) in report.out


def test_without_counters_decisions_are_not_known(
    ab: Run, run: Run, out: Path, tree: FakeTree, clock: World
) -> None:
    clock.put = lambda: None  # type: ignore[method-assign]
    tree.remove(DEBUG)
    tree.make_profile = lambda name: FakeTree.make_profile(tree, name) or tree.remove(DEBUG)  # type: ignore
    assert ab(*SWITCHBACK, *FIXED).code == 0
    report = run("ab", "report", str(out)).out
    assert "decision" not in report


# Time and arm of a guard's breach


@pytest.mark.parametrize("moment", [10.0, 16.3, 18.5, 22.5])
def test_a_broken_guard_says_where(
    ab: Run, run: Run, out: Path, tree: FakeTree, clock: World, moment: float
) -> None:
    def pressure() -> None:
        tree.put("/proc/pressure/memory", "full avg10=9.50 avg60=0.00 total=0")
        clock.put = lambda: None  # type: ignore[method-assign]

    clock.at = [(moment, pressure)]
    assert ab(*SWITCHBACK, *FIXED, "--guard", "psi.memory.full.avg10 < 5").code == 1
    end = load(out).end
    number = int(moment // 4)
    arms = [value for path, value in tree.writes if path.endswith("experiment/percent")]
    arm = "treatment" if arms[number] == "100" and number >= 4 else "control"
    assert (end["block"], end["arm"]) == (number, arm)
    assert f"in {arm}, block {number}" in end["reason"]
    report = run("ab", "report", str(out))
    at_once = moment == 16.3  # after 16 s without the treatment, at its first second
    assert report.code == (8 if at_once else 7)
    assert ("as the treatment does harm: guard" in report.out) == at_once
    assert ("a guard stopped the run while" in report.out) == (arm == "treatment" and not at_once)


def test_a_guard_of_one_arm_of_split(ab: Run, run: Run, out: Path, clock: World) -> None:
    rising = "arm.anon_order.allocated_order_4 < 1000000"
    assert ab(*SPLIT, *FIXED, "--guard", rising).code == 0
    out.unlink()
    assert ab(*SPLIT, *FIXED, "--guard", "arm.anon_order.allocated_order_4/s < 480").code == 1
    end = load(out).end
    assert (end["arm"], end["phase"]) == ("control", "aa")


# The time of faults


@pytest.mark.parametrize(
    ("words", "written"),
    [
        (["--metric", "arm.anon_order.fault_ns.p99 lower"], ["1", "0"]),
        ([*PGFAULT, "--guard", "arm.anon_order.fault_ns < 1000000"], ["1", "0"]),
        (PGFAULT, []),
    ],
)
def test_faults_are_timed_only_if_a_metric_asks(
    ab: Run, run: Run, out: Path, tree: FakeTree, words: list[str], written: list[str]
) -> None:
    tree.put(TIMES, "0")
    before = read_named(tree)
    assert ab(*BACK, *FIXED, *words).code == 0
    assert [value for path, value in tree.writes if path == TIMES] == written
    assert read_named(tree) == before
    report = run("ab", "report", str(out)).out
    timed = re.search(r"^timed faults +(\d+) in control, (\d+) in treatment$", report, re.MULTILINE)
    missed = re.search(r"^faults missed +(\d+) in control, (\d+) in", report, re.MULTILINE)
    assert bool(timed) == bool(missed) == bool(written)
    if timed and missed:
        assert int(timed[1]) > 50 * int(missed[1]) > 0


def test_an_older_module_times_all_faults_by_itself(ab: Run, tree: FakeTree) -> None:
    tree.remove(TIMES)
    assert ab(*BACK, *FIXED, "--metric", "arm.anon_order.fault_ns lower").code == 0
    assert not tree.exists(TIMES)


# Commands


def test_a_command_that_does_not_end(ab: Run, out: Path, tree: FakeTree, tmp_path: Path) -> None:
    before = read_named(tree)
    command = f"echo 1; sleep 60 & wait; touch {tmp_path}/done"
    result = ab(*BACK, *FIXED, "--metric", f"cmd:{command}", "--cmd-timeout", "0.3")
    assert result.code == 1
    assert "did not end within 0.3 s; the former state was restored" in result.err
    assert load(out).end["status"] == "failed"
    assert read_named(tree) == before
    assert not (tmp_path / "done").exists()


def test_commands_of_a_sample_run_at_once(ab: Run, tmp_path: Path) -> None:
    """The commands of a sample run concurrently: each waits for the other, so in turn
    they would hang.
    """

    def metric(name: str, own: str, other: str) -> list[str]:
        wait = f"until [ -e {tmp_path}/{other} ]; do sleep 0.02; done"
        return ["--metric", f"{name}=cmd:touch {tmp_path}/{own}; {wait}; echo 1"]

    words = [*metric("one", "a", "b"), *metric("two", "b", "a")]
    assert ab(*BACK, *FIXED, *words, "--pairs", "7", "--cmd-timeout", "5").code == 0


def test_at_switch_runs_at_the_beginning_of_each_block(
    ab: Run, run: Run, out: Path, tree: FakeTree, tmp_path: Path
) -> None:
    percent = tree.real(f"{CONTROL}/experiment/percent")
    calls = tmp_path / "calls"
    assert ab(*SWITCHBACK, *FIXED, "--at-switch", f"cat {percent} >>{calls}").code == 0
    arms = [block["arm"] for block in load(out).blocks.values()]
    seen = calls.read_text().split()
    assert seen == [{"control": "0", "treatment": "100"}[arm] for arm in arms]
    assert f"at switch    cat {percent}" in run("ab", "report", str(out)).out
    out.unlink()
    assert ab(*SWITCHBACK, *FIXED, "--at-switch", "exit 3").code == 1
    assert "the command 'exit 3' ended with status 3" in load(out).end["reason"]
    out.unlink()
    result = ab(*SWITCHBACK, *FIXED, "--at-switch", "sleep 60", "--cmd-timeout", "0.2")
    assert (result.code, "the command 'sleep 60' did not end within 0.2 s" in result.err) == (
        1,
        True,
    )


def test_at_switch_may_make_the_cgroup_anew(ab: Run, out: Path, tree: FakeTree) -> None:
    cgroup(tree, "/a")
    folder = tree.real("/sys/fs/cgroup/a")
    # The other directory prevents the new one from reusing the inode of the old one.
    command = f"mv {folder} {folder}-$(date +%s%N); mkdir {folder}; touch {folder}/cgroup.procs"
    before = read_named(tree)
    result = ab(*SWITCHBACK, *FIXED, "--cgroup", "/a", "--at-switch", command)
    assert result.code == 0, result.err
    ids = [value for path, value in tree.writes if path.endswith("experiment/cgroup")]
    assert len(set(ids)) == 16 + 2  # the first, one for each block, and the whole host at the end
    assert read_named(tree) == before
    out.unlink()
    result = ab(*SWITCHBACK, *FIXED, "--cgroup", "/a", "--at-switch", f"rm -r {folder}")
    assert (result.code, "lost: cgroup /a was removed" in result.err) == (1, True)
    assert read_named(tree) == before


def test_the_new_cgroup_takes_part_while_the_command_goes_on(
    ab: Run, out: Path, tree: FakeTree, tmp_path: Path
) -> None:
    """A program started in the new cgroup maps its memory under the arm, except in its
    first moments.
    """
    cgroup(tree, "/a")
    folder, scope = tree.real("/sys/fs/cgroup/a"), tree.real(f"{CONTROL}/experiment/cgroup")
    command = f"mv {folder} {folder}-$(date +%s%N); sleep 0.5; mkdir {folder}; sleep 0.6; "
    command += f"stat -c %i {folder} >>{tmp_path}/made; cat {scope} >>{tmp_path}/seen"
    words = ["--block", "2", "--aa-pairs", "0", "--pairs", "6"]
    result = ab(*SWITCHBACK, *FIXED, *words, "--cgroup", "/a", "--at-switch", command)
    assert result.code == 0, result.err
    made, seen = ((tmp_path / name).read_text().split() for name in ("made", "seen"))
    assert made == seen
    assert len(set(made)) == 12


# Runs before


def test_runs_with_the_same_arms_are_counted(ab: Run, run: Run, out: Path, tree: FakeTree) -> None:
    for number in (1, 2, 3):
        assert ab(*SWITCHBACK, *FIXED).code == 0
        assert load(out).header["runs_this_week"] == number
        report = run("ab", "report", str(out)).out
        assert (f"note: this is run {number} with these arms" in report) == (number > 1)
        out.unlink()
    ab(*SWITCHBACK, "--treatment", "anon_order=never")
    assert load(out).header["runs_this_week"] == 1
    journal = "/var/lib/mmpolicy/journal.jsonl"
    lines: list[dict[str, Any]] = [json.loads(line) for line in tree.read(journal).splitlines()]
    old = [line | {"time": "2020-01-01T00:00:00+00:00"} for line in lines]
    tree.put(journal, "\n".join(map(json.dumps, old)))
    out.unlink()
    ab(*SWITCHBACK, *FIXED)
    assert load(out).header["runs_this_week"] == 1
