# SPDX-License-Identifier: GPL-2.0
"""The point madv_free on Debian's own kernel, by ftrace.

Tests of test_madv_free are imported, so that they run in this guest.
"""

from __future__ import annotations

import shlex

import pytest
from common import ran, workload
from madv_free import POINT
from vm import Guest

from . import test_madv_free, test_stock_kernel
from .test_madv_free import keep, kept, switching
from .tools import must

pytestmark = pytest.mark.flavor("cloud")
LONG = True

guest = test_stock_kernel.guest

# Has guests of its own with other kernels, takes long, or is about the command.
NOT_HERE = {
    "test_nothing_is_lost_while_switching",
    "test_nothing_is_lost_in_ten_minutes",
    "test_nobody_waits_for_a_process",
    "test_wide_ranges_cost_what_is_there",
    "test_cost",
    "test_rss_that_can_be_trusted",
}
# Its own memory notifier sleeps for 5 s in a call of madvise(), which 313 has loaded.
SLEEPER = """
import ctypes, mmap, sys
area = mmap.mmap(-1, 4 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
area.write(bytes(len(area)))
module = open(sys.argv[1])
assert not ctypes.CDLL(None).syscall(313, module.fileno(), b"ms=5000", 0)
area.madvise(mmap.MADV_FREE)
"""

for name in [name for name in vars(test_madv_free) if name.startswith("test_")]:
    if name not in NOT_HERE:
        globals()[name] = vars(test_madv_free)[name]


def test_who_is_told_of_removals(loaded: Guest) -> None:
    """With a userfaultfd for them, a range is freed lazily whatever the policy."""
    for policy in "stock", "eager":
        must(loaded, f"echo {policy} >{POINT}/policy")
        found = ran(loaded, f"{workload('freecases')} told 4")
        assert found["there"] == found["pages"]


def test_unload_waits_for_who_sleeps(guest: Guest) -> None:
    """In a call of ours, while its memory is freed; its way back is still there."""
    must(guest, f"rmmod mmpolicy 2>/dev/null; modprobe mmpolicy; echo eager >{POINT}/policy")
    module = must(guest, "modinfo -n mmpolicy_slow_notifier").strip()
    job = guest.start(f"exec /usr/bin/python3 -c {shlex.quote(SLEEPER)} {module}")
    sleeps = "grep -qx 0 /sys/module/mmpolicy_slow_notifier/parameters/ms"
    must(guest, f"until {sleeps} 2>/dev/null; do sleep 0.1; done; rmmod mmpolicy")
    done = job.wait()
    assert done.rc == 0, done.out
    must(guest, "rmmod mmpolicy_slow_notifier")
    guest.check()


def test_nothing_is_lost_while_switching_here(loaded: Guest) -> None:
    """As in test_madv_free, without lockdep."""
    with switching(loaded, 8, reload=3):
        kept(loaded.run(keep(8, 2), 400))
