# SPDX-License-Identifier: GPL-2.0
"""On Debian's own kernels, a process that blocks in a fault delays no file of the module and no
reset.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lab.guest import Guest
from lab.programs import ran, workload

from .conftest import Machines
from .test_stock_closed import fentry
from .tools import ROOT, back_to_boot, folios, must

pytestmark = pytest.mark.flavor("cloud")
SECONDS = 20.0  # rough duration of each test, for the schedule

DEFAULT = f"{ROOT}/profiles/default"
POLICY = f"{DEFAULT}/anon_order/policy"
WAIT = "/sys/module/mmpolicy/parameters/wait_ms"
STATS = "/sys/kernel/debug/mmpolicy/default/anon_order/stats"
FILES = "state blockers point_error lease_ms lease_left_ms hooked_functions"
LATEST_MS = 1500
HOOKED = "cat /sys/kernel/tracing/enabled_functions"


@pytest.fixture
def guest(machines: Machines, stock: str) -> Guest:
    """Return the same guest as test_stock_kernel.py, so that it need not boot again; the module is
    not loaded.
    """
    guest = machines.get(stock, mem="2G", cpus=2, swap="1G")
    back_to_boot(guest)
    return guest


@pytest.fixture
def quick(loaded: Guest) -> Guest:
    """Return a guest in which a write to a file waits for the hooks only as long as by default;
    other tests let it wait longer.
    """
    must(loaded, f"echo 400 >{WAIT}")
    return loaded


@contextmanager
def held(guest: Guest, command: str, ready: str = "held") -> Iterator[None]:
    """Run a program that blocks, during a `with` block. The block begins when the program has
    printed `ready`.
    """
    must(guest, "rm -f /run/held")  # the file of an earlier test
    job = guest.start(f"exec {command} >/run/held")
    try:
        must(
            guest,
            f"for i in $(seq 600); do grep -q {ready} /run/held && exit; sleep 0.1; done",
        )
        yield
    finally:
        job.stop()


def stacks(guest: Guest, name: str) -> str:
    """Return the kernel stacks of all threads of the program with this name."""
    found = must(guest, f"for pid in $(pidof {name}); do cat /proc/$pid/task/*/stack; done")
    assert found
    return found


def each_answers(guest: Guest) -> None:
    """Check that no write to a file of the module, and no read of one, waits for a process that is
    blocked.

    The limit is ten seconds, as the host may be busy: a file that waits would wait until the
    process is killed.
    """
    writes = ["echo 5 >{0}/anon_order/min_available_percent", "echo stock >{0}/anon_order/policy"]
    for write in [
        *writes,
        f"cat {ROOT}/experiment/*",
        f"cat {ROOT}/bpf/*/*",
        f"cd {ROOT} && cat {FILES}",
    ]:
        must(guest, f"timeout -s KILL 10 sh -c {shlex.quote(write.format(DEFAULT))}")
    must(guest, f"timeout -s KILL 10 sh -c 'echo 1 >{ROOT}/reset'")


def becomes(guest: Guest, state: str, within: int = 60) -> None:
    """Wait until the module's file `state` has this text; fail after `within` seconds."""
    until = f"until grep -q {state} {ROOT}/state; do sleep 0.1; done"
    must(guest, f"timeout -s KILL {within} sh -c {shlex.quote(until)}")


def is_over(guest: Guest) -> None:
    """Check that all policies are at stock, that no function is hooked any longer, and that the
    module can be unloaded.
    """
    becomes(guest, "stock")
    assert "mmp" not in must(guest, HOOKED)
    must(guest, "timeout -s KILL 60 rmmod mmpolicy")


KINDS = [(kind, False) for kind in ("huge", "small", "read", "wp", "minor", "fork")]


@pytest.mark.parametrize(("kind", "time_faults"), [*KINDS, ("small", True)])
def test_userfaultfd(quick: Guest, kind: str, time_faults: bool) -> None:
    """If a fault waits for a userfaultfd that nobody serves, the stack of the process has no
    function of the module. So neither a file of the module nor its unload waits for this process.
    """
    if time_faults:
        must(
            quick,
            f"""cd {ROOT} && echo a >profiles/create && echo b >profiles/create || exit
            cd experiment && echo a >control && echo b >treatment && echo 1 >time_faults || exit
            echo 1 >enabled""",
        )
    else:
        must(quick, f"echo never >{POLICY}")
        becomes(quick, "active")
    program = workload("uffd")
    threads = 1 if kind == "fork" else 20
    with held(quick, f"{program} {kind} {threads}"):
        found = stacks(quick, program.name)
        assert found.count("handle_userfault") == threads
        assert "mmp" not in found
        each_answers(quick)
        is_over(quick)


def test_a_thousand_userfaultfds(quick: Guest) -> None:
    """If a thousand faults wait for userfaultfds that nobody serves, no file of the
    module waits.
    """
    must(quick, f"echo never >{POLICY}")
    with held(quick, f"{workload('uffd')} small 300"):
        each_answers(quick)
        is_over(quick)


STOPPED = {
    "stopped": "kill -STOP $(cat /run/pid)",
    "frozen": "mkdir -p /sys/fs/cgroup/w && cat /run/pid >/sys/fs/cgroup/w/cgroup.procs && "
    "echo 1 >/sys/fs/cgroup/w/cgroup.freeze",
    "throttled": "mkdir -p /sys/fs/cgroup/w && echo +cpu >/sys/fs/cgroup/cgroup.subtree_control; "
    "echo '5000 100000' >/sys/fs/cgroup/w/cpu.max && "
    "cat /run/pid >/sys/fs/cgroup/w/cgroup.procs",
}


@pytest.mark.parametrize("how", STOPPED)
def test_processes_that_are_kept_from_running(quick: Guest, how: str) -> None:
    """If a process that faults all the time is stopped at any place, no file of the module waits
    for it.
    """
    must(quick, f"echo fixed >{POLICY}")
    becomes(quick, "active")
    faults = f"{workload('ops')} map 4096 touch 0 4096"
    loop = f"echo held; echo $$ >/run/pid; while :; do {faults}; done"
    try:
        with held(quick, f"setsid sh -c {shlex.quote(loop)}"):
            must(quick, f"sleep 1; {STOPPED[how]}; sleep 1")
            each_answers(quick)
            is_over(quick)
    finally:
        must(quick, "kill -KILL -$(cat /run/pid)")
        must(
            quick,
            """cd /sys/fs/cgroup; [ -d w ] || exit 0
            echo 1 >w/cgroup.kill; until rmdir w; do sleep 0.1; done""",
            60,
        )


def waits_for_tasks(guest: Guest) -> bool:
    """Return whether this kernel waits, when hooks are detached, until each task has left the
    kernel code that it is in.

    Without preemption, as on arm64 before Linux 7, a task ends this wait by cond_resched(), so no
    task in the kernel delays it.
    """
    return not guest.run("grep -q ' synchronize_rcu_tasks$' /proc/kallsyms").rc


@pytest.fixture
def busy(quick: Guest) -> Iterator[Guest]:
    """Yield a guest in which a policy is on, and a process has been in kernel code nearly all the
    time since then.
    """
    hung = "/proc/sys/kernel/hung_task_timeout_secs"  # off, as the kernel's own wait is long
    must(quick, f"[ ! -e {hung} ] || {{ cat {hung} >/run/hung && echo 0 >{hung}; }}")
    must(quick, f"echo fixed >{POLICY}")
    becomes(quick, "active")
    with held(quick, str(workload("busy"))):
        yield quick
    must(quick, f"[ ! -e {hung} ] || cat /run/hung >{hung}")


@pytest.mark.parametrize(
    ("file", "text", "state"),
    [("lease_ms", "1000", "expired"), ("reset", "1", "detaching")],
    ids=["lease", "reset"],
)
def test_a_process_that_stays_in_the_kernel(busy: Guest, file: str, text: str, state: str) -> None:
    """If a process stays in kernel code, all policies are nevertheless at stock at once. Files of
    the module show that hooks are still being detached, and which process delays this.
    """
    found = ran(busy, f"{workload('until_off')} {STATS} {ROOT}/{file} {text}")
    assert found["on_ms"] <= LATEST_MS
    delayed = waits_for_tasks(busy)
    becomes(busy, state if delayed or state == "expired" else "stock", 10)
    assert "[stock]" in must(busy, f"cat {POLICY}")
    if delayed:  # only by the last grace period, in which no hook is left
        must(busy, f"until grep -q busy {ROOT}/blockers; do sleep 0.1; done", 30)
    if state == "expired":
        must(busy, f"timeout -s KILL 10 sh -c 'echo 1 >{ROOT}/reset'")
        assert must(busy, f"cat {ROOT}/state").strip() in ("detaching", "stock")
    each_answers(busy)
    if not delayed:
        is_over(busy)


def test_the_last_choice_counts(busy: Guest) -> None:
    """However often a policy is chosen, the last choice counts; hooks are attached or detached as
    soon as the kernel can.
    """
    for policy in ("stock", "never", "stock", "fixed", "stock", "fixed"):
        must(busy, f"timeout -s KILL 10 sh -c 'echo {policy} >{POLICY}'")
    assert "[fixed]" in must(busy, f"cat {POLICY}")
    assert must(busy, f"cat {ROOT}/state").strip() in ("attaching", "active")
    must(busy, f"kill $(pidof {workload('busy').name})")
    becomes(busy, "active")
    assert folios(busy, "map 4096 touch 0 4096 folios 0 4096") == [{4: 4096}]


def test_sixteen_at_two_cpus(quick: Guest) -> None:
    """Sixteen busy processes on two CPUs delay no file of the module. They delay the end of a reset
    by at most one grace period for each group of hooked functions.

    arm64 has one group more, of the functions that fold blocks.
    """
    must(quick, f"echo fixed >{POLICY}")
    becomes(quick, "active")
    loop = f"while :; do {workload('ops')} map 20000 touch 0 20000; done"
    load = f"for i in $(seq 16); do sh -c {shlex.quote(loop)} & done; echo held; wait"
    tracing = "/sys/kernel/tracing"
    try:
        with held(quick, f"setsid sh -c {shlex.quote(f'echo $$ >/run/pid; {load}')}"):
            wait = "synchronize_rcu_tasks" if waits_for_tasks(quick) else "synchronize_rcu"
            must(quick, f"cd {tracing} && echo {wait} >set_ftrace_filter")
            must(quick, f"cd {tracing} && echo function >current_tracer && echo >trace")
            each_answers(quick)
            becomes(quick, "stock")
            waits = must(quick, f"grep '{wait} <-' {tracing}/trace || true").splitlines()
            assert 1 <= len(waits) <= 3 + bool(quick.arch.root), waits
    finally:
        must(quick, "kill -KILL -$(cat /run/pid)")
        must(quick, f"cd {tracing} && echo nop >current_tracer && echo >set_ftrace_filter")


def test_an_error_that_comes_later(quick: Guest) -> None:
    """If a write to `policy` does not wait for the hooks, and another user has taken a function,
    the write succeeds, and a file reports the error later.
    """
    must(quick, f"echo 0 >{WAIT}")
    with fentry(quick, "do_anonymous_page") as there:
        assert there
        must(quick, f"echo fixed >{POLICY}")
        says = "grep -q 'anon_order: another user of ftrace'"
        until = f"until {says} {ROOT}/point_error; do sleep 0.1; done"
        must(quick, f"timeout -s KILL 20 sh -c {shlex.quote(until)}")
        assert "[stock]" in must(quick, f"cat {POLICY}")
        becomes(quick, "stock")
    must(quick, f"echo fixed >{POLICY}")
    becomes(quick, "active")
    assert must(quick, f"cat {ROOT}/point_error") == "\n"
