# SPDX-License-Identifier: GPL-2.0
"""The kernel's own selftests of mm and cgroups: each test that passes at stock also passes under
each policy.
"""

from __future__ import annotations

import re

import pytest

from lab.guest import SERIES, Guest
from lab.machine import cache_dir

from .conftest import Machines
from .limits import Passed, lost
from .tools import POINT, THP, TURNS, back_to_boot, must, turn_policies

pytestmark = pytest.mark.full

BUILT = cache_dir() / "selftests" / SERIES
# Programs of the kernel's selftests that Linux 7.3 has and 6.12 lacks.
NEW = ("guard-regions", "merge", "prctl_thp_disable", "process_madv", "rmap", "uffd-wp-mremap")
MM = (
    "compaction_test",
    "cow",
    "droppable",
    "gup_longterm",
    "gup_test -a",
    "gup_test -ct -F 0x1 0 19 0x1000",
    "hugetlb-madvise",
    "khugepaged madvise:anon",  # khugepaged:anon assumes that faults map small pages
    "ksm_functional_tests",
    "ksm_tests -M -p 10",
    "ksm_tests -U",
    "ksm_tests -Z -p 10 -z 0",
    "madv_populate",
    "map_fixed_noreplace",
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
    "transhuge-stress -d 5",
    "uffd-stress anon 20 16",
    "uffd-unit-tests",
    *(NEW if SERIES != "6.12" else ()),
)
CGROUP = (
    "test_core",
    "test_cpuset",
    "test_freezer",
    "test_kill",
    "test_kmem",
    "test_memcontrol",
    "test_pids",
)
# Programs of the selftests that need soft-dirty bits, which only some kernels have.
SOFT_DIRTY = ("cow", "mkdirty", "pagemap_ioctl", "soft-dirty")
# A selftest runs on a pair of kernels, one without the hooks and one with them. In the pair for
# soft-dirty bits, both kernels have them.
CASES = [
    pytest.param(stock, flavor, folder, command, marks=pytest.mark.flavor(stock, flavor))
    for stock, flavor, folder, commands in (
        ("unpatched", "patched", "mm", MM),
        ("unpatched", "patched", "cgroup", CGROUP),
        ("unpatched", "large", "mm", MM),
        ("large-kasan", "large-kasan", "mm", SOFT_DIRTY),
    )
    for command in commands
]
SIZES = "[136]*kB"  # 16, 32, 64, 128 and 1024

# A result line in TAP format. It leaves out the figures in one test name of pagemap_ioctl, which
# differ in each run.
TAP = re.compile(r"^(not ok|ok) \d+ (?:- )?(.*?)(?: \d+ \([\d.]+%\).*)?$")
UFFD = re.compile(r"^Testing (.*)\.\.\. (done|failed|skipped)")
KHUGEPAGED = re.compile(r"^Run test: (.*)$")
VERDICT = re.compile(r"\.\.\. (OK|Fail)$")
COLOURS = re.compile(r"\x1b\[\d+m")
# Tests that expect folios of the sizes that sysfs enables. They do not apply under a policy, as
# anon_order then decides instead.
DECIDED = re.compile(r"^prctl_thp_disable_.*\.always\.|size=(?!4096,).*, private=true")


def passed(output: str) -> Passed:
    """Return the names of the selftests that passed. A name does not count if it was skipped, or
    has also failed.
    """
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
    """Run a program of selftests; return the names of the tests that passed. If the program prints
    no names, return "exit status 0" if that is its exit status.
    """
    must(guest, "echo 32 >/proc/sys/vm/nr_hugepages")
    result = guest.run(f"cd {BUILT / folder} && ./{command} 2>/run/said", 900)
    guest.check()
    assert result.rc not in (126, 127), result.out
    return passed(result.out) or frozenset({"exit status 0"} if result.rc == 0 else ())


def stock_results(guest: Guest, program: tuple[str, str]) -> tuple[Passed, Passed]:
    """Return the selftests that pass at stock with all folio sizes off, and those that also pass
    with the kernel's default sizes.
    """
    small = run(guest, *program)
    assert small, "nothing passes at stock"
    must(guest, f"for file in {THP}/hugepages-{SIZES}/enabled; do echo always >$file; done")
    large = run(guest, *program)
    back_to_boot(guest)
    return small, small & large


@pytest.mark.parametrize(("stock", "flavor", "folder", "command"), CASES)
def test_results_are_those_of_stock(
    machines: Machines, stock: str, flavor: str, folder: str, command: str
) -> None:
    """A test that passes on a kernel without the hooks passes with them, without the module and
    under each policy.

    `never` is compared with all sizes off. The other policies are compared also with the kernel's
    default sizes, as KSM, for example, merges large folios only in part.
    """
    program = folder, command
    needs = {"mem": "4G", "cpus": 4, "nodes": 2, "swap": "1G"}
    small, large = stock_results(machines.get(stock, **needs), program)
    guest = machines.get(flavor, **needs)
    found = {}

    def ours() -> Passed:
        return run(guest, *program)

    def without_module() -> Passed:
        back_to_boot(guest)
        return run(guest, *program)

    if gone := lost(small, ours, lambda: run(machines.get(stock, **needs), *program)):
        found["no module"] = gone
    guest = machines.get(flavor, **needs)
    for turn in range(TURNS):
        turn_policies(guest, turn)
        never = "[never]" in must(guest, f"cat {POINT}/policy")
        wanted = {name for name in (small if never else large) if not DECIDED.search(name)}
        if gone := lost(frozenset(wanted), ours, without_module):
            found[f"turn {turn}"] = gone
        back_to_boot(guest)
    assert not found
