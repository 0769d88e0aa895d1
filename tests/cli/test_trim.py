# SPDX-License-Identifier: GPL-2.0
"""`trim`: on processes made of files, with a model of the kernel's split."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable
from errno import EPERM, ESRCH

import pytest

from mmpolicy.errors import OUTSIDE, Error, Exit
from mmpolicy.host.files import Tree
from mmpolicy.host.pagemap import PAGE
from mmpolicy.memory.holds import Holds
from mmpolicy.memory.space import Space
from mmpolicy.memory.trim import SEALED

from .fakes import CONTROL, THP, Clock, FakeTree, Run, read_named
from .sparse import (
    BLOCK,
    SHRINK,
    SPLIT,
    make_services,
    make_sparse,
    make_thp,
    pressure,
    reuse,
    sizes,
    split,
)
from .test_map import PRESENT, START, write_at

USED = 4096 * 4 // 16  # kB


@pytest.fixture
def host(tree: FakeTree, clock: Clock) -> FakeTree:
    """Return a host without the module, with a service that wastes memory and one that does not."""
    make_services(tree, "web")
    tree.splits = lambda value: split(tree, value)
    clock.steps = [lambda: None] * 999
    return tree


def ranges(tree: FakeTree) -> list[tuple[int, int, int]]:
    """Return pid, first and last page of each write."""
    found = []
    for path, value in tree.writes:
        if path == SPLIT:
            pid, *where, order = value.split(",")
            assert order == "0"
            found.append((int(pid), *((int(each, 16) - START) // PAGE for each in where)))
    return found  # type: ignore[return-value]


@pytest.mark.parametrize(
    "words", [("--unit", "redis"), ("--cgroup", "/redis.service"), ("--pid", "10")]
)
def test_it_is_given_back(run: Run, host: FakeTree, words: tuple[str, ...]) -> None:
    data = run("trim", *words, "--json").json
    (row,) = data["processes"]
    assert (row["pid"], row["name"], row["empty_kib"]) == (10, "redis", 4096 * 4 - USED)
    assert (row["before_kib"], row["after_kib"]) == (4096 * 4, USED)
    memory = {"before_kib": 4096 * 4, "after_kib": USED}
    assert (data["cgroup"], data["memory_current"]) == ("/redis.service", memory)
    assert (data["stopped"], data["notes"], data["profile"]) == ("", [], None)
    assert all(pid == 10 for pid, _, _ in ranges(host))
    again = run("trim", *words).out
    assert again.startswith("no large folio has enough empty pages")


def test_table(run: Run, host: FakeTree, log: list[str]) -> None:
    lines = run("trim", "--unit", "redis").out.splitlines()
    assert lines[1].split()[:6] == ["10", "redis", "15360", "16384", "->", "1024"]
    assert lines[2] == "memory of cgroup /redis.service: 16384 KiB -> 1024 KiB"
    assert log == ["trim redis: 15360 KiB given back"]


def test_dry_run(run: Run, host: FakeTree) -> None:
    result = run("trim", "--unit", "redis", "--dry-run")
    assert (result.code, host.writes) == (0, [])
    assert result.out.splitlines()[0] == f"{SPLIT} <- 10,{START:#x},{START + 4096 * PAGE:#x},0"
    assert "10   redis  15360      16384" in result.out
    data = run("trim", "--pid", "10", "--dry-run", "--json").json
    assert (data["dry_run"], len(data["writes"]), host.writes) == (True, 1, [])


def test_steps_are_short_and_have_pauses(
    run: Run, host: FakeTree, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps are short and have pauses: at ten milliseconds for 2 MB a step stays at that; the pause
    is as long.
    """
    took = 0.01

    def slow(value: str) -> None:
        split(host, value)
        clock.now += took

    host.splits = slow
    pauses: list[float] = []
    monkeypatch.setattr(clock, "sleep", pauses.append)
    data = run("trim", "--pid", "10", "--json").json
    assert [end - start for _, start, end in ranges(host)] == [BLOCK] * 8
    assert data["processes"][0]["longest_ms"] == 10
    assert all(abs(pause - took) < 1e-9 for pause in pauses)


def test_steps_grow_where_they_are_fast(run: Run, host: FakeTree) -> None:
    run("trim", "--pid", "10")
    assert [end - start for _, start, end in ranges(host)] == [512, 1024, 2048, 512]


def test_steps_shrink_where_they_are_slow(run: Run, host: FakeTree, clock: Clock) -> None:
    took = [0.0, 0.0, 0.01, 0.0015, 0.01, *[0.0015] * 6]
    host.splits = lambda _value: setattr(clock, "now", clock.now + took.pop(0))
    make_sparse(host, 15, "large", 8192)
    result = run("trim", "--pid", "15", "--hold", "100")
    assert (
        "memory left as it was: 30 MiB: the kernel did not split"
    ) in result.out  # as in this model
    steps = [end - start for _, start, end in ranges(host)]
    assert steps == [512, 1024, 2048, 512, 1024, *[512] * 6]  # examined in two halves


def trim_of(run: Run, *words: str) -> tuple[int, int, dict[str, int]]:
    """Return exit code, writes and memory left alone."""
    result = run("trim", *words, "--json")
    row = result.json["processes"][0]
    return result.code, row["writes"], row["left_kib"]


def test_what_is_left_alone(run: Run, host: FakeTree) -> None:
    """Used, advised and locked memory is left alone, and reported with MiB, cause and exit code."""
    assert trim_of(run, "--pid", "11") == (0, 0, {})
    make_sparse(host, 12, "qemu", 1024, 16, "/vm.service", "rd wr hg")
    make_sparse(host, 13, "jvm", 1024, 16, "/jvm.service", "rd wr lo")
    sizes(host, 13, 1024, more="VmLck:\t4096 kB")
    assert trim_of(run, "--pid", "12") == (5, 0, {"asked": 3840})
    assert trim_of(run, "--pid", "13") == (5, 0, {"locked": 3840})
    assert trim_of(run, "--pid", "13", "--include-madvised") == (5, 0, {"locked": 3840})
    assert trim_of(run, "--pid", "12", "--include-madvised") == (0, 2, {})
    make_sparse(host, 14, "half", 1024, 2, "/half.service")
    assert trim_of(run, "--pid", "14", "--min-empty", "60") == (5, 0, {"few": 2048})
    assert trim_of(run, "--pid", "14", "--min-empty", "50")[1]


def test_it_says_what_it_left_alone(run: Run, host: FakeTree) -> None:
    """`trim` says what it left alone, how to get at it, and the MiB; equally in a dry run and a
    real one.
    """
    make_sparse(host, 12, "qemu", 1024, 16, "/vm.service", "rd wr hg")
    for words in ((), ("--dry-run",)):
        result = run("trim", "--unit", "vm", *words)
        assert (result.code, host.writes) == (5, [])
        assert (
            "memory left as it was: 3 MiB: the program asked for these folios by MADV_HUGEPAGE"
        ) in result.out
        assert "--include-madvised" in result.out
        assert "no large folio" not in result.out
        assert "3 MiB" in result.err


def test_what_would_take_too_long_to_find_out(run: Run, host: FakeTree) -> None:
    """Advice is shown only in smaps, which is not read if that takes too long: then memory may be
    advised, and is left alone.
    """
    make_sparse(host, 12, "db", 8192, 16, "/db.service")
    sizes(host, 12, 8 << 20)
    smaps = "/proc/12/smaps"
    host.remove(smaps)
    assert trim_of(run, "--unit", "db", "--hold", "0.1") == (5, 0, {"unknown": 30720})
    code, writes, left = trim_of(run, "--unit", "db", "--hold", "0.1", "--include-madvised")
    assert (code, writes > 0, left) == (0, True, {})


def test_what_nobody_maps_any_more(run: Run, host: FakeTree) -> None:
    """Pages that no process maps any more, all but one of each folio, are free once the folio is
    split.
    """
    make_sparse(host, 12, "jvm", 1024, 1, "/jvm.service")
    entries = array("Q", host.read_bytes("/proc/12/pagemap"))[START // PAGE :]
    first = (entries[0] & ~PRESENT) % (1 << 55)
    for page in range(1024):
        if page % 512:
            write_at(host, "/proc/12/pagemap", (START // PAGE + page) * 8, bytes(8))
    host.put("/proc/kpagecount", b"")
    for page in range(1024):
        count_of = (page % 512 == 0).to_bytes(8, "little")
        write_at(host, "/proc/kpagecount", (first + page) * 8, count_of)
    result = run("trim", "--pid", "12", "--json")
    row = result.json["processes"][0]
    assert (result.code, row["empty_kib"], row["left_kib"]) == (0, 2 * 511 * 4, {})
    assert [(first, last - first) for _, first, last in ranges(host)] == [(0, 1), (512, 1)]


def test_what_is_pinned_stays(run: Run, host: FakeTree) -> None:
    """Pinned memory stays: the kernel splits no folio, and reports success; the command reads the
    pages again.
    """
    host.splits = lambda _value: None
    result = run("trim", "--unit", "redis")
    assert (result.code, len(host.writes) > 0) == (5, True)
    assert "memory left as it was: 15 MiB: the kernel did not split these folios" in result.out


def test_shared_memory_and_pools_are_told(run: Run, host: FakeTree) -> None:
    sizes(host, 11, 2048, more="HugetlbPages:\t131072 kB")
    result = run("trim", "--unit", "web")
    assert (
        result.code,
        ("memory left as it was: 128 MiB: this memory is hugetlb") in result.out,
    ) == (5, True)


@pytest.mark.parametrize("words", [(), ("--dry-run",)])
def test_how_long_it_held_them_up_is_told(
    run: Run, host: FakeTree, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """The longest hold of all work is printed, not of writes alone; and no process is read as a
    whole.
    """
    for pid in 10, 11:
        host.put(f"/proc/{pid}/smaps_rollup", "none may be read")
    monkeypatch.setattr(Holds, "took", lambda self, _s: setattr(self, "longest_s", 0.0123))
    data = run("trim", "--unit", "redis", "--json", *words).json
    assert data["processes"][0]["longest_ms"] == 12.3


def test_it_stops_when_memory_is_short(run: Run, host: FakeTree, clock: Clock) -> None:
    """`trim` stops when memory is short: at once by the mean of ten seconds, later by the stalls
    since then.
    """
    pressure(host, 50)
    result = run("trim", "--pid", "10")
    assert (result.code, host.writes) == (1, [])
    assert "trim stopped before the end: tasks wait for memory 50 % of the time" in result.err
    pressure(host, 0)

    def wait(value: str) -> None:
        split(host, value)
        clock.now += 0.5
        pressure(host, 0, 300_000)

    host.splits = wait
    result = run("trim", "--pid", "10", "--json")
    assert (result.code, len(host.writes)) == (1, 1)
    assert result.json["stopped"].startswith("tasks wait for memory 30 %")
    assert run("trim", "--pid", "10", "--max-pressure", "70").code == 0


def test_it_stops_while_it_looks(run: Run, host: FakeTree) -> None:
    """`trim` stops while it looks, also in memory that has no empty folio."""
    pressure(host, 50)
    assert run("trim", "--pid", "11", "--json").json["stopped"].startswith("tasks wait")


def test_without_pressure_files(run: Run, host: FakeTree) -> None:
    host.remove("/proc/pressure")
    notes = run("trim", "--pid", "10", "--json").json["notes"]
    assert notes == [
        ("note: the kernel has no PSI (CONFIG_PSI): memory pressure does not stop the run")
    ]


def test_khugepaged_is_told_of(run: Run, host: FakeTree) -> None:
    host.put(f"{THP}/khugepaged/max_ptes_none", "511")
    assert "khugepaged" not in run("trim", "--pid", "10", "--dry-run").out
    host.put(f"{THP}/enabled", "[always] madvise never")
    note = run("trim", "--pid", "10").out.splitlines()[-1]
    assert note.startswith("note: khugepaged may fill this memory again")


def lockdown(tree: FakeTree) -> None:
    tree.put("/sys/kernel/security/lockdown", "none [integrity] confidentiality")


def old_kernel(tree: FakeTree) -> None:
    tree.remove(SHRINK)


def no_debugfs(tree: FakeTree) -> None:
    tree.remove(SPLIT)


def no_root(tree: FakeTree) -> None:
    tree.remove(SPLIT)
    tree.denied = True


def silent_lockdown(tree: FakeTree) -> None:
    """Model lockdown that securityfs does not show, or a container."""
    tree.opens = lambda path: path != SPLIT  # type: ignore[method-assign]


def refused(tree: FakeTree) -> None:
    tree.refusals[SPLIT] = EPERM


@pytest.mark.parametrize(
    ("change", "code", "text", "remains"),
    [
        (lockdown, 4, "lockdown is 'integrity'", "memory.reclaim"),
        (old_kernel, 3, "Linux 6.12", "restart the program"),
        (no_debugfs, 3, "no /", "mount -t debugfs"),
        (no_root, 4, "no permission to write", "run the command as root"),
        (silent_lockdown, 4, "lets nobody write to", "memory.reclaim"),
        (refused, 4, "EPERM", "lockdown"),
    ],
)
def test_where_it_is_forbidden(
    run: Run, host: FakeTree, change: Callable[[FakeTree], None], code: int, text: str, remains: str
) -> None:
    """Where splitting is forbidden, `trim` says so, with what remains to be done."""
    host.put("/sys/fs/cgroup/redis.service/memory.reclaim", "")
    change(host)
    if change is silent_lockdown:
        planned = run("trim", "--unit", "redis", "--dry-run")
        assert (planned.code, planned.out.splitlines()[-1]) == (0, f"note: {SEALED}")
    result = run("trim", "--unit", "redis")
    assert (result.code, host.writes) == (code, [])
    assert text in result.err and remains in result.err.splitlines()[-1]


@pytest.mark.parametrize("change", [lockdown, no_debugfs, silent_lockdown])
def test_advice_has_only_files_that_exist(
    run: Run, host: FakeTree, change: Callable[[FakeTree], None]
) -> None:
    """memory.reclaim is named, with its path, where the cgroup of the target has it: cgroup v1 and
    old kernels do not.
    """
    change(host)
    assert "memory.reclaim" not in run("trim", "--unit", "redis").err
    host.put("/sys/fs/cgroup/redis.service/memory.reclaim", "")
    for option, target in ("--unit", "redis"), ("--pid", "10"):
        err = run("trim", option, target).err
        assert "echo SIZE >/sys/fs/cgroup/redis.service/memory.reclaim, which" in err
    assert "memory.reclaim" not in run("doctor").out


@pytest.mark.parametrize("kind", ["none", "mounted", "confined", ""])
def test_a_mount_is_advised_where_it_may_help(run: Run, host: FakeTree, kind: str) -> None:
    """A mount of debugfs helps neither a kernel without it, nor one where it is mounted, nor root
    of a user namespace.
    """
    no_debugfs(host)
    host.put("/proc/filesystems", "nodev\tproc" if kind == "none" else "nodev\tdebugfs")
    if kind == "mounted":
        host.put("/sys/kernel/debug/sleep_time", "")
    host.confined = kind == "confined"
    step = run("trim", "--pid", "10").err.splitlines()[-1]
    assert ("mount -t debugfs" in step) == (not kind)
    if kind == "confined":
        assert step == f"next: {OUTSIDE}"
    elif not kind:
        assert "which helps unless the kernel is under lockdown; else restart" in step


@pytest.mark.parametrize(("code", "rows"), [(Exit.DENIED, None), (Exit.USAGE, [])])
def test_what_cannot_be_looked_at(
    run: Run, host: FakeTree, monkeypatch: pytest.MonkeyPatch, code: Exit, rows: object
) -> None:
    """Processes that just exited are left out; one that may not be read is an error."""

    def refuse(space: Space) -> None:
        raise Error(f"no look at {space.pid}", code, "do something")

    monkeypatch.setattr(Space, "sizes", refuse)
    result = run("trim", "--pid", "10", "--json")
    if rows is None:
        assert (result.code, "no look at 10" in result.err) == (code, True)
    else:
        assert (result.code, result.json["processes"]) == (0, rows)
    assert host.writes == []


def test_processes_that_end(run: Run, host: FakeTree) -> None:
    """A process may end at the first write, between two, and before: `trim` goes on."""
    host.put("/sys/fs/cgroup/redis.service/cgroup.procs", "9\n10\n11")
    host.refusals[SPLIT] = ESRCH
    data = run("trim", "--unit", "redis", "--json").json
    assert [row["pid"] for row in data["processes"]] == [10, 11]
    host.refusals.clear()

    def end(_value: str) -> None:
        host.remove("/proc/10")
        raise OSError(ESRCH, os.strerror(ESRCH))

    host.splits = end
    data = run("trim", "--unit", "redis", "--json").json
    assert data["processes"][0]["after_kib"] is None
    assert "there is no process 10" in run("trim", "--pid", "10").err


def test_another_program_with_the_same_pid_is_left_alone(run: Run, host: FakeTree) -> None:
    """The kernel's file takes a PID, so `trim` writes no more once another program has it."""

    def end(_value: str) -> None:
        reuse(host, 10)

    host.splits = end
    result = run("trim", "--pid", "10", "--json")
    assert (result.code, len(ranges(host))) == (0, 1)
    assert result.json["processes"][0]["after_kib"] is None


def test_usage(run: Run, host: FakeTree) -> None:
    for words in ((), ("--pid", "10", "--unit", "redis"), ("--pid", "99"), ("--unit", "none")):
        assert run("trim", *words).code == 2
    assert host.writes == []


@pytest.mark.parametrize("path", [f"{SPLIT}/x", f"{SPLIT}_x", "/sys/kernel/debug/provoke-crash"])
def test_no_other_file_is_written(tree: FakeTree, path: str) -> None:
    for write in tree.write, tree.tune, Tree(str(tree.root)).store:
        with pytest.raises(Error):
            write(path, "1")


def test_keep(run: Run, tree: FakeTree, clock: Clock, log: list[str]) -> None:
    """--bind makes one change first: a binding to a profile that examines neighbours."""
    make_thp(tree)
    make_sparse(tree, 10)
    tree.put(f"{THP}/khugepaged/max_ptes_none", "511")
    tree.put(f"{THP}/enabled", "[always] madvise never")
    clock.steps = [lambda: None] * 99
    bound = f"cgroups/{tree.inode('/sys/fs/cgroup', 'redis.service')}"
    seen = []

    def look(value: str) -> None:
        seen.append(read_named(tree).get(bound))
        split(tree, value)

    tree.splits = look
    data = run("trim", "--unit", "redis", "--bind", "--json").json
    assert (set(seen), data["profile"]) == ({"trimmed"}, "trimmed")
    assert read_named(tree)["profiles/trimmed/anon_order/policy"] == "adaptive"
    assert read_named(tree)["profiles/trimmed/anon_order/override_madvise"] == "0"
    assert [note[:30] for note in data["notes"]] == [("note: to bind the service at i")]
    assert "its next start" not in run("trim", "--pid", "10", "--bind").out
    assert run("revert", "--to", "0").code == 0
    assert bound not in read_named(tree)
    assert run("trim", "--unit", "redis", "--bind", "--dry-run").code == 0
    assert bound not in read_named(tree)


def test_keep_without_the_module(run: Run, host: FakeTree) -> None:
    result = run("trim", "--unit", "redis", "--bind")
    assert (result.code, host.writes, host.exists(CONTROL)) == (3, [], False)
    assert "next: mmpolicy load" in result.err
