# SPDX-License-Identifier: GPL-2.0
"""`maintain` on processes made of files: the memory it works on, when, and its exceptions."""

from __future__ import annotations

import json
import os
import re
import signal
from array import array
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from errno import EAGAIN, ENOMEM, EPERM
from typing import Any

import pytest

from mmpolicy.control.maintained import LIVE, LOCK, live
from mmpolicy.errors import Error, Exit, explain
from mmpolicy.host.advice import BLOCK
from mmpolicy.host.pagemap import PAGE
from mmpolicy.memory.maintain import Maintainer
from mmpolicy.verbs import maintain

from .fakes import Clock, FakeTree, Run
from .heaps import START, FakeAdvice, block, free_blocks, make_collapsible, make_heap
from .sparse import SPLIT, make_sparse, make_thp, pressure, reuse, split
from .test_map import START as SPARSE

MIB = 1024  # KiB
MINUTE = 60.0
PAGES = BLOCK // PAGE
Events = dict[float, Callable[[], object]]
Play = Callable[[float, Events], None]


@pytest.fixture
def play(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Return a function that schedules events by the second, and ends the command."""

    def play(end: float, events: Events) -> None:
        ahead = sorted(events.items())

        def sleep(seconds: float) -> None:
            clock.now += seconds
            while ahead and clock.now >= ahead[0][0]:
                ahead.pop(0)[1]()
            if clock.now >= end:
                os.kill(os.getpid(), signal.SIGTERM)

        monkeypatch.setattr(clock, "sleep", sleep)

    return play


@pytest.fixture
def advice(tree: FakeTree) -> FakeAdvice:
    """Return the kernel of a host with a process of which two of three 2 MB are full."""
    return make_collapsible(tree, ["full", "half", "full"])


def address(number: int) -> int:
    return START + number * BLOCK


def put_block(tree: FakeTree, number: int, kind: str, pid: int = 20) -> None:
    """Change 2 MB of a process, and the process's counters in the kernel."""
    with tree.real(f"/proc/{pid}/pagemap").open("r+b") as file:
        file.seek(address(number) // PAGE * 8)
        file.write(block(kind, number).tobytes())
    move(tree, pid)


def move(tree: FakeTree, pid: int = 20) -> None:
    """Let the counters of a process move, as after 2 MB of page faults."""
    head, _, rest = tree.read(f"/proc/{pid}/stat").rpartition(")")
    fields = rest.split()
    fields[7] = str(int(fields[7]) + PAGES)
    tree.put(f"/proc/{pid}/stat", f"{head}) {' '.join(fields)}")


def last(out: str) -> dict[str, int]:
    """Return the first service of the last object of --json."""
    found: dict[str, int] = json.loads(out.splitlines()[-1])["services"][0]
    return found


@pytest.mark.parametrize("words", [("--unit", "db"), ("--cgroup", "/db.service"), ("--pid", "20")])
def test_what_is_full_is_collapsed(
    run: Run, play: Play, advice: FakeAdvice, words: tuple[str, ...]
) -> None:
    play(MINUTE, {})
    result = run("maintain", *words, "--json")
    service = last(result.out)
    assert (result.code, advice.calls) == (0, [address(0), address(2)])
    assert (service["collapsed_kib"], service["huge_kib"]) == (4 * MIB, 4 * MIB)
    assert (service["again"], service["full_kib"]) == (0, 0)


def test_what_it_prints(run: Run, play: Play, advice: FakeAdvice, log: list[str]) -> None:
    play(MINUTE, {})
    result = run("maintain", "--unit", "db")
    lines = result.out.splitlines()
    assert lines[0].startswith(
        "maintain gives no empty memory back on this host: this kernel keeps the empty pages"
    )
    assert lines[2].split() == ["db", "1", "5", "80.0", "%", "0", "4", "0", "0", "1", "0.0"]
    assert lines[-1].startswith("maintain used 0.") and lines[-1].endswith(" % of a CPU")
    assert log == [log[0]]
    assert log[0].startswith("maintain db: 4 MiB put into 2 MB pages, 0 MiB given back, 0 times")
    assert "maintain db: 4 MiB put into 2 MB pages" in run("log").out


@pytest.mark.parametrize("other_runs", [False, True])
def test_a_dry_run_changes_nothing(
    run: Run, tree: FakeTree, advice: FakeAdvice, other_runs: bool
) -> None:
    """A dry run reports full memory, even while another maintain works; it writes and
    keeps nothing.
    """
    words = ("maintain", "--unit", "db", "--dry-run")
    with tree.locked(LOCK, "maintain, pid 1") if other_runs else nullcontext():
        data = json.loads(run(*words, "--json").out)
        lines = run(*words).out.splitlines()
    service = data["services"][0]
    assert (data["dry_run"], service["full_kib"], service["empty_kib"]) == (True, 4 * MIB, 0)
    assert [each.split() for each in lines if "db " in each] == [
        ["db", "1", "5", "0.0", "%", "4", "0"]
    ]
    assert "db: memory left as it was: 1.0 MiB not full" in lines
    assert (advice.calls, tree.writes, tree.exists(LIVE)) == ([], [], False)
    assert "maintain" not in run("log").out


def test_once(run: Run, play: Play, advice: FakeAdvice, clock: Clock) -> None:
    """With --once, `maintain` ends when no work is due, here after all possible collapses."""
    began = clock.now
    play(began + 10 * MINUTE, {})
    result = run("maintain", "--unit", "db", "--once", "--json")
    assert (result.code, advice.calls) == (0, [address(0), address(2)])
    assert last(result.out)["full_kib"] == 0
    assert clock.now - began < MINUTE
    assert "4 MiB put into 2 MB pages" in run("log").out
    again = run("maintain", "--unit", "db", "--once")
    assert (again.code, len(advice.calls)) == (0, 2)


def test_once_says_why_it_ended_early(
    run: Run, tree: FakeTree, play: Play, advice: FakeAdvice
) -> None:
    free_blocks(tree, 0)
    play(10 * MINUTE, {})
    result = run("maintain", "--unit", "db", "--once")
    assert (result.code, advice.calls) == (Exit.FAILED, [])
    assert (
        "maintain --once stopped before the end: NUMA node 0 has 0 free blocks of 2 MB left"
    ) in result.err


def restart(tree: FakeTree, pid: int = 20) -> None:
    """Let a process end, and another program with full memory get its PID."""
    make_heap(tree, ["full", "full", "full"], pid=pid)
    reuse(tree, pid)


def become_zombie(tree: FakeTree) -> None:
    tree.put("/proc/20/stat", tree.read("/proc/20/stat").replace(") S ", ") Z "))


def vanish(tree: FakeTree) -> None:
    tree.remove("/proc/20")


@pytest.mark.parametrize("end", [restart, become_zombie, vanish])
def test_a_process_until_it_ends(
    run: Run, tree: FakeTree, play: Play, advice: FakeAdvice, log: list[str], clock: Clock,
    end: Callable[[FakeTree], None],
) -> None:  # fmt: skip
    """With --pid alone, `maintain` ends with the process, and leaves another program alone that has
    its PID then.
    """
    play(60 * MINUTE, {30.0: lambda: end(tree)})
    result = run("maintain", "--pid", "20")
    assert (result.code, advice.calls) == (0, [address(0), address(2)])
    lines = result.out.splitlines()
    assert lines.count("process 20 has ended") == 1 and clock.now < MINUTE
    row = next(line for line in reversed(lines) if line.startswith("process 20 "))
    assert row.split()[2:] == ["0", "0", "-", "0", "4", "0", "0", "1", "0.0"]
    assert "maintain: process 20 has ended" in log


def test_the_others_go_on_when_a_process_has_ended(
    run: Run, tree: FakeTree, play: Play, advice: FakeAdvice, clock: Clock
) -> None:
    make_heap(tree, ["half", "full"], pid=21)
    events: Events = {30.0: lambda: restart(tree), 40.0: lambda: put_block(tree, 0, "full", 21)}
    play(5 * MINUTE, events)
    result = run("maintain", "--pid", "20", "--pid", "21")
    assert (result.code, clock.now >= 5 * MINUTE) == (0, True)
    assert result.out.count("process 20 has ended") == 1
    assert advice.calls == [address(0), address(2), address(1), address(0)]


def test_a_service_that_does_not_change_is_not_looked_at(
    run: Run, tree: FakeTree, play: Play, advice: FakeAdvice
) -> None:
    """A service that does not change is checked once in the settling time; its counters are read
    without a lock.
    """
    play(30 * MINUTE, {})
    assert last(run("maintain", "--unit", "db", "--json").out)["looks"] <= 5
    moves: Events = {60.0 * minute: lambda: move(tree) for minute in range(31, 60)}
    play(60 * MINUTE, moves)
    assert 6 <= last(run("maintain", "--unit", "db", "--json").out)["looks"] <= 16


def test_what_grows_is_collapsed_soon(
    run: Run, tree: FakeTree, play: Play, advice: FakeAdvice
) -> None:
    seen: list[list[int]] = []
    play(60.0, {20.0: lambda: put_block(tree, 1, "full"), 45.0: lambda: seen.append(advice.calls)})
    run("maintain", "--unit", "db")
    assert seen == [[address(0), address(2), address(1)]]


def test_it_does_not_work_against_the_program(
    run: Run, tree: FakeTree, play: Play, advice: FakeAdvice
) -> None:
    """`maintain` does not work against the program: memory split by a snapshot is collapsed again
    after ten minutes, then after twenty.
    """
    made: list[int] = []

    def broken() -> None:
        made.append(len(advice.calls))
        put_block(tree, 0, "full")

    events: Events = {
        60.0: broken,
        11 * MINUTE - 30: lambda: made.append(len(advice.calls)),
        16 * MINUTE: broken,
        33 * MINUTE: lambda: made.append(len(advice.calls)),
    }
    play(45 * MINUTE, events)
    service = last(run("maintain", "--unit", "db", "--json").out)
    assert made == [2, 2, 3, 3]
    assert (len(advice.calls), service["again"]) == (4, 2)


def test_what_is_full_for_a_moment_does_not_count(
    run: Run, tree: FakeTree, play: Play, advice: FakeAdvice
) -> None:
    """Memory that was full for a moment does not count: the settling time starts again if 2 MB were
    not full in between.
    """
    events: Events = {
        60.0: lambda: put_block(tree, 0, "full"),
        8 * MINUTE: lambda: put_block(tree, 0, "half"),
        9 * MINUTE: lambda: put_block(tree, 0, "full"),
    }
    play(18 * MINUTE, events)
    run("maintain", "--unit", "db")
    assert len(advice.calls) == 2


def test_what_is_refused_is_tried_again_later(run: Run, play: Play, advice: FakeAdvice) -> None:
    """What the kernel refuses is tried twice in the first round, as by `collapse`, and again after
    ten minutes.
    """
    advice.refusals = {address(0): EAGAIN}
    play(5 * MINUTE, {})
    assert last(run("maintain", "--unit", "db", "--json").out)["collapsed_kib"] == 2 * MIB
    assert advice.calls == [address(0), address(2), address(0)]


def test_memory_of_others_is_left_alone(
    run: Run, tree: FakeTree, play: Play, advice: FakeAdvice
) -> None:
    """Swapped, shared, guarded, locked or watched memory is left alone, and memory that the program
    excludes.
    """
    make_heap(tree, ["swapped", "shared", "guard", "locked", "tracked", "zero"])
    make_heap(tree, ["full"], pid=21)
    tree.put("/sys/fs/cgroup/db.service/cgroup.procs", "20\n21")
    advice.forbidden.add(21)
    play(60 * MINUTE, {})
    service = last(run("maintain", "--unit", "db", "--json").out)
    assert (advice.calls, service["processes"]) == ([], 2)
    assert len(service["left_kib"]) == 7  # type: ignore[arg-type]


def test_it_waits_while_memory_is_short(
    run: Run, tree: FakeTree, play: Play, advice: FakeAdvice
) -> None:
    """While memory is short, `maintain` waits and examines no memory; it goes on when there is
    room.
    """
    free_blocks(tree, 51)  # 1 % of 5120
    seen: list[str] = []
    events: Events = {
        30.0: lambda: seen.append(live(tree)["waits"]),
        100.0: lambda: free_blocks(tree, 1000),
        150.0: lambda: seen.append(str(len(advice.calls))),
        600.0: lambda: seen.append(live(tree)["waits"]),
    }
    play(700.0, events)
    result = run("maintain", "--unit", "db")
    assert "waits: NUMA node 0 has 51 free blocks of 2 MB left" in result.out
    assert (seen[0][:6], seen[1:], len(advice.calls)) == ("NUMA n", ["0", ""], 2)


@pytest.mark.parametrize("what", ["pressure", "slow"])
def test_it_waits_while_the_host_is_busy(
    run: Run, tree: FakeTree, play: Play, advice: FakeAdvice, clock: Clock, what: str
) -> None:
    clock.now = 10.0
    if what == "pressure":
        pressure(tree, 50)
    else:
        advice.one_s = 0.03
    play(40.0, {})
    result = run("maintain", "--unit", "db")
    assert (result.code, advice.calls) == (0, [])
    told = {"pressure": "tasks wait for memory 50 %", "slow": "a collapse takes 30.0 ms"}
    assert f"waits: {told[what]}" in result.out


def test_it_waits_where_no_block_is_free(run: Run, play: Play, advice: FakeAdvice) -> None:
    """Where no 2 MB block is free, even for its own measurement, `maintain` waits, and goes on
    later.
    """
    numbers = [ENOMEM]
    timed = advice.time_collapses

    def fail(number: int, undisturbed: Callable[[], AbstractContextManager[None]]) -> list[float]:
        if numbers:
            raise explain(numbers.pop(), "collapse 2 MB", {})
        return timed(number, undisturbed)

    advice.time_collapses = fail  # type: ignore[method-assign]
    play(120.0, {})
    result = run("maintain", "--unit", "db")
    assert (result.code, len(advice.calls)) == (0, 2)
    assert "waits: cannot collapse 2 MB: ENOMEM" in result.out


def test_budget(
    run: Run, tree: FakeTree, play: Play, advice: FakeAdvice, clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """All CPU time of the command counts towards the budget, also for looks: 3 %, or the given
    share.
    """
    cpu = [0.0]
    monkeypatch.setattr("time.process_time", lambda: cpu[0])
    pids = maintain.Keeper._pids

    def costly(self: maintain.Keeper, name: str) -> list[int]:
        cpu[0] += 1.5
        return pids(self, name)

    monkeypatch.setattr(maintain.Keeper, "_pids", costly)
    for words, share in (((), 3), (("--cpu", "10"), 10)):
        cpu[0], began = 0.0, clock.now
        play(began + 3600, {})
        assert run("maintain", "--unit", "db", *words).code == 0
        assert share - 0.1 < 100 * cpu[0] / (clock.now - began) <= share


def test_each_process_is_followed_by_a_rest(
    run: Run, tree: FakeTree, play: Play, advice: FakeAdvice, clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Each process is followed by a rest: a look at ten processes is not all done at once, far
    beyond the budget.
    """
    cpu, at = [0.0], list[float]()
    monkeypatch.setattr("time.process_time", lambda: cpu[0])
    turn = Maintainer._turn

    def costly(self: Maintainer, *args: Any) -> None:
        cpu[0] += 1.0
        at.append(clock.now)
        turn(self, *args)

    monkeypatch.setattr(Maintainer, "_turn", costly)
    pids = range(20, 30)
    for pid in pids:
        make_heap(tree, ["full"], pid=pid)
    tree.put("/sys/fs/cgroup/db.service/cgroup.procs", "\n".join(map(str, pids)))
    play(10 * MINUTE, {})
    assert run("maintain", "--unit", "db", "--cpu", "10").code == 0
    assert all(when - at[0] >= 9.9 * number for number, when in enumerate(at))
    assert len(at) >= len(pids)


def test_a_profile_never_is_heeded(
    run: Run, tree: FakeTree, play: Play, advice: FakeAdvice
) -> None:
    """A profile with `never` is reported once, and full memory counts as left alone; another
    profile allows the work.
    """
    tree.make_loaded()
    run("set", "anon_order", "never")
    never = "the profile 'default' has the policy 'never'"
    play(30 * MINUTE, {})
    result = run("maintain", "--unit", "db")
    assert (result.code, advice.calls) == (0, [])
    assert result.out.count(f"db: maintain collapses nothing for now: {never}") == 1
    assert f"db: memory left as it was: 4.0 MiB {never}" in result.out
    run("set", "anon_order", "stock")
    play(31 * MINUTE, {})
    assert run("maintain", "--unit", "db").code == 0
    assert len(advice.calls) == 2


# ---- empty memory


@pytest.fixture
def sparse(tree: FakeTree) -> FakeTree:
    """Return a host with a service whose 2 MB folios are empty but for one page in 16."""
    tree.make_unloaded()
    make_thp(tree)
    free_blocks(tree, 1000)
    make_sparse(tree, 10)
    own(tree, 10)
    for file in "maps", "smaps":  # the first area in smaps is not the heap
        first = "1000-2000 rw-p 00000000 00:00 0\n"
        more = "Rss: 0 kB\nVmFlags: rd wr hg\n" if file == "smaps" else ""
        tree.put(f"/proc/10/{file}", first + more + tree.read(f"/proc/10/{file}"))
    tree.advice = FakeAdvice(tree)
    tree.splits = lambda value: split(tree, value)
    return tree


def own(tree: FakeTree, pid: int) -> None:
    """Mark the pages of a process as its own, as the kernel does."""
    with tree.real(f"/proc/{pid}/pagemap").open("r+b") as file:
        file.seek(SPARSE // PAGE * 8)
        entries = array("Q", file.read())
        file.seek(SPARSE // PAGE * 8)
        file.write(array("Q", [entry | 1 << 56 for entry in entries]).tobytes())


def splits(tree: FakeTree) -> int:
    return sum(path == SPLIT for path, _ in tree.writes)


def test_what_stays_empty_is_given_back(run: Run, sparse: FakeTree, play: Play) -> None:
    """Memory that stays empty is given back after ten minutes, as memory that was just faulted in
    is empty for a while.
    """
    seen: list[int] = []
    play(11 * MINUTE, {9.5 * MINUTE: lambda: seen.append(splits(sparse))})
    service = last(run("maintain", "--unit", "redis", "--json").out)
    assert (seen, splits(sparse) > 0) == ([0], True)
    assert (service["given_back_kib"], service["again"]) == (15 * MIB, 0)
    assert service["collapsed_kib"] == 0


def test_a_dry_run_says_what_is_empty(run: Run, sparse: FakeTree) -> None:
    """A dry run prints that 15 of 16 MB are empty, estimated from one page in 13."""
    data = json.loads(run("maintain", "--unit", "redis", "--dry-run", "--json").out)
    assert 14 * MIB <= data["services"][0]["empty_kib"] <= 16 * MIB
    assert splits(sparse) == 0


def test_what_is_used_in_time_is_not_split(run: Run, sparse: FakeTree, play: Play) -> None:
    def fill() -> None:
        sparse.put("/proc/10/mem", b"")
        with sparse.real("/proc/10/mem").open("r+b") as memory:
            for page in range(4096):
                memory.seek(SPARSE + page * PAGE)
                memory.write(b"x" * PAGE)
        move(sparse, 10)

    play(30 * MINUTE, {5 * MINUTE: fill})
    service = last(run("maintain", "--unit", "redis", "--json").out)
    assert (splits(sparse), service["given_back_kib"]) == (0, 0)


def test_memory_that_was_asked_for_stays(
    run: Run, tree: FakeTree, sparse: FakeTree, play: Play
) -> None:
    """Memory with MADV_HUGEPAGE stays; it is examined less and less often."""
    make_sparse(tree, 10, flags="rd wr hg")
    own(tree, 10)
    play(60 * MINUTE, {})
    service = last(run("maintain", "--unit", "redis", "--json").out)
    assert (splits(tree), service["given_back_kib"]) == (0, 0)


def test_a_kernel_that_does_not_split_for_us(run: Run, sparse: FakeTree, play: Play) -> None:
    """A kernel that refuses to split is reported once; the other work goes on."""

    def refuse(_value: str) -> None:
        raise Error("no permission", Exit.DENIED, "", EPERM)

    sparse.splits = refuse
    play(60 * MINUTE, {})
    result = run("maintain", "--unit", "redis")
    assert result.code == 0
    assert result.out.count("redis: maintain gives no empty memory back on this host: ") == 1


# ---- output for other programs


def test_status_export_and_log(run: Run, tree: FakeTree, play: Play, advice: FakeAdvice) -> None:
    """status, export and log show `maintain` while it runs, and not afterwards; none of them needs
    the module.
    """
    seen: list[str] = []

    def look() -> None:
        seen.extend((run("status").out, run("export").out))

    play(60.0, {40.0: look})
    assert run("maintain", "--unit", "db").code == 0
    status, export = seen
    line = f"maintain: pid {os.getpid()}, 1 service: 4 MiB put into 2 MB pages, 0 MiB given back"
    assert line in status
    assert "\nmmpolicy_maintain_running 1.0\n" in export
    made = re.search(
        r'^mmpolicy_maintain_collapsed_bytes_total\{service="db"\} (.*)$', export, re.M
    )
    assert made and float(made[1]) == 2 * BLOCK
    assert "\nmmpolicy_maintain_cpu_seconds_total " in export
    assert "maintain" not in run("status").out
    assert "\nmmpolicy_maintain_running 0.0\n" in run("export").out
    assert not tree.exists(LIVE)


def test_one_that_was_killed_counts_for_nothing(
    run: Run, tree: FakeTree, advice: FakeAdvice
) -> None:
    """A `maintain` that was killed counts for nothing: its record may be there, but not
    its lock.
    """
    tree.put(LIVE, json.dumps({"pid": 1, "services": [], "waits": ""}))
    tree.put(LOCK, "maintain, pid 1\n")
    assert live(tree) == {}
    assert "\nmmpolicy_maintain_running 0.0\n" in run("export").out


def test_one_at_a_time(run: Run, tree: FakeTree, play: Play, advice: FakeAdvice) -> None:
    others: list[str] = []
    play(60.0, {30.0: lambda: others.append(run("maintain", "--unit", "db").err)})
    assert run("maintain", "--unit", "db").code == 0
    assert f"is locked by maintain, pid {os.getpid()}\n" in others[0]
    assert f"next: kill {os.getpid()} ends that process" in others[0]


def test_the_unit_that_runs_is_named(run: Run, tree: FakeTree, advice: FakeAdvice) -> None:
    """With the command that stops it; a kill ends one of another unit, such as that of a shell."""
    for cgroup, ended in (
        ("/system.slice/mmpolicy-maintain.service", "systemctl stop mmpolicy-maintain.service"),
        ("/system.slice/ssh.service", "kill 7"),
    ):
        tree.put("/proc/7/cgroup", f"0::{cgroup}")
        with tree.locked(LOCK, "maintain, pid 7"):
            result = run("maintain", "--unit", "db")
        assert result.code == 1
        assert f"next: {ended} ends that process" in result.err
        assert ("pid 7 (mmpolicy-maintain.service)\n" in result.err) == ("stop" in ended)


# ---- services that come and go


def test_a_service_that_starts_again(
    run: Run, tree: FakeTree, play: Play, advice: FakeAdvice
) -> None:
    """If a service starts again, another process with the same number is a new one, whose memory
    was not worked on yet.
    """

    def restart() -> None:
        make_heap(tree, ["full"])
        head = tree.read("/proc/20/stat").rpartition(" 7 ")
        tree.put("/proc/20/stat", f"{head[0]} 8 {head[2]}")

    play(60.0, {30.0: restart})
    service = last(run("maintain", "--unit", "db", "--json").out)
    assert (len(advice.calls), service["again"]) == (3, 0)


def test_a_unit_that_does_not_run_yet(
    run: Run, tree: FakeTree, play: Play, advice: FakeAdvice
) -> None:
    """If a unit does not run yet, the command waits for it, if systemd knows it."""
    tree.put("/usr/lib/systemd/system/late.service", "[Service]\n")
    result = run("maintain", "--unit", "wrong")
    assert result.code == 2 and "systemd does not know the unit wrong.service" in result.err
    start = lambda: make_heap(tree, ["full"], pid=22, cgroup="/late.service")  # noqa: E731
    play(60.0, {30.0: start})
    assert last(run("maintain", "--unit", "late", "--json").out)["collapsed_kib"] == 2 * MIB


def test_processes_that_end(run: Run, tree: FakeTree, play: Play, advice: FakeAdvice) -> None:
    play(60.0, {30.0: lambda: tree.remove("/proc/20")})
    assert last(run("maintain", "--pid", "20", "--json").out)["processes"] == 0


# ---- manifests


def test_services_of_the_manifests(
    run: Run, tree: FakeTree, play: Play, advice: FakeAdvice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Services of the manifests are read again each minute; a wrong file is left out,
    and reported.
    """
    path = "/etc/mmpolicy/60-maintain.toml"
    seen: list[int] = []

    def write(text: str) -> Callable[[], object]:
        return lambda: tree.put(path, f"version = 1\n{text}")

    monkeypatch.setattr(maintain, "CPU", 3.0)
    events: Events = {
        30.0: lambda: seen.append(len(advice.calls)),
        40.0: write('[maintain]\ncpu = 4\n[maintain.services]\n"db.service" = true\n'),
        110.0: lambda: seen.append(live(tree)["cpu_percent"]),
        120.0: write('[maintain.services]\n"db.service" = 3\n'),
        250.0: lambda: seen.append(len(live(tree)["services"])),
        260.0: write('[maintain.services]\n"db.service" = false\n'),
        400.0: lambda: seen.append(len(live(tree)["services"])),
    }
    play(410.0, events)
    result = run("maintain")
    assert result.code == 0, result.err
    assert (seen, len(advice.calls)) == ([0, 4, 1, 0], 2)
    assert (
        "maintain waits, as [maintain] of the manifests in /etc/mmpolicy names no service"
    ) in result.out
    assert (
        "60-maintain.toml:3: the manifest has an invalid entry: maintain.services.db.service = 3"
    ) in result.out


def test_apply_and_verify_take_it(run: Run, tree: FakeTree) -> None:
    """`maintain` in a manifest is no setting of the kernel, and no drift; errors in it are reported
    with their line.
    """
    file = str(tree.real("/tmp/host.toml"))
    tree.put("/tmp/host.toml", "version = 1\n[maintain]\ncpu = 2.5\n[maintain.services]\ndb = true")
    assert run("apply", file).code == 0
    assert run("verify").code == 0
    for text, told in (
        ("cpu = 0", "[maintain] cpu: a budget of 0 % of a CPU is not between 0.1 and 100"),
        ("cpu = true", "the manifest has an invalid entry: maintain.cpu = True"),
        ("share = 3", "the manifest has an invalid entry: maintain.share = 3"),
    ):
        tree.put("/tmp/host.toml", f"version = 1\n[maintain]\n{text}\n")
        result = run("apply", file)
        assert result.code == 1 and f"host.toml:3: {told}" in result.err
