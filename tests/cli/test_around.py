# SPDX-License-Identifier: GPL-2.0
"""`recommend` without a process: its findings on hosts made of files."""

from __future__ import annotations

import os
from functools import partial

import pytest

from mmpolicy.host.calibration import PAGE, FaultCost
from mmpolicy.verbs import around

from .fakes import COUNTERS, THP, Clock, FakeTree, Run, read_named
from .sparse import SHRINK, count, make_sparse, make_thp
from .test_calibrate import keep

LARGE = 65536  # pages
MODEL = ("--seconds", "10")


@pytest.fixture
def host(tree: FakeTree, clock: Clock) -> FakeTree:
    """Return a host without the module, on which one service works."""
    tree.make_unloaded()
    make_thp(tree)
    make_sparse(tree, 11, "web", 2048, 1, "/system.slice/web.service")
    # By these it measures how long reading one page takes.
    for name, text in ("statm", "99999 99999"), ("smaps_rollup", ""):
        tree.put(f"/proc/self/{name}", text)
    clock.steps = [lambda: None] * 9
    return tree


def said(run: Run) -> list[str]:
    """Return the lines."""
    result = run("recommend", *MODEL)
    assert (result.code, result.err) == (0, "")
    return result.out.splitlines()


def test_nothing_to_do(run: Run, host: FakeTree, clock: Clock) -> None:
    assert said(run) == ["nothing to do: 100% of the memory of 1 process was looked at"]
    assert clock.now == 10
    clock.steps = [lambda: None] * 99
    run("recommend")
    assert clock.now == 70
    assert host.writes == []


def test_waste(run: Run, host: FakeTree) -> None:
    """`recommend` names the service, its waste, the command, and the price."""
    make_sparse(host, 10, "redis", LARGE, 16, "/system.slice/redis.service")
    (line,) = said(run)
    assert line.startswith("/system.slice/redis.service: 240 MiB (+- ")
    assert "of the 256 MiB of private memory are empty parts of large folios" in line
    assert (
        "; do: mmpolicy trim --unit redis.service; price: the program loses these huge pages"
        in line
    )
    (found,) = run("recommend", *MODEL, "--json").json["findings"]
    assert found["commands"] == ["mmpolicy trim --unit redis.service"]
    assert found["line"] == line


def test_where_it_cannot_be_given_back(run: Run, host: FakeTree) -> None:
    make_sparse(host, 10, "redis", LARGE, 16, "/x/redis.scope")
    host.remove(SHRINK)
    (line,) = said(run)
    assert "mmpolicy trim" not in line and "restart the program" in line


@pytest.mark.parametrize(
    ("cgroup", "named"),
    [
        ("/x/redis.scope", "--cgroup /x/redis.scope"),
        ("/a b/c", "--cgroup '/a b/c'"),
        ("/", "--pid 10"),
    ],
)
def test_how_it_is_named(run: Run, host: FakeTree, cgroup: str, named: str) -> None:
    make_sparse(host, 10, "redis", LARGE, 16, cgroup)
    assert f"mmpolicy trim {named};" in said(run)[0]


def test_a_program_that_is_called_like_a_cgroup(run: Run, host: FakeTree) -> None:
    make_sparse(host, 10, "/", LARGE, 16, "/")
    assert "do: mmpolicy trim --pid 10;" in said(run)[0]


def busy(tree: FakeTree, clock: Clock) -> None:
    """Let the service fault."""
    clock.steps = [
        lambda: count(tree, 11, "web", 2048, 10_000, 100),
        lambda: count(tree, 11, "web", 2048, 20_000, 200),
    ]


def test_the_kernels_own_sizes(run: Run, host: FakeTree, clock: Clock) -> None:
    """If the kernel's own sizes suffice, `recommend` says so, and prints the lines."""
    busy(host, clock)
    (line,) = said(run)
    start = (
        "web: 2000 page faults a second, for which larger folios save at most 20 % of a CPU "
        "(by the cost of single pages, measured now;"
    )
    assert line.startswith(start) and "; the kernel's own folio sizes can save it" in line
    paths = [f"{THP}/hugepages-{kb}kB/enabled" for kb in (16, 32, 64)]
    assert f"do: {' && '.join(f'echo always >{path}' for path in paths)};" in line
    assert "0 to 5 % more memory, gcc 15 %" in line
    for path in paths:
        host.put(path, "[always] inherit madvise never")
    busy(host, clock)
    assert said(run)[0].startswith("nothing to do")


@pytest.mark.parametrize(("pid", "faults"), [(11, 10), (0, 10_000)])
def test_a_host_at_rest(run: Run, host: FakeTree, clock: Clock, pid: int, faults: int) -> None:
    """A host with two faults a second has no finding, and the command's own work is not
    one either.
    """
    looked_at = pid or os.getpid()
    clock.steps = [
        lambda: count(host, looked_at, "web", 2048, faults, 100),
        lambda: count(host, looked_at, "web", 2048, 2 * faults, 200),
    ]
    count(host, looked_at, "web", 2048)
    first, *others = said(run)
    assert first.startswith("nothing to do")
    assert [each[:32] for each in others] == (["not worth it: web: 2 page faults"] if pid else [])


def test_faults_of_the_whole_time_count(run: Run, host: FakeTree, clock: Clock) -> None:
    """Faults of the whole interval count, not only those of the last seconds."""
    busy(host, clock)
    clock.steps[1] = lambda: None
    assert said(run)[0].startswith("web: 1000 page faults a second, ")


def test_a_host_that_was_never_calibrated(
    run: Run, host: FakeTree, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a host that was never calibrated, a fault is measured, so 2,000 short faults a second are
    no reason to change sizes.
    """
    monkeypatch.setattr(around, "measure", lambda *_given: [FaultCost(PAGE, 1000, 900, 1100)])
    busy(host, clock)
    first, second = said(run)
    assert first.startswith("nothing to do: ")
    assert second == (
        "not worth it: web: 2000 page faults a second, for which larger folios save at most 0.2 % "
        "of a CPU (by the cost of single pages, measured now; mmpolicy calibrate measures all "
        "sizes)"
    )
    assert host.writes == []


def test_what_faults_take(run: Run, host: FakeTree, clock: Clock) -> None:
    """Page faults take 2,000 ns each, of which 64 kB save 80 %: below 1 % of a CPU that is not
    worth it.
    """
    keep(host)
    for faults, told in (31_000, False), (32_000, True):
        clock.steps = [lambda: None, partial(count, host, 11, "web", 2048, faults * 2, 200)]
        count(host, 11, "web", 2048)
        first, *others = said(run)
        figure = (
            f"web: {faults / 5:.0f} page faults a second, for which larger folios save at most "
        )
        assert first.startswith(figure if told else "nothing to do: ")
        assert told or others == [f"not worth it: {figure}0.99 % of a CPU"]


def test_sizes_for_one_service_alone(run: Run, host: FakeTree, clock: Clock) -> None:
    """If another service would waste more with larger folios for all, sizes are given to one
    service alone.
    """
    host.put("/proc/meminfo", "MemTotal: 1048576 kB")
    make_sparse(host, 10, "redis", LARGE, 16, "/system.slice/redis.service")
    busy(host, clock)
    first, second = said(run)
    assert "trim" in first
    assert (
        "the settings in sysfs would give larger folios to /system.slice/redis.service, too, "
        "which waste memory in them"
    ) in second


def test_who_forbids_them(run: Run, host: FakeTree, clock: Clock) -> None:
    make_sparse(host, 12, "ruby", 2048, 1, "/ruby.service", forbids=True)
    clock.steps = [lambda: count(host, 12, "ruby", 2048, 90_000, 400), lambda: None]
    (line,) = said(run)
    assert line.startswith(
        "ruby: 9000 page faults a second, for which larger folios save at most 40 % of a CPU"
    )
    assert (
        "as the process has forbidden large folios for all of its memory (prctl PR_SET_THP_DISABLE)"
    ) in line
    assert "; next: find out what calls prctl()" in line


def test_compaction(run: Run, host: FakeTree, clock: Clock) -> None:
    clock.steps = [lambda: host.put("/proc/vmstat", "pgfault 1\ncompact_stall 1005"), lambda: None]
    (line,) = said(run)
    assert line.startswith("host: programs have to compact memory themselves 100 times a second")
    assert f"do: echo defer >{THP}/defrag" in line


def test_a_shadow(run: Run, tree: FakeTree, clock: Clock) -> None:
    make_thp(tree)
    run("set", "anon_order", "shadow=adaptive")
    counters = "decisions 900\nshadow_requested_order_0 100\nshadow_requested_order_4 800\n"
    tree.put(f"{COUNTERS}/anon_order/stats", f"{counters}shadow_allocated_order_4 60")
    clock.steps = [lambda: None] * 9
    (line,) = said(run)
    assert line.startswith(
        "profile default: the shadow policy of this profile counts: of 900 page faults"
    )
    assert "do: mmpolicy set anon_order adaptive --profile default" in line
    before = read_named(tree)
    run("recommend", *MODEL)
    assert read_named(tree) == before
    assert before["profiles/default/anon_order/shadow"] == "adaptive"


@pytest.mark.parametrize("words", ["adaptive shadow=adaptive", "shadow=fixed"])
def test_a_shadow_that_says_nothing_new(run: Run, tree: FakeTree, clock: Clock, words: str) -> None:
    """If the policy of the shadow is active already, or is not `adaptive`, there is no finding."""
    make_thp(tree)
    assert run("set", "anon_order", *words.split()).code == 0
    counters = "decisions 900\nshadow_requested_order_4 800\nshadow_allocated_order_4 60"
    tree.put(f"{COUNTERS}/anon_order/stats", counters)
    clock.steps = [lambda: None] * 9
    assert said(run)[0].startswith("nothing to do")


def test_little_waste(run: Run, host: FakeTree) -> None:
    """Waste of less than 32 MiB is not worth a line, nor is less than a twentieth."""
    make_sparse(host, 10, "redis", LARGE // 8, 16, "/redis.service")
    make_sparse(host, 12, "sparse", 11264, 16, "/large.service")  # 41 MiB
    make_sparse(host, 13, "dense", 4 * LARGE, 1, "/large.service")
    assert said(run)[0].startswith("nothing to do")


def test_never_more_than_five_lines(run: Run, tree: FakeTree, clock: Clock) -> None:
    make_thp(tree)
    tree.put("/proc/meminfo", "MemTotal: 262144 kB")
    for number in range(4):
        make_sparse(tree, 20 + number, f"x{number}", LARGE // 4, 16, f"/x{number}.service")
    make_sparse(tree, 11, "web", 2048, 1, "/web.service")
    make_sparse(tree, 12, "ruby", 2048, 1, "/ruby.service", forbids=True)
    run("set", "anon_order", "shadow=adaptive")
    counters = "decisions 900\nshadow_requested_order_4 800\nshadow_allocated_order_4 60"
    tree.put(f"{COUNTERS}/anon_order/stats", counters)
    busy(tree, clock)
    work = clock.steps[0]

    def stall() -> None:
        work()
        tree.put("/proc/vmstat", "compact_stall 9005")

    clock.steps[0] = stall
    lines = said(run)
    heads = [line.partition(":")[0] for line in lines]
    assert heads[2:] == ["web", "host", "profile default"]
    assert {head[:2] for head in heads[:2]} == {"/x"}  # two of four with equal waste


def test_usage(run: Run, host: FakeTree) -> None:
    assert run("recommend", "--name", "x").code == 2
