# SPDX-License-Identifier: GPL-2.0
"""Which allocator a process has, by the libraries that it has mapped, and how to ask it."""

from __future__ import annotations

import re
from typing import NamedTuple

from mmpolicy.memory.reach import Clues


class Allocator(NamedTuple):
    """An allocator, how it gives back freed memory, and how it keeps it."""

    name: str
    give_back: str
    keep: str


KEEPS = 256 << 20  # bytes that an allocator may keep before it returns them to the kernel
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


def allocator_of(clues: Clues) -> Allocator | None:
    """Return the allocator of a process; nothing if none of those that are known was seen."""
    if clues.mapped(r"libjemalloc[\w.-]*\.so[\d.]*"):
        if re.match("redis-server|valkey-server", clues.name):
            name = clues.name.partition("-")[0]
            purge = f"{name}-cli MEMORY PURGE, or CONFIG SET activedefrag yes"
            return JEMALLOC._replace(name=f"jemalloc of {name}", give_back=purge)
        return JEMALLOC
    if clues.mapped(r"libtcmalloc[\w.-]*\.so[\d.]*"):
        return TCMALLOC
    if clues.mapped(r"libmimalloc[\w.-]*\.so[\d.]*") or "java" in clues.name:
        return None  # they have a heap of their own beside that of glibc
    return GLIBC if clues.mapped(r"libc[.-][\w.]*so[\d.]*") else None
