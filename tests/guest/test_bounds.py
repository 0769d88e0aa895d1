# SPDX-License-Identifier: GPL-2.0
"""The kernel memory that the module uses grows with its profiles and bindings, but not with the
number of changes of policies.
"""

from __future__ import annotations

import pytest

from lab.guest import Guest

from .tools import ROOT, must

PROFILES = 100
BINDINGS = 1000
# the most kB of kernel memory that a profile and a binding may take, as docs/security.md says
PROFILE_KB, BINDING_KB = 20, 0.1
NOISE_KB = 1000  # kB that the kernel itself may allocate or free during the measurement
CGROUPS = "/sys/fs/cgroup/many"
# Prints how many kB the kernel uses for itself, after it has freed what it frees later, and without
# empty slabs.
USED = """
sleep 0.3; sync; echo 3 >/proc/sys/vm/drop_caches; sleep 0.3
for slab in /sys/kernel/slab/*; do echo 1 >$slab/shrink 2>&-; done
awk '/^(SUnreclaim|Percpu|VmallocUsed):/ { n += $2 } END { print n }' /proc/meminfo
"""
CREATE = f"for i in $(seq {PROFILES}); do echo p$i >{ROOT}/profiles/create || exit; done"
BIND = f"""
i=0
for id in $(stat -c %i {CGROUPS}/*/); do
    i=$((i % {PROFILES} + 1)); echo $id >{ROOT}/profiles/p$i/cgroups || exit
done
"""
ALL_AND_BACK = f"{CREATE}\n{BIND}\necho 1 >{ROOT}/reset"
SWITCH = f"""
end=$(($(date +%s) + seconds)) n=0
until [ $n -ge 300 ] && [ $(date +%s) -ge $end ]; do
    for policy in never fixed adaptive vma_size stock; do
        n=$((n + 1)); cd {ROOT}/profiles/p$((n % {PROFILES} + 1)) || exit
        echo $policy >anon_order/policy; echo $((n % 9)) >anon_order/fixed/max_order
        echo cap >madv_free/policy; echo stock >madv_free/policy
    done
done
echo $n
"""


def used(guest: Guest) -> int:
    """Return the memory that the kernel uses for itself, in kB."""
    return int(must(guest, USED))


@pytest.mark.parametrize(
    "seconds", (0, pytest.param(3600, marks=[pytest.mark.full, pytest.mark.flavor("patched")]))
)
def test_memory(loaded: Guest, seconds: int) -> None:
    """The memory of the module grows with the number of its profiles and bindings, but not with the
    number of changes of policies. In the end, all of it is freed.
    """
    must(loaded, f"mkdir -p {CGROUPS} && cd {CGROUPS} && mkdir $(seq {BINDINGS})")
    # All of it runs once before the measurement, so that the slabs that it needs exist already.
    must(loaded, ALL_AND_BACK)
    at_first = used(loaded)
    must(loaded, CREATE)
    with_profiles = used(loaded)
    must(loaded, BIND)
    with_bindings = used(loaded)
    switches = int(must(loaded, f"seconds={seconds}{SWITCH}", timeout=seconds * 4 + 600))
    after_switching = used(loaded)
    assert must(loaded, f"cat {ROOT}/profiles/*/cgroups | wc -l").strip() == str(BINDINGS)
    must(loaded, f"echo 1 >{ROOT}/reset")
    for _ in range(4):
        must(loaded, ALL_AND_BACK)
    in_the_end = used(loaded)
    print(switches, at_first, with_profiles, with_bindings, after_switching, in_the_end)
    must(loaded, f"find {CGROUPS} -depth -type d -exec rmdir {{}} +")
    assert with_profiles - at_first < PROFILES * PROFILE_KB
    assert with_bindings - with_profiles < BINDINGS * BINDING_KB + NOISE_KB / 2
    assert after_switching - with_bindings < NOISE_KB
    assert in_the_end - at_first < NOISE_KB
