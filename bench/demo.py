# SPDX-License-Identifier: GPL-2.0
"""./dev demo: a tour in a guest. What is typed there is shown with its output."""

from __future__ import annotations

import argparse
import sys

from bench import anon_order
from bench.anon_order import Case, stock_size
from lab import counting
from lab.counting import Results
from lab.guest import Guest
from lab.programs import BenchError, must

DENSE, SPARSE = Case("forward", 64, 3), Case("every_64k", 64, 3)
MISSING = 3  # exit status of doctor where something is missing
KERNELS = {
    "cloud": "Debian's own kernel for clouds, as its package has it",
    "patched": "the patched kernel",
}
ARMS = {
    "stock-4k": "mmpolicy reset",
    "stock-64k": stock_size(64),
    "fixed": "mmpolicy set anon_order fixed max_order=4",
    "adaptive": "mmpolicy set anon_order adaptive max_order=4",
}


def type_in(guest: Guest, command: str, expect: int = 0) -> None:
    """Show a command and what it says; end if its exit status is another."""
    print(f"\n# {command}", flush=True)
    result = guest.run(command, 120)
    print(result.out, end="", flush=True)
    if result.rc != expect:
        raise BenchError(f"in the guest, exit status {result.rc}: {command}")


def compare(guest: Guest) -> Results:
    """Touch 64 MiB densely and sparsely in each arm."""
    results = Results("demo")
    for arm, setup in ARMS.items():
        must(guest, setup)
        for case in (DENSE, SPARSE):
            results.samples += anon_order.take_sample(guest, arm, case)
        must(guest, stock_size(64).replace("always", "never"))
    return results


def show(results: Results) -> None:
    """The table, and what it says."""
    columns = [
        (f"{title}, {unit}", case.name(), key, scale)
        for title, case in (("dense", DENSE), ("1 page in 64 kB", SPARSE))
        for unit, key, scale in (
            ("faults", "faults", 1),
            ("M instr.", "ticks", 1e6),
            ("MiB", "kb", 1024),
        )
    ]
    rows = []
    for arm in results.arms():
        numbers = [results.value(arm, case, key) / scale for _, case, key, scale in columns]
        rows.append(
            [arm, *(f"{n:.0f}" if n >= 100 or n == int(n) else f"{n:.1f}" for n in numbers)]
        )
    print("\n" + counting.table(["", *(head for head, *_ in columns)], rows))
    fast = results.ratio("adaptive", "stock-4k", DENSE.name(), "ticks")
    small = results.ratio("adaptive", "stock-4k", SPARSE.name(), "kb")
    waste = results.ratio("stock-64k", "stock-4k", SPARSE.name(), "kb")
    print(
        f"\nOn dense access adaptive takes {fast:.0%} of the instructions of 4 kB pages."
        f"\nOn sparse access it takes {small:.2f} times their memory, where 64 kB for everybody"
        f" takes {waste:.0f} times.\nInstructions are path length, not time."
    )


def main() -> None:
    """The tour."""
    parser = argparse.ArgumentParser(prog="./dev demo", description=__doc__)
    parser.add_argument("kernel", choices=KERNELS)
    kernel: str = parser.parse_args().kernel
    print(f"\nA guest with {KERNELS[kernel]}, one CPU that counts instructions.")
    with counting.counting_guest(kernel, "1G") as guest:
        type_in(guest, f"echo madvise >{counting.THP}/enabled")
        type_in(guest, "mmpolicy doctor", expect=MISSING)
        type_in(guest, "mmpolicy load")
        type_in(guest, "mmpolicy set anon_order adaptive max_order=4")
        type_in(guest, "mmpolicy list")
        print("\nWhat it does to a program that touches 64 MiB:", flush=True)
        show(compare(guest))
        type_in(guest, "mmpolicy stats anon_order")
        type_in(guest, "mmpolicy unload")
        guest.check()
    print("\nThe guest's kernel log shows no warning and no bug.")


if __name__ == "__main__":
    sys.exit(counting.main(main))
