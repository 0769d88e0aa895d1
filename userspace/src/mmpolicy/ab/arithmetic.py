# SPDX-License-Identifier: GPL-2.0
"""Parse numbers from files of the kernel, and reduce histograms to one number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mmpolicy.control.counters import Bucket

Numbers = dict[str, float]

ZONES = ("dma", "dma32", "normal", "highmem", "movable", "device")


def flatten(text: str) -> Numbers:
    """Return the numbers of a file: one value, `key value` lines, or `key name=value ...`."""
    found: Numbers = {}
    for line in text.splitlines():
        first, *rest = line.split() or [""]
        pairs = [word.partition("=")[::2] for word in rest if "=" in word]
        items = [(f"{first}.{key}", value) for key, value in pairs]
        items = items or ([(first, rest[0])] if rest else [("", first)])
        for key, value in items:
            try:
                found[key] = float(value)
            except ValueError:
                continue
    return found


def sum_of_zones(numbers: Numbers, key: str) -> float | None:
    """Return a number by key; a key that the kernel keeps per zone is summed over the zones."""
    if key in numbers:
        return numbers[key]
    zones = [numbers[f"{key}_{zone}"] for zone in ZONES if f"{key}_{zone}" in numbers]
    return sum(zones) if zones else None


def without_zones(names: Iterable[str]) -> list[str]:
    """Return names, and those of per-zone keys without the zone, as sum_of_zones() accepts them."""
    found = list(names)
    return found + [name.rpartition("_")[0] for name in found if name.rpartition("_")[2] in ZONES]


def time_of(
    counts: Mapping[Bucket, float], percentile: float | None, spent: float = 0.0
) -> float | None:
    """Return mean or percentile of a histogram, assuming values spread evenly within a bucket.

    spent: the sum of all values, or 0 if the module is too old to report it.
    """
    buckets = sorted((bucket, count) for bucket, count in counts.items() if count > 0)
    total = sum(count for _, count in buckets)
    if not total:
        return None
    if percentile is None:
        middles = sum((low + high) / 2 * count for (low, high), count in buckets)
        return (spent if spent > 0 else middles) / total
    left = total * percentile / 100
    for (low, high), count in buckets:
        if left <= count:
            return low + (high - low) * left / count
        left -= count
    return high  # rounding left a remainder beyond the last bucket
