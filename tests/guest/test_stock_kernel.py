# SPDX-License-Identifier: GPL-2.0
"""The module on Debian's own kernels, which have no hooks: its points work by ftrace.

Tests of other files that hold here, too, are imported, so that they run in this guest.
"""

from __future__ import annotations

import json
import random
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab.guest import Guest
from lab.programs import workload

from . import test_anon_order, test_bindings, test_experiment, test_lease, test_profiles
from .conftest import Machines
from .test_bindings import bind, inside, is_large
from .test_storm import small, storm, storm_under_pressure
from .tools import (
    POINT,
    ROOT,
    SCRIPT,
    THP,
    TOP,
    TRACING,
    Pages,
    Poke,
    back_to_boot,
    folios,
    histograms,
    must,
    ops_command,
    poke,
    refused,
    switch,
)

pytestmark = pytest.mark.flavor("cloud")
SECONDS = 20.0  # rough duration of each test, for the schedule

DENSE = "map 4096 touch 0 4096 folios 0 4096"
ASKED = "map 4096 madvise 0 4096 14 touch 0 4096 folios 0 4096"  # MADV_HUGEPAGE
HOOKED = "cat /sys/kernel/tracing/enabled_functions"
SIZES = f"grep . {THP}/enabled {THP}/hugepages-*/enabled"
ASKS = "__thp_vma_allowable_orders"
# Gives each folio size another setting in sysfs. "inherit" means the setting of
# transparent_hugepage/enabled, which is madvise.
GIVEN = f"""
echo always >{THP}/hugepages-32kB/enabled
echo madvise >{THP}/hugepages-128kB/enabled
echo inherit >{THP}/hugepages-512kB/enabled
"""
# folios at stock under these settings: of memory without advice, and of memory with MADV_HUGEPAGE
STOCK: list[Pages] = [{3: 4096}, {9: 4096}]


@pytest.fixture
def guest(machines: Machines, stock: str) -> Guest:
    """Return a guest with Debian's kernel, two CPUs and zram swap; the module is not loaded.

    It boots with huge pages for all memory; the tests begin with the kernel's default settings.
    """
    guest = machines.get(stock, mem="2G", cpus=2, swap="1G")
    back_to_boot(guest)
    return guest


# Imported tests that do not run here, as they count instructions in a guest of their own.
NOT_HERE = {
    "test_depth_costs_nothing",
    "test_number_costs_nothing",
    "test_a_binding_is_cheap",
    "test_an_experiment_is_cheap",
}
for module in (test_anon_order, test_bindings, test_experiment, test_lease, test_profiles):
    names = [name for name in vars(module) if name.startswith("test_") and name not in NOT_HERE]
    globals().update({name: vars(module)[name] for name in [*names]})
two, arms = test_bindings.two, test_experiment.arms


def both(guest: Guest) -> list[Pages]:
    """Return the folios that a process without a policy gets: for memory without advice, and for
    memory with MADV_HUGEPAGE.
    """
    return [*folios(guest, DENSE), *folios(guest, ASKED)]


@contextmanager
def neighbours(guest: Guest) -> Iterator[None]:
    """Run processes without a policy again and again during a `with` block, some of them with
    MADV_HUGEPAGE. Each of them must get the folios that it gets at stock.
    """
    both_again = f"{ops_command(DENSE)} && {ops_command(ASKED)}"
    job = guest.start(f"rm -f /run/over; until [ -e /run/over ]; do {both_again} || exit; done")
    try:
        yield
    finally:
        must(guest, "touch /run/over")
        done = job.wait()
    found = histograms(done.out)
    assert not done.rc
    assert found == STOCK * (len(found) // 2) != []


def is_over(guest: Guest, sizes: str) -> None:
    """Check that nothing of a policy is left: no function is hooked, sysfs has the former settings
    of folio sizes, and all processes get folios by these settings.
    """
    assert "mmp" not in must(guest, HOOKED)
    assert must(guest, SIZES) == sizes
    assert both(guest) == STOCK


@pytest.fixture
def given(loaded: Guest) -> Iterator[Guest]:
    """Yield a guest in which some folio sizes are enabled, with a cgroup "a" and a profile "a",
    which is not bound to it yet.
    """
    must(loaded, f"{GIVEN}\nmkdir -p {TOP}/a && echo a >{ROOT}/profiles/create")
    assert both(loaded) == STOCK
    yield loaded
    must(loaded, f"[ ! -d {ROOT} ] || echo 1 >{ROOT}/reset; find {TOP} -depth -type d -delete")


ON = f"echo adaptive >{ROOT}/profiles/a/anon_order/policy && {bind('a', 'a')}"


def on(guest: Guest) -> str:
    """Bind the cgroup "a" to a profile with the policy `adaptive`. Return the settings of folio
    sizes in sysfs, as they were before.
    """
    sizes = must(guest, SIZES)
    must(guest, ON)
    assert is_large(inside(guest, "a")[0])
    return sizes


# Pages in advance: after many sparse faults, the module decides for single pages without asking the
# policy at each fault

PAGES = "sed -n 's/^requested_order_0 //p' /sys/kernel/debug/mmpolicy/default/anon_order/stats"
IN_ADVANCE = """
map 20480 every 0 8192 16
madvise 8192 12288 14 touch 8192 12288 folios 8192 12288
mlock 12288 16384 folios 12288 16384
every 0 8192 1 folios 0 8192
sh touch 16384 20480 folios 16384 20480
"""


@pytest.mark.parametrize(("policy", "locked"), (("never", 0), ("adaptive", 4)))
def test_a_page_in_advance_is_for_plain_memory_alone(
    given: Guest, policy: str, locked: int
) -> None:
    """After 512 sparse faults, the module gives single pages in advance, but not to memory with
    MADV_HUGEPAGE, to locked memory, or to memory of a process at stock: they still get their own
    sizes.
    """
    must(given, f"echo always >{THP}/hugepages-64kB/enabled; echo {policy} >{POINT}/policy")
    before = int(must(given, PAGES))
    end = f"echo stock >{POINT}/policy"
    advised, held, plain, stock = folios(given, IN_ADVANCE, end)
    assert advised == STOCK[1]  # as the administrator has set it
    assert stock == {4: 4096}
    assert held == {locked: 4096}
    if policy == "never":
        assert plain == {0: 8192}
        assert int(must(given, PAGES)) - before >= 12288  # with those of ops and shells themselves


STOPPED = f"""
taskset -p 1 $$ >/dev/null
taskset 2 {ops_command("map 65536 " + "touch 0 65536 madvise 0 65536 4 " * 50)} & p=$!
faults() {{ cut -d' ' -f10 /proc/$p/stat; }}
until [ $(faults) -gt 4000 ]; do :; done
kill -STOP $p; until grep -q '^State:.T' /proc/$p/status; do :; done
echo stock >{POINT}/policy; pages=$({PAGES}); begin=$(faults)
kill -CONT $p; until [ $(faults) -gt $((begin + 200)) ]; do :; done
echo $pages $({PAGES}); kill $p
"""


def test_no_page_in_advance_outlives_its_policy(given: Guest) -> None:
    """If a process is stopped in the middle of its faults under `never`, and goes on after a switch
    to stock, none of its later faults is counted for `never`.
    """
    must(given, f"echo never >{POINT}/policy")
    before, after = must(given, STOPPED).split()
    assert before == after


# Which hook points are available on this kernel


def test_what_can_be_had(loaded: Guest) -> None:
    """Files of the module show which hook points are available on this kernel, and why the others
    are not. A policy of an unavailable hook point is refused.
    """
    assert must(loaded, f"cat {ROOT}/provider") == "ftrace\n"
    text = must(loaded, f"cd {ROOT}/points && grep . *")
    points = dict(line.split(":", 1) for line in text.splitlines())
    for point in "anon_order", "thp_gfp", "madv_free", "compact":
        assert points.pop(point) == "available"
    for point, reason in points.items():
        assert reason.startswith("unavailable: ") and "CONFIG_MM_POLICY" in reason
        folder = f"{ROOT}/profiles/default/{point}"
        words = must(loaded, f"cat {folder}/policy").replace("[stock]", "").split()
        refused(poke(loaded, [Poke(f"{folder}/policy", w, 1, ("ENOTSUP",)) for w in words]))
        must(loaded, f"echo stock >{folder}/policy")


def test_a_parameter_that_cannot_be_had(guest: Guest) -> None:
    """If a parameter of modprobe names a policy whose hook point is unavailable, the module is not
    loaded, and the kernel log says why.
    """
    assert guest.run("modprobe mmpolicy anon_order=fixed compact=eager").rc
    assert "compact=eager: the kernel does not ask" in must(guest, "dmesg")
    assert guest.run(f"test -e {ROOT}").rc
    assert "mmp" not in must(guest, HOOKED)


# For each hook point: a policy, and a kernel function that is hooked while the policy is on.
AT_POINTS = {
    "anon_order": ("fixed", ASKS),
    "thp_gfp": ("relaxed", "vma_thp_gfp_mask"),
    "compact": ("budget", "compact_zone"),
    "madv_free": ("cap", "madvise_dontneed_free_valid_vma"),
}
POLICIES = "; ".join(
    f"echo {policy} >{ROOT}/profiles/default/{point}/policy"
    for point, (policy, _) in AT_POINTS.items()
)


def test_nothing_is_hooked_while_all_is_stock(loaded: Guest) -> None:
    """The module hooks kernel functions only while a policy is chosen: the first policy of a hook
    point hooks them, and `stock` unhooks them.
    """
    assert "mmp" not in must(loaded, HOOKED)
    for point, (policy, function) in AT_POINTS.items():
        file = f"{ROOT}/profiles/default/{point}/policy"
        must(loaded, f"echo {policy} >{file}")
        assert function in must(loaded, HOOKED)
        must(loaded, f"echo stock >{file}")
        assert "mmp" not in must(loaded, HOOKED)
    switch(loaded, "fixed")
    switch(loaded, "never")
    assert ASKS in must(loaded, HOOKED)
    must(loaded, f"{POLICIES}; echo 1 >{ROOT}/reset")
    assert "mmp" not in must(loaded, HOOKED)


# Sizes in sysfs, and processes without a policy


def test_neighbours_get_what_is_given(given: Guest) -> None:
    """While a cgroup has a policy, a process outside of it gets the same folios as before, and the
    settings of folio sizes in sysfs do not change.
    """
    eligible = f"{workload('ops')} map 4096 touch 0 1 sh 'grep -h THPeligible /proc/$PPID/smaps' "
    before = must(given, eligible)
    sizes = on(given)
    assert both(given) == STOCK
    assert must(given, SIZES) == sizes
    assert must(given, eligible) == before


@pytest.mark.parametrize(
    "end",
    (
        f"echo stock >{ROOT}/profiles/a/anon_order/policy",
        f"echo 1 >{ROOT}/reset",
        f"echo 100 >{ROOT}/lease_ms; until grep -q expired {ROOT}/state; do sleep 0.1; done; "
        f"until ! {HOOKED} | grep -q mmp; do sleep 0.1; done",
        "rmmod mmpolicy",
    ),
    ids=("stock", "reset", "lease", "unload"),
)
def test_each_way_of_ending(given: Guest, end: str) -> None:
    """Each way to end a policy restores the settings of all folio sizes at once. Meanwhile,
    processes without a policy get no other folios than at stock.
    """
    with neighbours(given):
        sizes = on(given)
        must(given, end)
    assert inside(given, "a") == STOCK[:1]
    is_over(given, sizes)


COME_AND_GO = f"""
while :; do
	for policy in fixed stock never stock; do
		echo $policy >{ROOT}/profiles/a/anon_order/policy
	done
done
"""


def test_writes_while_policies_come_and_go(given: Guest) -> None:
    """While policies begin and end, the administrator can read back what he has written to the file
    of a folio size, and it decides at once for processes without a policy.
    """
    job = given.start(COME_AND_GO)
    try:
        for word, order in ("always", 6), ("never", 3), ("always", 6), ("madvise", 3):
            must(given, f"echo {word} >{THP}/hugepages-256kB/enabled")
            assert f"[{word}]" in must(given, f"cat {THP}/hugepages-256kB/enabled")
            made = folios(given, DENSE)
            assert made == [{order: 4096}], must(given, f"grep . {THP}/hugepages-256kB/stats/anon*")
    finally:
        job.stop()


def test_neighbours_while_policies_come_and_go(given: Guest) -> None:
    """While policies begin and end, each folio of a process without a policy has a size that sysfs
    enables.
    """
    job = given.start(COME_AND_GO)
    program = f"for i in $(seq 10); do {workload('ops')} {DENSE}; cat {THP}/*/enabled; done"
    try:
        text = must(given, program, 120)
    finally:
        job.stop()
    assert set(text.splitlines()) == {
        '{"3": 4096, "none": 0}',
        "[always] inherit madvise never",
        "always [inherit] madvise never",
        "always inherit [madvise] never",
        "always inherit madvise [never]",
    }


def test_the_administrator_writes_meanwhile(given: Guest) -> None:
    """If the administrator changes the file of a folio size while a policy is on, the change
    decides at once for processes without a policy, and stays after the end of the policy.
    """
    on(given)
    must(given, f"echo never >{THP}/hugepages-32kB/enabled")
    must(given, f"echo always >{THP}/hugepages-256kB/enabled")
    must(given, f"echo always >{THP}/hugepages-64kB/enabled")
    must(given, f"echo never >{THP}/hugepages-64kB/enabled")
    changed = must(given, SIZES)
    assert "32kB/enabled:always inherit madvise [never]" in changed
    assert "256kB/enabled:[always]" in changed
    assert "64kB/enabled:always inherit madvise [never]" in changed
    assert folios(given, DENSE) == [{6: 4096}]
    assert is_large(inside(given, "a")[0])
    must(given, f"echo always >{THP}/enabled")
    assert folios(given, DENSE) == [{9: 4096}]
    must(given, f"echo madvise >{THP}/enabled; echo 1 >{ROOT}/reset")
    assert must(given, SIZES) == changed
    assert folios(given, DENSE) == [{6: 4096}]
    assert "mmp" not in must(given, HOOKED)


def khugepaged_after(guest: Guest, *writes: str) -> list[list[str]]:
    """Make writes to the files of folio sizes. Return for each of them whether khugepaged runs
    after it, and how much memory the kernel then reserves.
    """
    found = []
    for write in writes:
        mode, kb = write.split()
        must(guest, f"echo {mode} >{THP}/hugepages-{kb}kB/enabled; echo never >{THP}/enabled")
        running = guest.run("pgrep -x khugepaged; cat /proc/sys/vm/min_free_kbytes").out.split()
        found.append([str(len(running) - 1), running[-1]])
    return found


def test_khugepaged_runs_as_given(loaded: Guest) -> None:
    """A write to the file of a folio size starts or stops khugepaged under a policy exactly as at
    stock.

    On 6.12 the kernel also reserves as much memory; for later kernels see "What is lost" in
    docs/without-hooks.md.
    """
    khugepaged_after(loaded, "always 2048", "never 2048")  # first once: a boot reserves less
    writes = "never 2048", "always 64", "never 64", "always 2048", "never 2048"
    stock = khugepaged_after(loaded, *writes)
    assert stock[0][0] == "0" and stock[3][0] == "1"
    switch(loaded, "fixed", max_order=9)
    found = khugepaged_after(loaded, *writes)
    assert [running for running, _ in found] == [running for running, _ in stock]
    assert found == stock or not loaded.series.startswith("6.12")
    assert folios(loaded, DENSE) == [{9: 4096}]


CHANGES_OF_A = [
    ["set", "--profile", "a", "anon_order", "stock"],
    ["set", "--profile", "a", "anon_order", "adaptive"],
    ["unbind", "--cgroup", f"{TOP}/a"],
    ["bind", "a", "--cgroup", f"{TOP}/a"],
]
EXPERIMENT = f"""ab run --design split --cgroup {TOP}/a --treatment anon_order=adaptive
--lease 1s --block 0.3 --washout 0.1 --interval 0.1 --aa-pairs 0 --pairs 500 --out /run/killed.jsonl
--metric arm.anon_order.requested_order_4""".split()
LEASE_ENDS = f"while grep -qE 'active|taching' {ROOT}/state; do sleep 0.1; done"
AFRESH = f"[ -e {ROOT}/profiles/a ] || echo a >{ROOT}/profiles/create"
SEEN = f"{ops_command(DENSE)}; {ops_command(ASKED)}; {SIZES}"
KILLED = Path(__file__).with_name("killed.py")


def kills(rng: random.Random, times: int) -> Iterator[list[object]]:
    """Yield tasks for killed.py, which kills commands: in turn, changes of the policy of the
    profile "a", and an experiment in the cgroup "a".
    """
    for number in range(times):
        start, commands, end = f"{AFRESH}; {ON}", rng.sample(CHANGES_OF_A, 4), ":"
        if number % 2:
            start, commands, end = AFRESH, [EXPERIMENT], LEASE_ENDS
        look = f"cat {ROOT}/state; {SEEN}; {end}; echo 1 >{ROOT}/reset; {SEEN}; {HOOKED}"
        yield [start, commands, rng.uniform(0, 2), look]


@pytest.mark.parametrize("times", [pytest.param(8), pytest.param(100, marks=pytest.mark.full)])
def test_sigkill_at_any_moment(given: Guest, times: int) -> None:
    """Whatever command of mmpolicy is killed, processes without a policy get the folio sizes that
    sysfs enables, and the end of the lease, or a reset, ends all policies.
    """
    before, states = must(given, f"{SEEN}; {SEEN}; {HOOKED}"), list[str]()
    tasks = [*kills(random.Random(times), 4 * times)]
    # There are more tasks than needed, as a busy host may kill a command before it has done
    # anything.
    while tasks and (len(states) < times or states.count("active") <= times / 4):
        some, tasks = tasks[: min(times, 25)], tasks[min(times, 25) :]
        with neighbours(given):
            command = f"printf %s {shlex.quote(json.dumps(some))} | {SCRIPT} {KILLED}"
            found = json.loads(must(given, command, 60 * len(some)))
        for state, seen in (text.split("\n", 1) for text in found):
            assert seen == before
            states.append(state)
    assert states.count("active") > times / 4


# Other users of a hooked function

PROBE = f"echo p:mine {ASKS} >{TRACING}/kprobe_events && echo 1 >{TRACING}/events/kprobes/enable"
NO_PROBE = f"echo 0 >{TRACING}/events/kprobes/enable; echo >{TRACING}/kprobe_events"
TRACE = f"echo {ASKS} >{TRACING}/set_ftrace_filter && echo function >{TRACING}/current_tracer"
NO_TRACE = f"echo nop >{TRACING}/current_tracer; echo >{TRACING}/set_ftrace_filter"


@pytest.mark.parametrize(("begin", "end"), [(PROBE, NO_PROBE), (TRACE, NO_TRACE)])
@pytest.mark.parametrize("first", (True, False))
def test_who_traces_the_same_function(loaded: Guest, begin: str, end: str, first: bool) -> None:
    """The module and a tracer (a kprobe or ftrace) can use the same function, whichever of them
    comes first, and each can leave first.
    """
    must(loaded, f"echo >{TRACING}/trace")
    if first:
        must(loaded, begin)
    switch(loaded, "fixed", max_order=5)
    if not first:
        must(loaded, begin)
    assert folios(loaded, DENSE) == [{5: 4096}]
    assert must(loaded, f"grep -c ops- {TRACING}/trace; true").strip() != "0"
    must(loaded, f"echo stock >{POINT}/policy" if first else end)
    assert folios(loaded, DENSE) == ([{0: 4096}] if first else [{5: 4096}])
    must(loaded, f"{end}; echo stock >{POINT}/policy; echo >{TRACING}/trace")
    assert folios(loaded, DENSE) == [{0: 4096}]


LIVEPATCH = "/sys/kernel/livepatch/mmpolicy_livepatch"
ENDS = f"echo 0 >{LIVEPATCH}/enabled; until rmmod mmpolicy_livepatch; do sleep 0.1; done"


def test_a_livepatch_of_the_same_function(loaded: Guest) -> None:
    """If a function has a livepatch, a policy that hooks this function is refused. If the livepatch
    comes while the policy is on, the policy ends.
    """
    busy = ("EBUSY",)
    must(loaded, f"echo always >{THP}/hugepages-32kB/enabled; modprobe mmpolicy_livepatch")
    must(loaded, f"until grep -q 0 {LIVEPATCH}/transition; do sleep 0.1; done")
    assert folios(loaded, DENSE) == [{0: 4096}]
    refused(poke(loaded, [Poke(f"{POINT}/policy", "fixed", 1, busy)]))
    assert folios(loaded, DENSE) == [{0: 4096}]
    must(loaded, f"{ENDS} 2>/dev/null")
    assert folios(loaded, DENSE) == [{3: 4096}]
    switch(loaded, "fixed", max_order=5)
    must(
        loaded, f"modprobe mmpolicy_livepatch; until grep -q stock {ROOT}/state; do sleep 0.1; done"
    )
    assert "anon_order goes back to stock: a livepatch" in must(loaded, "dmesg")
    must(loaded, f"until grep -q 0 {LIVEPATCH}/transition; do sleep 0.1; done")
    assert folios(loaded, DENSE) == [{0: 4096}]
    assert "mmp" not in must(loaded, HOOKED).replace("mmpolicy_livepatch", "")
    must(loaded, f"{ENDS} 2>/dev/null")
    assert folios(loaded, DENSE) == [{3: 4096}]


# Memory that the kernel populates


def test_memory_that_nobody_touches(loaded: Guest) -> None:
    """Policies also decide about memory that the kernel populates (MADV_POPULATE_WRITE), although
    the process takes no fault for it.
    """
    words = "map 4096 madvise 0 4096 23 folios 0 4096"  # MADV_POPULATE_WRITE
    for policy, order in (("fixed", 4), ("never", 0), ("vma_size", 4)):
        switch(loaded, policy)
        assert folios(loaded, words) == [{order: 4096}]
    switch(loaded, "adaptive")
    (found,) = folios(loaded, words)
    assert found[4] > 4096 - 64


@pytest.mark.parametrize(
    "rounds", [3, pytest.param(6, marks=pytest.mark.long), pytest.param(60, marks=pytest.mark.full)]
)
def test_load_switch_unload_while_others_fault(guest: Guest, rounds: int) -> None:
    """While the module is loaded, switched and unloaded and processes fault, no page has data of
    another process, and the kernel logs no bug.
    """
    storm(guest, rounds, 1, 4, hog_mib=0)


KHUGEPAGED = f"""
cd {THP}/khugepaged
echo 20 >scan_sleep_millisecs; echo 20 >alloc_sleep_millisecs; echo 4096 >pages_to_scan
"""


@pytest.mark.full
@pytest.mark.parametrize("hundred", range(10))
@pytest.mark.parametrize(
    "flavor",
    [pytest.param(name, marks=pytest.mark.flavor(name)) for name in ("cloud", "traced-kasan")],
)
def test_a_thousand_rounds(machines: Machines, flavor: str, hundred: int) -> None:
    """In a thousand rounds, each with another policy, no page has data of another process, while
    the kernel faults, swaps and reclaims, and khugepaged hardly pauses.

    Most of a round is waiting for the kernel, so this guest has a clock that jumps then.
    """
    guest = small(machines, flavor, accel="jumps")
    must(guest, KHUGEPAGED)
    seen = storm_under_pressure(guest, 100, "briefly")
    print(seen)
    assert all(seen.values()), f"hundred {hundred}: {seen}"
