# SPDX-License-Identifier: GPL-2.0
"""`set`, `reset`, `unload` and `status` while the kernel attaches or detaches hooks."""

from __future__ import annotations

import pytest

from .fakes import CONTROL, Clock, FakeTree, Run

BUSY = "delayed by 412 dd"
COMMANDS = {
    "attaching": ("set", "anon_order", "fixed"),
    "detaching": ("reset",),
}


@pytest.fixture
def slow(tree: FakeTree, clock: Clock) -> FakeTree:
    """A host on which a task delays the effect of writes."""
    tree.put(f"{CONTROL}/blockers", "412 dd")
    tree.put(f"{CONTROL}/point_error", "")
    clock.steps = [lambda: None] * 1000
    return tree


@pytest.mark.parametrize("state", COMMANDS)
def test_it_waits_until_the_kernel_is_done(
    run: Run, slow: FakeTree, clock: Clock, state: str
) -> None:
    """`set` waits until the kernel has attached the hooks; a short wait is silent, a longer one
    prints its reason.
    """
    slow.under_way = state
    clock.steps[4] = lambda: setattr(slow, "under_way", "")
    assert run(*COMMANDS[state]).err == ""
    slow.under_way, clock.steps[40] = state, lambda: setattr(slow, "under_way", "")
    assert (
        run(*COMMANDS[state]).err
        == f"waiting until the kernel has patched its functions: {state}, {BUSY}\n"
    )


@pytest.mark.parametrize("state", COMMANDS)
def test_it_does_not_wait_for_ever(run: Run, slow: FakeTree, clock: Clock, state: str) -> None:
    """`set` does not wait for ever: the wait has a time limit, or can be left out.

    The setting is stored, so this is no failure.
    """
    slow.under_way = state
    note = (
        f"note: the hooks in the kernel are {state}, {BUSY}; mmpolicy status shows when this "
        "is done"
    )
    result = run(*COMMANDS[state], "--no-wait")
    assert (result.code, result.err.strip(), clock.now) == (0, note, 0)
    result = run(*COMMANDS[state])
    assert (result.code, result.err.splitlines()[-1]) == (0, note)
    assert 30 <= clock.now < 31


def test_an_error_that_comes_later(run: Run, slow: FakeTree) -> None:
    """If the kernel refuses after the write, `status` says so too."""
    reason = "anon_order: another user of ftrace has one of its functions"
    slow.put(f"{CONTROL}/point_error", reason)
    assert (
        run("set", "anon_order", "fixed").err
        == f"warning: the module has set the policy back to stock: {reason}\n"
    )
    assert f"the module has set a policy back to stock by itself: {reason}" in run("status").out


def test_status_says_who_holds_it_up(run: Run, slow: FakeTree) -> None:
    """`status` names a few of the tasks that delay the kernel; without root, even their existence
    is unknown.
    """
    slow.under_way = "detaching"
    assert run("status").out.splitlines()[0] == f"state: detaching, {BUSY}"
    slow.put(f"{CONTROL}/blockers", "\n".join(f"{n} dd" for n in range(9)))
    told = "state: detaching, delayed by 0 dd, 1 dd, 2 dd, 3 dd, 4 dd and 4 more"
    assert run("status").out.splitlines()[0] == told
    assert run("status", "--json").json["blockers"][8] == "8 dd"
    slow.remove(f"{CONTROL}/blockers")
    assert run("status").out.splitlines()[0] == "state: detaching"


def test_unload_while_a_task_holds_it_up(run: Run, slow: FakeTree) -> None:
    """`unload` does not wait without a limit for a task: all is stock, and the module stays."""
    run("set", "anon_order", "fixed")
    slow.under_way = "detaching"
    result = run("unload")
    assert result.code == 5
    assert (
        "the module could not be unloaded yet; all policies are at stock, and the hooks "
        f"are detaching, {BUSY}"
    ) in result.err
    assert "next: mmpolicy status shows when the hooks are gone; then mmpolicy unload" in result.err
    slow.under_way = ""
    assert run("unload").out == "mmpolicy: unloaded, the kernel is stock again\n"
