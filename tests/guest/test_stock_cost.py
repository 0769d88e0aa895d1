# SPDX-License-Identifier: GPL-2.0
"""What it costs and saves on a kernel without the hooks, against one with them.

In counted instructions. Debian's own kernel differs from the lean one in more than the
hooks; the kernel "traced" only in what ftrace needs.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from anon_order import Case, stock_size, take_sample
from common import Results, Sample, counting_guest, must, ran, workload
from vm import Guest

from .conftest import Machines
from .limits import NOISE, Repeated
from .test_bindings import TOP, bind
from .test_stock_kernel import DENSE, POLICIES
from .tools import POINT, ROOT, THP, back_to_boot

LONG = True

FORWARD, SPARSE = Case("forward", 64, 21), Case("every_64k", 64, 40)
PATTERNS = [Case(name, 64, 5) for name in ("backward", "streams", "brk", "random_quarter")]
CHANGES = Case("dense_sparse", 64, 5)
SETS = {
    "off": "",
    "neighbour": f"echo fixed >{ROOT}/profiles/a/anon_order/policy; {bind('a', 'a')}",
    "given": "; ".join(stock_size(kb) for kb in (16, 32, 64)),
    "fixed": f"echo 4 >{POINT}/fixed/max_order; echo fixed >{POINT}/policy",
    "adaptive": f"echo 4 >{POINT}/adaptive/max_order; echo adaptive >{POINT}/policy",
}

# At other points: a workload that asks, what it needs, and a policy that changes nothing there.
# Folios of 32 kB come from the lists of a CPU, so that each takes the same.
ELSEWHERE = {
    "thp_gfp": ("large 2000", f"{stock_size(32)}; echo always >{THP}/defrag", "relaxed"),
    "madv_free": ("free 5000", ":", "cap"),
}
WHO = {
    "off": "",
    "neighbour": f"echo {{1}} >{ROOT}/profiles/a/{{0}}/policy; {bind('a', 'a')}",
    "on": f"echo {{1}} >{ROOT}/profiles/default/{{0}}/policy",
}

# From one to the next, in one guest, and what all of it is compared with in each.
STATES = {
    "before": ":",
    "loaded": "modprobe mmpolicy",
    "reset": f"{POLICIES}; {workload('ops')} {DENSE}; echo 1 >{ROOT}/reset",
    "unloaded": "rmmod mmpolicy",
}
WHILE_OFF = [Case("forward", 64, 11), Case("brk", 64, 5)]


def begin(guest: Guest, setup: str) -> None:
    """Load the module, make a profile and a cgroup, and what else is wanted."""
    back_to_boot(guest)
    must(guest, f"modprobe mmpolicy; echo a >{ROOT}/profiles/create; mkdir -p {TOP}/a; {setup}")


def take_off(guest: Guest, way: str) -> Iterator[Sample]:
    """Before the module comes, while it does nothing, and after it has gone."""
    back_to_boot(guest)
    must(guest, f"{workload('touch')} forward 64")
    for state, setup in STATES.items():
        must(guest, setup)
        for case in WHILE_OFF:
            yield from take_sample(guest, f"{way} {state}", case)


def take_elsewhere(guest: Guest, way: str) -> Iterator[Sample]:
    """Instructions of each call at the other points, with all around it."""
    for point, (words, needs, policy) in ELSEWHERE.items():
        for who, setup in WHO.items():
            begin(guest, f"{needs}; {setup.format(point, policy)}")
            found = ran(guest, f"{workload('asks')} {words}")
            yield Sample(f"{way} {who}", point, {"ticks": float(found["ticks"])})


def take(guest: Guest, way: str) -> Iterator[Sample]:
    """All samples of a kernel."""
    if way == "ftrace":
        yield from take_off(guest, way)
    for name, setup in SETS.items():
        begin(guest, setup)
        more = [*PATTERNS, CHANGES] if name in ("off", "adaptive") else []
        for case in (FORWARD, SPARSE, *more):
            yield from take_sample(guest, f"{way} {name}", case)
    yield from take_elsewhere(guest, way)


PAIRS = {"debian": ("cloud", "patched"), "lean": ("traced", "patched")}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("debian", marks=pytest.mark.flavor(*PAIRS["debian"])),
        pytest.param("lean", marks=[pytest.mark.flavor(*PAIRS["lean"]), pytest.mark.full]),
    ],
)
def costs(all_machines: Machines, request: pytest.FixtureRequest) -> Repeated:
    """A kernel without and one with the hooks; the way and what is set make an arm's name."""

    def take_both(_: frozenset[str]) -> Results:
        all_machines.end()
        results = Results("stock_cost", {"pair": request.param})
        for way, flavor in zip(("ftrace", "hooks"), PAIRS[request.param], strict=True):
            with counting_guest(flavor, "1G") as guest:
                results.samples += take(guest, way)
                guest.check()
        return results

    return Repeated(take_both)


def fault(costs: Results, arm: str, case: Case) -> float:
    """Instructions of a fault."""
    return costs.value(arm, case.name(), "ticks") / costs.value(arm, case.name(), "faults")


@pytest.mark.parametrize("case", WHILE_OFF, ids=Case.name)
@pytest.mark.parametrize("state", ("loaded", "reset", "unloaded"))
def test_off_costs_nothing(costs: Repeated, state: str, case: Case) -> None:
    """Against the same kernel before the module came."""

    def of_before(run: Results) -> float:
        return run.ratio(f"ftrace {state}", "ftrace before", case.name(), "ticks")

    costs.hold(1.001 + NOISE, of_before, f"ticks of {case.name()}, {state}")


@pytest.mark.parametrize(("case", "noise"), [(FORWARD, NOISE), (SPARSE, 0.005)])
def test_what_a_neighbour_pays(costs: Repeated, case: Case, noise: float) -> None:
    """A fault of somebody without a policy, against one while no size is given or open.

    Lists of free pages make sparse access vary by more; and one fault in 32 asks twice.
    """

    def of_off(run: Results) -> float:
        return fault(run, "ftrace neighbour", case) / fault(run, "ftrace off", case)

    assert of_off(costs.run()) > 1
    costs.hold(1.02 + noise, of_off, f"a fault of a neighbour, {case.name()}")


@pytest.mark.parametrize("policy", ["fixed", "adaptive"])
def test_what_a_call_costs(costs: Repeated, policy: str) -> None:
    """Where the kernel calls the function anyway: beyond what the policy costs by the hooks."""

    def beyond(run: Results) -> float:
        ftrace, hooks = (
            fault(run, f"{way} {policy}", FORWARD) - fault(run, f"{way} given", FORWARD)
            for way in ("ftrace", "hooks")
        )
        return ftrace - hooks

    costs.hold(50, beyond, f"instructions of a call, {policy}")


# Debian's kernel has longer ways for locks and page tables, which policies use.
ON_DEBIAN = {("madv_free", "on"): 140}


@pytest.mark.parametrize("who", ("on", "neighbour"))
@pytest.mark.parametrize("point", ELSEWHERE)
def test_what_a_call_costs_elsewhere(costs: Repeated, point: str, who: str) -> None:
    """Beyond what the same costs by the hooks."""

    def beyond(run: Results) -> float:
        ftrace, hooks = (
            run.value(f"{way} {who}", point, "ticks") - run.value(f"{way} off", point, "ticks")
            for way in ("ftrace", "hooks")
        )
        return ftrace - hooks

    on_debian = costs.run().about["pair"] == "debian"
    limit = ON_DEBIAN.get((point, who), 50) if on_debian else 50
    costs.hold(limit, beyond, f"instructions of a call, {point}, {who}")


@pytest.mark.parametrize("case", (FORWARD, SPARSE, *PATTERNS), ids=Case.name)
def test_what_is_saved(costs: Repeated, case: Case) -> None:
    """As much memory as by the hooks, and nine tenths of the instructions saved."""
    name = case.name()

    def lost(run: Results) -> float:
        ftrace, hooks = (
            1 - run.ratio(f"{way} adaptive", f"{way} off", name, "ticks")
            for way in ("ftrace", "hooks")
        )
        return 1 - ftrace / hooks if hooks > 0.1 else 0

    def kb_differs_by(run: Results) -> float:
        return abs(1 - run.ratio("ftrace adaptive", "hooks adaptive", name, "kb"))

    costs.hold(0.1, lost, f"part of what is saved by the hooks, {name}")
    costs.hold(0.02, kb_differs_by, f"memory, {name}")


def test_what_is_lost_without_witnesses(costs: Repeated) -> None:
    """Dense access that becomes sparse: it has been seen that large folios go on."""
    run, sparse = costs.run(), f"{CHANGES.pattern}.2 {CHANGES.mib}M"
    assert run.ratio("hooks adaptive", "hooks off", sparse, "kb") <= 1.25
    assert run.ratio("ftrace adaptive", "ftrace off", sparse, "kb") > 2
