# SPDX-License-Identifier: GPL-2.0
"""Bindings of cgroups and processes to profiles: which profile decides, as programs show by the
folios they get, and what a binding costs.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import pytest

from bench import bindings
from lab.counting import Results
from lab.guest import Guest

from .conftest import Machines
from .tools import (
    RMDIR,
    ROOT,
    TOP,
    Pages,
    Poke,
    folios,
    histograms,
    must,
    ops_command,
    poke,
    refused,
)

PROFILES = f"{ROOT}/profiles"
DENSE = "map 4096 touch 0 4096 folios 0 4096"
SMALL: Pages = {0: 4096}
NEW_PROCESS = f"sh -c {shlex.quote(ops_command(DENSE))}"


@pytest.fixture
def two(loaded: Guest) -> Iterator[Guest]:
    """Yield a guest with the profiles a (policy `adaptive`), b (`never`) and c (`fixed`, 64 kB),
    and with the cgroups t/a and t/b, which are not bound to any profile.
    """
    script = "for name in a b c; do echo $name >create || exit; done; "
    script += "echo adaptive >a/anon_order/policy && echo never >b/anon_order/policy"
    script += " && echo fixed >c/anon_order/policy"
    must(loaded, f"mkdir -p {TOP}/a {TOP}/b && cd {PROFILES} && {script}")
    yield loaded
    must(loaded, f"echo 1 >{ROOT}/reset; {RMDIR}")


def bind(profile: str, *cgroups: str) -> str:
    """Return shell commands that bind cgroups below TOP to a profile."""
    lines = [f"stat -c %i {TOP}/{cgroup} >{PROFILES}/{profile}/cgroups" for cgroup in cgroups]
    return " && ".join(lines)


def enter(cgroup: str, process: str = "$$") -> str:
    """Return a shell command that moves a process into a cgroup; process: its PID."""
    return f"echo {process} >{TOP}/{cgroup}/cgroup.procs"


def inside(guest: Guest, cgroup: str, words: str = DENSE, *shell: str) -> list[Pages]:
    """Run ops in a cgroup; return the folios that each "folios" has printed."""
    command = f"{enter(cgroup)} && exec {ops_command(words, *shell)}"
    return histograms(must(guest, f"sh -c {shlex.quote(command)}"))


def is_large(found: Pages) -> bool:
    """Return whether nearly all of 4096 pages are in folios of 64 kB, as `adaptive` gives them to a
    program that uses its memory densely.
    """
    return found.get(4, 0) >= 4096 - 64 and sum(found.values()) == 4096


def bound(guest: Guest, profile: str, kind: str) -> set[int]:
    """Return the ids of the cgroups or processes that are bound to a profile; kind: "cgroups" or
    "pids".
    """
    return {int(word) for word in must(guest, f"cat {PROFILES}/{profile}/{kind}").split()}


# Cgroups


def test_two_cgroups(two: Guest) -> None:
    """A program in a bound cgroup gets the folios of the profile that the cgroup is bound to; a
    program elsewhere gets folios as at stock.
    """
    must(two, bind("a", "a") + " && " + bind("b", "b"))
    for _ in range(2):
        assert is_large(inside(two, "a")[0])
        assert inside(two, "b") == [SMALL]
        assert folios(two, DENSE) == [SMALL]
    must(two, bind("c", "b"))  # rebound from one profile to another
    assert inside(two, "b") == [{4: 4096}]
    assert not bound(two, "b", "cgroups")


def test_counters_are_of_the_profile(two: Guest) -> None:
    """A decision is counted in the profile whose policy has made it."""
    must(two, bind("a", "a") + " && " + bind("c", "b"))
    inside(two, "a")
    inside(two, "b")
    debug = "/sys/kernel/debug/mmpolicy"
    got = {
        p: int(must(two, f"sed -n 's/^requested_order_4 //p' {debug}/{p}/anon_order/stats"))
        for p in "abc"
    }
    assert got["a"] >= 252
    assert got["b"] == 0
    assert got["c"] >= 256


def test_a_task_that_moves(two: Guest) -> None:
    """When a task moves to another cgroup and back, its faults are decided by the policy of the
    cgroup that it is in, from the next fault on.
    """
    must(two, bind("c", "a") + " && " + bind("b", "b"))
    words = f"{DENSE} sh {DENSE} sh {DENSE}"
    moves = [enter(cgroup, "$PPID") for cgroup in ("b", "a")]
    assert inside(two, "a", words, *moves) == [{4: 4096}, SMALL, {4: 4096}]


def test_the_nearest_bound_ancestor_decides(two: Guest) -> None:
    """For a process, the binding of the nearest bound ancestor cgroup decides. Children inherit it,
    also those created later, until they are bound themselves.
    """
    must(two, f"mkdir -p {TOP}/a/x/y && {bind('c', 'a')}")
    assert inside(two, "a/x/y") == [{4: 4096}]
    must(two, f"mkdir {TOP}/a/later")
    assert inside(two, "a/later") == [{4: 4096}]
    must(two, bind("b", "a/x"))
    assert inside(two, "a/x/y") == inside(two, "a/x") == [SMALL]
    assert inside(two, "a") == [{4: 4096}]
    must(two, f"echo -$(stat -c %i {TOP}/a/x) >{PROFILES}/b/cgroups")
    assert inside(two, "a/x/y") == [{4: 4096}]
    must(two, f"echo -$(stat -c %i {TOP}/a) >{PROFILES}/c/cgroups")
    assert inside(two, "a/x/y") == [SMALL]


def test_a_removed_cgroup_is_forgotten(two: Guest) -> None:
    """The binding of a cgroup ends when the cgroup is removed; a new cgroup of the same name is not
    bound.
    """
    must(two, bind("c", "a"))
    must(two, f"rmdir {TOP}/a && mkdir {TOP}/a")
    assert not bound(two, "c", "cgroups")
    assert inside(two, "a") == [SMALL]
    must(two, f"echo c >{PROFILES}/delete")


def test_many_cgroups(two: Guest) -> None:
    """A thousand cgroups can be bound to two profiles. All of them are listed, and in each the
    policy of its profile decides.
    """
    make = f"cd {TOP}/a && mkdir $(seq 1000) && stat -c %i $(seq 1000)"
    ids = must(two, make).split()
    halves = {"c": ids[:500], "b": ids[500:]}
    for profile, some in halves.items():
        must(two, f"for i in {' '.join(some)}; do echo $i >{PROFILES}/{profile}/cgroups; done")
        assert bound(two, profile, "cgroups") == {*map(int, some)}
    for number in (1, 250, 500):
        assert inside(two, f"a/{number}") == [{4: 4096}]
    for number in (501, 750, 1000):
        assert inside(two, f"a/{number}") == [SMALL]
    must(two, f"cd {TOP}/a && rmdir $(seq 1000)")
    assert not bound(two, "b", "cgroups") | bound(two, "c", "cgroups")


# Processes


def test_a_process(two: Guest) -> None:
    """If both a process and its cgroup are bound, the binding of the process decides. exec() keeps
    this binding, and the end of the process ends it.
    """
    must(two, bind("b", "a"))
    mine = f"echo $PPID >{PROFILES}/c/pids"
    undo = f"echo -$PPID >{PROFILES}/c/pids"
    assert inside(two, "a", f"{DENSE} sh {DENSE} sh {DENSE}", mine, undo) == [
        SMALL,
        {4: 4096},
        SMALL,
    ]
    command = f"echo $$ >{PROFILES}/c/pids && exec {ops_command(DENSE)}"
    assert histograms(must(two, f"sh -c {shlex.quote(command)}")) == [{4: 4096}]
    assert not bound(two, "c", "pids")
    must(two, f"echo c >{PROFILES}/delete")


def test_children_of_a_process(two: Guest) -> None:
    """A child process gets the binding that its parent has at the fork, and keeps it after the end
    of the parent.
    """
    start = f"echo $$ >{PROFILES}/c/pids; sleep 100 & sh -c 'sleep 100 & exit'; sleep 100 & exit"
    must(two, f"sh -c {shlex.quote(start)}")
    assert len(bound(two, "c", "pids")) == 3
    must(two, "busybox killall sleep")
    must(two, f"while [ -s {PROFILES}/c/pids ]; do sleep 0.05; done", 20)
    child = f"echo $$ >{PROFILES}/c/pids; {NEW_PROCESS}; echo -$$ >{PROFILES}/c/pids; {NEW_PROCESS}"
    assert histograms(must(two, f"sh -c {shlex.quote(child)}")) == [{4: 4096}, SMALL]


def test_refused_bindings(two: Guest) -> None:
    """A binding of an unknown id or of a kernel thread is refused with an error, and changes no
    other binding.
    """
    must(two, bind("c", "a"))
    pokes = [
        Poke(f"{PROFILES}/c/cgroups", "999999999", 1, ("ENOENT",)),
        Poke(f"{PROFILES}/c/cgroups", "-999999999", 1, ("ENOENT",)),
        Poke(
            f"{PROFILES}/b/cgroups", f"-{must(two, f'stat -c %i {TOP}/a').strip()}", 1, ("ENOENT",)
        ),
        Poke(f"{PROFILES}/c/pids", "2", 1, ("EINVAL",)),
        Poke(f"{PROFILES}/c/pids", "4000000", 1, ("ESRCH",)),
        Poke(f"{PROFILES}/c/pids", "-1", 1, ("ENOENT",)),
        *(
            Poke(f"{PROFILES}/c/{name}", text, 1, ("EINVAL", "ERANGE"))
            for name in ("cgroups", "pids")
            for text in ("x", "--1", "- 1", "1 2", "99999999999999999999", "1" * 5000)
        ),
    ]
    refused(poke(two, pokes))


# Cost


@pytest.fixture(scope="module")
def results(all_machines: Machines) -> Results:
    """Return how many instructions a fault takes, by the cgroup that the task is in and by what is
    bound.
    """
    all_machines.end()
    return bindings.run(quick=True)


def test_depth_costs_nothing(results: Results) -> None:
    """A fault of a task three levels below the bound cgroup costs no more than one level
    below it.
    """
    ratio = results.ratio("three levels up", "its parent", bindings.CASE, "ticks")
    assert ratio <= 1.005, bindings.report(results)


def test_number_costs_nothing(results: Results) -> None:
    """With a thousand bound cgroups, a fault costs no more than with one bound cgroup."""
    ratio = results.ratio("1,000 cgroups", "one cgroup", bindings.CASE, "ticks")
    assert ratio <= 1.01, bindings.report(results)


@pytest.mark.parametrize("arm", ("one cgroup", "its parent"))
def test_a_binding_is_cheap(results: Results, arm: str) -> None:
    """A fault of a bound process costs little more than under the same policy in the profile
    "default".
    """
    ratio = results.ratio(arm, bindings.BASE, bindings.CASE, "ticks")
    assert ratio <= 1.008, bindings.report(results)


@pytest.mark.parametrize(("arm", "limit"), [("experiment", 1.012), ("timed", 1.035)])
def test_an_experiment_is_cheap(results: Results, arm: str, limit: float) -> None:
    """A fault of a process that takes part in an experiment as a unit costs little more than
    without one, also while the module times faults.
    """
    ratio = results.ratio(arm, bindings.BASE, bindings.CASE, "ticks")
    assert ratio <= limit, bindings.report(results)
