# SPDX-License-Identifier: GPL-2.0
"""Each memory allocation of the module fails once. It causes an error or has no effect; after an
error the old state stays, and no memory leaks.
"""

from __future__ import annotations

import pytest

from lab.guest import Guest
from lab.programs import ran, workload

from .conftest import Machines
from .tools import ROOT, THP, must

PROFILES, EXPERIMENT = f"{ROOT}/profiles", f"{ROOT}/experiment"
# Commands after which processes at stock get 64 kB folios, and those in the profiles a and b single
# pages.
SET_UP = f"""
echo always >{THP}/hugepages-64kB/enabled
modprobe mmpolicy
for name in a b; do
    echo $name >{PROFILES}/create && echo never >{PROFILES}/$name/anon_order/policy || exit
done
"""
ARMS = f"echo a >{EXPERIMENT}/control && echo b >{EXPERIMENT}/treatment"
CGROUP = "mkdir -p /sys/fs/cgroup/nth && id=$(stat -c %i /sys/fs/cgroup/nth)"
# For each change, by its name: commands to run before, the change as arguments of the workload nth,
# and the change that undoes it.
CASES = {
    "load": ("rmmod mmpolicy", "load anon_order=never", "unload -"),
    "unload": (
        "rmmod mmpolicy; modprobe mmpolicy anon_order=never",
        "unload -",
        "load anon_order=never",
    ),
    "create": (":", f"write {PROFILES}/create=x", f"write {PROFILES}/delete=x"),
    "delete": (
        f"echo x >{PROFILES}/create",
        f"write {PROFILES}/delete=x",
        f"write {PROFILES}/create=x",
    ),
    "knob": (
        ":",
        f"write {PROFILES}/a/anon_order/fixed/max_order=6",
        f"write {PROFILES}/a/anon_order/fixed/max_order=4",
    ),
    "bind a process": (":", f"write {PROFILES}/a/pids=$$", f"write {PROFILES}/a/pids=-$$"),
    "bind a cgroup": (
        f"{CGROUP}; echo $$ >/sys/fs/cgroup/nth/cgroup.procs",
        f"write {PROFILES}/a/cgroups=$id",
        f"write {PROFILES}/a/cgroups=-$id",
    ),
    "fork": (f"echo $$ >{PROFILES}/a/pids", "fork -", "nothing -"),
    "choose an arm": (
        ":",
        f"write {EXPERIMENT}/control=a",
        f"write {EXPERIMENT}/control=none",
    ),
    "start": (ARMS, f"write {EXPERIMENT}/enabled=1", f"write {EXPERIMENT}/enabled=0"),
    "start with times": (
        f"{ARMS}; echo 1 >{EXPERIMENT}/time_faults",
        f"write {EXPERIMENT}/enabled=1",
        f"write {EXPERIMENT}/enabled=0",
    ),
    "percent": (
        f"{ARMS}; echo 1 >{EXPERIMENT}/enabled",
        f"write {EXPERIMENT}/percent=10",
        f"write {EXPERIMENT}/percent=50",
    ),
    "lease": (":", f"write {ROOT}/lease_ms=86400000", f"write {ROOT}/lease_ms=0"),
}
# Changes that must succeed although each of their memory allocations fails.
ALWAYS_WORKS = {"unload", "fork", "choose an arm", "lease", "delete"}


@pytest.fixture(
    params=[
        pytest.param("debug", marks=pytest.mark.flavor("debug")),
        pytest.param("kasan", marks=[pytest.mark.flavor("kasan"), pytest.mark.full]),
    ]
)
def watched(request: pytest.FixtureRequest, machines: Machines) -> Guest:
    """Return a guest whose kernel has kmemleak, which finds memory that is never freed."""
    guest = machines.get(request.param, mem="1G", cpus=1, append="kmemleak=on")
    must(guest, "[ -e /sys/kernel/debug/kmemleak ] && echo scan=off >/sys/kernel/debug/kmemleak")
    must(guest, SET_UP)
    return guest


def each_fails(guest: Guest, step: int, before: str, act: str, undo: str) -> dict[str, int]:
    """Make the change again and again, and let another one of its memory allocations fail each
    time, in steps of `step`. Return how many attempts failed with an error, and how many succeeded.
    """
    words = " ".join(f'{what.partition(" ")[0]} "{what.partition(" ")[2]}"' for what in (act, undo))
    command = f"{before}\nexec {workload('nth')} $(modinfo -n mmpolicy) {step} {words}"
    return ran(guest, command, timeout=7200)


def case(guest: Guest, name: str, step: int = 1) -> dict[str, int]:
    """Run one case of CASES. Attempts with a failed allocation must give an error, unless the
    change is one of ALWAYS_WORKS.
    """
    found = each_fails(guest, step, *CASES[name])
    must(guest, f"[ ! -d {ROOT} ] || rmmod mmpolicy\n{SET_UP}")
    print(name, found)
    assert bool(found["failed"]) != (name in ALWAYS_WORKS)
    assert (name == "fork") == bool(found["unbound"])
    return found


def nothing_is_lost(guest: Guest) -> None:
    """Check that the kernel's checkers report no bug, and kmemleak no leak."""
    guest.check()
    guest.scan_leaks()


def test_some_allocations_fail(watched: Guest) -> None:
    """In changes with many memory allocations, some allocations fail, one per attempt. Each attempt
    gives an error or is not affected; after an error, the old state stays.
    """
    case(watched, "bind a process")
    case(watched, "fork")
    case(watched, "start")
    case(watched, "create", 37)
    case(watched, "load", 97)
    nothing_is_lost(watched)


@pytest.mark.full
def test_each_allocation_fails(watched: Guest) -> None:
    """In each change of CASES, each memory allocation fails once. Each attempt gives an error or is
    not affected; after an error, the old state stays.
    """
    found = {name: case(watched, name) for name in CASES}
    assert found["load"]["failed"] > 50 and found["create"]["failed"] > 50
    nothing_is_lost(watched)


@pytest.mark.full
def test_each_allocation_of_a_switch_fails(watched: Guest) -> None:
    """Each memory allocation in a switch of policies fails once: the old policy stays, and the
    reset afterwards succeeds.
    """
    policies = must(watched, f"cd {ROOT}/policies && ls -d */*").split()
    files = {policy: f"{PROFILES}/default/{policy.partition('/')[0]}" for policy in policies}
    cases = [(f"{files[policy]}/policy", policy.partition("/")[2], "stock") for policy in policies]
    cases += [(f"{PROFILES}/default/anon_order/shadow", "adaptive", "none")]
    reset = f"echo 1 >{ROOT}/reset"
    for path, policy, stock in cases:
        act, undo = f"write {path}={policy}", f"write {path}={stock}"
        assert each_fails(watched, 1, reset, act, undo)["failed"], path
        alone = f"{reset}; echo {policy} >{path}"
        found = each_fails(watched, 1, alone, f"write {ROOT}/reset=1", act)
        assert not found["failed"], path
    nothing_is_lost(watched)
