# SPDX-License-Identifier: GPL-2.0
"""A shadow policy is called and its answers are counted, but it changes no folio."""

from __future__ import annotations

import pytest

from bench.anon_order import MEM, Case, take_sample
from lab import counting
from lab.guest import Guest
from lab.programs import workload
from mmpolicy.control.shadow import Shadow, shadow_of

from .conftest import Machines
from .tools import POINT, ROOT, THP, counters, folios, must, ops_command, switch, touch

DENSE = "map 4096 touch 0 4096 folios 0 4096"
SPARSE = "map 4096 every 0 4096 16 folios 0 4096"
POLICIES = ("adaptive", "fixed", "never", "vma_size")
MORE = 60  # the most instructions that a shadow policy may add to a fault
MIB, ROUNDS = 64, 8
# relative error of a shadow policy's estimates, as only one fault in twelve is sampled
SAMPLES = 0.06


def shadow(guest: Guest, policy: str, folder: str = POINT) -> None:
    """Choose a shadow policy, which is called but decides nothing. folder: the hook point in a
    profile.
    """
    must(guest, f"echo {policy} >{folder}/shadow")


def asked(guest: Guest) -> int:
    """Return how often the shadow policy of the default profile was called."""
    return sum(n for name, n in counters(guest).items() if name.startswith("shadow_reason"))


def told(guest: Guest, pattern: str) -> tuple[Shadow, dict[str, float]]:
    """Run the workload touch. Return what the shadow policy estimates for one round, and the
    figures of the run itself.
    """
    before = counters(guest)
    found = touch(guest, pattern, MIB, ROUNDS)
    after = counters(guest)
    rounds = {name: (value - before[name]) // ROUNDS for name, value in after.items()}
    made = shadow_of(rounds)
    assert made
    return made, found


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize(("active", "order"), [("stock", 0), ("never", 0), ("fixed", 3)])
def test_no_folio_changes(loaded: Guest, name: str, active: str, order: int) -> None:
    """A program gets the folios of the active policy, whatever the shadow policy answers, as its
    pagemap shows.
    """
    must(loaded, f"echo 3 >{POINT}/fixed/max_order; echo {active} >{POINT}/policy")
    must(loaded, f"echo 9 >{POINT}/adaptive/max_order; echo 9 >{POINT}/vma_size/max_order")
    without = [folios(loaded, words) for words in (DENSE, SPARSE)]
    assert without[0] == [{order: 4096}]
    shadow(loaded, name)
    assert [folios(loaded, words) for words in (DENSE, SPARSE)] == without
    assert asked(loaded) > (4096 >> order) // 2


@pytest.mark.parametrize("pattern", ("forward", "backward", "every_64k", "random_quarter"))
@pytest.mark.parametrize("name", ("fixed", "adaptive"))
def test_it_tells_what_would_be(loaded: Guest, name: str, pattern: str) -> None:
    """The faults and the memory that a shadow policy says it would save agree with a run in which
    that policy is active.
    """
    must(loaded, f"echo 0 >{POINT}/min_available_percent")
    shadow(loaded, name)
    estimate, before = told(loaded, pattern)
    shadow(loaded, "none")
    switch(loaded, name)
    real = touch(loaded, pattern, MIB, ROUNDS)
    spared = before["faults"] - real["faults"]
    slack = SAMPLES * before["faults"]
    assert estimate.spared_least - slack <= spared <= estimate.spared_most + slack
    pages = (real["kb"] - before["kb"]) / 4
    slack = SAMPLES * max(real["kb"], before["kb"]) / 4
    assert estimate.pages_least - slack <= pages <= estimate.pages_most + slack


def test_of_a_profile(loaded: Guest) -> None:
    """The shadow policy of a profile is called only for processes of the profile, and with the
    knobs of that profile.
    """
    profile = f"{ROOT}/profiles/try"
    must(loaded, f"echo try >{ROOT}/profiles/create; echo 5 >{profile}/anon_order/fixed/max_order")
    shadow(loaded, "fixed", f"{profile}/anon_order")
    stats = "/sys/kernel/debug/mmpolicy/try/anon_order/stats"
    count = f"grep -E 'shadow_allocated_order_[45] ' {stats}"
    dense = "map 32768 touch 0 32768 folios 0 32768"
    assert folios(loaded, dense) == [{0: 32768}]
    assert must(loaded, count) == "shadow_allocated_order_4 0\nshadow_allocated_order_5 0\n"
    must(loaded, f"sh -c 'echo $$ >{profile}/pids && exec {ops_command(dense)}'")
    four, five = (int(line.split()[1]) for line in must(loaded, count).splitlines())
    assert four <= 36
    assert 480 < five < 1568  # 1,024 are expected, with a standard deviation of 106
    assert asked(loaded) == 0
    must(loaded, f"echo try >{ROOT}/profiles/delete")
    assert must(loaded, f"cat {ROOT}/state") == "stock\n"


@pytest.mark.parametrize("end", ("echo none >{POINT}/shadow", "echo 1 >{ROOT}/reset", "sleep 0.5"))
def test_ends(loaded: Guest, end: str) -> None:
    """A write, a reset or the end of the lease ends a shadow policy, which is then no longer
    called.
    """
    shadow(loaded, "adaptive")
    assert must(loaded, f"cat {ROOT}/state") == "active\n"
    if "sleep" in end:
        must(loaded, f"echo 300 >{ROOT}/lease_ms")
    must(loaded, end.format(POINT=POINT, ROOT=ROOT))
    before = asked(loaded)
    folios(loaded, DENSE)
    assert asked(loaded) == before
    assert "[none]" in must(loaded, f"cat {POINT}/shadow")
    assert must(loaded, f"cat {ROOT}/state") == ("expired\n" if "sleep" in end else "stock\n")


def test_unload(loaded: Guest) -> None:
    """The module can be unloaded while a shadow policy is being called."""
    shadow(loaded, "adaptive")
    must(loaded, f"{ops_command(DENSE)} >/dev/null & rmmod mmpolicy; wait $!")
    assert folios(loaded, DENSE) == [{0: 4096}]


def test_trace(loaded: Guest) -> None:
    """The tracepoint mmpolicy_anon_shadow shows each answer of a shadow policy."""
    shadow(loaded, "fixed")
    event = "/sys/kernel/tracing/events/mmpolicy/mmpolicy_anon_shadow"
    must(loaded, f"echo 1 >{event}/enable; {ops_command(DENSE)}; echo 0 >{event}/enable")
    trace = "/sys/kernel/tracing/trace"
    lines = must(loaded, f"grep mmpolicy_anon_shadow: {trace}; echo >{trace}").splitlines()
    assert sum("order=4 reason=cap" in line for line in lines) > 4096 / 12 * 0.8


def test_cost(all_machines: Machines) -> None:
    """With a shadow policy, a fault takes at most MORE instructions more than under `never` without
    one.
    """
    all_machines.end()
    cases = [Case("forward", 64, 5), Case("every_64k", 64, 61), Case("random_quarter", 64, 15)]
    arms = [("never", "none"), *((a, s) for a in ("stock", "never") for s in ("adaptive", "fixed"))]
    with counting.counting_guest("patched", MEM) as guest:
        must(guest, f"echo madvise >{THP}/enabled; modprobe mmpolicy")
        must(guest, f"{workload('touch')} forward 64")
        found = {}
        for active, name in arms:
            must(guest, f"echo {active} >{POINT}/policy; echo {name} >{POINT}/shadow")
            for case in cases:
                (sample,) = take_sample(guest, active, case)
                found[active, name, case.pattern] = sample.values["ticks"] / sample.values["faults"]
    for (active, name, pattern), taken in found.items():
        more = taken - found["never", "none", pattern]
        assert more <= MORE, f"{name} beside {active}, {pattern}: {more:.1f} instructions more"
