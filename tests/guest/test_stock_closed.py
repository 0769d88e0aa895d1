# SPDX-License-Identifier: GPL-2.0
"""On Debian's own kernels, no process gets a size that is not enabled, whatever happens to ftrace.

In each test the administrator enables no size, and a policy is chosen for a cgroup. Then something
disturbs ftrace. From 0.2 seconds later on, a process outside the cgroup touches 64 MB, and must get
single pages only.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab.guest import Guest, Job
from lab.programs import workload

from .conftest import Machines
from .test_bindings import bind, inside
from .tools import ROOT, THP, TOP, back_to_boot, folios, must, ops_command

pytestmark = pytest.mark.flavor("cloud")
SECONDS = 30.0  # rough duration of each test, for the schedule

SETTLED = "sleep 0.2"
DENSE = "map 16384 touch 0 16384 folios 0 16384"  # 64 MB
CLOSED = [{0: 16384}]
NOTHING_GIVEN = f"for file in {THP}/hugepages-*/enabled {THP}/enabled; do echo never >$file; done"
POLICY = f"{ROOT}/profiles/a/anon_order/policy"
ON = f"echo fixed >{POLICY}"
OFF = f"echo stock >{POLICY}"
ALL_OFF = f"for file in {ROOT}/profiles/a/*/policy; do echo stock >$file; done"
AT_POINTS = {
    "anon_order": "fixed",
    "thp_gfp": "relaxed",
    "compact": "budget",
    "madv_free": "cap",
}
FTRACE_ENABLED = "/proc/sys/kernel/ftrace_enabled"
ENABLED = "/sys/kernel/tracing/enabled_functions"
LIVEPATCH = "/sys/kernel/livepatch/mmpolicy_livepatch"
WORDS = Path(__file__).with_name("kernel_words.py")
ORDERS = [f"huge_anon_orders_{mode}" for mode in ("always", "madvise", "inherit")]


@pytest.fixture
def guest(machines: Machines, stock: str) -> Guest:
    """Return a guest with Debian's kernel and two CPUs. If its kernel has an oops, the guest panics
    and ends.
    """
    guest = machines.get(stock, mem="1G", cpus=2, append="oops=panic")
    back_to_boot(guest)
    return guest


@pytest.fixture
def given(loaded: Guest) -> Iterator[Guest]:
    """Yield a guest in which sysfs enables no folio size, and the cgroup "a" is bound to the
    profile "a", whose policies are at stock.
    """
    must(loaded, f"{NOTHING_GIVEN}\nmkdir -p {TOP}/a && echo a >{ROOT}/profiles/create")
    must(loaded, bind("a", "a"))
    assert folios(loaded, DENSE) == CLOSED
    yield loaded
    if loaded.processes:  # else the test has ended the guest
        must(
            loaded,
            f"[ ! -d {ROOT} ] || echo 1 >{ROOT}/reset; find {TOP} -depth -type d -delete",
        )


@pytest.fixture
def on(given: Guest) -> Guest:
    """Return the guest of `given`; the profile "a" has a policy that gives 64 kB folios, which
    opens this size in the kernel.
    """
    must(given, ON)
    assert is_on(given)
    return given


def is_on(guest: Guest) -> bool:
    """Return whether a process in the cgroup "a" gets the folios of its policy. If it does not, it
    must get single pages, as an unbound process does.
    """
    found = inside(guest, "a", DENSE)
    assert found in (CLOSED, [{4: 16384}])
    return found != CLOSED


def closed(guest: Guest, event: str = ":") -> int:
    """Run the command of an event, and check that an unbound process gets single pages afterwards,
    so that no folio size is open for it. Return the exit status of the command.
    """
    found = guest.run(f"{event}\nstatus=$?; {SETTLED}; {ops_command(DENSE)} || exit; exit $status")
    assert '{"0": 16384, "none": 0}' in found.out, found.out
    return found.rc


def is_over(guest: Guest) -> None:
    """Check that all policies can be set to stock, after which no function is hooked, and that they
    can then be chosen again.
    """
    must(guest, ALL_OFF)
    assert closed(guest) == 0
    assert "mmp" not in must(guest, f"cat {ENABLED}")
    must(guest, ON)
    assert is_on(guest)
    assert closed(guest) == 0


# ftrace as a whole


def test_ftrace_is_off_before(given: Guest) -> None:
    """If ftrace was turned off before a policy is chosen, the policy is refused with a reason. On a
    kernel where ftrace cannot be turned off, the policy is on.
    """
    off = given.run(f"echo 0 >{FTRACE_ENABLED}").rc == 0
    try:
        refused = closed(given, ON)
        assert bool(refused) == off
        assert is_on(given) != off
        assert folios(given, DENSE) == CLOSED
        if off:
            assert "[stock]" in must(given, f"cat {POLICY}")
    finally:
        given.run(f"echo 1 >{FTRACE_ENABLED}")
    is_over(given)


def test_ftrace_is_turned_off_meanwhile(on: Guest) -> None:
    """While a policy is on, either ftrace cannot be turned off, or turning it off ends the
    policy.
    """
    refused = closed(on, f"echo 0 >{FTRACE_ENABLED}")
    try:
        assert is_on(on) == bool(refused)
        assert folios(on, DENSE) == CLOSED
    finally:
        on.run(f"echo 1 >{FTRACE_ENABLED}")
    is_over(on)


@pytest.fixture
def dying(machines: Machines, on: Guest) -> Iterator[Guest]:
    """Yield a guest in which the test breaks ftrace for good; the guest is ended after the test."""
    yield on
    machines.end()


LEFT = f"grep -q direct--.mmp {ENABLED}"
THERE = "grep -q ^mmpolicy /proc/modules"
LOADS = "for i in 1 2 3; do modprobe loop && modprobe -r loop || exit; done"


@pytest.mark.parametrize("end", (f"echo 1 >{ROOT}/reset", OFF, "rmmod mmpolicy"))
def test_ftrace_dies_meanwhile(dying: Guest, end: str) -> None:
    """If ftrace shuts down by itself while a policy is on, no folio size stays open for unbound
    processes. The module stays loaded as long as the kernel still calls it.
    """
    assert closed(dying, "modprobe mmpolicy_meddle kill=1") == 0
    for job in [
        dying.start(end),
        dying.start("sleep 1; rmmod mmpolicy"),
    ]:  # an unload that may wait for ever
        assert closed(dying, "sleep 2") == 0
        must(dying, LOADS)  # other modules can still be loaded and unloaded
        assert closed(dying) == 0
        must(dying, f"! {LEFT} || {THERE}")
        job.stop()
    dying.run(f"timeout 5 sh -c {shlex.quote(ON)}")
    assert closed(dying) == 0
    dying.check()


# khugepaged, which the kernel starts and stops when a file of a folio size is written

RUNNING = "pgrep -xc khugepaged; cat /proc/sys/vm/min_free_kbytes"
WRITES = f"for mode in madvise never; do echo $mode >{THP}/hugepages-2048kB/enabled; done"


def test_kprobes_are_off(given: Guest) -> None:
    """khugepaged runs as sysfs says although the module is loaded and kprobes are turned off,
    because the module does not need kprobes for this.
    """
    must(given, WRITES)
    before = given.run(RUNNING).out
    assert before.startswith("0\n")
    must(given, f"{ON}; echo 0 >/sys/kernel/debug/kprobes/enabled")
    try:
        must(given, WRITES)
        assert given.run(RUNNING).out == before
        assert closed(given) == 0
        must(given, OFF)
        assert given.run(RUNNING).out == before
    finally:
        must(given, f"echo 1 >/sys/kernel/debug/kprobes/enabled; {OFF}; {WRITES}")
    is_over(given)


@pytest.mark.long
def test_khugepaged_after_a_storm_of_writes(given: Guest) -> None:
    """After many writes to the files of folio sizes while policies begin and end, khugepaged runs
    as sysfs says.
    """
    jobs = [given.start(f"while :; do {WRITES}; done") for _ in range(3)]
    try:
        must(given, f"for i in $(seq 8); do {ON}; {OFF}; done", 120)
    finally:
        for job in jobs:
            job.stop()
    must(given, f"{NOTHING_GIVEN}; ! pgrep -x khugepaged")
    assert closed(given) == 0
    is_over(given)


# Sites, the places in the kernel's code where a function is hooked


def hooked(guest: Guest) -> list[str]:
    """Return the names of the kernel functions that the module hooks now."""
    text = must(guest, f"cat {ENABLED}")
    return re.findall(r"^(\S+) .*\n\s+direct-->mmp", text, re.MULTILINE)


LINES = "dmesg | grep -c ' mmpolicy: '; true"


@pytest.mark.long
def test_a_site_is_patched_away(on: Guest) -> None:
    """If the hook of any function is patched away, the module closes the folio sizes that it has
    opened, and the log has one line about it.
    """
    for function in hooked(on):
        before = int(must(on, LINES))
        try:
            assert closed(on, f"modprobe mmpolicy_meddle unpatch={function}") == 0
            assert int(must(on, LINES)) == before + 1
        finally:
            must(on, "rmmod mmpolicy_meddle")
        assert closed(on) == 0
        must(on, f"until ! grep -q mmp {ENABLED}; do sleep 0.1; done", 60)  # also in stuck writers
        is_over(on)


# Other users of the hooked functions


@contextmanager
def fentry(guest: Guest, function: str) -> Iterator[Job | None]:
    """Attach a BPF program (fentry) to a kernel function, for a `with` block; yield the job that
    holds it, or None if the kernel refuses it.
    """
    job = guest.start(f"exec {workload('fentry')} {function}")
    must(guest, f"until [ -s {job.path}.out ]; do sleep 0.02; done")
    said = must(guest, f"cat {job.path}.out")
    assert "attached" in said or "BPF_RAW_TRACEPOINT_OPEN" in said
    yield job if "attached" in said else None
    job.stop()
    must(guest, f"until ! grep -q direct--.bpf {ENABLED}; do sleep 0.02; done")


@contextmanager
def livepatch(guest: Guest, function: str) -> Iterator[bool | None]:
    """Load a livepatch of a kernel function, for a `with` block; yield True, or None if the kernel
    refuses it.
    """
    found = guest.run(f"modprobe mmpolicy_livepatch function={function}")
    assert not found.rc or "busy" in found.out.lower()
    there = f"[ ! -e {LIVEPATCH} ] || [ $(cat {LIVEPATCH}/transition) = 0 ]"
    must(guest, f"until {there}; do sleep 0.1; done")
    end = f"echo 0 >{LIVEPATCH}/enabled; until rmmod mmpolicy_livepatch; do sleep 0.1; done"
    yield None if found.rc else True
    if not found.rc:
        must(guest, end)


def variables(guest: Guest) -> str:
    """Return, as text, the values of the kernel variables in which the enabled folio sizes are
    stored.
    """
    return must(guest, f"/usr/bin/python3 {WORDS} {' '.join(ORDERS)}")


def opened(guest: Guest) -> set[int]:
    """Return the orders that the kernel would request now for a fault. The administrator has
    enabled none, so these are the orders that the module has opened.
    """
    word = int(variables(guest).split()[1], 16)
    return {order for order in range(32) if word >> order & 1}


def test_only_what_a_policy_may_answer_is_open(given: Guest) -> None:
    """A policy opens only orders that it may answer, up to its max_order. With a max_order below 9,
    the order of 2 MB is not opened.
    """
    assert opened(given) == set()
    for policy, cap in ("fixed", 4), ("adaptive", 9), ("vma_size", 2):
        knob = f"{ROOT}/profiles/a/anon_order/{policy}/max_order"
        must(given, f"echo {cap} >{knob}; echo {policy} >{POLICY}")
        assert opened(given) == set(range(2, cap + 1))
    must(given, f"echo never >{POLICY}")
    assert opened(given) == set()


def choose(guest: Guest, point: str) -> bool:
    """Choose a policy in the profile "a" at a hook point; return whether the kernel refuses it."""
    return bool(guest.run(f"echo {AT_POINTS[point]} >{ROOT}/profiles/a/{point}/policy").rc)


def functions_of(guest: Guest, every: bool) -> dict[str, str]:
    """Return the hook point of each hooked function, by the name of the function. If `every` is
    False, return only one function for each point.
    """
    found: dict[str, str] = {}
    for point in AT_POINTS:
        assert not choose(guest, point)
        names = sorted(hooked(guest))
        found |= dict.fromkeys(names if every else names[-1:], point)
        must(guest, ALL_OFF)
        assert not hooked(guest)
    return found


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.full)], ids=("few", "every"))
def functions(given: Guest, request: pytest.FixtureRequest) -> dict[str, str]:
    """Return one hooked function for each hook point, or with --full every function, with its
    point.
    """
    return functions_of(given, request.param)


@pytest.mark.full
@pytest.mark.parametrize("other", (fentry, livepatch))
def test_others_came_first(given: Guest, functions: dict[str, str], other: type) -> None:
    """If another user, such as a BPF program, has hooked a function first, a policy of the
    function's hook point is refused, and no variable of the kernel changes. When the other user is
    gone, the policy can be chosen.
    """
    before = variables(given)
    for function, point in functions.items():
        with other(given, function) as there:
            assert there, f"{function}: {other.__name__} is not let in"
            assert choose(given, point), function
            assert not hooked(given)
            assert closed(given) == 0
            assert variables(given) == before, function
        assert not choose(given, point), function
        assert is_on(given) == (point == "anon_order")
        assert closed(given, ALL_OFF) == 0
    assert variables(given) == before


@pytest.mark.parametrize("other", (fentry, pytest.param(livepatch, marks=pytest.mark.long)))
def test_others_come_second(given: Guest, functions: dict[str, str], other: type) -> None:
    """If another user, such as a BPF program, hooks a function while a policy is on, either it is
    refused, or it is accepted and the policy ends.
    """
    for function, point in functions.items():
        assert not choose(given, point)
        with other(given, function) as there:
            if there:  # wait, as the hooks of a point are detached one after the other
                must(given, f"until ! grep -q mmp {ENABLED}; do sleep 0.1; done", 30)
            assert bool(there) != (function in hooked(given)), function
            assert closed(given) == 0
            if point == "anon_order":
                assert is_on(given) != bool(there), function
        must(given, ALL_OFF)
        with other(given, function) as there:
            assert there, function
            assert closed(given) == 0
