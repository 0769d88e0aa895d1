# SPDX-License-Identifier: GPL-2.0
"""Cost and benefit of the policies of compact, after mmtests' stress-highalloc.

tests/workloads/highalloc.c fills a guest with two nodes with small pages, pins some of them and
frees others, so that free memory is fragmented, and then requests large folios. Each arm, case and
seed has a guest of its own. The numbers of pages scanned, isolated and so on are the increase of
the counters in /proc/vmstat during the requests; pages scanned by kcompactd are counted separately.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lab import counting
from lab.counting import Arm, Results, Sample
from lab.guest import Guest
from lab.programs import must, ran, workload

POINT = "/sys/kernel/mmpolicy/profiles/default/compact"
POLICIES = ("budget", "eager")
MEM = "1G"
NODES = 2
FILLED_MIB = 850
BASE = "stock"

# The module is loaded in the stock arm, too: loading it makes some memory unmovable, which must be
# the same in all arms.
ARMS = [Arm(name, setup=f"modprobe mmpolicy compact={name}") for name in (BASE, *POLICIES)]


@dataclass(frozen=True)
class Case:
    """One kind of fragmentation; its fields are the arguments of the program highalloc."""

    name: str
    pinned_percent: int
    tries: int
    rounds: int = 1
    churners: int = 0
    order: int = 9
    free_percent: int = 50
    file: str = ""

    def command(self, seed: int) -> str:
        """Return the command that runs highalloc in the guest."""
        return (
            f"{workload('highalloc')} {FILLED_MIB} {self.free_percent} {self.pinned_percent}"
            f" {self.order} {self.tries} {self.rounds} {self.churners} {seed} {self.file}"
        )


ZRAM = "/dev/zram0"
CASES = [
    Case("idle", pinned_percent=70, tries=1200, rounds=2),
    Case("busy", pinned_percent=70, tries=1200, rounds=2, churners=4),
    Case("idle, short", pinned_percent=70, tries=250, rounds=2),
    Case("busy, short", pinned_percent=70, tries=250, rounds=2, churners=4),
    Case("hopeless", pinned_percent=100, tries=1600),
    Case("movable", pinned_percent=0, tries=200, rounds=3),
    Case("tight", pinned_percent=60, free_percent=40, tries=800, rounds=3),
    Case("page cache", pinned_percent=70, tries=600, file=ZRAM),
]
QUICK_CASES = ("hopeless", "movable")


def policy(name: str, knobs: str = "") -> str:
    """Return shell commands that set knobs of a policy, then select it."""
    pairs = [knob.partition("=") for knob in knobs.split()]
    writes = [f"echo {value} >{POINT}/{name}/{knob} || exit" for knob, _, value in pairs]
    return "\n".join([*writes, f"echo {name} >{POINT}/policy"])


def values_of(found: dict[str, int]) -> dict[str, float]:
    """Return the numbers of one run. Scanned pages are those of programs alone; the pages that
    kcompactd has scanned are in "daemon_scanned".
    """
    values = {key: float(value) for key, value in found.items()}
    for kind in ("migrate", "free"):
        values[f"{kind}_scanned"] = (
            values[f"compact_{kind}_scanned"] - values[f"compact_daemon_{kind}_scanned"]
        )
    values["scanned"] = values["migrate_scanned"] + values["free_scanned"]
    values["daemon_scanned"] = (
        values["compact_daemon_migrate_scanned"] + values["compact_daemon_free_scanned"]
    )
    return values


def mean(all_values: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the mean of each number over several runs, by name."""
    return {key: sum(v[key] for v in all_values) / len(all_values) for key in all_values[0]}


def run_once(guest: Guest, arm: Arm, case: Case, seed: int) -> dict[str, float]:
    """Run the program highalloc on a case in a fresh guest, without proactive compaction; return
    its numbers.
    """
    must(guest, f"echo 0 >/proc/sys/vm/compaction_proactiveness && {arm.setup}")
    disk = f"/sys/block/{Path(ZRAM).name}"
    must(guest, f"[ -e {disk} ] || modprobe zram; echo 1G >{disk}/disksize")
    return values_of(ran(guest, case.command(seed), timeout=1800))


def take(arm: Arm, case: Case, seeds: int) -> Sample:
    """Run a case in one guest for each seed; return a sample with the means over these guests."""
    found = []
    for seed in range(1, seeds + 1):
        with counting.counting_guest(arm.flavor, MEM, nodes=NODES) as guest:
            values = run_once(guest, arm, case, seed)
        counting.progress(
            f"compact: {case.name}, {arm.name}, guest {seed} of {seeds}: {values['large']:.0f}"
            f" large folios, {values['scanned']:.0f} pages scanned"
        )
        found.append(values)
    return Sample(arm.name, case.name, mean(found))


def samples(arms: Sequence[Arm], cases: Sequence[Case], seeds: int) -> Iterator[Sample]:
    """Yield a sample per arm and case."""
    for case in cases:
        for arm in arms:
            yield take(arm, case, seeds)


def run(arms: Sequence[Arm], cases: Sequence[Case], seeds: int) -> Results:
    """Measure arms in cases, with `seeds` guests for each pair."""
    about = {"cpu": counting.CPU, "unit": "instructions", "seeds": str(seeds)}
    return Results("compact", about, list(samples(arms, cases, seeds)))


COLUMNS = {
    "large": ("large folios", "{:.1f}"),
    "migrate_scanned": ("migrate scanned", "{:.0f}"),
    "free_scanned": ("free scanned", "{:.0f}"),
    "daemon_scanned": ("by kcompactd", "{:.0f}"),
    "compact_isolated": ("isolated", "{:.0f}"),
    "compact_stall": ("stalls", "{:.0f}"),
    "ticks": ("instructions", "{:.0f}"),
    "ticks_99": ("99 % of faults below", "{:.0f}"),
    "ticks_max": ("longest fault", "{:.0f}"),
}


def cell(results: Results, case: str, arm: str, key: str) -> str:
    """Format a number of the table of a case."""
    if key in COLUMNS:
        return COLUMNS[key][1].format(results.value(arm, case, key))
    return f"{results.ratio(arm, BASE, case, key.removeprefix('x ')):.3f}"


def table(results: Results, case: str) -> str:
    """Return the table of a case, with a row for each number, and with two ratios to the arm stock:
    large folios, and scanned pages.
    """
    arms = results.arms()
    ratios = {"x large": "large folios / stock", "x scanned": "pages scanned / stock"}
    titles = {key: title for key, (title, _) in COLUMNS.items()} | ratios
    rows = [
        [title, *map(partial(cell, results, case, key=key), arms)] for key, title in titles.items()
    ]
    return f"{case}: {results.value(BASE, case, 'tries'):.0f} tries\n" + counting.table(
        ["", *arms], rows
    )


def main(argv: list[str]) -> None:
    parser = counting.options("compact", "Compare the policies of compact with the stock kernel.")
    parser.add_argument("--case", choices=[case.name for case in CASES], help="only this case")
    parser.add_argument("--seeds", type=int, default=3, help="guests for each arm and case (3)")
    chosen: argparse.Namespace = parser.parse_args(argv)
    wanted = QUICK_CASES if chosen.quick else [chosen.case or case.name for case in CASES]
    cases = [case for case in CASES if case.name in wanted]
    results = run(ARMS, cases, 1 if chosen.quick else chosen.seeds)
    print(f"{counting.CPU}\nInstructions show path length, not speed.\n")
    print("\n\n".join(table(results, case) for case in results.cases()))
    if chosen.json:
        results.save(chosen.json)
