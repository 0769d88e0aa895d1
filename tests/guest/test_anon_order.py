# SPDX-License-Identifier: GPL-2.0
"""Policies of the hook point anon_order: which folios a process really gets, and that its data is
right.
"""

from __future__ import annotations

import pytest

from lab.guest import Guest

from .tools import POINT, ROOT, THP, counters, folios, must, switch, touch

DENSE = "map 4096 touch 0 4096 folios 0 4096"
MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_PAGEOUT, MADV_COLLAPSE = 14, 15, 21, 25
ALL_SIZES = f"for file in {THP}/hugepages-*/enabled {THP}/enabled; do echo always >$file; done"
ANON_HUGE = "grep AnonHugePages /proc/$PPID/smaps_rollup >&2"


# Sizes


@pytest.mark.parametrize("order", range(2, 10))
def test_fixed_gives_its_order(loaded: Guest, order: int) -> None:
    """Under `fixed`, each folio of a densely used area is as large as max_order, and none is
    larger.
    """
    switch(loaded, "fixed", max_order=order)
    assert folios(loaded, DENSE) == [{order: 4096}]
    assert counters(loaded)[f"requested_order_{order}"] >= 4096 >> order


def test_what_was_mapped_is_counted(loaded: Guest) -> None:
    """The counter of allocated folios of a size rises by at least the folios in the area that the
    program has touched. The rest of the program gets some, too.
    """
    switch(loaded, "fixed", max_order=5)
    before = counters(loaded)["allocated_order_5"]
    assert folios(loaded, DENSE) == [{5: 4096}]
    assert counters(loaded)["allocated_order_5"] - before >= 4096 >> 5


@pytest.mark.parametrize("cap", (0, 1))
def test_fixed_without_large_orders(loaded: Guest, cap: int) -> None:
    """Under `fixed` with max_order 1 or 0, a process gets no large folio, because the kernel makes
    no anonymous folios of order 1.
    """
    switch(loaded, "fixed", max_order=cap)
    assert folios(loaded, DENSE) == [{0: 4096}]


def test_fixed_takes_what_fits(loaded: Guest) -> None:
    """Under `fixed`, if a folio of max_order does not fit into the VMA, the fault gets the next
    smaller size that fits.
    """
    switch(loaded, "fixed", max_order=9)
    assert folios(loaded, "map 788 touch 0 788 folios 0 788") == [{9: 512, 8: 256, 4: 16, 2: 4}]


def test_fixed_maps_pmds(loaded: Guest) -> None:
    """A folio of order 9 is mapped by one PMD entry, not by 512 entries of a page table."""
    switch(loaded, "fixed", max_order=9)
    before = int(must(loaded, "sed -n 's/^thp_fault_alloc //p' /proc/vmstat"))
    assert folios(loaded, DENSE) == [{9: 4096}]
    assert int(must(loaded, "sed -n 's/^thp_fault_alloc //p' /proc/vmstat")) - before >= 8


def test_never_overrules_sysfs(loaded: Guest) -> None:
    """Under `never`, each folio has order 0, even if sysfs enables all folio sizes for all
    processes.
    """
    must(loaded, ALL_SIZES)
    assert folios(loaded, DENSE) == [{9: 4096}]
    switch(loaded, "never")
    assert folios(loaded, DENSE) == [{0: 4096}]


def test_a_write_to_the_huge_zero_page(loaded: Guest) -> None:
    """Under `never`, a write to the huge zero page gets a single page.

    A read fault maps 2 MB of zeroes at once. At stock, a write then gets a single page on 6.12, and
    a huge page on later kernels. Without hooks, the module is not asked about this write.
    """
    must(loaded, f"echo always >{THP}/enabled; echo 1 >{THP}/use_zero_page")
    count = "sed -n 's/^thp_zero_page_alloc //p' /proc/vmstat"
    words = "map 512 verify sh touch 0 1 folios 0 512 verify"
    (stock,) = folios(loaded, words, ":")
    assert int(must(loaded, count)) > 0
    huge = stock.get(9, 0) == 512
    assert huge == (not loaded.series.startswith("6.12"))
    asked = must(loaded, f"cat {ROOT}/provider") == "hooks\n"
    (found,) = folios(loaded, words, f"echo never >{POINT}/policy")
    assert (found.get(9, 0) == 512) == (huge and not asked)
    must(loaded, f"echo stock >{POINT}/policy; echo 9 >{POINT}/fixed/max_order")
    assert folios(loaded, words, f"echo fixed >{POINT}/policy") == [stock]


def test_stock_obeys_sysfs(loaded: Guest) -> None:
    """While the module is loaded with all policies at stock, sysfs alone decides about folios."""
    assert folios(loaded, DENSE) == [{0: 4096}]
    must(loaded, f"echo always >{THP}/hugepages-64kB/enabled")
    assert folios(loaded, DENSE) == [{4: 4096}]


def test_nothing_is_offered_after_unload(loaded: Guest) -> None:
    """After the module is unloaded, the folio sizes that its policy needed are no longer enabled,
    and a program gets single pages again.
    """
    switch(loaded, "fixed", max_order=4)
    assert folios(loaded, DENSE) == [{4: 4096}]
    must(loaded, "rmmod mmpolicy")
    assert folios(loaded, DENSE) == [{0: 4096}]


def test_change_in_mid_run(loaded: Guest) -> None:
    """A running program gets the folios of a newly chosen policy from its next fault on."""
    switch(loaded, "fixed", max_order=4)
    words = "map 4096 touch 0 512 sh touch 512 1024 sh touch 1024 4096"
    found = folios(
        loaded,
        f"{words} folios 0 512 folios 512 1024 folios 1024 4096 verify",
        f"echo never >{POINT}/policy",
        f"echo 3 >{POINT}/fixed/max_order; echo fixed >{POINT}/policy",
    )
    assert found == [{4: 512}, {0: 512}, {3: 3072}]


# Memory for which a program forbids or requests huge pages, so that the policy does not decide
# about it


@pytest.mark.parametrize("policy", ("fixed", "adaptive"))
@pytest.mark.parametrize(
    "veto", (f"madvise 0 4096 {MADV_NOHUGEPAGE}", "thp_disable 1", "userfaultfd 0 4096")
)
def test_vetoes_win(loaded: Guest, policy: str, veto: str) -> None:
    """Under each policy, memory gets order 0 if its program excludes it from huge pages by
    MADV_NOHUGEPAGE, prctl() or userfaultfd.
    """
    switch(loaded, policy, max_order=9)
    assert folios(loaded, f"map 4096 {veto} touch 0 4096 folios 0 4096 verify") == [{0: 4096}]


def test_madv_hugepage_stays_stock(loaded: Guest) -> None:
    """A policy decides about memory with MADV_HUGEPAGE only if override_madvise is 1. Otherwise the
    memory is treated as at stock.
    """
    asked = f"map 4096 madvise 0 4096 {MADV_HUGEPAGE} touch 0 4096 folios 0 4096 verify"
    switch(loaded, "never")
    assert folios(loaded, asked) == [{9: 4096}]
    must(loaded, f"echo 1 >{POINT}/override_madvise")
    assert folios(loaded, asked) == [{0: 4096}]
    switch(loaded, "fixed", max_order=4)
    assert folios(loaded, asked) == [{4: 4096}]


@pytest.mark.parametrize("policy", ("never", "fixed"))
def test_madv_collapse_works(loaded: Guest, policy: str) -> None:
    """MADV_COLLAPSE works under each policy, because the application itself asks for it."""
    switch(loaded, policy)
    words = f"map 1024 touch 0 1024 madvise 0 1024 {MADV_COLLAPSE} folios 0 1024 verify"
    assert folios(loaded, words) == [{9: 1024}]


# The other policies


def test_vma_size(loaded: Guest) -> None:
    """Under `vma_size`, the order of folios grows with the size of the VMA, up to max_order."""
    switch(loaded, "vma_size", max_order=9, min_folios=64)
    for pages, order in ((128, 0), (256, 2), (1024, 4), (8192, 7), (32768, 9)):
        found = folios(loaded, f"map {pages} touch 0 {pages} folios 0 {pages}")
        assert found == [{order: pages}], f"{pages} pages"
    must(loaded, f"echo 4 >{POINT}/vma_size/max_order")
    assert folios(loaded, "map 32768 touch 0 4096 folios 0 4096") == [{4: 4096}]


@pytest.mark.parametrize("pattern", ("forward", "backward", "streams", "threads", "brk", "stack"))
@pytest.mark.parametrize("cap", (4, 9))
def test_adaptive_on_dense_access(loaded: Guest, pattern: str, cap: int) -> None:
    """Under `adaptive` on dense access, most memory is in folios of max_order, and no folio is
    larger.

    The stack is an exception: in the first round it grows page by page, so no large folio fits, and
    if its page tables remain, later rounds get no PMD mapping. A heap grows in small steps, too.
    """
    switch(loaded, "adaptive", max_order=cap, min_folios=1)
    pages = touch(loaded, pattern, 64, rounds=2)["pages"]
    assert max(int(order) for order in pages if order != "none") <= cap
    if pattern != "brk":
        largest = {str(cap), "8"} if (pattern, cap) == ("stack", 9) else {str(cap)}
        assert sum(pages.get(order, 0) for order in largest) > 0.7 * 16384


def test_adaptive_grows_with_the_process(loaded: Guest) -> None:
    """Under `adaptive`, a folio above 64 kB is given only if the process already has min_folios
    times its size in memory; for 2 MB, a quarter of that is enough. So of 256 MB that are filled
    in order, 90 % are in 2 MB pages: all but the first 16 MB and the probe blocks.
    """
    switch(loaded, "adaptive", max_order=9, min_folios=32)
    pages = touch(loaded, "forward", 256)["pages"]
    assert all(pages[str(order)] >= 30 << order for order in range(4, 7))
    blocks = pages["9"] // 512
    assert 0.9 * 128 <= blocks < 128 - 8 - 2, blocks


@pytest.mark.parametrize("pattern", ("every_32k", "every_64k", "every_128k"))
def test_adaptive_on_sparse_access(loaded: Guest, pattern: str) -> None:
    """Under `adaptive` on sparse access, only the pages that the program touches are allocated."""
    switch(loaded, "adaptive", max_order=9)
    found = touch(loaded, pattern, 64)
    assert found["pages"].keys() == {"0", "none"}
    assert found["pages"]["0"] == found["touched"]


def test_adaptive_probes_huge_blocks(loaded: Guest) -> None:
    """Under `adaptive`, every n-th block of 2 MB (n is the knob probe_blocks) gets smaller folios.
    Their accessed bits show how much of the block is used.
    """
    blocks = {}
    for every in (0, 2, 16):
        switch(loaded, "adaptive", max_order=9, min_folios=1, probe_blocks=every)
        blocks[every] = touch(loaded, "forward", 128)["pages"]["9"] // 512
    assert blocks[0] > blocks[16] > blocks[2] > 16


# khugepaged

FAST = (
    f"echo always >{THP}/enabled; cd {THP}/khugepaged; echo 10 >scan_sleep_millisecs;"
    " echo 10 >alloc_sleep_millisecs; echo 100000 >pages_to_scan"
)
SCANS = f"""
end=$(($(cat {THP}/khugepaged/full_scans) + 5))
until [ $(cat {THP}/khugepaged/full_scans) -ge $end ]; do sleep 0.05; done
"""


@pytest.mark.parametrize("policy", ("never", "fixed"))
def test_khugepaged_obeys(loaded: Guest, policy: str) -> None:
    """Under each policy, khugepaged makes only folios that a fault could get, too; at stock it
    makes more.

    The test touches an area first, so that khugepaged has the process in its list.
    """
    must(loaded, FAST)
    words = "map 512 touch 0 512 sh map 4096 touch 0 4096 sh folios 0 4096 sh folios 0 4096 verify"
    begin = f"echo {policy} >{POINT}/policy"
    allow = f"echo 9 >{POINT}/fixed/max_order; echo fixed >{POINT}/policy"
    end = allow if policy == "fixed" else f"echo stock >{POINT}/policy"
    refused, collapsed = folios(loaded, words, begin, SCANS, f"{end}; {SCANS}")
    assert 9 not in refused
    assert collapsed == {9: 4096}
    assert counters(loaded)["collapse_refused"] > 0


POPULATE_READ = 22


def test_khugepaged_collapses_what_was_used(loaded: Guest) -> None:
    """Under `adaptive` with max_order=4, khugepaged collapses a range only if the program has used
    all but 16 of its pages.

    In the second half of the area, each range has 17 pages that were not touched, or that were only
    read and so map the zero page. At stock, khugepaged collapses these ranges, too.
    """
    must(loaded, f"{FAST}; echo 511 >{THP}/khugepaged/max_ptes_none")
    switch(loaded, "adaptive", max_order=4)
    holes = f"touch 2048 2543 touch 2560 3055 madvise 3100 3117 {POPULATE_READ}"
    holes += " touch 3072 3100 touch 3117 3584"
    both = "folios 0 2048 folios 2048 3584"
    words = f"map 4096 touch 0 496 touch 512 2048 {holes} sh {both} sh {both} verify"
    end = f"echo stock >{POINT}/policy"
    used, rest, used_later, rest_later = folios(loaded, words, SCANS, f"{end}; {SCANS}")
    assert used == used_later == {9: 2048}
    assert 9 not in rest
    assert rest_later == {9: 1536}


@pytest.mark.parametrize(("policy", "cap"), (("never", 0), ("fixed", 2), ("adaptive", 9)))
def test_khugepaged_leaves_small_what_was_left_small(loaded: Guest, policy: str, cap: int) -> None:
    """If a program uses one page in each 64 kB, khugepaged collapses nothing, and the folios stay
    as the policy has made them.

    All sizes are enabled, and max_ptes_none is at its maximum, so that at stock, one page in 2 MB
    is enough for a folio of PMD size.
    """
    must(loaded, f"{FAST}; {ALL_SIZES}; echo 511 >{THP}/khugepaged/max_ptes_none")
    if cap:
        must(loaded, f"echo {cap} >{POINT}/{policy}/max_order")
    touches = " ".join(f"touch {page} {page + 1}" for page in range(1024, 4096, 16))
    area = "folios 1024 4096"
    words = f"map 4096 touch 0 512 sh {touches} {area} sh {area} sh {area}"
    begin, end = f"echo {policy} >{POINT}/policy", f"echo stock >{POINT}/policy"
    made, later, stock = folios(loaded, words, begin, SCANS, f"{end}; {SCANS}")
    assert set(made) == {cap if policy == "fixed" else 0}
    assert later == made
    assert stock == {9: 3072}


# Memory pressure

FILL = "mkdir -p /fill && mount -t tmpfs -o size=90% fill /fill && head -c 1300M /dev/zero >/fill/f"


@pytest.mark.parametrize("policy", ("fixed", "adaptive"))
def test_pressure_lowers_the_order(loaded: Guest, policy: str) -> None:
    """While the host has little available memory, policies give smaller folios, and large ones
    again afterwards.
    """
    # The area has 128 MB, as `adaptive` gives huge pages only to processes that have 16 MB.
    words = "map 32768 touch 0 32768 folios 0 32768"
    must(loaded, f"echo 50 >{POINT}/min_available_percent")
    switch(loaded, policy, max_order=9)
    try:
        assert max(folios(loaded, words)[0]) == 9
        must(loaded, f"{FILL} && sleep 1")
        before = counters(loaded)["lowered"]
        assert 0 < max(folios(loaded, words)[0]) < 9
        assert counters(loaded)["lowered"] > before
    finally:
        loaded.run("umount /fill")
    must(loaded, "sleep 1")
    assert max(folios(loaded, words)[0]) == 9


def test_no_pressure_limit(loaded: Guest) -> None:
    """With min_available_percent=0, policies give large folios even if the host is short
    of memory.
    """
    must(loaded, f"echo 0 >{POINT}/min_available_percent")
    switch(loaded, "fixed", max_order=9)
    try:
        must(loaded, f"{FILL} && sleep 1")
        assert folios(loaded, DENSE) == [{9: 4096}]
        assert counters(loaded)["lowered"] == 0
    finally:
        loaded.run("umount /fill")


# Swap

OUT = f"madvise 0 4096 {MADV_PAGEOUT}"


@pytest.mark.parametrize("order", (2, 4, 8))
def test_swap_in_obeys_the_cap(loaded: Guest, order: int) -> None:
    """Under `fixed`, pages come back from zram with their content, in folios of max_order, whatever
    size the folios had that were swapped out.

    The swap area is new, so the pages get swap slots that are contiguous and aligned, as larger
    folios need them.
    """
    must(loaded, "swapoff /dev/zram0 && swapon /dev/zram0")
    switch(loaded, "fixed", max_order=4)
    cap = f"echo {order} >{POINT}/fixed/max_order"
    words = f"map 4096 touch 0 4096 {OUT} folios 0 4096 sh verify folios 0 4096"
    gone, back = folios(loaded, words, cap)
    assert gone == {}
    assert back == {order: 4096}


def test_never_swaps_in_single_pages(loaded: Guest) -> None:
    """Under `never`, pages come back from swap as single pages, even if they went out in large
    folios and sysfs enables large sizes.
    """
    must(loaded, ALL_SIZES)
    switch(loaded, "fixed", max_order=4)
    words = f"map 4096 touch 0 4096 {OUT} sh verify folios 0 4096"
    assert folios(loaded, words, f"echo never >{POINT}/policy") == [{0: 4096}]


# Operations that move, share, split or drop pages, as arguments of the workload ops

SCENES = {
    "fork": "map 2048 touch 0 2048 fork verify every 0 2048 3 fork verify",
    "mremap": "map 2048 touch 0 2048 move 512 verify touch 0 2048 move 3 verify fork verify",
    "mremap on": "map 2048 touch 0 700 move 5 touch 700 2048 verify move 0 verify",
    "mprotect": "map 2048 touch 0 1000 mprotect 37 900 1 verify mprotect 37 900 3"
    " touch 500 2048 verify",
    "split": "map 2048 touch 0 2048 munmap 100 300 verify munmap 5 6 verify fork verify",
    "merge": "map 2048 touch 0 2048 munmap 100 300 fill 100 300 touch 100 300 verify"
    " munmap 511 513 fill 511 513 down 400 600 verify fork verify",
    "dontneed": "map 2048 touch 0 2048 madvise 33 1111 4 verify down 0 2048 verify",
    "mlock": "map 2048 touch 0 10 mlock 0 2048 verify touch 0 2048 verify",
    "swap": f"map 2048 touch 0 2048 madvise 0 2048 {MADV_PAGEOUT} fork verify"
    f" madvise 100 900 {MADV_PAGEOUT} munmap 200 203 every 203 2048 5 verify",
    "collapse": f"map 2048 every 0 2048 2 madvise 0 2048 {MADV_COLLAPSE} verify munmap 3 4 verify",
    "read first": "map 2048 verify touch 0 2048 verify",
}
SETTINGS = (("fixed", 2), ("fixed", 9), ("adaptive", 4), ("adaptive", 9), ("vma_size", 9))


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES)
def test_data_survives(loaded: Guest, scene: str) -> None:
    """Under each policy, every page holds the data that the program has written to it."""
    for policy, cap in SETTINGS:
        switch(loaded, policy, max_order=cap)
        folios(loaded, scene)


def test_neighbours_may_differ(loaded: Guest) -> None:
    """If a 2 MB block has a hole, the rest of the block gets folios that end at the hole, and the
    next block still gets a folio of 2 MB.
    """
    switch(loaded, "fixed", max_order=9)
    words = "map 1024 touch 300 301 folios 0 1024 verify"
    assert folios(loaded, words) == [{9: 512}]
    words = "map 1024 munmap 300 301 touch 0 300 touch 301 1024 folios 0 512 folios 512 1024 verify"
    first, second = folios(loaded, words)
    assert second == {9: 512}
    assert sum(first.values()) == 511 and max(first) == 8
