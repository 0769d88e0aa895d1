# SPDX-License-Identifier: GPL-2.0
"""./dev fuzz: random writes to all files of the module in a guest, checked against a model."""

from __future__ import annotations

import argparse
import secrets
import sys
from typing import Any

from lab.counting import main
from lab.guest import Guest, new_guest
from lab.programs import must, ran, workload

WORKERS = 3
# writes per second that even the slowest kernel reaches while other programs load the machine
PER_SECOND = 40


def fuzz(guest: Guest, seed: int, writes: int) -> dict[str, Any]:
    """Let the workload `fuzz` make random writes to the module's files in the guest; return its
    counts. The workload fails if a file does not have the value that its model predicts.
    """
    print(f"seed {seed}, {writes} writes", flush=True)
    module = must(guest, "modinfo -n mmpolicy").strip()
    words = f"{module} {seed} {writes} {WORKERS}"
    return ran(guest, f"{workload('fuzz')} {words}", timeout=600 + writes / PER_SECOND)


def run() -> None:
    """Be the command ./dev fuzz: boot a guest, and make random writes with one seed."""
    parser = argparse.ArgumentParser(prog="./dev fuzz", description=__doc__)
    parser.add_argument("--flavor", default="patched", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32), help="(default: random)")
    parser.add_argument("--writes", type=int, default=20_000, help="(default: %(default)s)")
    options = parser.parse_args()
    with new_guest(options.flavor, mem="2G", cpus=2) as guest:
        print(fuzz(guest, options.seed, options.writes))
        guest.scan_leaks()


if __name__ == "__main__":
    sys.exit(main(run))
