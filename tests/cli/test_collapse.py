# SPDX-License-Identifier: GPL-2.0
"""`collapse`: its decisions, and the verb on processes made of files."""

from __future__ import annotations

from collections.abc import Callable
from errno import EACCES, EAGAIN, EBUSY, EINVAL, ENOMEM, EPERM, ESRCH
from functools import partial

import pytest

from mmpolicy.host.advice import BLOCK
from mmpolicy.host.pagemap import PAGE
from mmpolicy.host.room import (
    BOOTED,
    KEPT,
    MORE,
    OTHERS,
    PLENTY,
    Node,
    limited_folders,
    nodes_in,
    number_of,
    raise_limit,
    read_zones,
    room_in,
)
from mmpolicy.memory import collapse
from mmpolicy.memory.collapse import PAGES, judge
from mmpolicy.memory.holds import Holds

from .fakes import THP, Clock, FakeTree, Run
from .heaps import START, ZERO_FRAME, FakeAdvice, block, free_blocks, make_collapsible, make_heap
from .sparse import pressure

MIB = 1024  # KiB
KINDS = ("full", "half", "huge", "swapped", "guard", "shared", "zero", "locked", "tracked", "full")


@pytest.fixture
def advice(tree: FakeTree, clock: Clock) -> FakeAdvice:
    """Return the kernel of a host with a process that has one 2 MB of each kind, and two full."""
    clock.steps = [lambda: None] * 999
    return make_collapsible(tree, KINDS)


def address(number: int) -> int:
    return START + number * BLOCK


# ---- decisions


@pytest.mark.parametrize(
    ("kind", "cause", "pages"),
    [
        ("full", "", 512), ("broken", "", 512),
        ("huge", collapse.HUGE, 512), ("empty", collapse.ABSENT, 0),
        ("half", collapse.NOT_FULL, 256), ("hole", collapse.NOT_FULL, 511),
        ("zero", collapse.NOT_FULL, 511), ("swapped", collapse.SWAP, 511),
        ("guard", collapse.GUARDS, 511), ("shared", collapse.SHARED, 512),
        ("tracked", collapse.WATCHED, 512),
    ],
)  # fmt: skip
def test_what_is_left_alone(kind: str, cause: str, pages: int) -> None:
    found = judge(block(kind, 3).tobytes(), 0, lambda frame: frame == ZERO_FRAME)
    assert (found.cause, found.pages, found.missing) == (cause, pages, PAGES - pages)


def test_small_pages_with_consecutive_frames() -> None:
    """Small pages with consecutive frames, as a fresh kernel hands them out, are not taken for a
    huge page.
    """
    found = judge(block("huge", 3).tobytes(), 0, lambda frame: False, lambda frame: False)
    assert (found.cause, found.pages, found.missing) == ("", PAGES, 0)


@pytest.mark.parametrize(
    ("kind", "most", "cause"),
    [
        ("half", 256, ""), ("half", 255, collapse.NOT_FULL), ("zero", 1, ""), ("hole", 1, ""),
        ("guard", 512, collapse.GUARDS), ("swapped", 512, collapse.SWAP),
        ("shared", 512, collapse.SHARED), ("empty", 512, collapse.ABSENT),
    ],
)  # fmt: skip
def test_how_much_may_be_missing(kind: str, most: int, cause: str) -> None:
    """Swapped, shared or guard pages are left alone, whatever number may be missing."""
    assert judge(block(kind, 3).tobytes(), most, lambda frame: frame == ZERO_FRAME).cause == cause


def _node(tree: FakeTree) -> Node | None:
    zones = read_zones(tree)
    number = number_of(zones, 1234)
    return None if number is None else nodes_in(zones)[number]


def test_free_blocks_of_a_node(tree: FakeTree) -> None:
    """Only blocks above the watermark and the reserve for devices count: others would
    need reclaim.
    """
    free_blocks(tree, 101)
    node = _node(tree)
    assert node and (node.number, node.free_blocks, node.all_blocks) == (0, 101, 5120)
    free_blocks(tree, 101, 20 + 3 * PAGES)
    node = _node(tree)
    assert node and node.free_blocks == 3
    kept = f"\n        protection: (0, 12, {2 * PAGES})"  # as of the zone for old devices
    tree.put("/proc/zoneinfo", tree.read("/proc/zoneinfo") + kept)
    node = _node(tree)
    assert node and node.free_blocks == 3 - 2
    assert number_of(read_zones(tree), 1 << 40) is None
    tree.remove("/proc/buddyinfo")
    assert read_zones(tree) == []


def test_room_below_limits(tree: FakeTree) -> None:
    """Room is left below the limits of the cgroup and of its ancestors, in version 2 and 1."""
    make_heap(tree, ["full"], cgroup="/a.slice/db.service")
    assert limited_folders(tree, 20) == ["/sys/fs/cgroup/a.slice/db.service"]
    assert room_in(tree, "/sys/fs/cgroup/a.slice/db.service") is None
    tree.put("/sys/fs/cgroup/a.slice/memory.current", str(5 * BLOCK))
    tree.put("/sys/fs/cgroup/a.slice/memory.max", str(9 * BLOCK))
    tree.put("/sys/fs/cgroup/a.slice/memory.high", str(7 * BLOCK))
    folder = limited_folders(tree, 20)[1]
    assert (folder, room_in(tree, folder)) == ("/sys/fs/cgroup/a.slice", 2 * BLOCK)
    tree.put("/proc/self/mountinfo", "30 1 0:1 / /cg/memory rw - cgroup cgroup rw,memory")
    tree.put("/proc/20/cgroup", "3:cpu:/x\n2:memory:/db")
    tree.put("/cg/memory/db/memory.usage_in_bytes", "4096")
    tree.put("/cg/memory/db/memory.limit_in_bytes", "8192")
    assert limited_folders(tree, 20) == ["/cg/memory/db"]
    assert room_in(tree, "/cg/memory/db") == 4096
    tree.put("/cg/memory/db/memory.limit_in_bytes", "9223372036854771712")
    assert room_in(tree, "/cg/memory/db") is None


def put_group(tree: FakeTree, folder: str, room: int, cache: int, names: str = "") -> None:
    """Make a cgroup with this room below its limit, and with unused file cache, some of it dirty.
    names: the prefix of names in memory.stat of cgroup v1.
    """
    used, limit = ("usage", "limit") if names else ("current", "max")
    tail = "_in_bytes" if names else ""
    tree.put(f"{folder}/memory.{used}{tail}", str(1 << 30))
    tree.put(f"{folder}/memory.{limit}{tail}", str((1 << 30) + room))
    dirty, writeback = ("dirty", "writeback") if names else ("file_dirty", "file_writeback")
    stat = {"inactive_file": cache + KEPT + 3 * BLOCK, dirty: BLOCK, writeback: 2 * BLOCK}
    lines = [f"{names}{name} {value}" for name, value in stat.items()]
    if names:  # of the cgroup itself, without those below it
        lines.insert(0, "inactive_file 0")
    tree.put(f"{folder}/memory.stat", "\n".join(lines))
    if not names:
        tree.put(f"{folder}/memory.high", "max")


@pytest.mark.parametrize("names", ["", "total_"])
def test_unused_file_cache_is_room(tree: FakeTree, names: str) -> None:
    """A cgroup fills its limit with file cache, which the kernel drops for a collapse: what is
    unused and clean counts as room, but for 32 MiB.
    """
    folder = "/sys/fs/cgroup/db"
    put_group(tree, folder, 4096, 50 * BLOCK, names)
    assert room_in(tree, folder) == 4096 + 50 * BLOCK
    put_group(tree, folder, 4096, -BLOCK, names)
    assert room_in(tree, folder) == 4096
    put_group(tree, folder, PLENTY, 50 * BLOCK, names)
    assert room_in(tree, folder) == PLENTY
    put_group(tree, folder, 4096, 50 * BLOCK, names)
    tree.put(f"{folder}/memory.stat", "inactive_file ?\nx")
    assert room_in(tree, folder) == 4096


def test_file_cache_of_others_is_no_room(tree: FakeTree) -> None:
    """The limit of a pod is reached by the cache of its only container, whose cache may be dropped;
    that of another container may not.
    """
    pod = "/sys/fs/cgroup/pod"
    put_group(tree, pod, 4096, 50 * BLOCK)
    for name, used in ("pause", OTHERS), ("main", (1 << 30) - OTHERS):
        tree.put(f"{pod}/{name}/memory.current", str(used))
    assert room_in(tree, pod) == 4096 + 50 * BLOCK
    tree.put(f"{pod}/pause/memory.current", str(OTHERS + 1))
    tree.put(f"{pod}/main/memory.current", str((1 << 30) - OTHERS - 1))
    assert room_in(tree, pod) == 4096
    tree.put(f"{pod}/pause/memory.current", "0")  # the rest belongs to the pod itself
    assert room_in(tree, pod) == 4096


@pytest.mark.parametrize(
    ("folder", "file", "booted", "then"),
    [
        ("/sys/fs/cgroup/a.slice/db.service", "memory.max", True,
         "systemctl set-property --runtime db.service MemoryMax="),
        ("/sys/fs/cgroup/a.slice/db.service", "memory.high", True,
         "systemctl set-property --runtime db.service MemoryHigh="),
        ("/sys/fs/cgroup/_memory.service", "memory.max", True,
         "systemctl set-property --runtime memory.service MemoryMax="),
        ("/sys/fs/cgroup/a.slice/db.service", "memory.max", False, "echo "),
        ("/sys/fs/cgroup/db.service/inner", "memory.max", True, "echo "),
        ("/sys/fs/cgroup/user@1.service/app.slice/x.service", "memory.max", True, "echo "),
        ("/sys/fs/cgroup/db", "memory.limit_in_bytes", True, "echo "),
    ],
)  # fmt: skip
def test_how_to_raise_a_limit(
    tree: FakeTree, folder: str, file: str, booted: bool, then: str
) -> None:
    """The next step names the file that limits, and the command for it: of systemd for its units,
    else a write.
    """
    if booted:
        tree.put(f"{BOOTED}/x", "")
    current = "memory.usage_in_bytes" if file.endswith("bytes") else "memory.current"
    for name, value in ("memory.max", "max"), ("memory.high", "max"), (current, "1"):
        tree.put(f"{folder}/{name}", value)
    tree.put(f"{folder}/{file}", "4096")
    path = f"{folder}/{file}"
    end = f" >{path}" if then == "echo " else ""
    assert raise_limit(tree, ["/sys/fs/cgroup/none", folder]) == (
        f"{then}{4096 + MORE}{end} raises the limit in {path} by 64 MiB, and {then}4096{end} "
        "restores it"
    )


# ---- the verb


@pytest.mark.parametrize("words", [("--unit", "db"), ("--cgroup", "/db.service"), ("--pid", "20")])
def test_what_is_full_is_collapsed(run: Run, advice: FakeAdvice, words: tuple[str, ...]) -> None:
    result = run("collapse", *words, "--json")
    data = result.json
    assert (result.code, advice.calls, data["made"]) == (0, [address(0), address(9)], 2)
    (row,) = data["processes"]
    assert (row["pid"], row["name"], row["made_kib"]) == (20, "postgres", 4 * MIB)
    # Each of the other blocks lacks half of its pages, or none or one.
    assert row["before_kib"] == row["after_kib"] == 19 * MIB - 3 * 4
    assert (row["before_huge_kib"], row["after_huge_kib"]) == (2 * MIB, 6 * MIB)
    assert row["growth_kib"] == 0
    assert data["skipped_kib"] == {
        collapse.SHARED: 2048, collapse.LOCKED: 2048, collapse.WATCHED: 2048,
        collapse.SWAP: 2044, collapse.GUARDS: 2044, collapse.NOT_FULL: 1024 + 2044,
    }  # fmt: skip
    assert (data["stopped"], data["notes"]) == ("", [])
    again = run("collapse", *words)
    assert again.code == 0 and "nothing was collapsed" in again.out


def test_consecutive_frames_before_pagemap_scan(run: Run, tree: FakeTree) -> None:
    """Before PAGEMAP_SCAN (Linux 6.7), the flags of frames show that pages with consecutive frames
    are small.
    """
    advice = make_collapsible(tree, ("row", "huge"))
    data = run("collapse", "--unit", "db", "--json").json
    assert (advice.calls, data["made"]) == ([address(0)], 1)
    assert data["processes"][0]["before_huge_kib"] == 2 * MIB


def test_what_it_prints(run: Run, advice: FakeAdvice, log: list[str]) -> None:
    result = run("collapse", "--unit", "db")
    lines = result.out.splitlines()
    assert lines[1].split()[:6] == ["20", "postgres", "19444", "->", "19444", "10.5"]
    assert lines[1].split()[6:] == ["%", "->", "31.6", "%", "4", "0"]
    assert lines[-2].startswith("memory left as it was: 3.0 MiB not full, 2.0 MiB ")
    assert lines[-1] == "--min-used 98 would collapse 2.0 MiB more, and let memory grow by 0.0 MiB"
    assert "up to 2 ranges of 2 MB; one collapse takes 5.0 ms on this host" in result.err
    assert (
        "with 3 % of the time spent on collapses (--cpu), all of them take 0 s or more"
        in result.err
    )
    assert log == ["collapse db: 4 MiB in 2 MB pages"]


def test_full_speed_is_told_of(run: Run, advice: FakeAdvice) -> None:
    assert "a fraction of its speed" in run("collapse", "--pid", "20", "--cpu", "100").err
    assert "a fraction of its speed" not in run("collapse", "--pid", "20", "--cpu", "10").err


def test_fresh_memory_of_a_virtual_machine_is_told_of(
    run: Run, tree: FakeTree, advice: FakeAdvice
) -> None:
    """A virtual machine is warned: where the host has to find the 2 MB, a collapse took 7 ms, and
    0.5 ms elsewhere.
    """
    for flags, told in (("fpu hypervisor", True), ("fpu", False)):
        tree.put("/proc/cpuinfo", f"model name : a\nflags : {flags}\n")
        result = run("collapse", "--pid", "20", "--dry-run")
        assert ("that this virtual machine has never used" in result.out) == told


def test_a_dry_run_changes_nothing(run: Run, tree: FakeTree, advice: FakeAdvice) -> None:
    result = run("collapse", "--unit", "db", "--dry-run")
    assert (result.code, advice.calls, tree.writes) == (0, [], [])
    assert result.out.startswith(f"pid 20, address {START:x}: 2 ranges of 2 MB")
    data = run("collapse", "--unit", "db", "--dry-run", "--json").json
    assert (data["dry_run"], data["one_collapse_ms"]) == (True, 5.0)
    assert data["would_take_s"] == round(2 * 0.005 / 0.03, 1)
    assert data["processes"][0]["made_kib"] == 4 * MIB


def test_largest_areas_first(run: Run, tree: FakeTree, advice: FakeAdvice) -> None:
    make_heap(tree, ["full"], pid=21, name="small")
    make_heap(tree, ["full"] * 3, pid=22, name="large")
    tree.put("/sys/fs/cgroup/db.service/cgroup.procs", "21\n22")
    data = run("collapse", "--unit", "db", "--json").json
    assert [row["made_kib"] for row in data["processes"]] == [2 * MIB, 6 * MIB]
    assert advice.calls == [address(0), address(1), address(2), address(0)]


def test_pages_full_of_zeroes_are_not_used(run: Run, tree: FakeTree, advice: FakeAdvice) -> None:
    """One page in 31 is examined; a page that begins with zeroes need not be zero."""
    make_heap(tree, ["full", "full"])
    with tree.real("/proc/20/mem").open("r+b") as file:
        for page, text in ((31, bytes(PAGE)), (PAGES + 31, bytes(PAGE - 1) + b"x")):
            file.seek(START + page * PAGE)
            file.write(text)
    data = run("collapse", "--pid", "20", "--json").json
    assert (advice.calls, data["skipped_kib"]) == ([address(1)], {collapse.NOT_FULL: 2048})
    assert run("collapse", "--pid", "20", "--min-used", "99.8", "--json").json["made"] == 1


def test_growth_is_bounded(run: Run, tree: FakeTree, advice: FakeAdvice) -> None:
    """The memory added by a collapse is bounded, for each 2 MB and in total."""
    make_heap(tree, ["half", "half", "full", "full"])
    assert run("collapse", "--pid", "20", "--min-used", "51", "--json").json["made"] == 2
    make_heap(tree, ["half", "half", "full", "full"])
    words = ("collapse", "--pid", "20", "--min-used", "50", "--json", "--max-growth")
    data = run(*words, "20").json
    assert (data["made"], data["skipped_kib"]) == (3, {collapse.GROWTH: 1024})
    (row,) = data["processes"]
    assert (row["growth_kib"], row["after_kib"] - row["before_kib"]) == (1024, 1024)
    make_heap(tree, ["half", "half", "full", "full"])
    assert run(*words, "34").json["made"] == 4


def test_what_lacks_a_page_in_each_2_mb_is_told_of(
    run: Run, tree: FakeTree, advice: FakeAdvice
) -> None:
    """Memory that lacks a page in each 2 MB, as Python's heap, is reported; not where the program
    forbids huge pages.
    """
    make_heap(tree, ["hole", "hole", "full", "half"], pid=21)
    line = "--min-used 98 would collapse 4.0 MiB more, and let memory grow by 0.0 MiB"
    assert line in run("collapse", "--pid", "21", "--dry-run").out.splitlines()
    assert line in run("collapse", "--pid", "21").out.splitlines()
    taken = run("collapse", "--pid", "21", "--min-used", "98", "--max-growth", "100", "--json").json
    assert (taken["made"], taken["min_used_98"]["more_kib"]) == (2, 0)
    make_heap(tree, ["hole", "full"], pid=22)
    advice.forbidden.add(22)
    assert "--min-used" not in run("collapse", "--pid", "22", "--dry-run").out


def test_edges_and_small_areas(run: Run, tree: FakeTree, advice: FakeAdvice) -> None:
    make_heap(tree, ["full", "full"], start=START + PAGE)
    data = run("collapse", "--pid", "20", "--json").json
    assert (advice.calls, data["skipped_kib"]) == ([address(1)], {collapse.EDGES: 2044})


def test_what_the_program_forbids(run: Run, advice: FakeAdvice) -> None:
    """Memory with MADV_NOHUGEPAGE or prctl is left alone: the kernel refuses a range, and no other
    is tried.
    """
    advice.forbidden.add(20)
    data = run("collapse", "--pid", "20", "--json").json
    assert (advice.calls, data["skipped_kib"][collapse.FORBIDDEN]) == ([], 4 * MIB)


def test_budget(
    run: Run, advice: FakeAdvice, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each collapse comes a pause, so long that collapses take the given share of
    the time.
    """
    advice.before = lambda: setattr(clock, "now", clock.now + 0.01)  # type: ignore[method-assign]
    pauses: list[float] = []
    monkeypatch.setattr(clock, "sleep", pauses.append)
    data = run("collapse", "--pid", "20", "--cpu", "4", "--json").json
    assert data["longest_ms"] == 10
    assert pauses == [pytest.approx(0.24), pytest.approx(0.24)]


def test_one_collapse_that_stops_for_too_long(run: Run, advice: FakeAdvice) -> None:
    advice.one_s = 0.009
    for more in ((), ("--dry-run",)):
        result = run("collapse", "--pid", "20", "--max-stop", "8", *more)
        assert (result.code, advice.calls) == (3, [])
        assert (
            "one collapse stops the program for 9.0 ms on this host; nothing was changed"
        ) in result.err
        assert "--max-stop 8" in result.err
    assert run("collapse", "--pid", "20", "--max-stop", "9.5").code == 0


def test_it_ends_when_collapses_take_too_long(
    run: Run, tree: FakeTree, advice: FakeAdvice, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends after six slow collapses in a row, with longer and longer pauses."""
    make_heap(tree, ["full"] * 12)
    took = [0.03, 0.03, 0.01, *[0.03] * 9]
    pauses: list[float] = []
    monkeypatch.setattr(clock, "sleep", pauses.append)
    advice.before = lambda: setattr(  # type: ignore[method-assign]
        clock, "now", clock.now + took.pop(0)
    )
    result = run("collapse", "--pid", "20")
    assert (result.code, len(advice.calls)) == (1, 9)
    assert pauses == [1, 2, pytest.approx(0.01 * 97 / 3), 1, 2, 4, 8, 16, 32]
    assert "6 collapses in a row took longer than 20 ms" in result.err


def short_of_memory(tree: FakeTree) -> None:
    pressure(tree, 50)


def no_block(tree: FakeTree) -> None:
    free_blocks(tree, 51)  # 1 % of 5120


def no_room(tree: FakeTree) -> None:
    tree.put("/sys/fs/cgroup/db.service/memory.max", str(len(KINDS) * BLOCK + 3 * MIB * 1024))


@pytest.mark.parametrize(
    ("change", "text", "hint", "words"),
    [
        (short_of_memory, "tasks wait for memory 50 %", "raise --max-pressure",
         ("--max-pressure", "60")),
        (no_block, "NUMA node 0 has 51 free blocks of 2 MB left, and --reserve keeps 51 free",
         "compact_memory", ("--reserve", "0.5")),
        (no_room, "/sys/fs/cgroup/db.service leaves 3072 KiB",
         "raises the limit in /sys/fs/cgroup/db.service/memory.max by 64 MiB", None),
    ],
)  # fmt: skip
def test_it_stops_before_it_makes_others_pay(
    run: Run, tree: FakeTree, advice: FakeAdvice, clock: Clock,
    change: Callable[[FakeTree], None], text: str, hint: str, words: tuple[str, ...] | None,
) -> None:  # fmt: skip
    clock.now = 10.0
    change(tree)
    result = run("collapse", "--unit", "db", "--json")
    assert (result.code, advice.calls) == (1, [])
    stopped = result.err if change is no_block else result.json["stopped"]
    assert text in stopped and hint in result.err
    if words:
        assert run("collapse", "--unit", "db", *words).code == 0


def test_a_limit_reached_by_file_cache(run: Run, tree: FakeTree, advice: FakeAdvice) -> None:
    no_room(tree)
    tree.put("/sys/fs/cgroup/db.service/memory.stat", f"inactive_file {KEPT + 2 * BLOCK}")
    result = run("collapse", "--unit", "db", "--json")
    assert (result.code, advice.calls) == (0, [address(0), address(9)])


def test_free_blocks_are_counted_down(run: Run, tree: FakeTree, advice: FakeAdvice) -> None:
    """Free blocks are counted down, also between two checks of the host."""
    make_heap(tree, ["full"] * 8)
    free_blocks(tree, 54)
    assert run("collapse", "--pid", "20", "--cpu", "100").code == 1
    assert len(advice.calls) == 3


def test_what_the_kernel_refuses(run: Run, tree: FakeTree, advice: FakeAdvice) -> None:
    """Memory that the kernel refuses, such as pinned memory, is tried once more at the end; a
    success may have had no effect.
    """
    make_heap(tree, ["full"] * 5)
    advice.refusals = {address(0): EAGAIN, address(1): EAGAIN, address(2): EINVAL}
    advice.brief = {address(0)}
    advice.silent = {address(3)}
    data = run("collapse", "--pid", "20", "--json").json
    assert advice.calls == [*map(address, range(5)), address(0), address(1)]
    assert (data["made"], data["stopped"]) == (2, "")
    assert data["skipped_kib"] == {collapse.REFUSED: 4096, collapse.PINNED: 2048}


@pytest.mark.parametrize(
    ("number", "text"), [(ENOMEM, "no free block of 2 MB (ENOMEM)"), (EBUSY, "could not charge")]
)
def test_it_stops_where_the_kernel_would_reclaim(
    run: Run, tree: FakeTree, advice: FakeAdvice, number: int, text: str
) -> None:
    make_heap(tree, ["full"] * 5)
    advice.refusals = {address(1): number}
    result = run("collapse", "--pid", "20", "--json")
    assert (result.code, len(advice.calls), result.json["made"]) == (1, 2, 1)
    assert text in result.json["stopped"]


@pytest.fixture
def grouped(tree: FakeTree, advice: FakeAdvice, clock: Clock) -> FakeAdvice:
    """Return a kernel that takes a millisecond for each 2 MB, so eight of them are a group."""
    make_heap(tree, ["full"] * 12)
    advice.before = lambda: setattr(  # type: ignore[method-assign]
        clock, "now", clock.now + 0.00095
    )
    return advice


def test_some_of_a_group_fail(run: Run, grouped: FakeAdvice) -> None:
    """If some of a group fail, one call takes the group, and a call for each that was not made
    tells why.
    """
    grouped.refusals = {address(2): EAGAIN, address(4): EINVAL}
    data = run("collapse", "--pid", "20", "--cpu", "100", "--json").json
    group, rest = [*range(1, 9), 2, 4], [*range(9, 12), 2]
    assert grouped.calls == [*map(address, [0, *group, *rest])]
    assert (data["made"], data["stopped"]) == (10, "")
    assert data["skipped_kib"] == {collapse.REFUSED: 2048, collapse.PINNED: 2048}


def test_a_group_ends_where_the_kernel_would_reclaim(run: Run, grouped: FakeAdvice) -> None:
    """When the kernel would reclaim, collapses made before count, and no second call follows."""
    grouped.refusals = {address(2): EAGAIN, address(5): ENOMEM}
    result = run("collapse", "--pid", "20", "--cpu", "100", "--json")
    assert (result.code, grouped.calls) == (1, [*map(address, range(6))])
    assert result.json["made"] == 4
    assert "no free block of 2 MB (ENOMEM)" in result.json["stopped"]


def test_the_program_gets_its_turn_after_each_group(
    run: Run, grouped: FakeAdvice, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each group, the command leaves the CPU, which a sleep of 0 does not on Linux 7.3."""
    pauses: list[float] = []
    monkeypatch.setattr(clock, "sleep", pauses.append)
    assert run("collapse", "--pid", "20", "--cpu", "100").code == 0
    assert pauses == [0.0005]


def test_memory_that_is_unmapped_meanwhile(run: Run, tree: FakeTree, advice: FakeAdvice) -> None:
    """If memory is unmapped meanwhile (ENOMEM also means that the area is gone), the command goes
    on.
    """
    make_heap(tree, ["full"] * 3)

    def unmap() -> None:
        if advice.calls == [address(0)]:
            make_heap(tree, ["empty", "empty", "full"])

    advice.before = unmap  # type: ignore[method-assign]
    advice.refusals = {address(0): ENOMEM}
    data = run("collapse", "--pid", "20", "--json").json
    assert (data["stopped"], data["made"], advice.calls) == ("", 1, [address(0), address(2)])
    # the memory that it had not reached yet counts, too
    assert data["skipped_kib"] == {collapse.GONE: 2 * 2048}


def test_processes_that_end(run: Run, tree: FakeTree, advice: FakeAdvice) -> None:
    make_heap(tree, ["full"] * 3, pid=22)
    make_heap(tree, ["full"] * 2, pid=20)
    tree.put("/sys/fs/cgroup/db.service/cgroup.procs", "20\n21\n22")
    advice.refusals = {address(2): ESRCH}
    data = run("collapse", "--unit", "db", "--json").json
    rows = {row["pid"]: row for row in data["processes"]}
    assert (rows[20]["made_kib"], rows[22]["made_kib"]) == (4 * MIB, 4 * MIB)
    assert (rows[20]["after_kib"], rows[22]["after_kib"]) == (4 * MIB, None)
    assert data["notes"] == ["note: process 22 (postgres) ended during the run, or called exec()"]


def test_a_process_that_ends_is_named(run: Run, tree: FakeTree, advice: FakeAdvice) -> None:
    make_heap(tree, ["full"] * 3)
    advice.refusals = {address(2): ESRCH}
    result = run("collapse", "--pid", "20")
    assert result.code == 0
    table, *_, note = result.out.splitlines()[1:]
    assert table.split()[3:5] == ["->", "ended"]
    assert note == "note: process 20 (postgres) ended during the run, or called exec()"
    make_heap(tree, ["full"] * 3)
    advice.refusals = {address(0): EAGAIN}
    advice.before = partial(tree.remove, "/proc/20/maps")  # type: ignore[method-assign]
    assert run("collapse", "--pid", "20").out.splitlines()[-1] == note
    make_heap(tree, ["full"] * 3)
    assert " ended" not in run("collapse", "--pid", "20", "--dry-run").out


@pytest.mark.parametrize("verb", ["collapse", "maintain"])
def test_it_warns_if_it_may_lose_its_cpu(
    run: Run, advice: FakeAdvice, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setattr(Holds, "slowed", lambda holds: "its nice value is 19")
    result = run(verb, "--pid", "20", "--dry-run")
    assert result.code == 0
    assert result.err.startswith("warning: this command may stop a program for as long as it")
    assert "waits for a CPU: its nice value is 19, and SCHED_FIFO is not permitted" in result.err
    monkeypatch.setattr(Holds, "slowed", lambda holds: "")
    assert "warning" not in run(verb, "--pid", "20", "--dry-run").err


@pytest.mark.parametrize("number", [EPERM, EACCES])
def test_permission(run: Run, advice: FakeAdvice, number: int) -> None:
    advice.denied = number
    result = run("collapse", "--pid", "20")
    assert result.code == 4
    assert "CAP_SYS_NICE, CAP_SYS_PTRACE" in result.err


def test_kernels_without_it(run: Run, tree: FakeTree, advice: FakeAdvice) -> None:
    tree.remove(f"{THP}/hpage_pmd_size")
    result = run("collapse", "--pid", "20")
    assert (result.code, "CONFIG_TRANSPARENT_HUGEPAGE" in result.err) == (3, True)
    tree.put(f"{THP}/hpage_pmd_size", str(32 << 20))
    assert run("collapse", "--pid", "20").code == 3


def test_a_profile_that_says_never(run: Run, tree: FakeTree, advice: FakeAdvice) -> None:
    """A profile with `never` is not overridden silently."""
    tree.make_loaded()
    assert run("profile", "create", "none-large").code == 0
    assert run("set", "anon_order", "never", "--profile", "none-large").code == 0
    assert run("bind", "--cgroup", "/db.service", "none-large").code == 0
    result = run("collapse", "--unit", "db")
    assert (result.code, advice.calls) == (5, [])
    assert "the profile 'none-large'" in result.err and "--override-never" in result.err
    assert run("collapse", "--unit", "db", "--override-never").code == 0
    assert len(advice.calls) == 2


def test_a_profile_says_never_meanwhile(
    run: Run, tree: FakeTree, advice: FakeAdvice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A binding to a profile with `never` in the middle of a long run ends it."""
    monkeypatch.setattr("mmpolicy.verbs.collapse.PROFILES_S", 0.0)
    make_heap(tree, ["full"] * 20)
    tree.make_loaded()
    assert run("profile", "create", "none-large").code == 0
    assert run("set", "anon_order", "never", "--profile", "none-large").code == 0

    def bind() -> None:
        if len(advice.calls) == 5:
            assert run("bind", "--cgroup", "/db.service", "none-large").code == 0

    advice.before = bind  # type: ignore[method-assign]
    result = run("collapse", "--unit", "db")
    assert (result.code, 5 <= len(advice.calls) < 15) == (1, True), result.err
    assert "collapse stopped before the end: the profile 'none-large'" in result.err


def test_without_pressure_files(run: Run, tree: FakeTree, advice: FakeAdvice) -> None:
    tree.remove("/proc/pressure")
    notes = run("collapse", "--pid", "20", "--json").json["notes"]
    assert notes == [
        ("note: the kernel has no PSI (CONFIG_PSI): memory pressure does not stop the run")
    ]


def test_usage(run: Run, advice: FakeAdvice) -> None:
    for words in ((), ("--pid", "20", "--unit", "db"), ("--pid", "99"), ("--unit", "none"),
                  ("--pid", "20", "--min-used", "0"), ("--pid", "20", "--cpu", "0")):  # fmt: skip
        assert run("collapse", *words).code == 2
    assert advice.calls == []


def test_a_kernel_that_cannot(
    run: Run, advice: FakeAdvice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Linux before 6.1, the error names the kernel; it once blamed the command's own memory."""
    monkeypatch.setattr(advice, "can_collapse", lambda: False)
    for words in (["--dry-run"], []):
        result = run("collapse", "--pid", "20", *words)
        assert (result.code, "this kernel has no MADV_COLLAPSE" in result.err) == (3, True)
        assert "next: boot Linux 6.1 or newer" in result.err
