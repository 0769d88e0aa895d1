# SPDX-License-Identifier: GPL-2.0
"""Arms that are knobs of the kernel itself: no module, and the way back by a watchdog."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from mmpolicy.ab.keeper import WILL, Keeper
from mmpolicy.ab.lab import StoppedError
from mmpolicy.ab.samples import load
from mmpolicy.errors import Error
from mmpolicy.host.knobs import Values, read_knobs

from .ab_world import SWITCHBACK, World
from .fakes import CONTROL, SETTABLE, THP, VM, FakeTree, Run

LOCK = "/run/mmpolicy/ab.lock"
SIZE = f"{THP}/hugepages-64kB/enabled"
FREE = f"{VM}/min_free_kbytes"
LONG = [*SWITCHBACK, "--lease", "5m"]
LARGE = ["--treatment", "hugepages-64kB/enabled=always"]


class Plain(World):
    """Time on a host without the module: 64 kB folios make 10 % fewer faults."""

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.faults += seconds * (900 if "[always]" in self.tree.read(SIZE) else 1000)
        self.put()
        while self.at and self.now >= self.at[0][0]:
            self.at.pop(0)[1]()
        self.seen.append(read_knobs(self.tree))

    def __init__(self, tree: FakeTree) -> None:
        self.seen: list[Values] = []
        super().__init__(tree)


@pytest.fixture
def clock(tree: FakeTree) -> Plain:
    """Return time in which things happen; the module is not loaded."""
    tree.make_unloaded()
    return Plain(tree)


def values(clock: Plain, path: str) -> set[str]:
    """Return what a knob has had."""
    return {each[path] for each in clock.seen}


def test_knobs_are_what_can_be_read_and_written(tree: FakeTree) -> None:
    found = read_knobs(tree)
    assert set(found) == set(SETTABLE)
    assert (found[SIZE], found[f"{VM}/lowmem_reserve_ratio"]) == ("never", "256 256 32")


def test_arms_take_turns_without_the_module(
    ab: Run, run: Run, out: Path, tree: FakeTree, clock: Plain
) -> None:
    before = read_knobs(tree)
    result = ab(*LONG, *LARGE)
    assert result.code == 0, result.err
    assert read_knobs(tree) == before
    assert not tree.exists(WILL)
    recording = load(out)
    (metric,) = recording.metrics()
    for phase, expected in ("aa", (1000, 1000)), ("ab", (1000, 900)):
        for pair in recording.pairs(metric, phase):
            assert pair == pytest.approx(expected, rel=0.001)
    settings = recording.header["treatment"]["settings"]
    assert settings == {"transparent_hugepage/hugepages-64kB/enabled": "always"}
    assert run("ab", "report", str(out)).code == 0
    said = run("log").out
    assert "begins: default, hugepages-64kB/enabled=always" in said
    assert "ends: done" in said


def test_what_huge_pages_count(ab: Run, out: Path, tree: FakeTree, clock: Plain) -> None:
    """A level and a counter as metrics; a path that leads elsewhere is refused."""
    stats = f"{THP}/hugepages-64kB/stats"

    def count() -> None:
        tree.put(f"{stats}/nr_anon", "5")
        tree.put(f"{stats}/anon_fault_alloc", f"{clock.now * 100:.0f}")
        clock.at = [(clock.now + 0.1, count)]

    count()
    metrics = [f"thp.hugepages-64kB/stats/{name}" for name in ("nr_anon", "anon_fault_alloc/s")]
    words = [word for metric in metrics for word in ("--metric", metric)]
    assert ab(*LONG, *LARGE, *words, "--pairs", "7").code == 0
    recording = load(out)
    _, level, rate = recording.metrics()
    assert recording.pairs(level, "ab") == [(5, 5)] * 7
    assert recording.pairs(rate, "ab")[0] == pytest.approx((100, 100), rel=0.1)
    assert ab(*LONG, "--metric", "thp.../vmstat").code == 2
    result = ab(*LONG, "--metric", "thp.hugepages-3kB/stats/nr_anon", "--pairs", "7")
    assert (result.code, "hugepages-3kB" in result.err) == (3, True)


def test_the_treatment_waits_for_the_aa_phase(ab: Run, clock: Plain) -> None:
    ab(*LONG, *LARGE)
    seen = [each[SIZE] for each in clock.seen]
    assert seen.index("always") >= len(seen) / 4
    assert seen.count("always") == pytest.approx(len(seen) * 6 / 16, abs=6)


def test_names_with_a_star_and_the_last_one_counts(ab: Run, clock: Plain) -> None:
    words = "hugepages-*/enabled=madvise,hugepages-64kB/enabled=always,vm/min_free_kbytes=7"
    assert ab(*LONG, "--treatment", words).code == 0
    assert values(clock, SIZE) == {"never", "always"}
    assert values(clock, f"{THP}/hugepages-2048kB/enabled") == {"inherit", "madvise"}
    assert values(clock, FREE) == {"4000", "7"}


def test_what_changes_along_comes_back_too(ab: Run, tree: FakeTree, clock: Plain) -> None:
    """The administrator had another min_free_kbytes than the kernel makes of huge pages."""
    tree.put(FREE, "3333")
    before = read_knobs(tree)
    assert ab(*LONG, "--treatment", "transparent_hugepage/enabled=never").code == 0
    assert "1000" in values(clock, FREE)
    assert read_knobs(tree) == before


def test_what_the_administrator_sets_stays_and_is_told(
    ab: Run, out: Path, tree: FakeTree, clock: Plain
) -> None:
    """A knob of the arms ends the run; another one is his business."""
    before = read_knobs(tree)
    proactive = f"{VM}/compaction_proactiveness"
    clock.at = [(5.0, lambda: tree.put(proactive, "55"))]
    clock.at += [(30.0, lambda: tree.put(SIZE, "always inherit [madvise] never"))]
    result = ab(*LONG, *LARGE, "--treatment", f"{LARGE[1]},defrag=never", "--lease", "8s")
    assert result.code == 1
    text = "somebody else has set transparent_hugepage/hugepages-64kB/enabled=madvise"
    assert text in result.err
    assert "left as somebody else has set it: transparent_hugepage/hugepages-64kB" in result.err
    assert read_knobs(tree) == before | {SIZE: "madvise", proactive: "55"}
    assert load(out).end["status"] == "lost"
    assert clock.now < 36


def test_a_write_just_before_ours_stays(tree: FakeTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the look at all knobs, and before the one that is written."""
    keeper = Keeper(tree, {SIZE: "never"})
    set_it = partial(tree.put, SIZE, "always inherit [madvise] never")
    monkeypatch.setattr(keeper, "_write_will", set_it)
    with pytest.raises(StoppedError, match="hugepages-64kB/enabled=madvise"):
        keeper.go({SIZE: "always"})
    assert "left as somebody else has set it" in keeper.back()
    assert read_knobs(tree)[SIZE] == "madvise"


def test_a_guard(ab: Run, tree: FakeTree, clock: Plain) -> None:
    before = read_knobs(tree)
    result = ab(*LONG, *LARGE, "--guard", "vmstat.pgfault/s > 950")
    assert result.code == 1
    assert "guard 'vmstat.pgfault/s > 950': it is 9" in result.err
    assert "the state from before is back" in result.err
    assert read_knobs(tree) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_restore(ab: Run, tree: FakeTree, clock: Plain, number: int) -> None:
    before = read_knobs(tree)
    clock.at = [(30.0, lambda: os.kill(os.getpid(), number))]
    result = ab(*LONG, *LARGE)
    assert (result.code, read_knobs(tree)) == (1, before)
    assert f"interrupted: by {signal.Signals(number).name}" in result.err


def test_a_value_that_the_kernel_refuses_ends_it_before_the_first_block(
    ab: Run, out: Path, tree: FakeTree, clock: Plain
) -> None:
    before = read_knobs(tree)
    result = ab(*LONG, "--treatment", "hugepages-64kB/enabled=always,min_free_kbytes=lots")
    assert (result.code, read_knobs(tree)) == (5, before)
    assert f"cannot write 'lots' to {tree.real(FREE)}: EINVAL" in result.err
    assert not load(out).blocks


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["--treatment", "hugepages-64kB/enabled=alway"], 2, "did you mean always"),
        (["--treatment", "hugepage-64kB/enabled=always"], 3, "hugepages-64kB/enabled"),
        (["--treatment", "drop_caches=3"], 3, "no knob 'drop_caches'"),
        (["--treatment", "vm/../kernel/panic=1"], 3, "no knob"),
        (["--treatment", "anon_order=adaptive"], 3, "mmpolicy load"),
        ([*LARGE, "--design", "split"], 2, "or --design switchback"),
        ([*LARGE, "--cgroup", "/"], 2, "--cgroup is for arms with policies"),
        (["--treatment", "web"], 3, "not loaded"),
    ],
)
def test_wrong_usage_changes_nothing(
    ab: Run, out: Path, tree: FakeTree, clock: Plain, words: list[str], code: int, text: str
) -> None:
    before = read_knobs(tree)
    result = ab(*SWITCHBACK, *words)
    assert text in result.err
    assert (result.code, read_knobs(tree), out.exists()) == (code, before, False)


def test_without_rights_nothing_begins(ab: Run, out: Path, tree: FakeTree, clock: Plain) -> None:
    tree.denied = True
    result = ab(*SWITCHBACK, *LARGE)
    assert (result.code, out.exists()) == (4, False)
    assert f"no permission to write {tree.real(SIZE)}" in result.err


def test_dry_run(run: Run, tree: FakeTree, clock: Plain) -> None:
    words = ["ab", "run", *SWITCHBACK, "--control", "defrag=defer", *LARGE, "--dry-run"]
    before = read_knobs(tree)
    assert run(*words).out.splitlines()[:3] == [
        f"{THP}/defrag <- defer",
        f"{THP}/defrag <- madvise",
        f"{SIZE} <- always",
    ]
    writes = run(*words, "--json").json["writes"]
    assert {"path": SIZE, "value": "always"} in writes
    assert read_knobs(tree) == before


def test_equal_arms_need_no_module_either(ab: Run, run: Run, out: Path, clock: Plain) -> None:
    assert ab(*LONG).code == 0
    assert "both arms are the same, and no difference" in run("ab", "report", str(out)).out


class TestWithTheModule:
    """Policies against knobs, in one run."""

    @pytest.fixture
    def clock(self, tree: FakeTree) -> Plain:
        """Return time in which things happen; the module is loaded."""
        return Plain(tree)

    def test_knobs_alone_leave_it_as_it_is(
        self, ab: Run, run: Run, tree: FakeTree, clock: Plain
    ) -> None:
        run("set", "anon_order", "adaptive")
        tree.writes.clear()
        assert ab(*LONG, *LARGE).code == 0
        assert values(clock, SIZE) == {"never", "always"}
        assert tree.writes == []

    def test_a_policy_against_a_knob(self, ab: Run, tree: FakeTree, clock: Plain) -> None:
        chosen = set()
        path = f"{CONTROL}/profiles/ab-treatment/anon_order/policy"

        def look() -> None:
            enabled = tree.read(f"{CONTROL}/experiment/percent") == "100"
            chosen.add((enabled and "[fixed]" in tree.read(path), clock.seen[-1][SIZE]))
            clock.at = [(clock.now + 1, look)]

        clock.at = [(20.0, look)]
        before = read_knobs(tree)
        words = ["--control", LARGE[1], "--treatment", "anon_order=fixed"]
        assert ab(*LONG, *words).code == 0
        assert {(True, "never"), (False, "always")} <= chosen
        assert read_knobs(tree) == before
        assert tree.read(f"{CONTROL}/state") == "stock"


# With real processes, which are killed.


@pytest.fixture
def begin(tree: FakeTree, tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Return a function that begins a long run on the files of the host."""
    tree.make_unloaded()
    tree.put("/proc/vmstat", "pgfault 0")

    def begin(*words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "mmpolicy", "--root", str(tree.root), "ab", "run"]
        command += ["--design", "switchback", "--metric", "vmstat.pgfault/s", "--block", "0.2"]
        command += ["--washout", "0.1", "--interval", "0.1", "--aa", "0", "--pairs", "500"]
        command += ["--treatment", "hugepages-64kB/enabled=always,vm/min_free_kbytes=7", *words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, cwd=tmp_path, start_new_session=True, **pipes)  # type: ignore[call-overload, no-any-return]

    return begin


def wait_until(condition: Callable[[], object], seconds: float = 60) -> None:
    """Wait for something to be so."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def watchdog_of(pid: int) -> int:
    """Return the process that has the knobs."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def is_free(tree: FakeTree) -> bool:
    """Tell if nobody holds the lock."""
    try:
        with tree.locked(LOCK, "test"):
            return True
    except Error:
        return False


Begin = Callable[..., subprocess.Popen[str]]


def test_sigkill_at_any_moment(begin: Begin, tree: FakeTree, run: Run) -> None:
    """All values are as before within the lease, and the journal tells of it."""
    rng, before = random.Random(1), read_knobs(tree)
    for number in range(6):
        process = begin("--lease", "30s", "--out", f"{number}.jsonl")
        wait_until(lambda: tree.exists(WILL))
        if number % 2:
            wait_until(lambda: read_knobs(tree) != before)
        time.sleep(rng.uniform(0, 0.5))
        process.kill()
        process.communicate()
        wait_until(lambda: is_free(tree), 10)
        assert read_knobs(tree) == before
        assert not tree.exists(WILL)
    assert run("log").out.count("it was killed; the knobs are as before") == 6


def test_a_command_that_hangs_loses_its_lease(begin: Begin, tree: FakeTree) -> None:
    before = read_knobs(tree)
    process = begin("--lease", "1s")
    wait_until(lambda: read_knobs(tree) != before)
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: not tree.exists(WILL), 10)
    assert read_knobs(tree) == before
    process.send_signal(signal.SIGCONT)
    assert "lost: the watchdog has ended" in process.communicate(timeout=60)[1]
    assert process.returncode == 1
    assert read_knobs(tree) == before


def test_a_second_run_is_refused_and_names_the_first(begin: Begin, tree: FakeTree) -> None:
    """Also while only the watchdog of the first is left."""
    first = begin("--lease", "5m")
    wait_until(lambda: tree.exists(WILL))
    second = begin("--out", "second.jsonl")
    assert f"is held by ab run, pid {first.pid}, which" in second.communicate(timeout=60)[1]
    watchdog = watchdog_of(first.pid)
    os.kill(watchdog, signal.SIGSTOP)
    first.kill()
    first.communicate()
    third = begin("--out", "third.jsonl")
    assert f"is held by ab run, pid {first.pid}, which" in third.communicate(timeout=60)[1]
    os.kill(watchdog, signal.SIGCONT)
    wait_until(lambda: is_free(tree), 10)


def test_a_watchdog_that_is_killed(begin: Begin, tree: FakeTree) -> None:
    """The command puts all back, and ends."""
    before = read_knobs(tree)
    process = begin("--lease", "4s")
    wait_until(lambda: read_knobs(tree) != before)
    os.kill(watchdog_of(process.pid), signal.SIGKILL)
    assert "lost: the watchdog has ended" in process.communicate(timeout=60)[1]
    assert read_knobs(tree) == before


def test_both_are_killed(begin: Begin, tree: FakeTree, run: Run) -> None:
    """What was before is kept in a file, for the next run or `ab restore`."""
    before = read_knobs(tree)
    for words in (["ab", "restore"], ["ab", "run", "--out", str(tree.real("/x")), "--treatment",
                                      "min_free_kbytes=lots", *SWITCHBACK]):  # fmt: skip
        process = begin("--lease", "5m", "--out", f"{len(words)}.jsonl")
        wait_until(lambda: read_knobs(tree) != before)
        for pid in (watchdog_of(process.pid), process.pid):
            os.kill(pid, signal.SIGKILL)
        process.communicate()
        wait_until(lambda: is_free(tree))
        assert read_knobs(tree) != before
        tree.make_host()  # texts as the kernel shows them
        tree.put(SIZE, "[always] inherit madvise never")
        assert f"{SIZE} <- never" in run("ab", "restore", "--dry-run").out
        result = run(*words)
        assert "put back what a killed experiment had set" in result.out + result.err
        assert read_knobs(tree) == before
        assert not tree.exists(WILL)
    assert run("ab", "restore").out == "nothing was left\n"


@pytest.mark.parametrize(
    "will",
    [
        "",
        "[]",
        '{"before": {}}',
        json.dumps({"before": {FREE: "1"}, "ours": {}, "wanted": {}}),
        *(
            json.dumps({"before": {path: "1"}, "ours": {path: "0"}, "wanted": {}})
            for path in ("/run/victim", f"{VM}/../victim", f"{VM}x/victim")
        ),
    ],
)
def test_what_is_left_is_not_trusted(tree: FakeTree, run: Run, will: str) -> None:
    """A file that is damaged, or leads elsewhere, is refused or told of, and nothing is written."""
    victims = ("/run/victim", f"{VM}/../victim", f"{VM}x/victim")
    for path in victims:
        tree.put(path, "0")
    tree.put(WILL, will)
    result = run("ab", "restore")
    assert result.code == 1 or "may lead elsewhere" in result.out
    assert {tree.read(path) for path in victims} == {"0"}
    assert read_knobs(tree)[FREE] == "4000"
