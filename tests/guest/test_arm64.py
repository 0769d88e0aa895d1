# SPDX-License-Identifier: GPL-2.0
"""The module on Debian's arm64 kernel for clouds, in emulation: `./dev test --arch arm64`.

That command also runs the tests of other files, except those marked amd64.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.anon_order import Case, take_sample
from lab import guest as vm
from lab.counting import Results, counting_guest
from lab.guest import SERIES, Guest, cache_dir
from lab.machine import TREE, Kernel
from lab.machine import accelerator as usual
from lab.programs import workload

from .conftest import Machines
from .test_stock_cost import LITTLE_SAVED, SETS
from .test_stock_kernel import HOOKED
from .test_storm import storm
from .tools import (
    POINT,
    ROOT,
    THP,
    TOP,
    TRACING,
    back_to_boot,
    folios,
    must,
    ops_command,
    switch,
    touch,
)

FLAVOR = "cloud-arm64"
CHECKED = "traced-kasan-arm64"  # a kernel with lockdep, KASAN and other checkers
LARGER_PAGES = "16k-arm64"  # a kernel with pages of 16 kB
pytestmark = pytest.mark.flavor(FLAVOR)
SECONDS = 30.0  # rough duration of each test, for the schedule

DENSE = "map 4096 touch 0 4096 folios 0 4096"
FREE = "map 4096 touch 0 4096 madvise 0 4096 8 touch 0 4096"  # MADV_FREE
# a debugfs file of the test module module/tests/folded.c, which counts folded page-table entries
ENTRIES = "/sys/kernel/debug/mmpolicy_folded"
OTHERS = (("thp_gfp", "light"), ("compact", "budget"), ("madv_free", "cap"))


@pytest.fixture
def guest(machines: Machines) -> Guest:
    """Return a guest for arm64 with Debian's kernel, two CPUs and swap on zram; the module is not
    loaded.
    """
    guest = machines.get(FLAVOR, mem="2G", cpus=2, swap="1G")
    back_to_boot(guest)
    return guest


@pytest.mark.parametrize("order", [2, 3, 4, 5, 6, 7, 8, 9])
def test_fixed_gives_its_order(loaded: Guest, order: int) -> None:
    switch(loaded, "fixed", max_order=order)
    assert folios(loaded, DENSE) == [{order: 4096}]
    must(loaded, f"echo 1 >{ROOT}/reset")
    assert folios(loaded, DENSE) == [{0: 4096}]
    assert "mmp" not in must(loaded, HOOKED)


def test_never_overrules_sysfs(loaded: Guest) -> None:
    must(loaded, f"echo always >{THP}/hugepages-64kB/enabled")
    assert folios(loaded, DENSE) == [{4: 4096}]
    switch(loaded, "never")
    assert folios(loaded, DENSE) == [{0: 4096}]
    must(loaded, "rmmod mmpolicy")
    assert folios(loaded, DENSE) == [{4: 4096}]


def test_adaptive(loaded: Guest) -> None:
    """On arm64, `adaptive` takes few faults on dense access, and wastes no memory on
    sparse access.
    """
    never = {pattern: touch(loaded, pattern, 16) for pattern in ("forward", "every_64k")}
    switch(loaded, "adaptive", max_order=4)
    found = {pattern: touch(loaded, pattern, 16) for pattern in ("forward", "every_64k")}
    assert found["forward"]["faults"] * 10 < never["forward"]["faults"]
    assert found["every_64k"]["kb"] <= never["every_64k"]["kb"] * 1.02


def test_untried_build(guest: Guest) -> None:
    """On a kernel build that was not tested, the module refuses policies of anon_order with the
    reason, while other hook points work.
    """
    must(guest, "modprobe mmpolicy untested=0")
    assert guest.run(f"echo adaptive >{POINT}/policy").rc
    assert "untested=1" in must(guest, f"cat {ROOT}/points/anon_order 2>/dev/null; dmesg | tail -5")
    must(guest, f"echo light >{ROOT}/profiles/default/thp_gfp/policy")
    assert "mmp" in must(guest, HOOKED)


def test_fingerprint(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fingerprint of a kernel is the same on each CPU model, at each boot, and while functions
    are traced. Otherwise a host would say after a boot that its kernel is another build.
    """
    found, models = list[str](), list[str]()

    def accelerator(*args: Any) -> str:
        return re.sub("-cpu .*", f"-cpu {models[-1]}", usual(*args))

    monkeypatch.setattr(vm, "accelerator", accelerator)
    for model in "max,pauth-impdef=on", "neoverse-n1", "cortex-a72":
        machines.end()
        models.append(model)
        guest = machines.get(FLAVOR)
        trace = f"echo function >{TRACING}/current_tracer"
        for before in "true", trace:
            must(guest, f"{before}; modprobe mmpolicy")
            found += [must(guest, f"cat {ROOT}/kernel_fingerprint; rmmod mmpolicy").strip()]
        must(guest, f"echo nop >{TRACING}/current_tracer")
    machines.end()
    assert len(found) == 6 and len(set(found)) == 1 and len(found[0]) > 8, found


@pytest.mark.flavor(LARGER_PAGES)
def test_larger_pages(machines: Machines) -> None:
    """On a kernel with 16 kB pages, the module refuses to load, with the reason; `mmpolicy map`
    works without it, and counts these pages.
    """
    guest = machines.get(LARGER_PAGES, mem="2G", cpus=2)
    assert must(guest, "python3 -c 'import mmap; print(mmap.PAGESIZE)'") == "16384\n"
    assert guest.run("modprobe mmpolicy untested=1").rc
    assert "the pages of this kernel have 16 kB, and the module needs pages of 4 kB" in must(
        guest, "dmesg"
    )
    assert not must(guest, "grep ^mmpolicy /proc/modules || true")
    doctor = guest.run("mmpolicy doctor").out
    assert "the pages of this kernel have 16 kB, and the module needs pages of 4 kB" in doctor
    shown = must(guest, f"{workload('ops')} map 64 touch 0 64 sh 'mmpolicy map --json $PPID'")
    found = json.loads(shown[shown.index("{") :])
    assert found["page_bytes"] == 16384
    assert [{"page": 0, "pages": 16, "kind": "0", "zero": False}] in [
        area["runs"] for area in found["areas"]
    ]  # 64 pages of 4 kB are 16 pages of this kernel


@pytest.mark.parametrize("policy", ["fixed", "adaptive", "never", "vma_size"])
def test_unload_under_load(loaded: Guest, policy: str) -> None:
    """The module can be unloaded while each hook point has a policy and processes fault and free
    memory. It leaves nothing behind.
    """
    for point, name in (("anon_order", policy), *OTHERS):
        must(loaded, f"echo {name} >{ROOT}/profiles/default/{point}/policy")
    again = f"{ops_command(DENSE)} && {ops_command(FREE)}"
    job = loaded.start(f"rm -f /run/over; until [ -e /run/over ]; do {again} || exit; done")
    must(loaded, "rmmod mmpolicy; touch /run/over")
    assert not job.wait().rc
    assert folios(loaded, DENSE) == [{0: 4096}]
    assert "mmp" not in must(loaded, HOOKED)


@pytest.mark.parametrize(
    ("flavor", "rounds"),
    [
        pytest.param(FLAVOR, 10, marks=pytest.mark.flavor(FLAVOR)),
        pytest.param(FLAVOR, 200, marks=[pytest.mark.flavor(FLAVOR), pytest.mark.full]),
        pytest.param(CHECKED, 10, marks=pytest.mark.flavor(CHECKED)),
    ],
)
def test_storm(machines: Machines, flavor: str, rounds: int) -> None:
    """Threads fault while the policy changes again and again, and while the module is loaded and
    unloaded; no data may be wrong.
    """
    guest = machines.get(flavor, mem="2G", cpus=2, swap="1G")
    back_to_boot(guest)
    storm(guest, rounds, 1, 4, hog_mib=0)


def test_what_policies_cost(all_machines: Machines) -> None:
    """Policies cost at most a given number of instructions more than the kernel with all sizes off,
    measured in one guest.

    Where `adaptive` saves little, it costs at most 1.04 times what it costs on amd64.
    """
    all_machines.end()
    results = Results("arm64", {})
    forward = Case("forward", 64, 5)
    little = list(LITTLE_SAVED)
    with counting_guest(FLAVOR, "1G", append="init_on_alloc=0") as guest:
        for name in ("off", "never", "neighbour", "adaptive"):
            back_to_boot(guest)
            load = f"modprobe mmpolicy untested=1; echo a >{ROOT}/profiles/create"
            must(guest, f"{load}; mkdir -p {TOP}/a; {SETS[name]}")
            for case in {"never": [forward], "neighbour": [forward]}.get(name, [forward, *little]):
                results.samples += take_sample(guest, name, case)

    def cost(name: str, case: Case, key: str = "ticks") -> float:
        return results.ratio(name, "off", case.name(), key)

    assert cost("never", forward) < 1.03
    assert cost("neighbour", forward) < 1.025
    assert cost("adaptive", forward) < 0.2
    for case in little:
        assert cost("adaptive", case) < LITTLE_SAVED[case] * 1.04, case
        assert cost("adaptive", case, "kb") < 1.02, case


@pytest.fixture
def folded(machines: Machines) -> Guest:
    """Return a guest with two NUMA nodes, swap, the module, and the test module mmpolicy_folded.
    That looks for folded entries (PTE_CONT) in page tables while kernel threads change them.
    """
    guest = machines.get(FLAVOR, mem="2G", cpus=2, nodes=2, swap="1G")
    back_to_boot(guest)
    must(guest, "modprobe mmpolicy untested=1; rmmod mmpolicy_folded; modprobe mmpolicy_folded")
    must(guest, "echo 1 >/proc/sys/kernel/numa_balancing")
    numa = "/sys/kernel/debug/sched/numa_balancing"
    must(guest, f"echo 10 >{numa}/scan_period_min_ms; echo 20 >{numa}/scan_period_max_ms")
    must(guest, f"cd {THP}/khugepaged; echo 16 >pages_to_scan; echo 200 >scan_sleep_millisecs")
    return guest


def looked(guest: Guest, looks: int) -> dict[str, int]:
    """Run the workload fold, in which mmpolicy_folded looks at page tables; return what it has
    counted.
    """
    must(guest, f"cat {ENTRIES}")
    must(guest, f"{workload('fold')} {looks} 1")
    words = must(guest, f"cat {ENTRIES}").split()
    return {name: int(number) for name, number in zip(words[::2], words[1::2], strict=True)}


def test_witnesses_are_not_folded(folded: Guest) -> None:
    """Under `adaptive`, the first and the last page of a folio (its witnesses) are never in a
    folded block, in which the CPU would set one accessed bit for all pages.
    """
    switch(folded, "adaptive", max_order=4)
    found = looked(folded, 1500)
    assert found["blocks"] > 1_000_000 and found["witnesses"] > 10_000
    assert not found["wrong"], found


def test_others_are_folded(folded: Guest) -> None:
    """At stock and under `fixed`, the pages of folios are in folded blocks, and mmpolicy_folded
    counts nothing wrong.
    """
    must(folded, f"echo always >{THP}/hugepages-64kB/enabled")
    stock = looked(folded, 50)
    switch(folded, "fixed", max_order=4)
    for found in (stock, looked(folded, 50)):
        assert found["folded"] > found["blocks"] * 0.5 and not found["wrong"], found


def test_folded_witnesses_are_seen(folded: Guest) -> None:
    """With plant=1, mmpolicy_folded itself makes the error that it looks for: it clears accessed
    bits in folded blocks. It must report each of them as wrong.
    """
    must(folded, "echo 1 >/sys/module/mmpolicy_folded/parameters/plant")
    switch(folded, "fixed", max_order=4)
    assert looked(folded, 50)["wrong"] > 100


# Variants of the module that find out in other ways which pages are used. Each is a list of edits:
# file, text, and its replacement.
FOLD, TABLE, FAULT = "arch/arm64/fold.c", "arch/arm64/table.h", "provider/fault.c"
Edit = tuple[str, str, str]
FOLDED: list[Edit] = [
    (FOLD, "	if (!((answer &", "	return -1;\n	if (!((answer &"),
    (FOLD, "	if (!mmp_is_asked(", "	return false;\n	if (!mmp_is_asked("),
]
RAW = [*FOLDED, (TABLE, "if (!pte_cont(READ_ONCE(*ptep)))", "")]
UNFOLD = "".join(
    f"if (pte_cont(READ_ONCE(pte[{page}]))) __contpte_try_unfold(vmf->vma->vm_mm, vmf->address"
    f" + {page} * PAGE_SIZE, pte + {page}, READ_ONCE(pte[{page}]));"
    for page in ("first", "last")
)
WAYS: dict[str, list[Edit]] = {
    "mapped unfolded": [],
    "unfolded afterwards": [*FOLDED, (FAULT, "	if (first)\n", f"{UNFOLD}	if (first)\n")],
    "folded, entries read raw": RAW,
    "as on amd64": [*RAW, (TABLE, "READ_ONCE(*(pte))\n", "ptep_get_lockless(pte)\n")],
}
# kB that the sparsely used half of the pattern dense_sparse really uses, out of 64 MB
USED_KB = 2048


@pytest.fixture(scope="module")
def built() -> Iterator[dict[str, Path]]:
    """Build the module once for each variant; yield the folder of each build, by the name of the
    variant.
    """
    place = cache_dir() / "ways"
    shutil.rmtree(place, ignore_errors=True)
    sources = Kernel.of_flavor(SERIES, FLAVOR).image.parent / "src"
    found = {}
    for way, edits in WAYS.items():
        shutil.copytree(TREE / "module", place / "m/module", dirs_exist_ok=True)
        shutil.copy(TREE / "Kbuild", place / "m")
        for name, old, new in edits:
            file = place / "m/module" / name
            assert old in file.read_text()
            file.write_text(file.read_text().replace(old, new, 1))
        make = ["make", "-C", str(sources.resolve()), f"M={place}/m", "MMPOLICY_BENCH=m", "modules"]
        subprocess.run(make, check=True, capture_output=True)
        found[way] = place / way.replace(" ", "-").replace(",", "")
        found[way].mkdir()
        shutil.copy(place / "m/module/mmpolicy.ko", found[way])
    yield found
    shutil.rmtree(place)


@pytest.mark.full
@pytest.mark.skipif(SERIES != "6.12", reason="the compiler of later kernels is in another root")
def test_ways_to_see_use(all_machines: Machines, built: dict[str, Path]) -> None:
    """The module maps the first and the last block of a folio unfolded. So no witness (first or
    last page) is in a folded block, and no memory is wasted. Of the variants that reach this, it
    costs least.

    Memory in a guest says nothing about variants that read folded entries as they are: the emulator
    ignores PTE_CONT and sets the accessed bit of one page, where hardware may set that of any of
    the 16.
    """
    all_machines.end()
    results = Results("ways", {})
    wrong = {}
    dense, change = Case("forward", 64, 5), Case("dense_sparse", 64, 3)
    with counting_guest(FLAVOR, "1G", append="init_on_alloc=0") as guest:
        results.samples += take_sample(guest, "off", dense)
        for way, folder in built.items():
            for order in (3, 4, 6, 9) if way == "mapped unfolded" else (4,):
                back_to_boot(guest)
                must(guest, "rmmod mmpolicy_folded; modprobe mmpolicy_folded")
                must(guest, f"insmod {folder}/mmpolicy.ko untested=1")
                must(guest, f"echo {order} >{POINT}/adaptive/max_order")
                must(guest, f"echo adaptive >{POINT}/policy")
                name = f"{way}, {order}"
                for case in dense, change:
                    results.samples += take_sample(guest, name, case)
                wrong[name] = looked(guest, 20)["wrong"]

    def kb(name: str) -> float:
        return results.value(name, "dense_sparse.2 64M", "kb")

    for name in wrong:
        cost = results.ratio(name, "off", dense.name(), "ticks")
        print(f"{name}: {cost:.3f} of sizes off, {kb(name):.0f} kB, {wrong[name]} wrong")
    for order in (3, 4, 6, 9):
        assert not wrong[f"mapped unfolded, {order}"]
    assert kb("mapped unfolded, 4") < USED_KB * 1.1
    assert not wrong["unfolded afterwards, 4"]
    assert kb("unfolded afterwards, 4") < USED_KB * 1.1
    for name in "folded, entries read raw, 4", "as on amd64, 4":
        assert wrong[name]
    assert kb("as on amd64, 4") == USED_KB * 16

    def ticks(way: str) -> float:
        return results.value(f"{way}, 4", dense.name(), "ticks")

    assert ticks("mapped unfolded") < ticks("as on amd64") * 1.01
    assert ticks("mapped unfolded") < ticks("unfolded afterwards") * 0.97
