# SPDX-License-Identifier: GPL-2.0
"""Stored, counted and reported state, exactly: at bounds, and with missing parts."""

from __future__ import annotations

import errno
import os
import signal
import stat
from types import SimpleNamespace
from typing import Any

import pytest

from mmpolicy.control import counters, experiment, journal, labels, notices
from mmpolicy.control.change import LOCK, StateChange, state_of
from mmpolicy.control.keys import LEASE, CgroupBinding, ProcessBinding, State, UnitBinding
from mmpolicy.control.manifest import Manifest
from mmpolicy.control.model import check_loaded
from mmpolicy.control.owners import Owned, lost
from mmpolicy.control.programs import SLOTS, check_available
from mmpolicy.control.prometheus import families_or_down
from mmpolicy.control.shadow import shadow_lines, shadow_of
from mmpolicy.control.state import assign, bind_unit
from mmpolicy.control.units import generate
from mmpolicy.errors import Error, Exit
from mmpolicy.host.calibration import Calibration, FaultCost
from mmpolicy.memory.holds import Holds
from mmpolicy.verbs.stats import memory_of_bound

from .fakes import CONTROL, FakeTree, Run
from .test_control import samples
from .test_host import MOUNTS, raised

# The journal


def test_a_journal_of_four_mebibytes_keeps_a_thousand_lines(tree: FakeTree) -> None:
    done = StateChange({}, {LEASE: "1"})
    journal.record(tree, "set", done)
    room = (4 << 20) - len(tree.read_bytes(journal.JOURNAL))
    rest = "x\n" * 1199
    for more, lines in ((0, 1201), (1, 1000)):
        first = "y" * (room - len(rest) - 1 + more)
        tree.put(journal.JOURNAL, f"{first}\n{rest}".encode())
        made = journal.record(tree, "set", done)
        assert made and made.number == 1
        found = tree.read_bytes(journal.JOURNAL).decode()
        assert (found.count("\n"), found.splitlines()[-1]) == (lines, made.to_json())


def test_the_highest_number_is_in_the_last_hundred_lines() -> None:
    for more, number in ((99, 9), (100, 0)):
        assert journal._last_number("\n".join(['{"number": 9}', *["{}"] * more])) == number


def test_a_line_of_the_journal_is_as_it_was(tree: FakeTree) -> None:
    """A journal survives an upgrade of the command."""
    line = (
        '{"number": 3, "time": "2026-01-02T03:04:05+00:00", "boot": "6f1c", "command": "set", '
        '"who": {"uid": 0}, "note": "", "open": false, "version": 2, '
        '"changes": [{"kind": "lease", "before": "0", "after": "5"}]}'
    )
    tree.put(journal.JOURNAL, line)
    (found,) = journal.whole_journal(tree)
    assert found.to_json() == line
    assert found.line() == "set by uid 0: lease_ms: 0 -> 5"


def test_a_change_that_goes_on_is_not_half_made(tree: FakeTree) -> None:
    begun = StateChange({LEASE: "0"}, {LEASE: "5"})
    journal.record(tree, "set", begun, is_open=True)
    with tree.locked(LOCK, "somebody"):
        assert notices.half_made(tree) is None
    told = notices.half_made(tree)
    assert told and told.line().endswith(
        "was interrupted, so a part of it may be in force: mmpolicy revert undoes that part"
    )


# Existing and missing parts


def test_how_to_go_on_without_the_module(tree: FakeTree) -> None:
    tree.remove(CONTROL)
    assert raised(check_loaded, tree).next_step == (
        "mmpolicy unload, mmpolicy load, then look at dmesg"
    )
    tree.make_unloaded()
    assert raised(check_loaded, tree).next_step == "mmpolicy load"
    with pytest.raises(Error):
        state_of(tree)
    with pytest.raises(Error):
        state_of(tree, [assign(LEASE, "1")])
    unit = UnitBinding("web.service")
    assert state_of(tree, [bind_unit(unit, "web")]) == {}
    with pytest.raises(Error):
        state_of(tree, [bind_unit(unit, "web"), assign(LEASE, "1")])


def test_counters_that_cannot_be_had(tree: FakeTree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.put("/sys/kernel/debug/mmpolicy/default/bulk/stats", "a 1\nb x\nc\nd 1 2\n")
    assert counters.read_counters(tree, "default", "bulk") == {"bulk": {"a": 1}}
    tree.remove("/sys/kernel/debug")
    hint = "mount -t debugfs none /sys/kernel/debug; the kernel needs CONFIG_DEBUG_FS"
    assert raised(counters.counted_profiles, tree).next_step == hint
    tree.make_unloaded()
    assert raised(counters.counted_profiles, tree).next_step == "mmpolicy load"

    def deny(_path: str) -> None:
        raise Error("no", Exit.DENIED, "run the command as root", errno.EACCES)

    monkeypatch.setattr(tree, "dirs", deny)
    assert raised(counters.counted_profiles, tree).next_step == "run the command as root"
    tree.make_loaded()
    assert raised(counters.counted_profiles, tree).next_step == "run the command as root"


def test_cgroups_are_looked_for_only_if_they_are_needed(
    tree: FakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.make_process(7)
    state: State = {ProcessBinding(7, 7): "web"}
    rollup = "Rss: 100 kB\nLazyFree: 30 kB"
    tree.put("/proc/7/smaps_rollup", rollup)
    tree.mount()
    assert labels.cgroups_of(tree, state) == {}
    assert memory_of_bound(tree, state, "web", Holds(tree)) == [("process 7", 1, 100, 30, 70, 0, 0)]
    assert labels.cgroups_of(tree, [CgroupBinding(1)]) == {}
    tree.remove(MOUNTS)
    tree.put(f"{MOUNTS}/x", "")
    assert raised(labels.cgroups_of, tree, [CgroupBinding(1)]).exit_code == Exit.FAILED


def test_whether_policies_in_bpf_can_be_had(tree: FakeTree) -> None:
    check_available(tree)
    tree.put(f"{SLOTS}/available", "unavailable: no BTF")
    assert raised(check_available, tree).message == "policies cannot be BPF programs here: no BTF"
    tree.remove(SLOTS)
    assert (
        raised(check_available, tree).next_step
        == "install a newer module, then mmpolicy unload, mmpolicy load"
    )


def test_bindings_that_are_not_in_force() -> None:
    """Bindings that are not in force are counted: on the host, those without an owner; for an
    owner, its own.
    """
    owned = [Owned("a", 1, "web", "/1")]
    target: State = {CgroupBinding(number): "web" for number in (1, 4, 5, 6)}
    assert lost({CgroupBinding(4): "web"}, target, owned) == {"host": 2, "a": 1}


# The end of an experiment


def test_a_run_has_a_minute_to_go_back(tree: FakeTree, monkeypatch: pytest.MonkeyPatch) -> None:
    now, told, holder = [0.0], list[Any](), ["ab run, pid 41"]

    def pause(seconds: float) -> None:
        told.append(seconds)
        now[0] += 30
        if now[0] == stop:
            holder[0] = "ab run, pid 42"

    monkeypatch.setattr(experiment, "running", lambda _tree: holder[0])
    monkeypatch.setattr(os, "kill", lambda *words: told.append(words))
    monkeypatch.setattr(experiment, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=pause))
    stop = 60
    experiment.end_it(tree)
    assert told == [(41, signal.SIGTERM), 0.1, 0.1]
    told.clear()
    stop, now[0], holder[0] = 0, 0.0, "bench, pid 43"
    error = raised(experiment.end_it, tree)
    assert error.message == "the experiment still runs after SIGTERM: bench, pid 43"
    assert (error.exit_code, error.next_step) == (9, "kill -KILL 43, then mmpolicy reset")
    assert told == [(43, signal.SIGTERM), 0.1, 0.1, 0.1]
    told.clear()
    holder[0] = ""
    experiment.end_it(tree)
    assert told == []
    way = experiment.in_the_way("x")
    assert (way.exit_code, way.message) == (
        9, "this change would end a running experiment: x",
    )  # fmt: skip


# Shadows and metrics


def test_what_is_said_of_shadows() -> None:
    assert shadow_lines({}) == shadow_lines({"bulk": {"decisions": 5}}) == []
    values = {
        "shadow_requested_order_0": 600,
        "shadow_requested_order_2": 400,
        "shadow_allocated_order_2": 110,
    }
    plain = (
        "of 1000 page faults, this policy would have avoided 290 (29 %), and it would have "
        "taken 40 pages more"
    )
    assert shadow_lines({"bulk": {}, "anon_order": values}) == [
        "", f"shadow of anon_order: {plain}",
    ]  # fmt: skip
    costs = Calibration([FaultCost(4096, 1000, 1000, 1000), FaultCost(16384, 1000, 1000, 1000)])
    assert shadow_lines({"anon_order": values}, costs)[1] == (
        f"shadow of anon_order: {plain}; "
        "the avoided faults are about 29 % of the CPU time of all these faults (0.00029 s)"
    )
    found = shadow_of(values)
    assert found and found.folios == {2: 110}
    assert found.as_data() == {
        "faults": 1000, "spared_least": 290, "spared_most": 290, "pages_least": 40,
        "pages_most": 40,
    }  # fmt: skip


def test_metrics_of_bindings_and_of_memory(run: Run, tree: FakeTree) -> None:
    for path, huge in (("/a", 4096), ("/b", 8192)):
        tree.make_cgroup(path)
        tree.put(f"/sys/fs/cgroup{path}/memory.stat", f"anon 9000\nanon_thp {huge}")
    tree.make_process(41)
    assert run("profile", "create", "web").code == 0
    for words in (["--cgroup", "/a"], ["--cgroup", "/b"], ["--pid", "41"]):
        assert run("bind", "web", *words).code == 0
    found = samples(tree)
    assert (found["bound cgroups web"], found["bound pids web"]) == (2, 1)
    assert (found["bound cgroups default"], found["bound pids default"]) == (0, 0)
    assert found["container_memory_anon_thp_bytes /a"] == 4096
    assert found["container_memory_anon_thp_bytes /b"] == 8192
    assert found["up"] == 1
    tree.make_unloaded()
    assert samples(tree)["up"] == 0
    told: list[Error] = []
    families_or_down(tree, told.append)
    assert [each.next_step for each in told] == ["mmpolicy load"]


def test_everybody_may_read_what_binds_a_unit(tree: FakeTree) -> None:
    tree.put("/etc/mmpolicy/a.toml", 'version = 1\n[profiles.web]\n[bindings]\n"web" = "web"')
    folder = "/run/systemd/generator"
    assert generate(folder, str(tree.root)) == 0
    file = tree.real(f"{folder}/web.service.d/50-mmpolicy.conf")
    assert stat.S_IMODE(file.stat().st_mode) == 0o644


def test_rates_have_one_digit() -> None:
    assert counters.rates({"p": {"a": 0}}, {"p": {"a": 1}}, 3.0) == {"p": {"a": 0.3}}


def test_a_manifest_without_a_profile() -> None:
    assert Manifest("x", [("x", "version = 1\n[profiles]\n")]).profiles() == set()


def test_the_metric_of_a_shadow_is_1(run: Run, tree: FakeTree) -> None:
    assert run("set", "anon_order", "shadow=adaptive").code == 0
    assert samples(tree)["shadow anon_order adaptive default"] == 1
