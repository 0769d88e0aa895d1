# SPDX-License-Identifier: GPL-2.0
"""`bench`: programs under one setting after the other, as real processes on the files of a host."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from math import exp
from pathlib import Path

import numpy as np
import pytest
from processes import children

from mmpolicy.ab.run.policy_arms import StoppedError
from mmpolicy.bench import programs, starter
from mmpolicy.bench.arms import Arm
from mmpolicy.bench.programs import Values
from mmpolicy.bench.result import Result as Found
from mmpolicy.bench.rounds import MOST, PILOT, Length
from mmpolicy.control.experiment import LOCK, RECOVERY
from mmpolicy.host.knobs import read_knobs
from mmpolicy.render import progress_line
from mmpolicy.verbs import bench as verb

from .fakes import CONTROL, THP, FakeTree, Run

SIZE = f"{THP}/hugepages-64kB/enabled"
LARGE = "hugepages-64kB/enabled=always"
NEVER = "hugepages-64kB/enabled=never"
# Takes 12 MB, unless the knob has the value of its second argument.
EATS = 'case $(cat "$0") in *"[$1]"*) exit;; esac; x=$(head -c 12000000 /dev/zero | tr "\\0" x)'


@pytest.fixture
def eats(tree: FakeTree) -> Iterator[list[str]]:
    """Return a program that has fewer faults if 64 kB is set to always.

    It gets single pages whatever the settings of this machine are.
    """
    tree.put("/proc/cpuinfo", "model name\t: a CPU\nflags\t\t: fpu hypervisor\n")
    tree.put("/proc/meminfo", "MemTotal: 4000000 kB\n")
    starter.LIBC.prctl(starter.SET_THP_DISABLE, 1, 0, 0, 0)
    yield ["--", "sh", "-c", EATS, str(tree.real(SIZE)), "always"]
    starter.LIBC.prctl(starter.SET_THP_DISABLE, 0, 0, 0, 0)


def test_the_host_as_it_is(run: Run, eats: list[str]) -> None:
    found = run("bench", "--runs", "2", "--json", *eats).json
    assert isinstance(found["seed"], int)
    (arm,) = found["arms"]
    assert arm["name"] == "as-is" and len(arm["runs"]) == 2
    assert arm["mean"]["faults"] > 2000 and arm["mean"]["peak_rss"] > 12e6
    assert found["host"] | {"machine": "", "cpus": 1} == {
        "kernel": "6.12.117-mmpolicy", "machine": "", "cpu": "a CPU", "cpus": 1,
        "virtual": True, "memory": 4000000 << 10,
    }  # fmt: skip


def test_events_of_the_host_explain(run: Run, tree: FakeTree) -> None:
    """A program that meets a stall and four fallbacks in each run, and uses up free blocks."""
    tree.put("/proc/zoneinfo", "Node 0, zone   Normal\n  pages free     9216\n")
    tree.put("/proc/buddyinfo", "Node 0, zone   Normal 0 0 0 0 0 0 0 0 0 2 8")
    vmstat, blocks = tree.real("/proc/vmstat"), tree.real("/proc/buddyinfo")
    program = (
        f'read _ stalls <{vmstat}; echo "compact_stall $((stalls + 1))\nthp_fault_alloc 3\n'
        f'thp_fault_fallback $((stalls * 4))" >{vmstat}; sed -i s/2/3/ {blocks}'
    )
    tree.put("/proc/vmstat", "compact_stall 5\nthp_fault_alloc 3\nthp_fault_fallback 16\n")
    words = ["--runs", "1", "--warmup", "0"]
    (arm,) = run("bench", *words, "--json", "--", "sh", "-c", program).json["arms"]
    counts = {"compact_stall": 1, "thp_fault_alloc": 0, "thp_fault_fallback": 4}
    blocks_seen = {"free_2mb_blocks_before": 18, "free_2mb_blocks_after": 19}
    for values in (arm["mean"], *arm["runs"]):
        assert {name: values[name] for name in (*counts, *blocks_seen)} == counts | blocks_seen
    told = run("bench", *words, "--", "sh", "-c", program).out
    assert "ON THE HOST  COMPACTION STALLS  2 MB FALLBACKS  FREE 2 MB BLOCKS BEFORE  AFTER" in told
    assert "2 MB FAULTS" not in told


def test_knobs_take_turns(run: Run, tree: FakeTree, eats: list[str], tmp_path: Path) -> None:
    before, out = read_knobs(tree), tmp_path / "out.json"
    arms = ["--arm", f"off: {NEVER}", "--arm", f"64 kB: {LARGE}", "--arm", f"off: {NEVER}"]
    words = ["--runs", "7", "--metric", "faults", "--out", str(out), *arms]
    pictures = ["--plot", str(tmp_path / "a.svg"), "--html", str(tmp_path / "a.html")]
    result = run("bench", *words, *pictures, *eats)
    assert result.code == 0, result.err
    assert read_knobs(tree) == before and not tree.exists(RECOVERY)
    off, large, again = json.loads(out.read_text())["arms"]
    assert (off["name"], large["name"], again["name"]) == ("off", "64 kB", "off #2")
    assert large["ratio"]["faults"]["high"] < 0.5 and large["found"]
    between = again["ratio"]["faults"]
    assert 0.98 < between["low"] <= between["high"] < 1.02  # one in twenty is "found" by chance
    assert "64 kB: " in result.out and "less FAULTS than off" in result.out
    assert "<svg" in (tmp_path / "a.svg").read_text()
    assert "less FAULTS than off" in (tmp_path / "a.html").read_text()


def test_until_medians_are_known(run: Run, eats: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    words = ["--arm", NEVER, "--arm", LARGE, "--precision", "5", "--metric", "faults"]
    pictures = ["--html", str(tmp_path / "a.html")]
    result = run("bench", *words, "--out", str(out), *pictures, *eats)
    assert result.code == 0 and "medians of the ratios have their 95 % interval" in result.out
    found = json.loads(out.read_text())
    assert found["statistic"] == "median" and PILOT <= found["rounds"] <= MOST
    faults = found["arms"][1]["ratio"]["faults"]  # of even rounds, two lie in the middle
    assert faults["estimate"] == pytest.approx(faults["median"], rel=0.05)
    assert faults["high"] < 0.5
    page = (tmp_path / "a.html").read_text()
    assert "as the median over all rounds" in page and "mean of logarithms" not in page


def test_numbers_of_threads(run: Run, tree: FakeTree, eats: list[str], tmp_path: Path) -> None:
    """Each number of threads has a table of its own, in which 12 MB per thread are seen in the
    faults.
    """
    eats[3] = f"for i in $(seq {{threads}}); do {EATS.replace('exit', 'continue')}; y=$y$x; done"
    out = tmp_path / "out.json"
    words = ["--threads", "1,3", "--runs", "1", "--warmup", "0", "--out", str(out)]
    result = run("bench", *words, *eats)
    assert result.code == 0, result.err
    assert [line for line in result.out.splitlines() if line.startswith("threads")] == [
        "threads: 1", "threads: 3",
    ]  # fmt: skip
    one, three = json.loads(out.read_text())["threads"]
    assert (one["threads"], three["threads"]) == (1, 3)
    faults = [each["arms"][0]["mean"]["faults"] for each in (one, three)]
    assert faults[1] > 2 * faults[0]
    assert run("bench", "--threads", "2", "--", "true").code == 2
    assert run("bench", "--threads", "0", *eats).code == 2
    assert run("bench", "--threads", "2", "--html", str(out), *eats).code == 2


def test_counters_of_perf(
    run: Run, eats: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counters of perf count the program and its children from exec() on; unavailable ones are left
    out.

    So does a counter of the kernel itself, which each machine has: the page faults.
    """
    faults = (1, 2)  # PERF_TYPE_SOFTWARE, PERF_COUNT_SW_PAGE_FAULTS
    wanted = {"cycles": [faults], "instructions": [(0xFFFF, 0)], "tlb_misses": [faults, faults]}
    monkeypatch.setattr(programs, "COUNTERS", wanted)
    words = ["--arm", "as-is", "--arm", "no-thp", "--runs", "6", "--out", str(tmp_path / "out")]
    result = run("bench", *words, *eats)
    for arm in json.loads((tmp_path / "out").read_text())["arms"]:
        mean = arm["mean"]
        assert mean["cycles"] == pytest.approx(mean["faults"], rel=0.05)
        assert mean["tlb_misses"] == pytest.approx(2 * mean["cycles"], rel=0.01)
        assert "instructions" not in mean and "instructions" not in arm["ratio"]
    assert "CYCLES" in result.out and "INSTRUCTIONS" not in result.out
    assert arm["ratio"]["cycles"]["estimate"] == pytest.approx(1, abs=0.1)


def test_a_single_arm_is_compared_with_the_host(run: Run, tree: FakeTree, eats: list[str]) -> None:
    found = run("bench", "--runs", "1", "--arm", LARGE, "--json", *eats).json
    as_is, large = found["arms"]
    assert as_is["name"] == "as-is" and as_is["mean"]["faults"] > 2 * large["mean"]["faults"]
    assert large["ratio"]["faults"] is None and not large["found"]


def test_a_policy_is_for_the_command_alone(
    run: Run, tree: FakeTree, eats: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judge(_path: str, _kind: str, value: str) -> int:
        tree.make_process(abs(int(value)))
        return 0

    monkeypatch.setattr(tree, "_judge_binding", judge)
    profile, seen = tree.real(f"{CONTROL}/profiles/bench-1"), tmp_path / "seen"
    before = read_knobs(tree), tree.names(f"{CONTROL}/profiles")
    program = f"echo $(grep -cx $$ {profile}/pids) $(cat {profile}/anon_order/policy) >>{seen}"
    words = ["--arm", "anon_order=fixed,max_order=4", "--runs", "1", "--warmup", "0"]
    result = run("bench", *words, "--", "sh", "-c", program)
    assert result.code == 0, result.err
    assert [line.split()[0] for line in sorted(seen.read_text().splitlines())] == ["0", "1"]
    assert seen.read_text().count("[fixed]") == 2
    assert (read_knobs(tree), tree.names(f"{CONTROL}/profiles")) == before


def test_what_is_of_the_whole_host_is_refused(run: Run, eats: list[str]) -> None:
    result = run("bench", "--arm", "bulk=fixed", *eats)
    assert result.code == 2 and "of the whole host" in result.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--arm", "hugepages-64kB/enabled=often"], "no value"),
        (["--arm", "vm/nothing=1"], "no"),
        (["--plot", "x.pdf"], ".svg or .png"),
        (["--runs", "0"], "0"),
        (["--metric", "vmstat.pgfault"], "is not one of"),  # a counter that is no sum
        (["--detect", "3", "--precision", "2"], "choose one of --detect and --precision"),
        (["--rnus", "3"], "No such option: --rnus"),
    ],
)
def test_bad_input(run: Run, tree: FakeTree, eats: list[str], words: list[str], said: str) -> None:
    before = read_knobs(tree)
    result = run("bench", *words, *eats)
    assert result.code == 2 and said in result.err and read_knobs(tree) == before


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["no-such-program"], "No such file"),
        (["sh", "-c", "echo out of luck >&2; exit 3"], "status 3: out of luck"),
        (["sh", "-c", "kill -KILL $$"], "status -9"),
        (["sleep", "60"], "did not end within 0.3 s"),
    ],
)
def test_a_program_that_fails(
    run: Run, tree: FakeTree, eats: list[str], command: list[str], said: str
) -> None:
    before = read_knobs(tree)
    result = run("bench", "--arm", LARGE, "--timeout", "0.3", "--", *command)
    assert result.code == 1 and said in result.err and read_knobs(tree) == before
    assert not tree.exists(RECOVERY)


def counting(file: Path, failing: int = 0) -> list[str]:
    """Return a program that counts its runs in a file, and fails in one of them."""
    fails = f'[ "$(wc -l <{file})" != {failing} ] || {{ echo no luck >&2; exit 3; }}'
    return ["--", "sh", "-c", f"echo >>{file}; {fails}"]


@pytest.mark.parametrize(
    ("failing", "place", "rounds"),
    [(1, "warm-up, arm 'as-is'", 0), (4, "round 1, arm", 0), (15, "round 7, arm", 6)],
)
def test_a_later_run_that_fails_loses_no_round(
    run: Run, eats: list[str], tmp_path: Path, failing: int, place: str, rounds: int
) -> None:
    """If a later run fails, no round is lost: of two arms, run 15 is the first of round 7, after a
    round to warm up and six complete ones.
    """
    out = tmp_path / "out.json"
    words = ["--arm", "as-is", "--arm", "as-is", "--out", str(out)]
    result = run("bench", *words, *counting(tmp_path / "runs", failing))
    assert result.code == 1
    assert f"mmpolicy: {place}" in result.err and "status 3: no luck" in result.err
    assert len((tmp_path / "runs").read_text()) == failing  # it ended there
    assert (f"means of {rounds} runs of each arm" in result.out) == bool(rounds)
    assert ((f"; {rounds} complete rounds before the failure, see above") in result.err) == bool(
        rounds
    )
    assert out.exists() == bool(rounds)
    if rounds:
        kept = json.loads(out.read_text())
        assert (kept["rounds"], len(kept["arms"][0]["runs"])) == (rounds, rounds)
        assert kept["failed"].startswith(place)


def test_a_signal_loses_no_round(
    run: Run, eats: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(line: str, _is_last: bool) -> None:
        if line == "round 2 of 12":
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(verb, "progress_line", stop)
    result = run("bench", *counting(tmp_path / "runs"))
    assert result.code == 128 + signal.SIGINT
    assert (
        "means of 2 runs of each arm" in result.out
        and ("the command was interrupted by SIGINT") in result.err
    )


@pytest.mark.parametrize("option", ["--out", "--html", "--plot"])
@pytest.mark.parametrize("place", ["no/such/folder/a.svg", "link.svg"])
def test_a_bad_path_is_refused_before_the_first_run(
    run: Run, eats: list[str], tmp_path: Path, option: str, place: str
) -> None:
    (tmp_path / "link.svg").symlink_to(tmp_path / "else.svg")
    before = sorted(tmp_path.iterdir())
    result = run("bench", option, str(tmp_path / place), *counting(tmp_path / "runs"))
    assert result.code == 1 and f"cannot write {tmp_path / place}" in result.err
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("option", ["--out", "--html"])
def test_a_full_disk_hides_nothing(run: Run, eats: list[str], tmp_path: Path, option: str) -> None:
    """Measured results are printed, and the other files are written."""
    words = ["--runs", "2", option, "/dev/full", "--plot", str(tmp_path / "a.svg")]
    result = run("bench", *words, *counting(tmp_path / "runs"))
    assert result.code == 1 and "cannot write /dev/full: ENOSPC" in result.err
    assert "means of 2 runs of each arm" in result.out
    assert "<svg" in (tmp_path / "a.svg").read_text()


@pytest.mark.parametrize(
    ("arms", "rounds", "need"), [(2, 5, 6), (2, 6, 0), (3, 6, 7), (3, 7, 0), (1, 1, 0)]
)
def test_too_few_rounds_are_told_before_the_first(
    run: Run, eats: list[str], tmp_path: Path, arms: int, rounds: int, need: int
) -> None:
    words = [
        "--runs",
        str(rounds),
        "--timeout",
        "5",
        *["--arm", "as-is"] * (arms if arms > 1 else 0),
    ]
    result = run("bench", *words, *counting(tmp_path / "runs", failing=1))
    said = (
        f"warning: --runs {rounds} is too few to show a difference between {arms} arms; "
        f"give --runs {need}"
    )
    assert (said in result.err) == bool(need)
    assert result.err.count("warning") == bool(need)  # the first run has failed


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("sleep 60 & sleep 0.1", ["sleep"]),
        ("setsid sleep 3 & sleep 0.3", ["sleep"]),
        ("(sleep 0.01 &); sleep 0.3", ["sleep"]),  # exits first, with no waiting parent
        ("sleep 0.01 & wait", []),
        ("true", []),
    ],
)
def test_what_outlives_a_run_is_told(
    run: Run, eats: list[str], command: str, names: list[str]
) -> None:
    """Processes that outlive their run are reported, once per run."""
    result = run("bench", "--runs", "2", "--json", "--", "sh", "-c", command)
    assert result.json["outlived"] == names
    said = "these processes outlived the one that started them, so their CPU time"
    assert (result.err.count(said) == 1) == bool(names)


@pytest.mark.parametrize(("command", "idle"), [("sleep 0.5", True), ("$BUSY", False)])
def test_work_of_others_is_told(run: Run, eats: list[str], command: str, idle: bool) -> None:
    busy = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"
    program = ["--", "sh", "-c", command.replace("$BUSY", busy)]
    result = run("bench", "--runs", "1", "--warmup", "0", *program)
    assert ("the work of other processes for it" in result.err) == idle


def test_dry_run(run: Run, tree: FakeTree, eats: list[str]) -> None:
    before = read_knobs(tree)
    result = run("bench", "--dry-run", "--arm", LARGE, "--arm", "no-thp", *eats)
    said = f"{LARGE}: transparent_hugepage/{LARGE.replace('=', ' <- ')}  (never -> always)"
    assert result.out.splitlines()[0] == said
    assert "no-thp: prctl <- PR_SET_THP_DISABLE" in result.out and read_knobs(tree) == before
    data = run("bench", "--dry-run", "--json", "--arm", "no-thp", *eats).json
    assert (data["dry_run"], data["arms"]) == (True, [
        {"name": "as-is", "settings": {}},
        {"name": "no-thp", "settings": {"prctl": "PR_SET_THP_DISABLE"}},
    ])  # fmt: skip


def test_rounds_are_told_on_a_terminal(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a terminal, rounds are shown in one line; warm-up runs are round 0."""
    told: list[tuple[str, bool]] = []
    with monkeypatch.context() as patch:
        patch.setattr(verb, "progress_line", lambda *round_: told.append(round_))
        result = run("bench", "--runs", "2", "--warmup", "1", "--seed", "0", "--json", "--", "true")
    assert (result.code, result.err, result.json["seed"]) == (0, "", 0)
    assert result.json["host"]["cpu"] == ""  # which this host does not report
    assert told == [(f"round {done} of 2", done == 2) for done in range(3)]
    for is_terminal in (False, True):
        monkeypatch.setattr(sys.stderr, "isatty", lambda is_terminal=is_terminal: is_terminal)
        for each in told:
            progress_line(*each)
    # Each clears the rest of the line, as the one before may have been longer.
    lines = [f"\rround {done} of 2 \x1b[K" for done in range(3)]
    assert capsys.readouterr().err == "".join(lines) + "\n"


@pytest.mark.parametrize("kind", ["--plot", "--html"])
def test_either_picture_alone(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The picture or the page can be asked for alone; a warning is not part of the results."""
    monkeypatch.setattr("mmpolicy.bench.rounds.Length.note", lambda _length: "too few")
    files = {"--plot": tmp_path / "a.svg", "--html": tmp_path / "a.html"}
    words = ["--runs", "1", "--warmup", "0", "--json", kind, str(files[kind]), "--", "true"]
    result = run("bench", *words)
    assert (result.code, result.err) == (0, "warning: too few\n")
    assert result.json["dry_run"] is False
    assert [*tmp_path.iterdir()] == [files[kind]]
    assert "<svg" in files[kind].read_text()


def test_a_bench_that_is_stopped(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(_bench: object, _warmup: int) -> Iterator[int]:
        raise StoppedError("lost", "somebody has set a knob")

    monkeypatch.setattr("mmpolicy.bench.rounds.Bench.rounds", stop)
    result = run("bench", "--runs", "2", "--", "true")
    assert (result.code, result.out) == (1, "")
    said = "mmpolicy: somebody has set a knob\nnext: give the command again\n"
    assert result.err.endswith(said)


def test_without_root(
    run: Run, tree: FakeTree, eats: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without root no setting of the host changes, so the lock is not taken."""
    monkeypatch.setattr(tree, "writable", lambda _path: False)
    status = ["--", "sh", "-c", 'grep -q "THP_enabled:.*$0" /proc/self/status', "[01]"]
    found = run("bench", "--arm", "no-thp", "--runs", "1", "--json", *status).json
    assert [arm["name"] for arm in found["arms"]] == ["as-is", "no-thp"]
    assert not tree.exists(LOCK)
    none = run("bench", "--arm", "no-thp", "--runs", "1", "--", *status[1:4], "1")
    assert none.code == 1 and "status 1" in none.err
    refused = run("bench", "--arm", LARGE, *eats)
    assert refused.code == 4 and "run the command as root" in refused.err


def test_a_server_with_a_load(run: Run, tree: FakeTree, eats: list[str], tmp_path: Path) -> None:
    up, said = tmp_path / "up", tmp_path / "said"
    script = tmp_path / "server"
    script.write_text(f"x=$(head -c 12000000 /dev/zero | tr '\\0' x)\ntouch {up}\nsleep 60\n")
    words = ["--server", f"sh {script}", "--ready", f"[ -e {up} ]", "--runs", "1", "--warmup", "0"]
    found = run("bench", *words, "--json", "--", "sh", "-c", f"rm {up}; echo load >>{said}").json
    (arm,) = found["arms"]
    assert said.read_text() == "load\n"
    assert arm["mean"]["peak_rss"] > 12e6  # the server's, not the load's


def test_a_server_that_ends_too_soon(run: Run, eats: list[str]) -> None:
    result = run("bench", "--server", "echo no >&2; exit 3", "--ready", "false", *eats)
    assert result.code == 1 and "the server ended before it was ready: no" in result.err


def begin(tree: FakeTree, *words: str) -> subprocess.Popen[str]:
    """Start a long bench, as a process of its own."""
    argv = [sys.executable, "-m", "mmpolicy", "--root", str(tree.root), "bench", "--runs", "1000"]
    argv += ["--arm", NEVER, "--arm", LARGE, *words, "--", "sleep", "0.02"]
    return subprocess.Popen(argv, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_two_at_once(
    tree: FakeTree, eats: list[str], wait_until: Callable[[Callable[[], object]], None]
) -> None:
    tree.make_unloaded()
    first = begin(tree)
    wait_until(lambda: tree.exists(RECOVERY))
    second = begin(tree)
    assert second.wait() != 0 and "bench, pid" in (second.stderr.read() if second.stderr else "")
    first.send_signal(signal.SIGTERM)
    assert first.wait() == 128 + signal.SIGTERM
    assert not tree.exists(RECOVERY)


@pytest.mark.parametrize("seed", range(6))
def test_killed_at_any_moment(
    tree: FakeTree, eats: list[str], wait_until: Callable[[Callable[[], object]], None], seed: int
) -> None:
    """If `bench` is killed at any moment, the watchdog restores the knobs; if that is killed too,
    the next command does.
    """
    tree.make_unloaded()
    before, rng = read_knobs(tree), random.Random(seed)
    process = begin(tree)
    wait_until(lambda: tree.exists(RECOVERY))
    time.sleep(rng.uniform(0, 0.5))
    process.send_signal(signal.SIGSTOP)  # so that they stay unchanged
    if seed % 2:
        for pid in children(process.pid):  # including the watchdog
            os.kill(pid, signal.SIGKILL)
    process.kill()
    process.wait()
    if seed % 2:
        subprocess.run([*process.args[:5], "ab", "restore"], check=True)  # type: ignore[index]
    wait_until(lambda: not tree.exists(RECOVERY) and read_knobs(tree) == before)


# Results

OFF, ON = Arm("off"), Arm("on")


def runs_of(rng: np.random.Generator, rounds: int, effect: float, spread: float) -> list[dict]:  # type: ignore[type-arg]
    """Make rounds of a busy host: drift affects both arms, and some runs take much longer."""
    found = []
    for drift in np.cumsum(rng.normal(0, 0.02, rounds)):
        noise = rng.normal(0, spread, 2) + (rng.random(2) < 0.05) * rng.exponential(0.1, 2)
        values = np.exp(drift + noise + [0, np.log1p(effect)])
        found.append({
            arm.name: dict.fromkeys(("cpu", "wall", "user", "system", "faults", "peak_rss"), value)
            for arm, value in zip((OFF, ON), values, strict=True)
        })  # fmt: skip
    return found


@pytest.mark.full
def test_equal_arms_are_rarely_told_apart() -> None:
    """At most 5 % of benches find a false difference, whatever decides their length."""
    rng = np.random.default_rng(1)
    hits = {"fixed": 0, "detect": 0}
    times = 1000
    for number in range(times):
        runs = runs_of(rng, 12, 0.0, 0.02)
        hits["fixed"] += Found((OFF, ON), runs, "cpu", number).found(ON)
        runs = runs_of(rng, 60, 0.0, 0.02)
        length = learned(runs, 3.0)
        hits["detect"] += Found((OFF, ON), runs[: length.rounds], "cpu", number).found(ON)
    for share in (count / times for count in hits.values()):
        assert 0.035 <= share <= 0.065


def ended(runs: list[dict[str, Values]], length: Length) -> Length:
    """Return a length at the end of the bench, given the rounds that would be possible."""
    for done in range(1, len(runs) + 1):
        length.look_at(runs[:done], (OFF, ON))
        if length.rounds == done:
            break
    return length


def learned(runs: list[dict[str, Values]], percent: float) -> Length:
    """Return the length of a bench that runs until it can find a given difference."""
    return ended(runs, Length(PILOT, percent))


def known_within(runs: list[dict[str, Values]], percent: float) -> Length:
    """Return the length of a bench that runs until medians have a given precision."""
    return ended(runs, Length(MOST, within=percent))


@pytest.mark.full
def test_what_is_known_closely_is_so() -> None:
    """The interval of --precision holds the truth in 95 %, though its width ends the bench."""
    rng = np.random.default_rng(5)
    held = found = 0
    times = 1000
    for number in range(times):
        runs = runs_of(rng, MOST, 0.1 * (number % 2), 0.05)
        length = known_within(runs, 2.0)
        assert PILOT < length.rounds < MOST and length.reached <= 2 and not length.note()
        result = Found((OFF, ON), runs[: length.rounds], "cpu", number, by_median=True)
        effect = result.compared["on"]["cpu"].effect
        assert effect and exp(effect.high) - exp(effect.low) <= 0.04
        held += effect.low <= np.log1p(0.1 * (number % 2)) <= effect.high
        found += result.found(ON) and not number % 2
    assert 0.95 <= held / times <= 0.99
    assert found / (times / 2) <= 0.05


def test_what_is_not_known_closely_is_told() -> None:
    runs = runs_of(np.random.default_rng(6), MOST, 0.0, 0.05)
    length = known_within(runs, 0.1)
    assert length.rounds == MOST
    known = f"the ratio of cpu is known to +- {length.reached:.1f} %"
    assert length.progress(MOST) == f"round 400 of 400, {known}"
    assert length.progress(90) == f"round 90 of at most 400, {known}"
    last = Length(MOST, within=0.1, look=MOST)
    last.stop(runs, (OFF, ON))
    assert length.reached == last.reached
    assert length.note().startswith(
        f"after 400 rounds, {known}, and not to +- 0.1 % as --precision asks: bench at a quieter"
    )


def test_what_it_is_to_find_is_found() -> None:
    """The length that --detect chooses finds the change in four of five benches, at least."""
    rng = np.random.default_rng(2)
    hits = 0
    for number in range(200):
        runs = runs_of(rng, MOST, 0.03, 0.02)
        length = learned(runs, 3.0)
        hits += Found((OFF, ON), runs[: length.rounds], "cpu", number).found(ON)
    assert hits >= 160


@pytest.mark.full
def test_stalls_that_come_late_make_it_longer() -> None:
    """With one in fifty runs that takes three times as long, 3 % are still found."""
    rng, hits, times = np.random.default_rng(7), 0, 50
    for number in range(times):
        runs = runs_of(rng, MOST, 0.03, 0.01)
        for each in runs:
            each["on"]["cpu"] *= 3 if rng.random() < 0.02 else 1
            each["off"]["cpu"] *= 3 if rng.random() < 0.02 else 1
        length = learned(runs, 3.0)
        hits += Found((OFF, ON), runs[: length.rounds], "cpu", number).found(ON)
    assert hits >= 40


def test_a_change_too_small_to_find_is_told() -> None:
    length = Length(PILOT, 0.1)
    length.settle(runs_of(np.random.default_rng(4), PILOT, 0.0, 0.02), (OFF, ON))
    assert length.rounds == MOST < length.needed
    assert f"{length.needed} rounds would find a change of 0.1 % in cpu" in length.note()
    assert length.progress(8) == "round 8 of about 400"
    assert length.progress(400) == "round 400 of 400"
    length.detect = 50
    length.settle(runs_of(np.random.default_rng(4), PILOT, 0.0, 0.02), (OFF, ON))
    assert length.rounds == length.needed < MOST and not length.note()


def test_too_few_rounds_are_told() -> None:
    runs = runs_of(np.random.default_rng(3), 5, 1.0, 0.01)
    assert "5 rounds are too few to show a difference; give --runs 6 or more" in Found(
        (OFF, ON), runs, "cpu", 1
    ).sentence(ON)
