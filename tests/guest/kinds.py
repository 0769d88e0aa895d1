# SPDX-License-Identifier: GPL-2.0
"""kinds.py KIND [WORD...]: hold memory of one kind until /tmp/over exists; check it at the end.

Creates /tmp/ready once it has the memory, or has failed. Needs only Python.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PAGE, BLOCK, MIB = 4096, 2 << 20, 1 << 20
SIZE = 32 * MIB
HUGETLB, LOCKED, ONFAULT = 0x40000, 0x2000, 1
NORESERVE, ROOM = 0x4000, 64 << 30
DONTNEED, FREE, MERGEABLE, NOHUGEPAGE, COLD_OUT, GUARD = 4, 8, 12, 15, 21, 102
SETUP, REGISTER = 425, 427  # system calls of io_uring
KEPT: list[object] = []  # keeps objects open until the end
libc = ctypes.CDLL(None, use_errno=True)


def address(memory: mmap.mmap) -> int:
    """Return the address of a mapping."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def advise(start: int, size: int, advice: int) -> None:
    """Call madvise() for a range that need not be one mapping; end the program on an error."""
    if libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), advice):
        sys.exit(f"madvise {advice}: errno {ctypes.get_errno()}")


def private(size: int = SIZE, flags: int = 0) -> tuple[mmap.mmap, int]:
    """Map private memory, a little more than `size`. Return the mapping, and the offset in it of
    the first address that is aligned to 2 MB.
    """
    memory = mmap.mmap(-1, size + BLOCK, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | flags)
    return memory, -address(memory) % BLOCK


def touched(memory: mmap.mmap, first: int, step: int, size: int = SIZE) -> Iterator[int]:
    """Write to one page in each `step` bytes of a mapping, from offset `first` on; yield the
    offsets of these pages.
    """
    for at in range(first, first + size, step):
        memory[at] = 7
        yield at


def pinned(word: str) -> None:
    """Pin one page in each folio, or in each fourth one. A page is pinned by a pipe or by a buffer
    of io_uring, as word says.
    """
    memory, first = private()
    places = [*touched(memory, first, 64 << 10)][:: BLOCK >> 16]
    start = address(memory)
    if word == "io_uring":
        ring = libc.syscall(SETUP, 1, ctypes.create_string_buffer(120))
        vector = (ctypes.c_size_t * 2)(start + first, SIZE)
        if ring < 0 or libc.syscall(REGISTER, ring, 0, vector, 1):
            sys.exit(f"io_uring: errno {ctypes.get_errno()}")
    for at in places[:: 4 if word == "some" else 1] if word != "io_uring" else ():
        out, into = os.pipe()
        vector = (ctypes.c_size_t * 2)(start + at, PAGE)
        if libc.vmsplice(into, vector, 1, 0) != PAGE:
            sys.exit(f"vmsplice: errno {ctypes.get_errno()}")
        KEPT.append((out, into))
    KEPT.append((memory, places))


def locked(word: str) -> None:
    """Use one page in each 64 kB, and lock all memory. word says when it is locked: after use, when
    it is mapped, or on each fault.
    """
    memory, first = private(flags=LOCKED if word == "mapped" else 0)
    where = ctypes.c_void_p(address(memory) + first), ctypes.c_size_t(SIZE)
    if word == "onfault" and libc.mlock2(*where, ONFAULT):
        sys.exit(f"mlock2: errno {ctypes.get_errno()}")
    KEPT.append((memory, [*touched(memory, first, 64 << 10)]))
    if word == "after" and libc.mlock(*where):
        sys.exit(f"mlock: errno {ctypes.get_errno()}")


def shared(word: str) -> None:
    """Use one page in each 2 MB of shared memory. word says which memory: a memfd, a file in tmpfs,
    or anonymous shared memory.
    """
    if word == "anonymous":
        memory = mmap.mmap(-1, SIZE)
    else:
        tmpfs = word == "tmpfs"
        file = os.open("/dev/shm/x", os.O_RDWR | os.O_CREAT) if tmpfs else os.memfd_create("heap")
        os.ftruncate(file, SIZE)
        memory = mmap.mmap(file, SIZE)
    first = -address(memory) % BLOCK
    KEPT.append((memory, [*touched(memory, first, BLOCK, SIZE - BLOCK)]))


def hugetlb(word: str) -> None:
    """Use eight pages of a hugetlb pool: private, shared, or in a memfd."""
    if word == "memfd":
        file = os.memfd_create("pool", 4)
        os.ftruncate(file, 8 * BLOCK)
        memory = mmap.mmap(file, 8 * BLOCK)
    else:
        flags = mmap.MAP_SHARED if word == "shared" else mmap.MAP_PRIVATE
        memory = mmap.mmap(-1, 8 * BLOCK, flags | mmap.MAP_ANONYMOUS | HUGETLB)
    KEPT.append((memory, [*touched(memory, 0, BLOCK, 8 * BLOCK)]))


def ksm(word: str) -> None:
    """Let KSM merge pages of equal content. word says which pages are equal: all, half of them, or
    each page with its neighbour.
    """
    memory, first = private()
    advise(address(memory) + first, SIZE, NOHUGEPAGE)
    for number, at in enumerate(range(first, first + SIZE, PAGE)):
        content = 7 if word == "all" or (word == "half" and number % 2) else number
        content = number // 2 + SIZE if word == "pairs" else content
        memory[at : at + 8] = content.to_bytes(8, "little")
    advise(address(memory) + first, SIZE, MERGEABLE)
    KEPT.append(memory)


def partly(word: str) -> None:
    """Free all but one page of each 2 MB. word says how: by madvise(), by munmap(), or in folios of
    64 kB.
    """
    memory, first = private()
    size = 64 << 10 if word == "small" else BLOCK
    start = address(memory) + first
    for _ in touched(memory, first, PAGE):
        pass
    for at in range(0, SIZE, size):
        if word == "munmap":
            libc.munmap(ctypes.c_void_p(start + at + PAGE), ctypes.c_size_t(size - PAGE))
        else:
            advise(start + at + PAGE, size - PAGE, DONTNEED)
    KEPT.append((memory, range(first, first + SIZE, size)))


def lazily(word: str) -> None:
    """Free memory by MADV_FREE, so that the kernel frees it later. word says which pages: all, half
    of them, or every second one.
    """
    memory, first = private()
    if word == "single":
        advise(address(memory) + first, SIZE, NOHUGEPAGE)
    for _ in touched(memory, first, PAGE):
        pass
    advise(address(memory) + first, SIZE // 2 if word == "half" else SIZE, FREE)
    KEPT.append(memory)


def swapped(word: str) -> None:
    """Move memory out to swap. word says how much: all of it, half of it, or one page of
    each 2 MB.
    """
    memory, first = private()
    if word == "single":
        advise(address(memory) + first, SIZE, NOHUGEPAGE)
    for at in touched(memory, first, PAGE):
        memory[at + 8 : at + 16] = at.to_bytes(8, "little")
    size = {"half": SIZE // 2, "one": PAGE}.get(word, SIZE)
    for at in range(first, first + SIZE, BLOCK) if word == "one" else (first,):
        advise(address(memory) + at, size, COLD_OUT)
    KEPT.append((memory, range(first, first + SIZE, PAGE)))


def guards(word: str) -> None:
    """Make guard pages by madvise(). word says which: every second page, or one per 2 MB, in memory
    of single pages or of huge pages.
    """
    memory, first = private()
    start = address(memory) + first
    if word != "huge":
        advise(start, SIZE, NOHUGEPAGE)
    for _ in touched(memory, first, PAGE):
        pass
    for at in range(PAGE, SIZE, 2 * PAGE if word == "many" else BLOCK):
        advise(start + at, PAGE, GUARD)
    KEPT.append((memory, range(first, first + SIZE, BLOCK)))


def reserved(word: str) -> None:
    """Reserve 64 GiB of address space, and touch single pages in it. word says which: 96 MiB in a
    row, or 2,048 pages at equal distances.
    """
    memory, first = private(ROOM, NORESERVE)
    advise(address(memory) + first, ROOM, NOHUGEPAGE)
    step, size = (32 << 20, ROOM) if word == "spread" else (PAGE, 96 << 20)
    KEPT.append((memory, [*touched(memory, first, step, size)]))


KINDS: dict[str, Callable[[str], None]] = {
    each.__name__: each
    for each in (pinned, locked, shared, hugetlb, ksm, partly, lazily, swapped, guards, reserved)
}


def main(kind: str, *words: str) -> None:
    """Make memory of a kind, once for each word; wait for the test, and then check that the content
    of the memory has not changed.
    """
    try:
        for word in words or [""]:
            KINDS[kind](word)
    finally:
        Path("/tmp/ready").touch()
    while not Path("/tmp/over").exists():
        time.sleep(0.05)
    for each in KEPT:
        if isinstance(each, tuple) and isinstance(each[0], mmap.mmap):
            memory, places = each
            if any(memory[at] != 7 for at in places):
                sys.exit("memory has changed")


if __name__ == "__main__":
    main(*sys.argv[1:])
