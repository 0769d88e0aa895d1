# SPDX-License-Identifier: GPL-2.0
"""`try` leaves a service alone in the midst of a deploy, and ends when one begins."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from mmpolicy.control.trials import read_trials
from mmpolicy.verbs.try_now import short_of_memory

from .fakes import FakeTree, Result, Run, read_named
from .test_try_run import SHORT, WEB, Service

UNIT = "web.service"
Shown = dict[str, dict[str, str]]


@pytest.fixture
def clock(tree: FakeTree) -> Service:
    """Return time in which the service works."""
    return Service(tree)


@pytest.fixture
def shown() -> Shown:
    """Return a service that has run for long, and its dependants."""
    found = {name: {"ActiveState": "active"} for name in (UNIT, "app.service", "sock.socket")}
    found[UNIT] |= {
        "Job": "", "MainPID": "17", "InvocationID": "5afe", "StateChangeTimestampMonotonic": "9",
        "ExecMainStartTimestampMonotonic": "1", "RequiredBy": "app.service",
        "WantedBy": "sock.socket",
    }  # fmt: skip
    return found


@pytest.fixture
def tried(run: Run) -> Callable[..., Result]:
    """Return a function that tries `adaptive`, in short blocks."""
    return lambda *words: run("try", "--unit", "web", "--candidate", "adaptive", *SHORT, *words)


def now_us(seconds: float) -> str:
    """Return a moment that was so many seconds ago, as systemd tells it."""
    return str(int(1e6 * (time.clock_gettime(time.CLOCK_MONOTONIC) - seconds)))


DEPLOYS = [
    (UNIT, {"ActiveState": "reloading"}, "web.service is reloading"),
    (UNIT, {"ActiveState": "activating"}, "web.service is activating"),
    (UNIT, {"ActiveState": "deactivating"}, "web.service is deactivating"),
    (UNIT, {"Job": "712"}, "systemd is about to start, stop or reload web.service"),
    (
        "app.service",
        {"ActiveState": "failed"},
        "the unit app.service, which depends on web.service",
    ),
    (
        "sock.socket",
        {"ActiveState": "failed"},
        "the unit sock.socket, which depends on web.service",
    ),
]


@pytest.mark.parametrize(("unit", "state", "text"), DEPLOYS)
def test_refused_in_a_deploy(
    tried: Callable[..., Result], tree: FakeTree, clock: Service, shown: Shown,
    unit: str, state: dict[str, str], text: str,
) -> None:  # fmt: skip
    """During a deployment a trial is refused: nothing is changed, and there is no record of a
    trial.
    """
    shown[unit] |= state
    writes = list(tree.writes)
    for words in (), ("--dry-run",):
        result = tried(*words)
        assert (result.code, text in result.err) == (1, True), result.err
        assert "nothing was changed" in result.err
    assert (tree.writes, read_trials(tree)) == (writes, [])


def test_refused_just_after_a_start(tried: Callable[..., Result], shown: Shown) -> None:
    shown[UNIT]["ExecMainStartTimestampMonotonic"] = now_us(5)
    result = tried()
    assert (result.code, "has run for 5 s, less than 30 s" in result.err) == (1, True)
    shown[UNIT]["ExecMainStartTimestampMonotonic"] = now_us(40)
    assert tried("--dry-run").code == 0


@pytest.mark.parametrize(
    ("unit", "state", "text"),
    [
        *DEPLOYS,
        (UNIT, {"MainPID": "18"}, "web.service has another main process now"),
        (UNIT, {"InvocationID": "5aff", "MainPID": "18"}, "web.service was restarted"),
        (UNIT, {"StateChangeTimestampMonotonic": "10"}, "web.service was reloaded, or changed"),
    ],
)
def test_a_deploy_ends_it(
    tried: Callable[..., Result], run: Run, tree: FakeTree, clock: Service, shown: Shown,
    unit: str, state: dict[str, str], text: str,
) -> None:  # fmt: skip
    """A deployment ends a trial: all is as before at once, the page says why, and no block of it
    counts.
    """
    clock.cpu_times = 0.9
    before = read_named(tree)
    clock.at = [(9.0, lambda: shown[unit].update(state))]
    result = tried()
    assert (result.code, read_named(tree)) == (1, before), result.err
    assert f"decision   not kept, the former state is restored: {text}" in result.out
    assert "give the command again for a new trial" in result.out
    assert "back" in run("try", "--status").out


def test_a_cgroup_that_was_made_anew(
    tried: Callable[..., Result], tree: FakeTree, clock: Service
) -> None:
    """If systemd does not answer, the end and new begin of the service are seen by its cgroup."""
    before = read_named(tree)
    folder = tree.real(f"/sys/fs/cgroup{WEB}")
    clock.at = [(9.0, lambda: folder.rename(folder.with_name("old"))), (9.0, clock.put)]
    result = tried()
    assert (result.code, read_named(tree)) == (1, before), result.err
    assert "maybe by a restart of its service; give the command again" in result.out


def test_its_own_pressure_ends_it(
    tried: Callable[..., Result], tree: FakeTree, clock: Service
) -> None:
    """The service's own pressure ends a trial, even where the host as a whole has none."""
    before = read_named(tree)

    def stall() -> None:
        clock.full = 50.0

    clock.at = [(9.0, stall)]
    result = tried()
    assert (result.code in (1, 8), read_named(tree)) == (True, before)
    assert "memory.pressure:full.avg10 < 10' is violated: the value is 50" in result.out
    refused = tried()
    assert (refused.code, ("before the run has begun; nothing was changed") in refused.err) == (
        1,
        True,
    )


def test_waiting_for_compaction_is_no_lack_of_memory() -> None:
    assert short_of_memory(9.9, 0) == short_of_memory(50, 5) == ""
    assert short_of_memory(50, 0).startswith("the service waits for memory 50 % of the time")
