# SPDX-License-Identifier: GPL-2.0
"""./dev demo: show mmpolicy in a guest, each command with its output."""

from __future__ import annotations

import argparse
import os
import sys

from bench import anon_order, pictures
from bench.anon_order import Case, stock_size
from lab import counting
from lab.counting import Results
from lab.guest import Guest
from lab.programs import BenchError, must

DENSE, SPARSE = Case("forward", 64, 3), Case("every_64k", 64, 3)
MISSING = 3  # exit status of `doctor` while the module is not loaded
KERNELS = {
    "cloud": "Debian's own kernel for clouds, as its package has it",
    "patched": "the patched kernel",
    "cloud-arm64": "Debian's own kernel for clouds of arm64, in emulation",
}
# the module was not tested on real arm64 hardware, so it loads only with untested=1
LOADS = {"cloud-arm64": "mmpolicy load untested=1"}
ARMS = {
    "stock-4k": "mmpolicy reset",
    "stock-64k": stock_size(64),
    "fixed": "mmpolicy set anon_order fixed max_order=4",
    "adaptive": "mmpolicy set anon_order adaptive max_order=4",
}


SHOWN: list[str] = []  # lines of the terminal that the picture of README shows


def say(text: str) -> None:
    """Print a text, and add it to the lines that the picture of README shows."""
    print(text, flush=True)
    SHOWN.append(text)


def type_in(guest: Guest, command: str, expect: int = 0, pictured: bool = True) -> None:
    """Print a command and its output; raise an error at an unexpected exit status."""
    show = say if pictured else print
    show(f"\n# {command}")
    result = guest.run(command, 120)
    if result.out:
        show(result.out.removesuffix("\n"))
    if result.rc != expect:
        raise BenchError(f"in the guest, '{command}' ended with {result.rc}, not {expect}")


def compare(guest: Guest) -> Results:
    """Return the costs of a program that touches 64 MiB densely, and of one that touches one page
    in 64 kB, in each arm.
    """
    results = Results("demo")
    for arm, setup in ARMS.items():
        must(guest, setup)
        for case in (DENSE, SPARSE):
            results.samples += anon_order.take_sample(guest, arm, case)
        must(guest, stock_size(64).replace("always", "never"))
    return results


def number(value: float) -> str:
    """Return a number as text, with three digits."""
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"


def show(results: Results) -> None:
    """Print the table of the arms' costs, and what follows from it."""
    rows = [
        (f"{title}, {unit}", case.name(), key, scale)
        for title, case in (("dense", DENSE), ("1 page in 64 kB", SPARSE))
        for unit, key, scale in (
            ("faults", "faults", 1),
            ("M instr.", "ticks", 1e6),
            ("MiB", "kb", 1024),
        )
    ]
    cells = [
        [head, *(number(results.value(arm, case, key) / scale) for arm in results.arms())]
        for head, case, key, scale in rows
    ]
    say("\n" + counting.table(["", *results.arms()], cells))
    fast = results.ratio("adaptive", "stock-4k", DENSE.name(), "ticks")
    small = results.ratio("adaptive", "stock-4k", SPARSE.name(), "kb")
    waste = results.ratio("stock-64k", "stock-4k", SPARSE.name(), "kb")
    say(
        f"\nOn dense access adaptive takes {fast:.0%} of the instructions"
        f"\nof 4 kB pages. On sparse access it takes {small:.2f} times their memory,"
        f"\nwhere 64 kB for everybody takes {waste:.0f} times."
        "\nInstructions are path length, not time."
    )


def main() -> None:
    """Show the demo in a guest with the kernel that the user has chosen."""
    parser = argparse.ArgumentParser(prog="./dev demo", description=__doc__)
    parser.add_argument("kernel", choices=KERNELS)
    parser.add_argument("--draw", action="store_true", help="also write the picture of README")
    chosen = parser.parse_args()
    kernel: str = chosen.kernel
    # the programs that run in the guest are compiled for this kernel's architecture
    os.environ["MMPOLICY_FLAVORS"] = kernel
    say(f"A guest with one CPU that counts instructions, and\n{KERNELS[kernel]}.")
    with counting.counting_guest(kernel, "1G") as guest:
        type_in(guest, f"echo madvise >{counting.THP}/enabled", pictured=False)
        type_in(guest, "mmpolicy doctor", expect=MISSING, pictured=False)
        type_in(guest, LOADS.get(kernel, "mmpolicy load"), pictured=False)
        type_in(guest, "mmpolicy set anon_order adaptive max_order=4")
        type_in(guest, "mmpolicy list", pictured=False)
        say("\nWhat it does to a program that touches 64 MiB:")
        show(compare(guest))
        type_in(guest, "mmpolicy stats anon_order", pictured=False)
        type_in(guest, "mmpolicy unload")
        guest.check()
    say("\nThe guest's kernel log shows no warning and no bug.")
    if chosen.draw:
        pictures.TYPED.write_text("\n".join(SHOWN) + "\n")
        pictures.DEMO.write_text(pictures.draw_demo("\n".join(SHOWN)))


if __name__ == "__main__":
    sys.exit(counting.main(main))
