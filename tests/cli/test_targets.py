# SPDX-License-Identifier: GPL-2.0
"""Processes whose memory cannot be read are refused by all verbs that take a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mmpolicy.cli import main
from mmpolicy.host.files import SPLIT
from mmpolicy.memory.trim import FEATURE

from .fakes import Clock, FakeTree, Run
from .heaps import make_collapsible, make_heap
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


def make_host(tree: FakeTree, verb: str) -> None:
    """Make a host on which a verb has all that it needs."""
    make_collapsible(tree, ["full"])
    if verb in ("bind", "stats"):
        tree.make_loaded()
    tree.put(FEATURE, "")
    tree.put(SPLIT, "")


@pytest.mark.parametrize("words", [*calls()], ids=lambda words: words[0])
@pytest.mark.parametrize("state", KINDS)
def test_a_process_without_memory(run: Run, tree: FakeTree, words: list[str], state: str) -> None:
    make_host(tree, words[0])
    flags, why = KINDS[state]
    tree.put(f"/proc/{PID}/comm", "some")
    tree.put(f"/proc/{PID}/stat", f"{PID} (some) {state} 1 0 0 0 -1 {flags} {'0 ' * 12}7 0 0")
    tree.put(f"/proc/{PID}/cgroup", "0::/")
    result = run(*words)
    lines = [f"mmpolicy: process {PID} (some) {why}", "next: ps -e lists the processes"]
    assert (result.code, result.out, result.err.splitlines()) == (2, "", lines)


@pytest.mark.parametrize("words", [*calls()], ids=lambda words: words[0])
def test_a_thread_is_no_process(run: Run, tree: FakeTree, words: list[str]) -> None:
    """The ID of a thread is refused with the same command for its process, as /proc/TID shows the
    memory of the process, and some system calls take only the process.
    """
    make_host(tree, words[0])
    for file in "comm", "stat", "cgroup", "maps":
        tree.put(f"/proc/{PID}/{file}", tree.read(f"/proc/20/{file}"))
    tree.put(f"/proc/{PID}/status", f"Name:\tpostgres\nTgid:\t20\nPid:\t{PID}")
    result = run(*words)
    first, then = result.err.splitlines()
    assert (result.code, result.out) == (2, "")
    assert first == f"mmpolicy: {PID} is a thread of process 20"
    again = [each.replace(str(PID), "20") for each in words]
    assert sorted(then.split()) == sorted(["next:", "mmpolicy", *again])


def make_headless(tree: FakeTree, threads: int) -> None:
    """Let the main thread of process 20 end, as by pthread_exit(), while other threads run."""
    stat = tree.read("/proc/20/stat")
    head, _, rest = stat.rpartition(")")
    fields = rest.split()
    ended = ["Z", *fields[1:20], "0", "0"]
    tree.put("/proc/20/stat", f"{head}) {' '.join(ended)}")
    tree.put("/proc/20/task/20/stat", tree.read("/proc/20/stat"))
    for thread in range(PID, PID + threads):
        tree.put(f"/proc/20/task/{thread}/stat", stat)
    tree.put("/proc/20/maps", "")


@pytest.mark.parametrize("words", [*calls()], ids=lambda words: words[0])
@pytest.mark.parametrize(("threads", "run_on"), [(1, "1 thread runs"), (3, "3 threads run")])
def test_a_process_whose_main_thread_has_ended(
    run: Run, tree: FakeTree, words: list[str], threads: int, run_on: str
) -> None:
    """A process whose other threads run has not ended; its memory is only seen through these."""
    make_host(tree, words[0])
    make_headless(tree, threads)
    result = run(*(each.replace(str(PID), "20") for each in words))
    first, then = result.err.splitlines()
    assert (result.code, result.out) == (3, "")
    assert first == (
        f"mmpolicy: the main thread of process 20 has ended, but {run_on}; mmpolicy cannot look "
        "at the memory of such a process by its PID"
    )
    assert then == f"next: cat /proc/20/task/{PID}/smaps_rollup shows its memory"


@pytest.mark.parametrize("verb", ["collapse", "trim"])
def test_such_a_process_of_a_service_is_told_of(run: Run, tree: FakeTree, verb: str) -> None:
    """A service is worked on without such a process, and a warning names it."""
    make_host(tree, verb)
    make_heap(tree, ["full"], pid=21)
    tree.put("/sys/fs/cgroup/db.service/cgroup.procs", "20\n21")
    make_headless(tree, 2)
    result = run(verb, "--unit", "db", "--dry-run")
    assert result.code == 0
    assert "warning: the main thread of process 20 has ended, but 2 threads run" in result.err


def test_top_counts_such_a_process(run: Run, tree: FakeTree, clock: Clock) -> None:
    """It has a row with its size, none of which was looked at."""
    clock.steps = [lambda: None] * 9
    make_host(tree, "top")
    make_heap(tree, ["full", "full"])
    tree.put("/proc/20/stat", tree.read("/proc/20/stat").replace(" 7 0 ", " 7 999999 "))
    make_headless(tree, 2)
    data = run("top", "-n", "1", "--json").json
    (row,) = [each for each in data["processes"] if each["pid"] == 20]
    assert (row["name"], row["rss_kib"], row["looked_at"]) == ("postgres", 4096, 0)
    assert row["not_looked_at_kib"] == {"any": 4096}


def test_a_process_that_has_ended_can_be_unbound(run: Run, tree: FakeTree) -> None:
    tree.make_process(PID)
    assert run("bind", "--pid", str(PID), "default").code == 0
    tree.put(f"/proc/{PID}/stat", f"{PID} (some) Z 1 0 0 0 -1 0 {'0 ' * 12}7 0 0")
    assert run("unbind", "--pid", str(PID)).code == 0
