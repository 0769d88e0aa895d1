# SPDX-License-Identifier: GPL-2.0
"""Memory out of reach of policies:

real processes of each kind, each with a similar one in reach.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mmpolicy.host.files import Tree
from mmpolicy.memory.holds import Holds
from mmpolicy.memory.reach import (
    ENABLED,
    SHMEM,
    Reach,
    _could,
    enabled,
    excepted,
    reach,
    reach_of,
    some_size_for_all,
)
from mmpolicy.memory.space import Vma

from .fakes import THP, FakeTree
from .sparse import make_sparse, make_thp
from .test_map import START

MIB = 64
BEGIN = f"""
import ctypes, mmap, os, sys, tempfile
libc = ctypes.CDLL(None, use_errno=True)
def private(advice=None):
    found = mmap.mmap(-1, {MIB} << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if advice is not None:
        found.madvise(advice)
    return touch(found)
def touch(memory):
    for page in range(0, len(memory), 4096):
        memory[page] = 1
    return memory
def shared(name):
    file = os.memfd_create(name)
    os.ftruncate(file, {MIB} << 20)
    return touch(mmap.mmap(file, {MIB} << 20))
def of_file():
    file = tempfile.TemporaryFile()
    file.write(bytes({3 * MIB} << 20))
    file.flush()
    found = mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ)
    sum(found[page] for page in range(0, len(found), 4096))
    return found
def watched():
    memory = private()
    number = {{"x86_64": 323, "aarch64": 282}}[os.uname().machine]
    fd = libc.syscall(number, os.O_CLOEXEC | 1)
    api = (ctypes.c_uint64 * 3)(0xAA, 0, 0)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    which = (ctypes.c_uint64 * 4)(start, {MIB} << 20, 1, 0)
    assert fd >= 0 and not libc.ioctl(fd, 0xC018AA3F, api)
    assert not libc.ioctl(fd, 0xC020AA00, which)
    return memory
def named(name):
    open("/proc/self/comm", "w").write(name)
def forbid():
    assert not libc.prctl(41, 1, 0, 0, 0)
"""
END = "\nprint('ready', flush=True)\nsys.stdin.read()\n"

Start = Callable[..., int]


@pytest.fixture
def start() -> Iterator[Start]:
    """Return a function that starts a program, and returns its pid once it has its memory."""
    running = []

    def begin(text: str, **environment: str) -> int:
        words = [sys.executable, "-c", BEGIN + text + END]
        program = subprocess.Popen(
            words, env={"PATH": "/usr/bin:/bin", **environment},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        running.append(program)
        assert program.stdout and program.stdout.readline() == "ready\n"
        return program.pid

    yield begin
    for each in running:
        each.communicate()


def seen(pid: int, **more: Any) -> Reach:
    """Return the findings without a limit for one read, as no other process waits here."""
    return reach(Tree(), pid, Holds(Tree(), limit_s=60.0), **more)


# A program, the obstacle to policies, the cause named, and a part of the way out.
OUT_OF_REACH = [
    ("m = private(); forbid()", {}, "prctl", "", "find out what calls prctl()"),
    ("m = private(); forbid()", {"MIMALLOC_ALLOW_THP": "0"}, "prctl", "MIMALLOC_ALLOW_THP=0",
     "unset MIMALLOC_ALLOW_THP"),
    ("named('redis-server'); m = private(); forbid()", {}, "prctl",
     "`disable-thp yes`, the default of redis", "`disable-thp no` in its configuration"),
    ("forbid()\nif os.fork(): os.wait()\nelse: m = private()", {}, "prctl", "inherited from python",
     "find out why this parent process forbids them"),
    ("m = private(mmap.MADV_NOHUGEPAGE)", {}, "nohugepage", "", "an option of the program"),
    ("m = private(mmap.MADV_NOHUGEPAGE)", {"GODEBUG": "madvdontneed=1,disablethp=1"},
     "nohugepage", "GODEBUG=disablethp=1", "remove disablethp=1 from GODEBUG"),
    ("m = private(mmap.MADV_NOHUGEPAGE)", {"_RJEM_MALLOC_CONF": "background_thread:true,thp:never"},
     "nohugepage", "thp:never in its environment (jemalloc)",
     "remove thp:never from the environment"),
    ("m = private(mmap.MADV_HUGEPAGE)", {}, "advised", "", "override_madvise=1"),
    ("m = private(mmap.MADV_HUGEPAGE)", {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}, "advised",
     "glibc.malloc.hugetlb=1",
     "remove this setting from the environment, or set override_madvise=1"),
    ("named('qemu-system-x86'); m = private(mmap.MADV_HUGEPAGE)", {}, "advised", "QEMU asks",
     "override_madvise=1"),
    ("m = shared('heap')", {}, "shared", "", f"echo advise >{SHMEM}"),
    ("m = shared('java_heap')", {}, "shared", "ZGC has its heap in a memfd", "-XX:+UseG1GC"),
    ("named('postgres'); m = shared('x')", {}, "shared", "shared_buffers", "huge_pages=on"),
    ("m = of_file()", {}, "files", "", "the page cache"),
    ("m = watched()", {}, "userfaultfd", "", "migration"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "environment", "key", "likely", "out"), OUT_OF_REACH)
def test_what_is_out_of_reach(
    start: Start, text: str, environment: dict[str, str], key: str, likely: str, out: str
) -> None:
    """Memory out of reach is reported with its share, the cause as far as known, and the remedy."""
    pid = start(text, **environment)
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    found = seen(int(children[0]) if children else pid)
    (barrier,) = found.barriers
    assert (barrier.key, found.unknown) == (key, ())
    assert likely in barrier.likely if likely else barrier.likely == ""
    assert out in barrier.way_out
    assert barrier.kib >= 0.9 * (MIB << 10) and 0.5 < barrier.share <= 1.0
    (line,) = found.lines()
    assert line.startswith(f"{found.name} (pid {found.pid}): no policy for large folios reaches ")


# Python 3.14 obeys this variable, as it has its own mimalloc, though it does not use it.
IDLE = {} if sys.version_info >= (3, 14) else {"MIMALLOC_ALLOW_THP": "0"}
# Programs like those above without the cause, or with a mere sign of it.
REACHED = [
    ("m = private()", {}),
    ("m = private()", IDLE | {"GODEBUG": "disablethp=1"}),
    ("named('redis-server'); m = private()", {}),
    ("m = private(mmap.MADV_SEQUENTIAL)", {}),
    ("m = private(); few = mmap.mmap(-1, 8 << 20); few.madvise(15); touch(few)", {}),
    ("m = private(); few = mmap.mmap(-1, 8 << 20, 34); few.madvise(14); touch(few)", {}),
    ("named('postgres'); m = private()", {}),
    ("named('qemu-system-x86'); m = private()", {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}),
    ("m = private(); n = private(); o = private(); p = private(); f = of_file()", {}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "environment"), REACHED)
def test_what_can_be_reached(start: Start, text: str, environment: dict[str, str]) -> None:
    """For a program that policies reach, no finding is reported, and no question stays open."""
    found = seen(start(text, **environment))
    assert (found.barriers, found.unknown, found.barred) == ((), (), 0.0)
    assert list(found.lines()) == []


def test_who_else_decides_for_what_asks(start: Start) -> None:
    """A policy that overrides advice reaches advised memory, and so do the kernel's own sizes."""
    pid = start("m = private(mmap.MADV_HUGEPAGE)")
    assert [each.key for each in seen(pid).barriers] == ["advised"]
    assert seen(pid, override=True).barriers == seen(pid, own_sizes=True).barriers == ()
    assert seen(pid, into_kib=0).barriers == ()


def test_what_cannot_be_found_out_is_said_to_be_so(start: Start) -> None:
    """If reading smaps would stall the program, the question is reported as open."""
    pid = start("m = private(mmap.MADV_NOHUGEPAGE)")
    found = reach(Tree(), pid, Holds(Tree(), limit_s=1e-9))
    assert found.barriers == ()
    (text,) = found.unknown
    assert text.startswith("the madvise() flags of ")
    why = (
        f"as reading /proc/{pid}/smaps would block mmap() of the process for more than 0.000001 ms"
    )
    then = f"where that does no harm, grep VmFlags /proc/{pid}/smaps shows them"
    assert why in text
    assert then in text


def test_many_processes(start: Start) -> None:
    """Of many processes, a number of the largest is checked; one that has exited, and kernel
    threads, are left out.
    """
    large, small = start("m = private(); n = private(); forbid()"), start("forbid()")
    found = reach_of(Tree(), [2, 999_999_999, small, large], 1, into_kib=0)
    assert [each.pid for each in found] == [large]
    assert [each.pid for each in reach_of(Tree(), [small, large], 9)] == [large, small]


@pytest.fixture
def host(tree: FakeTree) -> FakeTree:
    """Return a host with a process of 256 MiB."""
    make_thp(tree)
    make_sparse(tree, 10, "app", 65536, 16, "/system.slice/app.service")
    return tree


def status(tree: FakeTree, anon: int, shared: int = 0, hugetlb: int = 0, file: int = 0) -> None:
    """Set the kernel's counters of the process, in MiB."""
    lines = {
        "VmRSS": anon + shared + file, "RssAnon": anon, "RssFile": file, "RssShmem": shared,
        "HugetlbPages": hugetlb,
    }  # fmt: skip
    text = "\n".join(f"{name}:\t{mib << 10} kB" for name, mib in lines.items())
    tree.put("/proc/10/status", f"Name:\tapp\n{text}\nTHP_enabled:\t1")


@pytest.mark.parametrize(
    ("sizes", "key", "share"),
    [
        ({"anon": 100, "hugetlb": 100}, "hugetlb", 0.5),
        ({"anon": 100, "shared": 300}, "shared", 0.75),
        ({"anon": 10, "file": 90}, "files", 0.9),
        ({"anon": 400, "hugetlb": 31}, "", 0.0),
        ({"anon": 289, "shared": 32}, "", 0.0),
        ({"anon": 100, "file": 90}, "", 0.0),
        ({"anon": 1, "file": 60}, "", 0.0),
    ],
)
def test_kinds_of_memory(host: FakeTree, sizes: dict[str, int], key: str, share: float) -> None:
    """Kinds of memory are reported from a tenth of the process and 32 MiB on; mapped files from
    half of it and 64 MiB on.
    """
    status(host, **sizes)
    found = reach(host, 10)
    assert ([each.key for each in found.barriers], found.barred) == ([key] * bool(key), share)


def test_a_small_program_that_forbids_them(host: FakeTree) -> None:
    """No policy reaches a program that forbids large folios, though most of its memory is files."""
    status(host, anon=3, file=6)
    text = host.read("/proc/10/status")
    host.put("/proc/10/status", text.replace("THP_enabled:\t1", "THP_enabled:\t0"))
    found = reach(host, 10)
    assert ([each.key for each in found.barriers], found.barred) == (["prctl"], 1.0)


@pytest.mark.parametrize(
    ("unit", "key", "told"),
    [
        ("MemoryTHP=disable", "prctl", "MemoryTHP=disable of app.service"),
        ("MemoryTHP=madvise", "except_advised", "MemoryTHP=madvise of app.service"),
        ("MemoryTHP=disable\nMemoryTHP=inherit", "prctl", ""),
        ("", "except_advised", ""),
    ],
)
def test_services_that_systemd_forbids_it_to(
    host: FakeTree, unit: str, key: str, told: str
) -> None:
    """If systemd 260 forbids large folios by a setting, the files of the unit show it."""
    host.put("/usr/lib/systemd/system/app.service", "[Service]\nMemoryTHP=system")
    host.put("/etc/systemd/system/app.service.d/50-thp.conf", f"[Service]\n{unit}")
    status(host, 256)
    host.put(f"{THP}/hugepages-64kB/enabled", "[always] inherit madvise never")
    if key == "prctl":
        host.put("/proc/10/status", host.read("/proc/10/status")[:-1] + "0")
    else:
        smaps = host.read("/proc/10/smaps")
        host.put("/proc/10/smaps", smaps.replace("VmFlags", "THPeligible:    0\nVmFlags"))
    (barrier,) = reach(host, 10, Holds(host, limit_s=60.0)).barriers
    assert (barrier.key, barrier.likely) == (key, told)
    assert ("systemctl edit app.service" in barrier.way_out) == bool(told)
    assert excepted(host, "/app.service") == (told.startswith("MemoryTHP=madvise"))


def test_what_the_kernel_does_not_tell(host: FakeTree) -> None:
    """PR_THP_DISABLE_EXCEPT_ADVISED is invisible in files of the kernel if no size is always."""
    status(host, 256)
    smaps = host.read("/proc/10/smaps")
    host.put("/proc/10/smaps", smaps.replace("VmFlags", "THPeligible:    0\nVmFlags"))
    assert (some_size_for_all(host), reach(host, 10, Holds(host, 60.0)).barriers) == (0, ())
    host.put(f"{THP}/hugepages-64kB/enabled", "[always] inherit madvise never")
    assert some_size_for_all(host) == 64 << 10
    host.put("/proc/10/smaps", smaps.replace("VmFlags", "THPeligible:    1\nVmFlags"))
    assert reach(host, 10, Holds(host, 60.0)).barriers == ()


@pytest.mark.parametrize(
    ("top", "huge", "size"),
    [("always", "inherit", 2 << 20), ("always", "never", 0), ("madvise", "always", 2 << 20),
     ("never", "inherit", 0)],
)  # fmt: skip
def test_sizes_that_everybody_gets(tree: FakeTree, top: str, huge: str, size: int) -> None:
    tree.put(ENABLED, f"x [{top}]")
    tree.put(f"{THP}/hugepages-2048kB/enabled", f"[{huge}]")
    assert (enabled(tree), some_size_for_all(tree)) == (top, size)


@pytest.mark.parametrize(
    ("area", "could"),
    [
        (Vma(START, START + (64 << 10), "rw-p", 0, ""), True),
        (Vma(START + 4096, START + (68 << 10), "rw-p", 0, ""), False),
        (Vma(START, START + (60 << 10), "rw-p", 0, ""), False),
        (Vma(START, START + (1 << 20), "r--p", 0, ""), False),
        (Vma(START, START + (1 << 20), "rw-p", 0, "[stack]"), False),
    ],
)
def test_where_a_folio_fits(area: Vma, could: bool) -> None:
    assert _could(area, 64 << 10) is could


@pytest.mark.parametrize(
    ("file", "told"),
    [
        ("/usr/lib/libmimalloc.so.2.2.4", "mimalloc 2.2.4 asks"),
        ("/usr/lib/libmimalloc-secure.so.3.4", "mimalloc 3.4 asks"),
        ("/usr/lib/libmimalloc.so", "mimalloc asks"),
        ("/usr/lib/libmimalloc.so.2.1", ""),
        ("/v/site-packages/pyarrow/libarrow.so.2100", "pyarrow 21: the mimalloc"),
        ("/v/site-packages/pyarrow/libarrow.so.1700", ""),
        ("/a/node_modules/@swc/core-linux-x64-gnu/swc.linux-x64-gnu.node", "@swc/core"),
        ("/v/numpy/_core/_multiarray_umath.cpython-313-x86_64-linux-gnu.so", "numpy asks"),
        ("/usr/lib/libc.so.6", ""),
    ],
)
def test_libraries_that_ask(host: FakeTree, file: str, told: str) -> None:
    status(host, 256)
    host.put("/proc/10/smaps", host.read("/proc/10/smaps").replace("rd wr", "rd wr hg"))
    line = f"7f0000000000-7f0000001000 r-xp 00000000 08:01 99 {file}"
    host.put("/proc/10/maps", f"{host.read('/proc/10/maps')}\n{line}")
    (barrier,) = reach(host, 10, Holds(host, limit_s=60.0)).barriers
    assert (barrier.key, told in barrier.likely) == ("advised", True)
    assert bool(barrier.likely) == bool(told)


def test_redis_on_a_host_as_debian_installs_it(host: FakeTree) -> None:
    host.put("/proc/10/comm", "redis-server")
    status(host, 256)
    host.put("/proc/10/status", host.read("/proc/10/status")[:-1] + "0")
    host.put(ENABLED, "[always] madvise never")
    (line,) = reach(host, 10).lines()
    assert f"while {ENABLED} is `always`; remedy: echo madvise >{ENABLED}, or" in line
    host.put(ENABLED, "always [madvise] never")
    assert "was `always` when it started; remedy: restart it" in reach(host, 10).barriers[0].text
