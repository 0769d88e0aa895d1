# SPDX-License-Identifier: GPL-2.0
"""The verbs that report that a policy cannot reach a process, and only then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .ab_world import SHORT
from .fakes import THP, Clock, FakeTree, Run
from .sparse import make_sparse, make_thp
from .test_explain import make_traced
from .test_map import make_process

SERVICE = "/system.slice/redis.service"
TOLD = "redis-server (pid 10): no policy for large folios reaches 100% of the memory"
ADAPTIVE = ("--treatment", "anon_order=adaptive")
KNOB = ("--treatment", "hugepages-64kB/enabled=always")
PGFAULT = ("--metric", "vmstat.pgfault/s lower")
RUN = ("--design", "switchback", *SHORT, "--out")
MEMORY = ("--metric", f"cgroup:{SERVICE}/memory.current lower")


def redis(tree: FakeTree, pages: int, forbids: bool = False, flags: str = "rd wr") -> None:
    make_sparse(tree, 10, "redis-server", pages, 16, SERVICE, flags)
    rss = f"VmRSS:\t{pages * 4} kB\nRssAnon:\t{pages * 4} kB"
    tree.put("/proc/10/status", f"Name:\tredis\n{rss}\nTHP_enabled:\t{int(not forbids)}")


def forbids(tree: FakeTree) -> None:
    """Forbid large folios to the process, as redis does under `always`."""
    redis(tree, 65536, forbids=True)


def reached(tree: FakeTree) -> None:
    redis(tree, 65536)


def advised(tree: FakeTree) -> None:
    """Advise huge pages in all of its memory, so little that smaps may be read."""
    redis(tree, 10240, flags="rd wr hg")


@pytest.fixture
def host(tree: FakeTree, clock: Clock) -> FakeTree:
    """Return a host with the module, and with 64 kB that can be switched on."""
    make_thp(tree)
    tree.put(f"{THP}/enabled", "[always] madvise never")
    for file, text in ("statm", "99999 99999"), ("smaps_rollup", ""):  # smaps cost nothing
        tree.put(f"/proc/self/{file}", text)
    clock.steps = [lambda: None] * 999
    return tree


def with_policy(run: Run, policy: str = "adaptive", *knobs: str) -> None:
    run("profile", "create", "web")
    assert run("set", "anon_order", policy, *knobs, "--profile", "web").code == 0


def test_bind_and_status(run: Run, host: FakeTree) -> None:
    """`bind` and `status` name the process, its share, the cause, and the way out; the binding is
    made.
    """
    forbids(host)
    with_policy(run)
    for words in (("--cgroup", SERVICE), ("--pid", "10")):
        result = run("bind", *words, "web")
        assert result.code == 0
        (line,) = result.err.splitlines()
        assert line.startswith(f"warning: {TOLD}")
        assert "`disable-thp yes`, the default of redis" in line
        assert f"remedy: echo madvise >{THP}/enabled" in line
    assert sum(line.startswith(TOLD) for line in run("status").out.splitlines()) == 1
    (found,) = run("status", "--json").json["out_of_reach"]
    assert (found["pid"], found["barriers"][0]["key"]) == (10, "prctl")


def nothing(run: Run, host: FakeTree) -> None:
    """Let the process be reached."""
    reached(host)
    with_policy(run)


def no_policy(run: Run, host: FakeTree) -> None:
    """Let the profile be for lazily freed memory, which large folios do not affect."""
    forbids(host)
    with_policy(run, "stock")
    assert run("set", "madv_free", "cap", "--profile", "web").code == 0


def overridden(run: Run, host: FakeTree) -> None:
    """Let the policy decide for advised memory as well."""
    advised(host)
    with_policy(run, "adaptive", "override_madvise=1")


@pytest.mark.parametrize("make", [nothing, no_policy, overridden])
def test_where_nothing_is_told(
    run: Run, host: FakeTree, make: Callable[[Run, FakeTree], None]
) -> None:
    make(run, host)
    assert run("bind", "--cgroup", SERVICE, "web").err == ""
    assert run("status", "--json").json["out_of_reach"] == []
    assert "no policy" not in run("status").out


def test_advice_is_told_of_a_policy_that_leaves_it_alone(run: Run, host: FakeTree) -> None:
    advised(host)
    with_policy(run)
    (line,) = run("bind", "--cgroup", SERVICE, "web").err.splitlines()
    assert "as the program asks for huge pages for this memory (MADV_HUGEPAGE)" in line
    assert line.endswith(
        "set override_madvise=1 of anon_order, so that the policy decides in spite of madvise()"
    )


@pytest.mark.parametrize(
    ("make", "words", "refused"),
    [
        (forbids, ("--cgroup", SERVICE, *ADAPTIVE, *PGFAULT), True),
        (advised, ("--cgroup", SERVICE, *ADAPTIVE, *PGFAULT), True),
        (forbids, (*KNOB, *MEMORY), True),
        (reached, ("--cgroup", SERVICE, *ADAPTIVE, *PGFAULT), False),
        (advised, ("--cgroup", SERVICE, "--treatment", "anon_order=adaptive,override_madvise=1",
                   *PGFAULT), False),
        (advised, (*KNOB, *MEMORY), False),
        (reached, (*KNOB, *MEMORY), False),
        (forbids, (*ADAPTIVE, *PGFAULT), False),
        (forbids, ("--cgroup", SERVICE, *PGFAULT), False),
        (forbids, ("--cgroup", SERVICE, "--treatment", "madv_free=eager", *PGFAULT), False),
    ],
)  # fmt: skip
def test_what_cannot_differ_is_not_compared(
    run: Run, host: FakeTree, tmp_path: Path, make: Callable[[FakeTree], None],
    words: tuple[str, ...], refused: bool,
) -> None:  # fmt: skip
    """No possible experiment is refused: an A/A run, the whole host, or another point."""
    make(host)
    result = run(
        "ab",
        "run",
        "--dry-run",
        *RUN,
        str(tmp_path / "x"),
        *words,
    )
    assert ("cannot differ" in result.err, result.code) == (refused, 2 if refused else 0)
    if refused:
        assert (
            f"no policy reaches the processes of {SERVICE}, so the arms cannot differ: "
            "redis-server (pid 10): no policy"
        ) in result.err
        assert result.err.splitlines()[-1].startswith("next: ")
    else:
        assert "no policy" not in result.err


def test_where_some_are_reached_it_warns(run: Run, host: FakeTree, tmp_path: Path) -> None:
    """Where some processes are reached, or the metrics are of the whole host, `ab run` warns."""
    forbids(host)
    make_sparse(host, 11, "other", 4096, 16, f"{SERVICE}/sub")
    host.put("/proc/11/status", "VmRSS:\t16384 kB\nRssAnon:\t16384 kB\nTHP_enabled:\t1")
    ab = ("ab", "run", "--dry-run", *RUN, str(tmp_path / "x"))
    two = (*KNOB, *MEMORY, *PGFAULT, "--pairs", "8")
    for words in (("--cgroup", SERVICE, *ADAPTIVE, *PGFAULT), two):
        result = run(*ab, *words)
        assert (result.code, f"warning: {TOLD}" in result.err) == (0, True)


def test_explain_and_recommend(run: Run, tree: FakeTree, clock: Clock) -> None:
    """The first line of `explain` names the barrier, and `recommend` proposes no profile without
    effect.
    """
    make_process(tree)
    make_traced(tree)
    clock.steps = [lambda: None] * 9
    status = "Name:\tx\nVmRSS:\t90000 kB\nRssAnon:\t90000 kB\nTHP_enabled:\t{}"
    tree.put("/proc/10/status", status.format(1))
    assert "no policy for large" not in run("explain", "10").out
    tree.put("/proc/10/status", status.format(0))
    result = run("explain", "10")
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert "no policy for large folios reaches 100% of the memory" in lines[1]
    assert run("explain", "10", "--json").json["reach"]["barriers"][0]["key"] == "prctl"
    for loaded in True, False:
        result = run("recommend", "10")
        assert (result.code, result.out) == (7, "")
        assert "no policy for large folios reaches" in result.err
        assert "next: find out what calls prctl()" in result.err
        if loaded:
            tree.make_unloaded()
