# SPDX-License-Identifier: GPL-2.0
"""`try --watch`: a kept setting is tested further, and goes back by itself if it does harm."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from mmpolicy.control.experiment import LOCK as AB_LOCK
from mmpolicy.control.experiment import RUN as AB_RUN
from mmpolicy.control.journal import boot_of
from mmpolicy.control.keys import MANIFESTS, UnitBinding
from mmpolicy.control.trials import (
    AT_STOCK,
    BACK,
    CHANGED,
    KEPT,
    SYSTEMD,
    Trial,
    read_trials,
    standing,
)
from mmpolicy.control.watched import (
    ENDED,
    ON,
    Watch,
    Watched,
    add_pair,
    read_pairs,
    read_watched,
)
from mmpolicy.errors import Error, Exit

from .fakes import CONTROL, FakeTree, Run, read_named
from .test_try_run import FILE, SHORT, WEB, Service

WATCH = ("try", "--watch", "10%", "--yes", "--foreground")
CYCLE = 40.0  # ten blocks of 4 s
METRICS = (
    f"cpu=cgroup:{WEB}/cpu.stat:usage_usec/s lower",
    f"memory=cgroup:{WEB}/memory.current lower guard 5%",
)
PROFILE = 'version = 1\n[profiles.web.anon_order]\npolicy = "adaptive"\n'


class Watching(Service):
    """A service that what is kept acts on, too; it can be seen when it is at stock."""

    at_stock_s = 0.0

    def number(self) -> int:
        """Return the id of the cgroup."""
        return self.tree.inode("/sys/fs/cgroup", WEB.strip("/"))

    def bound(self) -> bool:
        """Tell if the service is bound to what was kept."""
        path = f"{CONTROL}/profiles/web/cgroups"
        return self.tree.exists(path) and str(self.number()) in self.tree.read(path).split()

    def treated(self) -> bool:
        return self.bound() or super().treated()

    def sleep(self, seconds: float) -> None:
        seconds = max(seconds, 0.001)  # less may be lost in the sum
        self.at_stock_s += 0 if self.bound() else seconds
        super().sleep(seconds)

    def after(self, seconds: float, what: Callable[[], object]) -> None:
        """Have something happen after so long."""
        self.at = sorted([*self.at, (self.now + seconds, what)], key=lambda each: each[0])

    def when_at_stock(self, what: Callable[[], object]) -> None:
        """Have something happen in a block at stock."""

        def look() -> None:
            if self.bound():
                self.after(0.2, look)
            else:
                what()

        self.after(0.2, look)


@pytest.fixture
def clock(tree: FakeTree) -> Watching:
    """Return time in which the service works, and needs less CPU time by what is kept."""
    clock = Watching(tree)
    clock.cpu_times = 0.9
    return clock


@pytest.fixture
def kept(run: Run, tree: FakeTree, clock: Watching) -> Trial:
    """Return a trial that has kept a setting, with the record of its proof."""
    tree.put(FILE, PROFILE)
    tree.put(UnitBinding("web.service").path, 'version = 1\n[bindings]\n"web.service" = "web"\n')
    assert run("apply", str(tree.real(MANIFESTS))).code == 0
    assert clock.bound()
    trial = Trial("try-1", "2026-01-01", WEB, "web.service", "adaptive", "", "-", "a rule").keep(
        tree, phase=KEPT, profile="web", page=("decision   kept",)
    )
    Watched(
        "try-1", WEB, "web", 10.0, METRICS, (), 4.0, 1.0, 1.0, "2026-01-01", boot_of(tree)
    ).keep(tree)
    return trial


def record(tree: FakeTree) -> Watched:
    """Return the only record."""
    (found,) = read_watched(tree)
    return found


def end() -> None:
    """End the command as a service manager does."""
    os.kill(os.getpid(), signal.SIGTERM)


def known_pairs(tree: FakeTree, number: int, cpu: float, memory: float = 1.0) -> None:
    """Put down pairs of this hour, in which the setting takes so many times as much."""
    now = time.time() - 60 * number
    for each in range(number):
        times = 1 + (each % 5 - 2) / 1000  # so that they are not all the same
        add_pair(tree, "try-1", Watch(now + 60 * each, {
            "cpu": (100.0, 100 * cpu * times), "memory": (100.0, 100 * memory * times),
        }))  # fmt: skip


def test_from_the_trial_to_the_proof(
    run: Run, tree: FakeTree, clock: Watching, log: list[str]
) -> None:
    """The price of the test is told beforehand, --status has the effect, and the state is as
    before.
    """
    words = ("try", "--unit", "web", "--candidate", "adaptive", *SHORT)
    assert run(*words).code == 0
    before, began, clock.at_stock_s = read_named(tree), clock.now, 0.0
    dry = run("try", "--watch", "2%", "--dry-run")
    assert "one block of 4 s in 3.33 min is at stock" in dry.out
    assert "this costs 2 % of the gain at most" in dry.out
    assert read_watched(tree) == []
    clock.after(10 * CYCLE - 1, end)
    result = run(*WATCH)
    assert result.code == 143, result.err
    assert "harm of 2 times the margin, with noise as in the trial: found" in result.err
    assert read_named(tree) == before
    assert 0.07 < clock.at_stock_s / (clock.now - began) <= 0.11  # the last cycle is cut short
    (trial,) = read_trials(tree)
    pairs = [pair.values for pair in read_pairs(tree, trial.name)]
    assert 8 <= len(pairs) <= 10
    assert all(pair["cpu"][1] < 0.91 * pair["cpu"][0] for pair in pairs)  # stock comes first
    lines = run("try", "--status").out.splitlines()
    assert lines[0].startswith("kept: ")
    watch = lines.index("report     mmpolicy try --report shows the whole page") + 1
    assert "the test ended with its process; the setting stays" in lines[watch]
    assert lines[watch + 1].startswith("watch      cpu: -10 % (95 %: -10 .. -10 %); it pays")
    assert run("try", "--status", "--json").json["watch"]["pairs"] == len(pairs)
    export = run("export").out
    assert f'mmpolicy_try_watch_running{{cgroup="{WEB}"}} 0.0' in export
    assert (
        f'mmpolicy_try_watch_effect_ratio{{cgroup="{WEB}",end="high",metric="cpu"}} -0.' in export
    )
    assert sum("begins" in line for line in log) == 1  # the trial: a pair is told to nobody


def test_status_has_the_proofs_of_earlier_trials(run: Run, tree: FakeTree, kept: Trial) -> None:
    """--status shows the tests of earlier trials, also after another service was tried; one that
    ended is left out.
    """
    record(tree).keep(tree, effects={"cpu": (-10.0, -11.0, -9.0)}, pairs=20)
    Trial("try-2", "2026-01-02", "/other", "", "adaptive", "", "-", "a rule").keep(
        tree, phase=BACK, page=("decision   back",)
    )
    lines = run("try", "--status").out.splitlines()
    assert lines[0] == "back: adaptive on /other, started 2026-01-02"
    assert lines[3] == f"earlier    try-1: profile web on {WEB}"
    assert lines[-1].startswith("watch      cpu: -10 % (95 %: -11 .. -9 %); it pays"), lines
    found = run("try", "--status", "--json").json
    assert found["watch"] is None
    assert [each["trial"] for each in found["earlier_watches"]] == [kept.name]
    record(tree).keep(tree, phase=ENDED)
    assert "earlier" not in run("try", "--status").out


def test_harm_goes_back_by_itself(
    run: Run, tree: FakeTree, clock: Watching, kept: Trial, log: list[str]
) -> None:
    """A setting that does harm is undone as a whole, and log, metric and verify say so until it is
    acknowledged.
    """
    clock.cpu_times = 1.1
    known_pairs(tree, 30, 1.1)
    assert run("verify").code == 0
    result = run(*WATCH)
    assert result.code == 8, result.out + result.err
    assert standing(tree, read_trials(tree)[0]) == BACK
    state = read_named(tree)
    assert not any(name.startswith(("profiles/web", "cgroups/")) for name in state)
    assert not tree.exists(FILE)
    assert not tree.exists(UnitBinding("web.service").path)
    assert clock.now < 3 * CYCLE
    reason = "cpu is shown to be worse than at stock; in the last week +10"
    assert f"{WEB}: back at stock: {reason}" in log[-1]
    assert f"back at stock: {reason}" in run("log").out
    verify = run("verify")
    assert (verify.code, reason in verify.err) == (6, True)
    assert f"try --watch has set cgroup {WEB} back to stock: {reason}" in run("status").out
    assert f'mmpolicy_try_watch_taken_back{{cgroup="{WEB}"}} 1.0' in run("export").out
    assert run("try", "--report").code == 8
    assert f"set back to stock by try --watch: {reason}" in run("try", "--report").out
    assert run(*WATCH).code == 1  # nothing is left to prove
    assert run("try", "--stop").code == 0
    assert run("verify").code == 0
    assert f'mmpolicy_try_watch_taken_back{{cgroup="{WEB}"}} 0.0' in run("export").out


@pytest.mark.parametrize(("cpu", "memory", "harmed"), [
    (0.9, 1.04, False), (1.0, 1.0, False), (0.9, 1.1, True),
])  # fmt: skip
def test_what_counts_as_harm(
    run: Run, tree: FakeTree, clock: Watching, kept: Trial,
    cpu: float, memory: float, harmed: bool,
) -> None:  # fmt: skip
    """Harm is neither the price that was agreed to, nor a gain that has gone; the lost gain is
    reported.
    """
    clock.cpu_times, clock.memory_times = cpu, memory
    known_pairs(tree, 40, cpu, memory)
    clock.after(1.5 * CYCLE, end)
    assert run(*WATCH).code == (8 if harmed else 143)
    assert clock.bound() == (not harmed)
    if cpu == 1:
        assert "not shown to pay" in run("try", "--status").out


def test_nobody_is_misled_by_a_block_at_stock(
    run: Run, tree: FakeTree, clock: Watching, kept: Trial
) -> None:
    """A block at stock is no drift, healing leaves it alone, and a second test is refused."""
    seen = list[Any]()

    def look() -> None:
        seen.append(standing(tree, kept))
        seen.append(run("try", "--status").out)
        seen.append(run("verify", "--heal").code)
        seen.append(run(*WATCH).code)
        seen.append(clock.bound())
        end()

    clock.when_at_stock(look)
    assert run(*WATCH).code == 143
    stands, status, *rest = seen
    assert (stands, *rest) == (KEPT, 0, 9, False)
    assert (
        "goes on: 0 pairs in the last week, 10 % of the blocks at stock; at stock now, for "
        "comparison" in status
    )
    assert clock.bound()
    assert (record(tree).phase, record(tree).at_stock) == (ON, 0)


def test_a_person_wins(run: Run, tree: FakeTree, clock: Watching, kept: Trial) -> None:
    """If a person binds the service elsewhere within a block at stock, that stays, and the test
    ends.
    """
    run("profile", "create", "other")
    clock.when_at_stock(lambda: run("bind", "--cgroup", WEB, "other"))
    clock.after(9 * CYCLE, end)
    assert run(*WATCH).code == 0
    assert f"cgroups/{clock.number()}" in read_named(tree)
    assert read_named(tree)[f"cgroups/{clock.number()}"] == "other"
    assert record(tree).phase == ENDED
    assert standing(tree, kept) == CHANGED
    assert clock.now < 5 * CYCLE
    assert "ended: the setting is no longer in force" in run("try", "--status").out


@pytest.mark.parametrize("again", [WATCH, ("try", "--stop")])
def test_a_boot_ends_the_test(
    run: Run, tree: FakeTree, clock: Watching, kept: Trial, again: tuple[str, ...]
) -> None:
    """After a boot the setting is in force, and each look at the host says that nothing
    tests it.
    """
    assert "no longer tests" not in run("status").out + run("doctor").out
    record(tree).keep(tree, boot="another")
    assert standing(tree, kept) == KEPT
    assert "the test ended with a boot; the setting stays" in run("try", "--status").out
    for verb in "status", "doctor":
        assert "try --watch no longer tests" in " ".join(run(verb).out.split())
    assert run("verify").code == 0
    clock.after(2.0, end)
    assert run(*again).code == (143 if again == WATCH else 0)
    assert "no longer tests" not in run("status").out


@pytest.mark.parametrize("again", [WATCH, ("try", "--stop"), ("verify", "--heal")])
def test_killed_in_a_block_at_stock(
    run: Run, tree: FakeTree, clock: Watching, kept: Trial, again: tuple[str, ...]
) -> None:
    """If the test was killed in a block at stock, the service is at stock, and each look says so;
    each of three ways binds it again.
    """
    record(tree).keep(tree, at_stock=clock.number())
    tree.write(f"{CONTROL}/profiles/web/cgroups", f"-{clock.number()}")
    assert standing(tree, kept) == AT_STOCK
    killed = "the test was killed while the service was at stock, which is in force"
    assert killed in run("try", "--status").out
    assert "is still at stock: try --watch was killed" in run("status").out
    assert f'mmpolicy_try_watch_at_stock{{cgroup="{WEB}"}} 1.0' in run("export").out
    assert run("verify").code == 6
    clock.after(2.0, end)
    result = run(*again)
    assert result.code == (143 if again == WATCH else 0), result.err
    assert clock.bound()
    assert standing(tree, kept) == KEPT
    assert run("verify").code == 0


def test_a_pair_that_cannot_be(run: Run, tree: FakeTree, clock: Watching, kept: Trial) -> None:
    """No pair runs beside an experiment, or while memory is short; the setting stays in force."""
    put = clock.put

    def short() -> None:
        put()
        tree.put("/proc/pressure/memory", "some avg10=50.00 total=0\nfull avg10=50.00 total=0")

    with tree.locked(AB_LOCK, f"{AB_RUN}99999999"):
        clock.after(2 * CYCLE, end)
        assert run(*WATCH).code == 143
    assert "an experiment runs" in record(tree).skipped
    clock.put = short  # type: ignore[method-assign]
    clock.after(2 * CYCLE, end)
    assert run(*WATCH).code == 143
    assert "50" in record(tree).skipped
    assert clock.at_stock_s == 0


def test_a_block_that_cannot_be_noted_does_not_begin(
    run: Run, tree: FakeTree, clock: Watching, kept: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk no block at stock begins, as nothing could tell after a crash what is in
    force.
    """
    keep = FakeTree.keep

    def full(self: FakeTree, path: str, text: str, mode: int = 0o600) -> None:
        if "/watch/" in path:
            raise Error("the disk is full", Exit.FAILED, "")
        keep(self, path, text, mode)

    def fill() -> None:
        monkeypatch.setattr(FakeTree, "keep", full)

    clock.after(0.1, fill)
    clock.after(2 * CYCLE, end)
    assert run(*WATCH).code == 143
    assert clock.bound()
    assert clock.at_stock_s == 0


def test_the_service_ends_in_a_block_at_stock(
    run: Run, tree: FakeTree, clock: Watching, kept: Trial
) -> None:
    """If the service ends in a block at stock, that pair is lost; there is nothing to bind until
    the service starts, which binds itself.
    """

    def stop() -> None:
        clock.put = lambda: None  # type: ignore[method-assign]
        clock.bound = lambda: True  # type: ignore[method-assign]
        tree.remove(f"/sys/fs/cgroup{WEB}")
        clock.after(1.5 * CYCLE, end)

    clock.when_at_stock(stop)
    assert run(*WATCH).code == 143
    assert record(tree).lost == 1
    assert record(tree).phase == ON
    assert read_pairs(tree, kept.name) == []


def test_systemd_runs_it(
    run: Run, tree: FakeTree, clock: Watching, kept: Trial, units: list[list[str]]
) -> None:
    """systemd runs the test, and restarts it after a crash, in words that name the trial, whatever
    was tried since.
    """
    result = run("try", "--watch", "10%", "--yes")
    assert result.code == 0, result.err
    (unit,) = units
    assert unit[:2] == ["--unit", "mmpolicy-watch-web"]
    assert {"Restart=on-failure", "RestartPreventExitStatus=8"} <= set(unit)
    own = unit[unit.index("--") + 1 :]
    assert own[own.index("try") :] == [
        "try", "--watch", "10%", "--trial", "try-1", "--yes", "--foreground",
    ]  # fmt: skip
    for words in (("--watch", "50%"), ("--watch", "x"), ("--trial", "x", "--unit", "web")):
        assert run("try", *words).code == 2
    assert run("try", "--watch", "2%", "--trial", "other", "--yes").code == 1


def test_a_trial_that_is_to_be_proven_on(
    run: Run, tree: FakeTree, clock: Watching, units: list[list[str]]
) -> None:
    """A trial with --watch has systemd run the test once its setting is kept."""
    tree.real(SYSTEMD).mkdir(parents=True)
    words = ("try", "--unit", "web", "--candidate", "adaptive", "--block", "4", "--watch", "2%")
    result = run(*words, "--yes")
    assert "this costs 2 % of the gain at most" in result.err
    assert "2%" in units.pop()
    result = run(*words, "--yes", "--foreground")
    assert result.code == 0, result.err
    assert units.pop()[:2] == ["--unit", "mmpolicy-watch-web"]
    assert "mmpolicy-watch-web.service goes on testing the setting" in result.err
