# SPDX-License-Identifier: GPL-2.0
"""`stats`, once and again and again."""

import json

from .fakes import COUNTERS, Clock, FakeTree, Run

STATS = f"{COUNTERS}/anon_order/stats"


def test_only_counters_that_are_not_zero(run: Run) -> None:
    rows = [line.split() for line in run("stats").out.splitlines()]
    assert rows == [
        ["POINT", "COUNTER", "VALUE"],
        ["anon_order", "decisions", "100"],
        ["anon_order", "raised", "40"],
    ]
    assert run("stats", "bulk").out == "every counter is 0\n"


def test_json_has_all(run: Run, tree: FakeTree) -> None:
    tree.put(STATS, "decisions 18446744073709551615\n# a comment\nlowered 0")
    data = run("stats", "anon_order", "--json").json
    assert (data["version"], data["profile"]) == (1, "default")
    assert data["points"] == {"anon_order": {"decisions": 2**64 - 1, "lowered": 0}}


def test_watch_shows_rates_until_ctrl_c(run: Run, tree: FakeTree, clock: Clock) -> None:
    clock.steps = [lambda: tree.put(STATS, "decisions 150\nraised 40")]
    result = run("stats", "anon_order", "--watch", "--interval", "2")
    assert result.code == 0
    first, second = result.out.strip().split("\n\n")
    assert "PER_SECOND" in first
    assert first.splitlines()[1].split() == ["anon_order", "decisions", "100", "-"]
    assert second.splitlines()[1].split() == ["anon_order", "decisions", "150", "25.0"]
    assert second.splitlines()[2].split() == ["anon_order", "raised", "40", "0.0"]


def test_watch_json_is_one_object_a_line(run: Run, tree: FakeTree, clock: Clock) -> None:
    clock.steps = [lambda: tree.put(STATS, "decisions 30")]  # the module was loaded anew
    result = run("stats", "--watch", "--json")
    first, second = (json.loads(line) for line in result.out.splitlines())
    assert (first["version"], first["per_second"]) == (1, {})
    assert second["per_second"]["anon_order"] == {"decisions": 30.0}


def test_wrong_names_and_interval(run: Run) -> None:
    assert "did you mean anon_order?" in run("stats", "anon_orde").err
    assert run("stats", "--profile", "other").code == 2
    assert run("stats", "--watch", "--interval", "0").code == 2


def test_without_debugfs(run: Run, tree: FakeTree) -> None:
    tree.remove("/sys/kernel/debug/mmpolicy")
    result = run("stats")
    assert (result.code, "ENOENT" in result.err) == (3, True)
    assert "next: mount -t debugfs none /sys/kernel/debug" in result.err


def test_watch_shows_what_rises_in_all_profiles(run: Run, tree: FakeTree, clock: Clock) -> None:
    run("profile", "create", "web")
    run("set", "anon_order", "never", "--profile", "web")
    run("lease", "60")
    counters = "/sys/kernel/debug/mmpolicy/web/anon_order/stats"
    clock.steps = [lambda: tree.put(counters, "decisions 20")]
    first, second = run("watch", "--interval", "2").out.split("state: ")[1:]
    assert "no counter rises" in first
    assert second.strip().splitlines()[-1].split() == [
        "web/anon_order",
        "never",
        "decisions",
        "20",
        "10.0",
    ]
    clock.steps = [lambda: None]
    lines = [json.loads(line) for line in run("watch", "--json").out.splitlines()]
    assert (lines[0]["state"], lines[0]["lease_ms"]) == ("active", 60000)
    assert lines[1]["points"]["web/anon_order"] == {"decisions": 20}


def test_watch_tells_of_the_experiment(run: Run, tree: FakeTree, clock: Clock) -> None:
    for arm, name in (("control", "a"), ("treatment", "b")):
        run("profile", "create", name)
        tree.write(f"/sys/kernel/mmpolicy/experiment/{arm}", name)
    tree.write("/sys/kernel/mmpolicy/experiment/enabled", "1")
    assert "experiment: b for 50 %, a for the others" in run("watch").out


def test_export(run: Run, tree: FakeTree) -> None:
    run("set", "anon_order", "adaptive")
    lines = run("export").out.splitlines()
    assert 'mmpolicy_state{state="active"} 1' in lines
    assert 'mmpolicy_policy{profile="default",point="anon_order",policy="adaptive"} 1' in lines
    knob = 'profile="default",point="anon_order",policy="fixed",knob="max_order"'
    assert f"mmpolicy_knob{{{knob}}} 4" in lines
    event = 'profile="default",point="anon_order",event="decisions"'
    assert f"mmpolicy_events_total{{{event}}} 100" in lines
    assert "# TYPE mmpolicy_events_total counter" in lines
    names = {line.split("{")[0].split()[0] for line in lines if line[0] != "#"}
    assert all(f"# TYPE {name} " in "\n".join(lines) for name in names)
    data = run("export", "--format", "json").json["metrics"]
    assert {"metric": "state", "labels": {"state": "active"}, "value": 1} in data
