# SPDX-License-Identifier: GPL-2.0
"""Cost and savings of the policies of anon_order, compared with the stock kernel.

Each arm touches fresh memory in several patterns (tests/workloads/touch.c) in a guest of its own.
Policies with a largest folio of up to 64 kB are measured on 64 MiB. Those with 1 MiB or 2 MiB are
measured on 1 GiB: the folios of a stream grow to this size in about ten faults, which on 64 MiB
would be most of the faults. Changes of pattern are measured on 256 MiB, as each change wastes a
folio until the policy adapts.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from lab import counting
from lab.counting import THP, Arm, Results, Sample
from lab.guest import Guest
from lab.programs import must, ran, workload

POINT = "/sys/kernel/mmpolicy/profiles/default/anon_order"
MEASURE = "/sys/kernel/debug/mmpolicy/measure"
MEM = "3G"
BASE = "stock-4k"
SMALL, LARGE, CHANGE = 64, 1024, 256

DENSE = ("forward", "backward", "streams", "threads", "brk", "stack")
# numbers of rounds by pattern; the patterns of LESS_SPARSE are measured only on SMALL memory, those
# of MIXED on 128 MiB
SPARSE = {"every_32k": 61, "every_64k": 121, "every_128k": 241, "random_quarter": 31}
LESS_SPARSE = {"3_of_8": 11, "random_all": 5}
CHANGING = ("sparse_dense", "dense_sparse")
MIXED = {"random_32k": 5, "in_turn": 5, "clusters": 5, "even_odd": 11, "skewed": 11}


@dataclass(frozen=True)
class OrderArm(Arm):
    """An arm, the sizes of memory that it is measured on, in MiB, and its patterns; () means all
    patterns.
    """

    areas: tuple[int, ...] = (SMALL,)
    patterns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """One run of the program touch: a pattern of access, the size of the memory, and a number of
    rounds.
    """

    pattern: str
    mib: int
    rounds: int

    def name(self) -> str:
        """Return the name of the case in the tables."""
        return f"{self.pattern} {self.mib}M"


MALLOC = Case("malloc", 128, 11)


def policy(name: str, cap: int | None = None) -> str:
    """Return shell commands that load the module and select a policy; cap: its largest order, None
    for the default of the policy.
    """
    knob = "" if cap is None else f"echo {cap} >{POINT}/{name}/max_order && "
    return f"modprobe mmpolicy && {knob}echo {name} >{POINT}/policy"


def stock_size(kb: int) -> str:
    """Return a shell command that enables a folio size for all memory."""
    return f"echo always >{THP}/hugepages-{kb}kB/enabled"


UNLOADED = (
    f"{policy('adaptive', 4)} && dd if=/dev/zero of=/dev/null bs=8M count=1"
    f" && echo stock >{POINT}/policy && rmmod mmpolicy"
)

ARMS = [
    OrderArm(BASE, "unpatched", areas=(SMALL, LARGE)),
    OrderArm("stock-64k", "unpatched", stock_size(64)),
    OrderArm("stock-1M", "unpatched", stock_size(1024), areas=(LARGE,)),
    OrderArm("patched"),
    OrderArm("loaded", setup="modprobe mmpolicy"),
    OrderArm("unloaded", setup=UNLOADED),
    OrderArm("never", setup=policy("never")),
    OrderArm("vma_size-4", setup=policy("vma_size", 4)),
    OrderArm("fixed-4", setup=policy("fixed", 4)),
    OrderArm("adaptive-4", setup=policy("adaptive", 4)),
    OrderArm("fixed-8", setup=policy("fixed", 8), areas=(LARGE,)),
    OrderArm("adaptive-8", setup=policy("adaptive", 8), areas=(LARGE,)),
    OrderArm("fixed-9", setup=policy("fixed", 9), areas=(LARGE,)),
    OrderArm("adaptive-9", setup=policy("adaptive", 9), areas=(LARGE,)),
]
QUICK_ARMS = (BASE, "stock-64k", "patched", "fixed-4", "adaptive-4")


def cases(mib: int) -> list[Case]:
    """Return all cases on memory of this size. Cheap cases have more rounds, to reduce noise.

    The pattern `stack` is left out on 1 GiB, as a stack cannot grow to this size.
    """
    dense = 11 if mib == SMALL else 3
    return [
        MALLOC,
        *(Case(pattern, mib, dense) for pattern in DENSE if (pattern, mib) != ("stack", LARGE)),
        *(Case(pattern, mib, n if mib == SMALL else 5) for pattern, n in SPARSE.items()),
        *(Case(pattern, mib, n) for pattern, n in LESS_SPARSE.items() if mib == SMALL),
        *(Case(pattern, 128, n) for pattern, n in MIXED.items() if mib == SMALL),
        *(Case(pattern, CHANGE if mib == SMALL else mib, dense) for pattern in CHANGING),
    ]


def quick_cases() -> list[Case]:
    """Return the few cases of --quick, which are measured on SMALL memory."""
    return [Case(pattern, SMALL, 5) for pattern in ("forward", "every_64k", "sparse_dense")]


def small(arms: Sequence[OrderArm]) -> list[OrderArm]:
    """Return the arms that are measured on SMALL memory, without their other sizes."""
    return [replace(arm, areas=(SMALL,)) for arm in arms if SMALL in arm.areas]


def take_sample(guest: Guest, arm: str, case: Case, before: str = "") -> Iterator[Sample]:
    """Run touch once; yield one sample, or two for a pattern that changes: one per half.

    before: shell text that is put before the command.
    """
    command = f"{before}{workload('touch')} {case.pattern} {case.mib} {case.rounds}"
    found = ran(guest, command)
    halves = {"first_": ".1", "second_": ".2"} if "first_ticks" in found else {"": ""}
    for prefix, suffix in halves.items():
        values = {key: float(found[prefix + key]) for key in ("ticks", "faults", "kb")}
        yield Sample(arm, f"{case.pattern}{suffix} {case.mib}M", values)


def take(guest: Guest, arm: Arm, chosen: Sequence[Case], before: str = "") -> Iterator[Sample]:
    """Yield the samples of one arm, after a run that warms up the kernel's lists of free pages."""
    must(guest, f"{workload('touch')} forward {max(case.mib for case in chosen)}")
    for case in chosen:
        yield from take_sample(guest, arm.name, case, before)


def cases_of(arm: OrderArm, quick: bool) -> list[Case]:
    """Return the cases to measure in an arm."""
    if quick:
        return quick_cases()
    chosen = dict.fromkeys(case for mib in arm.areas for case in cases(mib))
    return [case for case in chosen if not arm.patterns or case.pattern in arm.patterns]


def run(arms: Sequence[OrderArm], quick: bool = False) -> Results:
    """Measure arms, each in a fresh guest."""
    results = Results("anon_order", {"cpu": counting.CPU, "unit": "instructions"})
    of = {arm.name: cases_of(arm, quick) for arm in arms}
    counting.measure(results, arms, MEM, lambda guest, arm: take(guest, arm, of[arm.name]))
    return results


# Cost of one decision


@dataclass(frozen=True)
class Cost:
    """Instructions that a policy takes for a decision, without those of the measurement itself."""

    case: str
    per_fault: float
    per_page: float
    constant: float  # instructions of the measurement itself, which reads the clock twice

    def text(self) -> str:
        """Return the cost of a decision as one line of text."""
        return (
            f"{self.case}: {self.per_fault:.1f} instructions a fault, {self.per_page:.2f} a page"
            f" (without the {self.constant:.1f} that measuring itself takes)"
        )


def counters(guest: Guest) -> dict[str, int]:
    return counting.counters(guest, "anon_order")


def counted(guest: Guest, case: Case) -> tuple[int, int, float]:
    """Run a case; return how many instructions the module has counted in the policy, the number of
    decisions for which it counted, and the faults of the run.
    """
    before = counters(guest)
    samples = list(take_sample(guest, "", case))
    after = counters(guest)
    ticks, times = (after[key] - before[key] for key in ("cost_ticks", "cost_samples"))
    return ticks, times, case.rounds * sum(sample.values["faults"] for sample in samples)


def decision_costs() -> list[Cost]:
    """Measure the instructions of adaptive on dense access, less those that measuring takes.

    The policy `never` does nothing, so its instructions are those of the measurement itself.
    """
    found = []
    with counting.counting_guest("patched", MEM) as guest:
        must(guest, f"{policy('never')} && echo 1 >{MEASURE}")
        ticks, times, _ = counted(guest, Case("forward", SMALL, 1))
        constant = ticks / times
        for cap, case in (
            (4, Case("forward", SMALL, 11)),
            (8, Case("forward", LARGE, 3)),
            (9, Case("forward", LARGE, 3)),
        ):
            must(guest, policy("adaptive", cap))
            ticks, times, faults = counted(guest, case)
            spent = ticks - times * constant
            pages = case.rounds * case.mib * 256
            name = f"adaptive-{cap} {case.name()}"
            found.append(Cost(name, spent / faults, spent / pages, constant))
    return found


# Output


def cell(results: Results, key: str, arm: str, case: str) -> str:
    """Format a number of an arm: absolute for BASE and for faults, else as a multiple of BASE."""
    value = results.find(arm, case, key)
    if value is None:
        return "-"
    if key == "faults":
        return f"{value:.0f}"
    if arm == BASE:
        return f"{value / 1e6:.2f} M" if key == "ticks" else f"{value / 1024:.1f} MiB"
    return f"{results.ratio(arm, BASE, case, key):.3f}"


def part(results: Results, mib: int) -> Results:
    """Return the results on memory of `mib` MiB, for the arms that are measured on it."""
    arms = {arm.name for arm in ARMS if mib in arm.areas}
    suffixes = tuple(f" {case.mib}M" for case in cases(mib))
    chosen = [s for s in results.samples if s.arm in arms and s.case.endswith(suffixes)]
    return Results(results.bench, results.about, chosen)


def tables(results: Results) -> str:
    """Return tables of instructions, faults and memory, for each area."""
    titles = {
        "ticks": f"instructions; of others as a multiple of {BASE}",
        "faults": "faults",
        "kb": f"memory; of others as a multiple of {BASE}",
    }
    parts = [
        f"{title}\n{counting.by_arm(some, some.cases(), partial(cell, some, key))}"
        for some in (part(results, SMALL), part(results, LARGE))
        for key, title in titles.items()
        if some.samples
    ]
    return "\n\n".join(parts)


PLOTTED = {
    SMALL: ("stock-64k", "fixed-4", "adaptive-4"),
    LARGE: ("stock-1M", "fixed-8", "adaptive-8", "fixed-9", "adaptive-9"),
}


def plot(results: Results, path: Path) -> None:
    """Plot instructions and memory of each pattern, as multiples of the arm BASE."""
    plt = counting.pyplot()
    drawn = {mib: part(results, mib) for mib in PLOTTED}
    parts = {mib: some for mib, some in drawn.items() if {*PLOTTED[mib]} & {*some.arms()}}
    figure, axes = plt.subplots(len(parts), 2, figsize=(13, 4.5 * len(parts)), squeeze=False)
    for row, (mib, some) in zip(axes, parts.items(), strict=True):
        for axis, key in zip(row, ("ticks", "kb"), strict=True):
            bars(axis, some, PLOTTED[mib], key)
            what = "instructions" if key == "ticks" else "memory"
            axis.set_title(f"{what}, {mib} MiB, as a multiple of {BASE}")
    figure.text(0.5, 0.005, f"Path length, not speed. {results.about['cpu']}", ha="center", size=8)
    figure.tight_layout(rect=(0, 0.02, 1, 1))
    figure.savefig(path, metadata={"Date": None})


def bars(axis: Any, results: Results, arms: Sequence[str], key: str) -> None:
    """Draw one group of bars per case, with a bar for each arm."""
    cases = results.cases()
    arms = [arm for arm in arms if arm in results.arms()]
    width = 0.8 / len(arms)
    for number, arm in enumerate(arms):
        heights = [results.ratio(arm, BASE, case, key) for case in cases]
        axis.bar([i + number * width for i in range(len(cases))], heights, width, label=arm)
    axis.axhline(1, color="black", linewidth=0.8)
    axis.set_yscale("log", base=2)
    axis.yaxis.set_major_formatter("{x:g}")
    axis.set_xticks([i + 0.4 for i in range(len(cases))])
    axis.set_xticklabels([case.split()[0] for case in cases], rotation=45, ha="right", size=8)
    axis.legend(fontsize=8)


def main(argv: list[str]) -> None:
    text = "Compare the policies of anon_order with stock kernels."
    parser = counting.options("anon_order", text, plots=True)
    parser.add_argument("--small", action="store_true", help="measure nothing on 1 GiB of memory")
    chosen: argparse.Namespace = parser.parse_args(argv)
    if chosen.plot:
        # a missing matplotlib is an error now, and not after minutes of measuring
        counting.pyplot()
    arms = counting.of_kernel(ARMS, chosen.arm or (QUICK_ARMS if chosen.quick else ()))
    if chosen.small:
        arms = small(arms)
    results = run(arms, chosen.quick)
    costs = [] if chosen.quick or chosen.small or chosen.arm else decision_costs()
    results.about |= {f"decision cost, {cost.case}": cost.text() for cost in costs}
    print(f"{counting.CPU}\nInstructions show path length, not speed.\n\n{tables(results)}")
    for cost in costs:
        print(f"\ndecision cost, {cost.text()}", end="")
    print()
    if chosen.json:
        results.save(chosen.json)
    if chosen.plot:
        plot(results, chosen.plot)
