# SPDX-License-Identifier: GPL-2.0
"""`reset` is the emergency brake: it works whatever else is broken."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mmpolicy.host.files import Tree

from .fakes import CONTROL, DEFAULT, FakeTree, Run, read_named

POLICY = f"{DEFAULT}/anon_order/policy"
JOURNAL = "/var/lib/mmpolicy/journal.jsonl"


def other_abi(tree: FakeTree) -> None:
    """Let the module be newer than the command."""
    tree.put(f"{CONTROL}/abi", "3")


def half_a_profile(tree: FakeTree) -> None:
    """Let a profile be deleted while it is read."""
    tree.put(f"{CONTROL}/profiles/web/compact/pressure", "1")


def cut_stat(tree: FakeTree) -> None:
    """Let a bound process have an odd line in /proc."""
    tree.put("/proc/77/stat", "77 (a) S 1")
    tree.put(f"{DEFAULT}/pids", "77")


def odd_journal(tree: FakeTree) -> None:
    """Let the journal be binary."""
    tree.put(JOURNAL, b"\xff\x00[")


def no_journal(tree: FakeTree) -> None:
    """Let there be no folder for the journal."""
    tree.remove("/var/lib/mmpolicy")
    tree.put("/var/lib/mmpolicy", "a file where the folder should be")


Fault = Callable[[FakeTree], None]
FAULTS = [other_abi, half_a_profile, cut_stat, odd_journal, no_journal]


@pytest.mark.parametrize("fault", FAULTS)
def test_it_brakes(run: Run, tree: FakeTree, monkeypatch: pytest.MonkeyPatch, fault: Fault) -> None:
    """`reset` writes before it reads any file of the control tree."""
    run("set", "anon_order", "fixed")
    fault(tree)
    read: list[str] = []
    plain = Tree.read_bytes

    def look(self: Tree, path: str) -> bytes:
        read.extend([path] * (f"{CONTROL}/reset" not in dict(tree.writes[1:])))
        return plain(self, path)

    monkeypatch.setattr(Tree, "read_bytes", look)
    result = run("reset")
    assert (result.code, tree.writes[-1]) == (0, (f"{CONTROL}/reset", "1")), result.err
    assert "[stock]" in tree.read(POLICY)
    assert [path for path in read[:-1] if path.startswith(CONTROL)] == []


def test_where_nothing_is_loaded_all_is_stock(run: Run, tree: FakeTree) -> None:
    tree.make_unloaded()
    result = run("reset")
    assert (result.code, result.out) == (0, "mmpolicy: not loaded, the kernel is stock\n")
    assert run("reset", "--json").json["state"] == "stock"
    result = run("unload", "--dry-run")
    assert (result.code, result.out) == (0, "mmpolicy: was not loaded\n")


def test_the_way_without_the_command_is_in_its_help(run: Run) -> None:
    line = "echo 1 >/sys/kernel/mmpolicy/reset"
    assert line in run("--help").out
    assert line in run("reset", "--help").out


def test_revert_takes_back_all_that_the_command_had_set(run: Run, tree: FakeTree) -> None:
    tree.make_cgroup("/app.slice")
    run("profile", "create", "web")
    run("set", "anon_order", "fixed", "max_order=6", "--profile", "web")
    run("bind", "--cgroup", "/app.slice", "web")
    before = read_named(tree)
    run("reset")
    assert read_named(tree) != before
    assert run("revert").code == 0
    assert read_named(tree) == before
