# SPDX-License-Identifier: GPL-2.0
"""`top`, `trim`, `collapse`, `maintain` and `recommend` on Debian's own kernel, without
the module.
"""

from __future__ import annotations

import errno
import json
import shlex
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from lab.guest import Guest
from lab.programs import ran, workload

from .conftest import Machines
from .tools import KHUGEPAGED, SCRIPT, THP, TRACING, VMSTAT, back_to_boot, histograms, must, vmstat

pytestmark = pytest.mark.flavor("cloud")

# MiB of the program's memory area, and distance of the pages that it uses: one in 64 kB
MIB, STEP = 128, 16
USED_KIB = (MIB << 10) // STEP
CGROUP, OTHER = "/sys/fs/cgroup/waste", "/sys/fs/cgroup/other"
ADVISED = 14  # MADV_HUGEPAGE
TRIMMER = Path(__file__).with_name("trimmer.py")
ALONE = 2 << 10  # the program may have this many KiB of memory outside its area
# longest time, in us, for which a thread of the program may be stopped, other tasks included; to
# trim all memory at once takes over 100 ms
STOP_US = 40_000


@pytest.fixture
def counting(machines: Machines) -> Guest:
    """Return a guest whose clock counts instructions, so that it is as fast as a small host."""
    return prepared(machines.get("cloud", mem="2G", icount=True))


def prepared(guest: Guest) -> Guest:
    """Unload the module from the guest, and let khugepaged fill no missing pages; return
    the guest.
    """
    back_to_boot(guest)
    must(guest, f"echo +memory >/sys/fs/cgroup/cgroup.subtree_control; echo always >{THP}/enabled")
    must(guest, f"rmmod mmpolicy 2>/dev/null; echo 0 >{KHUGEPAGED}/max_ptes_none")
    return guest


def inside(command: str) -> str:
    """Return a shell command that runs a command in the cgroup CGROUP."""
    return f"exec sh -c {shlex.quote(f'echo $$ >{CGROUP}/cgroup.procs; {command}')}"


@contextmanager
def running(guest: Guest, command: str, survives: bool = True) -> Iterator[int]:
    """Run a process in a new cgroup, for a `with` block that begins when the process has its
    memory; yield its PID. At the end of the block, the process checks the content of its memory.

    survives: whether the process must then exit with 0.
    """
    must(guest, f"mkdir {CGROUP}; rm -f /tmp/ready /tmp/over /tmp/said")
    job = guest.start(inside(f"exec {command}"))
    try:
        must(guest, "until [ -e /tmp/ready ]; do sleep 0.1; done")
        yield int(must(guest, f"cat {CGROUP}/cgroup.procs").split()[0])
    finally:
        must(guest, "touch /tmp/over")
        done = job.wait()
        must(guest, f"until rmdir {CGROUP}; do sleep 0.1; done")
    assert (done.rc == 0) == survives, done.out


@contextmanager
def wasteful(
    guest: Guest, words: str = "", name: str = "stops", step: int = STEP, survives: bool = True
) -> Iterator[int]:
    """Run a process that uses only one page in `step` pages of its memory, for a `with` block;
    yield its PID.
    """
    must(guest, f"cp {workload('stops')} /tmp/{name}")
    with running(guest, f"/tmp/{name} {MIB} {step} {words} >/tmp/said", survives) as pid:
        yield pid


def said(guest: Guest) -> dict[str, Any]:
    """Return what the process has reported at its end. It must have found no wrong data in its
    memory.
    """
    found: dict[str, Any] = json.loads(must(guest, "cat /tmp/said"))
    assert found["mismatches"] == 0
    return found


def rss(guest: Guest, pid: int) -> int:
    return int(must(guest, f"sed -n 's/^Rss: *\\([0-9]*\\) kB/\\1/p' /proc/{pid}/smaps_rollup"))


def mmpolicy(guest: Guest, words: str) -> dict[str, Any]:
    return ran(guest, f"mmpolicy {words} --json")


def test_top_names_it(counting: Guest) -> None:
    """Within two intervals, `top` lists a process that wastes memory first, and shows its empty
    memory with an error of at most 5 %.
    """
    waste = (MIB << 10) - USED_KIB
    with wasteful(counting) as pid:
        must(counting, "mmpolicy top -n 2 --json >/tmp/top")
        _first, second = map(json.loads, must(counting, "cat /tmp/top").splitlines())
        assert second["notes"] == []
        worst, cgroup = second["processes"][0], second["cgroups"][0]
        assert (worst["pid"], worst["name"]) == (pid, "stops")
        assert (cgroup["cgroup"], cgroup["decides"]) == ("/waste", "kernel")
        for row in worst, cgroup:
            assert abs(row["waste_kib"] - waste) < waste * 0.05
            assert abs(row["waste_kib"] - waste) <= row["error_kib"] + ALONE
            assert row["folios"]["2048 kB"] > 0.9
        assert 0 < worst["cpu_percent"] < 100
    said(counting)


def test_trim(counting: Guest) -> None:
    """`trim` gives the empty memory of a process back, changes no data, and stops no thread of the
    process for long.
    """
    with wasteful(counting) as pid:
        planned = mmpolicy(counting, "trim --cgroup /waste --dry-run")
        assert rss(counting, pid) > MIB << 10
        (plan,) = planned["processes"]
        assert abs(plan["empty_kib"] - ((MIB << 10) - USED_KIB)) < 1024
        done = mmpolicy(counting, "trim --cgroup /waste")
        now = rss(counting, pid)
        (row,) = done["processes"]
        assert (row["pid"], row["before_kib"] > MIB << 10) == (pid, True)
        assert abs(row["after_kib"] - now) < 256  # counters of the kernel are not exact at once
        assert now < USED_KIB * 1.05 + ALONE
        current = done["memory_current"]
        assert current["before_kib"] > MIB << 10 > 8 * current["after_kib"]
        assert done["stopped"] == "" and row["writes"] >= MIB // 32
        assert row["longest_ms"] < 5
        again = mmpolicy(counting, "trim --cgroup /waste")["processes"]
        assert [each["writes"] for each in again] == [0]
    assert said(counting)["longest_us"] < STOP_US


def test_what_was_asked_for_is_left_alone(counting: Guest) -> None:
    """`trim` splits folios in memory with MADV_HUGEPAGE only if --include-madvised is given.
    Without this option, it fails with an error that names the MiB of such folios.

    `recommend` proposes the command with this option.
    """
    must(counting, f"echo madvise >{THP}/enabled")
    with wasteful(counting, str(ADVISED)) as pid:
        refused = counting.run(f"mmpolicy trim --pid {pid}")
        assert refused.rc == 5
        assert (
            f"memory left as it was: {MIB - MIB // STEP} MiB: the program asked for"
        ) in refused.out
        assert rss(counting, pid) > MIB << 10
        (command,) = mmpolicy(counting, "recommend --seconds 10")["findings"][0]["commands"]
        assert command == "mmpolicy trim --cgroup /waste --include-madvised"
        must(counting, command)
        assert rss(counting, pid) < USED_KIB * 1.05 + ALONE
    said(counting)


FAST = "--cpu 100 --max-stop 100"  # options of collapse for a run without pauses
NOT_ADVISED = 15  # MADV_NOHUGEPAGE


def huge(guest: Guest, pid: int) -> int:
    """Return how many kB of the process's memory are in huge pages."""
    field = "s/^AnonHugePages: *\\([0-9]*\\) kB/\\1/p"
    return int(must(guest, f"sed -n '{field}' /proc/{pid}/smaps_rollup"))


def test_collapse(counting: Guest) -> None:
    """`collapse` moves memory that is used in full into huge pages, although sysfs disables huge
    pages. The size of the memory and its data do not change.
    """
    collapses(counting)


def collapses(guest: Guest) -> None:
    """Check `collapse`: its plan, its result, the memory of the process, a second run, and the
    longest stop of a thread.
    """
    must(guest, f"echo never >{THP}/enabled")
    with wasteful(guest, step=1) as pid:
        before = rss(guest, pid)
        assert huge(guest, pid) == 0
        planned = mmpolicy(guest, f"collapse --cgroup /waste --dry-run {FAST}")
        assert (planned["processes"][0]["made_kib"], huge(guest, pid)) == (MIB << 10, 0)
        done = mmpolicy(guest, f"collapse --cgroup /waste {FAST}")
        assert (done["made"], done["stopped"]) == (MIB // 2, "")
        assert huge(guest, pid) == MIB << 10
        assert abs(rss(guest, pid) - before) < before // 1000
        again = mmpolicy(guest, f"collapse --pid {pid} {FAST}")
        assert (again["made"], again["tried"]) == (0, 0)
    assert said(guest)["longest_us"] < STOP_US


@pytest.mark.parametrize(
    ("step", "words", "cause"),
    [(2, "", "not full"), (1, str(NOT_ADVISED), "forbidden by the program")],
)
def test_collapse_leaves_alone(counting: Guest, step: int, words: str, cause: str) -> None:
    """`collapse` does not touch memory that is partly empty, or that has MADV_NOHUGEPAGE."""
    must(counting, f"echo never >{THP}/enabled")
    with wasteful(counting, words, step=step) as pid:
        before = rss(counting, pid)
        done = mmpolicy(counting, f"collapse --pid {pid} {FAST}")
        assert (done["made"], done["skipped_kib"][cause]) == (0, (MIB << 10) // step)
        assert (huge(counting, pid), rss(counting, pid)) == (0, before)
    said(counting)


def test_collapse_reclaims_nothing(counting: Guest) -> None:
    """If the cgroup of a process is close to its memory.max, `collapse` stops before the kernel has
    to reclaim memory.
    """
    must(counting, f"echo never >{THP}/enabled")
    with wasteful(counting, step=1) as pid:
        room = f"$(($(cat {CGROUP}/memory.current) + (3 << 20)))"
        must(counting, f"echo {room} >{CGROUP}/memory.max")
        events = must(counting, f"cat {CGROUP}/memory.events")
        stopped = counting.run(f"mmpolicy collapse --cgroup /waste {FAST}")
        assert (stopped.rc, "KiB, and each collapse needs" in stopped.out) == (1, True), stopped.out
        assert must(counting, f"cat {CGROUP}/memory.events") == events
        assert huge(counting, pid) == 0
    said(counting)


# A program that leaves no free block of 2 MB: nearly 256 MB are free in pieces of 15 pages at most,
# and all other blocks of 2 MB are in huge pages.
CRUMBLE = """
import mmap, os, time
def area(size, advice):
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(advice)
    return memory
def blocks():
    zones = [line.split() for line in open("/proc/buddyinfo")]
    return sum(int(n) for zone in zones if zone[3] != "DMA" for n in zone[4 + 9:])
small = area(256 << 20, mmap.MADV_NOHUGEPAGE)
for at in range(0, len(small), 4096):
    small[at] = 1
for at in range(0, len(small), 16 * 4096):
    small.madvise(mmap.MADV_DONTNEED, at + 4096, 15 * 4096)
large = area(1700 << 20, mmap.MADV_HUGEPAGE)
for at in range(0, len(large), 2 << 20):
    if not blocks():
        break
    large[at] = 1
print(blocks(), flush=True)
while not os.path.exists("/tmp/over"):
    time.sleep(0.1)
"""


PROACTIVE = "/proc/sys/vm/compaction_proactiveness"


def test_collapse_without_a_free_block(machines: Machines) -> None:
    """If no block of 2 MB is free, `collapse` says so and changes nothing. Because of it, no task
    compacts, reclaims or is killed.
    """
    guest = machines.get("cloud", mem="2G", cpus=2, swap="1G")
    back_to_boot(guest)
    must(guest, f"echo +memory >/sys/fs/cgroup/cgroup.subtree_control; echo madvise >{THP}/enabled")
    must(guest, f"echo never >{THP}/defrag; mkdir {OTHER}; rm -f /run/crumbled")
    must(guest, f"echo 0 >{PROACTIVE}")  # or the kernel makes free blocks in the background
    must(guest, f"sh -c 'echo $$ >{OTHER}/cgroup.procs; head -c 32M /dev/zero >/run/theirs'")
    work = f"grep -E 'pgscan|pgsteal|shmem ' {OTHER}/memory.stat; "
    work += f"grep -E '^(compact_stall|allocstall|oom_kill)' {VMSTAT}"
    with wasteful(guest, step=1) as pid:
        job = guest.start(f"exec /usr/bin/python3 -c {shlex.quote(CRUMBLE)} >/run/crumbled")
        must(guest, "until [ -s /run/crumbled ]; do sleep 0.1; done", 60)
        assert must(guest, "cat /run/crumbled") == "0\n"
        before = must(guest, work)
        stopped = guest.run(f"mmpolicy collapse --cgroup /waste {FAST}")
        said_why = "free blocks of 2 MB left, and --reserve keeps" in stopped.out
        assert (stopped.rc, said_why) == (1, True), stopped.out
        assert huge(guest, pid) == 0
        assert must(guest, work) == before
    assert job.wait().rc == 0
    said(guest)
    must(guest, f"rm -f /run/theirs; rmdir {OTHER}")


def test_collapse_of_one_that_is_killed_for_lack_of_memory(counting: Guest) -> None:
    """If a program is killed for lack of memory while `collapse` works on it, no memory of another
    cgroup is reclaimed, and `collapse` ends.
    """
    must(counting, f"echo never >{THP}/enabled; mkdir {OTHER}")
    must(counting, f"sh -c 'echo $$ >{OTHER}/cgroup.procs; head -c 32M /dev/zero >/run/theirs'")
    reclaim = f"grep -E 'pgscan|pgsteal|shmem ' {OTHER}/memory.stat"
    others = must(counting, reclaim)
    with wasteful(counting, step=1, survives=False) as pid:
        job = counting.start("mmpolicy collapse --cgroup /waste --cpu 5 --max-stop 100")
        until(counting, pid, "AnonHugePages", f"-ge {8 << 10}")
        must(counting, f"echo {MIB // 2}M >{CGROUP}/memory.max")
        must(counting, f"while [ -d /proc/{pid} ]; do sleep 0.1; done")
        done = job.wait()
        early = "each collapse needs" in done.out or "EBUSY" in done.out  # between limit and kill
        assert done.rc == early, done.out
        assert "oom_kill 1" in must(counting, f"cat {CGROUP}/memory.events")
    assert must(counting, reclaim) == others
    must(counting, f"rm /run/theirs; rmdir {OTHER}")


def test_collapse_heeds_a_profile(counting: Guest) -> None:
    """If the profile of a process has the policy `never`, `collapse` works on the process only with
    --override-never.
    """
    must(counting, f"echo never >{THP}/enabled; modprobe mmpolicy; mmpolicy set anon_order never")
    with wasteful(counting, step=1) as pid:
        refused = counting.run(f"mmpolicy collapse --cgroup /waste {FAST}")
        assert (refused.rc, huge(counting, pid)) == (5, 0), refused.out
        done = mmpolicy(counting, f"collapse --cgroup /waste {FAST} --override-never")
        assert (done["made"], huge(counting, pid)) == (MIB // 2, MIB << 10)
    said(counting)


HEAP = f"/usr/bin/python3 {Path(__file__).with_name('heap.py')}"
ANON = f"sed -n 's/^anon //p' {CGROUP}/memory.stat"  # page cache would vary
KEEP = "mmpolicy maintain --settle 3s --cpu 50 --max-stop 100"
SETTINGS = f"grep -rs . {THP} --exclude=full_scans --exclude=pages_collapsed --exclude-dir=stats"


def ask(guest: Guest, word: str) -> None:
    """Send a request to the program HEAP in the guest, and wait for its answer."""
    must(guest, f"rm -f /tmp/answered; echo {word} >/tmp/new; mv /tmp/new /tmp/ask")
    must(guest, "until [ -e /tmp/answered ]; do sleep 0.05; done")


def until(guest: Guest, pid: int, field: str, test: str) -> None:
    """Wait until a figure of a process's memory (in kB) satisfies a test of the shell, such as "-ge
    100"; fail after a minute.
    """
    value = f"$(sed -n 's/^{field}: *\\([0-9]*\\) kB/\\1/p' /proc/{pid}/smaps_rollup)"
    must(guest, f"for n in $(seq 600); do [ {value} {test} ] && exit; sleep 0.1; done; exit 1")


def test_maintain(counting: Guest) -> None:
    """`maintain` follows a heap that is filled, grows, is emptied and refilled. If `maintain` is
    killed, no setting changes, and a profile with the policy `never` stops it.
    """
    must(counting, f"echo never >{THP}/enabled; rm -f /tmp/ask")
    with running(counting, f"{HEAP} 16") as pid:
        maintains(counting, pid)
        must(counting, "modprobe mmpolicy; mmpolicy set anon_order never")
        before = huge(counting, pid)
        ask(counting, "grow")
        job = counting.start(f"exec {KEEP} --cgroup /waste >/tmp/kept 2>&1")
        line = "maintain collapses nothing for now: the profile 'default' has the policy 'never'"
        wait = f'for n in $(seq 600); do grep -q "{line}" /tmp/kept && exit; sleep 0.1; done'
        must(counting, f"{wait}; cat /tmp/kept; exit 1")
        must(counting, "pkill -TERM -f '^[^ ]*python[^ ]* .*mmpolicy maintain'")
        job.wait()
        assert huge(counting, pid) <= before


def maintains(guest: Guest, pid: int, gives_back: bool = True) -> None:
    """Check that `maintain` follows a heap that grows, is emptied and refilled, that no setting
    changes if `maintain` is killed, and that the metrics show this.

    gives_back: whether this kernel frees the empty pages of a folio that is split.
    """
    whole, own = 24 << 10, 4 << 10  # KiB: the heap after it has grown, and Python's memory
    settings = must(guest, SETTINGS)
    job = guest.start(f"exec {KEEP} --cgroup /waste >/tmp/kept 2>&1")
    until(guest, pid, "AnonHugePages", f"-ge {16 << 10}")
    ask(guest, "grow")
    until(guest, pid, "AnonHugePages", f"-ge {whole}")
    full = rss(guest, pid)
    charged = int(must(guest, ANON))
    ask(guest, "empty")
    if gives_back:
        until(guest, pid, "Rss", f"-le {full - whole * 14 // 16}")
        until(guest, pid, "AnonHugePages", f"-le {own}")
        assert int(must(guest, ANON)) < charged - whole * 13 // 16 * 1024
    else:
        must(guest, "sleep 10")
    ask(guest, "fill")
    until(guest, pid, "AnonHugePages", f"-ge {whole}")
    told = json.loads(must(guest, "cat /run/mmpolicy/maintain.json"))
    (service,) = told["services"]
    assert service["collapsed_kib"] >= (2 if gives_back else 1) * whole and service["again"] > 0
    assert told["waits"] == "" and bool(told["no_trim"]) != gives_back
    least, most = (whole * 14 // 16, whole * 2) if gives_back else (0, 0)
    assert least <= service["given_back_kib"] <= most
    must(guest, f"kill -KILL {told['pid']}")
    job.wait()
    assert must(guest, SETTINGS) == settings
    assert "\nmmpolicy_maintain_running 0.0\n" in must(guest, "mmpolicy export 2>/dev/null")


@pytest.mark.full
@pytest.mark.amd64("boots kernels of other series than the one that is chosen")
@pytest.mark.parametrize("series", ["linux-6.1", "7.2", "7.3"])
def test_series(machines: Machines, series: str) -> None:
    """`trim`, `collapse` and `maintain` work without the module on Debian's kernels of other
    series. Linux 6.1 does not free the empty pages of a folio that is split.
    """
    guest = prepared(machines.get("cloud", series=series, mem="2G", icount=True))
    collapses(guest)
    must(guest, "rm -f /tmp/ask")
    with running(guest, f"{HEAP} 16") as pid:
        maintains(guest, pid, gives_back=series != "linux-6.1")


def test_it_does_not_come_back(counting: Guest) -> None:
    """After `trim --bind`, memory that the service maps later has no folios with unused pages,
    because its profile prevents them.
    """
    later = inside(f"exec {workload('ops')} map 8192 every 0 8192 16 folios 0 8192")
    must(counting, "modprobe mmpolicy")
    with wasteful(counting) as pid:
        assert histograms(must(counting, f"({later})")) == [{9: 8192}]
        assert mmpolicy(counting, "trim --cgroup /waste --bind")["profile"] == "trimmed"
        assert rss(counting, pid) < USED_KIB * 1.05 + ALONE
        assert histograms(must(counting, f"({later})")) == [{0: 512}]
        must(counting, "mmpolicy revert")
        assert histograms(must(counting, f"({later})")) == [{9: 8192}]
    said(counting)


def test_coverage(counting: Guest) -> None:
    """mmpolicy shows which share of the memory of a cgroup is in huge pages, and of a process that
    looks like a virtual machine. Both are right before and after huge pages are split.
    """
    name = 'container_memory_anon_thp_bytes{id="/waste"}'

    def seen(pid: int) -> tuple[float, float, float]:
        (machine,) = mmpolicy(counting, "thp --vms")["machines"]
        assert machine["pid"] == pid
        percent = mmpolicy(counting, "thp --cgroup /waste")["cgroups"]["/waste"]["huge_percent"]
        lines = must(counting, "mmpolicy export 2>/dev/null").splitlines()
        (huge,) = (float(line.split()[1]) for line in lines if line.startswith(name))
        return machine["huge_percent"], percent, huge

    with wasteful(counting, str(ADVISED), "qemu-system-x86") as pid:
        machine, percent, huge = seen(pid)
        assert machine > 95 and percent > 95 and huge >= MIB << 20
        mmpolicy(counting, "trim --cgroup /waste --include-madvised")
        assert seen(pid) == (0, 0, 0)
    said(counting)


# folio sizes in kB, each with the options of `trim` for it; with 64 kB, reading smaps would take
# too long
SIZES = {"2048": "", "64": " --include-madvised"}


@pytest.mark.parametrize("size", ("2048", pytest.param("64", marks=pytest.mark.full)))
def test_recommend(counting: Guest, size: str) -> None:
    """`recommend` names the wasteful service and a command, and this command has the effect that
    `recommend` predicts.
    """
    must(counting, f"echo never >{THP}/enabled; echo always >{THP}/hugepages-{size}kB/enabled")
    with wasteful(counting) as pid:
        found = mmpolicy(counting, "recommend --seconds 10")["findings"]
        assert len(found) <= 5
        assert (found[0]["who"], found[0]["price"] != "") == ("/waste", True)
        (command,) = found[0]["commands"]
        assert command == f"mmpolicy trim --cgroup /waste{SIZES[size]}"
        must(counting, command)
        assert rss(counting, pid) < USED_KIB * 1.05 + ALONE
        if not SIZES[size]:
            again = mmpolicy(counting, "recommend --seconds 10")["findings"]
            assert "/waste" not in [each["who"] for each in again]
    said(counting)


def test_threaded_cgroups(counting: Guest) -> None:
    """The memory of processes in a threaded cgroup is charged to the cgroup's domain. `recommend`
    names the domain; verbs accept both cgroups as their target.
    """
    child = f"{CGROUP}/threads"
    with wasteful(counting) as pid:
        must(counting, f"mkdir {child}; echo threaded >{child}/cgroup.type")
        must(counting, f"echo {pid} >{child}/cgroup.procs")
        try:
            found = mmpolicy(counting, "recommend --seconds 10")["findings"]
            assert found[0]["commands"] == ["mmpolicy trim --cgroup /waste"]
            for name in "/waste", "/waste/threads":
                seen = mmpolicy(counting, f"trim --cgroup {name} --dry-run")["processes"]
                assert [each["pid"] for each in seen] == [pid]
                assert mmpolicy(counting, f"top -n 1 --cgroup {name}")["processes_seen"] == 1
        finally:
            must(counting, f"echo {pid} >{CGROUP}/cgroup.procs; rmdir {child}")
    said(counting)


def test_programs_that_forbid_it(counting: Guest) -> None:
    """`recommend` names a program that has disabled large folios for itself by prctl()."""
    code = "import ctypes, mmap; ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)"
    code += "; open('/tmp/ready', 'w').close()"
    code += "\nwhile True: m = mmap.mmap(-1, 4 << 20, 34); m.write(bytes(4 << 20)); m.close()"
    must(counting, "rm -f /tmp/ready; cp /usr/bin/python3 /tmp/forbids")
    job = counting.start(f"exec /tmp/forbids -c {shlex.quote(code)}")
    try:
        must(counting, "until [ -e /tmp/ready ]; do sleep 0.1; done")
        found = mmpolicy(counting, "recommend --seconds 10")["findings"]
        assert "forbids" in [each["who"] for each in found if not each["commands"]]
    finally:
        job.stop()


WITH_KINDS = f"/usr/bin/python3 {Path(__file__).with_name('kinds.py')}"
KINDS_MIB = 32
WHOLE = KINDS_MIB << 10
TOP = "top -n 1 --interval 1 --cpu 100 --cgroup /waste"


def having(guest: Guest, kind: str, words: str = "") -> AbstractContextManager[int]:
    """Run a process that has memory of one kind, made by kinds.py, for a `with` block; yield its
    PID.
    """
    return running(guest, f"{WITH_KINDS} {kind} {words}")


def of_kind(guest: Guest, kind: str) -> tuple[float, dict[str, Any]]:
    """Return how many kB of this kind of memory `top` reports for the only process, and the
    process's row.
    """
    (row,) = mmpolicy(guest, TOP)["processes"]
    return row["kinds_kib"][kind], row


def left_alone(guest: Guest, pid: int, cause: str) -> int:
    """Return how many kB `trim` has left as they were for this cause. It must have given nothing
    back, and have exited with 5.
    """
    done = guest.run(f"mmpolicy trim --pid {pid} --json 2>/dev/null")
    (row,) = json.loads(done.out)["processes"]
    assert done.rc == 5, done.out
    found: int = row["left_kib"][cause]
    return found


EMPTY = WHOLE - WHOLE // STEP


def test_pinned_folios(counting: Guest) -> None:
    """`trim` does not split folios that are pinned, by a pipe (all of an area, or each fourth) or
    by io_uring (all), and reports them. It splits the other folios.
    """
    with having(counting, "pinned", "all some io_uring") as pid:
        before = rss(counting, pid)
        (row,) = mmpolicy(counting, f"trim --pid {pid}")["processes"]
        assert abs(row["left_kib"]["pinned"] - 2.25 * EMPTY) < 512
        assert abs(before - rss(counting, pid) - 0.75 * EMPTY) < 1024
        again = counting.run(f"mmpolicy trim --pid {pid} --json 2>/dev/null")
        (row,) = json.loads(again.out)["processes"]
        assert again.rc == 5 and abs(row["left_kib"]["pinned"] - 2.25 * EMPTY) < 512


def test_locked_folios(counting: Guest) -> None:
    """`trim` does not touch memory that is locked by mlock(), MAP_LOCKED or MLOCK_ONFAULT, although
    some of it is empty.
    """
    with having(counting, "locked", "after mapped onfault") as pid:
        kib, _ = of_kind(counting, "locked")
        assert abs(kib - 3 * WHOLE) < 0.3 * WHOLE
        assert 0 <= left_alone(counting, pid, "locked") - 3 * EMPTY <= 2048


def test_shared_memory_in_large_folios(counting: Guest) -> None:
    """`top` also looks at shared memory: a memfd, a tmpfs, and anonymous shared memory. `trim`
    reports that a split of its folios would free nothing.
    """
    must(counting, f"echo always >{THP}/shmem_enabled; mount -t tmpfs -o huge=always x /dev/shm")
    try:
        with having(counting, "shared", "memfd anonymous tmpfs") as pid:
            _, row = of_kind(counting, "shared")
            least = 3 * (WHOLE - 2 * 2048)  # the ends of an area need not be aligned
            assert least - row["error_kib"] <= row["waste_shared_kib"] <= 3 * WHOLE
            assert row["folios"]["2048 kB"] > 0.7
            assert left_alone(counting, pid, "shared") >= least
            orders = mmpolicy(counting, f"map {pid} --summary")["orders"]
            assert orders["9"]["zero"] * 4 >= least - 256
    finally:
        must(counting, f"umount /dev/shm; echo never >{THP}/shmem_enabled")


def test_hugetlb(counting: Guest) -> None:
    """`top` reports the hugetlb pages of a process, whether they are private, shared or in a memfd.
    `thp` shows the hugetlb pool with its free pages.
    """
    must(counting, "echo 32 >/proc/sys/vm/nr_hugepages")
    try:
        with having(counting, "hugetlb", "private shared memfd") as pid:
            kib, row = of_kind(counting, "hugetlb")
            assert (kib, row["not_looked_at_kib"]["hugetlb"]) == (48 << 10, 48 << 10)
            assert left_alone(counting, pid, "hugetlb") == 48 << 10
            assert mmpolicy(counting, "thp")["hugetlb"] == {
                "2048 kB": {"pages": 32, "free": 8, "reserved": 0, "surplus": 0, "mib": 64}
            }
    finally:
        must(counting, "echo 0 >/proc/sys/vm/nr_hugepages")


def test_ksm(counting: Guest) -> None:
    """`top` reports the pages that KSM has merged (all of an area, half of it, or in pairs), and
    does not count them as waste.
    """
    ksm = "/sys/kernel/mm/ksm"
    must(counting, f"echo 0 >{ksm}/sleep_millisecs; echo 20000 >{ksm}/pages_to_scan")
    with having(counting, "ksm", "all half pairs"):
        scans = f"$(($(cat {ksm}/full_scans) + 3))"
        merged = f"echo 1 >{ksm}/run; until [ $(cat {ksm}/full_scans) -ge $n ]; do sleep 0.1; done"
        must(counting, f"n={scans}; {merged}; echo 0 >{ksm}/run")
        kib, row = of_kind(counting, "ksm")
        assert abs(kib - 2.5 * WHOLE) < 0.3 * WHOLE
        assert row["waste_kib"] <= row["error_kib"] + ALONE
        must(counting, f"echo 2 >{ksm}/run")
    must(counting, f"echo 0 >{ksm}/run; echo 20 >{ksm}/sleep_millisecs")


@pytest.mark.parametrize("words", ["dontneed munmap", "small"])
def test_partly_unmapped(counting: Guest, words: str) -> None:
    """If only one page of each folio is mapped, the other pages are in no RSS, but are still
    charged to the cgroup. `top` reports them, and `trim` frees them.
    """
    if words == "small":
        must(counting, f"echo never >{THP}/hugepages-2048kB/enabled")
        must(counting, f"echo always >{THP}/hugepages-64kB/enabled")
    with having(counting, "partly", words):
        lost = 15 * WHOLE // 16 if words == "small" else 2 * 511 * WHOLE // 512
        kib, row = of_kind(counting, "partly_unmapped")
        assert abs(kib - lost) < 0.2 * lost + ALONE
        assert row["rss_kib"] < lost
        current = mmpolicy(counting, "trim --cgroup /waste")["memory_current"]
        assert current["before_kib"] - current["after_kib"] > 0.95 * lost


def test_lazily_freed(counting: Guest) -> None:
    """`top` and `show` report the lazily freed memory of a process, even without the module."""
    with having(counting, "lazily", "all half single") as pid:
        kib, _ = of_kind(counting, "lazily_freed")
        assert abs(kib - 2.5 * WHOLE) < 0.3 * WHOLE
        told = mmpolicy(counting, f"show --pid {pid}")["memory"][0]
        least = told["lazily_freed_kib"]
        assert least - 2048 <= 2.5 * WHOLE <= least + told["not_known_kib"] + 2048


def test_guards_are_not_swapped(counting: Guest) -> None:
    """mmpolicy does not report guard pages (Linux 6.13) as swapped, although pagemap shows them as
    such. Linux 6.12 has no guard pages, and refuses the call.
    """
    if counting.series == "6.12":
        refused = counting.run(f"{WITH_KINDS} guards many")
        assert (refused.rc, refused.out.strip()) == (1, f"madvise 102: errno {errno.EINVAL}")
        return
    with having(counting, "guards", "many few huge") as pid:
        kib, _ = of_kind(counting, "swapped")
        areas = mmpolicy(counting, f"map {pid}")["areas"]
        kinds = [(run["kind"], run["pages"]) for area in areas for run in area["runs"]]
        found = sum(pages for kind, pages in kinds if kind == "g")
        assert found >= WHOLE // 8 + KINDS_MIB  # stacks may have guard pages, too
        assert (kib, "s" in dict(kinds)) == (0, False)


ZSWAP = "/sys/module/zswap/parameters/enabled"


@pytest.mark.parametrize("zswap", ["N", "Y"])
def test_swapped(machines: Machines, zswap: str) -> None:
    """Memory in swap or zswap is reported as such, and does not count as waste. It stays in swap
    while verbs look at the process or collapse its memory.
    """
    guest = machines.get("cloud", mem="2G", cpus=2, swap="1G")
    if zswap == "Y" and guest.series == "6.12":  # Debian's 6.12 has no zswap
        assert guest.run(f"[ -e {ZSWAP} ]").rc == 1
        return
    back_to_boot(guest)
    must(guest, f"echo +memory >/sys/fs/cgroup/cgroup.subtree_control; echo always >{THP}/enabled")
    must(guest, f"[ ! -e {ZSWAP} ] || echo {zswap} >{ZSWAP}; echo 0 >{KHUGEPAGED}/max_ptes_swap")
    with having(guest, "swapped", "all half single one") as pid:
        swap = f"sed -n 's/^VmSwap:[^0-9]*\\([0-9]*\\) kB/\\1/p' /proc/{pid}/status"
        before, swapped_in = int(must(guest, swap)), vmstat(guest, "pswpin")
        zswapped = int(must(guest, f"sed -n 's/^zswapped //p' {CGROUP}/memory.stat") or 0) >> 10
        assert (zswapped > 2 * WHOLE) == (zswap == "Y")
        assert abs(before - 2.5 * WHOLE) < 2048
        kib, row = of_kind(guest, "swapped")
        areas = mmpolicy(guest, f"map {pid}")["areas"]
        runs = [run for area in areas for run in area["runs"] if run["kind"] == "s"]
        assert abs(sum(run["pages"] for run in runs) * 4 - before) < 512
        assert abs(kib - before) < 512 and row["waste_kib"] <= row["error_kib"] + ALONE
        (cgroup,) = mmpolicy(guest, TOP)["cgroups"]
        told = cgroup["kinds_kib"].get("zswapped", 0)
        assert abs(told - zswapped) < 512 and told <= cgroup["kinds_kib"]["swapped"] + 512
        mmpolicy(guest, f"trim --pid {pid} --dry-run")
        assert abs(int(must(guest, swap)) - before) < 512
        kib = int(must(guest, swap))
        left = mmpolicy(guest, f"collapse --pid {pid} {FAST}")["skipped_kib"]
        assert abs(left.get("partly swapped", 0) - (WHOLE - KINDS_MIB // 2 * 4)) < 64, left
        assert int(must(guest, swap)) == kib
        assert vmstat(guest, "pswpin") - swapped_in < 64
    must(guest, f"[ ! -e {ZSWAP} ] || echo N >{ZSWAP}")


LOCKS = f"{TRACING}/events/mmap_lock"
# An awk program for the trace of mmap_lock. It prints the longest time in microseconds for which a
# lock of another process was held, and how often such locks were held. A process takes its own lock
# for writing, so that is left out.
HOLDS = """
{ for (i = 1; i <= NF && $i !~ /^mmap_lock_/; i++); if (i > NF) next; now = $(i - 1) + 0
  mm = $(i + 1) }
$i ~ /acquire_returned/ { if (/write=true/) own[mm] = 1; began[mm] = now }
$i ~ /released/ && mm in began { took = now - began[mm]; delete began[mm]; holds[mm]++
  if (took > most[mm]) most[mm] = took }
END { for (mm in holds) if (!(mm in own)) { sum += holds[mm]; if (most[mm] > all) all = most[mm] }
  printf "%d %d\\n", all * 1e6, sum }
"""
# default limit, in us, of the time for which mmpolicy may hold an mmap_lock, by the guest's clock,
# which counts instructions
HOLD_US = 2000
LOOKS = ("trim --pid {pid} --dry-run", "map {pid} --summary", "top -n 1 --interval 1 --cpu 100")


def longest_hold(guest: Guest, command: str) -> tuple[int, int]:
    """Run a command. Return, by the kernel's trace, for how many us at most it has held the
    mmap_lock of another process, and how often it has held one.
    """
    traced = f"echo $$ >{TRACING}/set_event_pid; exec {command} >/dev/null 2>&1"
    must(guest, f"echo >{TRACING}/trace; echo 1 >{LOCKS}/enable")
    guest.run(f"sh -c {shlex.quote(traced)}", 300)
    must(guest, f"echo 0 >{LOCKS}/enable; echo >{TRACING}/set_event_pid")
    longest, holds = must(guest, f"awk {shlex.quote(HOLDS)} {TRACING}/trace").split()
    return int(longest), int(holds)


@pytest.mark.parametrize(("word", "looks"), [("together", LOOKS), ("spread", LOOKS[:1])])
def test_how_long_looks_hold_a_lock(counting: Guest, word: str, looks: Sequence[str]) -> None:
    """If a program has reserved 64 GiB of address space, the verbs that look at it hold its
    mmap_lock no longer than the limit. A read of smaps holds it for longer.
    """
    must(counting, f"echo 16384 >{TRACING}/buffer_size_kb")
    with having(counting, "reserved", word) as pid:
        control, _ = longest_hold(counting, f"cat /proc/{pid}/smaps_rollup")
        found = {}
        for look in looks:
            found[look] = longest_hold(counting, f"mmpolicy {look.format(pid=pid)}")
    must(counting, f"echo 1408 >{TRACING}/buffer_size_kb")
    print(f"{word}: {found}; smaps_rollup {control} us")
    assert control > HOLD_US
    assert all(holds > 10 and longest <= HOLD_US for longest, holds in found.values()), found


# Starts many processes, each of which writes to some memory, and then sleeps.
INTERVALS = 40
CROWD = """
import os, signal, time
for _ in range({number}):
    if not os.fork():
        memory = bytearray(b"x") * 65536
        signal.pause()
open("/tmp/ready", "w").close()
signal.pause()
"""
COST = """
mmpolicy top --json >/tmp/top &
until [ "$(wc -l </tmp/top)" -ge {first} ]; do sleep 1; done
read -r begin _ </proc/uptime; before=$(cut -d' ' -f14,15 /proc/$!/stat)
until [ "$(wc -l </tmp/top)" -ge {last} ]; do sleep 1; done
read -r end _ </proc/uptime; after=$(cut -d' ' -f14,15 /proc/$!/stat)
kill $!
echo $before $after $begin $end
"""


@pytest.mark.long
def test_top_takes_a_hundredth_of_a_cpu(counting: Guest) -> None:
    """On a host with 2,000 processes, `top` uses a hundredth of a CPU, by the CPU time that the
    kernel has counted for it over several intervals.
    """
    number = 2000
    must(counting, "rm -f /tmp/ready /tmp/top; touch /tmp/top")
    code = shlex.quote(CROWD.format(number=number))
    job = counting.start(f"exec /usr/bin/python3 -c {code}")
    try:
        must(counting, "until [ -e /tmp/ready ]; do sleep 1; done", 300)
        said = must(counting, COST.format(first=2, last=INTERVALS), 600).split()
        frames = [json.loads(line) for line in must(counting, "cat /tmp/top").splitlines()]
    finally:
        job.stop()
        must(counting, "pkill -x python3 || true")
    *ticks, begin, end = map(float, said)
    spent = (sum(ticks[2:]) - sum(ticks[:2])) / 100
    assert end - begin > 4 * INTERVALS
    assert spent < 0.01 * (end - begin)
    assert frames[-1]["processes_seen"] >= number  # it has seen all of them
    looked = [frame["memory_looked_at"] * frame["processes_seen"] for frame in frames]
    assert looked[-1] > 2 * looked[0]


KASAN = [pytest.mark.flavor("traced-kasan"), pytest.mark.full]  # Debian's sources, without hooks


# Arguments of ops: a huge page and smaller folios are inherited, moved, written, swapped out and
# partly freed.
MOVE = "map 640 every 0 640 16 fork move 7 verify every 3 640 32 madvise 0 640 21 verify"
MOVE += " munmap 100 300 fill 100 300 every 100 300 5 verify munmap 0 640"
MOVES = f"{{ops}} {' '.join([MOVE] * 3)}"
KEEPS = "{keep} 1 2 640"  # the verifier, with two threads
HAPPENS = ("thp_split_page", "pswpout", "pswpin")


def again_and_again(command: str) -> str:
    """Return a shell loop that runs a program in the cgroup again and again until /tmp/over exists.
    It prints a line after each success, and ends at the first failure.
    """
    program = command.format(ops=workload("ops"), keep=workload("keep"))
    once = f"(echo 0 >{CGROUP}/cgroup.procs; exec {program})"
    return f"until [ -e /tmp/over ]; do {once} || exit 1; echo; done"


@pytest.mark.parametrize(
    ("flavor", "trims", "times"),
    (
        pytest.param("cloud", 150, 1, marks=pytest.mark.flavor("cloud")),
        pytest.param("debug", 700, 1, marks=[pytest.mark.flavor("debug"), pytest.mark.full]),
        *(pytest.param("traced-kasan", 1000, 10, marks=KASAN, id=f"kasan-{n}") for n in range(10)),
    ),
)
def test_nothing_is_lost(machines: Machines, flavor: str, trims: int, times: int) -> None:
    """No data is lost if `trim` splits folios while processes write to their memory, free, swap,
    inherit, move and unmap it.
    """
    guest = machines.get(flavor, mem="2G", cpus=2, swap="1G")
    back_to_boot(guest)
    must(guest, f"mkdir -p {CGROUP}; echo always >{THP}/enabled; rm -f /tmp/over")
    must(guest, f"echo always >{THP}/hugepages-64kB/enabled")
    before = {key: vmstat(guest, key) for key in HAPPENS}
    jobs = [guest.start(again_and_again(each)) for each in (MOVES, KEEPS)]
    try:
        text = must(guest, f"{SCRIPT} {TRIMMER} /waste {trims} {times}", 60 + trims * 6)
    finally:
        must(guest, "touch /tmp/over")
        ends = [job.wait(300) for job in jobs]
        must(guest, f"until rmdir {CGROUP}; do sleep 0.1; done")
    assert [done.rc for done in ends] == [0, 0], [done.out[-2000:] for done in ends]
    happened = {key: vmstat(guest, key) - n for key, n in before.items()}
    happened |= json.loads(text)
    print(happened, [done.out.count("\n") for done in ends])
    assert happened["writes"] >= trims
    assert all(happened.values()) and all(done.out for done in ends)
