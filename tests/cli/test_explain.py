# SPDX-License-Identifier: GPL-2.0
"""`explain` and `recommend`: on a process made of files, and a trace made of lines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mmpolicy.errors import Error
from mmpolicy.host.files import TRACING
from mmpolicy.host.tracing import parse
from mmpolicy.memory.advice import Advice, advise
from mmpolicy.memory.explain import Explained, Wanted
from mmpolicy.memory.holds import Holds

from .fakes import CONTROL, POINTS, Clock, FakeTree, Run, read_named
from .sparse import make_services, make_sparse, reuse, sizes
from .test_map import PID, SMAPS, START, maps_of, process

__all__ = ["process"]

ENABLE = f"{TRACING}/events/mmpolicy/mmpolicy_anon_order/enable"


def line(kind: str, address: int, order: int, reason: str, site: str = "pte") -> str:
    where = f"addr={address:x} site={site} order={order} reason={reason}"
    return f"  redis-{PID} [001] .....  12.345678: mmpolicy_anon_{kind}: {where}"


def make_traced(process: FakeTree) -> None:
    """Make the process fault: adaptive is asked, and fixed is the shadow."""
    lines = ["# entries-in-buffer/entries-written: 180/190   #P:2"]
    lines += [line("order", START + 4096 * n, 4, "dense_neighbour") for n in range(60)]
    lines += [line("order", START, 0, "no_neighbour") for _ in range(90)]
    lines += [line("order", START, 0, "no_neighbour", "pmd"), line("order", 5, 0, "no_neighbour")]
    lines += [line("shadow", START, 4, "cap") for _ in range(30)]
    process.trace = "\n".join(lines)
    process.make_process(PID)
    process.put(f"/proc/{PID}/task/{PID}/comm", "x")
    process.put(f"/proc/{PID}/task/11/comm", "x")
    process.put(f"/proc/{PID}/cgroup", "0::/web.slice")
    process.make_cgroup("/web.slice")


@pytest.fixture
def traced(process: FakeTree, clock: Clock) -> FakeTree:
    """Return a host with that process."""
    make_traced(process)
    clock.steps = [lambda: None] * 9
    return process


def test_explain(run: Run, traced: FakeTree, clock: Clock) -> None:
    run("set", "anon_order", "adaptive", "shadow=fixed")
    traced.writes.clear()
    result = run("explain", str(PID), "--seconds", "3")
    assert (result.code, clock.now) == (0, 3.0)
    *lines, hold = result.out.splitlines()
    assert re.fullmatch(
        r"longest hold of the mmap_lock of the process by this command: [\d.]+ ms", hold
    )
    assert lines == [
        "profile: default, policy: adaptive, shadow: fixed",
        f"{START:x}-{START + 64 * 4096:x} [anon:my heap]",
        "  has     76 kB: 64 kB in folios of 64 kB, 50% of it never used, "
        "8 kB in folios of 2048 kB, 0% of it never used",
        (
            "  wanted  150 page faults: 4 kB 90, 64 kB 60 (reasons: 60 %: no memory nearby was "
            "used in full; 40 %: memory nearby was used in full)"
        ),
        (
            "  shadow  30 page faults: 64 kB 30 (reasons: 100 %: the limit of the policy "
            "allows no larger folio)"
        ),
        "10 decisions were lost, as there were too many at once",
    ]
    assert (f"{TRACING}/set_event_pid", f"{PID} 11") in traced.writes
    assert [value for path, value in traced.writes if path == ENABLE] == ["1", "0"]
    assert not [path for path, _ in traced.writes if "bulk" in path]
    assert not traced.exists(TRACING)
    data = run("explain", str(PID), "--json").json
    assert (data["policy"], data["shadow"], data["lost"]) == ("adaptive", "fixed", 10)
    (area,) = data["areas"]
    assert (area["start"], area["pages"]) == (START, 19)
    assert (area["large_pages"], area["unused_pages"]) == ({"4": 16, "9": 2}, {"4": 8, "9": 0})
    assert area["wanted"]["orders"] == {"0": 90, "4": 60}
    assert area["shadow"]["reasons"] == {"cap": 30}


def test_explain_an_address(run: Run, traced: FakeTree) -> None:
    assert "[anon:my heap]" in run("explain", str(PID), f"{START + 4096:x}").out
    assert "[anon:my heap]" in run("explain", str(PID), f"0x{START:x}").out
    away = run("explain", str(PID), "7000")
    assert (away.code, "no anonymous memory at 7000" in away.err) == (2, True)
    assert run("explain", str(PID), "heap").code == 2
    assert run("explain", "99").code == 2


def test_explain_says_what_is_missing(run: Run, traced: FakeTree) -> None:
    traced.trace = ""
    last = run("explain", str(PID)).out.splitlines()[-2]
    assert last.startswith("no policy decided anything; this asks a policy")
    run("set", "anon_order", "fixed")
    last = run("explain", str(PID)).out.splitlines()[-2]
    assert last == "no page fault of the process reached the policy in this time"


def make_forbidding(host: FakeTree) -> None:
    """Make a process in large folios that has forbidden them since."""
    make_services(host, "web")
    sizes(host, 10, 4096, forbids=True)


def make_asking(host: FakeTree) -> None:
    """Make a process that has asked for its large folios."""
    make_services(host, "web")
    make_sparse(host, 10, flags="rd wr hg", pages=16384)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda host: make_services(host, "web"), ""),
        (make_forbidding, "PR_SET_THP_DISABLE"),
        (make_asking, "MADV_HUGEPAGE"),
    ],
)
def test_without_the_module(
    run: Run, tree: FakeTree, make: Callable[[FakeTree], None], told: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Without the module, facts that need no module are reported: folios, prctl and advice."""
    monkeypatch.setattr(Holds, "allows_smaps", lambda *_: True)
    make(tree)
    result = run("explain", "10")
    assert result.code == 0
    assert result.out.startswith("the module is not loaded, so the kernel decides")
    assert "in folios of 2048 kB, 94% of it never used" in result.out
    assert (told in result.out) == ("no policy for large folios reaches" in result.out) or not told
    assert run("explain", "10", "--json").json["loaded"] is False
    asked = run("recommend", "10")
    if told == "PR_SET_THP_DISABLE":
        assert (asked.code, told in asked.err) == (7, True)
        return
    assert (asked.code, "there is no profile to propose" in asked.err) == (3, True)
    assert "in folios of 2048 kB, 94% of it never used" in asked.out
    assert told in asked.out


@pytest.mark.parametrize("verb", ["explain", "recommend"])
def test_another_program_with_the_same_pid(
    run: Run, traced: FakeTree, clock: Clock, verb: str
) -> None:
    """Decisions about a process are not explained by the memory of another that has its PID."""
    clock.steps = [lambda: reuse(traced, PID)]
    result = run(verb, str(PID))
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith(f"mmpolicy: process {PID} has ended\n")


def test_tracing_ends_with_an_interrupt(run: Run, traced: FakeTree, clock: Clock) -> None:
    clock.steps = []
    assert run("explain", str(PID)).code != 0
    assert [value for path, value in traced.writes if path == ENABLE] == ["1", "0"]


@pytest.mark.parametrize("path", [f"{TRACING}/../other/trace", "/sys/kernel/tracing/tracing_on"])
def test_tracing_of_others_is_left_alone(tree: FakeTree, path: str) -> None:
    with pytest.raises(Error):
        tree.write(path, "1")
    assert tree.writes == []


def test_a_second_one_waits_for_the_first(run: Run, traced: FakeTree) -> None:
    with traced.locked("/run/mmpolicy/tracing.lock", "mmpolicy, pid 7"):
        result = run("explain", str(PID))
    assert (result.code, "is locked by mmpolicy, pid 7" in result.err) == (1, True)


def test_an_unknown_reason_is_shown_by_its_name() -> None:
    (decision,) = parse(line("order", 4096, 3, "new_one")).decisions
    wanted = Wanted()
    wanted.add(decision)
    assert wanted.text() == "1 page faults: 32 kB 1 (reasons: 100 %: new_one)"


def seen(run_: int = 0, alone: int = 0, cap: int = 0, unused: int = 0, order: int = 4) -> Explained:
    reasons = Counter({"dense_neighbour": run_, "no_neighbour": alone, "cap": cap})
    wanted = Wanted(Counter({order: run_ + cap, 0: alone}), +reasons)
    return Explained(0, 0, "all", 1000, Counter({order: 100}), Counter({order: unused}), wanted)


def in_use(unused: dict[int, int]) -> Explained:
    """Return a result with 100 pages in folios of each order, some of them unused."""
    return Explained(0, 0, "all", 1000, Counter(dict.fromkeys(unused, 100)), Counter(unused))


UNUSED = "of the pages in large folios of this process were never used"
BESIDE = "page faults were next to memory that is used in full"


@pytest.mark.parametrize(
    ("whole", "largest", "policy", "max_order", "evidence"),
    [
        (seen(run_=20, alone=80), 64 << 20, "adaptive", 9,
         (f"0% {UNUSED}", f"20 of 100 {BESIDE}", (
             "the largest memory area of the process has 64 MiB"
         ))),
        (seen(run_=20, alone=80), (64 << 20) - 1, "adaptive", 4,
         (f"0% {UNUSED}", f"20 of 100 {BESIDE}", (
             "the largest memory area of the process has 63 MiB"
         ))),
        (seen(run_=20, alone=80, unused=10), 64 << 20, "adaptive", 9,
         (f"10% {UNUSED}", f"20 of 100 {BESIDE}", (
             "the largest memory area of the process has 64 MiB"
         ))),
        (seen(run_=20, alone=80, unused=11), 64 << 20, "adaptive", 2,
         (f"11% {UNUSED}", f"20 of 100 {BESIDE}")),
        (seen(run_=19, alone=81), 1 << 30, "stock", None,
         (f"0% {UNUSED}", f"19 of 100 {BESIDE}", "so large folios would be rare, or mostly empty")),
        (seen(run_=99, cap=900, unused=11), 1 << 30, "adaptive", 2,
         (f"11% {UNUSED}", "so folios larger than 16 kB are not recommended")),
        (replace(seen(run_=20, alone=80), large=Counter()), 1 << 20, "adaptive", 4,
         (f"20 of 100 {BESIDE}", "the largest memory area of the process has 1 MiB")),
        (in_use({2: 0, 3: 10, 4: 90, 5: 0}), 0, "adaptive", 3,
         (f"25% {UNUSED}", "so folios larger than 32 kB are not recommended")),
        (in_use({4: 10, 5: 99}), 0, "adaptive", 4,
         (f"55% {UNUSED}", "so folios larger than 64 kB are not recommended")),
    ],
)  # fmt: skip
def test_advice(
    whole: Explained, largest: int, policy: str, max_order: int | None, evidence: tuple[str, ...]
) -> None:
    """Advice changes at each bound, and just beyond it."""
    assert advise(whole, largest) == Advice(policy, max_order, evidence)


@pytest.mark.parametrize(
    "whole", [seen(run_=99, unused=10), seen(cap=1000, unused=5), Explained(0, 0, "")]
)
def test_too_little_to_tell(whole: Explained) -> None:
    assert advise(whole, 1 << 30) is None


def test_recommend_is_applied_and_adds_one_profile(
    run: Run, traced: FakeTree, tmp_path: Path
) -> None:
    run("profile", "create", "other")
    run("set", "anon_order", "never", "--profile", "other")
    run("set", "anon_order", "shadow=adaptive", "min_available_percent=33")
    before = read_named(traced)
    traced.trace = "\n".join(line("shadow", START, 4, "dense_neighbour") for _ in range(200))
    result = run("recommend", str(PID), "--seconds", "2")
    assert read_named(traced) == before
    head = [each for each in result.out.splitlines() if each.startswith("#")]
    assert head == [
        f"# process {PID}: anon_order adaptive",
        "# 44% of the pages in large folios of this process were never used",
        "# 200 of 200 page faults were next to memory that is used in full",
    ]
    manifest = tmp_path / "m.toml"
    manifest.write_text(result.out)
    applied = run("apply", str(manifest))
    assert applied.code == 0, applied.err
    after = read_named(traced)
    new = {key: value for key, value in after.items() if before.get(key) != value}
    profile = "profiles/redis--server"
    assert new.pop(f"{profile}/anon_order/policy") == "adaptive"
    assert new.pop(f"{profile}/anon_order/adaptive/max_order") == "2"
    assert new.pop(f"{profile}/anon_order/min_available_percent") == "33"
    assert new.pop(f"cgroups/{traced.inode('/sys/fs/cgroup', 'web.slice')}") == "redis--server"
    assert all(key.startswith(profile) for key in new)
    assert all(after[key] == value for key, value in before.items())


def test_recommend_json_and_names(run: Run, traced: FakeTree) -> None:
    traced.trace = "\n".join(line("shadow", START, 0, "no_neighbour") for _ in range(200))
    traced.put(f"/proc/{PID}/cgroup", "0::/")
    data = run("recommend", str(PID), "--name", "mine", "--json").json
    assert (data["profile"], data["policy"], data["max_order"]) == ("mine", "stock", None)
    assert data["cgroup"] == ""
    assert "[profiles.mine.anon_order]" in data["manifest"]
    assert run("recommend", str(PID), "--name", "../x").code == 5
    run("profile", "create", "redis--server")
    assert run("recommend", str(PID), "--json").json["profile"] == "redis--server-2"


def test_recommend_with_too_little(run: Run, traced: FakeTree) -> None:
    traced.trace = ""
    traced.put(f"/proc/{PID}/mem", "")
    result = run("recommend", str(PID))
    assert (result.code, result.out) == (7, "")
    assert "had too few decisions" in result.err
    assert "next: mmpolicy set anon_order shadow=adaptive --profile default" in result.err
    assert traced.exists(CONTROL)


def test_a_process_without_memory_of_its_own(run: Run, traced: FakeTree) -> None:
    traced.put(f"/proc/{PID}/maps", "")
    lines = run("explain", str(PID)).out.splitlines()
    assert lines[0].startswith("profile: default, policy: stock")
    assert lines[1].startswith("no policy decided anything; this asks a policy")
    result = run("explain", str(PID), "10")
    assert (result.code, f"process {PID} has no anonymous memory at 10" in result.err) == (2, True)
    end = START + 64 * 4096
    make_traced(traced)
    traced.put(f"/proc/{PID}/maps", maps_of(SMAPS))
    assert run("explain", str(PID), f"{end - 1:x}").code == 0
    assert run("explain", str(PID), f"{end:x}").code == 2


def test_how_long_it_looks_if_nobody_says(run: Run, traced: FakeTree, clock: Clock) -> None:
    assert (run("explain", str(PID)).code, clock.now) == (0, 5)
    assert "[default: 5.0]" in run("explain", "--help").out
    assert "there is no process 1" in run("explain", "1").err
    assert "no process" not in run("explain", "0").err


def test_a_proposal_has_what_the_process_has(
    run: Run, traced: FakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proposal has the settings of the process; in the default profile only the point concerned;
    without a cgroup it says so.
    """
    largest: list[int] = []

    def noted(whole: Explained, size: int) -> Advice | None:
        largest.append(size)
        return advise(whole, size)

    monkeypatch.setattr("mmpolicy.verbs.explain.advise", noted)
    traced.trace = "\n".join(line("order", START, 0, "no_neighbour") for _ in range(200))
    run("profile", "create", "web")
    compact = POINTS["compact"][-1]
    for name in ("default", "web"):
        run("set", "compact", compact, "--profile", name)
    plain = run("recommend", str(PID), "--name", "mine").out
    assert ("[profiles.mine.compact]" in plain, "no cgroup of its own" in plain) == (False, False)
    run("bind", "--pid", str(PID), "web")
    assert (
        f'[profiles.mine.compact]\npolicy = "{compact}"'
        in run("recommend", str(PID), "--name", "mine").out
    )
    traced.put(f"/proc/{PID}/cgroup", "0::/")
    said = "# the process has no cgroup of its own; mmpolicy bind --pid binds it"
    assert said in run("recommend", str(PID), "--name", "mine").out.splitlines()
    assert largest == [19 * 4096] * 3
