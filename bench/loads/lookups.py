# SPDX-License-Identifier: GPL-2.0
"""Lookups.java in Python: a service with a big dictionary of small objects."""

from __future__ import annotations

import gc
import random
import sys
import time

READS, WRITES = 50, 10
PARTS = (0.5, 0.95, 0.99, 0.999, 1)


def serve(kept: dict[int, tuple[str, list[int]]], end: float) -> list[int]:
    """Make requests until time.monotonic_ns() reaches `end`; return the nanoseconds of each."""
    rng, took, last, values = (
        random.Random(last_seed()),
        list[int](),
        time.monotonic_ns(),
        len(kept),
    )
    while last < end:
        total = 0
        for _ in range(READS):
            total += len(kept[int(rng.random() * values)][0])
        for _ in range(WRITES):
            key = int(rng.random() * values)
            kept[key] = (f"value {key} {total}", [key, total])
        now = time.monotonic_ns()
        took.append(now - last)
        last = now
    return took


def last_seed() -> int:
    return time.monotonic_ns() & 0xFFFF


def main() -> None:
    kept = {key: (f"value {key}", [key, key + 1]) for key in range(int(sys.argv[1]))}
    gc.freeze()
    print("ready", flush=True)
    for line in sys.stdin:
        took = sorted(serve(kept, time.monotonic_ns() + int(line) * 10**9))
        shown = [took[min(len(took) - 1, int(len(took) * part))] for part in PARTS]
        print(len(took), *shown, flush=True)


main()
