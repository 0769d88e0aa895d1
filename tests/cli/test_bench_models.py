# SPDX-License-Identifier: GPL-2.0
"""`bench` on models: rounds without programs, programs without a kernel, pictures without paper."""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import socket
from collections.abc import Callable, Iterator
from functools import partial
from math import exp, inf
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, call, patch

import pytest

from mmpolicy.ab.report.html import COLOURS, GREY
from mmpolicy.ab.report.stats import Effect
from mmpolicy.bench import calibrate, picture, programs, starter
from mmpolicy.bench.arms import Arm, Arms, arms_of
from mmpolicy.bench.events import EVENTS
from mmpolicy.bench.result import Compared
from mmpolicy.bench.result import Result as Found
from mmpolicy.bench.rounds import Bench, Length
from mmpolicy.control.keys import Profile, Setting, choice
from mmpolicy.control.state import read_state
from mmpolicy.errors import Error, Exit
from mmpolicy.host.calibration import PAGE
from mmpolicy.host.knobs import read_knobs

from .fakes import THP, FakeTree
from .test_bench_pieces import AGAIN, OFF, ON, rounds
from .test_host import raised

# The rounds of a bench


class Model:
    """Arms and programs that only record their calls."""

    def __init__(self, *arms: Arm) -> None:
        self.arms, self.told, self.made = arms, list[Any](), {64 << 10: 1}

    def enter(self, arm: Arm) -> None:
        """Record the arm."""
        self.told.append(arm.name)

    def bind(self, arm: Arm, pid: int) -> None:
        """Record the binding of a process."""
        self.told.append((arm.name, pid))

    def run(self, prepare: programs.Prepare, no_thp: bool) -> dict[str, float]:
        """Return the result of a program that gets large folios, three of 64 kB and two of 2 MB."""
        prepare(41)
        self.told.append(no_thp)
        self.made = {64 << 10: self.made[64 << 10] + 3, 2 << 20: self.made.get(2 << 20, 0) + 2}
        return {"cpu": 1.5}

    def bench(self, length: Length) -> Bench:
        """Return a bench of these arms and programs."""
        both: Any = self
        return Bench(both, both, length, 1, lambda: self.made, lambda _pid: lambda: 0)


def test_a_run_is_in_its_arm() -> None:
    model = Model(OFF, Arm("on", no_thp=True))
    found = model.bench(Length(1))._round(model.arms, "round 1")
    took = {"cpu": 1.5, "large_folios": 3 * (64 << 10) + 2 * (2 << 20)}
    assert found == {"off": took, "on": took}
    assert model.told == ["off", ("off", 41), False, "on", ("on", 41), True]


def test_events_of_a_run_are_in_its_arm() -> None:
    """Counters are shown by their growth, free blocks at both ends; missing files are left out."""
    model = Model(OFF, ON)
    bench, start = model.bench(Length(1)), {"compact_stall": 5, "thp_fault_alloc": 7}
    looks = iter([start | {"free": 90}, {"compact_stall": 8, "thp_fault_alloc": 7, "free": 60}])
    bench.events = lambda: next(looks)
    found = bench._run(OFF)
    ends = {"free_2mb_blocks_before": 90, "free_2mb_blocks_after": 60}
    expected = {"compact_stall": 3, "thp_fault_alloc": 0, **ends}
    assert {name: found[name] for name in found if name in EVENTS} == expected


def told(bench: Bench, warmup: int = 0) -> list[tuple[int, int]]:
    """Run a bench; return the rounds done and planned, after each round."""
    return [(done, bench.length.rounds) for done in bench.rounds(warmup)]


def test_rounds_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warm-up rounds do not count; from the eighth round on, the length is computed if there are
    arms to compare.
    """
    model = Model(OFF, ON)
    bench = model.bench(Length(3))
    assert told(bench, 2) == [(0, 3), (0, 3), (1, 3), (2, 3), (3, 3)]
    assert len(bench.runs) == 3
    orders = [[each for each in model.told if isinstance(each, str)][at : at + 2]
              for at in range(0, 10, 2)]  # fmt: skip
    rng = random.Random(1)
    assert orders == [["off", "on"]] * 2 + [rng.sample(["off", "on"], 2) for _ in range(3)]
    learned = [(done, 8) for done in range(1, 8)] + [(8, 12), (9, 11), (10, 10)]
    monkeypatch.setattr(
        Length, "settle", lambda self, runs, _arms: setattr(self, "rounds", 20 - len(runs))
    )
    assert told(model.bench(Length(1, 5.0))) == learned
    assert told(Model(OFF).bench(Length(1, 5.0))) == [(n, 8) for n in range(1, 9)]
    known = [(done, 400) for done in range(1, 10)] + [(10, 10)]  # 8 have no interval
    assert told(model.bench(Length(1, within=5.0))) == known


def test_an_arm_that_is_known_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """The noisy arm goes on with the first; means and the first's are of equal rounds."""
    rng = random.Random(4)
    spread = {"off": 0.01, "calm": 0.01, "wild": 0.1}
    run = lambda _self, arm: {"cpu": exp(rng.gauss(0.0, spread[arm.name]))}  # noqa: E731
    monkeypatch.setattr(Bench, "_run", run)
    arms = (OFF, Arm("calm"), Arm("wild"))
    bench = Model(*arms).bench(Length(1, within=2.0))
    numbers = [number for number, _ in told(bench)]
    taken = [sum(arm.name in each for each in bench.runs) for arm in arms]
    assert taken[0] == taken[2] == len(numbers) > 50 > taken[1] >= 8
    assert all("calm" in each for each in bench.runs[: taken[1]])
    found = Found(arms, bench.runs, "cpu", 1, by_median=True)
    assert (f"means of {taken[1]} to {taken[0]} runs of each arm; medians") in "\n".join(
        found.lines()
    )
    first, calm, wild = found.data()["arms"]
    assert [arm["rounds"] for arm in (first, calm, wild)] == taken
    assert len(calm["runs"]) == taken[1]
    of_first = [each["cpu"] for each in first["runs"]]
    assert wild["mean_of_first"] == first["mean"] == first["mean_of_first"]
    assert calm["mean_of_first"]["cpu"] == pytest.approx(fmean(of_first[: taken[1]]))
    effect = found.compared["calm"]["cpu"].effect
    assert effect and effect.pairs == taken[1]


def test_more_rounds_than_there_may_be_are_told() -> None:
    assert Length(1, 2.5, "wall", 400).note() == ""
    assert Length(1, 2.5, "wall", 401).note() == (
        "401 rounds would find a change of 2.5 % in wall, but the limit is 400 rounds: "
        "bench at a quieter time, on one CPU (taskset -c 0), or with a longer program"
    )
    assert (Length(5).detect, Length(5).metric, Length(5).needed) == (0, "cpu", 0)


# The process that starts programs, and its requests


def programs_of(
    monkeypatch: pytest.MonkeyPatch, work: programs.Work
) -> tuple[Any, list[Any], Callable[[float], None]]:
    """Return programs whose time passes as they sleep, their records, and a sleep function."""
    told, now = list[Any](), [0.0]
    found = programs.Programs(work, lambda: told.append("tick"))

    def pause(seconds: float) -> None:
        told.append(seconds)
        now[0] += 2.5

    monkeypatch.setattr(programs, "sleep", pause)
    monkeypatch.setattr(programs, "monotonic", lambda: now[0])
    return found, told, pause


def test_a_server_has_so_long_to_be_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = programs.Work(["load"], "serve", "false", 5.0)
    found, told, _ = programs_of(monkeypatch, work)

    def ask(deed: str, pid: int) -> dict[str, Any]:
        told.append((deed, pid))
        return {"over": False}

    found._ask = ask
    found._is_ready = lambda: False
    (tmp_path / "out").write_text("")
    look = ["tick", ("is_over", 7)]
    error = raised(found._until_ready, 7, tmp_path / "out")
    assert error.message == "'serve': --ready did not succeed within 5 s"
    assert told == [*look, 0.1, *look, 0.1, *look, 0.1, *look]
    assert programs.Work(["load"]).limit_s == 600


def test_an_answer_may_take_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    found, told, pause = programs_of(monkeypatch, programs.Work(["prog"]))

    def wait(_size: int) -> bytes:
        for _ in range(12):
            pause(1)
        raise TimeoutError

    found.wire = SimpleNamespace(send=told.append, recv=wait)
    assert raised(partial(found._ask, "go", pid=7)).message == "'prog' did not end within 60 s"
    assert told[0] == b'["go", {"pid": 7}]'
    assert told.count("tick") == 3
    assert raised(partial(found._ask, "end", 10.0)).message == (
        "the server did not end within 10 s after SIGTERM"
    )
    assert raised(partial(found._ask, "is_over")).message == (
        "the helper process of mmpolicy bench did not answer 'is_over' within 60 s"
    )
    found.wire.recv = lambda _size: b'{"a": 1}'
    assert found._ask("deed") == {"a": 1}
    found.wire.recv = lambda _size: b""
    assert raised(found._ask, "deed").next_step == "give the command again"


def test_a_server_is_asked_to_end_after_its_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server is asked to end after its load: the time is that of the load, the rest includes the
    server; both are killed in the end.
    """
    found, told, _ = programs_of(monkeypatch, programs.Work(["load"], "serve", "", 5.0))
    begun = {"began": 1.0, "before": [0]}
    answers: Iterator[dict[str, Any]] = iter([
        {"pid": 7}, begun, {"pid": 8}, {"status": 0, "wall": 3.0, "cpu": 4.0, "outlived": []},
        {"status": -15, "wall": 9.0, "cpu": 6.0, "outlived": ["child"]},
    ])  # fmt: skip

    def ask(deed: str, limit_s: float = 60.0, **fields: Any) -> dict[str, Any]:
        told.append((deed, limit_s, fields.get("argv"), fields.get("no_thp"), fields.get("pid")))
        assert fields.get("wait") == {7: False, 8: True}.get(fields.get("pid", 0) * (deed == "go"))
        assert fields.get("events", programs.COUNTERS) is programs.COUNTERS
        return next(answers)

    found._ask = ask
    monkeypatch.setattr(os, "kill", lambda *words: told.append(words))
    monkeypatch.setattr(os, "killpg", lambda *words: told.append(("group", *words)))
    took = found._served(tmp_path / "out", lambda pid: told.append(f"bind {pid}"), True)
    assert (took, found.outlived) == ({"wall": 3.0, "cpu": 6.0}, {"child"})
    ends = [[("group", pid, signal.SIGKILL), (pid, signal.SIGKILL)] for pid in (7, 8)]
    assert told == [
        ("start", 60, ["/bin/sh", "-c", "exec serve"], True, None), "bind 7",
        ("go", 60, None, None, 7), ("start", 60, ["load"], False, None),
        ("go", 5, None, None, 8), *ends[1], (7, signal.SIGTERM), ("end", 10, None, None, 7),
        *ends[0],
    ]  # fmt: skip


def test_the_starter_is_there_as_long_as_it_is_needed() -> None:
    with programs.Programs(programs.Work(["true"]), lambda: None) as found:
        process = found._starter
        assert os.getsid(process.pid) == process.pid
        assert found.wire.gettimeout() == 0.1
    assert (process.returncode, found.wire.fileno()) == (-signal.SIGKILL, -1)


def test_what_a_program_said_last_is_told(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("y" + "x" * 500)
    with programs.Programs(programs.Work(["true"]), lambda: None) as runner:
        answer = {"status": 3, "outlived": []}
        error = raised(runner._checked, answer, "prog", tmp_path / "out")
    assert error.message == "'prog': the program ended with status 3: " + "x" * 500


def test_the_starter_answers_until_whoever_asks_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    monkeypatch.setattr(starter, "LIBC", MagicMock())
    monkeypatch.setattr(starter, "DEEDS", {"add": lambda a, b: {"sum": a + b}})
    monkeypatch.setattr("sys.argv", ["starter", str(theirs.detach())])
    with ours:
        for text in (b'["add", {"a": 1, "b": 2}]', b'["add", {"a": 3, "b": 4}]', b""):
            ours.send(text)
        starter.main()
        assert [ours.recv(99) for _ in range(2)] == [b'{"sum": 3}', b'{"sum": 7}']


def test_a_program_costs_two_files_until_it_begins(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    files = Path("/proc/self/fd")
    before = len(list(files.iterdir()))
    pid = starter.start(["true"], False, str(tmp_path / "out"), {})["pid"]
    assert len(list(files.iterdir())) == before + 2
    assert starter.go(pid, True)["status"] == 0
    assert len(list(files.iterdir())) == before


def test_what_a_program_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resources that the process used before exec() are not counted."""
    used = SimpleNamespace(ru_utime=5.0, ru_stime=3.0, ru_minflt=70, ru_majflt=2, ru_maxrss=100)
    monkeypatch.setattr(os, "wait4", lambda pid, options: (pid, 3 << 8, used)[: 3 + options])
    monkeypatch.setattr(starter, "_counted", float)
    monkeypatch.setattr(starter, "counters", {7: {"cycles": [1, 2]}})
    monkeypatch.setattr(starter, "time", SimpleNamespace(monotonic=lambda: 12.5))
    assert starter.end(7, 10.0, [1.0, 0.5, 20]) == {
        "status": 3, "wall": 2.5, "cpu": 6.5, "user": 4.0, "system": 2.5, "faults": 50,
        "major_faults": 2, "peak_rss": 102400, "cycles": 3.0,
        "outlived": [],
    }  # fmt: skip
    assert starter.counters == {}


@pytest.mark.parametrize("no_thp", [False, True])
def test_a_process_becomes_a_program(monkeypatch: pytest.MonkeyPatch, no_thp: bool) -> None:
    """A process becomes a program: it is killed with its starter, in a session of its own, and only
    its errors are shown.
    """
    told, result = list[Any](), [0]

    def prctl(*words: int) -> int:
        told.append(words)
        return result[0] if words[0] == 41 else 0

    monkeypatch.setattr(starter, "LIBC", SimpleNamespace(prctl=prctl))
    monkeypatch.setattr(os, "setsid", lambda: told.append("session"))
    files = {(os.devnull, os.O_RDWR): 90, ("out", os.O_WRONLY | os.O_APPEND): 91}
    monkeypatch.setattr(os, "open", lambda *words: files[words])
    monkeypatch.setattr(os, "dup2", lambda *words: told.append(words))
    monkeypatch.setattr(os, "execvp", lambda *words: told.append(words))
    news, gate = os.pipe(), os.pipe()
    begin = ["session", (1, signal.SIGKILL, 0, 0, 0), (90, 0), (90, 1), (91, 2)]
    forbid = [(41, 1, 0, 0, 0)] * no_thp
    os.write(gate[1], b"1")
    starter._become(("prog", "a"), no_thp, "out", gate[0], news[1])
    assert told == [*begin, *forbid, ("prog", ["prog", "a"])]
    assert len(json.loads(os.read(news[0], 999))) == 3
    told.clear()
    if no_thp:
        result[0] = 1
        os.write(gate[1], b"1")
        with pytest.raises(OSError, match="PR_SET_THP_DISABLE"):
            starter._become(("prog",), no_thp, "out", gate[0], news[1])
        assert told == [*begin, *forbid]
    told.clear()
    for file in (gate[1], *news):
        os.close(file)
    starter._become(("prog",), no_thp, "out", gate[0], news[1])  # the starter has exited
    assert told == begin
    os.close(gate[0])


# Arms


def test_what_a_bench_changes(tree: FakeTree) -> None:
    """If an arm changes more than the command, leftovers of a killed bench are removed first."""
    now, path = read_knobs(tree), f"{THP}/hugepages-64kB/enabled"
    fixed = {choice("x", "anon_order"): "fixed"}
    told: list[str] = []
    for arm, changes, guarded in (
        (Arm("a", no_thp=True), False, False),
        (Arm("a", {path: "always"}), True, False),
        (Arm("a", settings=fixed, profile="bench-0"), True, True),
    ):
        before = read_state(tree)
        tree.make_profile("bench-7")
        arms = Arms(tree, now, [arm], told.append)
        assert (arms.changes_host, arms.knobs.guarded, arms.knobs.lease_s) == (
            changes, guarded, 30,
        )  # fmt: skip
        try:
            arms.set_up()
            assert (Profile("bench-7") in read_state(tree)) != changes
            assert (Profile("bench-0") in read_state(tree)) == guarded
            arms.knobs.tell("the program was killed")
        finally:
            arms.restore()
        assert read_state(tree) == before
        assert told.pop() == "the program was killed"


def test_the_end_of_a_killed_bench_is_told_whatever_happens(
    tree: FakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def fail(_tree: object) -> None:
        raise Error("no", 1, "")

    monkeypatch.setattr("mmpolicy.bench.arms.drop_profiles", fail)
    Arms(tree, read_knobs(tree), [Arm("a")], told.append).knobs.tell("the program was killed")
    assert told == ["the program was killed"]


def test_a_policy_needs_the_module(tree: FakeTree) -> None:
    tree.make_unloaded()
    assert raised(arms_of, tree, read_knobs(tree), ["anon_order=fixed"]).exit_code == Exit.LACKING


def test_a_setting_of_the_whole_host_is_none_of_one_command(tree: FakeTree) -> None:
    arm = Arm("a", settings={Setting("x", "bulk", "", "policy"): "fixed"}, profile="bench-0")
    arms = Arms(tree, read_knobs(tree), [arm], lambda _note: None)
    try:
        error = raised(arms.set_up)
    finally:
        arms.restore()
    assert error.message == (
        "bulk/policy is a setting of the whole host, and an arm of bench may only set "
        "those of its command"
    )


# Cost of a fault


@pytest.mark.parametrize(
    ("size", "advice"), [(PAGE, mmap.MADV_NOHUGEPAGE), (2 * PAGE, mmap.MADV_HUGEPAGE)]
)
def test_only_folios_are_asked_for(monkeypatch: pytest.MonkeyPatch, size: int, advice: int) -> None:
    areas: list[Any] = []

    class Area(mmap.mmap):
        def madvise(self, option: int, *_more: int) -> None:
            areas.append((self, len(self), option))

    monkeypatch.setattr("mmpolicy.bench.calibrate.mmap.mmap", Area)
    monkeypatch.setattr(calibrate, "_written", lambda _address, _piece: (0, 0))
    calibrate.of_a_piece(size)
    ((area, length, asked),) = areas
    assert (area.closed, length, asked) == (True, (8 << 20) + size, advice)


# The picture


@pytest.mark.parametrize(
    ("low", "high", "scale", "colour"),
    [
        (0.1, 0.3, "ratio", "treatment"), (-0.3, -0.1, "totals", "treatment"),
        (0.0, 0.3, "ratio", ""), (-0.3, 0.0, "ratio", ""), (-inf, inf, "ratio", ""),
        (0.1, 0.3, "difference", None),
    ],
)  # fmt: skip
def test_bars_have_the_colour_of_what_is_known(
    low: float, high: float, scale: str, colour: str | None
) -> None:
    effect = Effect(scale, 6, 0.2, low, high, 0.03, 0.1)
    shown: Any = SimpleNamespace(compared={"on": {"cpu": Compared(effect, None)}})
    axes = MagicMock()
    picture._bar(axes, 3, shown, "on", "cpu")
    drawn = COLOURS["treatment"] if colour else GREY
    line = call.plot([exp(low), exp(high)], [3] * 2, color=drawn)
    point = call.plot(exp(0.2), 3, "o", color=drawn)
    expected = [line] * (low > -inf) + [point] if colour is not None else []
    assert axes.mock_calls == expected
    shown.compared["on"]["cpu"] = Compared(None, None)
    picture._bar(axes, 3, shown, "on", "cpu")
    assert axes.mock_calls == expected


def test_a_picture_has_time_and_memory_of_all_arms(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = ("cpu", "wall", "peak_rss")
    found = Found((OFF, ON, AGAIN), rounds((2.0, 3.0, 4.0), names=names), "cpu", 1)
    axes, bars = [MagicMock() for _ in names], list[Any]()
    monkeypatch.setattr(picture, "_bar", lambda *words: bars.append(words))
    with patch("mmpolicy.bench.picture.Figure") as figure:
        figure().subplots.return_value = axes
        figure.reset_mock()
        picture.draw(found)
    assert figure.mock_calls == [
        call(figsize=(9, 1.2 + 0.45 * 2), layout="constrained"),
        call().subplots(1, 3, sharey=True),
        call().supxlabel("as a multiple of off, with 95 % interval", size=9),
    ]
    for each, title, name in zip(axes, ("CPU time", "time", "peak rss"), names, strict=True):
        assert each.mock_calls == [
            call.spines.__getitem__(["top", "right"]),
            call.spines.__getitem__().set_visible(False),
            call.axvline(1, color="black", linewidth=0.8),
            call.set_title(title), call.set_yticks(range(2), ["again", "on"]),
        ]  # fmt: skip
        shown = [each_bar[1:] for each_bar in bars if each_bar[0] is each]
        assert shown == [(0, found, "again", name), (1, found, "on", name)]
    for suffix, metadata in ((".svg", {"Date": None}), (".png", None)):
        file, drawn = tmp_path / f"a{suffix}", MagicMock()
        monkeypatch.setattr(picture, "draw", lambda _result, drawn=drawn: drawn)
        picture.save_picture(found, file)
        place = drawn.savefig.call_args.args[0]
        assert drawn.mock_calls == [call.savefig(place, format=suffix[1:], metadata=metadata)]
