# SPDX-License-Identifier: GPL-2.0
"""States, changes and their records, piece by piece."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mmpolicy.control import journal, prometheus
from mmpolicy.control.bindings import profile_of, profile_of_cgroup
from mmpolicy.control.change import StateChange, asked_for, check_values, steps_of, undo
from mmpolicy.control.counters import histograms, rates
from mmpolicy.control.experiment import BENCH, LIVE, LOCK, RUN, declared, is_ours, live, running
from mmpolicy.control.keys import (
    CONTROL_ARM,
    ENABLED,
    LEASE,
    PERCENT,
    SEED,
    TREATMENT_ARM,
    AbsentCgroup,
    CgroupBinding,
    ExperimentFile,
    Key,
    ProcessBinding,
    Profile,
    Setting,
    State,
    UnitBinding,
    choice,
    from_record,
    to_record,
)
from mmpolicy.control.labels import json_label_of, label_of, shown, telling_keys
from mmpolicy.control.manifest import Manifest, _word, save, service_of
from mmpolicy.control.model import Control, active_of, check_abi, check_loaded, lacking
from mmpolicy.control.notices import notice_lines
from mmpolicy.control.owners import Owned, check_owner, keep_owned, lost, read_owned
from mmpolicy.control.programs import programs
from mmpolicy.control.ready import check_bpf, check_permission, verdict
from mmpolicy.control.shadow import shadow_of
from mmpolicy.control.starts import RECORD, follow_services, read_starts
from mmpolicy.control.state import (
    assign,
    bind,
    bind_unit,
    changed_keys,
    create,
    delete,
    plan,
    read_state,
    unbind,
    users_of,
    without_gone,
)
from mmpolicy.errors import Error, Exit
from mmpolicy.host.calibration import Calibration, FaultCost
from mmpolicy.host.doctor import Check, Facts
from mmpolicy.host.files import CONTROL
from mmpolicy.host.machine import Host
from mmpolicy.memory.holds import Holds
from mmpolicy.verbs.stats import memory_of_bound

from .fakes import COUNTERS, DEFAULT, FakeTree, Run
from .test_policy import put_slot

WEB = Profile("web")
POLICY, KNOB = choice("web", "anon_order"), Setting("web", "anon_order", "fixed", "max_order")
SHADOW = Setting("web", "anon_order", "", "shadow")
GROUP, PROCESS = CgroupBinding(7), ProcessBinding(41, 5)
UNIT = UnitBinding("web.service")
FULL: State = {WEB: "", POLICY: "fixed", KNOB: "3", GROUP: "web", PROCESS: "web"}


# Keys


@pytest.mark.parametrize("name", ["a" * 31, "0", "a-b_c", "default"])
def test_names_of_profiles(name: str) -> None:
    assert Profile(name).path == f"{CONTROL}/profiles/{name}"
    assert Setting(name, "p", "", "x").profile == name


@pytest.mark.parametrize(
    "name",
    ["a" * 32, "", "-a", "_a", "A", "a/b", "a.b", "none", "create", "delete", "experiment",
     "measure", "a\n"],
)  # fmt: skip
def test_names_that_no_profile_has(name: str) -> None:
    for make in (Profile, lambda name: Setting(name, "p", "", "x")):
        with pytest.raises(Error) as refused:
            make(name)
        assert refused.value.exit_code == Exit.REFUSED


@pytest.mark.parametrize("word", ["", "-a", "..", "a/b", "a b", "a\n"])
def test_words_that_no_file_has(word: str) -> None:
    for make in (
        lambda: Setting("web", word, "", "x"), lambda: Setting("web", "p", "", word),
        lambda: ExperimentFile(word),
    ):  # fmt: skip
        with pytest.raises(Error) as refused:
            make()
        assert refused.value.exit_code == Exit.USAGE


@pytest.mark.parametrize("number", [-1, True, 1.0, "1"])
def test_numbers_that_are_no_ids(number: Any) -> None:
    for make in (
        lambda: CgroupBinding(number), lambda: ProcessBinding(number, 1),
        lambda: ProcessBinding(1, number),
    ):  # fmt: skip
        with pytest.raises(Error):
            make()
    assert CgroupBinding(0).number == ProcessBinding(0, 0).start == 0


def test_settings() -> None:
    assert (POLICY.is_choice, POLICY.is_shadow, POLICY.off) == (True, False, "stock")
    assert (SHADOW.is_choice, SHADOW.is_shadow, SHADOW.off) == (False, True, "none")
    assert (KNOB.is_choice, KNOB.is_shadow, KNOB.off) == (False, False, None)
    inner = [Setting("web", "anon_order", "fixed", name) for name in ("policy", "shadow")]
    assert [each.off for each in inner] == [None, None]
    assert (KNOB.below, KNOB.inside) == ("fixed/max_order", "anon_order/fixed/max_order")
    assert KNOB.path == f"{CONTROL}/profiles/web/anon_order/fixed/max_order"
    assert KNOB.of("x") == Setting("x", "anon_order", "fixed", "max_order")


def test_keys_as_records() -> None:
    for key in (LEASE, PERCENT, WEB, KNOB, GROUP, PROCESS, UNIT):
        assert from_record(json.loads(json.dumps(to_record(key)))) == key
    for record in ({"kind": "other"}, {}, {"kind": "cgroup"}, {"kind": "cgroup", "number": "1"}):
        with pytest.raises((Error, LookupError, TypeError)):
            from_record(record)


def test_the_order_of_keys() -> None:
    """Keys are ordered by kind, then by name, and numbers as numbers."""
    keys: list[Key] = [LEASE, CgroupBinding(10), CgroupBinding(9), ProcessBinding(9, 10),
            ProcessBinding(9, 9), PERCENT, CONTROL_ARM, WEB, KNOB, POLICY, UNIT]  # fmt: skip
    assert changed_keys({}, dict.fromkeys(keys, "x")) == [
        CgroupBinding(9), CgroupBinding(10), CONTROL_ARM, PERCENT, LEASE, ProcessBinding(9, 9),
        ProcessBinding(9, 10), WEB, KNOB, POLICY, UNIT,
    ]  # fmt: skip
    assert changed_keys({WEB: ""}, {WEB: ""}) == []


def test_what_keys_are_called() -> None:
    paths = {"7": "/a"}
    assert [label_of(key, paths) for key in (GROUP, CgroupBinding(8), PROCESS, UNIT, WEB)] == [
        "cgroup /a", "cgroup 8 (gone)", "process 41", "unit web.service", "profile web",
    ]  # fmt: skip
    assert label_of(GROUP) == "cgroup 7"
    assert label_of(AbsentCgroup("/x")) == "cgroup /x (does not exist)"
    assert [label_of(key) for key in (LEASE, PERCENT, KNOB)] == [
        "lease_ms", "experiment/percent", "web/anon_order/fixed/max_order",
    ]  # fmt: skip
    assert [json_label_of(key, paths) for key in (GROUP, WEB, PROCESS)] == [
        "cgroup /a", "profile web", "process 41",
    ]  # fmt: skip
    assert [json_label_of(key, paths) for key in (KNOB, UNIT)] == [KNOB.path, UNIT.path]
    assert [shown(WEB, ""), shown(WEB, None), shown(KNOB, "3")] == ["exists", "-", "3"]


# Plans


def values(old: State, new: State) -> list[str]:
    """Return the written values, by the last name of the file."""
    return [f"{write.path.rpartition('/')[2]}={write.value}" for write in plan(old, new)]


def test_writes() -> None:
    assert [bind(GROUP, "web").value, unbind(PROCESS, "web").value] == ["7", "-41"]
    assert bind(PROCESS, "web").path == f"{WEB.path}/pids"
    assert (create("web").result, delete("web").result, unbind(GROUP, "web").result) == (
        "", None, None,
    )  # fmt: skip
    assert (bind_unit(UNIT, None).value, bind_unit(UNIT, "web").value) == ("", "web")
    assert bind_unit(UNIT, None).result is None


def test_plans() -> None:
    assert values({}, FULL) == ["create=web", "max_order=3", "policy=fixed", "cgroups=7", "pids=41"]
    assert values(FULL, {}) == ["cgroups=-7", "pids=-41", "delete=web"]
    assert values(FULL, FULL) == []
    other: State = FULL | {Profile("x"): "", GROUP: "x"}
    assert values(FULL, other) == ["create=x", "cgroups=7"]
    assert values(FULL, {**FULL, POLICY: "stock", SHADOW: "none"}) == ["policy=stock"]
    assert values({}, {POLICY: "stock", SHADOW: "none"}) == []
    assert values({LEASE: "0"}, {LEASE: "9", **FULL})[0] == "lease_ms=9"
    assert values({LEASE: "9"}, {LEASE: "0", **FULL})[-1] == "lease_ms=0"
    assert values({LEASE: "9"}, FULL)[0] == "create=web"
    assert values(FULL, FULL | {UNIT: "web"}) == ["90-web.service.toml=web"]


RUNNING: State = {CONTROL_ARM: "a", TREATMENT_ARM: "b", ENABLED: "1", PERCENT: "50", SEED: "1"}


@pytest.mark.parametrize(
    ("change", "written"),
    [
        ({PERCENT: "60"}, ["percent=60"]),
        ({SEED: "2"}, ["enabled=0", "seed=2", "enabled=1"]),
        ({ENABLED: "0"}, ["enabled=0"]),
        ({ENABLED: "0", SEED: "2"}, ["enabled=0", "seed=2"]),
        ({CONTROL_ARM: "b", TREATMENT_ARM: "a"},
         ["enabled=0", "treatment=none", "control=b", "treatment=a", "enabled=1"]),
        ({CONTROL_ARM: "none", TREATMENT_ARM: "none", ENABLED: "0"},
         ["enabled=0", "control=none", "treatment=none"]),
    ],
)  # fmt: skip
def test_plans_of_an_experiment(change: State, written: list[str]) -> None:
    assert values(RUNNING, RUNNING | change) == written
    off: State = RUNNING | {ENABLED: "0"}
    assert values(off, RUNNING) == ["enabled=1"]
    without = {key: value for key, value in RUNNING.items() if key != ENABLED}
    assert values(RUNNING, without) == []


def test_what_has_gone_is_left_out(tree: FakeTree) -> None:
    there = CgroupBinding(int(tree.make_cgroup("/a")))
    tree.make_process(41)
    start = ProcessBinding(41, 7)
    state: State = {there: "web", GROUP: "web", start: "web", PROCESS: "web", WEB: ""}
    found = without_gone(tree, {}, state)
    assert GROUP not in found
    assert PROCESS not in found
    assert {WEB, there} <= set(found)
    assert without_gone(tree, state, state) == state


# Changes


def test_what_a_change_asks_for() -> None:
    writes = [create("web"), assign(KNOB, "3"), assign(POLICY, "fixed"), bind(GROUP, "web")]
    assert asked_for({}, writes) == {WEB: "", KNOB: "3", POLICY: "fixed", GROUP: "web"}
    assert asked_for(FULL, [delete("web")]) == {GROUP: "web", PROCESS: "web"}
    assert asked_for(FULL, [unbind(GROUP, "web")]) == {
        key: value for key, value in FULL.items() if key != GROUP
    }
    steps = list(steps_of({WEB: "", GROUP: "x"}, [*writes[1:], unbind(GROUP, "web")]))
    assert [(step.now, step.wanted) for step in steps] == [
        ("-", "3"), ("stock", "fixed"), ("x", "web"), ("web", "-"),
    ]  # fmt: skip
    made = next(steps_of({}, writes))
    assert made.line() == f"{CONTROL}/profiles/create <- web  (- -> exists)"


def test_a_change_is_undone_where_nobody_else_has_been() -> None:
    done = StateChange({KNOB: "1", GROUP: "x"}, {KNOB: "2", WEB: ""})
    for now, target, conflicts in (
        ({KNOB: "2", WEB: ""}, {KNOB: "1", GROUP: "x"}, []),
        ({KNOB: "1", GROUP: "x", LEASE: "9"}, {KNOB: "1", GROUP: "x", LEASE: "9"}, []),
        ({KNOB: "3", GROUP: "y"}, {KNOB: "1", GROUP: "x"}, [GROUP, KNOB]),
    ):  # fmt: skip
        assert undo(done, now) == (target, conflicts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "good"),
    [("0", True), ("9", True), ("10", False), ("-1", False), ("many", False), ("", False),
     ("1.5", True), ("9x", True)],
)  # fmt: skip
def test_values_that_the_kernel_would_refuse(tree: FakeTree, value: str, good: bool) -> None:
    """A value that may be another spelling of a number is left to the kernel."""
    key = Setting("default", "anon_order", "fixed", "max_order")
    if good:
        check_values(tree, [assign(key, value)], lambda _write: "")
        return
    with pytest.raises(Error) as refused:
        check_values(tree, [assign(key, value)], lambda _write: "FILE:3: ")
    told = refused.value
    assert told.message.startswith(f"FILE:3: the kernel would refuse '{value}' for ")
    assert "; the range is 0..9 (" in told.message
    assert told.message.endswith("), the default is 4")
    assert told.next_step == "give a number from 0 to 9"


# The journal


def entry(number: int, before: State, after: State, **more: Any) -> journal.Entry:
    """Return a change."""
    who = {"uid": 0, "sudo uid": 7}
    done = StateChange(before, after)
    return replace(journal.Entry(number, "T", "B", "set", who, done), **more)


def test_a_change_in_words() -> None:
    made = entry(3, {KNOB: "1"}, {KNOB: "2"})
    assert made.line() == "set by uid 0, sudo uid 7: web/anon_order/fixed/max_order: 1 -> 2"
    noted = replace(made, note="loaded", done=StateChange({}, FULL))
    assert noted.told() == [
        "loaded", "cgroup 7: - -> web", "process 41: - -> web", "profile web: - -> exists",
    ]  # fmt: skip
    assert (
        replace(made, open=True, note="x").told()[0]
        == "this change was interrupted; it should have made:"
    )
    assert journal._from_json(made.to_json()) == made
    assert telling_keys(FULL, FULL | {KNOB: "9"}) == [KNOB]


@pytest.mark.parametrize(
    "wrong",
    ['{"version": 1}', "[]", "7", '{"version": 2}',
     '{"version": 2, "changes": [{"kind": "lease", "before": 1, "after": null}]}'],
)  # fmt: skip
def test_lines_that_are_damaged(tree: FakeTree, wrong: str) -> None:
    good = [entry(n, {KNOB: str(n)}, {KNOB: str(n + 1)}).to_json() for n in (1, 2)]
    tree.put(journal.JOURNAL, "\n".join([good[0], wrong, good[1]]))
    bad: list[int] = []
    found = journal.read_journal(tree, lambda number, _err: bad.append(number))
    assert ([each.number for each in found], bad) == ([1, 2], [2])
    with pytest.raises(Error) as refused:
        journal.whole_journal(tree)
    assert "journal.jsonl, is damaged in line 2: " in refused.value.message


def test_which_cut_off_lines_matter(tree: FakeTree) -> None:
    """A line that was cut off matters only if it is the last: if another line follows, it is known
    to be undone.
    """
    line = entry(1, {KNOB: "1"}, {KNOB: "2"}).to_json()
    tree.put(journal.JOURNAL, f"{line[:-5]}\n{line}")
    assert [each.number for each in journal.whole_journal(tree)] == [1]
    tree.put(journal.JOURNAL, f"{line}\n{line[:-5]}")
    with pytest.raises(Error):
        journal.whole_journal(tree)


def test_changes_together() -> None:
    changes = [StateChange({KNOB: "1"}, {KNOB: "2", WEB: ""}), StateChange({WEB: ""}, {}),
               StateChange({KNOB: "2", LEASE: "5"}, {KNOB: "3", LEASE: "6"})]  # fmt: skip
    assert journal._together(changes) == ({KNOB: "1", LEASE: "5"}, {KNOB: "3", LEASE: "6"})
    assert journal._together(changes[1:2]) == ({WEB: ""}, {})


def test_which_changes_are_the_last(tree: FakeTree) -> None:
    boot = journal.boot_of(tree)
    entries = [entry(n, {KNOB: str(n)}, {KNOB: str(n + 1)}, boot=boot) for n in (4, 5, 6)]
    entries.append(entry(7, {}, {}, note="loaded", boot="another"))
    tree.put(journal.JOURNAL, "\n".join(each.to_json() for each in entries))
    for after, numbers in ((None, [6]), (3, [4, 5, 6]), (4, [5, 6]), (5, [6])):
        chosen, together = journal.last_changes(tree, after)
        assert [each.number for each in chosen] == numbers
        assert together == ({KNOB: str(numbers[0])}, {KNOB: "7"})
    for after in (2, 8):
        with pytest.raises(Error) as refused:
            journal.last_changes(tree, after)
        assert refused.value.message == f"the journal has no change {after}"
    with pytest.raises(Error) as nothing:
        journal.last_changes(tree, 6)
    assert nothing.value.message.startswith("there is no change to take back: ")
    tree.put("/proc/sys/kernel/random/boot_id", "later")
    with pytest.raises(Error) as old:
        journal.last_changes(tree, None)
    assert old.value.message == (
        "change 6, 'set' of T, was made before the last boot, which has undone all of it but "
        "bindings of units"
    )


def test_who_made_it(tree: FakeTree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUDO_UID", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 5)
    assert journal._who(tree) == {"uid": 5}
    for login, found in (("1001", 1001), ("4294967295", None), ("x", None)):
        tree.put("/proc/self/loginuid", login)
        assert journal._who(tree).get("login uid") == found
    monkeypatch.setenv("SUDO_UID", "1000")
    assert journal._who(tree) == {"uid": 5, "sudo uid": 1000}


def test_the_next_number_is_the_highest_and_one() -> None:
    lines = ['{"number": 3}', '{"number": 9}', "{", '{"number": "x"}', "[]", '{"number": 4}']
    assert journal._last_number("\n".join(lines)) == 9
    assert journal._last_number("") == 0
    assert journal._last_number("\n".join([*lines, *['{"number": 5}'] * 95])) == 9
    assert journal._last_number("\n".join([*lines, *['{"number": 5}'] * 96])) == 5


def test_what_a_change_that_was_cut_off_has_made() -> None:
    begun = entry(1, {KNOB: "1"}, {KNOB: "2", Profile("x"): ""}, open=True)
    own = Setting("x", "anon_order", "", "policy")
    now: State = {KNOB: "1", own: "fixed", LEASE: "3"}
    assert journal.part_of(now, begun) == ({KNOB: "1"}, {KNOB: "1", own: "fixed"})


# Other programs


def test_who_runs_an_experiment(tree: FakeTree) -> None:
    assert (running(tree), live(tree), notice_lines(tree)) == ("", {}, [])
    tree.put(LIVE, '{"block": 3}')
    for who, found, told in (
        (f"{RUN}7, until", True, {"block": 3}), (f"{BENCH}7", True, {}), ("somebody", False, {}),
    ):  # fmt: skip
        with tree.locked(LOCK, who):
            assert running(tree) == (who if found else "")
            assert live(tree) == told
            assert notice_lines(tree) == [f"experiment: {who}"] * found
    with tree.locked(LOCK, f"{RUN}7"):
        for text in ("[]", "{", ""):
            tree.put(LIVE, text)
            assert live(tree) == {}


def test_what_a_run_has_of_its_own(tree: FakeTree) -> None:
    arm = Profile("ab-control")
    own: State = {arm: "", choice("ab-treatment", "anon_order"): "fixed", LEASE: "5", PERCENT: "7"}
    assert [is_ours(key) for key in (*own, WEB, KNOB, GROUP)] == [True] * 4 + [False] * 3
    now: State = own | {KNOB: "1"}
    target: State = {LEASE: "0", KNOB: "2", PERCENT: "0", WEB: ""}
    assert declared(tree, now, target) == target
    with tree.locked(LOCK, f"{RUN}7"):
        assert declared(tree, now, target) == {KNOB: "2", WEB: ""} | own
        assert declared(tree, {KNOB: "1", LEASE: "5"}, target) == target


def test_owners(tree: FakeTree) -> None:
    number = int(tree.make_cgroup("/pod"))
    mine = Owned("agent", number, "web", "/pod")
    keep_owned(tree, "agent", CgroupBinding(number), mine)
    gone = Owned("agent", number + 1, "web", "/gone")
    keep_owned(tree, "agent", CgroupBinding(number + 1), gone)
    assert read_owned(tree) == {CgroupBinding(number): mine}
    text = tree.read("/run/mmpolicy/owners/agent")
    tree.put("/run/mmpolicy/owners/agent", f"bad\n{text}\nx y z\n")
    tree.put("/run/mmpolicy/owners/No", text)
    assert read_owned(tree) == {CgroupBinding(number): mine}
    assert not Owned("agent", number + 1, "web", "/pod").lives(tree)
    moved = Owned("agent", number, "x", "/pod")
    keep_owned(tree, "agent", CgroupBinding(number), moved)
    assert list(read_owned(tree).values()) == [moved]
    keep_owned(tree, "agent", CgroupBinding(number), None)
    assert read_owned(tree) == {}
    for name in ("host", "A", "", "a/b"):
        with pytest.raises(Error):
            check_owner(name)
    assert check_owner("agent") == "agent"


def test_bindings_that_are_lost() -> None:
    owned = [Owned("a", 1, "web", "/1"), Owned("a", 2, "web", "/2"), Owned("b", 3, "web", "/3")]
    now: State = {CgroupBinding(1): "web", CgroupBinding(2): "x", CgroupBinding(4): "web"}
    target: State = {CgroupBinding(1): "x", CgroupBinding(4): "web", CgroupBinding(5): "web",
                     PROCESS: "web"}  # fmt: skip
    assert lost(now, target, owned) == {"host": 1, "a": 1, "b": 1}
    assert lost({}, {}, []) == {"host": 0}


def test_services_that_have_started_since(tree: FakeTree) -> None:
    new = CgroupBinding(int(tree.make_cgroup("/system.slice/web.service")))
    done = StateChange({UNIT: "old"}, {UNIT: "web"})
    target: State = {Profile("old"): "", UNIT: "old", new: "web"}
    now: State = {new: "web", WEB: ""}
    assert follow_services(tree, done, now, target)[new] == "old"
    assert follow_services(tree, done, {new: "other"}, target)[new] == "web"
    made = StateChange({}, {UNIT: "web"})
    assert new not in follow_services(tree, made, now, target)
    assert (
        follow_services(tree, StateChange({UNIT: "old", new: "a"}, {UNIT: "web"}), now, target)[new]
        == "web"
    )
    tree.put(f"{RECORD}.old", "T 5 web /a b\nbad\nT x web /c")
    tree.put(RECORD, f"T {new.number} web /system.slice/web.service")
    assert [each.cgroup for each in read_starts(tree)] == [5, new.number]
    assert read_starts(tree)[0].path == "/a b"
    assert new not in follow_services(tree, StateChange({}, {}), now, target)
    kept: State = target | {WEB: ""}
    assert follow_services(tree, StateChange({}, {}), now, kept)[new] == "web"


@pytest.mark.parametrize(
    ("given", "unit"),
    [
        ("web", "web.service"), ("web.service", "web.service"), ("a@b-1", "a@b-1.service"),
        ("/system.slice/web.service", "web.service"), ("/a.slice/b.slice/web", "web.service"),
        ("web.slice", None), ("web.socket", None), ("x.scope", None),
        ("/user.slice/u.service/web.service", None), ("/a.scope/web.service", None), ("/", None),
        ("a b", None), ("", None),
    ],
)  # fmt: skip
def test_names_of_services(given: str, unit: str | None) -> None:
    assert service_of(given) == unit


def test_policies_in_slots(tree: FakeTree) -> None:
    for slot, name in enumerate(("b", "", "a")):
        put_slot(tree, slot, name, "I give up" if name == "a" else "")
    a, b = programs(tree)
    assert [(each.name, each.error) for each in (a, b)] == [("a", "I give up"), ("b", "")]
    state: State = {WEB: "", Profile("x"): "", POLICY: "a", choice("x", "anon_order"): "stock"}
    assert users_of(state, a) == ["web"]
    assert users_of(state, b) == users_of(state, a._replace(point="compact")) == []
    assert users_of(state | {Setting("x", "anon_order", "", "shadow"): "a"}, a) == ["web", "x"]
    assert users_of({WEB: "", choice("web", "bulk"): "a"}, a) == []
    assert users_of({WEB: "", Setting("web", "anon_order", "p", "k"): "a"}, a) == []
    tree.remove(f"{CONTROL}/bpf")
    assert programs(tree) == []


# The tree of the module


@pytest.mark.parametrize("text", ["stock fixed", "[stock] [fixed]", ""])
def test_a_file_that_marks_no_policy(tree: FakeTree, text: str) -> None:
    path = f"{DEFAULT}/anon_order/policy"
    tree.put(path, text)
    with pytest.raises(Error) as refused:
        active_of(tree, path)
    assert f"does not mark one active policy by [ ]: '{text}'" in refused.value.message
    tree.put(path, "stock [fixed] x")
    assert active_of(tree, path) == ("fixed", ("stock", "fixed", "x"))


def test_states_of_the_module(tree: FakeTree) -> None:
    assert (check_loaded(tree), check_abi(tree)) == ("stock", "2")
    tree.put(f"{CONTROL}/abi", "3")
    with pytest.raises(Error) as other:
        Control(tree)
    assert other.value.message.endswith("/abi), and this command knows 2")
    tree.remove(CONTROL)
    with pytest.raises(Error) as broken:
        check_loaded(tree)
    assert broken.value.message.endswith("the module is loaded, but broken")
    tree.make_unloaded()
    with pytest.raises(Error) as unloaded:
        check_loaded(tree)
    assert (unloaded.value.next_step, unloaded.value.exit_code) == ("mmpolicy load", Exit.LACKING)


def test_why_a_point_is_lacking(tree: FakeTree) -> None:
    assert lacking(tree, "anon_order") == lacking(tree, "anon_order", "fixed") == ""
    assert lacking(tree, "other") == ""
    tree.put(f"{CONTROL}/points/anon_order", "unavailable: a: b")
    tree.put(f"{CONTROL}/policies/anon_order/fixed", "unavailable: c")
    assert lacking(tree, "anon_order") == "a: b"
    assert lacking(tree, "anon_order", "fixed") == "c"


def test_whose_profile_decides(tree: FakeTree) -> None:
    for path in ("/a", "/a/b", "/c"):
        tree.make_cgroup(path)
    tree.make_process(41)
    start = ProcessBinding(41, 7)
    tree.put("/proc/41/cgroup", "0::/a/b")
    group = CgroupBinding(tree.inode("/sys/fs/cgroup", "a"))
    assert profile_of(tree, {start: "own", group: "web"}, 41) == "own"
    assert profile_of(tree, {group: "web"}, 41) == "web"
    assert profile_of(tree, {}, 41) == "default"
    root = CgroupBinding(tree.inode("/sys/fs/cgroup"))
    assert profile_of_cgroup(tree, {group: "web", root: "all"}, "/c") == "all"
    assert profile_of_cgroup(tree, {group: "web"}, "/c") == "default"
    assert profile_of_cgroup(tree, {group: "web", root: "all"}, "/a/b") == "web"
    tree.put("/sys/fs/cgroup/a/cgroup.procs", "41")
    tree.put("/proc/41/smaps_rollup", "Rss: 8 kB\nLazyFree: 3 kB")
    bound: State = {group: "web", CgroupBinding(1): "web", start: "web", root: "x"}
    assert [each[:4] for each in memory_of_bound(tree, bound, "web", Holds(tree))] == [
        ("cgroup /a", 1, 8, 3), ("process 41", 1, 8, 3),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("failed", "code"),
    [([], 0), (["permission"], 4), (["abi"], 3), (["permission", "abi"], 3)],
)
def test_the_verdict_of_doctor(failed: list[str], code: int) -> None:
    names = ("permission", "abi", "other")
    checks = [Check(name, "fail" if name in failed else "warn", "") for name in names]
    assert verdict(checks) == code


def test_what_policies_in_bpf_need(tree: FakeTree) -> None:
    tree.put("/proc/sys/net/core/bpf_jit_enable", "1")
    mounts = f"{tree.read('/proc/self/mounts')}\nx /sys/fs/bpf bpf rw 0 0"
    tree.put("/proc/self/mounts", mounts)
    lockdown = "/sys/kernel/security/lockdown"
    tree.put(lockdown, "none [integrity] confidentiality")

    def told() -> Check:
        return check_bpf(Facts(Host(tree)))

    assert (told().status, told().detail) == (
        "ok", "policies can be BPF programs; loaded: none",
    )  # fmt: skip
    tree.put(lockdown, "none integrity [confidentiality]")
    tree.put("/proc/sys/net/core/bpf_jit_enable", "0")
    tree.put("/proc/self/mounts", "x /sys/fs/bpf tmpfs rw")
    found = told()
    assert found.status == "warn"
    assert len(found.detail.split("; ")) == len(found.next_step.split("; ")) == 3
    tree.put(f"{CONTROL}/bpf/available", "unavailable: no JIT")
    assert told().detail == "policies cannot be BPF programs here: no JIT"
    tree.remove(f"{CONTROL}/bpf")
    assert told().status == "-"


def test_who_may_change_anything(tree: FakeTree) -> None:
    facts = Facts(Host(tree))
    assert check_permission(facts).detail == "you may switch policies"
    tree.denied = True
    assert check_permission(facts).status == "fail"
    tree.make_unloaded()
    assert check_permission(facts).status == "fail"
    tree.denied = False
    assert check_permission(facts).detail == "you are root, and may load the module"


# Counters


def test_histograms_of_times() -> None:
    counters = {"x_ns": 5.0, "x_ns_log2_10": 3.0, "x_ns_log2_10_7": 2.0, "y_ns_log2_0": 1.0,
                "z_log2_3": 9.0}  # fmt: skip
    assert histograms(counters) == {
        "x_ns": {(1024, 2048): 3, (1024 + 7 * 128, 2048): 2}, "y_ns": {(1, 2): 1},
    }  # fmt: skip


def test_rates_of_counters() -> None:
    old, new = {"p": {"a": 10, "b": 5}}, {"p": {"a": 15, "b": 4, "c": 3}, "q": {"d": 7}}
    assert rates(old, new, 2.0) == {"p": {"a": 2.5, "b": 2, "c": 1.5}, "q": {"d": 3.5}}
    assert rates(old, {"p": {"a": 10}}, 3.0) == {"p": {"a": 0}}


def test_what_a_shadow_would_save() -> None:
    found = shadow_of({"shadow_requested_order_0": 100, "shadow_requested_order_4": 900,
                       "shadow_allocated_order_4": 100, "shadow_reason_no_room": 50})  # fmt: skip
    assert found
    assert (found.faults, found.spared_least, found.spared_most) == (1000, 800, 850)
    assert (found.pages_least, found.pages_most) == (650, 700)
    costs = Calibration([FaultCost(4096, 1000, 1000, 1000), FaultCost(65536, 4000, 4000, 4000)])
    (least, low), (most, high) = found.saved(costs)
    assert (least, most) == pytest.approx((5e-4, 5.5e-4))
    assert (low, high) == pytest.approx((0.5, 0.55))
    assert found.text(costs).endswith(
        "; the avoided faults are about 50 to 55 % of the CPU time of all these faults "
        "(0.0005 to 0.00055 s)"
    )
    small = shadow_of({"shadow_requested_order_2": 10, "shadow_allocated_order_0": 4})
    assert small
    assert (small.spared_least, small.pages_most) == (6, 0)


def samples(tree: FakeTree) -> dict[str, Any]:
    """Return the values of metrics, by name and labels."""
    text = prometheus.text(prometheus.families_or_down(tree))
    return {
        sample.name.removeprefix("mmpolicy_")
        + "".join(f" {value}" for _, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
        for sample in family.samples
    }


def test_metrics_of_a_run(tree: FakeTree) -> None:
    at = {"block": 3, "blocks": 9, "phase": "ab", "arm": "control", "measured": False}
    tree.put(LIVE, json.dumps({**at, "guards": {"g < 5": 4.5, "h < 1": None}}))
    assert not [name for name in samples(tree) if name.startswith("experiment_block")]
    with tree.locked(LOCK, f"{RUN}7"):
        found = samples(tree)
    assert found["experiment_running"] == 1
    assert (found["experiment_block"], found["experiment_blocks"]) == (3, 9)
    assert (found["experiment_phase ab"], found["experiment_arm control"]) == (1, 1)
    assert (found["experiment_measured"], found["experiment_guard g < 5"]) == (0, 4.5)
    assert "experiment_guard h < 1" not in found


def test_metrics_of_settings(run: Run, tree: FakeTree) -> None:
    tree.make_cgroup("/a")
    tree.make_process(41)
    for words in ("profile create web", "set anon_order fixed max_order=7 --profile web",
                  "bind --cgroup /a web", "bind --pid 41 web"):  # fmt: skip
        assert run(*words.split()).code == 0
    tree.put(f"{CONTROL}/state", "odd")
    found = samples(tree)
    assert (found["state odd"], found["state stock"], found["state active"]) == (1, 0, 0)
    assert found["policy anon_order fixed web"] == 1
    assert found["policy anon_order stock default"] == 1
    assert found["knob max_order anon_order fixed web"] == 7
    assert (found["bound cgroups web"], found["bound pids web"], found["bound pids default"]) == (
        1, 1, 0,
    )  # fmt: skip
    assert found["binding_info /a web"] == 1
    assert (found["up"], found["counters_up"], found["lease_seconds"]) == (1, 1, 0)
    assert not [name for name in found if name.startswith("shadow")]
    assert found["bindings_lost host"] == 0
    assert "drift" not in found


def test_metrics_of_times(tree: FakeTree) -> None:
    tree.put(f"{COUNTERS}/bulk/stats", "w_ns 4000\nw_ns_log2_9 1\nw_ns_log2_10_1 2\nw_ns_log2_11 4")
    tree.put(f"{COUNTERS}/anon_order/stats", "w_ns_log2_9_0 3\nw_ns_log2_9_1 1\nn 8")
    found = samples(tree)
    bulk = {name: value for name, value in found.items() if "bulk" in name and "w_sec" in name}
    assert bulk == {
        "w_seconds_bucket 1.024e-06 bulk default": 1, "w_seconds_bucket 2.048e-06 bulk default": 3,
        "w_seconds_bucket +Inf bulk default": 7, "w_seconds_count bulk default": 7,
        "w_seconds_sum bulk default": pytest.approx(4e-6),
    }  # fmt: skip
    assert found["w_seconds_bucket +Inf anon_order default"] == 4
    assert found["w_seconds_count anon_order default"] == 4
    assert "w_seconds_sum anon_order default" not in found
    assert found["events_total n anon_order default"] == 8


# Manifests


def test_words_of_manifests() -> None:
    assert [_word(value) for value in (True, False, 3, "x")] == ["1", "0", "3", "x"]
    bad: list[Any] = [1.5, [], {}, None]
    for value in bad:
        with pytest.raises(Error) as refused:
            _word(value)
        assert refused.value.exit_code == Exit.FAILED


def test_several_files_are_one_manifest(tree: FakeTree) -> None:
    tree.make_cgroup("/a")
    one = 'version = 1\nlease_ms = 5\n[bindings]\n"/a" = "web"\n[profiles.web]\n'
    two = "version = 1\nlease_ms = 7\n[profiles.x.anon_order]\npolicy = 'fixed'\n"
    files = [("one", one), ("two", two)]
    manifest = Manifest("m", files)
    assert manifest.profiles() == {"web", "x"}
    target = manifest.target(tree, read_state(tree))
    group = CgroupBinding(tree.inode("/sys/fs/cgroup", "a"))
    assert (target[LEASE], target[group], target[choice("x", "anon_order")]) == (
        "7",
        "web",
        "fixed",
    )
    assert manifest.where(assign(LEASE, "7")) == "two:2: "
    assert manifest.where(bind(group, "web")) == "one:4: "
    assert manifest.where(assign(choice("x", "anon_order"), "fixed")) == "two:4: "
    assert manifest.where(create("default")) == "m: "
    assert (manifest.without("one: bad") or manifest).files == files[1:]
    assert manifest.without("three: bad") is None
    again = Manifest("again", [("again", manifest.text())])
    assert again.target(tree, read_state(tree)) == target
    told: list[Error] = []
    assert manifest.bindings(told.append) == {"/a": "web"}
    bad = Manifest("b", [("b", 'version = 1\n[bindings]\n"/a" = 1.5\n"/c" = "web"')])
    assert bad.bindings(told.append) == {"/c": "web"}
    assert [each.message[:5] for each in told] == ["b:3: "]
    empty = Manifest("none", [])
    assert empty.target(tree, read_state(tree)) == read_state(tree)


def test_what_a_manifest_does_not_name(tree: FakeTree, run: Run) -> None:
    """What a manifest does not name is deleted (profiles), stock (policies) or off (shadows);
    knobs, processes and units stay.
    """
    tree.make_process(41)
    tree.make_cgroup("/a")
    for words in ("set anon_order fixed max_order=7 shadow=adaptive", "profile create web",
                  "bind --pid 41 web", "bind --cgroup /a web", "lease 9"):  # fmt: skip
        assert run(*words.split()).code == 0
    now = read_state(tree)
    target = Manifest("m", [("m", "version = 1")]).target(tree, now)
    assert target[choice("default", "anon_order")] == "stock"
    assert target[Setting("default", "anon_order", "", "shadow")] == "none"
    assert target[Setting("default", "anon_order", "fixed", "max_order")] == "7"
    assert target[LEASE] == target[ENABLED] == "0"
    assert WEB not in target
    assert [key for key in target if isinstance(key, CgroupBinding)] == []
    assert [value for key, value in target.items() if isinstance(key, ProcessBinding)] == ["web"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("version = 2", "m:1: "),
        ("version = 1\nleese_ms = 3", "m:2: there is no manifest entry 'leese_ms'"),
        ("version = 1\n[profiles.web]\nanon_order = 3", "m:3: "),
        ("version = 1\n[bindings]\n'/a' = 'nobody'", "m:3: there is no profile 'nobody'"),
        (
            "version = 1\n[profiles.web.anon_order]\npolicy = 'x'",
            "m:3: there is no policy of anon_order 'x'",
        ),
        (
            "version = 1\n[profiles.web.anon_order]\nx = 1",
            "m:3: there is no setting of anon_order 'x'",
        ),
        ("version = 1\n[profiles.web.x]\npolicy = 'y'", "m:3: there is no point 'x'"),
        (
            "version = 1\n[profiles.None.anon_order]\npolicy = 'fixed'",
            "m:3: 'None' is not a valid name",
        ),
        ("version = 1\nlease_ms = 1.5", "m:2: 1.5 is neither a number nor a text"),
    ],
)
def test_entries_that_are_refused(tree: FakeTree, text: str, said: str) -> None:
    with pytest.raises(Error) as refused:
        Manifest("m", [("m", text)]).target(tree, read_state(tree))
    assert refused.value.message.startswith(said)
    assert refused.value.exit_code == Exit.FAILED


def test_what_is_saved(tree: FakeTree) -> None:
    number = tree.make_cgroup("/a")
    state: State = {WEB: "", POLICY: "fixed", KNOB: "3", CgroupBinding(int(number)): "web",
                    CgroupBinding(1): "web", LEASE: "9", PROCESS: "web", PERCENT: "5",
                    ExperimentFile("cgroup"): number, TREATMENT_ARM: "web"}  # fmt: skip
    text = save(tree, state)
    assert "lease" not in text
    assert '"/a" = "web"' in text
    assert "max_order = 3\n" in text
    assert 'cgroup = "/a"' in text
    assert "percent = 5\n" in text
    assert save(tree, {WEB: "", ExperimentFile("cgroup"): "0"}) == (
        "version = 1\n\n[profiles.web]\n\n[experiment]\ncgroup = 0\n"
    )
