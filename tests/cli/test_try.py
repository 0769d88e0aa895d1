# SPDX-License-Identifier: GPL-2.0
"""`try`: whether a change can pay for a service, by plain figures and on hosts made of files."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from mmpolicy.ab.presets import names
from mmpolicy.control.trials import SYSTEMD
from mmpolicy.host.calibration import Calibration, FaultCost
from mmpolicy.host.huge import read_stat
from mmpolicy.memory.worth import (
    NAMES,
    NOT_HERE,
    NOT_NOW,
    NOT_WORTH,
    ONCE,
    OUT_OF_REACH,
    WORTH,
    Here,
    Seen,
    Way,
    hints,
    judge,
)
from mmpolicy.verbs import around, try_look
from mmpolicy.verbs.try_run import TRIES
from mmpolicy.verbs.try_service import Answer, next_step, runnable

from .fakes import THP, Clock, FakeTree, Run
from .sparse import SHRINK, SPLIT, count, make_sparse, make_thp, pressure
from .test_calibrate import keep
from .test_cgroups import V1, version_1

MIB = 1024
REST = Seen(
    seconds=60, processes=1, cpu=20, kernel=2, faults=100, fault_cpu=0.02, gain=0.02,
    cost_from="mmpolicy calibrate", memory_kib=300 * MIB, private_kib=200 * MIB, waste_kib=0,
    error_kib=0, trim_options="", stays="", freed_kib=0, huge=0,
    looked_at=1, barred=0, barriers=(), stalled=0,
    compactions=0, not_now="",
)  # fmt: skip
HERE = Here(
    target="--unit web.service", trim=Way(), maintain=Way(), collapse=Way(), own_sizes=Way(),
    module=Way(commands=("mmpolicy load",)), loaded=False, systemd=True, run_time="a while",
)  # fmt: skip
WASTE: dict[str, Any] = {"waste_kib": 100 * MIB, "error_kib": 5 * MIB}
BUSY: dict[str, Any] = {"gain": 3.0, "fault_cpu": 4.0}
LACKING = Way("it lacks something", "get it")


def judged(here: Here = HERE, **figures: Any) -> tuple[str, list[str]]:
    """Return the verdict, and the names of the candidates that this host can have."""
    verdict, _, found = judge(replace(REST, **figures), here)
    return verdict, [each.name for each in found if not each.why_not]


@pytest.mark.parametrize(
    ("figures", "verdict"),
    [
        ({}, NOT_WORTH),
        ({"gain": 0.99}, NOT_WORTH),
        ({"gain": 1.0}, WORTH),
        ({"waste_kib": 33 * MIB, "error_kib": 2 * MIB}, NOT_WORTH),
        ({"waste_kib": 33 * MIB, "error_kib": 1 * MIB}, WORTH),
        ({"waste_kib": 33 * MIB, "private_kib": 700 * MIB, "huge": 0.6}, NOT_WORTH),
        ({"private_kib": 300 * MIB, "cpu": 21.0, "kernel": 0.5}, WORTH),
        ({"private_kib": 300 * MIB, "cpu": 9.0, "kernel": 0.0}, NOT_WORTH),
        ({"freed_kib": 33 * MIB}, WORTH),
        ({"stalled": 2.0, "compactions": 4.0}, NOT_WORTH),
        ({"stalled": 0.5, "compactions": 50.0}, NOT_WORTH),
        ({"stalled": 2.0, "compactions": 50.0}, WORTH),
        ({**BUSY, "not_now": "tasks wait for memory"}, NOT_NOW),
        ({**BUSY, "barred": 1.0, "barriers": ("none reaches it",)}, OUT_OF_REACH),
        ({"barred": 1.0, "barriers": ("none reaches it",)}, NOT_WORTH),
        ({**WASTE, "barred": 1.0}, WORTH),
    ],
)
def test_verdicts(figures: dict[str, Any], verdict: str) -> None:
    assert judged(**figures)[0] == verdict


def test_candidates_by_their_gain() -> None:
    """Candidates are ordered by their gain, as a multiple of what counts; then the cheaper of two
    comes first.
    """
    assert judged(**BUSY)[1] == ["thp-sizes", "adaptive"]
    assert judged(replace(HERE, loaded=True), **BUSY)[1] == ["adaptive", "thp-sizes"]
    assert judged(**BUSY, private_kib=300 * MIB)[1] == [
        "thp-sizes", "adaptive", "adaptive-2mb", "collapse",
    ]  # fmt: skip
    assert judged(**WASTE)[1] == ["trim", "maintain"]
    assert judged(**WASTE, trim_options=" --include-madvised")[1] == ["trim"]
    both = [*judged(**WASTE)[1], *judged(**BUSY)[1]]
    assert judged(**WASTE, **BUSY)[1] == both
    assert judged(**WASTE, **{**BUSY, "gain": 30.0})[1] == [*both[2:], *both[:2]]
    stalls: dict[str, Any] = {"stalled": 2.0, "compactions": 9.0}
    assert judged(freed_kib=100 * MIB, **stalls)[1] == ["madv-free", "thp-gfp"]


@pytest.mark.parametrize("target", ["--host", "--unit web.service"])
def test_without_systemd(run: Run, target: str) -> None:
    """Without systemd, the command that is proposed in place of the trial has options
    that exist.
    """
    here = replace(HERE, target=target, systemd=False)
    found = {each.name: each for each in judge(replace(REST, **BUSY), here)[2]}
    words = shlex.split(found["thp-sizes"].commands[0])
    result = run(*words[1:], "--help")
    assert (words[1:3], result.code) == (["ab", "run"], 0), result.err


def test_faults_of_a_cgroup_below(tree: FakeTree) -> None:
    """With cgroup v1, pgfault is of the cgroup alone, and total_pgfault of those below, too."""
    path = version_1(tree)
    tree.put(f"{V1}{path}/memory.stat", "pgfault 3\ntotal_pgfault 500")
    assert try_look.counters_of(tree, path)["faults"] == 500.0


def test_each_file_is_read_once(tree: FakeTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both CPU times are of one moment."""
    folder, files = "/sys/fs/cgroup/web", list[str]()
    tree.make_cgroup("/web")
    tree.put(f"{folder}/cpu.stat", "usage_usec 30\nsystem_usec 10")
    tree.put(f"{folder}/memory.stat", "pgfault 5")

    def once(tree: FakeTree, path: str) -> dict[str, str]:
        files.append(path)
        return read_stat(tree, path)

    monkeypatch.setattr("mmpolicy.verbs.try_look.read_stat", once)
    found = try_look.counters_of(tree, "/web")
    assert found == {"cpu_us": 30.0, "kernel_us": 10.0, "faults": 5.0}
    assert files == [f"{folder}/cpu.stat", f"{folder}/memory.stat"]


def test_a_host_that_cannot() -> None:
    """A candidate that this host cannot have is told with the reason, behind all others."""
    assert judged(replace(HERE, module=LACKING), **BUSY) == (WORTH, ["thp-sizes"])
    nothing = replace(HERE, module=LACKING, own_sizes=LACKING)
    assert judged(nothing, **BUSY) == (NOT_HERE, [])
    _, why, found = judge(replace(REST, **BUSY), nothing)
    assert why == "thp-sizes may pay, but not here: it lacks something"
    assert {each.next_step for each in found} == {"get it"}
    assert judged(replace(HERE, trim=LACKING), **WASTE) == (NOT_HERE, [])
    assert judged(replace(HERE, maintain=LACKING), **WASTE) == (WORTH, ["trim"])
    assert judged(stays="it is locked", **WASTE) == (NOT_HERE, [])


def test_each_candidate_is_whole() -> None:
    """Each candidate says what to type, how long it takes, its price, how to undo it, and how it is
    proven.
    """
    figures = {**WASTE, **BUSY, "freed_kib": 99 * MIB, "stalled": 9.0, "compactions": 9.0,
               "private_kib": 300 * MIB, "cpu": 80}  # fmt: skip
    _, _, found = judge(replace(REST, **figures), HERE)
    assert len({each.name for each in found}) == len(found) == 8
    for each in found:
        assert all((each.gain, each.commands, each.time, each.price, each.undo, each.proof))
        words = shlex.split(each.commands[-1])
        assert words[0] == "mmpolicy" and "web.service" in words
        assert each.switchback == bool({"--preset", "--candidate"} & {*words})
        assert (words[1] == "try") == each.switchback == (each.name not in ONCE)
        assert each.name in ONCE or TRIES[each.name].preset in names()
    assert {each.name for each in found} == {*NAMES}
    assert {*TRIES} == {*NAMES} - {*ONCE}
    for name in NAMES:
        _, _, others = judge(replace(REST, **figures), HERE, [name])
        assert {each.name for each in others} == {*NAMES} - {name}
    verdict, why, _ = judge(replace(REST, **figures), HERE, NAMES)
    assert (verdict, why) == (NOT_WORTH, "all candidates that may pay are excluded by --without")


def test_commands_that_begin_by_loading() -> None:
    _, _, found = judge(replace(REST, **BUSY), HERE)
    for each in found:
        assert (each.commands[0] == "mmpolicy load") == (each.switchback and not each.of_host)


@pytest.mark.parametrize(("work", "begins"), [(None, ""), ("cmd:cat x/s", "collapse")])
def test_collapse_begins_with_a_rate_of_work(work: str | None, begins: str) -> None:
    """Without a rate of work, the next step of `collapse` names what is lacking. It has no command
    with a word to replace, which would fail if it were typed as it is.
    """
    seen = replace(REST, private_kib=300 * MIB, cpu=21.0)
    answer = Answer(seen, HERE, *judge(seen, HERE))
    assert runnable(answer, work) == begins
    step = next_step(answer)
    assert step.startswith("give --work, too: collapse is kept if CPU time per unit of work falls")
    assert "COMMAND" not in step and step.endswith("; mmpolicy try --help has an example")


def test_hints() -> None:
    assert [*hints(REST, "--unit x")] == []
    (text,) = hints(replace(REST, cpu=0.1), "--unit x")
    assert "look again under load" in text
    (text,) = hints(replace(REST, private_kib=300 * MIB, cpu=9.0), "--unit x")
    assert "mmpolicy collapse --unit x --dry-run" in text
    assert [*hints(replace(REST, private_kib=300 * MIB, huge=0.6), "")] == []
    (text,) = hints(replace(REST, looked_at=0.3), "")
    assert "only 30% of its memory" in text


@pytest.mark.parametrize(
    ("private_mib", "huge", "reason"),
    [
        (200, 0.0, "; 2 MB pages seldom pay in less than 256 MiB of it"),
        (300, 0.6, "; 60% of it are in 2 MB pages already"),
        (300, 0.0, "of this memory"),  # a hint has the command that tells more
    ],
)
def test_why_no_collapse(private_mib: int, huge: float, reason: str) -> None:
    seen = replace(REST, private_kib=private_mib * MIB, huge=huge, cpu=9.0)
    verdict, why, _ = judge(seen, HERE)
    assert verdict == NOT_WORTH and why.endswith(reason)


def test_the_most_that_a_folio_saves() -> None:
    """Where single pages alone were measured, the most that a folio saves is all of a fault."""
    costs = [FaultCost(4096, 1000.0, 900.0, 1100.0), FaultCost(1 << 16, 4000.0, 1.0, 1.0)]
    assert Calibration(costs).saved_ns(4) == 750
    assert Calibration(costs[:1]).saved_ns(4) == 1000


# On a host


@pytest.fixture
def host(tree: FakeTree, clock: Clock) -> FakeTree:
    """Return a calibrated host without the module, on which a service works."""
    tree.make_unloaded()
    tree.installed = False
    make_thp(tree)
    keep(tree)
    make_sparse(tree, 11, "web", 2048, 1, "/system.slice/web.service")
    clock.steps = [lambda: None] * 99
    return tree


@pytest.fixture
def tried(run: Run, host: FakeTree) -> Callable[..., Any]:
    """Return a function that gives the answer about a service; nothing is ever written."""

    def tried(unit: str = "web", *more: str) -> Any:
        writes = list(host.writes)
        result = run("try", "--unit", unit, "--seconds", "10", "--json", "--dry-run", *more)
        assert (result.code, result.err) == (0, "")
        assert host.writes == writes
        return result.json

    return tried


def candidates(answer: Any) -> dict[str, Any]:
    """Return the candidates that the host can have, by name."""
    return {each["name"]: each for each in answer["candidates"] if not each["why_not"]}


def test_not_worth_it(tried: Callable[..., Any], clock: Clock) -> None:
    """The commonest answer, "not worth it", comes with its figures, after the time that was asked
    for.
    """
    answer = tried()
    assert (answer["verdict"], answer["candidates"]) == (NOT_WORTH, [])
    assert answer["why"].startswith("larger folios could save at most 0 % of a CPU, and 0 MiB")
    assert answer["cgroup"] == "/system.slice/web.service"
    assert clock.now == 10
    assert answer["notes"] == ["the service used 0 % of a CPU: it may be idle; look again "
                               "under load"]  # fmt: skip


def test_memory_that_is_empty(tried: Callable[..., Any], host: FakeTree) -> None:
    make_sparse(host, 10, "redis", 65536, 16, "/system.slice/redis.service")
    answer = tried("redis")
    assert answer["verdict"] == WORTH
    found = candidates(answer)
    assert next(iter(found)) == "trim"
    assert found["trim"]["commands"][0].startswith("mmpolicy trim --unit redis.service")
    assert not found["trim"]["switchback"]
    assert 235 * MIB < answer["seen"]["waste_kib"] < 245 * MIB
    assert tried()["verdict"] == NOT_WORTH  # the other service
    host.remove(SHRINK)
    assert tried("redis")["verdict"] == NOT_HERE


def test_faults_that_cost(tried: Callable[..., Any], host: FakeTree, clock: Clock) -> None:
    """Faults that cost 2,000 ns each, of which 64 kB save 80 %, count at most with the time in the
    kernel.
    """
    for name in "cpu.stat", "memory.stat":
        host.put(f"/sys/fs/cgroup/system.slice/web.service/{name}", "anon 1")
    step = partial(count, host, 11, "web", 2048, 100_000, 200)
    clock.steps = [step, *[lambda: None] * 9]
    answer = tried()
    seen = answer["seen"]
    assert (seen["faults"], seen["kernel"], seen["fault_cpu"]) == (10_000, 20, 2.0)
    assert 1.5 < seen["gain"] <= 1.6
    assert answer["verdict"] == WORTH
    assert candidates(answer)["thp-sizes"]["of_host"]
    lacking = [each for each in answer["candidates"] if each["name"] == "adaptive"]
    assert lacking[0]["why_not"] == "this host cannot load the module now"


def test_processes_that_end_count_too(
    tried: Callable[..., Any], host: FakeTree, clock: Clock
) -> None:
    """Processes that end count too: the counters of the cgroup have the faults of workers that come
    and go.
    """
    folder = "/sys/fs/cgroup/system.slice/web.service"

    def put(faults: int, microseconds: int) -> None:
        host.put(f"{folder}/memory.stat", f"anon 8388608\nanon_thp 0\nfile 0\npgfault {faults}")
        times = f"usage_usec {2 * microseconds}\nuser_usec 0\nsystem_usec {microseconds}"
        host.put(f"{folder}/cpu.stat", times)

    put(1000, 10**6)
    clock.steps = [partial(put, 201_000, 3 * 10**6), *[lambda: None] * 9]
    seen = tried()["seen"]
    assert (seen["faults"], seen["cpu"], seen["kernel"]) == (20_000, 40, 20)


def test_huge_faults_are_dear(tried: Callable[..., Any], host: FakeTree, clock: Clock) -> None:
    """Few faults that clear 2 MB each cost much, and smaller folios save none of that."""

    def work() -> None:
        count(host, 11, "web", 2048, 1000, 300)
        host.put("/proc/vmstat", "pgfault 1100\ncompact_stall 5\nthp_fault_alloc 1000")

    host.put("/proc/vmstat", "pgfault 100\ncompact_stall 5\nthp_fault_alloc 0")
    clock.steps = [work, *[lambda: None] * 9]
    answer = tried()
    assert answer["seen"]["fault_cpu"] > 1
    assert (answer["seen"]["gain"], answer["verdict"]) == (0, NOT_WORTH)


def test_who_forbids_large_folios(tried: Callable[..., Any], host: FakeTree, clock: Clock) -> None:
    make_sparse(host, 12, "ruby", 2048, 1, "/ruby.service", forbids=True)
    step = partial(count, host, 12, "ruby", 2048, 900_000, 400)
    clock.steps = [step, *[lambda: None] * 9]
    answer = tried("ruby")
    assert answer["verdict"] == OUT_OF_REACH
    assert "prctl PR_SET_THP_DISABLE" in answer["why"]


def test_short_of_memory(tried: Callable[..., Any], host: FakeTree) -> None:
    """While tasks wait for memory, nothing begins; the plan is printed all the same."""
    make_sparse(host, 10, "redis", 65536, 16, "/system.slice/redis.service")
    pressure(host, 40)
    answer = tried("redis")
    assert answer["verdict"] == NOT_NOW
    assert answer["why"].startswith("tasks wait for memory 40 % of the time")
    assert "trim" in candidates(answer)


def test_in_the_midst_of_a_deploy(
    tried: Callable[..., Any], host: FakeTree, shown: dict[str, dict[str, str]]
) -> None:
    """In the midst of a deployment, nothing begins; what pays is printed all the same."""
    make_sparse(host, 10, "redis", 65536, 16, "/system.slice/redis.service")
    shown["redis.service"] = {"ActiveState": "reloading"}
    answer = tried("redis")
    assert (answer["verdict"], answer["why"]) == (NOT_NOW, "redis.service is reloading")
    assert "trim" in candidates(answer)


def test_a_host_that_was_never_calibrated(
    tried: Callable[..., Any], host: FakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a host that was never calibrated, a fault is measured, and nothing is kept."""
    host.remove("/var/lib/mmpolicy/calibration.json")
    costs = [FaultCost(4096, 500.0, 400.0, 600.0)]
    monkeypatch.setattr(around, "measure", lambda *_given: costs)
    assert tried()["seen"]["cost_from"].startswith("single pages, measured now")
    assert not host.exists("/var/lib/mmpolicy/calibration.json")


def test_with_the_module(run: Run, tree: FakeTree, clock: Clock) -> None:
    """With the module, `try` offers policies for the service alone, unless another profile decides
    for it.
    """
    make_thp(tree)
    keep(tree)
    make_sparse(tree, 11, "web", 2048, 1, "/system.slice/web.service")
    folder = "/sys/fs/cgroup/system.slice/web.service"
    tree.put(f"{folder}/cpu.stat", "usage_usec 1")
    step = partial(count, tree, 11, "web", 2048, 100_000, 200)

    def answer() -> Any:
        count(tree, 11, "web", 2048)
        clock.steps = [step, *[lambda: None] * 9]
        return run("try", "--cgroup", folder, "--seconds", "10", "--json", "--dry-run").json

    assert [*candidates(answer())] == ["adaptive", "thp-sizes"]
    assert candidates(answer())["adaptive"]["commands"] == [
        "mmpolicy try --unit web.service --candidate adaptive"
    ]
    for size in 16, 32, 64:
        tree.put(f"{THP}/hugepages-{size}kB/enabled", "[always] inherit madvise never")
    assert [*candidates(answer())] == ["adaptive"]
    run("profile", "create", "web")
    run("bind", "--cgroup", folder, "web")
    assert answer()["verdict"] == NOT_HERE


def test_what_is_printed(run: Run, host: FakeTree) -> None:
    make_sparse(host, 10, "redis", 65536, 16, "/system.slice/redis.service")
    lines = run("try", "--unit", "redis", "--seconds", "10").out.splitlines()
    assert lines[0] == "/system.slice/redis.service: 1 process, looked at for 10 s"
    (verdict,) = [line for line in lines if line.startswith("verdict: ")]
    assert verdict.startswith(f"verdict: {WORTH}: trim: gives back about 240 MiB")
    begin = lines.index(
        next(line for line in lines if line.startswith("   do: mmpolicy trim --unit"))
    )
    words = ("do", "time", "price", "way back", "proof")
    assert [each.strip().partition(":")[0] for each in lines[begin : begin + 5]] == [*words]


def busy_web(host: FakeTree, clock: Clock) -> None:
    """Let the service use 40 % of a CPU in the next look, with faults that cost up to 2 %."""
    folder = "/sys/fs/cgroup/system.slice/web.service"
    for name, text in ("memory.stat", "anon 1"), ("memory.current", "1"):
        host.put(f"{folder}/{name}", text)
    host.put(f"{folder}/cpu.stat", "usage_usec 0")

    def work() -> None:
        count(host, 11, "web", 2048, 100_000, 200)
        host.put(f"{folder}/cpu.stat", "usage_usec 4000000")

    count(host, 11, "web", 2048)
    clock.steps = [work, *[lambda: None] * 9]


def test_the_trial_knows_what_the_look_had_as_the_most(
    run: Run, host: FakeTree, clock: Clock, units: list[list[str]]
) -> None:
    """The unit of the trial gets the bound, in percent of the CPU time of the service."""
    host.put(f"{SYSTEMD}/there", "")
    busy_web(host, clock)
    result = run("try", "--unit", "web", "--seconds", "10", "--yes")
    assert result.code == 0, result.err
    assert "saves at most 1.6 % of a CPU, 4 % of its CPU time; 17 programs" in result.out
    (words,) = units
    assert float(words[words.index("--bound") + 1]) == pytest.approx(4, abs=0.05)


@pytest.mark.parametrize(
    ("words", "most", "own", "of_run"),
    [
        ("", "4.0 h", "", ""),
        ("--pairs 9", "36 min", " --pairs 9", " --pairs 9"),
        (
            "--block 20s --lease 1m",
            "40 min",
            " --block 20 --lease 60",
            " --block 20 --washout 6.67 --interval 0.833 --lease 60",
        ),
    ],
)
@pytest.mark.parametrize("systemd", [True, False])
def test_the_time_is_that_of_the_command(
    run: Run, host: FakeTree, clock: Clock, words: str, most: str, own: str, of_run: str,
    systemd: bool,
) -> None:  # fmt: skip
    """The time of a candidate follows from the blocks that were asked for, and its command has
    them, too.
    """
    busy_web(host, clock)
    if systemd:
        host.put(f"{SYSTEMD}/there", "")
    given = ("try", "--unit", "web", "--seconds", "10", "--dry-run", "--json", *words.split())
    result = run(*given)
    assert result.code == 0, result.err
    (best,) = candidates(result.json).values()
    assert best["time"] == f"at most {most}; it ends earlier if the answer is clear"
    assert best["gain"].startswith("saves at most 1.6 % of a CPU, 4 % of its CPU time; 17 programs")
    trial = f"mmpolicy try --unit web.service --candidate thp-sizes{own}"
    in_front = f"mmpolicy ab run --preset thp-sizes --unit web.service{of_run} --yes"
    assert best["commands"] == [trial if systemd else in_front]


@pytest.mark.parametrize(
    ("pages", "verdict", "step"),
    [(1, NOT_WORTH, "leave the service as it is"), (65536, NOT_HERE, "the lines 'not here' say")],
)
def test_the_last_line_says_what_to_do(
    run: Run, host: FakeTree, pages: int, verdict: str, step: str
) -> None:
    """The last line tells a person who has read no page what to do next, and that nothing was
    changed.
    """
    make_sparse(host, 10, "redis", pages, 16, "/system.slice/redis.service")
    host.real(SPLIT).unlink()
    lines = run("try", "--unit", "redis", "--seconds", "10").out.splitlines()
    assert any(line.startswith(f"verdict: {verdict}") for line in lines)
    assert lines[-1].startswith(f"next: {step}")
    assert lines[-1].endswith("; try itself has changed nothing")


@pytest.mark.parametrize(
    ("words", "text", "code"),
    [
        ([], "give one of --unit NAME, --cgroup PATH and --host", 2),
        (["--unit", "a", "--cgroup", "b"], "give one of --unit NAME, --cgroup PATH and --host", 2),
        (["--cgroup", "/"], "/ is the whole host", 2),
        (["--unit", "nobody"], "no cgroup 'nobody'", 2),
        (["--cgroup", "/empty"], "no process is in cgroup /empty", 1),
    ],
)
def test_what_is_refused(run: Run, host: FakeTree, words: list[str], text: str, code: int) -> None:
    host.make_cgroup("/empty")
    result = run("try", *words)
    assert (result.code, text in result.err) == (code, True), result.err
