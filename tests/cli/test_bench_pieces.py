# SPDX-License-Identifier: GPL-2.0
"""`bench` and `calibrate`, piece by piece: order, lengths, arms, and the text of results."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
from itertools import combinations
from math import exp, inf, log
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mmpolicy.ab.design import ALPHA, suggest_pairs
from mmpolicy.ab.report.stats import Effect
from mmpolicy.bench import calibrate, programs, starter
from mmpolicy.bench.arms import Arm, Arms, arms_of, drop_profiles
from mmpolicy.bench.programs import Programs, Work
from mmpolicy.bench.result import METRICS, Compared
from mmpolicy.bench.result import Result as Found
from mmpolicy.bench.rounds import MOST, PILOT, Length, pairs_of
from mmpolicy.control.keys import Setting, choice
from mmpolicy.control.state import read_state
from mmpolicy.host.calibration import PAGE
from mmpolicy.host.knobs import read_knobs

from .fakes import CONTROL, THP, FakeTree
from .test_host import raised

OFF, ON, AGAIN = Arm("off"), Arm("on"), Arm("again")
ALWAYS = "hugepages-64kB/enabled=always"


def rounds(*values: tuple[float, ...], names: tuple[str, ...] = ("cpu",)) -> list[dict[str, Any]]:
    """Return rounds in which each arm has a value."""
    return [
        {arm.name: dict.fromkeys(names, value)
         for arm, value in zip((OFF, ON, AGAIN), each, strict=False)}
        for each in values
    ]  # fmt: skip


# Meaning of results


@pytest.mark.parametrize(
    ("values", "found", "said"),
    [
        ([(100.0, 90.0)] * 6, True, "on: 10.0 % less CPU than off (p = 0.031)"),
        ([(100.0, 125.0)] * 6, True, "on: 25.0 % more CPU than off (p = 0.031)"),
        (
            [(100.0, 90.0)] * 5,
            False,
            "on: 5 rounds are too few to show a difference; give --runs 6 or more",
        ),
        ([(100.0, 90.0), (90.0, 100.0)] * 4, False, "on: no difference in CPU was found (p = 1)"),
        ([(-1.0, 2.0)] * 6, True, "on: CPU differs by 3 (p = 0.031)"),
    ],
)
def test_sentences(values: list[tuple[float, ...]], found: bool, said: str) -> None:
    result = Found((OFF, ON), rounds(*values), "cpu", 1)
    assert result.sentence(ON) == said
    assert result.found(ON) == found
    assert [*result.lines()][-1] == said


def test_p_is_corrected_for_the_arms() -> None:
    values = [(100.0, 90.0, 100.0)] * 6
    found = Found((OFF, ON, AGAIN), rounds(*values), "cpu", 1)
    assert found.corrected == {"on": 2 * 2 / 2**6, "again": 1}
    assert not found.found(ON)
    assert (
        found.sentence(ON) == "on: 6 rounds are too few to show a difference; give --runs 7 or more"
    )
    assert Found((OFF, ON, AGAIN), rounds(*values, values[0]), "cpu", 1).found(ON)
    assert Found((OFF,), rounds((1.0,)), "cpu", 1).corrected == {}


def test_ratios() -> None:
    effect = Effect("ratio", 6, log(0.9), log(0.8), log(1.1), 0.03, 0.1)
    assert Compared(effect, 0.91).ratio() == "0.900 (0.800 .. 1.100)"
    assert Compared(effect, 0.91).data() == {
        "scale": "ratio", "estimate": pytest.approx(0.9), "low": pytest.approx(0.8),
        "high": pytest.approx(1.1), "median": 0.91, "p": 0.03,
    }  # fmt: skip
    few = Effect("totals", 3, log(2), -inf, inf, 0.5, 0.1)
    assert Compared(few, None).ratio() == "2.000"
    told = Compared(few, None).data()
    assert told and (told["estimate"], told["low"], told["high"]) == (pytest.approx(2), None, None)
    plain = Effect("difference", 6, 3.0, 2.0, 4.0, 0.5, 0.1)
    assert Compared(plain, None).ratio() == "-"
    shown = Compared(plain, None).data()
    assert shown and (shown["estimate"], shown["low"]) == (3, 2)
    assert (Compared(None, None).ratio(), Compared(None, None).data()) == ("-", None)


def test_tables_of_what_each_run_has() -> None:
    """Missing values are left out; counters have tables of their own, folios no ratio."""
    names = ("cpu", "faults", "large_folios", "cycles", "unknown")
    runs = rounds((2.5, 5.0), (2.5, 5.0), names=names)
    runs[0]["on"]["wall"] = 7.0
    found = Found((OFF, ON), runs, "cpu", 1)
    assert found.known == ["cpu", "faults", "large_folios", "cycles"]
    heads = [head for head, _ in found.tables()]
    assert heads == [["ARM", "CPU", "FAULTS", "IN LARGE FOLIOS"], ["OF off", "CPU", "FAULTS"],
                     ["ARM", "CYCLES"], ["OF off", "CYCLES"]]  # fmt: skip
    assert found.tables()[0][1][1] == ["on", "5,000.0 ms", "5", "0.0 MiB"]
    alone = Found((OFF,), rounds((2.5,)), "cpu", 1)
    assert [head for head, _ in alone.tables()] == [["ARM", "CPU"]]
    assert (found.means(ON, ON)["cpu"], found.means(OFF, ON)["cpu"]) == (5, 2.5)
    compared = found.compared["on"]["cpu"]
    assert compared.median == 2
    assert found.compared["off"]["cpu"] == Compared(None, None)
    assert "large_folios" not in found.compared["on"]
    zero = Found((OFF, ON), rounds((0.0, 1.0), (0.0, 3.0)), "cpu", 1).compared["on"]["cpu"]
    assert zero.median is None
    one, other = found.data()["arms"]
    assert (one["found"], one["p_corrected"], other["mean"]["cpu"]) == (False, None, 5)


def test_events_are_shown_where_they_explain() -> None:
    """Without a stall or a fallback there is no table of events; JSON always has them."""
    names = ("cpu", "compact_stall", "thp_fault_alloc", "thp_fault_fallback",
             "free_2mb_blocks_before", "free_2mb_blocks_after")  # fmt: skip
    runs = rounds((2.0, 2.0), (2.0, 2.0), names=names)
    for each in runs:
        for arm in each.values():
            for name in ("compact_stall", "thp_fault_fallback", "free_2mb_blocks_after"):
                arm[name] = 0.0
    calm = Found((OFF, ON), runs, "cpu", 1)
    assert [head[0] for head, _ in calm.tables()] == ["ARM", "OF off"]
    assert calm.data()["arms"][1]["mean"]["thp_fault_alloc"] == 2
    assert "thp_fault_alloc" not in calm.compared["on"]
    runs[1]["on"]["thp_fault_fallback"] = 3001.0
    head, rows = Found((OFF, ON), runs, "cpu", 1).tables()[-1]
    assert head == ["ON THE HOST", "2 MB FAULTS", "2 MB FALLBACKS",
                    "FREE 2 MB BLOCKS BEFORE", "AFTER"]  # fmt: skip
    assert rows == [["off", "2.0", "0.0", "2.0", "0.0"], ["on", "2.0", "1,500.5", "2.0", "0.0"]]


def test_units_of_what_is_shown() -> None:
    """Figures are converted from seconds, bytes and counts; several units reveal a wrong factor."""
    found = Found((OFF,), rounds((1e13,), names=tuple(METRICS)), "cpu", 1)
    cells = [cell for _, rows in found.tables() for cell in rows[0][1:]]
    assert dict(zip(found.known, cells, strict=True)) == {
        **dict.fromkeys(("cpu", "wall", "user", "system"), "10,000,000,000,000,000.0 ms"),
        "faults": "10,000,000,000,000",
        **dict.fromkeys(("peak_rss", "large_folios", "collapsed"), "9,536,743.2 MiB"),
        **dict.fromkeys(("cycles", "instructions"), "10,000,000.0 M"),
        "tlb_misses": "10,000,000,000.0 k",
    }


def test_what_is_found_is_below_five_percent() -> None:
    """A difference with p of exactly 5 % is not reported as found."""
    found = Found((OFF, ON), rounds(*[(100.0, 90.0)] * 6), "cpu", 1)
    found.corrected["on"] = ALPHA
    assert not found.found(ON)


def test_the_median_needs_two_rounds_and_a_time_of_the_first_arm() -> None:
    one = Found((OFF, ON), rounds((2.0, 3.0)), "cpu", 1).compared["on"]["cpu"]
    assert one == Compared(None, None)
    two = Found((OFF, ON), rounds((2.0, 3.0), (0.0, 9.0)), "cpu", 1).compared["on"]["cpu"]
    assert two.effect and two.median == 1.5


# Number of rounds


def test_pairs_of_rounds() -> None:
    runs = rounds((1.0, 2.0, 3.0), (4.0, 5.0, 6.0))
    assert pairs_of(runs, OFF, AGAIN, "cpu") == [(1, 3), (4, 6)]


def test_a_length_is_learned_from_the_noise() -> None:
    """The length is computed from the noise of all arms together, and is never below the rounds
    that were made.
    """
    rng = random.Random(3)
    noise = [(1.0, exp(rng.gauss(0, 0.02)), exp(rng.gauss(0, 0.1))) for _ in range(PILOT)]
    length = Length(PILOT, 5.0)
    length.settle(rounds(*noise), (OFF, ON, AGAIN))
    sizes = sorted(
        (sum(log(one / other) ** 2 for one, other in combinations(each, 2)) / 3) ** 0.5
        for each in noise
    )
    need = suggest_pairs([size * (-1) ** (n + 1) for n, size in enumerate(sizes)], 5.0, 2)
    assert length.needed == need > PILOT
    assert length.rounds == min(length.needed, MOST)
    two = Length(PILOT, 5.0)
    two.settle(rounds(*noise), (OFF, AGAIN))
    sizes = sorted(abs(log(last)) for _, _, last in noise)
    assert two.needed == suggest_pairs([s * (-1) ** n for n, s in enumerate(sizes)], 5.0)
    calm = Length(PILOT, 50.0)
    calm.settle(rounds(*[(1.0, 1.0001 + n / 1e6) for n in range(PILOT)]), (OFF, ON))
    assert calm.rounds == max(calm.needed, PILOT)
    fixed = Length(5)
    assert (fixed.rounds, fixed.note()) == (5, "")


@pytest.mark.parametrize("seed", range(5))
def test_a_length_knows_no_arm(seed: int) -> None:
    """If two arms are equal, the coins may have swapped them in any round."""
    rng = random.Random(seed)
    noise = [[exp(rng.gauss(0, 0.03)), exp(rng.gauss(0, 0.03)), exp(rng.gauss(0.1, 0.03))]
             for _ in range(PILOT)]  # fmt: skip
    turned = [[b, a, c] if rng.random() < 0.5 else [a, b, c] for a, b, c in noise]
    found = []
    for each in (noise, turned):
        length = Length(PILOT, 3.0)
        length.settle(rounds(*[(a, b, c) for a, b, c in each]), (OFF, ON, AGAIN))
        found.append(length.needed)
    assert found[0] == found[1] > PILOT


# Arms


def test_names_of_arms(tree: FakeTree) -> None:
    now = read_knobs(tree)
    found = arms_of(tree, now, [ALWAYS, f"big: {ALWAYS}", ALWAYS, "no-thp", "x: as-is"])
    assert [arm.name for arm in found] == [ALWAYS, "big", f"{ALWAYS} #2", "no-thp", "x"]
    assert [arm.no_thp for arm in found] == [False, False, False, True, False]
    path = f"{THP}/hugepages-64kB/enabled"
    assert [arm.knobs for arm in found[:2]] == [{path: "always"}] * 2
    assert [arm.name for arm in arms_of(tree, now, [ALWAYS])] == ["as-is", ALWAYS]
    assert [arm.name for arm in arms_of(tree, now, [])] == ["as-is"]
    policy, stock = arms_of(tree, now, ["anon_order=fixed,max_order=3", "stock"])
    assert (policy.profile, stock.profile) == ("bench-0", "bench-1")
    assert policy.told() == {"anon_order/policy": "fixed", "anon_order/fixed/max_order": "3"}
    assert found[3].told() == {"prctl": "PR_SET_THP_DISABLE"}
    tree.make_unloaded()
    assert arms_of(tree, now, ["stock", ALWAYS])[0] == Arm("stock")


def test_profiles_of_arms(tree: FakeTree) -> None:
    tree.make_process(41)
    arms = arms_of(tree, read_knobs(tree), ["anon_order=fixed,max_order=3", "as-is"])
    before = read_state(tree)
    found = Arms(tree, read_knobs(tree), arms, lambda _note: None)
    assert found.changes_host
    found.set_up()
    state = read_state(tree)
    assert state[choice("bench-0", "anon_order")] == "fixed"
    assert state[Setting("bench-0", "anon_order", "fixed", "max_order")] == "3"
    found.bind(arms[0], 41)
    found.bind(arms[1], 41)
    assert tree.read(f"{CONTROL}/profiles/bench-0/pids") == "41"
    drop_profiles(tree)
    assert read_state(tree) == before
    assert found.restore() == ""
    assert not Arms(tree, read_knobs(tree), [Arm("a", no_thp=True)], lambda _: None).changes_host
    tree.make_unloaded()
    drop_profiles(tree)


# Runs of programs


def test_counters_that_ran_a_part_of_the_time() -> None:
    for value, wanted, ran, counted in ((100, 10, 10, 100), (100, 10, 5, 200), (100, 10, 0, 0)):
        read, write = os.pipe()
        os.write(write, struct.pack("=QQQ", value, wanted, ran))
        os.close(write)
        assert starter._counted(read) == counted
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.read(read, 1)


def test_counters_have_the_numbers_of_the_kernel() -> None:
    """Counters have the numbers of linux/perf_event.h: a type; for a cache also which, the
    operation, and misses.
    """
    assert programs.COUNTERS == {
        "cycles": [(0, 0)], "instructions": [(0, 1)], "tlb_misses": [(3, 0x10003), (3, 0x10103)],
    }  # fmt: skip


def test_a_counter_begins_with_exec_and_is_of_the_children_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A counter begins with exec() and includes the children: it is disabled, inherited and enabled
    by exec(), and reports the time enabled and running.
    """
    asked: list[Any] = []

    class Libc:
        def syscall(self, *words: Any) -> int:
            asked.append(words)
            return 7

    monkeypatch.setattr(starter, "LIBC", Libc())
    for machine, number in (("x86_64", 298), ("aarch64", 241)):
        monkeypatch.setattr(os, "uname", lambda machine=machine: SimpleNamespace(machine=machine))
        assert starter._open_counter(41, 3, 0x10003) == 7
        call, attr, pid, cpu, group, flags = asked.pop()
        assert (call, pid, cpu, group, flags.value) == (number, 41, -1, -1, 8)
        assert struct.unpack("=IIQQQQQIIQ", attr) == (3, 64, 0x10003, 0, 0, 3, 0x1003, 0, 0, 0)
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine="other"))
    assert (starter._open_counter(41, 0, 0), asked) == (-1, [])


def test_the_starter_and_the_program_end_with_who_began_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The starter and the program end with their parent: each first asks the kernel for SIGKILL
    when it dies.
    """
    asked: list[Any] = []
    monkeypatch.setattr(starter, "LIBC", SimpleNamespace(prctl=lambda *words: asked.append(words)))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    monkeypatch.setattr(sys, "argv", ["starter", str(os.dup(theirs.fileno()))])
    theirs.close()
    ours.send(b"")
    starter.main()
    assert asked == [(1, signal.SIGKILL, 0, 0, 0), (36, 1, 0, 0, 0)]
    ours.close()


def test_a_counter_of_0_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file descriptor may be 0; below it is an error."""
    closed: list[int] = []
    monkeypatch.setattr(os, "close", closed.append)
    monkeypatch.setattr(starter, "_open_counter", lambda _pid, kind, config: config)
    assert starter._count(1, {"a": [(1, 0)], "b": [(1, 0), (1, -1)]}) == {"a": [0]}
    assert closed == [0]


def test_a_counter_of_which_a_part_is_missing_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []

    def open_one(_pid: int, kind: int, _config: int) -> int:
        if not kind:
            return -1
        opened.append(os.open("/dev/null", os.O_RDONLY))
        return opened[-1]

    monkeypatch.setattr(starter, "_open_counter", open_one)
    found = starter._count(1, {"a": [(1, 0), (1, 1)], "b": [(1, 0), (0, 1)], "c": [(0, 0)]})
    assert found == {"a": opened[:2]}
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[2])
    for file in opened[:2]:
        os.close(file)


def begun(tmp_path: Path, *argv: str) -> int:
    """Return the process of a program that waits to begin."""
    output = tmp_path / "out"
    output.touch()
    pid: int = starter.start(argv, False, str(output), {})["pid"]
    return pid


def test_a_program_waits_until_it_may_begin(tmp_path: Path) -> None:
    pid = begun(tmp_path, "sh", "-c", f"echo err >&2; echo out; echo $$ >{tmp_path}/pid; exit 3")
    assert starter.is_over(pid) == {"over": False}
    assert not (tmp_path / "pid").exists()
    took = starter.go(pid, True)
    assert (took["status"], (tmp_path / "out").read_text()) == (3, "err\n")
    assert int((tmp_path / "pid").read_text()) == pid
    assert took["cpu"] == pytest.approx(took["user"] + took["system"])
    assert took["wall"] > 0
    assert took["faults"] > 0
    assert 1 << 20 < took["peak_rss"] < 1 << 30
    assert (starter.waiting, starter.counters) == ({}, {})


def test_a_server_is_waited_for_apart(tmp_path: Path) -> None:
    pid = begun(tmp_path, "sleep", "60")
    told = starter.go(pid, False)
    assert set(told) == {"began", "before"}
    assert os.getsid(pid) == pid
    assert starter.is_over(pid) == {"over": False}
    os.kill(pid, signal.SIGTERM)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert starter.is_over(pid) == {"over": True}
    assert starter.end(pid, **told)["status"] == -signal.SIGTERM


def test_programs_that_there_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = begun(tmp_path, "no-such-program")
    assert starter.go(pid, True) == {"error": "no-such-program: No such file or directory"}
    starter.counters.clear()
    pid = begun(tmp_path, "true")
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    waited: list[tuple[int, int]] = []
    with monkeypatch.context() as patch:
        patch.setattr(os, "waitpid", lambda *words: waited.append(words))
        assert starter.go(pid, True) == {"error": "the program was killed"}
    assert waited == [(pid, 0)]
    os.waitpid(pid, 0)
    starter.counters.clear()


def test_programs_end_with_who_runs_them(tmp_path: Path, wait_until: Any) -> None:
    """A killed bench leaves no running program."""
    code = (
        "import sys; from mmpolicy.bench.programs import Programs, Work; "
        "work = Work(['sh', '-c', 'echo $$ >' + sys.argv[1] + '; exec sleep 60']); "
        "Programs(work, lambda: None).__enter__().run(lambda pid: None, False)"
    )
    file = tmp_path / "pid"
    with subprocess.Popen([sys.executable, "-c", code, str(file)]) as process:
        wait_until(lambda: file.exists() and file.read_text().endswith("\n"))
        program = os.pidfd_open(int(file.read_text()))
        process.kill()
    assert select.select([program], [], [], 60)[0]
    os.close(program)


def test_what_is_said_of_a_program_that_failed(tmp_path: Path) -> None:
    output = tmp_path / "out"
    checked = Programs(Work(["p"]), lambda: None)._checked
    output.write_text(" x" * 400 + "END \n")
    told = raised(checked, {"status": 3, "outlived": []}, "prog", output)
    assert told.message.startswith("'prog': the program ended with status 3: ")
    assert told.message.endswith("END")
    assert len(told.message) < 500 + 50
    output.write_text("")
    assert raised(checked, {"status": -9, "outlived": []}, "p", output).message == (
        "'p': the program ended with status -9"
    )
    assert raised(checked, {"error": "why"}, "p", output).message == "why"
    assert checked({"status": 0, "cpu": 1.5, "outlived": []}, "p", output) == {"cpu": 1.5}


# Cost of a fault


def test_the_cost_of_a_size() -> None:
    """Each of the three times of a piece is taken by itself: a single interrupted one makes no fast
    piece.
    """
    times = [100.0, 104.0, 96.0, 100.0, 108.0, 92.0, 100.0]
    pieces = [calibrate.Piece(50 + ns, 60, 10) for ns in times]
    for told in (pieces, [*pieces[:-1], pieces[-1]._replace(again=160.0)]):
        cost = calibrate._cost(4096, told)
        assert (cost.size, cost.low, cost.high) == (PAGE, 92, 100)
        assert cost.ns == pytest.approx(92 + 6 / 50 * 4)


@pytest.mark.parametrize(("given", "kept"), [(36, False), (37, True)])
def test_a_size_that_is_seldom_given_is_left_out(
    monkeypatch: pytest.MonkeyPatch, given: int, kept: bool
) -> None:
    """A size is left out unless more than half of the 72 pieces have such folios; warm-up pieces do
    not count.
    """
    sizes, pieces = list[int](), [0]

    def piece(size: int) -> tuple[calibrate.Piece, bool]:
        if size == PAGE:
            return calibrate.Piece(1000, 0, 0), True
        pieces[0] += 1
        turn, place = divmod(pieces[0] - 1, 4)
        return calibrate.Piece(9000, 0, 0), place == 0 or 3 * turn + place <= given

    monkeypatch.setattr(calibrate, "of_a_piece", piece)
    found = calibrate.measure([PAGE, 65536], sizes.append, lambda _seconds: None)
    assert [each.size for each in found] == [PAGE, 65536][: 1 + kept]
    assert sizes == [PAGE, 65536] * 24


@pytest.mark.parametrize(
    ("faults", "given"), [(2048, True), (int(1.2 * 2048 + 8), True), (int(1.2 * 2048 + 9), False)]
)
def test_what_a_fault_takes_is_the_first_time_less_the_second(
    monkeypatch: pytest.MonkeyPatch, faults: int, given: bool
) -> None:
    written = [(2048 * 700, faults), (2048 * 100, 0)]
    clock = iter([0, 2048 * 50])
    places: list[tuple[int, int]] = []

    def write(address: int, piece: int) -> tuple[int, int]:
        places.append((address % 4096, piece))
        return written[len(places) - 1]

    monkeypatch.setattr(calibrate, "_written", write)
    monkeypatch.setattr("mmpolicy.bench.calibrate.time.thread_time_ns", lambda: next(clock))
    assert calibrate.of_a_piece(4096) == ((700, 100, 50), given)
    assert places == [(0, 8 << 20)] * 2


def test_large_sizes_have_sixteen_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    size, pieces = 2 << 20, list[int]()

    def write(address: int, piece: int) -> tuple[int, int]:
        assert address % size == 0
        pieces.append(piece)
        return 0, 16

    monkeypatch.setattr(calibrate, "_written", write)
    assert calibrate.of_a_piece(size)[1]
    assert pieces == [16 * size] * 2


def test_faults_are_counted() -> None:
    """The first write to memory is counted as a fault, and later writes are not."""
    area = mmap.mmap(-1, 64 * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area.madvise(mmap.MADV_NOHUGEPAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(area))
    (_, faults), (_, again) = [calibrate._written(start, 64 * PAGE) for _ in range(2)]
    assert faults > again
