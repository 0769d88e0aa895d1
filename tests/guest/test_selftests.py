# SPDX-License-Identifier: GPL-2.0
"""The kernel's own tests of mm and of cgroups: what passes at stock passes under each policy."""

from __future__ import annotations

import os
import re

import pytest
from machine import cache_dir
from vm import Guest

from .conftest import Machines
from .tools import POINT, THP, TURNS, back_to_boot, must, turn_policies

pytestmark = pytest.mark.full

BUILT = cache_dir() / "selftests" / os.environ.get("MMPOLICY_SERIES", "6.12")
MM = (
    "cow",
    "gup_longterm",
    "khugepaged madvise:anon",  # khugepaged:anon takes it that faults map small pages
    "ksm_functional_tests",
    "ksm_tests -M -p 10",
    "ksm_tests -U",
    "ksm_tests -Z -p 10 -z 0",
    "madv_populate",
    "map_populate",
    "mdwe_test",
    "migration",
    "mkdirty",
    "mlock-random-test",
    "mlock2-tests",
    "mremap_dontunmap",
    "mremap_test",
    "mrelease_test",
    "mseal_test",
    "pagemap_ioctl",
    "split_huge_page_test",
    "uffd-unit-tests",
)
CGROUP = ("test_core", "test_freezer", "test_kill", "test_kmem", "test_memcontrol")
# Needs soft-dirty bits, which only this kernel has.
SOFT_DIRTY = ("cow", "mkdirty", "pagemap_ioctl", "soft-dirty")
CASES = [
    pytest.param(flavor, folder, command, marks=pytest.mark.flavor(flavor))
    for flavor, folder, commands in (
        ("patched", "mm", MM),
        ("patched", "cgroup", CGROUP),
        ("large", "mm", MM),
        ("large-kasan", "mm", SOFT_DIRTY),
    )
    for command in commands
]
SIZES = "[136]*kB"  # 16, 32, 64, 128 and 1024
TRIES = 3  # some depend on how long things take

TAP = re.compile(r"^(not ok|ok) \d+ (?:- )?(.*)$")
UFFD = re.compile(r"^Testing (.*)\.\.\. (done|failed|skipped)")
KHUGEPAGED = re.compile(r"^Run test: (.*)$")
VERDICT = re.compile(r"\.\.\. (OK|Fail)$")
COLOURS = re.compile(r"\x1b\[\d+m")


Passed = frozenset[str]


def passed(output: str) -> Passed:
    """The names of what passed: not what was skipped, nor a name that failed once."""
    good: dict[str, bool] = {}
    test = ""
    for line in COLOURS.sub("", output).splitlines():
        if found := KHUGEPAGED.match(line):
            test = found[1]
        elif test and (found := VERDICT.search(line)):
            good[test] = good.get(test, True) and found[1] == "OK"
        elif (found := UFFD.match(line)) and found[2] != "skipped":
            good[found[1]] = good.get(found[1], True) and found[2] == "done"
        elif (found := TAP.match(line)) and "# SKIP" not in line:
            good[found[2]] = good.get(found[2], True) and found[1] == "ok"
    return frozenset(name for name, fine in good.items() if fine)


def run(guest: Guest, folder: str, command: str) -> Passed:
    """What passes; of a program that names no tests, to end with status 0."""
    must(guest, "echo 32 >/proc/sys/vm/nr_hugepages")
    result = guest.run(f"cd {BUILT / folder} && ./{command} 2>/run/said", 900)
    guest.check()
    assert result.rc not in (126, 127), result.out
    return passed(result.out) or frozenset({"exit status 0"} if result.rc == 0 else ())


def lost(guest: Guest, program: tuple[str, str], wanted: Passed) -> Passed:
    """What never passes in some tries: what depends on how long things take does so at times."""
    for _ in range(TRIES):
        wanted -= run(guest, *program)
        if not wanted:
            break
    return wanted


@pytest.mark.parametrize(("flavor", "folder", "command"), CASES)
def test_results_are_those_of_stock(
    machines: Machines, flavor: str, folder: str, command: str
) -> None:
    """What passes without the module passes with it, under each policy of each point.

    Under never that is with all sizes off, else with the kernel's own on as well: KSM, for
    one, merges large folios only in part.
    """
    guest = machines.get(flavor, mem="4G", cpus=4, nodes=2, swap="1G")
    program = folder, command
    small = run(guest, *program)
    assert small, "nothing passes at stock"
    must(guest, f"for file in {THP}/hugepages-{SIZES}/enabled; do echo always >$file; done")
    large = run(guest, *program)
    back_to_boot(guest)
    found = {}
    for turn in range(TURNS):
        turn_policies(guest, turn)
        never = "[never]" in must(guest, f"cat {POINT}/policy")
        gone = lost(guest, program, small if never else small & large)
        back_to_boot(guest)
        gone &= run(guest, *program) if gone else gone
        if gone:
            found[turn] = sorted(gone)
    assert not found
