# SPDX-License-Identifier: GPL-2.0
"""Lazily freed RSS, without the module; and processes by name, for `map` and `trim`."""

from __future__ import annotations

import re

import pytest

from mmpolicy.host.files import Tree
from mmpolicy.host.processes import find_process
from mmpolicy.memory.findings import Evidence, Finding, Module, _lazily
from mmpolicy.memory.holds import Holds
from mmpolicy.memory.lazily import memory_lines, memory_of_cgroup, memory_of_process
from mmpolicy.memory.survey import Survey

from .fakes import SLOW, FakeTree, Run
from .sparse import count, make_sparse, make_thp
from .test_host import raised
from .test_map import PID, process
from .test_reach import MIB, start

__all__ = ["process", "start"]


@pytest.mark.parametrize("limit_s", [60.0, 1e-9])
def test_what_is_lazily_freed(start, limit_s: float) -> None:  # type: ignore[no-untyped-def]
    """A look that would stall the process is skipped, and the remainder is reported as unknown."""
    pid = start("m = private(); m.madvise(8, 0, 16 << 20)")
    found = memory_of_process(Tree(), pid, Holds(Tree(), limit_s))
    assert found.rss_kib >= MIB << 10
    if limit_s > 1:
        assert 15 << 10 <= found.lazily_freed_kib <= 16 << 10  # the last pages are still in a batch
        assert found.not_known_kib == 0
        assert found.rss_minus_lazily_freed_kib == found.rss_kib - found.lazily_freed_kib
    else:
        assert found.lazily_freed_kib == 0
        assert found.not_known_kib >= MIB << 10
        _, row, step = memory_lines([found], f"mmpolicy show --pid {pid}")
        least, most = found.rss_minus_lazily_freed_least_kib, found.rss_kib
        assert row.endswith(f"{least} .. {most}") and least <= most - (MIB << 10)
        words = re.match(r"next: mmpolicy show --pid \d+ --hold (\d+) shows exact", step)
        assert words
        exact = memory_of_process(Tree(), pid, Holds(Tree(), int(words[1]) / 1000))
        assert exact.not_known_kib == 0 and 15 << 10 <= exact.lazily_freed_kib <= 16 << 10


def test_show_gives_ranges_where_it_does_not_know(run: Run, tree: FakeTree) -> None:
    """Memory that was not read is in both ranges; the next step has a --hold that reads it, and
    JSON has the bounds.
    """
    make_thp(tree)
    pages = 1 << 16
    make_sparse(tree, 10, pages=pages, step=pages // 2)
    tree.put("/proc/10/smaps_rollup", f"Rss: {pages * 4} kB\nLazyFree: 10000 kB")
    words = ["show", "madv_free", "--pid", "10"]
    out = run(*words).out.splitlines()
    row = next(line for line in out if line.startswith("process 10 "))
    assert row.endswith(f"  0 .. {pages * 4}       0 .. {pages * 4}")
    (step,) = (line for line in out if line.startswith("next: mmpolicy show --pid 10 --hold "))
    memory = run(*words, "--json").json["memory"][0]
    bounds = memory["lazily_freed_kib"], memory["lazily_freed_most_kib"]
    assert (*bounds, memory["rss_minus_lazily_freed_least_kib"]) == (0, pages * 4, 0)
    hold = step.split()[step.split().index("--hold") + 1]
    assert "  10000             " in run(*words, "--hold", hold).out
    bound = run("stats", "--pid", "10").out.splitlines()[-1]
    assert bound.startswith("next: mmpolicy stats --pid 10 --hold ")


def recommended(pid: int, limit_s: float) -> list[Finding]:
    """Return the text of `recommend` on lazily freed memory of one process."""
    survey = Survey(Tree(), 0.2, seed=1, holds=Holds(Tree(), limit_s))
    survey._list = lambda: [pid]  # type: ignore[method-assign]
    survey.turn(1.0, 5.0)
    host = Evidence(Tree(), survey, {}, {}, SLOW, Module(False))
    assert survey.processes[pid].kinds["lazily_freed"] > 40 << 10
    return list(_lazily(host))


@pytest.mark.parametrize("again", ["", "most", "all"])
def test_recommend_asks_smaps(start, again: str) -> None:  # type: ignore[no-untyped-def]
    """Pages written again after MADV_FREE look free in kpageflags, and are not."""
    pages = {"": 0, "most": 3 * MIB << 6, "all": MIB << 8}[again]
    text = f"m = private(15); m.madvise(8); [m.__setitem__(n * 4096, 2) for n in range({pages})]"
    found = recommended(start(text), 60.0)
    assert len(found) == (again == "")
    if found:
        assert re.match(r"6\d MiB of the RSS of python\S* \(pid \d+\) are freed", found[0].what)
        assert found[0].next_step == ""


def test_recommend_says_what_it_does_not_know(start) -> None:  # type: ignore[no-untyped-def]
    """If smaps would stall the program, it gives an upper bound, and how to get the figure."""
    (found,) = recommended(start("m = private(15); m.madvise(8); touch(m)"), 1e-4)
    assert found.what.startswith("up to 6")
    assert "including pages that were written again since" in found.what
    show, _, price = found.next_step.partition(
        " shows the exact figure, and blocks mmap() of the process for "
    )
    assert re.fullmatch(r"mmpolicy show --pid \d+ --hold \d+", show)
    assert re.fullmatch(r"about \d+ ms", price)


def test_without_the_module(run: Run, tree: FakeTree) -> None:
    """Without the module, the first command to type if RSS does not fall needs only
    smaps_rollup.
    """
    make_thp(tree)
    make_sparse(tree, 10)
    tree.put("/proc/10/smaps_rollup", "Rss: 16384 kB\nLazyFree: 10000 kB")
    loaded = run("show", "madv_free", "--pid", "10").out.splitlines()
    tree.make_unloaded()
    result = run("show", "madv_free", "--pid", "10")
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[:3] == loaded[2:5]
    assert lines[1].split() == ["process", "10", "1", "16384", "10000", "6384"]
    assert lines[-1].startswith("the module is not loaded")
    assert run("show", "--pid", "10", "--json").json["memory"][0]["lazily_freed_kib"] == 10000
    assert run("show", "--pid", "99").code == 2
    assert memory_of_cgroup(tree, "/redis.service", Holds(tree))[:4] == (
        "cgroup /redis.service",
        1,
        16384,
        10000,
    )


def test_map_begins_with_the_table(run: Run, process: FakeTree) -> None:
    lines = run("map", str(PID)).out.splitlines()
    assert lines[0].split()[:3] == ["ORDER", "FOLIO", "FOLIOS"]
    summary = run("map", str(PID), "--summary").out.splitlines()
    timed = "longest hold"  # by the clock, so it differs
    assert [line for line in lines[: len(summary)] if timed not in line] == [
        line for line in summary if timed not in line
    ]
    assert lines[-1].startswith("one character: ") and len(summary) < len(lines)
    name = run("map", "redis <server>", "--summary")
    assert (name.code, name.out.splitlines()[0]) == (0, summary[0])


def test_processes_by_name(tree: FakeTree) -> None:
    """Processes are found by number, name or service; if there are several, the error
    lists them.
    """
    make_thp(tree)
    for pid, name, unit in (
        (10, "redis-server", "redis"), (11, "nginx", "web"), (12, "nginx", "web"),
        (13, "a-very-long-nam", "long"),
    ):  # fmt: skip
        make_sparse(tree, pid, name, 1024, 1, f"/system.slice/{unit}.service")
    tree.put("/sys/fs/cgroup/system.slice/web.service/cgroup.procs", "11\n12")
    tree.put("/sys/fs/cgroup/idle.service/cgroup.procs", "")
    tree.put("/proc/13/cmdline", b"/usr/bin/a-very-long-name-of-a-program\0--x\0")
    count(tree, 12, "nginx", 2048)
    for given in "10", "redis-server", "redis.service", "redis", "/system.slice/redis.service":
        assert find_process(tree, given) == 10
    assert find_process(tree, "a-very-long-name-of-a-program") == 13
    for given in "nginx", "web.service":
        several = raised(find_process, tree, given)
        assert several.message == f"'{given}' has 2 processes: 12 (8 MiB), 11 (4 MiB)"
    assert raised(find_process, tree, "idle.service").message == (
        "the service 'idle.service' has no process"
    )
    for given in "none", "99", "0":
        assert raised(find_process, tree, given).exit_code == 2


@pytest.mark.parametrize(
    ("given", "option"), [("123", "--pid"), ("redis", "--unit"), ("/a/b", "--cgroup")]
)
def test_trim_says_which_option_is_meant(run: Run, tree: FakeTree, given: str, option: str) -> None:
    result = run("trim", given)
    assert result.code == 2
    assert f"did you mean mmpolicy trim {option} {given}?" in result.err
    assert tree.writes == []
