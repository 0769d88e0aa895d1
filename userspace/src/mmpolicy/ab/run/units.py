# SPDX-License-Identifier: GPL-2.0
"""Cgroups as the units of split, and the arm that the kernel assigns to each.

The kernel assigns by a keyed hash, SipHash-2-4 (https://131002.net/siphash/). The hash is also
computed here, to find a seed that gives each arm half of the units. With a random seed, two units
would be in the same arm in every second block.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from math import inf

from mmpolicy.ab.design import MAX_SEED
from mmpolicy.ab.sources import ARMS
from mmpolicy.errors import Error
from mmpolicy.host.cgroups import cgroup_folder, cgroup_paths
from mmpolicy.host.files import Tree

# second half of the key with which units are hashed, equal to that in the kernel module
SALT = 0x6D6D706F6C696379
MASK = 2**64 - 1
START = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
SHARES = 10_000  # the hash of a unit modulo this number decides whether the unit is treated
# Most hashes that balanced() computes for one block; they take a fifth of a second.
MOST_HASHES = 5_000


def siphash(first: int, second: int, key: tuple[int, int]) -> int:
    """Return SipHash-2-4 of two 64-bit numbers, as the kernel's siphash_2u64()."""
    a, b, c, d = (word ^ part for word, part in zip(START, key * 2))
    for word, rounds in (first, 2), (second, 2), (16 << 56, 2), (0, 4):
        c ^= 0xFF if rounds == 4 else 0
        d ^= word
        for _ in range(rounds):
            a, b, c, d = _round(a, b, c, d)
        a ^= word
    return a ^ b ^ c ^ d


def _round(a: int, b: int, c: int, d: int) -> tuple[int, int, int, int]:
    a, c = (a + b) & MASK, (c + d) & MASK
    b, d = _left(b, 13) ^ a, _left(d, 16) ^ c
    a = _left(a, 32)
    c, a = (c + b) & MASK, (a + d) & MASK
    b, d = _left(b, 17) ^ c, _left(d, 21) ^ a
    return a, b, _left(c, 32), d


def _left(number: int, bits: int) -> int:
    return (number << bits | number >> 64 - bits) & MASK


def arms_of(units: Mapping[str, int], seed: int, percent: int = 50) -> dict[str, str]:
    """Return the arm of each unit, as the kernel assigns it. units: id of the cgroup by name.
    percent: share of treated units.
    """
    return {
        name: ARMS[siphash(number, 0, (seed, SALT)) % SHARES < percent * SHARES // 100]
        for name, number in units.items()
    }


def balanced(units: Mapping[str, int], seed: int, percent: int = 50) -> int:
    """Return a seed with which the kernel treats this percentage of the units.

    It is the first seed of a random sequence that treats exactly this percentage. If there are too
    many units to search for that, it is the best one found. If half of the units are treated,
    swapping the arms would be as good, which is the coin toss of the block.
    """
    rng, best = random.Random(seed), (inf, seed)
    for _ in range(max(1, MOST_HASHES // max(len(units), 1))):
        drawn = rng.randrange(MAX_SEED)
        treated = sum(arm == ARMS[1] for arm in arms_of(units, drawn, percent).values())
        both = 0 < treated < len(units)
        off = abs(treated - len(units) * percent / 100) if both else len(units)
        if off < best[0]:
            best = off, drawn
        if off < 1:
            break
    return best[1]


def units_of(tree: Tree, scope: str, bound: Iterable[str] = ()) -> dict[str, int]:
    """Return path and id of each cgroup with processes at or below `scope`; bound: paths of
    cgroups to leave out, with all below them.
    """
    without = tuple(bound)
    return {
        path: int(number)
        for number, path in cgroup_paths(tree).items()
        if _below(path, scope) and not any(_below(path, each) for each in without)
        if any(_processes(tree, path))
    }


def _below(path: str, top: str) -> bool:
    return path == top or path.startswith(f"{top.rstrip('/')}/")


def _processes(tree: Tree, path: str) -> Iterator[str]:
    try:
        yield from tree.read(f"{cgroup_folder(tree, path)}/cgroup.procs").split()
    except Error:  # the cgroup was just removed, or has threads only
        return
