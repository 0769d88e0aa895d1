# SPDX-License-Identifier: GPL-2.0
"""`explain` and `recommend` on real processes, up to the effect of the recommended profile."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from lab.guest import Guest
from lab.programs import ran
from mmpolicy.host.files import TRACING

from .tools import POINT, ROOT, must

PAGES = 8192
CGROUP = "/sys/fs/cgroup/mmpolicy-explain"
# A program that waits until /tmp/go exists, and then fills a memory area in order, either
# completely or with gaps.
WORKER = """
import mmap, os, sys, time
area = mmap.mmap(-1, {pages} * 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
open("/tmp/ready", "w").close()
while not os.path.exists("/tmp/go"):
    time.sleep(0.05)
for page in range(0, {pages}, {step}):
    area[page * 4096] = 1
    if page % 1024 == 0:
        time.sleep(0.01)
time.sleep(1000)
"""


@contextmanager
def worker(guest: Guest, step: int, pages: int = PAGES) -> Iterator[int]:
    """Start a program in a cgroup of its own, which fills its memory once /tmp/go exists; yield its
    PID.
    """
    must(guest, f"mkdir -p {CGROUP}; rm -f /tmp/go /tmp/ready")
    code = shlex.quote(WORKER.format(pages=pages, step=step))
    job = guest.start(
        f"sh -c 'echo $$ >{CGROUP}/cgroup.procs; exec /usr/bin/python3 -c \"$0\"' {code}"
    )
    try:
        must(guest, "until [ -e /tmp/ready ]; do sleep 0.1; done")
        yield int(must(guest, f"cat {CGROUP}/cgroup.procs").split()[0])
    finally:
        must(guest, f"echo 1 >{CGROUP}/cgroup.kill")
        job.stop()
        must(guest, f"until rmdir {CGROUP}; do sleep 0.1; done")


def said(guest: Guest, verb: str, pid: int) -> dict[str, Any]:
    """Run a verb of mmpolicy about a process that begins to fill its memory while the verb observes
    it; return the JSON output of the verb.
    """
    begin = f"until [ -d {TRACING} ]; do sleep 0.1; done; sleep 1; touch /tmp/go"
    command = f"({begin}) & mmpolicy {verb} {pid} --seconds 6 --json"
    return ran(guest, command)


def largest(found: dict[str, Any]) -> dict[str, Any]:
    """Return the memory area with the most pages from the output of `explain`."""
    area: dict[str, Any] = max(found["areas"], key=lambda area: int(area["end"] - area["start"]))
    return area


@pytest.mark.parametrize("step", (1, 16))
def test_explain(loaded: Guest, step: int) -> None:
    """`explain` reports for a memory area: its folios, their unused part, and the orders that the
    active policy and the shadow policy have requested.
    """
    must(loaded, f"echo fixed >{POINT}/policy; echo adaptive >{POINT}/shadow")
    with worker(loaded, step) as pid:
        area = largest(said(loaded, "explain", pid))
    assert area["end"] - area["start"] == PAGES * 4096
    assert area["large_pages"] == {"4": PAGES}
    assert abs(area["unused_pages"]["4"] - PAGES * (step - 1) / step) < PAGES / 50
    wanted = area["wanted"]
    assert wanted == {"orders": {"4": PAGES // 16}, "reasons": {"cap": PAGES // 16}}
    assert sum(area["shadow"]["orders"].values()) > PAGES / 16 / 12 * 0.5
    assert must(loaded, "ls /sys/kernel/tracing/instances") == ""


@pytest.mark.parametrize("step", (1, 16))
def test_recommend(loaded: Guest, step: int) -> None:
    """After the manifest that `recommend` prints was applied, a process that fills its memory gets
    large folios, and a process that leaves gaps gets none.
    """
    pages = PAGES * (1 if step == 1 else 4)  # a larger area, as only one fault in twelve is sampled
    must(loaded, f"echo adaptive >{POINT}/shadow")
    with worker(loaded, step, pages) as pid:
        found = said(loaded, "recommend", pid)
    assert found["policy"] == ("adaptive" if step == 1 else "stock"), found
    assert must(loaded, f"ls {ROOT}/profiles") == "create\ndefault\ndelete\n"
    with worker(loaded, step, pages) as pid:
        must(
            loaded, f"printf %s {shlex.quote(found['manifest'])} | mmpolicy apply - --skip-missing"
        )
        must(loaded, f"mmpolicy bind --cgroup /mmpolicy-explain {found['profile']}")
        area = largest(said(loaded, "explain", pid))
        must(loaded, f"echo 1 >{ROOT}/reset")
    large = sum(area["large_pages"].values())
    assert large > 0.9 * pages if step == 1 else large == 0
