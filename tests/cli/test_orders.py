# SPDX-License-Identifier: GPL-2.0
"""The order of writes, bounds and restores, which only a planted fault in them would show."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from processes import children

from mmpolicy.ab.anytime import answered
from mmpolicy.ab.guards import WINDOW_S, Guard, Watch
from mmpolicy.ab.metrics import Metric
from mmpolicy.ab.run.keeper import Keeper
from mmpolicy.ab.run.watchdog import Watchdog
from mmpolicy.ab.samples import load, parse
from mmpolicy.ab.sources import Sample
from mmpolicy.control.change import carry_out
from mmpolicy.control.experiment import RECOVERY
from mmpolicy.control.keys import CgroupBinding, Profile, Setting, State, choice
from mmpolicy.control.state import Write, plan
from mmpolicy.errors import Error
from mmpolicy.host.knobs import read_knobs

from .ab_world import FIXED, SWITCHBACK, World
from .fakes import CONTROL, DEFAULT, POINTS, SETTABLE, THP, FakeLib, FakeTree, Run, read_named

POLICY = f"{DEFAULT}/anon_order/policy"
SIZE = f"{THP}/hugepages-64kB/enabled"


@pytest.fixture
def clock(tree: FakeTree) -> World:
    """Return time in which scheduled events happen."""
    return World(tree)


def test_a_policy_comes_after_its_knobs_and_a_binding_after_its_profile() -> None:
    """A policy comes after its knobs, and a binding after its profile, even if the name of a policy
    sorts after `policy`.
    """
    policy, knob = choice("web", "anon_order"), Setting("web", "anon_order", "vma_size", "most")
    group = CgroupBinding(7)
    new: State = {group: "web", policy: "vma_size", knob: "3", Profile("web"): ""}
    assert [write.key for write in plan({}, new)] == [Profile("web"), knob, policy, group]


def test_what_somebody_has_put_back_already_is_no_conflict(run: Run, tree: FakeTree) -> None:
    run("set", "anon_order", "fixed", "max_order=6")
    tree.write(f"{DEFAULT}/anon_order/fixed/max_order", "4")
    assert run("revert").code == 0
    assert "[stock]" in tree.read(POLICY)


def test_not_every_busy_file_is_an_expired_lease(run: Run, tree: FakeTree) -> None:
    tree.refusals[POLICY] = 16
    assert "expired" not in run("set", "anon_order", "fixed").err


def test_whatever_ends_a_change_takes_it_back(tree: FakeTree) -> None:
    """Whatever ends a change undoes it, also other exceptions: Ctrl-C, or the exit of a handler."""
    before = tree.read(POLICY)

    def interrupt() -> None:
        assert "[fixed]" in tree.read(POLICY)
        raise KeyboardInterrupt

    write = Write(POLICY, "fixed", choice("default", "anon_order"), "fixed")
    with pytest.raises(KeyboardInterrupt):
        carry_out(tree, [write], finish=interrupt)
    assert tree.read(POLICY) == before


def test_a_login_that_is_none_is_not_told(run: Run, tree: FakeTree, log: list[str]) -> None:
    tree.put("/proc/self/loginuid", "4294967295")
    run("set", "anon_order", "fixed")
    assert "login uid" not in log[0]


def test_a_fraction_of_a_second_counts(run: Run, tree: FakeTree) -> None:
    run("lease", "1.5")
    assert tree.read(f"{CONTROL}/lease_ms") == "1500"


def test_a_path_is_not_the_name_of_a_unit(run: Run, tree: FakeTree) -> None:
    tree.make_profile("web")
    tree.make_cgroup("/system.slice/web.service")
    assert run("bind", "--cgroup", "other.slice/web.service", "web").code == 2
    assert run("bind", "--cgroup", "web.service", "web").code == 0


def test_an_unknown_entry_of_a_manifest_gets_a_hint(run: Run, tree: FakeTree) -> None:
    tree.put("/m.toml", "version = 1\nleese_ms = 3\n")
    assert "did you mean lease_ms?" in run("apply", str(tree.real("/m.toml"))).err
    tree.put("/m.toml", "version = 1\n[experiment]\npercnt = 3\n")
    assert "did you mean experiment.percent?" in run("apply", str(tree.real("/m.toml"))).err


def test_the_module_that_is_removed_is_that_one(run: Run, lib: FakeLib) -> None:
    seen: list[object] = []
    remove = lib.kmod_module_remove_module
    lib.kmod_module_remove_module = lambda *args: seen.extend(args) or remove(*args)  # type: ignore
    assert run("unload").code == 0
    assert [getattr(each, "value", each) for each in seen] == [2, 0]


# Experiments


def test_a_knob_that_was_written_and_not_yet_noted_is_ours(tree: FakeTree) -> None:
    """A knob that was written and not yet recorded counts as the run's own: command and watchdog
    were killed in between.
    """
    before = read_knobs(tree)
    tree.put(SIZE, "[always] inherit madvise never")
    will = {"before": {SIZE: "never"}, "ours": {SIZE: "never"}, "wanted": {SIZE: "always"}}
    tree.put(RECOVERY, json.dumps(will))
    assert Keeper.from_recovery_file(tree).back() == ""
    assert read_knobs(tree) == before
    assert tree.read(SIZE) != SETTABLE[SIZE] or before


def test_what_is_about_to_be_written_is_noted_before_and_after(
    tree: FakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted, tune = list[object](), tree.tune

    def note(path: str, value: str) -> None:
        noted.append(json.loads(tree.read(RECOVERY))["wanted"])
        tune(path, value)

    monkeypatch.setattr(tree, "tune", note)
    Keeper(tree, {SIZE: "never"}).go({SIZE: "always"})
    assert noted == [{SIZE: "always"}]
    assert json.loads(tree.read(RECOVERY))["ours"] == {SIZE: "always"}


@pytest.mark.parametrize(
    ("first", "guard", "done"), [(50.0, 100.0, True), (50.0, 110.0, False), (100.0, 100.0, False)]
)
def test_a_run_has_its_answer_if_all_else_is_no_worse(
    first: float, guard: float, done: bool
) -> None:
    texts = ["vmstat.pgfault/s lower", "cost=vmstat.pgmajfault/s lower guard 1%"]
    metrics = [Metric.parse(text) for text in texts]
    noise = np.random.default_rng(5).normal(1, 0.002, (2, 2, 60))
    pairs = {
        metric.name: list(zip(100 * noise[at][0], level * noise[at][1], strict=True))
        for at, (metric, level) in enumerate(zip(metrics, (first, guard), strict=True))
    }
    assert answered(metrics, pairs, 0.0) == done


def test_time_is_bought_before_tidying_up(ab: Run, tree: FakeTree, clock: World) -> None:
    assert ab(*SWITCHBACK, *FIXED, "--lease", "5s").code == 0
    off = max(i for i, (path, _) in enumerate(tree.writes) if path.endswith("/enabled"))
    assert tree.writes[off:][1] == (f"{CONTROL}/lease_ms", "5000")


def test_what_somebody_changes_in_the_arms_goes_with_them(
    ab: Run, tree: FakeTree, clock: World
) -> None:
    before = read_named(tree)
    arm = f"{CONTROL}/profiles/ab-treatment/anon_order/min_available_percent"
    clock.at = [(40.0, lambda: tree.write(arm, "77"))]
    percent = f"{CONTROL}/experiment/percent"
    clock.at += [(when, lambda: tree.put(percent, "7")) for when in (41.0, 62.0)]  # the last block
    assert ab(*SWITCHBACK, *FIXED).code == 0
    assert clock.now == 64
    assert read_named(tree) == before


def test_in_the_aa_phase_points_of_the_host_have_the_control(
    ab: Run, tree: FakeTree, clock: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(POINTS, "bulk", ("stock", "fixed"))
    tree.make_stock()
    clock.states = []
    assert ab(*SWITCHBACK, "--treatment", "bulk=fixed").code == 0
    quarter = clock.states[: len(clock.states) // 4 - 8]
    assert {state["profiles/default/bulk/policy"] for state in quarter} == {"stock"}


def test_a_guard_of_a_rate_looks_at_the_last_second() -> None:
    guard = Guard.parse("vmstat.pgfault/s < 500")
    watch = Watch([guard])
    total, found = 0.0, None
    for step in range(60):  # a spike of half a second after five quiet seconds
        total += 0.1 * (1000 if 50 <= step < 56 else 10)
        found = found or watch.look(Sample(step / 10, {"vmstat.pgfault": total}, {}))
        assert found is None or step >= 50
    assert found and WINDOW_S == 1.0


def test_detect_keeps_to_its_upper_limit(ab: Run, run: Run, tree: FakeTree, clock: World) -> None:
    flip = iter(range(10**6))

    def noise() -> None:
        clock.faults += 900 * (next(flip) % 3)
        clock.at = [(clock.now + 2.3, noise)]

    clock.at = [(0.5, noise)]
    words = [*SWITCHBACK, *FIXED, "--aa-pairs", "4", "--pairs", "6", "--detect", "0.01"]
    result = ab(*words, "--json")
    assert (result.code, result.json["pairs"], result.json["blocks"]) == (0, 6, 20)


def test_the_watchdog_is_not_ended_by_a_signal(tree: FakeTree, clock: World, ab: Run) -> None:
    tree.make_unloaded()
    clock.sleep = lambda seconds: setattr(clock, "now", clock.now + seconds)  # type: ignore
    tasks: list[int] = []

    def signal_it() -> None:
        tasks.extend(children(os.getpid())[-1:])
        assert os.getsid(tasks[0]) == tasks[0]  # no terminal ends it
        assert tree.read("/proc/self/oom_score_adj") == "-1000"
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(tasks[0], number)

    moments = iter([signal_it])
    plain = clock.sleep

    def sleep(seconds: float) -> None:
        plain(seconds)
        if clock.now > 20 and (step := next(moments, None)):
            step()

    clock.sleep = sleep  # type: ignore[method-assign]
    words = ["--treatment", "hugepages-64kB/enabled=always", "--lease", "5m"]
    assert ab(*SWITCHBACK, *words).code == 0
    assert tasks


def test_the_watchdog_ignores_signals_itself(tree: FakeTree) -> None:
    """The watchdog ignores signals itself, even if its parent would die by them."""
    watchdog = Watchdog(Keeper(tree, {SIZE: "never"}), 60, lambda _: None, lambda: None)
    watchdog.ask({"check": True})  # so that it has started
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        os.kill(watchdog.pid, number)
    watchdog.ask({"go": {SIZE: "always"}})
    assert read_knobs(tree)[SIZE] == "always"
    assert watchdog.end() == ""
    assert read_knobs(tree)[SIZE] == "never"


def test_a_sample_file_with_a_hole_is_refused(ab: Run, out: object, clock: World) -> None:
    assert ab(*SWITCHBACK, *FIXED).code == 0
    lines = open(str(out)).read().splitlines(keepends=True)  # noqa: PTH123, SIM115
    assert load.__module__
    block = next(i for i, line in enumerate(lines) if '"kind": "block"' in line)
    for field, wrong, said in (
        ("began", None, "the block has no field 'began'"),
        (
            "decisions",
            {"treatment": "many"},
            "'decisions' of a block has the count 'many', which is not",
        ),
    ):
        record = json.loads(lines[block])
        if wrong is None:
            del record[field]
        else:
            record[field] = wrong
        broken = [*lines[:block], json.dumps(record) + "\n", *lines[block + 1 :]]
        with pytest.raises(Error, match=f"is not a valid record: {said}"):
            parse(broken, "samples")


def test_a_cgroup_that_goes_after_the_switch_is_lost(
    ab: Run, tree: FakeTree, clock: World, out: Path
) -> None:
    """A cgroup that is removed after the switch is lost; it may be replaced while the command runs,
    and at no other time.
    """
    tree.make_cgroup("/a")
    clock.at = [(21.0, lambda: tree.remove("/sys/fs/cgroup/a"))]
    result = ab(*SWITCHBACK, *FIXED, "--cgroup", "/a", "--at-switch", "true")
    assert (result.code, "lost: cgroup /a was removed" in result.err) == (1, True)
    assert clock.now < 24
