# SPDX-License-Identifier: GPL-2.0
"""`log`, the lines for the system's log, and `revert --to`."""

from __future__ import annotations

import json

import pytest

from .fakes import CONTROL, DEFAULT, FakeTree, Run, read_named

JOURNAL = "/var/lib/mmpolicy/journal.jsonl"
POINT = f"{DEFAULT}/anon_order"


@pytest.fixture(autouse=True)
def sudo(tree: FakeTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run as a user who became root by sudo."""
    monkeypatch.setenv("SUDO_UID", "1000")
    tree.put("/proc/self/loginuid", "1001")


def test_each_change_is_told_with_who_what_and_how(
    run: Run, tree: FakeTree, log: list[str]
) -> None:
    run("set", "anon_order", "fixed", "max_order=6")
    run("profile", "create", "web")
    run("set", "anon_order", "fixed", "--profile", "web")
    run("set", "anon_order", "fixed", "--profile", "web")  # changes nothing
    tree.make_cgroup("/app.slice")
    run("bind", "--cgroup", "/app.slice", "web")
    run("lease", "1m")
    run("reset")
    number = tree.inode("/sys/fs/cgroup", "app.slice")
    told = [line.split(" by uid 0, sudo uid 1000, login uid 1001: ") for line in log]
    assert told[:5] == [
        ["set", "default/anon_order/fixed/max_order: 4 -> 6; default/anon_order/policy: "
         "stock -> fixed"],
        ["profile create", "profile web: - -> exists"],
        ["set", "web/anon_order/policy: stock -> fixed"],
        ["bind", f"cgroup {number}: - -> web"],
        ["lease", "lease_ms: 0 -> 60000"],
    ]  # fmt: skip
    (verb, what) = told[5]
    assert verb == "reset"
    assert "default/anon_order/policy: fixed -> stock" in what
    assert "profile web: exists -> -" in what
    assert len(told) == 6


def test_what_is_no_setting_is_told_too(run: Run, tree: FakeTree, log: list[str]) -> None:
    run("unload")
    run("load", "anon_order=never")
    assert [line.partition(" by ")[0] for line in log] == ["unload", "load"]
    assert log[1].endswith(": loaded anon_order=never")


def test_log_lists_changes(run: Run, tree: FakeTree) -> None:
    assert run("log").out == "the journal has no change\n"
    run("set", "anon_order", "fixed", "max_order=6")
    run("set", "anon_order", "min_available_percent=20")
    lines = run("log").out.splitlines()
    assert lines[0].split() == ["NUMBER", "TIME", "WHO", "COMMAND", "CHANGE"]
    assert lines[1].split()[0] == "1"
    assert lines[1].endswith("default/anon_order/fixed/max_order: 4 -> 6")
    assert lines[2].split() == ["default/anon_order/policy:", "stock", "->", "fixed"]
    assert len(lines) == 4
    (last,) = run("log", "-n", "1", "--json").json["changes"]
    assert (last["number"], last["command"], last["who"]["sudo uid"]) == (2, "set", 1000)
    path = f"{POINT}/min_available_percent"
    assert last["done"] == [{"path": path, "before": "5", "after": "20"}]


def test_revert_to_a_change(run: Run, tree: FakeTree) -> None:
    states = [read_named(tree)]
    for words in (
        ["set", "anon_order", "fixed", "max_order=6"],
        ["profile", "create", "web"],
        ["set", "anon_order", "never", "--profile", "web"],
        ["set", "anon_order", "fixed", "max_order=2"],
        ["profile", "delete", "web"],
    ):
        assert run(*words).code == 0
        states.append(read_named(tree))
    assert run("revert", "--to", "9").code == 2
    for number in (4, 2, 3, 1, 0):
        entries = len(tree.read(JOURNAL).splitlines())
        assert run("revert", "--to", str(number)).code == 0
        assert read_named(tree) == states[number]
        assert len(tree.read(JOURNAL).splitlines()) == entries + 2  # its begin and its end
    assert run("revert").code == 0
    assert read_named(tree) == states[1]


def test_revert_to_a_change_does_not_touch_what_others_have_done(run: Run, tree: FakeTree) -> None:
    run("set", "anon_order", "fixed", "max_order=6")
    run("set", "anon_order", "min_available_percent=20")
    tree.write(f"{POINT}/fixed/max_order", "7")  # by hand
    writes = list(tree.writes)
    result = run("revert", "--to", "0")
    assert (result.code, tree.writes) == (1, writes)
    assert "default/anon_order/fixed/max_order was 6, is 7" in result.err
    assert run("revert", "--to", "0", "--force").code == 0
    assert tree.read(f"{POINT}/fixed/max_order") == "4"


def test_the_journal_does_not_grow_for_ever(
    run: Run, tree: FakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mmpolicy.control.journal.MOST_BYTES", 4000)
    monkeypatch.setattr("mmpolicy.control.journal.KEPT", 3)
    for number in range(40):
        run("set", "anon_order", f"min_available_percent={number}")
    lines = tree.read(JOURNAL).splitlines()
    assert len(lines) < 20
    assert [json.loads(line)["number"] for line in lines][-1] == 40
    first = json.loads(lines[0])["number"]
    monkeypatch.setattr("mmpolicy.control.journal.MOST_BYTES", 1 << 20)  # from here on all stays
    forgotten = run("revert", "--to", str(first - 2))
    assert (forgotten.code, "no change" in forgotten.err) == (2, True)
    assert run("revert", "--to", str(first - 1)).code == 0
    assert tree.read(f"{POINT}/min_available_percent") == str(first - 2)
    assert run("revert").code == 0
    assert run("revert", "--to", "39").code == 0
    assert tree.read(f"{POINT}/min_available_percent") == "38"


def test_a_run_of_an_experiment_is_told(run: Run, tree: FakeTree, log: list[str]) -> None:
    tree.put("/proc/vmstat", "pgfault 1")
    tree.refusals[f"{CONTROL}/experiment/enabled"] = 22
    words = ["--design", "switchback", "--metric", "vmstat.pgfault/s", "--aa-pairs", "0"]
    assert run("ab", "run", *words, "--out", str(tree.real("/out"))).code == 5
    assert [line.partition(": ")[2].partition(",")[0] for line in log] == [
        "begins: default",
        "ends: failed",
    ]
