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
PER_SECOND = 40  # writes per second on the slowest kernel, on a machine with other load


def fuzz(guest: Guest, seed: int, writes: int) -> dict[str, Any]:
    """Run random writes; return their counts. The workload fails if a file differs from
    its model.
    """
    print(f"seed {seed}, {writes} writes", flush=True)
    module = must(guest, "modinfo -n mmpolicy").strip()
    words = f"{module} {seed} {writes} {WORKERS}"
    return ran(guest, f"{workload('fuzz')} {words}", timeout=600 + writes / PER_SECOND)


def run() -> None:
    """Run ./dev fuzz: boot a guest, and write with one seed."""
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
