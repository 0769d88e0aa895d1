# SPDX-License-Identifier: GPL-2.0
"""`try` looks at seven kinds of service on Debian's own kernel with its own `enabled=always`.

Redis, PostgreSQL and Python are programs of Debian, and Go is real if ./dev has fetched it. The
expected answers follow from faults and memory, as CPU time of an emulated guest says nothing.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bench.programs import NOBODY, POSTGRES
from lab.guest import Guest
from lab.machine import cache_dir
from lab.programs import must

from .conftest import Machines
from .system import dev
from .tools import KHUGEPAGED, TOP, with_defaults

pytestmark = [
    pytest.mark.flavor("cloud"),
    pytest.mark.full,
    pytest.mark.amd64("runs programs of this machine"),
]
SECONDS = 300.0  # rough duration of each test, for the schedule
GROUP = f"{TOP}/service"
READY = "/run/ready"
# A client connects for each query, so each query has its own process of the server.
DATABASE = "/run/database"
SERVER = (
    f"{NOBODY} {POSTGRES}/postgres -D {DATABASE}/data -k {DATABASE} -c listen_addresses= "
    "-c huge_pages=off -c shared_buffers=8MB"
)
QUERY = (
    "SET work_mem = '16MB'; SELECT count(*) FROM (SELECT i "
    "FROM generate_series(1, 100000) i ORDER BY i DESC OFFSET 1) sorted"
)
CLIENT = f"{POSTGRES}/psql -q -h {DATABASE} -U nobody -d postgres -c {shlex.quote(QUERY)}"
SHORT = """
import mmap, time
heap = mmap.mmap(-1, 128 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, 128 << 20, 8192):
    heap[at] = 1
open("/run/ready", "w")
while True:
    area = mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for at in range(0, 1 << 20, 4096):
        area[at] = 1
    area.close()
    time.sleep(0.05)
"""
PYTHON = """
import time
kept = {number: bytes([number % 251]) * 200 for number in range(100000)}
open("/run/ready", "w")
while True:
    for number in range(500):
        kept[number * 7 % 100000] = bytes([number % 251]) * 200
    time.sleep(0.05)
"""
# Run a command without large folios.
FORBIDS = """
import ctypes, os, sys
assert ctypes.CDLL(None).prctl(41, 1, 0, 0, 0) == 0  # PR_SET_THP_DISABLE
os.execvp(sys.argv[1], sys.argv[1:])
"""
GO = """
package main

import (
	"bytes"
	"os"
	"time"
)

func main() {
	kept := make([][]byte, 32768)
	for number := range kept {
		kept[number] = bytes.Repeat([]byte{7}, 1024)
	}
	os.WriteFile("/run/ready", nil, 0o600)
	for turn := 0; ; turn++ {
		for number := 0; number < 16; number++ {
			kept[(turn*16+number*977)%len(kept)] = bytes.Repeat([]byte{7}, 1024)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
"""


@pytest.fixture
def guest(machines: Machines) -> Guest:
    """Return a guest with Debian's defaults for huge pages, and an empty cgroup for a service."""
    return with_defaults(machines.get("cloud", mem="2G", cpus=2, swap="1G"), GROUP)


@contextmanager
def service(guest: Guest, argv: list[str], ready: str = f"[ -e {READY} ]") -> Iterator[None]:
    """Run a program as a service in the cgroup, for a `with` block that begins when the program is
    ready.
    """
    must(guest, f"rm -f {READY} /tmp/ready /tmp/over; echo max >{GROUP}/memory.max")
    inside = f"cd /; echo $$ >{GROUP}/cgroup.procs; exec {shlex.join(argv)}"
    job = guest.start(f"exec sh -c {shlex.quote(inside)}")
    try:
        must(guest, f"until {ready}; do sleep 0.2; done", timeout=120)
        yield
    finally:
        must(guest, f"echo 1 >{GROUP}/cgroup.kill")
        job.wait()


def answer(guest: Guest) -> tuple[str, list[str], Any]:
    """Return the verdict of `try` about the service, the names of the candidates that are possible
    here, and the figures.
    """
    words = f"mmpolicy try --cgroup {GROUP} --seconds 4 --dry-run --json 2>/dev/null"
    found = json.loads(must(guest, words))
    names = [each["name"] for each in found["candidates"] if not each["why_not"]]
    return found["verdict"], names, found["seen"]


def python(text: str) -> list[str]:
    """Return the words that run this Python code."""
    return ["python3", "-c", text]


def rss_kib(guest: Guest) -> int:
    """Return the private anonymous memory of the service in KiB."""
    pids = f"$(cat {GROUP}/cgroup.procs)"
    lines = must(guest, f"for pid in {pids}; do grep ^Anonymous: /proc/$pid/smaps_rollup; done")
    return sum(int(line.split()[1]) for line in lines.splitlines())


def test_redis_after_a_burst(guest: Guest) -> None:
    """After redis was filled and emptied, it has little memory to give back, because its allocator,
    jemalloc, returns freed pages by itself.
    """
    (base,) = dev("root")
    redis = f"chroot {base} redis-cli -s /tmp/redis"
    words = ["redis-server", "--save", "", "--port", "0", "--unixsocket", "/tmp/redis"]
    words += ["--disable-thp", "no", "--enable-debug-command", "local", "--dir", "/tmp"]
    with service(guest, ["chroot", str(base), *words], f"[ -S {base}/tmp/redis ]"):
        must(guest, f"{redis} debug populate 60000 key 1000")
        full = rss_kib(guest)
        must(guest, f"{redis} flushall")
        must(guest, f"until [ $({redis} dbsize) = 0 ]; do sleep 0.5; done")
        verdict, names, seen = answer(guest)
        gone = full - rss_kib(guest)
        # The rest of the freed memory is kept by jemalloc, or given back by it while `try` observes
        # redis.
        assert full > 60 << 10 and (verdict == "not worth it" or names[0] == "trim")
        assert (verdict == "not worth it") == (seen["waste_kib"] - seen["error_kib"] < 32 << 10)
        assert gone > 0


def test_postgresql_sorts(guest: Guest) -> None:
    """If a database starts a process for each query, `try` counts the faults of its cgroup,
    including those of processes that have ended. Where large folios are forbidden to it, no
    candidate can help.
    """
    must(guest, f"rm -rf {DATABASE}; install -d -o 65534 -g 65534 {DATABASE}")
    must(guest, f"{NOBODY} {POSTGRES}/initdb -D {DATABASE}/data -U nobody -A trust --no-sync", 300)
    for argv, expected in (
        (shlex.split(SERVER), ("worth trying", ["thp-sizes"])),
        (python(FORBIDS) + shlex.split(SERVER), ("out of reach", [])),
    ):
        with service(guest, argv, f"{CLIENT} >/dev/null 2>&1"):
            client = guest.start(f"while {CLIENT} >/dev/null; do sleep 0.05; done")
            verdict, names, seen = answer(guest)
        client.wait()
        assert (verdict, names[:1]) == expected, (verdict, names, seen)
        assert seen["faults"] > 100


def test_what_is_well(guest: Guest, tmp_path: Path) -> None:
    """`try` proposes nothing for a Python service, a Go service and an idle program, as none would
    gain by it.
    """
    programs = [python(PYTHON), python(f"open({READY!r}, 'w'); import time; time.sleep(1e9)")]
    go = cache_dir() / "go/usr/lib/go-1.24"
    if go.is_dir():
        (tmp_path / "service.go").write_text(GO)
        program = cache_dir() / "workloads" / f"go-service-{os.getpid()}"
        environment = {
            **os.environ,
            "GOROOT": str(go),
            "GOCACHE": str(tmp_path),
            "CGO_ENABLED": "0",
        }
        argv = [str(go / "bin/go"), "build", "-o", str(program), str(tmp_path / "service.go")]
        subprocess.run(argv, check=True, env=environment)
        programs.append([str(program)])
    for argv in programs:
        with service(guest, argv):
            assert answer(guest)[:2] == ("not worth it", [])
    if go.is_dir():
        program.unlink()


def test_short_of_memory(guest: Guest) -> None:
    """If a service without swap is above memory.high, it waits for memory, and `try` answers "not
    now", although half of the service's huge pages is empty.
    """
    # otherwise reclaim would split the huge pages with empty parts
    must(guest, f"echo 511 >{KHUGEPAGED}/max_ptes_none")
    with service(guest, python(SHORT)):
        verdict, names, _ = answer(guest)
        assert (verdict, "trim" in names) == ("worth trying", True)
        must(guest, f"cd {GROUP}; echo 0 >memory.swap.max; echo 128M >memory.high")
        verdict, names, seen = answer(guest)
        must(guest, f"cd {GROUP}; echo max >memory.high; echo max >memory.swap.max")
    assert (verdict, "trim" in names) == ("not now", True), (verdict, names, seen)
    assert seen["stalled"] > 10
    assert "wait for memory" in seen["not_now"]
