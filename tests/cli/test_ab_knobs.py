# SPDX-License-Identifier: GPL-2.0
"""Arms that are knobs of the kernel itself: without the module, restored by a watchdog."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mmpolicy.ab.design import Block
from mmpolicy.ab.run.changes import Changes
from mmpolicy.ab.run.keeper import Keeper
from mmpolicy.ab.run.knobs import Knobs
from mmpolicy.ab.run.policy_arms import StoppedError
from mmpolicy.ab.run.scope import Scope
from mmpolicy.ab.run.watchdog import Message, Watchdog, _serve
from mmpolicy.ab.samples import load
from mmpolicy.control.experiment import PROFILES, RECOVERY
from mmpolicy.errors import Error, Exit
from mmpolicy.host.knobs import Values, read_knobs
from mmpolicy.host.machine import Host
from mmpolicy.verbs.ab_run import _changes, _check_alone, _has_policies

from .ab_world import PGFAULT, SWITCHBACK, World
from .fakes import CONTROL, SETTABLE, THP, VM, FakeTree, Run
from .test_ab_sources import options
from .test_host import raised

LOCK = "/run/mmpolicy/ab.lock"
SIZE = f"{THP}/hugepages-64kB/enabled"
FREE = f"{VM}/min_free_kbytes"
LONG = [*SWITCHBACK, "--lease", "5m"]
LONGER = ["--pairs", "7"]
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
    """Return time in which scheduled events happen; the module is not loaded."""
    tree.make_unloaded()
    return Plain(tree)


def values(clock: Plain, path: str) -> set[str]:
    """Return the values that a knob has had."""
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
    assert not tree.exists(RECOVERY)
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
    """A level and a counter of huge pages can be metrics; a path out of their folder is refused."""
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
    """A knob that the kernel changes along is restored: min_free_kbytes gets the administrator's
    value back.
    """
    tree.put(FREE, "3333")
    before = read_knobs(tree)
    assert ab(*LONG, "--treatment", "transparent_hugepage/enabled=never").code == 0
    assert "1000" in values(clock, FREE)
    assert read_knobs(tree) == before


def test_what_the_administrator_sets_stays_and_is_told(
    ab: Run, out: Path, tree: FakeTree, clock: Plain
) -> None:
    """An administrator's write to a knob of the arms ends the run; other knobs are free."""
    before = read_knobs(tree)
    proactive = f"{VM}/compaction_proactiveness"
    clock.at = [(5.0, lambda: tree.put(proactive, "55"))]
    clock.at += [(30.0, lambda: tree.put(SIZE, "always inherit [madvise] never"))]
    result = ab(*LONG, *LARGE, "--treatment", f"{LARGE[1]},defrag=never", "--lease", "8s")
    assert result.code == 1
    text = (
        "another program has changed a knob of the experiment: "
        "transparent_hugepage/hugepages-64kB/enabled=madvise"
    )
    assert text in result.err
    assert (
        "these knobs are not restored, as another program has changed them: "
        "transparent_hugepage/hugepages-64kB"
    ) in result.err
    assert read_knobs(tree) == before | {SIZE: "madvise", proactive: "55"}
    assert load(out).end["status"] == "lost"
    assert clock.now < 36


def test_a_write_just_before_ours_stays(tree: FakeTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write between the run's check of all knobs and its own write is not overwritten
    at the end.
    """
    keeper = Keeper(tree, {SIZE: "never"})
    set_it = partial(tree.put, SIZE, "always inherit [madvise] never")
    monkeypatch.setattr(keeper, "_write_recovery_file", set_it)
    with pytest.raises(StoppedError, match="hugepages-64kB/enabled=madvise"):
        keeper.go({SIZE: "always"})
    assert "these knobs are not restored, as another program has changed them" in keeper.back()
    assert read_knobs(tree)[SIZE] == "madvise"


def test_a_knob_of_which_the_kernel_makes_something_else(tree: FakeTree) -> None:
    """A knob to which the kernel gives another value is written three times, in case of another
    writer; then that value counts as the run's own.
    """
    written: list[str] = []

    def tune(path: str, value: str) -> None:
        written.append(value)
        tree.put(path, "8" if value == "7" else value)

    tree.tune = tune  # type: ignore
    keeper = Keeper(tree, {FREE: "4000"})
    keeper.go({FREE: "7"})
    assert (written, keeper.ours) == (["7"] * 3, {FREE: "8"})
    keeper.check()
    assert [step.line() for step in keeper.rehearsal()] == [f"{FREE} <- 4000  (8 -> 4000)"]
    assert keeper.back() == ""
    assert (read_knobs(tree)[FREE], written[3:]) == ("4000", ["4000"])
    assert not tree.exists(RECOVERY)


class Heard:
    """A watchdog that only records its requests."""

    def __init__(self, keeper: Keeper, lease_s: float, tell: object, look: object) -> None:
        self.begun = (keeper.before, lease_s)
        self.asked: list[Message] = []

    def ask(self, request: Message) -> None:
        """Record the request."""
        self.asked.append(request)

    def end(self) -> str:
        """Record the end."""
        return "a note"


def test_what_the_watchdog_is_asked(tree: FakeTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watchdog gets each value once and its old value back, with signals and guards checked
    before each; then the arms take turns.
    """
    monkeypatch.setattr("mmpolicy.ab.run.knobs.Watchdog", Heard)
    before, looks = read_knobs(tree), list[int]()
    arms: dict[str, Values] = {"control": {FREE: "5"}, "treatment": {SIZE: "always"}}
    own = {"control": {FREE: "5", SIZE: "never"}, "treatment": {FREE: "4000", SIZE: "always"}}
    knobs = Knobs(tree, before, arms, 2.5, print)
    assert knobs.arms == own
    knobs.look = lambda: looks.append(1)
    for phase, arm in (("aa", "treatment"), ("ab", "treatment"), ("ab", "control")):
        knobs.enter(Block(0, phase, 0, arm, 0))
    knobs.renew()
    assert (knobs.restore(), knobs.watchdog) == ("", None)  # there is none yet
    knobs.set_up()
    heard: Any = knobs.watchdog
    assert (heard.begun, looks) == (({FREE: "4000", SIZE: "never"}, 2.5), [1, 1, 1])
    assert heard.asked == [{"learn": own[arm]} for arm in ("control", "treatment", "control")]
    heard.asked.clear()
    for phase, arm in (("aa", "treatment"), ("ab", "treatment"), ("ab", "control")):
        knobs.enter(Block(0, phase, 0, arm, 0))
    knobs.renew()
    asked = [{"go": own[arm]} for arm in ("control", "treatment", "control")]
    assert heard.asked == [*asked, {}]
    assert (knobs.restore(), knobs.watchdog) == ("a note", None)
    for guarded in (False, True):
        plain = Knobs(tree, before, {"control": {}, "treatment": {}}, 2.5, print, guarded)
        plain.set_up()
        assert (plain.watchdog is not None) == guarded
    bare = Knobs(tree, before, {"control": {}, "treatment": {}}, 2.5, print)
    bare.set_up()
    assert bare.watchdog is None


@pytest.mark.parametrize(
    ("requests", "end", "asked", "answers", "told"),
    [
        ([{"learn": {"a": "1"}}, {"go": {"b": "2"}}, {}], "close", ["learn", "go", "check"],
         [{}, {}, {}], (
             "experiment ends, as its process was killed; all knobs have their former values"
         )),
        ([], "wait", [], [], (
            "experiment ends, as its process has not reported for 0.05 s; all knobs have their "
            "former values"
        )),
        ([{"end": True}], "", [], [{"note": ""}], ""),
        ([{"go": {"lost": ""}}, {"go": {"bad": ""}}], "close", ["go", "go"],
         [{"lost": "who"}, {"error": ["no", 3, "next", 5, "/x"]}],
         "experiment ends, as its process was killed; all knobs have their former values"),
    ],
)  # fmt: skip
def test_what_the_watchdog_does(
    requests: list[Message], end: str, asked: list[str], answers: list[Message], told: str
) -> None:
    done, said = list[str](), list[str]()

    def go(values: Values) -> None:
        done.append("go")
        if "lost" in values:
            raise StoppedError("lost", "who")
        if "bad" in values:
            raise Error("no", Exit.LACKING, "next", 5, "/x")

    keeper: Any = SimpleNamespace(
        learn=lambda _: done.append("learn"), go=go, check=lambda: done.append("check"),
        back=lambda: "",
    )  # fmt: skip
    wire, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with wire, theirs:
        for request in requests:
            wire.send(json.dumps(request).encode())
        if end == "close":
            wire.shutdown(socket.SHUT_WR)
        _serve(keeper, theirs, 0.05, said.append)
        heard = [json.loads(wire.recv(9999)) for _ in answers]
    assert (done, heard, said) == (asked, answers, [told] * bool(told))


@pytest.fixture
def silent() -> Iterator[tuple[Watchdog, socket.socket, subprocess.Popen[bytes]]]:
    """Return the command's view of a watchdog, the other end of its socket, and its process."""
    process = subprocess.Popen(["sleep", "60"])
    wire, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    wire.settimeout(0.01)
    dog = Watchdog.__new__(Watchdog)
    dog.wire, dog.pid, dog.lease_s, dog.look = wire, process.pid, 0.1, lambda: None
    with wire, theirs:
        yield dog, theirs, process
    process.kill()
    process.wait()


Silent = tuple[Watchdog, socket.socket, subprocess.Popen[bytes]]


def test_what_the_watchdog_answers(silent: Silent) -> None:
    dog, theirs, process = silent
    theirs.send(b'{"note": "x"}')
    assert dog.ask({"go": {"a": "1"}}) == {"note": "x"}
    assert json.loads(theirs.recv(999)) == {"go": {"a": "1"}}
    theirs.send(b'{"lost": "who"}')
    with pytest.raises(StoppedError, match=r"^who$"):
        dog.ask({})
    theirs.send(b'{"error": ["no", 3, "next", 5, "/x"]}')
    told = raised(dog.ask, {})
    assert (told.message, told.exit_code, told.next_step, told.errno, told.path) == (
        "no", Exit.LACKING, "next", 5, "/x",
    )  # fmt: skip
    theirs.close()
    for _ in range(2):
        with pytest.raises(
            StoppedError, match="the watchdog process of the experiment has ended: it has"
        ):
            dog.ask({})
    assert process.poll() is None


def test_a_watchdog_that_does_not_answer_is_ended(silent: Silent) -> None:
    dog, _, process = silent
    looks: list[int] = []
    dog.look = lambda: looks.append(1)
    with pytest.raises(
        StoppedError, match=r"^the watchdog process of the experiment has not answered for 0\.1 s$"
    ):
        dog.ask({})
    assert (process.wait(), dog.wire.fileno()) == (-signal.SIGKILL, -1)
    assert looks
    dog._kill()  # a second kill does no harm


def test_a_signal_waits_for_no_watchdog(silent: Silent) -> None:
    dog, _, process = silent
    dog.lease_s = 60.0

    def look() -> None:
        raise StoppedError("interrupted", "by SIGINT")

    dog.look = look
    with pytest.raises(StoppedError, match="by SIGINT"):
        dog.ask({})
    assert (process.wait(), dog.wire.fileno()) == (-signal.SIGKILL, -1)


@pytest.mark.parametrize(
    "guard", ["vmstat.nr_mapped < 7", "vmstat.nr_mapped < 1e+0", "vmstat.pgfault/s < 5"]
)
def test_a_guard_that_is_broken_already_refuses_the_run(
    ab: Run, out: Path, tree: FakeTree, clock: Plain, guard: str
) -> None:
    """The treatment is never written, even if the failure takes a second to detect."""
    tuned: list[str] = []
    tree.tune = lambda path, _value: tuned.append(path)  # type: ignore
    result = ab(*LONG, *LARGE, "--guard", guard)
    assert (result.code, tuned, out.exists()) == (1, [], False)
    assert f"guard '{guard}' is violated: the value is " in result.err
    assert "before the run has begun; nothing was changed" in result.err
    assert ab(*LONG, *LARGE, "--guard", guard, "--dry-run").code == 1


def test_a_guard_that_breaks_between_the_first_writes(
    ab: Run, tree: FakeTree, clock: Plain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a guard breaks between the first writes, the treatment is not even tried."""
    tried: list[Values] = []
    ask = Watchdog.ask

    def broken(self: Watchdog, request: Message) -> Message:
        if "learn" in request:
            tried.append(request["learn"])
            tree.put("/proc/vmstat", "pgfault 0\nnr_mapped 9")
        return ask(self, request)

    monkeypatch.setattr(Watchdog, "ask", broken)
    result = ab(*LONG, *LARGE, "--guard", "vmstat.nr_mapped < 8")
    assert (result.code, tried) == (1, [{SIZE: "never"}])
    assert "the value is 9" in result.err
    assert "next: give the command again" in result.err  # there are no samples to report
    monkeypatch.undo()
    tree.put("/proc/vmstat", "pgfault 0\nnr_mapped 7")
    assert ab(*LONG, *LARGE, "--guard", "vmstat.nr_mapped < 8").code == 0


def test_knobs_take_turns_without_being_told(ab: Run, out: Path, clock: Plain) -> None:
    words = [word for word in LONG if word not in ("--design", "switchback")]
    assert ab(*words, *LARGE).code == 0
    assert load(out).header["design"] == "switchback"


def test_what_is_done_by_reading_is_no_knob(tree: FakeTree) -> None:
    tree.put(f"{VM}/stat_refresh", "")
    tree.real(f"{VM}/stat_refresh").chmod(0o600)
    read: list[str] = []
    plain = tree.read_bytes
    tree.read_bytes = lambda path: read.append(path) or plain(path)  # type: ignore
    assert read_knobs(tree)
    assert f"{VM}/stat_refresh" not in read


def test_a_guard(ab: Run, tree: FakeTree, clock: Plain) -> None:
    before = read_knobs(tree)
    result = ab(*LONG, *LARGE, "--guard", "vmstat.pgfault/s > 950")
    assert result.code == 1
    assert "guard 'vmstat.pgfault/s > 950' is violated: the value is 9" in result.err
    assert "the former state was restored" in result.err
    assert read_knobs(tree) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_restore(ab: Run, tree: FakeTree, clock: Plain, number: int) -> None:
    before = read_knobs(tree)
    clock.at = [(30.0, lambda: os.kill(os.getpid(), number))]
    result = ab(*LONG, *LARGE)
    assert (result.code, read_knobs(tree)) == (128 + number, before)
    assert f"interrupted: by {signal.Signals(number).name}" in result.err


def test_a_value_that_the_kernel_refuses_ends_it_before_the_first_block(
    ab: Run, out: Path, tree: FakeTree, clock: Plain
) -> None:
    before = read_knobs(tree)
    tree.refusals[FREE] = 22
    result = ab(*LONG, "--treatment", "hugepages-64kB/enabled=always,min_free_kbytes=1")
    assert (result.code, read_knobs(tree)) == (5, before)
    assert f"cannot write '1' to {tree.real(FREE)}: EINVAL" in result.err
    assert not load(out).blocks


def test_metrics_of_cgroups_are_read_where_these_are_mounted(
    ab: Run, out: Path, tree: FakeTree, clock: Plain
) -> None:
    """Metrics of cgroups are read where the hierarchy is mounted, as on a hybrid host, which also
    has cgroup v1.
    """
    tree.mount("cgroup2 /sys/fs/cgroup/unified")
    tree.put("/sys/fs/cgroup/unified/app.slice/memory.current", "4096")
    tree.put("/sys/fs/cgroup/app.slice/memory.current", "1")
    metric = "cgroup:/app.slice/memory.current"
    assert ab(*SWITCHBACK, *LARGE, *LONGER, "--metric", f"{metric} lower").code == 0
    windows = load(out).windows.values()
    assert {sample.host[metric] for window in windows for sample in window} == {4096}


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["--treatment", "hugepages-64kB/enabled=alway"], 2, "did you mean always"),
        (["--treatment", "hugepage-64kB/enabled=always"], 3, "hugepages-64kB/enabled"),
        (["--treatment", "drop_caches=3"], 3, "no knob 'drop_caches'"),
        (["--treatment", "vm/../kernel/panic=1"], 3, "no knob"),
        (["--treatment", "anon_order=adaptive"], 3, "mmpolicy load"),
        ([*LARGE, "--design", "split"], 2, "or --design switchback"),
        (
            ["--treatment", "min_free_kbytes=lots"],
            2,
            "'lots' is not a valid value for vm/min_free_kbytes",
        ),
        (["--treatment", "min_free_kbytes="], 2, "'' is not a valid value for vm/min_free_kbytes"),
        (
            [*LARGE, "--metric", "x=cmd:/no/such/tool -x", "--pairs", "7"],
            2,
            "there is no command '/no/such/tool', which a metric or --at-switch names",
        ),
        ([*LARGE, *PGFAULT, "--pairs", "7"], 2, "2 metrics have the name 'vmstat.pgfault/s'"),
        (
            [*LARGE, "--metric", "cgroup:/ap.slice/memory.current", "--pairs", "7"],
            2,
            "did you mean /app.slice?",
        ),
        ([*LARGE, "--guard", "vmstat.nr_mapped < 1.2.3"], 2, "not of the form METRIC < NUMBER"),
        ([*LARGE, "--guard", "vmstat.nr_mapped < nan"], 2, "not of the form METRIC < NUMBER"),
        ([*LARGE, "--cgroup", "/"], 2, "next: leave --cgroup out; or mmpolicy load"),
        (["--treatment", "web"], 3, "not loaded"),
    ],
)
def test_wrong_usage_changes_nothing(
    ab: Run, out: Path, tree: FakeTree, clock: Plain, words: list[str], code: int, text: str
) -> None:
    before = read_knobs(tree)
    tree.make_cgroup("/app.slice")
    result = ab(*SWITCHBACK, *words)
    assert text in result.err
    assert (result.code, read_knobs(tree), out.exists()) == (code, before, False)


def test_a_kernel_without_sizes(run: Run, ab: Run, tree: FakeTree, out: Path) -> None:
    """On Linux before 6.8, the error says that the kernel has no such sizes; it once asked for
    other metrics.
    """
    for folder in tree.real(THP).glob("hugepages-*"):
        tree.remove(f"{THP}/{folder.name}")
    for words in ([*LARGE, *PGFAULT], [*SWITCHBACK, *LARGE]):
        result = ab(*words)
        assert (result.code, out.exists()) == (3, False)
        assert "large folios of 2 MB only, so it has no 'hugepages-64kB/enabled'" in result.err
        assert "next: boot Linux 6.8 or newer" in result.err


def test_without_rights_nothing_begins(ab: Run, out: Path, tree: FakeTree, clock: Plain) -> None:
    tree.denied = True
    result = ab(*SWITCHBACK, *LARGE)
    assert (result.code, out.exists()) == (4, False)
    assert f"no permission to write {tree.real(SIZE)}" in result.err


def test_dry_run(run: Run, tree: FakeTree, clock: Plain) -> None:
    words = ["ab", "run", *SWITCHBACK, "--control", "defrag=defer", *LARGE, "--dry-run"]
    before = read_knobs(tree)
    assert run(*words).out.splitlines()[:3] == [
        f"{THP}/defrag <- defer  (madvise -> defer)",
        f"{THP}/defrag <- madvise  (defer -> madvise)",
        f"{SIZE} <- always  (never -> always)",
    ]
    writes = run(*words, "--json").json["writes"]
    assert {"path": SIZE, "value": "always", "now": "never", "wanted": "always"} in writes
    assert read_knobs(tree) == before


def test_equal_arms_need_no_module_either(ab: Run, run: Run, out: Path, clock: Plain) -> None:
    assert ab(*LONG).code == 0
    assert "both arms are the same, and no difference" in run("ab", "report", str(out)).out


class TestWithTheModule:
    """Policies against knobs, in one run."""

    @pytest.fixture
    def clock(self, tree: FakeTree) -> Plain:
        """Return time in which scheduled events happen; the module is loaded."""
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
    """A damaged file, or one that leads elsewhere, is refused or reported; no knob is written."""
    victims = ("/run/victim", f"{VM}/../victim", f"{VM}x/victim")
    for path in victims:
        tree.put(path, "0")
    tree.put(RECOVERY, will)
    result = run("ab", "restore")
    assert result.code == 1 or "may point outside its directory" in result.out
    assert {tree.read(path) for path in victims} == {"0"}
    assert read_knobs(tree)[FREE] == "4000"


def test_what_takes_part_is_what_the_policies_have(tree: FakeTree) -> None:
    """The processes that take part are those of the policies; knobs alone affect the whole host."""
    arms: dict[str, Values] = {"control": {}, "treatment": {SIZE: "always"}}
    lasting = Knobs(tree, {SIZE: "never"}, arms, 2.5, lambda _said: None)
    steps = [(each.now, each.value) for each in lasting.rehearsal()]
    assert steps == [("never", "always")]
    assert Changes(None, lasting).scope == Scope(tree)
    policies: Any = SimpleNamespace(scope=Scope(tree, "/a", "7"), timing=True, units={"/a/b": "x"})
    both = Changes(policies, lasting)
    assert (both.scope.path, both.timing, both.units) == ("/a", True, {"/a/b": "x"})
    assert (both.profiles, both.lease_ms) == (PROFILES, 2500)
    alone = Changes(None, lasting)
    assert (alone.timing, alone.units, alone.arms) == (False, {}, {})
    assert set(alone.profiles.values()) == {"default"}


@pytest.mark.parametrize(
    ("control", "treatment", "knobs", "loaded", "unloaded"),
    [
        ("", "", True, False, False),
        ("default", "", True, False, False),
        ("default", "default", False, True, False),
        ("stock", "default", False, True, False),
        ("stock", "default", True, True, False),
        ("web", "", True, True, True),
        ("", "anon_order=fixed", True, True, True),
    ],
)
def test_where_the_module_takes_part(
    tree: FakeTree, control: str, treatment: str, knobs: bool, loaded: bool, unloaded: bool
) -> None:
    """The module takes part only where policies differ; without it, only the kernel's own state is
    possible as an arm.
    """
    host, texts = Host(tree), {"control": control, "treatment": treatment}
    assert _has_policies(host, texts, knobs) == loaded
    tree.remove(CONTROL)
    assert _has_policies(host, texts, knobs) == unloaded


def test_knobs_cannot_be_split(tree: FakeTree) -> None:
    given = {"control": "stock", "treatment": LARGE[1], "lease": 2.5}
    with pytest.raises(
        Error,
        match=(
            "knobs of the kernel apply to the whole host, and --design split runs both arms at once"
        ),
    ):
        _changes(Host(tree), options(**given, design="split"), False)
    tree.make_unloaded()
    found = _changes(Host(tree), options(**given), False)
    assert (found.policies, found.lease_ms, found.knobs.arms["treatment"]) == (
        None, 2500, {SIZE: "always"},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("given", "timing", "what"),
    [
        ({"cgroup": "/a", "design": "split"}, True, "--cgroup"),
        ({"design": "split"}, True, "fault_ns"),
        ({"design": "split"}, False, "--design split"),
        ({"design": "switchback"}, True, "fault_ns"),
        ({"design": "switchback"}, False, ""),
    ],
)
def test_what_knobs_alone_do_not_have(
    tree: FakeTree, given: dict[str, Any], timing: bool, what: str
) -> None:
    host = Host(tree)
    if not what:
        _check_alone(host, options(**given), timing)
        return
    with pytest.raises(Error, match=f"^{what} works only with arms that set policies"):
        _check_alone(host, options(**given), timing)
