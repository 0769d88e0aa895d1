# SPDX-License-Identifier: GPL-2.0
"""`try` with `trim`, `collapse` and `maintain`: measured before and after they have worked once."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from mmpolicy import tomllib
from mmpolicy.ab.shift import Change
from mmpolicy.control.keys import MANIFESTS
from mmpolicy.control.trials import (
    BACK,
    CUT_OFF,
    DONE,
    ENABLED,
    HALF_KEPT,
    KEEPING,
    KEPT,
    LOCK,
    RUN,
    RUNNING,
    SYSTEMD,
    Trial,
    read_trials,
    standing,
)
from mmpolicy.errors import Exit
from mmpolicy.verbs.try_once import (
    PARTS,
    Level,
    OnceWish,
    _longer,
    _Run,
    decide,
    prices_of,
    repeated,
    too_noisy,
)

from .fakes import Clock, FakeTree, Result, Run
from .sparse import SPLIT, make_sparse, make_thp, split
from .test_calibrate import keep

REDIS = "/system.slice/redis.service"
MANIFEST = f"{MANIFESTS}/50-try-maintain-redis.toml"
TRIED = ("try", "--unit", "redis", "--seconds", "5")


class Service(Clock):
    """A service with 256 MiB in large folios that are empty but for a page of 16."""

    def __init__(self, tree: FakeTree) -> None:
        super().__init__()
        self.tree, self.cpu_us, self.factor = tree, 0.0, 1.0
        self.noise: Callable[[], float] = lambda: 1 + 0.01 * (int(self.now) % 3)
        self.at: list[tuple[float, Callable[[], object]]] = []
        self.put()

    def put(self) -> None:
        """Write its CPU time, in percent of a CPU: 50, times a factor once it was trimmed."""
        folder = f"/sys/fs/cgroup{REDIS}"
        self.tree.put(f"{folder}/cpu.stat", f"usage_usec {self.cpu_us:.0f}\nsystem_usec 0")

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        trimmed = any(path == SPLIT for path, _ in self.tree.writes)
        self.cpu_us += 5e5 * seconds * self.noise() * (self.factor if trimmed else 1.0)
        self.put()
        while self.at and self.now >= self.at[0][0]:
            self.at.pop(0)[1]()


@pytest.fixture
def host(tree: FakeTree) -> FakeTree:
    """Return a host without the module, with systemd, on which a service wastes memory."""
    tree.make_unloaded()
    tree.installed = False
    make_thp(tree)
    keep(tree)
    tree.real(SYSTEMD).mkdir(parents=True)
    make_sparse(tree, 10, "redis", 65536, 16, REDIS)
    tree.splits = partial(split, tree)
    return tree


@pytest.fixture
def clock(host: FakeTree) -> Service:
    """Return time in which the service works."""
    return Service(host)


@pytest.fixture
def tried(run: Run, clock: Service) -> Callable[..., Result]:
    """Return a function that runs the whole trial."""

    def tried(*words: str) -> Result:
        return run(*TRIED, "--yes", "--foreground", "--block", "60", *words)

    return tried


def last(tree: FakeTree) -> Trial:
    """Return the last trial."""
    return read_trials(tree)[-1]


def test_the_best_answer_is_run(tried: Callable[..., Result], run: Run, host: FakeTree) -> None:
    """The best candidate is run: the memory that it gives back is measured, and the page says how
    to repeat it.
    """
    result = tried()
    assert result.code == 0, result.err
    page = result.out
    assert "verdict: worth trying: trim" in page
    assert "did        trim: 240 MiB given back" in page
    assert "metric     memory: -94 % (95 %: -94 % .. -94 %)" in page
    assert "metric     cpu: " in page
    assert "note       measured before and after: all else" in page
    assert "decision   kept: memory -94 %" in page
    assert (last(host).phase, standing(host, last(host))) == (DONE, DONE)
    status = run("try", "--status")
    first, *effects, decision, repeat, undo, whole = status.out.splitlines()
    assert effects == [line for line in page.splitlines() if line.startswith("metric     ")]
    assert whole == "report     mmpolicy try --report shows the whole page"
    assert (status.code, first.startswith("done once: trim on")) == (0, True)
    assert decision.endswith("; it lasts until the next start of the service")
    again = "the next start does not repeat the work: mmpolicy trim --unit redis.service"
    assert repeat == f"repeat     {again} --include-madvised repeats it once"
    assert undo == "undo       restart the service; no setting has changed"
    assert run("try", "--report").code == 0
    assert not host.exists(MANIFEST)


def test_the_plan_says_its_time(run: Run, host: FakeTree, clock: Service) -> None:
    before = list(host.writes)
    plan = run(*TRIED, "--dry-run").out
    assert "1. trim: gives back about 240 MiB" in plan
    assert f"the trial measures {REDIS} for 480 s, or up to 7680 s if its CPU time or mem" in plan
    assert "and measures again for as long: 16 min to 4.3 h" in plan
    assert "rule: kept if private memory is shown to fall by 32 MiB or more, and 5 %" in plan
    assert "note: without --work, the trial cannot tell a service that does less" in plan
    assert host.writes == before


def test_the_status_has_the_time_left(
    tried: Callable[..., Result], run: Run, clock: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In each phase, the status shows at most the time of a service that varies much, until it is
    known not to.
    """
    seen, work = list[Any](), _Run.work

    def look() -> None:
        seen.append(run("try", "--status").out.splitlines()[1])
        seen.append(run("try", "--status", "--json").json["experiment"]["left_s"])

    def looked(*words: Any) -> list[str]:
        look()
        return work(*words)

    monkeypatch.setattr(_Run, "work", looked)
    clock.at = [(40.0, look), (100.0, look)]
    assert tried("--candidate", "trim").code == 0
    texts, left = seen[::2], seen[1::2]
    assert texts == [
        "phase 1 of 3, measurement before trim (the time of trim is extra): 32 min left at most",
        "phase 2 of 3, trim; the measurement after it takes 60 s",
        f"phase 3 of 3, measurement after trim: {left[2]:.0f} s left at most",
    ]
    assert (left[0], left[1]) == (pytest.approx(10 + 32 * 60 - 40, abs=2), None)
    assert 20 < left[2] < 40


def test_the_foreground_shows_the_time(
    tried: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A measurement of minutes shows on the terminal what runs, and for how long."""
    lines = list[str]()
    for module in "render", "verbs.try_once":
        monkeypatch.setattr(f"mmpolicy.{module}.progress_line",
                            lambda text, is_last: lines.append(text))  # fmt: skip
    assert tried("--candidate", "trim").code == 0
    first = "phase 1 of 3, measurement before trim (the time of trim is extra)"
    begun = lines.index(f"{first}: 60 s of it to go")
    assert lines[begun + 1] == f"{first}: 59 s of it to go"
    assert lines[-2:] == ["phase 3 of 3, measurement after trim: 1 s of it to go", ""]


def test_what_repeats_it() -> None:
    """The page names what repeats the work: the verb, and `maintain`, unless that would leave the
    memory alone.
    """
    for candidate, options, own, also in (
        ("trim", ["--min-empty", "4"], " --min-empty 4", True),
        ("trim", ["--include-madvised"], " --include-madvised", False),
        ("collapse", ["--include-madvised"], "", True),
    ):
        wish = OnceWish(candidate, REDIS, "redis.service", None, None, None, None)
        text = repeated(wish, options)
        assert text.startswith(f"mmpolicy {candidate} --unit redis.service{own} repeats it once")
        assert ("--unit redis.service --candidate maintain" in text) == also


def test_a_stop_that_is_longer_than_measured(tree: FakeTree) -> None:
    """If a stop is longer than measured, the page says so, and on a virtual machine why."""
    assert not [*_longer(tree, {"one_collapse_ms": 0.6, "longest_ms": 1.0})]
    assert not [*_longer(tree, {})]
    for flags, cause in (("fpu", False), ("fpu hypervisor", True)):
        tree.put("/proc/cpuinfo", f"flags\t\t: {flags}")
        (note,) = _longer(tree, {"one_collapse_ms": 0.6, "longest_ms": 132.0})
        assert (
            "132.0 ms, longer than the 0.6 ms measured before the run, on memory that was" in note
        )
        assert ("the hypervisor has to supply it" in note) == cause


def test_noise_that_hides_a_price(
    tried: Callable[..., Result], host: FakeTree, clock: Service
) -> None:
    """A longer measurement finds a price of 3 %, or the trial ends before `trim` runs."""
    noise = random.Random(1)
    clock.noise = lambda: noise.uniform(0.88, 1.12)
    assert tried().code == 0
    assert clock.now > 4 * 60  # two measurements of 60 s are not enough
    clock.noise = lambda: noise.uniform(0.5, 1.5)
    writes, begin = len(host.writes), clock.now
    result = tried("--candidate", "trim")
    assert (result.code, len(host.writes)) == (7, writes), result.out
    assert "not kept: cpu varies too much to be judged in 960 s, so trim did not run" in result.out
    assert clock.now - begin < 16 * 60 + 30


def test_a_later_look_remembers(
    tried: Callable[..., Result], run: Run, host: FakeTree, clock: Service
) -> None:
    """A later look shows the last trial of the service before the verdict, and each one
    in its row.
    """
    look = (*TRIED, "--dry-run")
    assert "tried" not in run(*look).out
    noise = random.Random(1)
    clock.noise = lambda: noise.uniform(0.5, 1.5)
    assert tried("--candidate", "trim").code == 7
    old = replace(last(host), name="try-20260102-030405", started="2026-01-02T03:04:05+00:00")
    host.drop(last(host).path)
    other = replace(old, name="try-20260103-030405", cgroup="/other", exit=8)
    for each in (old, other):
        each.keep(host)
    why = "2026-01-02: not kept: cpu varies too much to be judged in 960 s, so trim did not run"
    lines = run(*look).out.splitlines()
    (told,) = [line for line in lines if line.startswith("  tried    ")]
    assert told.startswith(f"  tried    trim, {why}; ")
    assert told.endswith("; its report: mmpolicy try --report --trial try-20260102-030405")
    row = lines.index(next(line for line in lines if line.startswith("1. trim: ")))
    assert lines.index(told) < row
    assert lines[row + 6].startswith(f"   tried: {why}")
    assert sum("tried: " in line for line in lines) == 1
    assert run("try", "--report").code == other.exit
    report = run("try", "--report", "--trial", old.name)
    assert (report.code, "now        changed nothing" in report.out) == (7, True)
    assert old.name in run("try", "--list").out
    html = run("try", "--report", "--html", str(host.real("/page.html")))
    assert (html.code, "trim was measured before and after, without samples" in html.err) == (
        1,
        True,
    )
    for words, code in (("--report", "--trial", "no"), 1), (("--status", "--trial", "no"), 2):
        assert run("try", *words).code == code


def test_noise_that_hides_only_the_gain() -> None:
    """A large gain may still be shown, so the verb runs; noise in a price ends the trial before."""
    noise = random.Random(1)
    level = Level(cpu=[noise.uniform(0.5, 1.5) for _ in range(PARTS)], memory=[1e6] * PARTS)
    for gains, prices in ((("cpu",), []), (("memory",), ["cpu"]), (("memory", "cpu"), ["cpu"])):
        noisy = [*too_noisy(gains, level, per_work=True)]
        assert (noisy, prices_of(gains, noisy)) == (["cpu"], prices)


def test_what_cannot_work_here(run: Run, host: FakeTree, clock: Service) -> None:
    """A trial that could only fail is refused at once, not after the first measurement."""
    host.real(SPLIT).unlink()
    result = run(*TRIED, "--candidate", "trim", "--yes", "--foreground")
    assert (result.code, clock.now) == (3, 0), result.out
    assert "trim does not work on this host: no " in result.err
    assert read_trials(host) == []


def test_two_trials_that_begin_at_once(
    tried: Callable[..., Result], host: FakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If two trials begin at once, the second one finds the lock taken."""
    seen = iter(["", f"{RUN}7"])
    monkeypatch.setattr("mmpolicy.verbs.try_service.running", lambda _tree: next(seen))
    with host.locked(LOCK, f"{RUN}7"):
        result = tried()
    assert (result.code, f"{RUN}7" in result.err) == (9, True), result.err
    assert not read_trials(host)


def test_more_cpu_time_is_no_gain(tried: Callable[..., Result], host: FakeTree,
                                  clock: Service) -> None:  # fmt: skip
    clock.factor = 1.2
    result = tried()
    assert result.code == 8, result.err
    assert "decision   not kept: cpu is shown to be worse" in result.out
    assert last(host).phase == BACK


def test_maintain_is_kept_by_its_manifest(
    tried: Callable[..., Result], run: Run, host: FakeTree, units: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """`maintain` is kept by its manifest, and its unit is enabled; each part that is
    missing shows.
    """
    monkeypatch.setattr("mmpolicy.verbs.try_once._Run.work", lambda *_given: _give_back(host))
    result = tried("--candidate", "maintain")
    assert result.code == 0, result.out + result.err
    assert tomllib.loads(host.read(MANIFEST))["maintain"] == {"services": {"redis.service": True}}
    assert units == [["enable", "mmpolicy-maintain.service"]]
    kept = last(host)
    assert kept.undo == f"rm {MANIFEST} && systemctl disable --now mmpolicy-maintain.service"
    host.put(ENABLED, "")
    assert standing(host, kept) == KEPT
    assert run("maintain", "--dry-run").code == 0
    host.remove(ENABLED)
    assert standing(host, kept.keep(host, phase=KEEPING)) == HALF_KEPT
    assert run("try", "--status").out.endswith(f"this undoes it: rm {host.real(MANIFEST)}\n")
    host.remove(MANIFEST)
    assert standing(host, last(host)) == CUT_OFF


def _give_back(tree: FakeTree) -> list[str]:
    """Model what both verbs do, once."""
    tree.put("/proc/10/status", "Name:\tx\nVmRSS:\t16384 kB\nRssAnon:\t16384 kB")
    return ["did        both: given back"]


def test_less_cpu_time_alone_is_no_gain(run: Run, host: FakeTree, clock: Service) -> None:
    """Less CPU time alone is no gain, but only per unit of work; `maintain` may still give memory
    back.
    """
    refused = run(*TRIED, "--candidate", "collapse", "--dry-run")
    assert (refused.code, "it needs --work" in refused.err) == (2, True)
    assert run(*TRIED, "--candidate", "collapse", "--work", "cmd:cat x/s", "--dry-run").code == 0
    assert "CPU time per unit" not in run(*TRIED, "--candidate", "maintain", "--dry-run").out


@pytest.mark.parametrize("words", [[], ["--candidate", "trim"], ["--candidate", "adaptive"]])
@pytest.mark.parametrize("how", ["--dry-run", "--yes"])
def test_the_metric_is_checked_first(
    run: Run, host: FakeTree, clock: Service, words: list[str], how: str
) -> None:
    """Before the service is looked at, also if no trial follows."""
    began = clock.now
    refused = run(*TRIED, *words, "--work", "bogus", how)
    assert (refused.code, refused.out) == (2, "")
    assert "'bogus' is not a source for a metric; the sources are: vmstat.KEY" in refused.err
    assert clock.now == began


def test_a_switchback_has_pairs(run: Run, host: FakeTree, clock: Service) -> None:
    """A trial of a verb that works once refuses --pairs and --lease."""
    for option in ("--pairs", "3"), ("--lease", "1m"):
        refused = run(*TRIED, "--candidate", "trim", *option, "--dry-run")
        assert (refused.code, "not for trim: --block" in refused.err) == (2, True)


def test_without_systemd_it_runs_here(run: Run, host: FakeTree, clock: Service) -> None:
    """Without systemd the trial runs in the foreground; the plan says so, and that it ends with the
    shell.
    """
    line = "runs in the foreground, as this host has no systemd"
    assert line not in run(*TRIED, "--candidate", "trim", "--dry-run").out
    host.real(SYSTEMD).rmdir()
    assert line in run(*TRIED, "--candidate", "trim", "--dry-run").out
    done = run(*TRIED, "--candidate", "trim", "--yes", "--block", "48")
    assert "decision   " in done.out


def test_maintain_without_systemd(run: Run, host: FakeTree, clock: Service) -> None:
    host.real(SYSTEMD).rmdir()
    assert run(*TRIED, "--candidate", "maintain", "--dry-run").code == 3


def test_what_ends_it(tried: Callable[..., Result], run: Run, host: FakeTree,
                      clock: Service) -> None:  # fmt: skip
    """A trial is ended by a signal, as --stop sends it; by tasks that wait for memory; and by death
    at any moment.
    """
    seen = list[Any]()

    def end() -> None:
        seen.append(run("try", "--status", "--json").json["standing"])
        subprocess.run(["kill", "-TERM", str(os.getpid())], check=True)

    clock.at = [(30.0, end)]
    result = tried("--candidate", "trim")
    assert (result.code, seen) == (143, [RUNNING])
    assert "decision   not kept: interrupted, by SIGTERM; no setting has changed" in result.out
    assert run("try", "--status").out.startswith("changed nothing: trim on ")
    assert all(path != SPLIT for path, _ in host.writes)
    last(host).keep(host, phase=RUNNING)
    assert standing(host, last(host)) == CUT_OFF
    assert "but its verb may have changed memory: try again" in run("try", "--status").out


@pytest.mark.parametrize(
    ("cpu", "memory", "code"),
    [
        ((0.5, -0.1), (4e5, -4e4), Exit.DONE),
        ((0.5, 0.05), (4e5, -4e4), Exit.WORSE),
        ((0.5, 0.0), (4e5, -1e4), Exit.INCONCLUSIVE),
        ((0.5, 0.0), (9e5, -4e4), Exit.INCONCLUSIVE),  # less than 5 %
    ],
)
def test_the_rule(cpu: tuple[float, float], memory: tuple[float, float], code: Exit) -> None:
    """The rule decides for `trim` with exact figures: before, and the change."""
    changes = {name: Change(before, by, by, by)
               for name, (before, by) in (("cpu", cpu), ("memory", memory))}  # fmt: skip
    assert decide(["memory"], changes, per_work=False)[0] == code


def test_a_wide_interval_decides_nothing() -> None:
    """A wide interval decides nothing, neither as a gain nor as a price."""
    wide, less = Change(1.0, -0.1, -0.3, 0.1), Change(4e5, -4e4, -4e4, -4e4)
    code, why = decide(["memory"], {"cpu": wide, "memory": less}, per_work=False)
    assert (code, why.startswith("cpu may be worse")) == (Exit.INCONCLUSIVE, True)
    assert decide(["cpu"], {"cpu": wide, "memory": less}, per_work=False)[0] == Exit.INCONCLUSIVE
