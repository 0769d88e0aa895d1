# SPDX-License-Identifier: GPL-2.0
"""Read the counters that the module exports in debugfs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from errno import ENOENT

from mmpolicy.control.model import check_loaded
from mmpolicy.errors import Error, pick
from mmpolicy.host.files import MODULE, MODULE_DIR, Tree

DEBUGFS = "/sys/kernel/debug"
COUNTERS = f"{DEBUGFS}/{MODULE}"

Counters = dict[str, dict[str, int]]  # counters by point, then by name
Rates = dict[str, dict[str, float]]
# a range of nanoseconds: its lower bound, and its upper bound, which is excluded
Bucket = tuple[float, float]

# name of the counter for a bucket of a time histogram; a bucket spans a factor of two of time, or
# an eighth of such a span
HISTOGRAM = re.compile(r"(.+_ns)_log2_(\d+)(?:_(\d))?")


def counted_profiles(tree: Tree) -> list[str]:
    """Return the profiles that have counters in debugfs; if it is not mounted, the error says how
    to mount it.
    """
    try:
        return tree.dirs(COUNTERS)
    except Error as err:
        if err.errno == ENOENT and not tree.exists(MODULE_DIR):
            # raises the error that all verbs raise while the module is not loaded
            check_loaded(tree)
        elif err.errno == ENOENT:
            err.next_step = f"mount -t debugfs none {DEBUGFS}; the kernel needs CONFIG_DEBUG_FS"
        raise


def read_counters(tree: Tree, profile: str, point: str | None) -> Counters:
    """Return the counters of one point of a profile, or of all its points."""
    base = f"{COUNTERS}/{pick('profile', profile, counted_profiles(tree))}"
    points = tree.dirs(base)
    chosen = [pick("point", point, points)] if point else points
    return {name: _parse(tree.read(f"{base}/{name}/stats")) for name in chosen}


def _parse(text: str) -> dict[str, int]:
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def histograms(counters: Mapping[str, float]) -> dict[str, dict[Bucket, float]]:
    """Return for each time histogram the number of times in each bucket. The key of a histogram is
    the name of the counter with the sum of its times.
    """
    found: dict[str, dict[Bucket, float]] = {}
    for name, count in counters.items():
        if match := HISTOGRAM.fullmatch(name):
            sum_name, octave, eighth = match.groups()
            start = width = 2.0 ** int(octave)
            if eighth:
                width /= 8
                start += int(eighth) * width
            found.setdefault(sum_name, {})[start, start + width] = count
    return found


def time_of(
    counts: Mapping[Bucket, float], percentile: float | None, spent: float = 0.0
) -> float | None:
    """Return a percentile of a time histogram in ns, or the mean if `percentile` is None; None if
    the histogram is empty.

    Values are assumed to be spread evenly within a bucket. spent: sum of all values; 0 if the
    module is too old to report it.
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
    return high  # rounding may leave a remainder after the last bucket


def rates(old: Counters, new: Counters, seconds: float) -> Rates:
    """Return the rise of each counter per second; a counter that fell has restarted at 0."""
    result: Rates = {}
    for point, counters in new.items():
        before = old.get(point, {})
        rise = {name: value - before.get(name, 0) for name, value in counters.items()}
        rise = {name: step if step >= 0 else counters[name] for name, step in rise.items()}
        result[point] = {name: round(step / seconds, 1) for name, step in rise.items()}
    return result
