# SPDX-License-Identifier: GPL-2.0
"""`recommend` on hosts with one cause each, and on hosts with none: each command is typed."""

from __future__ import annotations

import re
import shlex
from functools import partial
from typing import Any

import pytest

from mmpolicy.host.pagemap import PAGE
from mmpolicy.memory.allocators import GLIBC, TCMALLOC, allocator_of
from mmpolicy.memory.findings import Finding
from mmpolicy.memory.holds import Holds
from mmpolicy.memory.reach import Clues
from mmpolicy.memory.space import Vma

from .fakes import THP, Clock, FakeTree, Run
from .sparse import SPLIT, count, make_sparse, make_thp, split
from .test_calibrate import keep
from .test_map import START

REDIS = "/system.slice/redis.service"
DEFRAG = f"{THP}/defrag"
MIB = 256  # pages


@pytest.fixture
def host(tree: FakeTree, clock: Clock) -> FakeTree:
    """Return a calibrated host without a problem; no module is available."""
    tree.make_unloaded()
    make_thp(tree)
    keep(tree)
    tree.put("/proc/kallsyms", "0000000000000000 T nothing")
    tree.splits = partial(split, tree)
    make_sparse(tree, 11, "web", 8 * MIB, 1, "/system.slice/web.service")
    for name in "statm", "smaps_rollup":
        tree.put(f"/proc/self/{name}", "99999 99999" if name == "statm" else "")
    clock.steps = [lambda: None] * 999
    return tree


def recommended(run: Run, clock: Clock) -> list[dict[str, Any]]:
    """Return the recommended changes."""
    result = run("recommend", "--seconds", "10", "--json")
    assert (result.code, result.err) == (0, "")
    clock.steps = [lambda: None] * 999
    found: list[dict[str, Any]] = result.json["findings"]
    assert all("module" not in each["price"] + each["next_step"] for each in found)
    return found


def type_it(run: Run, host: FakeTree, command: str) -> None:
    """Type a printed command verbatim."""
    if echo := re.fullmatch(r"echo (\S+) >(\S+)", command):
        host.tune(echo[2], echo[1])
        return
    words = shlex.split(command)
    assert words[0] == "mmpolicy"
    assert run(*words[1:]).code == 0


def works(host: FakeTree, clock: Clock, pid: int, faults: int, kernel: float) -> None:
    """Let a process fault at a rate, and spend a share of a CPU in the kernel."""
    pages = int(host.read(f"/proc/{pid}/statm").split()[1])
    name = host.read(f"/proc/{pid}/comm")
    clock.steps = [lambda: None, partial(count, host, pid, name, pages, faults * 10,
                                         int(kernel * 1000))]  # fmt: skip


def test_1_a_service_that_wastes_memory(run: Run, host: FakeTree, clock: Clock) -> None:
    make_sparse(host, 10, "redis", 256 * MIB, 16, REDIS)
    (found,) = recommended(run, clock)
    assert (found["who"], found["mib"]) == (REDIS, 240)
    assert found["commands"] == ["mmpolicy trim --unit redis.service"]
    type_it(run, host, found["commands"][0])
    assert host.read("/proc/10/statm").split()[1] == str(16 * MIB)
    assert recommended(run, clock) == []


def test_2_memory_that_was_asked_for(run: Run, host: FakeTree, clock: Clock) -> None:
    """Under `madvise`, trim leaves advised memory alone, so --include-madvised is printed."""
    make_sparse(host, 10, "redis", 64 * MIB, 16, REDIS, flags="rd wr hg")
    rss = f"VmRSS:\t{64 << 10} kB\nRssAnon:\t{64 << 10} kB\nTHP_enabled:\t1"
    host.put("/proc/10/status", rss)
    (found,) = recommended(run, clock)
    assert found["commands"] == ["mmpolicy trim --unit redis.service --include-madvised"]
    type_it(run, host, found["commands"][0])
    assert host.read("/proc/10/statm").split()[1] == str(4 * MIB)


def waits(found: dict[str, Any]) -> str:
    """Return the only command of a finding, without the verb."""
    (command,) = found["commands"]
    assert command.startswith("mmpolicy trim --unit redis.service")
    return str(command.removeprefix("mmpolicy trim --unit redis.service").strip())


def mode(chosen: str) -> str:
    """Return the text of sysfs for a choice."""
    words = ("always", "inherit", "madvise", "never")
    return " ".join(f"[{word}]" if word == chosen else word for word in words)


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize(
    ("top", "of_64kb"),
    [("always", "inherit"), ("madvise", "inherit"), ("never", "madvise"), ("never", "never")],
)
def test_2_whatever_the_host_gives_to_all(
    run: Run, host: FakeTree, clock: Clock, top: str, of_64kb: str, asked: bool
) -> None:
    """The advice of the program decides which option is printed, not the current setting of the
    host.
    """
    host.put(f"{THP}/enabled", mode(top).replace("inherit ", ""))
    host.put(f"{THP}/hugepages-64kB/enabled", mode(of_64kb))
    make_sparse(host, 10, "redis", 64 * MIB, 16, REDIS, flags="rd wr hg" if asked else "rd wr")
    (found,) = recommended(run, clock)
    assert waits(found) == ("--include-madvised" if asked else "")
    type_it(run, host, found["commands"][0])
    assert host.read("/proc/10/statm").split()[1] == str(4 * MIB)


def test_2_where_only_a_small_process_asked(run: Run, host: FakeTree, clock: Clock) -> None:
    """If only a small process has advised its memory, the largest process of the service decides:
    it has no empty page, and no advised memory.
    """
    make_sparse(host, 10, "redis", 64 * MIB, 16, REDIS, flags="rd wr hg")
    make_sparse(host, 12, "redis", 128 * MIB, 1, REDIS)
    host.put(f"/sys/fs/cgroup{REDIS}/cgroup.procs", "10\n12")
    (found,) = recommended(run, clock)
    assert waits(found) == "--include-madvised"
    type_it(run, host, found["commands"][0])
    assert host.read("/proc/10/statm").split()[1] == str(4 * MIB)
    assert host.read("/proc/12/statm").split()[1] == str(128 * MIB)


def test_2_where_most_was_asked_for_and_is_full(run: Run, host: FakeTree, clock: Clock) -> None:
    """If most memory was advised and is full, the empty part counts: the advised area has none."""
    make_sparse(host, 10, "redis", 128 * MIB, 16, REDIS)
    half = START + 64 * MIB * PAGE
    with host.real("/proc/10/mem").open("r+b") as memory:
        for page in range(64 * MIB):
            memory.seek(half + page * PAGE)
            memory.write(b"x")
    end = f"{START + 128 * MIB * PAGE:x}"
    lines = [f"{START:x}-{half:x} rw-p 00000000 00:00 0", f"{half:x}-{end} rw-p 00000000 00:00 0"]
    host.put("/proc/10/maps", "\n".join(lines))
    flags = ("rd wr", "rd wr hg")
    smaps = [f"{line}\nRss: 1 kB\nVmFlags: {each}" for line, each in zip(lines, flags)]
    host.put("/proc/10/smaps", "\n".join(smaps))
    (found,) = recommended(run, clock)
    assert waits(found) == ""
    type_it(run, host, found["commands"][0])
    assert host.read("/proc/10/statm").split()[1] == str((64 + 4) * MIB)


def test_2_where_a_look_would_take_too_long(
    run: Run, host: FakeTree, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """trim leaves memory alone that may be advised, so the command has an option to include it."""
    monkeypatch.setattr(Holds, "allows_smaps", lambda *words: False)
    make_sparse(host, 10, "redis", 64 * MIB, 16, REDIS)
    (found,) = recommended(run, clock)
    assert waits(found) == "--include-madvised"
    assert found["what"].endswith(
        "; it is not known whether the program asked for these folios by madvise()"
    )
    type_it(run, host, found["commands"][0])
    assert host.read("/proc/10/statm").split()[1] == str(4 * MIB)


@pytest.mark.parametrize(("used", "option"), [(12, "--min-empty 4"), (8, "--min-empty 6")])
def test_1_a_little_of_each_folio(
    run: Run, host: FakeTree, clock: Clock, monkeypatch: pytest.MonkeyPatch, used: int, option: str
) -> None:
    """If few pages of each folio are empty, fewer than trim splits a folio for by default, the
    command has the option for it.
    """
    monkeypatch.setattr(Holds, "allows_smaps", lambda *words: True)
    pages = 512 * MIB
    make_sparse(host, 10, "redis", pages, 512, REDIS)
    with host.real("/proc/10/mem").open("r+b") as memory:
        for page in range(pages):
            memory.seek(START + page * PAGE)
            memory.write(b"x" if page % used else b"\0")
    (found,) = recommended(run, clock)
    assert waits(found) == option
    command = shlex.split(found["commands"][0])[1:]
    (row,) = run(*command, "--dry-run", "--json").json["processes"]
    assert row["empty_kib"] > 0.95 * pages // used * 4


@pytest.mark.parametrize(
    ("counters", "flags"),
    [("VmLck:\t{}", "rd wr lo"), ("VmLck:\t{}", "rd wr"), ("VmPin:\t{}", "rd wr")],
    ids=["mlock", "VFIO", "RDMA"],
)
def test_1_memory_that_has_to_stay(
    run: Run, host: FakeTree, clock: Clock, counters: str, flags: str
) -> None:
    """For memory that has to stay, no command is printed, as none would free it."""
    make_sparse(host, 10, "redis", 64 * MIB, 16, REDIS, flags=flags)
    status = host.read("/proc/10/status")
    host.put("/proc/10/status", f"{status}\n{counters.format(f'{64 << 10} kB')}")
    (found,) = recommended(run, clock)
    assert (found["commands"], found["next_step"]) == (
        [],
        f"restart the program with smaller folios: after echo madvise >{THP}/enabled, only "
        "programs that ask for 2 MB folios get them",
    )
    assert found["what"].endswith(
        "; these pages are locked (mlock, VFIO) or pinned (RDMA, io_uring), so trim frees none"
    )


def test_1_where_nobody_may_split(run: Run, host: FakeTree, clock: Clock) -> None:
    """Where no user may split, no command is printed: the kernel refuses at the open, and no file
    shows why.
    """
    make_sparse(host, 10, "redis", 64 * MIB, 16, REDIS)
    host.opens = lambda path: path != SPLIT  # type: ignore[method-assign]
    (found,) = recommended(run, clock)
    assert found["commands"] == []
    assert "lets nobody write to /sys/kernel/debug/split_huge_pages" in found["what"]
    assert found["next_step"].startswith("restart the program; or let reclaim split")


def test_3_faults(run: Run, host: FakeTree, clock: Clock) -> None:
    works(host, clock, 11, 20_000, 0.1)
    (found,) = recommended(run, clock)
    assert (found["who"], round(found["cpu_percent"], 2)) == ("web", 3.19)
    files = [f"{THP}/hugepages-{kb}kB/enabled" for kb in (16, 32, 64)]
    assert found["commands"] == [f"echo always >{file}" for file in files]
    for command in found["commands"]:
        type_it(run, host, command)
    assert ["[always]" in host.read(file) for file in files] == [True, True, True]
    works(host, clock, 11, 20_000, 0.1)
    assert recommended(run, clock) == []


def test_4_huge_pages_that_are_cleared_again_and_again(
    run: Run, host: FakeTree, clock: Clock
) -> None:
    """For huge pages that are cleared again and again, the time counts, not the number: few faults,
    and 83 % of a CPU in the kernel.
    """
    works(host, clock, 11, 55, 0.83)
    last = clock.steps[1]
    events = partial(host.put, "/proc/vmstat", "pgfault 999\ncompact_stall 5\nthp_fault_alloc 550")
    host.put("/proc/vmstat", "pgfault 100\ncompact_stall 5\nthp_fault_alloc 0")
    clock.steps[1] = lambda: (last(), events())
    (found,) = recommended(run, clock)
    assert (found["who"], found["cpu_percent"], found["commands"]) == ("web", 83, [])
    assert "83 % of a CPU in the kernel, at 55 page faults a second: 55 huge pages" in found["what"]
    assert "cleared, which takes 0.71 % of a CPU" in found["what"]
    assert found["next_step"].startswith("let its allocator keep memory that it frees; for glibc")
    line = "7f0000000000-7f0000001000 r-xp 00000000 08:01 99 /usr/lib/libjemalloc.so.2"
    host.put("/proc/11/maps", f"{host.read('/proc/11/maps')}\n{line}")
    works(host, clock, 11, 55, 0.83)
    clock.steps[1] = lambda: (last(), events())
    count(host, 11, "web", 8 * MIB)
    host.put("/proc/vmstat", "pgfault 100\ncompact_stall 5\nthp_fault_alloc 0")
    (found,) = recommended(run, clock)
    assert found["next_step"].startswith(
        "let jemalloc keep memory that it frees: MALLOC_CONF=dirty_d"
    )


def test_5_compaction(run: Run, host: FakeTree, clock: Clock) -> None:
    clock.steps = [lambda: None, lambda: host.put("/proc/vmstat", "compact_stall 1005")]
    (found,) = recommended(run, clock)
    assert found["commands"] == [f"echo defer >{DEFRAG}"]
    type_it(run, host, found["commands"][0])
    assert "[defer]" in host.read(DEFRAG)


@pytest.mark.parametrize("cause", ["faults", "compaction"])
def test_what_a_container_may_not_write_is_for_the_host(
    run: Run, host: FakeTree, clock: Clock, cause: str
) -> None:
    """Typed where /sys is read-only, the lines would end with "Read-only file system"."""
    host.read_only = True
    if cause == "faults":
        works(host, clock, 11, 20_000, 0.1)
    else:
        clock.steps = [lambda: None, lambda: host.put("/proc/vmstat", "compact_stall 1005")]
    (found,) = recommended(run, clock)
    step = f"run this on the host itself, as {THP} is read-only here: echo "
    assert found["commands"] == [] and found["next_step"].startswith(step)


def test_6_a_program_that_forbids_large_folios(run: Run, host: FakeTree, clock: Clock) -> None:
    make_sparse(host, 12, "redis-server", 8 * MIB, 1, REDIS, forbids=True)
    host.put(f"{THP}/enabled", "[always] madvise never")
    works(host, clock, 12, 20_000, 0.1)
    (found,) = recommended(run, clock)
    assert found["commands"] == []
    assert "`disable-thp yes`, the default of redis" in found["what"]
    assert found["next_step"].startswith(f"echo madvise >{THP}/enabled, or set `disable-thp no`")


def test_7_nothing(run: Run, host: FakeTree, clock: Clock) -> None:
    result = run("recommend", "--seconds", "10")
    assert result.out == "nothing to do: 100% of the memory of 1 process was looked at\n"


def test_8_what_is_not_worth_it(run: Run, host: FakeTree, clock: Clock) -> None:
    """What is not worth it is said to be so: a compiler at 517 faults a second, some empty pages,
    an idle program that forbids folios.
    """
    make_sparse(host, 10, "redis", 8 * MIB, 16, REDIS)
    make_sparse(host, 12, "ruby", 8 * MIB, 1, "/ruby.service", forbids=True)
    works(host, clock, 11, 517, 0.1)
    result = run("recommend", "--seconds", "10")
    lines = result.out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["nothing to do", *["not worth it"] * 2]
    assert lines[1].startswith(f"not worth it: {REDIS}: 8 MiB (+- ")
    assert lines[2] == (
        "not worth it: web: 517 page faults a second, for which larger folios save at most "
        "0.082 % of a CPU"
    )


def test_memory_that_was_written(run: Run, host: FakeTree, clock: Clock) -> None:
    """Memory that was written is not called empty folios; how to ask the allocator is printed if it
    was recognised.
    """
    make_sparse(host, 10, "redis-server", 512 * MIB, 1, REDIS)
    (found,) = recommended(run, clock)
    assert (found["who"], found["commands"]) == (REDIS, [])
    assert found["what"] == (
        "512 MiB of private memory are no waste of large folios: 0% are empty, the rest was "
        "written by the program"
    )
    how = "let the allocator of redis return what the program has freed: redis-cli MEMORY PURGE; "
    assert f"{how}redis-cli CONFIG SET activedefrag yes, if redis was built" in found["next_step"]
    line = "7f0000000000-7f0000001000 r-xp 00000000 08:01 99 /usr/lib/libjemalloc.so.2"
    host.put("/proc/10/maps", f"{host.read('/proc/10/maps')}\n{line}")
    (found,) = recommended(run, clock)
    assert f"{how}if that frees little, restart redis: active" in found["next_step"]
    host.put("/proc/10/comm", "other")
    host.put("/proc/10/maps", host.read("/proc/10/maps").replace("jemalloc", "other"))
    assert recommended(run, clock) == []


@pytest.mark.parametrize(
    ("comm", "files", "told"),
    [
        ("app", ["/lib/x86_64-linux-gnu/libc.so.6", "[heap]"], GLIBC),
        ("app", ["/lib/libc-2.31.so", "[heap]"], GLIBC),
        ("app", ["/lib/libc.so.6"], None),
        ("app", ["[heap]"], None),
        ("app", ["/lib/libc.so.6", "/usr/lib/libtcmalloc_minimal.so.4"], TCMALLOC),
        ("app", ["/lib/libc.so.6", "/usr/lib/libmimalloc.so.2.1"], None),
        ("java", ["/lib/libc.so.6"], None),
        ("app", ["/lib/ld-musl-x86_64.so.1"], None),
        ("app", [], None),
    ],
)
def test_allocators(tree: FakeTree, comm: str, files: list[str], told: object) -> None:
    tree.put("/proc/7/comm", comm)
    areas = [Vma(START, START + (50 << 10), "r-xp", 9, file) for file in files]
    assert allocator_of(Clues(tree, 7, areas), 100) == told
    if told == GLIBC:
        assert allocator_of(Clues(tree, 7, areas), 101) is None


def wasteful_and_busy(host: FakeTree, clock: Clock) -> None:
    """A service wastes memory, and another one would have large folios."""
    make_sparse(host, 10, "redis", 256 * MIB, 16, REDIS)
    works(host, clock, 11, 20_000, 0.1)


def test_for_one_service_alone_without_a_module(run: Run, host: FakeTree, clock: Clock) -> None:
    """Without a module, the finding for one service alone does not mention it; an experiment
    measures the service.
    """
    wasteful_and_busy(host, clock)
    (busy,) = [each for each in recommended(run, clock) if each["who"] == "web"]
    assert busy["commands"] == []
    for name, text in ("cpu.stat", "usage_usec 7"), ("memory.stat", "anon 1\npgfault 2"):
        host.put(f"/sys/fs/cgroup/system.slice/web.service/{name}", text)
    wasteful_and_busy(host, clock)
    count(host, 11, "web", 8 * MIB)
    (busy,) = [each for each in recommended(run, clock) if each["who"] == "web"]
    (command,) = busy["commands"]
    assert command == "mmpolicy ab run --preset thp-sizes --yes --unit web.service"
    assert run(*shlex.split(command)[1:], "--dry-run").code == 0


def test_for_one_service_alone_with_the_module(run: Run, host: FakeTree, clock: Clock) -> None:
    host.make_loaded()
    wasteful_and_busy(host, clock)
    found = run("recommend", "--seconds", "10", "--json").json["findings"]
    (busy,) = [each for each in found if each["who"] == "web"]
    assert busy["commands"] == ["mmpolicy set anon_order shadow=adaptive"]
    assert busy["next_step"] == "after a minute, mmpolicy recommend 11 shows the result"
    type_it(run, host, busy["commands"][0])


def test_the_order_is_that_of_the_costs(run: Run, host: FakeTree, clock: Clock) -> None:
    """Findings are ordered by their cost as a share of the host's resources: 240 MiB of 1 GiB, or
    all of its memory.
    """
    for kib, first in (1 << 20, REDIS), (1 << 32, "web"):
        host.put("/proc/meminfo", f"MemTotal: {kib} kB")
        wasteful_and_busy(host, clock)
        works(host, clock, 11, 100_000, 0.9)
        count(host, 11, "web", 8 * MIB)
        assert recommended(run, clock)[0]["who"] == first


def test_an_ordinary_user(run: Run, host: FakeTree, clock: Clock) -> None:
    """For an ordinary user the command ends at once, with 4, and not after a minute
    without output.
    """
    host.real("/proc/kpageflags").chmod(0)
    host.denied = True
    real = host.read_at

    def refused(path: str, size: int, offset: int = 0) -> bytes:
        if path == "/proc/kpageflags":
            raise PermissionError(13, "Permission denied", path)
        return real(path, size, offset)

    from mmpolicy.host.disk import explained
    from mmpolicy.host.files import READ_REMEDIES

    def read_at(path: str, size: int, offset: int = 0) -> bytes:
        with explained("read", host.real(path), READ_REMEDIES):
            return refused(path, size, offset)

    host.read_at = read_at  # type: ignore[method-assign]
    result = run("recommend")
    assert (result.code, result.out, clock.now) == (4, "", 0)
    assert "next: run the command as root" in result.err


def test_lines() -> None:
    """The next step is on a line of its own, and not part of the price."""
    assert Finding("a", "b", ("c",), "e", "f").line() == "a: b; do: c; price: e; next: f"
    assert Finding("a", "b", next_step="f").line() == "a: b; next: f"
    assert Finding("a", "b", worth=False).line() == "not worth it: a: b"
