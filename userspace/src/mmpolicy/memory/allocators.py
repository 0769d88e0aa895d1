# SPDX-License-Identifier: GPL-2.0
"""Recognise the allocator of a process by its mapped libraries, with the settings that return or
keep its memory.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from mmpolicy.memory.reach import Clues


class Allocator(NamedTuple):
    """An allocator, with the settings by which it returns freed memory, or keeps it."""

    name: str
    give_back: str
    keep: str


KEEPS = 256 << 20  # bytes of freed memory that an allocator may keep
JEMALLOC = Allocator(
    "jemalloc",
    "MALLOC_CONF=background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:0 in its environment",
    "MALLOC_CONF=dirty_decay_ms:-1 in its environment",
)
TCMALLOC = Allocator(
    "tcmalloc",
    "TCMALLOC_RELEASE_RATE=10 in its environment",
    "TCMALLOC_RELEASE_RATE=0 in its environment",
)
GLIBC = Allocator(
    "glibc",
    "malloc_trim(0) in the program, or MALLOC_ARENA_MAX=2 in its environment",
    f"MALLOC_TRIM_THRESHOLD_={KEEPS} and MALLOC_MMAP_THRESHOLD_={KEEPS >> 2} in its environment",
)


REDIS = re.compile("(redis|valkey)-server")
# least share of the private memory in [heap], which glibc fills, for which glibc is assumed
HEAP = 0.5


def allocator_of(clues: Clues, anon_kib: float) -> Allocator | None:
    """Return the allocator of a process with this much private memory; None if it is not
    recognised.

    A statically linked allocator has no library, so libc.so alone is no evidence for malloc() of
    glibc.
    """
    own = bool(clues.mapped(r"libjemalloc[\w.-]*\.so[\d.]*"))
    if redis := REDIS.match(clues.name):
        return _of_redis(redis[1], own)
    if own:
        return JEMALLOC
    if clues.mapped(r"libtcmalloc[\w.-]*\.so[\d.]*"):
        return TCMALLOC
    if clues.mapped(r"libmimalloc[\w.-]*\.so[\d.]*") or "java" in clues.name:
        return None
    libc = clues.mapped(r"libc[.-][\w.]*so[\d.]*")
    return GLIBC if libc and clues.heap_kib >= HEAP * anon_kib > 0 else None


def _of_redis(name: str, of_the_system: bool) -> Allocator:
    """Return the settings for Redis, whose active defragmentation needs the jemalloc built into
    it.
    """
    purge = f"{name}-cli MEMORY PURGE"
    if of_the_system:
        more = f"if that frees little, restart {name}: activedefrag needs the bundled jemalloc"
    else:
        more = (
            f"{name}-cli CONFIG SET activedefrag yes, if {name} was built with the bundled jemalloc"
        )
    return JEMALLOC._replace(name=f"the allocator of {name}", give_back=f"{purge}; {more}")
