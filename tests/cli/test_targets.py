# SPDX-License-Identifier: GPL-2.0
"""Processes that have no memory are refused by all verbs that take a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mmpolicy.cli import main
from mmpolicy.host.files import SPLIT
from mmpolicy.memory.trim import FEATURE

from .fakes import FakeTree, Run
from .heaps import make_collapsible
from .test_look import walk

PID = 77
OTHERS = {"unbind"}  # a process that has ended may still be bound
WORDS = {"bind": ["default"]}  # arguments that the verb needs
KINDS = {
    "S": (2097216, "is a kernel thread, which has no memory of its own"),
    "Z": (4227084, "has ended, and its parent has not waited for it yet (a zombie)"),
}


def calls() -> Iterator[list[str]]:
    """Yield a call of each verb that takes the number of a process."""
    for command in walk(main):
        name = str(command.name)
        for each in command.params:
            words = {"--pid": ["--pid"], "pid": [], "given": []}.get(each.opts[0])
            if words is not None and name not in OTHERS:
                yield [name, *words, str(PID), *WORDS.get(name, [])]


def test_all_verbs_are_found() -> None:
    found = {words[0] for words in calls()}
    some = {"show", "stats", "explain", "recommend", "map", "trim", "collapse", "maintain", "bind"}
    assert found >= some


@pytest.mark.parametrize("words", [*calls()], ids=lambda words: words[0])
@pytest.mark.parametrize("state", KINDS)
def test_a_process_without_memory(run: Run, tree: FakeTree, words: list[str], state: str) -> None:
    make_collapsible(tree, ["full"])
    if words[0] in ("bind", "stats"):
        tree.make_loaded()
    tree.put(FEATURE, "")
    tree.put(SPLIT, "")
    flags, why = KINDS[state]
    tree.put(f"/proc/{PID}/comm", "some")
    tree.put(f"/proc/{PID}/stat", f"{PID} (some) {state} 1 0 0 0 -1 {flags} {'0 ' * 12}7 0 0")
    tree.put(f"/proc/{PID}/cgroup", "0::/")
    result = run(*words)
    lines = [f"mmpolicy: process {PID} (some) {why}", "next: ps -e lists the processes"]
    assert (result.code, result.out, result.err.splitlines()) == (2, "", lines)


def test_a_process_that_has_ended_can_be_unbound(run: Run, tree: FakeTree) -> None:
    tree.make_process(PID)
    assert run("bind", "--pid", str(PID), "default").code == 0
    tree.put(f"/proc/{PID}/stat", f"{PID} (some) Z 1 0 0 0 -1 0 {'0 ' * 12}7 0 0")
    assert run("unbind", "--pid", str(PID)).code == 0
