# SPDX-License-Identifier: GPL-2.0
"""The cost of a policy in BPF, compared with its equal in C, in instructions on Debian's kernel."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.anon_order import Case, take_sample
from lab.counting import Results, Sample, counting_guest
from lab.guest import Guest
from lab.policies import example, loading, policy_object
from lab.programs import must, workload

from .conftest import Machines
from .hostile_bpf import SOURCE
from .limits import NOISE, Repeated
from .tools import POINT, ROOT, back_to_boot

pytestmark = [
    pytest.mark.flavor("cloud"),
    pytest.mark.amd64("mmpolicy-bpf is built for this machine alone"),
]
SECONDS = 20.0  # rough duration of each test, for the schedule

FORWARD, SPARSE = Case("forward", 64, 5), Case("every_64k", 64, 21)
# 256 MiB, because there are few faults of 64 kB: with 64 MiB, a timer tick would add 17
# instructions to each fault.
LARGE = Case("forward", 256, 5)
ZERO = SOURCE.replace("hostile", "zero") % ("", "", "")
FIXED = f"echo {{}} >{POINT}/fixed/max_order; echo fixed >{POINT}/policy"
# The arm "pages" has the policy `fixed` with order 0, which is asked at each fault, as a BPF policy
# is. `never` would not do: it answers in advance, without being asked.
ARMS = {
    "pages": FIXED.format(0),
    **{policy: f"echo {policy} >{POINT}/policy" for policy in ("zero", "adaptive", "block")},
}
ARMS_OF_LARGE, TIMES = ("fixed", "fixed64"), 5
# Commands that create an unused profile with sizes up to 64 kB. It makes the kernel enable these
# sizes also in the arm "pages", as they are in the other arms.
OPEN = f"echo open >{ROOT}/profiles/create; echo fixed >{ROOT}/profiles/open/anon_order/policy"


def take_large(guest: Guest) -> Iterator[Sample]:
    """Yield the median run of each arm with 64 kB folios, because two runs of one arm differ by
    more than a call of a policy costs.
    """
    taken: dict[str, list[Sample]] = {arm: [] for arm in ARMS_OF_LARGE}
    for _ in range(TIMES):
        for arm, runs in taken.items():
            must(guest, FIXED.format(4) if arm == "fixed" else f"echo {arm} >{POINT}/policy")
            runs += take_sample(guest, arm, LARGE)
    for runs in taken.values():
        yield sorted(runs, key=lambda each: each.values["ticks"])[TIMES // 2]


def costs_on(machines: Machines, flavor: str) -> Repeated:
    """Return a measurement of what policies cost on this kernel. Each run measures all policies in
    turn, in one guest.
    """

    def take(_: frozenset[str]) -> Results:
        machines.end()
        results = Results("bpf_cost")
        with counting_guest(flavor, "1G") as guest:
            back_to_boot(guest)
            paths = policy_object("zero", ZERO), example("fixed"), example("block")
            must(guest, "mount -t bpf bpf /sys/fs/bpf; modprobe mmpolicy")
            must(guest, "\n".join([OPEN, *map(loading, paths)]))
            must(guest, f"{workload('touch')} forward {LARGE.mib}")
            for arm, setup in ARMS.items():
                must(guest, setup)
                for case in FORWARD, SPARSE:
                    results.samples += take_sample(guest, arm, case)
            results.samples += take_large(guest)
            guest.check()
        return results

    return Repeated(take)


@pytest.fixture(scope="module")
def costs(all_machines: Machines, stock: str) -> Repeated:
    """Return the costs on one of Debian's own kernels."""
    return costs_on(all_machines, stock)


@pytest.mark.parametrize(
    ("policy", "in_c", "case"), [("zero", "pages", FORWARD), ("fixed64", "fixed", LARGE)]
)
def test_what_a_question_costs(costs: Repeated, policy: str, in_c: str, case: Case) -> None:
    """A fault costs at most 85 instructions more under a BPF policy than under the same policy in
    C.
    """

    def beyond(run: Results) -> float:
        ours, theirs = (
            run.value(arm, case.name(), "ticks") / run.value(arm, case.name(), "faults")
            for arm in (policy, in_c)
        )
        return ours - theirs

    assert beyond(costs.run()) > 20  # the program was called
    costs.hold(85, beyond, f"instructions of a fault, {policy}")


@pytest.mark.parametrize(("case", "limit"), [(FORWARD, 1.02 + NOISE), (SPARSE, 1.045)])
def test_what_block_costs(costs: Repeated, case: Case, limit: float) -> None:
    """The BPF policy `block`, which decides by use and has the flag MMP_IF_NEAR, costs little more
    than `adaptive`, and gives a program as much memory.

    On sparse access, `adaptive` answers most faults in advance, which saves 3 %: three runs had
    ratios of 1.0403, 1.0396 and 1.0385.
    """

    def ratio(key: str, run: Results) -> float:
        return run.ratio("block", "adaptive", case.name(), key)

    costs.hold(limit, lambda run: ratio("ticks", run), f"ticks of {case.name()}")
    costs.hold(1.01, lambda run: ratio("kb", run), f"memory of {case.name()}")
