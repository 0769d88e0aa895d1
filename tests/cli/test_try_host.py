# SPDX-License-Identifier: GPL-2.0
"""`try --host` and the candidate `thp-sizes`: the kernel's own sizes, without the module."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mmpolicy.ab.run.keeper import put_back
from mmpolicy.ab.samples import load
from mmpolicy.cli import main
from mmpolicy.control.experiment import LOCK as AB_LOCK
from mmpolicy.control.experiment import RECOVERY, RESTORE
from mmpolicy.control.trials import (
    BACK,
    BOOT_FILE,
    CHANGED,
    HALF_KEPT,
    KEEPING,
    KEPT,
    LEFT,
    RUNNING,
    SYSTEMD,
    read_trials,
    standing,
    withdraw,
)
from mmpolicy.errors import Error
from mmpolicy.host.evidence import CPU_TIMES, TICKS_S
from mmpolicy.host.knobs import read_knobs
from mmpolicy.host.machine import Host
from mmpolicy.memory.worth import NOT_HERE, NOT_WORTH, WORTH

from .ab_world import World
from .fakes import THP, Clock, FakeTree, Result, Run
from .sparse import count, make_sparse, make_thp
from .test_calibrate import keep
from .test_cgroups import hybrid, version_1

WEB = "/system.slice/web.service"
SIZES = [f"{THP}/hugepages-{kb}kB/enabled" for kb in (16, 32, 64)]
SHORT = ("--block", "4", "--lease", "5m", "--yes", "--foreground")
ALL = dict.fromkeys(SIZES, "always")
OFF = "always inherit madvise [never]"


def stat(tree: FakeTree, user: float, system: float = 0.0) -> None:
    """Write /proc/stat: seconds of CPU time of programs and of the kernel."""
    seconds = {"user": user, "system": system, "idle": 1e6}
    words = (f"{seconds.get(name, 0) * TICKS_S:.0f}" for name in CPU_TIMES)
    tree.put("/proc/stat", f"cpu  {' '.join(words)}\n")


FAILED = {"ActiveState": "failed"}


class Plain(World):
    """A host with systemd and without the module, whose CPU time and memory the sizes multiply."""

    cpu_times = memory_times = 1.0
    busy = 0.0

    def __init__(self, tree: FakeTree) -> None:
        tree.make_unloaded()
        tree.put(f"{SYSTEMD}/there", "")
        for path in SIZES:
            tree.put(path, OFF)
        super().__init__(tree)

    def treated(self) -> bool:
        """Tell if all sizes are given to all programs."""
        return all("[always]" in self.tree.read(path) for path in SIZES)

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.busy += 10 * seconds * (self.cpu_times if self.treated() else 1.0)
        self.put()
        while self.at and self.now >= self.at[0][0]:
            self.at.pop(0)[1]()

    def put(self) -> None:
        super().put()
        pages = 1e6 * (self.memory_times if self.treated() else 1.0)
        self.tree.put("/proc/vmstat", f"pgfault 1\nnr_anon_pages {pages:.0f}")
        stat(self.tree, self.busy)
        folder = f"/sys/fs/cgroup{WEB}"
        self.tree.put(f"{folder}/cgroup.procs", "17")
        self.tree.put(f"{folder}/memory.stat", "pgfault 1")
        self.tree.put(f"{folder}/memory.current", f"{4096 * pages:.0f}")
        self.tree.put(f"{folder}/cpu.stat", f"usage_usec {1e6 * self.busy:.0f}")


@pytest.fixture
def clock(tree: FakeTree) -> Plain:
    """Return time in which the programs of a host work."""
    return Plain(tree)


@pytest.fixture
def tried(run: Run) -> Callable[..., Result]:
    """Return a function that tries the sizes on the whole host, in short blocks."""
    return partial(run, "try", "--host", "--candidate", "thp-sizes", *SHORT)


def undo(tree: FakeTree, line: str) -> None:
    """Do what the commands of a page do."""
    folder = ""
    for command in line.removeprefix("undo ").split("&&"):
        words = shlex.split(command)
        if words[0] == "cd":
            folder = words[1]
        elif words[0] == "echo":
            for name in words[4:]:
                tree.tune(f"{folder}/{name}", words[1])
        else:
            assert words == ["rm", BOOT_FILE]
            tree.drop(BOOT_FILE)


def test_a_gain_is_kept_over_boots(
    tried: Callable[..., Result], run: Run, tree: FakeTree, clock: Plain, units: list[list[str]]
) -> None:
    """A gain is kept over boots: systemd is armed first; then the sizes are in force, and the page
    undoes them.
    """
    clock.cpu_times, before = 0.9, read_knobs(tree)

    def check_armed() -> None:
        seen.append(len(units))

    seen: list[int] = []
    clock.at = [(1.0, check_armed)]
    result = tried()
    assert result.code == 0, result.err
    (armed,) = units
    assert seen == [1]
    assert armed[:3] == ["mmpolicy-restore.path", "--unit", "mmpolicy-restore"]
    assert f"PathExists={tree.real(RECOVERY)}" in armed
    assert armed[-3:] == ["ab", "restore", "--wait"]
    assert read_knobs(tree) == before | ALL
    assert not tree.exists(RECOVERY)
    lines = [line for line in tree.read(BOOT_FILE).splitlines() if not line.startswith("#")]
    assert lines == [f"w! {path} - - - - always" for path in sorted(SIZES)]
    page = result.out.splitlines()
    assert any(line.startswith("metric     cpu: -10 % (95 %: ") for line in page)
    assert "hugepages-16kB/enabled=always" in page[-2]
    (trial,) = read_trials(tree)
    header = load(Path(trial.file)).header
    assert header["metrics"] == ["cpu=cpu.busy/s lower",
                                 "memory=vmstat.nr_anon_pages lower guard 5%"]  # fmt: skip
    assert standing(tree, trial) == KEPT
    assert run().code == run("try", "--status").code == 0
    assert "keeps transparent_hugepage/hugepages-16kB/enabled=always" in run("log").out
    result = run("try", "--host")
    assert (result.code, f"verdict: {NOT_HERE}: the host gives" in result.out) == (0, True)
    undo(tree, page[-1])
    assert read_knobs(tree) == before
    assert standing(tree, trial) == CHANGED
    assert (run().code, run("verify").code) == (0, 3)  # which is none of the sizes


@pytest.mark.parametrize(
    ("cpu", "memory", "code"), [(1.0, 1.0, 7), (1.1, 1.0, 8), (0.9, 1.1, 8)]
)  # fmt: skip
def test_all_else_is_as_before(
    tried: Callable[..., Result], run: Run, tree: FakeTree, clock: Plain,
    cpu: float, memory: float, code: int,
) -> None:  # fmt: skip
    clock.cpu_times, clock.memory_times, before = cpu, memory, read_knobs(tree)
    result = tried("--pairs", "9")
    assert result.code == code, result.err
    assert read_knobs(tree) == before
    assert not tree.exists(BOOT_FILE)
    assert not tree.exists(RECOVERY)
    assert (
        "decision   not kept, the former state is restored: the trial shows no gain" in result.out
    )
    assert standing(tree, read_trials(tree)[-1]) == BACK


def test_for_a_service(run: Run, tree: FakeTree, clock: Plain) -> None:
    """For a service, its CPU time and memory decide, and the plan says that all programs get the
    sizes.
    """
    clock.cpu_times = 0.9
    words = ["try", "--unit", "web", "--candidate", "thp-sizes"]
    plan = run(*words, "--dry-run").out
    assert "in the blocks of the treatment, all programs of the host get these sizes" in plan
    assert "if kept: transparent_hugepage/hugepages-16kB/enabled=always" in plan
    result = run(*words, *SHORT)
    assert result.code == 0, result.err
    (trial,) = read_trials(tree)
    header = load(Path(trial.file)).header
    assert header["metrics"][0] == f"cpu=cgroup:{WEB}/cpu.stat:usage_usec/s lower"
    assert trial.cgroup == WEB
    assert tree.exists(BOOT_FILE)


def test_the_unit_that_restores_fails(
    tried: Callable[..., Result], tree: FakeTree, clock: Plain, shown: dict[str, dict[str, str]]
) -> None:
    """The trial ends if the unit that would restore the sizes has failed, as nothing else would
    restore them if the trial was killed.
    """
    clock.cpu_times = 0.9
    clock.at.append((10.0, lambda: shown.update({"mmpolicy-restore.path": FAILED})))
    result = tried("--yes", "--foreground")
    assert result.code == 1, result.out
    assert "the unit mmpolicy-restore.path, which restores the host if the run is" in result.out
    assert [tree.read(path) for path in SIZES] == [OFF] * len(SIZES)
    assert not tree.exists(BOOT_FILE)


@pytest.mark.parametrize("version", [version_1, hybrid])
def test_a_host_with_cgroup_v1(
    run: Run, tree: FakeTree, clock: Plain, version: Callable[[FakeTree], str]
) -> None:
    """With cgroup v1 a service cannot be measured; the whole host can."""
    path = version(tree)
    for words in (["--unit", "redis.service"], ["--cgroup", path]):
        result = run("try", *words, "--candidate", "thp-sizes", "--dry-run")
        assert (result.code, "needs cgroup v2, and this host has v1" in result.err) == (3, True)
        assert "next: boot with systemd.unified_cgroup_hierarchy=1; " in result.err
    assert run("try", "--host", "--candidate", "thp-sizes", "--dry-run").code == 0


@pytest.mark.parametrize(
    ("controllers", "known", "step"),
    [
        ("cpu io", "memory\t4\t22\t1", "boot with cgroup_no_v1=memory; mmpolicy try --host needs"),
        ("cpu io", "memory\t0\t1\t0", "boot with cgroup_enable=memory; mmpolicy try --host needs"),
        ("cpu memory", "", "systemctl set-property web.service MemoryAccounting=yes"),
    ],
)
def test_a_service_that_is_not_accounted_for(
    run: Run, tree: FakeTree, clock: Plain, controllers: str, known: str, step: str
) -> None:
    """Without the files of the memory controller a service cannot be measured. The error names
    those that are missing, and what makes them be there.
    """
    tree.put("/sys/fs/cgroup/cgroup.controllers", controllers)
    tree.put("/proc/cgroups", f"#subsys_name\thierarchy\tnum_cgroups\tenabled\n{known}\n")
    for name in "memory.current", "memory.stat":
        tree.remove(f"/sys/fs/cgroup{WEB}/{name}")
    result = run("try", "--unit", "web.service", "--candidate", "thp-sizes", "--dry-run")
    assert (result.code, f"next: {step}" in result.err) == (3, True), result.err
    assert ("has no memory.current and no memory.stat\n" in result.err) == ("memory" in controllers)
    assert ("cgroup v2 has no memory controller" in result.err) == ("memory" not in controllers)


def test_systemd_runs_it(run: Run, tree: FakeTree, clock: Plain, units: list[list[str]]) -> None:
    result = run("try", "--host", "--candidate", "thp-sizes", "--block", "4", "--yes", "--json")
    assert result.code == 0, result.err
    (unit,) = units
    own = unit[unit.index("try") :]
    assert own == ["try", "--host", "--candidate", "thp-sizes", "--yes", "--foreground",
                   "--block", "4", "--out", result.json["file"]]  # fmt: skip


def test_refused_before_it_begins(
    tried: Callable[..., Result], run: Run, tree: FakeTree, clock: Plain
) -> None:
    """A trial is refused without systemd, which would restore the sizes, and for what is no
    candidate of a host.
    """
    tree.remove(SYSTEMD)
    before = read_knobs(tree)
    for words in (["--host"], ["--unit", "web", "--candidate", "thp-sizes"]):
        result = run("try", *words, *SHORT)
        assert (result.code, "this host has no systemd" in result.err) == (3, True), result.err
    assert tried("--dry-run").code == 0
    assert run("try", "--host", "--candidate", "adaptive").code == 2
    assert run("try", "--host", "--unit", "web").code == run("try", "--host", "--list").code == 2
    assert read_knobs(tree) == before
    assert read_trials(tree) == []


def test_a_kernel_without_sizes(run: Run, tree: FakeTree, clock: Plain) -> None:
    """On Linux before 6.8, `try` says at once that the kernel has no such sizes."""
    for kb in (16, 32, 64):
        tree.remove(f"{THP}/hugepages-{kb}kB")
    result = run("try", "--host", "--json")
    assert (result.code, result.json["verdict"]) == (0, NOT_HERE)
    assert result.json["why"] == "this kernel has no folios below 2 MB of its own (Linux 6.8)"
    named = run("try", "--host", "--candidate", "thp-sizes", "--dry-run")
    assert (named.code, result.json["why"] in named.err) == (3, True)
    assert (clock.now, run("try", "--host").out.endswith("next: Linux 6.8 or newer\n")) == (0, True)


def kill_while_keeping(
    tried: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    """Run a trial that ends, as if by SIGKILL, before or after the file for the boot."""

    class KilledError(BaseException):
        pass

    def keep(self: FakeTree, path: str, text: str, mode: int = 0o600) -> None:
        if path != BOOT_FILE or after == "file":
            real(self, path, text, mode)
        if path == BOOT_FILE:
            raise KilledError

    real = FakeTree.keep
    with monkeypatch.context() as patch:
        patch.setattr(FakeTree, "keep", keep)
        with pytest.raises(KilledError):
            tried()


@pytest.mark.parametrize("after", ["knobs", "file"])
def test_killed_while_it_keeps(
    tried: Callable[..., Result], run: Run, tree: FakeTree, clock: Plain,
    monkeypatch: pytest.MonkeyPatch, after: str,
) -> None:  # fmt: skip
    """If a trial was killed while it kept the sizes, and nothing restored them, everything says so;
    `ab restore` takes all back.
    """
    clock.cpu_times, before = 0.9, read_knobs(tree)
    kill_while_keeping(tried, monkeypatch, after)
    assert read_knobs(tree) == before | ALL
    assert read_trials(tree)[-1].phase == KEEPING
    status = run("try", "--status")
    assert (status.code, status.out.startswith(f"{LEFT}: ")) == (6, True)
    assert "mmpolicy ab restore" in status.out
    verify = run("verify")
    assert (verify.code, "knobs of the kernel still have its values" in verify.err) == (6, True)
    screen = run()
    assert (screen.code, "knobs of the kernel still" in screen.out.replace("\n", " ")) == (6, True)
    assert run("ab", "restore").code == 0
    assert read_knobs(tree) == before
    assert not tree.exists(BOOT_FILE)
    trial = read_trials(tree)[-1]
    assert (trial.phase, trial.exit, standing(tree, trial)) == (BACK, 1, BACK)
    assert run("try", "--report").out.endswith(
        "decision   not kept: the trial was killed while it set the sizes; the former "
        "sizes are restored\nnow        back\n"
    )
    assert run().code == 0


def test_a_file_that_cannot_be_removed(
    tried: Callable[..., Result], run: Run, tree: FakeTree, clock: Plain,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """If a file cannot be removed, the former sizes come back all the same, and the exit code tells
    of the file.
    """
    clock.cpu_times, before = 0.9, read_knobs(tree)
    kill_while_keeping(tried, monkeypatch, "file")
    real = FakeTree.drop

    def drop(self: FakeTree, path: str) -> None:
        if path == BOOT_FILE:
            raise Error("read-only", 1, "remount it")
        real(self, path)

    monkeypatch.setattr(FakeTree, "drop", drop)
    assert run("ab", "restore").code == 1
    assert read_knobs(tree) == before
    assert run("try", "--status").code == run("verify").code == 6


def test_sizes_that_are_kept_in_part(
    tried: Callable[..., Result], run: Run, tree: FakeTree, clock: Plain
) -> None:
    """Sizes that are kept only in part are reported: a person has set one since, while the file
    still sets it at each boot.
    """
    clock.cpu_times = 0.9
    assert tried().code == 0
    tree.tune(SIZES[0], "never")
    kept = read_trials(tree)[-1]
    assert standing(tree, kept) == CHANGED
    for result in run("verify"), run():
        assert (result.code, "keeps are no longer in force" in result.out + result.err) == (6, True)
        assert f"rm {BOOT_FILE}" in " ".join((result.out + result.err).split())
    kept.keep(tree, phase=KEEPING)
    assert standing(tree, read_trials(tree)[-1]) == HALF_KEPT
    status = run("try", "--status")
    assert (status.code, status.out.endswith(f"this undoes it: {kept.undo}\n")) == (6, True)
    kept.keep(tree, phase=RUNNING)
    with tree.locked(AB_LOCK, f"{RESTORE}1"):
        tree.put(RECOVERY, json.dumps({"before": {}, "ours": {}, "wanted": {}}))
        assert standing(tree, read_trials(tree)[-1]) != LEFT  # as somebody restores them
    assert standing(tree, read_trials(tree)[-1]) == LEFT
    put_back(tree)
    withdraw(tree)  # of a trial that has kept nothing
    assert tree.exists(BOOT_FILE)


def test_what_cannot_be_kept(
    tried: Callable[..., Result], tree: FakeTree, clock: Plain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a full disk prevents keeping, the former sizes come back, and the error says why."""
    clock.cpu_times, before = 0.9, read_knobs(tree)
    real = FakeTree.keep

    def keep(self: FakeTree, path: str, text: str, mode: int = 0o600) -> None:
        if path == BOOT_FILE:
            raise Error("no space", 1, "make some")
        real(self, path, text, mode)

    monkeypatch.setattr(FakeTree, "keep", keep)
    result = tried()
    assert (result.code, "no space" in result.err) == (1, True)
    assert read_knobs(tree) == before
    assert not tree.exists(RECOVERY)
    assert (
        read_trials(tree)[-1].page[-1]
        == "decision   not kept, the former state is restored: no space"
    )


@pytest.fixture
def host(tree: FakeTree) -> FakeTree:
    """Return a calibrated host with systemd, on which a program works."""
    tree.make_unloaded()
    tree.put(f"{SYSTEMD}/there", "")
    tree.installed = False
    make_thp(tree)
    keep(tree)
    make_sparse(tree, 11, "web", 2048, 1, WEB)
    tree.put("/sys/fs/cgroup/cgroup.procs", "")
    stat(tree, 0)
    return tree


class Turns(Clock):
    """Time in which programs fault at each turn of a look."""

    def __init__(self, tree: FakeTree, faults: int) -> None:
        super().__init__()
        self.tree, self.faults = tree, faults

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        faults = int(self.faults * self.now)
        count(self.tree, 11, "web", 2048, faults, int(20 * self.now))
        self.tree.put("/proc/vmstat", f"pgfault {100 + faults}\ncompact_stall 5\nnr_anon_pages 7")
        stat(self.tree, 0.1 * self.now, 0.2 * self.now)


def looked(host: FakeTree, faults: int) -> Any:
    """Return the answer about a host with so many faults a second."""
    clock = Turns(host, faults)
    app = Host(host, None, clock.sleep, lambda: clock.now)
    words = ["try", "--host", "--seconds", "10", "--dry-run", "--json"]
    result = CliRunner().invoke(main, words, obj=app)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize(("faults", "verdict"), [(10, NOT_WORTH), (10_000, WORTH)])
def test_the_look(host: FakeTree, faults: int, verdict: str) -> None:
    """The look uses the counters of the whole host; a service may pay where the host does not."""
    answer = looked(host, faults)
    assert (answer["cgroup"], answer["verdict"]) == ("/", verdict)
    assert answer["seen"]["faults"] == pytest.approx(faults)
    assert answer["seen"]["cpu"] == pytest.approx(30)
    assert answer["seen"]["kernel"] == pytest.approx(20)
    assert [each["name"] for each in answer["candidates"]] == ["thp-sizes"] * (verdict == WORTH)
    assert answer["notes"] == ["mmpolicy recommend looks for changes that pay for one service"]
    for each in answer["candidates"]:
        assert each["commands"] == ["mmpolicy try --host --candidate thp-sizes"]
