# SPDX-License-Identifier: GPL-2.0
"""How much `adaptive` keeps of what large folios save in faults, and of what they cost in memory,
for programs with hundreds of MB.

The programs are those of ./dev bench time --large, with a quarter of their load. Each runs once
under each arm, in a fresh guest with two CPUs. Faults and memory are counted, not time. The share
of 2 MB pages is the most that a look each half second has seen, as a part of the largest RSS.
Results in bench/kept.json, or in FILE of --json, are not measured again.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator

from bench import recordings, with_table
from bench.anon_order import policy
from bench.large import a_part, large_programs
from bench.programs import Program, build, chosen_programs, missing
from lab import counting
from lab.counting import THP, Arm, Results, Sample
from lab.guest import Guest, new_guest
from lab.machine import TREE
from lab.programs import must, ran

KEPT, PAGE = TREE / "bench/kept.json", TREE / "docs/workloads.md"
MEM, PART = "3G", 0.25
LIMIT_S = 3600.0  # time limit in seconds for one program, in an emulated guest
BASE, HUGE = "stock-4k", "stock-2M"
OFF, ALWAYS = (f"echo {value} >{THP}/enabled" for value in ("never", "always"))
ARMS = (
    Arm(BASE, setup=OFF),
    Arm("fixed-4", setup=policy("fixed", 4)),
    Arm("adaptive-4", setup=policy("adaptive", 4)),
    Arm(HUGE, setup=ALWAYS),
    Arm("adaptive-9", setup=f"{ALWAYS} && {policy('adaptive', 9)}"),
)
# the figures depend on the files in these directories; figures of other files are refused
SOURCES = ("module", "bench/loads")
# numpy may not sort by AVX2: QEMU 7.2 emulates its gathers wrongly, so that a sort gives another
# order or ends by a signal
PLAIN = "export NPY_DISABLE_CPU_FEATURES=AVX2"
LOOKS = "while :; do grep AnonHugePages /proc/meminfo >>/run/huge; sleep 0.5; done"


def take(guest: Guest, arm: Arm, program: Program) -> Sample:
    """Run a program once; return its faults, its largest RSS, and the most memory in 2 MB pages
    that was seen, in kB.
    """
    must(guest, "grep AnonHugePages /proc/meminfo >/run/huge")
    looks = guest.start(LOOKS)
    found = ran(guest, f"{PLAIN}; {program.line()}", LIMIT_S)
    looks.stop()
    seen = [int(line.split()[1]) for line in must(guest, "cat /run/huge").splitlines()]
    values = {"faults": found["faults"], "kb": found["kb"], "huge_kb": max(seen) - seen[0]}
    return Sample(arm.name, program.name, values)


def saved(results: Results, case: str) -> float:
    """Return the share of the faults saved by 64 kB for all that `adaptive` saves, too."""
    least, most, own = (
        results.value(arm, case, "faults") for arm in (BASE, "fixed-4", "adaptive-4")
    )
    return (least - own) / (least - most)


def covered(results: Results, arm: str, case: str) -> float:
    """Return the part of a program's memory that was in 2 MB pages, at most 1."""
    return min(results.value(arm, case, "huge_kb") / results.value(arm, case, "kb"), 1.0)


def rows(results: Results) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each program that ran under all arms, and of the medians."""
    found = dict[str, list[float]]()
    for case in results.complete([arm.name for arm in ARMS]):
        memory = (results.ratio(arm.name, BASE, case, "kb") for arm in ARMS[1:])
        huge = (covered(results, arm, case) for arm in (HUGE, "adaptive-9"))
        mib = results.value(BASE, case, "kb") / 1024
        found[case] = [mib, saved(results, case), *memory, *huge]
    if len(found) > 1:
        found["median"] = [statistics.median(column) for column in zip(*found.values())]
    for name, (mib, share, fixed, own, of_huge, own_huge, theirs, ours) in found.items():
        yield (name, f"{mib:.0f} MiB", f"{100 * share:.1f} %", f"{own:.3f} ({fixed:.3f})",
               f"{own_huge:.3f} ({of_huge:.3f})",
               f"{100 * ours:.0f} % ({100 * theirs:.0f} %)")  # fmt: skip


HEAD = (
    "program", "largest RSS, 4 kB", "saved faults", "RSS, `adaptive` 4 (`fixed` 4)",
    "`adaptive` 9 (2 MB)", "in 2 MB pages, `adaptive` 9 (2 MB)",
)  # fmt: skip


def lines(results: Results) -> Iterator[str]:
    """Yield the table of docs/workloads.md."""
    kernel, guest = results.about["kernel"], results.about["guest"]
    percent = 100 * float(results.about["part"])
    yield f"Guests with Linux {kernel}, {guest}; {percent:.0f} % of each load."
    yield from ["", f"| {' | '.join(HEAD)} |", f"|{'---|' * len(HEAD)}"]
    yield from (f"| {' | '.join(row)} |" for row in rows(results))


def read() -> Results:
    """Return what bench/kept.json has."""
    return Results.resume(KEPT, "kept", {})


def main(argv: list[str]) -> None:
    """Measure the programs that the file of --json lacks, and print the table."""
    parser = counting.options("kept", "What adaptive keeps of the gain and of the memory of large "
                              "folios, on programs with hundreds of MB.")  # fmt: skip
    parser.add_argument("--arm", action="append", help="only this arm; may be repeated")
    recordings.add_option(parser)
    parser.add_argument("names", nargs="*", metavar="PROGRAM", help="only these programs")
    chosen: argparse.Namespace = parser.parse_args(argv)
    programs = chosen_programs(a_part(large_programs(), PART), chosen.names)
    build()
    if chosen.record:
        lines_of = {program.name: program.line() for program in programs}
        recordings.record(chosen.record, lines_of, cpus=2)
        return
    about = {"sources": counting.hash_of(*SOURCES), "part": f"{PART:g}", "guest": f"2 CPUs, {MEM}"}
    path = chosen.json or KEPT
    results = Results.resume(path, "kept", about)
    wanted = [arm for arm in ARMS if arm.name in (chosen.arm or [arm.name])]
    for program in programs:
        for arm in wanted:
            if not missing(results, arm, [program], "faults"):
                continue
            with new_guest("cloud", mem=MEM, cpus=2) as guest:
                results.about["kernel"] = must(guest, "uname -r").strip()
                must(guest, f"echo madvise >{THP}/enabled; {arm.setup}")
                results.samples.append(take(guest, arm, program))
            counting.progress(f"{results.samples[-1]}")
            results.save(path)
    if path == KEPT:
        PAGE.write_text(with_table(PAGE.read_text(), "kept", lines(results)))
    print("\n".join(lines(results)))
