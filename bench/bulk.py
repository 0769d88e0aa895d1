# SPDX-License-Identifier: GPL-2.0
"""Cost and savings of the policies of bulk, compared with the stock refill of 64 pages.

The loads are those of module/tests/page_pool_bench.c: bursts of 64 pages, bursts of 1 to 192, and
bursts of 64 from a zone that is out of pages. No page returns to the pool. The load redirect is a
whole path: packets through two pairs of veth with XDP_REDIRECT into a socket
(tests/workloads/redirect.c).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lab import counting
from lab.counting import Arm, Results, Sample
from lab.guest import Guest
from lab.programs import must, ran, workload

POINT = "/sys/kernel/mmpolicy/profiles/default/bulk"
STATS = "/sys/kernel/debug/mmpolicy/default/bulk/stats"
MEASURE = "/sys/kernel/debug/mmpolicy/measure"
PARAMETERS = "/sys/module/mmpolicy_page_pool/parameters"
RUN = "/sys/kernel/debug/mmpolicy_bench"
MEM = "1G"
BASE = "stock"
SINGLE = "single pages"
SIZES = (1, 8, 16, 32, 64, 128)
LOADS = {"steady": 1000, "bursty": 1000, "starved 40": 1000, "starved -32": 500}  # bursts
LEARNING = 4  # factor on bursts, so that learning is part of the result
REDIRECT = "redirect"
ROUNDS, PACKETS = 5, 1000

# Longer per-CPU lists of free pages let the bursts be served from these lists alone. The state of
# the zone's own lists depends on all that ran before, and would change results by 10 %.
SETUP = """
echo 100 >/proc/sys/vm/percpu_pagelist_high_fraction && modprobe mmpolicy_page_pool || exit
"""

PAIRS = """
pair() {
	busybox ip link add $1 type veth && busybox ip link set veth0 name $2 &&
		busybox ip link set $1 up && busybox ip link set $2 up
}
pair in mid && pair out end && busybox ip addr add 10.9.0.2/24 dev end
"""
NO_PAIRS = "busybox ip link del in && busybox ip link del out"


@dataclass(frozen=True)
class BulkArm(Arm):
    """An arm. All arms of a kernel run in one guest, one after another.

    parameters: parameters of the consumer, as for parameters(). times: factor on the bursts.
    """

    parameters: str = "single=0"
    times: int = 1


def fixed(pages: int) -> str:
    """Return shell commands that select a fixed size."""
    return f"echo {pages} >{POINT}/fixed/pages && echo fixed >{POINT}/policy"


ADAPTIVE = f"echo adaptive >{POINT}/policy"
KERNELS = {
    "unpatched": [
        BulkArm(SINGLE, "unpatched", parameters="single=1"),
        BulkArm(BASE, "unpatched"),
    ],
    "patched": [
        BulkArm("patched"),
        BulkArm("loaded", setup="modprobe mmpolicy"),
        *(BulkArm(f"fixed-{pages}", setup=fixed(pages)) for pages in SIZES),
        BulkArm("adaptive", setup=ADAPTIVE, times=LEARNING),
        BulkArm("unloaded", setup="rmmod mmpolicy"),
    ],
}


def parameters(words: str) -> str:
    """Return shell commands that set parameters of the consumer, such as "load=steady rounds=3"."""
    pairs = (word.split("=") for word in words.split())
    return " && ".join(f"echo {value} >{PARAMETERS}/{name}" for name, value in pairs)


def consume(guest: Guest, load: str, rounds: int) -> dict[str, int]:
    """Run a load, such as "starved 40", once."""
    name, _, left = load.partition(" ")
    words = f"load={name} rounds={rounds} left={left or 0}"
    return ran(guest, f"{parameters(words)} && cat {RUN}")


def redirect(guest: Guest, rounds: int = ROUNDS, packets: int = PACKETS) -> dict[str, int]:
    """Send packets through the interfaces of PAIRS; wrong data makes the workload fail."""
    command = f"{workload('redirect')} in mid out end {rounds} {packets}"
    return ran(guest, command)


def take(guest: Guest, arms: Sequence[BulkArm]) -> Iterator[Sample]:
    """Yield the samples of all arms of a kernel."""
    must(guest, SETUP + PAIRS)
    consume(guest, "bursty", 1000)
    redirect(guest)
    for arm in arms:
        must(guest, f"{parameters(arm.parameters)} && {arm.setup or ':'}")
        for load, rounds in LOADS.items():
            found = consume(guest, load, rounds * arm.times)
            values = {key: found[key] / found["pages"] for key in ("ticks", "all_ticks", "refills")}
            yield Sample(arm.name, load, values)
        if arm.name != SINGLE:
            found = redirect(guest, ROUNDS * arm.times)
            yield Sample(arm.name, REDIRECT, {"ticks": found["ticks"] / found["packets"]})


def run() -> Results:
    """Measure all arms, with one guest per kernel."""
    results = Results("bulk", {"cpu": counting.CPU, "unit": "instructions per page or packet"})
    guests = [Arm(flavor, flavor) for flavor in KERNELS]
    counting.measure(results, guests, MEM, lambda guest, arm: take(guest, KERNELS[arm.name]))
    return results


def best_fixed(results: Results, load: str) -> float:
    """Return the cost of the best fixed size."""
    return min(results.value(f"fixed-{pages}", load, "ticks") for pages in SIZES)


def report(results: Results) -> str:
    """Return a table of the instructions per page (per packet: redirect), with a row for each arm;
    each number also as a multiple of BASE.
    """

    def cell(arm: str, load: str) -> str:
        ticks = results.find(arm, load, "ticks")
        if ticks is None:
            return ""
        return f"{ticks:.1f} ({results.ratio(arm, BASE, load, 'ticks'):.3f})"

    loads = results.cases()
    rows = [[arm, *(cell(arm, load) for load in loads)] for arm in results.arms()]
    near = [results.value("adaptive", load, "ticks") / best_fixed(results, load) for load in loads]
    rows.append(["adaptive / best fixed", *(f"{ratio:.3f}" for ratio in near)])
    return counting.table(["", *loads], rows)


def main(argv: list[str]) -> None:
    args = counting.options("bulk", __doc__ or "").parse_args(argv)
    results = run()
    print(f"Instructions per page (per packet: {REDIRECT}), and as a multiple of {BASE}.\n")
    print(report(results))
    if args.json:
        results.save(args.json)
