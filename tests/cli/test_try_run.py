# SPDX-License-Identifier: GPL-2.0
"""`try` from the question to the end: kept or as before, and what is told of it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mmpolicy.ab.samples import load
from mmpolicy.control.experiment import LOCK as AB_LOCK
from mmpolicy.control.experiment import RUN as AB_RUN
from mmpolicy.control.keys import MANIFESTS
from mmpolicy.control.trials import (
    CHANGED,
    CUT_OFF,
    FOLDER,
    HALF_KEPT,
    KEEPING,
    KEPT,
    LOCK,
    RUN,
    RUNNING,
    SYSTEMD,
    UNTOUCHED,
    Trial,
    read_trials,
    standing,
)
from mmpolicy.errors import Error, Exit
from mmpolicy.verbs.ab_run import run_planned

from .ab_world import World
from .fakes import CONTROL, FakeTree, Result, Run, read_named

WEB = "/system.slice/web.service"
SHORT = ("--block", "4", "--yes", "--foreground")
FILE = f"{MANIFESTS}/50-try-web.toml"
WORK = "cmd:cat $ROOT/work"


class Service(World):
    """A host with a service whose CPU time and memory the treatment multiplies."""

    cpu_times = memory_times = 1.0
    cpu_us = full = 0.0
    late = range(0)  # seconds of the clock in which each sleep takes 6 s more, longer than a block

    def treated(self) -> bool:
        """Tell if the treatment is in force."""
        on = self.tree.read(f"{CONTROL}/experiment/enabled") == "1"
        return on and self.tree.read(f"{CONTROL}/experiment/percent") == "100"

    def sleep(self, seconds: float) -> None:
        seconds += 6.0 * (int(self.now) in self.late)
        self.cpu_us += 1e5 * seconds * (self.cpu_times if self.treated() else 1.0)
        super().sleep(seconds)

    def put(self) -> None:
        super().put()
        folder = f"/sys/fs/cgroup{WEB}"
        memory = 1e9 * (self.memory_times if self.treated() else 1.0)
        self.tree.put(f"{folder}/cgroup.procs", "17")
        self.tree.put(f"{folder}/memory.stat", "anon_thp 4096")
        self.tree.put(f"{folder}/memory.current", f"{memory:.0f}")
        self.tree.put(f"{folder}/cpu.stat", f"usage_usec {self.cpu_us:.0f}")
        pressure = f"some avg10=0.00 total=7\nfull avg10={self.full} total=0"
        self.tree.put(f"{folder}/memory.pressure", pressure)


@pytest.fixture
def clock(tree: FakeTree) -> Service:
    """Return time in which the service works."""
    return Service(tree)


@pytest.fixture
def tried(run: Run) -> Callable[..., Result]:
    """Return a function that tries `adaptive`, in short blocks."""

    def tried(*words: str) -> Result:
        return run("try", "--unit", "web", "--candidate", "adaptive", *SHORT, *words)

    return tried


def last(tree: FakeTree) -> Trial:
    """Return the last trial."""
    return read_trials(tree)[-1]


def test_a_gain_is_kept(
    tried: Callable[..., Result], run: Run, tree: FakeTree, clock: Service, reloads: list[str],
    tmp_path: Path,
) -> None:  # fmt: skip
    """A gain is kept now, after a boot and at each start; the page says so, and its last line
    undoes it.
    """
    clock.cpu_times = 0.9
    before = read_named(tree)
    result = tried()
    assert result.code == 0, result.err
    number = tree.inode("/sys/fs/cgroup", WEB.strip("/"))
    after = read_named(tree)
    assert after[f"cgroups/{number}"] == "web"
    assert after["profiles/web/anon_order/policy"] == "adaptive"
    others = {name for name in after if name not in before and not name.startswith("profiles/web")}
    assert others == {f"cgroups/{number}", f"{MANIFESTS}/90-web.service.toml"}
    assert "max_order = 4" in tree.read(FILE)
    assert reloads == ["reload"]
    page = result.out.splitlines()
    assert f"tried      adaptive (anon_order=adaptive,max_order=4) on {WEB}, against stock" in page
    assert any(line.startswith("metric     cpu: -10 % (95 %: ") for line in page)
    assert f"decision   kept: {WEB} is bound to the profile web" in page
    assert standing(tree, last(tree)) == KEPT
    report = run("try", "--report")
    assert (report.code, report.out) == (0, result.out + "now        kept\n")
    status = run("try", "--status").out.splitlines()
    assert status[1:] == [
        *(line for line in page if line.startswith("metric     ")),
        *page[-2:],
        "report     mmpolicy try --report shows the whole page",
    ]
    html = tmp_path / "page.html"
    assert run("try", "--report", "--html", str(html)).code == 0
    assert f"decision   kept: {WEB} is bound" in html.read_text()
    assert html.read_text().count("<svg ") == 1 + 2 * len(load(Path(last(tree).file)).metrics())
    for command in page[-1].removeprefix("undo ").split("&&"):
        words = shlex.split(command)
        if words[0] == "rm":
            Path(words[1]).unlink()
        else:
            assert run(*words[1:]).code == 0
    assert read_named(tree) == before
    assert standing(tree, last(tree)) == CHANGED
    assert "the setting that was kept is no longer in force" in run("try", "--status").out


def test_a_trial_that_could_not_be_reported_does_not_begin(
    tried: Callable[..., Result], tree: FakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial that could not be reported, as on a host without scipy, does not begin; its plan can
    be printed.
    """
    for name in "report.report", "report.balance":  # the first file that it reads imports numpy
        monkeypatch.delitem(sys.modules, f"mmpolicy.ab.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "numpy", None)
    before = read_named(tree)
    result = tried("--dry-run")
    assert (result.code, "rule: kept if" in result.out) == (0, True), result.err
    result = tried()
    assert (result.code, result.out) == (3, "")
    assert "rule: kept if" in result.err
    assert "needs the Python library numpy" in result.err
    assert (read_named(tree), read_trials(tree)) == (before, [])


def test_a_gain_that_is_in_doubt(
    tried: Callable[..., Result], tree: FakeTree, clock: Service
) -> None:
    """If samples come so late that blocks have no value, the decision says so, and not that there
    is no gain.
    """
    clock.cpu_times, clock.late = 0.5, range(int(clock.now) + 20, int(clock.now) + 120)
    result = tried("--pairs", "12")
    assert (result.code, tree.exists(FILE)) == (7, False), result.out
    doubt = "the result is in doubt, as cpu has a value in "
    assert f"decision   not kept, the former state is restored: {doubt}" in result.out


@pytest.mark.parametrize(
    ("cpu", "memory", "code"), [(1.0, 1.0, 7), (1.1, 1.0, 8), (0.9, 1.1, 8), (0.9, 1.06, 8)]
)
def test_all_else_is_as_before(
    tried: Callable[..., Result], run: Run, tree: FakeTree, clock: Service,
    cpu: float, memory: float, code: int,
) -> None:  # fmt: skip
    """After no effect, a loss, or a gain that costs more memory than its margin, all is
    as before.
    """
    clock.cpu_times, clock.memory_times = cpu, memory
    before = read_named(tree)
    result = tried("--pairs", "9")
    assert result.code == code, result.err
    assert read_named(tree) == before
    assert not tree.exists(FILE)
    assert (
        "decision   not kept, the former state is restored: the trial shows no gain" in result.out
    )
    assert run("try", "--report").code == code
    assert [each["standing"] for each in run("try", "--list", "--json").json["trials"]] == ["back"]


def test_the_price_of_a_gain_is_within_its_margin(
    tried: Callable[..., Result], tree: FakeTree, clock: Service
) -> None:
    clock.cpu_times, clock.memory_times = 0.9, 1.03
    assert tried().code == 0


@pytest.mark.parametrize(
    ("cpu", "bound", "explained"), [(0.3, "20", True), (0.9, "20", False), (0.3, "", False)]
)
def test_a_gain_beyond_what_the_look_had_as_the_most(
    tried: Callable[..., Result], clock: Service, cpu: float, bound: str, explained: bool
) -> None:
    """The page explains a gain that the look before had seemed to rule out, and no other one."""
    clock.cpu_times = cpu
    result = tried(*(["--bound", bound] if bound else []))
    assert result.code == 0, result.err
    note = (
        "note       cpu fell by more than the 20 % that the look called the most: the look counts"
    )
    assert (note in result.out) == explained


def test_the_plan_tells_what_is_missing_without_work(
    tried: Callable[..., Result], clock: Service
) -> None:
    line = "note: without --work, the trial cannot tell a service that does less from a cheaper one"
    assert line in tried("--dry-run").out
    assert line not in tried("--dry-run", "--work", "cpu.busy/s").out


def test_cpu_time_per_unit_of_work(
    tried: Callable[..., Result], tree: FakeTree, clock: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service that works less for a tenth less CPU time gains nothing per unit of work."""
    monkeypatch.setenv("ROOT", str(tree.root))
    clock.cpu_times = 0.9

    def work() -> None:
        tree.put("/work", "90" if clock.treated() else "100")
        clock.at = [(clock.now + 0.2, work)]

    work()
    result = tried("--work", WORK, "--pairs", "9")
    assert result.code == 8, result.out
    assert "metric     work: -10 %" in result.out
    metrics = load(Path(last(tree).file)).header["metrics"]
    assert metrics[0] == f"cpu=cgroup:{WEB}/cpu.stat:usage_usec/s / {WORK} lower"
    assert metrics[2] == f"work={WORK} higher guard 5%"


def test_what_was_applied_is_still_declared(
    tried: Callable[..., Result], run: Run, tree: FakeTree, clock: Service
) -> None:
    """`verify` finds no drift in a setting that was kept, and none after it was undone."""
    tree.put(f"{MANIFESTS}/host.toml", 'version = 1\n[profiles.db.anon_order]\npolicy = "fixed"')
    folder = str(tree.real(MANIFESTS))
    assert run("apply", folder).code == run("verify").code == 0
    clock.cpu_times = 0.9
    assert tried().code == 0
    assert run("verify").code == 0
    assert run("diff", folder, "--exit-code").code == 0
    assert last(tree).undo.endswith(f" && mmpolicy apply {MANIFESTS}")


def test_a_name_that_is_taken(
    tried: Callable[..., Result], run: Run, tree: FakeTree, clock: Service
) -> None:
    clock.cpu_times = 0.9
    run("profile", "create", "web")
    assert tried().code == 0
    assert last(tree).profile == "web-2"


def test_a_cgroup_of_no_service(run: Run, tree: FakeTree, clock: Service) -> None:
    """A cgroup of no service is bound now, and in the manifest for the next boot."""
    clock.cpu_times = 0.9
    tree.make_cgroup("/pod/web")
    for name in "cgroup.procs", "memory.stat", "memory.current", "cpu.stat", "memory.pressure":
        link = tree.real("/sys/fs/cgroup/pod/web") / name
        link.unlink(missing_ok=True)
        link.symlink_to(tree.real(f"/sys/fs/cgroup{WEB}/{name}"))
    result = run("try", "--cgroup", "/pod/web", "--candidate", "adaptive", *SHORT)
    assert result.code == 0, result.err
    assert '"/pod/web" = "web"' in tree.read(FILE)
    assert last(tree).undo.startswith("mmpolicy unbind --cgroup /pod/web && ")


def test_a_guard_that_breaks(tried: Callable[..., Result], tree: FakeTree, clock: Service) -> None:
    """If tasks wait for memory, the guard ends the trial at once; all is as before, and the page
    says why.
    """
    before = read_named(tree)

    def stall() -> None:
        tree.put("/proc/pressure/memory", "full avg10=50.00 avg60=0.00 total=0")
        clock.put = lambda: None  # type: ignore[method-assign]

    clock.at = [(10.0, stall)]
    result = tried()
    assert result.code in (1, 8)
    assert read_named(tree) == before
    assert (
        "the former state is restored: guard 'psi.memory.full.avg10 < 10' is violated: the "
        "value is 50"
    ) in result.out


def test_refused_before_it_begins(
    tried: Callable[..., Result], run: Run, tree: FakeTree, clock: Service
) -> None:
    """A refused trial changes nothing, and leaves no record."""
    writes = list(tree.writes)
    assert run("try", "--unit", "web", "--candidate", "adaptive").code == 2  # it asks
    with tree.locked(LOCK, f"{RUN}99999999"):
        assert tried().code == 9
    with tree.locked(AB_LOCK, f"{AB_RUN}99999999"):
        assert tried().code == 9
    assert run("try", "--list", "--stop").code == run("try", "--list", "--html", "x").code == 2
    assert run("try", "--stop").code == run("try", "--status").code == 1
    assert run("try", "--list").out == "no trial has run\n"
    dry = tried("--dry-run", "--json").json
    assert "metric cpu (the metric to improve)" in " ".join(dry["plan"])
    assert tree.writes == writes
    assert read_trials(tree) == []
    tree.make_unloaded()
    assert tried().code == 3


def test_systemd_runs_the_same_trial(
    run: Run, tree: FakeTree, clock: Service, units: list[list[str]]
) -> None:
    clock.cpu_times = 0.9
    tree.real(SYSTEMD).mkdir(parents=True)
    words = ["--block", "4", "--pairs", "20", "--work", WORK, "--lease", "1m"]
    result = run("try", "--unit", "web", "--candidate", "adaptive", "--yes", *words, "--json")
    assert result.code == 0, result.err
    (unit,) = units
    assert unit[:2] == ["--unit", "mmpolicy-try"]
    own = [word.replace("$$", "$") for word in unit[unit.index("--") + 1 :]]
    own = own[own.index("try") :]
    assert own == ["try", "--cgroup", WEB, "--candidate", "adaptive", "--yes", "--foreground",
                   "--work", WORK, "--block", "4", "--pairs", "20", "--lease", "60", "--out",
                   result.json["file"]]  # fmt: skip
    assert read_trials(tree) == []


def test_systemd_refuses_the_trial(
    tried: Callable[..., Result], run: Run, tree: FakeTree, clock: Service,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """--status has the trial that systemd did not start, not the trial before."""
    clock.cpu_times = 0.9
    assert tried().code == 0
    before = read_named(tree)
    hint = "journalctl -u mmpolicy-try"

    def refuse(*_given: object) -> None:
        raise Error("systemd did not start the unit: Access denied", Exit.FAILED, hint)

    tree.real(SYSTEMD).mkdir(parents=True)
    tree.make_cgroup("/db.service")
    for name in "memory.stat", "memory.current", "cpu.stat":
        tree.put(f"/sys/fs/cgroup/db.service/{name}", tree.read(f"/sys/fs/cgroup{WEB}/{name}"))
    monkeypatch.setattr("mmpolicy.verbs.try_service.start_own_unit", refuse)
    result = run("try", "--unit", "db", "--candidate", "adaptive", "--yes")
    assert (result.code, "Access denied" in result.err) == (1, True), result.err
    assert read_named(tree) == before
    first, decision, _ = run("try", "--status").out.splitlines()
    assert first.startswith("changed nothing: adaptive on /db.service, started ")
    assert decision == (
        "decision   not started, so nothing has changed: systemd did not start the unit: Access "
        f"denied; next: {hint}"
    )
    assert run("try", "--report").code == 1
    assert [each.phase for each in read_trials(tree)] == [KEPT, UNTOUCHED]


def test_a_trial_that_ends_before_its_first_block(
    tried: Callable[..., Result], run: Run, tree: FakeTree, clock: Service,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Nothing went `back`, as nothing had changed."""

    def begin(*given: Any) -> Any:
        clock.full = 50.0  # memory becomes short between the plan and the first block
        clock.put()
        return run_planned(*given)

    monkeypatch.setattr("mmpolicy.verbs.try_run.run_planned", begin)
    before = read_named(tree)
    result = tried()
    assert result.code == 1, result.out + result.err
    assert "decision   not kept, no block has run: guard 'cgroup:" in result.out
    assert run("try", "--status").out.startswith(f"changed nothing: adaptive on {WEB}, started ")
    assert read_named(tree) == before


@pytest.mark.parametrize("when", ["in a block", "while it keeps"])
def test_the_module_is_unloaded_meanwhile(
    tried: Callable[..., Result], run: Run, tree: FakeTree, clock: Service,
    monkeypatch: pytest.MonkeyPatch, when: str,
) -> None:  # fmt: skip
    """The page says that all is at stock, and has the command to go on."""

    def end(*given: Any) -> Any:
        runner = run_planned(*given)
        tree.make_unloaded()
        return runner

    clock.cpu_times = 0.9
    if when == "in a block":
        clock.at = [(9.0, tree.make_unloaded)]
    else:
        monkeypatch.setattr("mmpolicy.verbs.try_run.run_planned", end)
    assert tried().code in (1, 3)
    assert not tree.exists(FILE)
    first, *_, decision, _ = run("try", "--status").out.splitlines()
    assert first.startswith(f"back: adaptive on {WEB}, started ")
    assert decision == (
        "decision   not kept: the module was unloaded meanwhile, so all is at stock; next: "
        "mmpolicy load && mmpolicy try --unit web.service --candidate adaptive --block 4"
    )


def test_the_module_is_unloaded_later(
    tried: Callable[..., Result], run: Run, tree: FakeTree, clock: Service
) -> None:
    """--status has the command that applies a kept setting again."""
    clock.cpu_times = 0.9
    assert tried().code == 0
    tree.make_unloaded()
    line = run("try", "--status").out.splitlines()[-1]
    text = "next: the module is not loaded, so all is at stock; mmpolicy load && "
    assert line == f"{text}mmpolicy apply {MANIFESTS} applies the setting again"
    assert run("load").code == run("apply", str(tree.real(MANIFESTS))).code == 0
    assert standing(tree, last(tree)) == KEPT


def test_status_and_stop_of_a_trial_that_runs(
    tried: Callable[..., Result], run: Run, tree: FakeTree, clock: Service,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """`try --stop` ends a running trial like any signal, and all is as before."""
    before, seen = read_named(tree), list[Any]()
    ended = list[str]()
    monkeypatch.setattr("mmpolicy.verbs.try_jobs.end_it", lambda _tree: ended.append("end"))
    monkeypatch.setattr("mmpolicy.verbs.try_jobs.PATIENCE_S", 0.0)

    def look() -> None:
        seen.append(run("try", "--status", "--json").json)
        seen.append(run("try", "--status").out)
        assert run("try", "--stop").code == 9  # as it does not end here
        subprocess.run(["kill", "-TERM", str(os.getpid())], check=True)

    clock.at = [(9.0, look)]
    result = tried()
    assert result.code == 143, result.err
    assert read_named(tree) == before
    status, text = seen
    assert (status["running"], status["standing"]) == (True, RUNNING)
    assert status["experiment"]["block"] == 3
    assert text.startswith(f"running: adaptive on {WEB}, started ")
    assert ended
    *_, decision, whole = run("try", "--status").out.splitlines()
    assert decision.endswith("the former state is restored: interrupted, by SIGTERM")
    assert whole == "report     mmpolicy try --report shows the whole page"


def test_what_is_left_of_a_trial_that_was_killed(
    tried: Callable[..., Result], run: Run, tree: FakeTree, clock: Service
) -> None:
    """After a trial was killed, its record and the state together tell what is in force."""
    clock.cpu_times = 0.9
    assert tried().code == 0
    kept = last(tree)
    for phase, stands in (RUNNING, CUT_OFF), (KEEPING, KEPT):
        kept.keep(tree, phase=phase)
        assert standing(tree, last(tree)) == stands
    with tree.locked(LOCK, f"{RUN}1"):
        assert standing(tree, last(tree)) == KEEPING
    status = run("try", "--status")  # of a trial whose end could not be recorded
    assert (status.code, status.out.startswith(f"{KEPT}: ")) == (0, True)
    assert status.out.endswith(f"the setting is kept; this undoes it: {kept.undo}\n")
    assert run("try", "--status", "--json").json["trial"]["undo"] == kept.undo
    run("unbind", "--cgroup", WEB)
    assert standing(tree, last(tree)) == HALF_KEPT
    told = run("try", "--status")
    assert told.code == 6
    undo = told.out.strip().partition("this undoes it: ")[2].split(" && ")
    assert undo == ["mmpolicy unbind --unit web.service", "mmpolicy profile delete web",
                    f"rm {tree.real(FILE)}"]  # fmt: skip
    assert run(*undo[0].split()[1:]).code == run(*undo[1].split()[1:]).code == 0
    assert standing(tree, last(tree)) == HALF_KEPT  # a boot would make its profile again
    assert run("try", "--status").out.endswith(f"this undoes it: {undo[2]}\n")
    tree.real(FILE).unlink()
    assert standing(tree, last(tree)) == CUT_OFF
    kept.keep(tree, phase=KEPT)
    assert standing(tree, last(tree)) == CHANGED
    tree.make_unloaded()
    assert standing(tree, last(tree)) == CHANGED
    kept.keep(tree, phase=KEEPING)
    assert standing(tree, last(tree)) == CUT_OFF
    for text in "{}", "[", '{"version": 1, "name": "x"}':
        tree.put(f"{FOLDER}/x.json", text)
        assert len(read_trials(tree)) == 1
