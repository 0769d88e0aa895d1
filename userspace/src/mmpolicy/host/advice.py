# SPDX-License-Identifier: GPL-2.0
"""Collapse memory of another process into huge pages by process_madvise(MADV_COLLAPSE).

A pidfd refers to the process, so reuse of its PID does no harm. No setting of the kernel or of the
process changes.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from errno import EACCES, EINVAL, ENOSYS, EPERM
from typing import Any

from mmpolicy.errors import Exit, Remedies, explain
from mmpolicy.host.pagemap import PAGE

# system call numbers, which are the same on every architecture but Alpha
PIDFD_OPEN, PROCESS_MADVISE = 434, 440
MADV_COLLAPSE = 25
PR_SET_THP_DISABLE = 41
BLOCK = 2 << 20
RANGES = 1024  # most ranges of one call (UIO_MAXIOV)
CAPABLE = (
    "run the command as root; in a systemd unit, it needs CAP_SYS_NICE, CAP_SYS_PTRACE and "
    "CAP_SYS_ADMIN"
)
NO_COLLAPSE = "this kernel has no MADV_COLLAPSE"
KERNEL = "boot Linux 6.1 or newer, with CONFIG_TRANSPARENT_HUGEPAGE"
REMEDIES: Remedies = {
    EPERM: (Exit.DENIED, CAPABLE),
    EACCES: (Exit.DENIED, CAPABLE),
    ENOSYS: (Exit.LACKING, KERNEL),
    EINVAL: (Exit.LACKING, KERNEL),
}


def _address(words: array[int]) -> ctypes.c_void_p:
    """Return the address of an array that holds struct iovec, for a system call."""
    return ctypes.c_void_p(words.buffer_info()[0])


def _libc() -> Any:
    lib = ctypes.CDLL(None, use_errno=True)
    lib.syscall.restype = ctypes.c_long
    lib.process_vm_readv.restype = ctypes.c_ssize_t
    return lib


class ProcessMemory:
    """Reads and collapses the memory of another process."""

    def __init__(self, pid: int) -> None:
        self._libc, self._fd = _libc(), -1
        self._pid = pid
        self._fd = self._libc.syscall(PIDFD_OPEN, pid, 0)
        if self._fd < 0:
            raise explain(ctypes.get_errno(), f"open process {pid}", REMEDIES)

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def permits(self, address: int) -> int:
        """Return 0 if the memory at an address may have 2 MB pages, else the errno.

        The kernel makes all its checks for a range of one page, too, but finds no 2 MB block in it
        to collapse.
        """
        return self._advise(address, PAGE)

    def collapse(self, start: int, blocks: int = 1) -> int:
        """Ask the kernel to collapse adjacent aligned 2 MB blocks; return 0 if it made all of them.

        Else the result is the errno of the last block that failed; other blocks may be collapsed.
        The kernel drops mmap_lock after each block, and drains the LRU batches of all CPUs once
        per call.
        """
        return self._advise(start, blocks * BLOCK)

    def _advise(self, start: int, size: int) -> int:
        where = array("Q", (start, size))
        done = self._libc.syscall(
            PROCESS_MADVISE, self._fd, _address(where), ctypes.c_ulong(1), MADV_COLLAPSE, 0
        )
        return ctypes.get_errno() if done < 0 else 0

    def read(self, addresses: Sequence[int], size: int) -> bytes:
        """Read `size` bytes at each address; the result ends at a page that is no longer mapped."""
        found = b""
        for first in range(0, len(addresses), RANGES):
            some = addresses[first : first + RANGES]
            into = ctypes.create_string_buffer(len(some) * size)
            here = array("Q", (ctypes.addressof(into), len(into)))
            there = array("Q", bytes(16 * len(some)))
            there[::2], there[1::2] = array("Q", some), array("Q", [size]) * len(some)
            got = self._libc.process_vm_readv(
                self._pid, _address(here), ctypes.c_ulong(1),
                _address(there), ctypes.c_ulong(len(some)), ctypes.c_ulong(0),
            )  # fmt: skip
            if got < 0:
                return found
            found += into.raw[:got]
        return found


def can_collapse() -> bool:
    """Return whether the kernel supports MADV_COLLAPSE, by a call for an empty range."""
    return bool(_libc().madvise(None, ctypes.c_size_t(0), MADV_COLLAPSE) == 0)


class Advice:
    """Access to process_madvise() and process_vm_readv(); tests replace it by a model."""

    def can_collapse(self) -> bool:
        """Return whether the kernel supports MADV_COLLAPSE."""
        return can_collapse()

    def open(self, pid: int) -> ProcessMemory:
        """Return an object for the memory of a process."""
        return ProcessMemory(pid)

    def time_collapses(
        self, number: int, undisturbed: Callable[[], AbstractContextManager[None]]
    ) -> list[float]:
        """Collapse `number` blocks of this command's own memory; return the seconds of each.

        While the memory is touched, prctl() forbids huge pages. madvise() could forbid them, too,
        but undoing it wakes khugepaged, which might collapse the memory first.
        """
        lib = _libc()
        lib.prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)
        with mmap.mmap(-1, (number + 1) * BLOCK, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
            anchor = ctypes.c_char.from_buffer(memory)
            begin = ctypes.addressof(anchor)
            del anchor  # the reference would keep the memory mapped
            first = -begin % BLOCK
            end = first + number * BLOCK
            memory[first:end:PAGE] = bytes(number * BLOCK // PAGE)
            # the service manager may have set this flag, by MemoryTHP= of the unit
            lib.prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0)
            starts = range(begin + first, begin + first + number * BLOCK, BLOCK)
            found = []
            for start in starts:
                with undisturbed():
                    found.append(_time(lib, start))
            return found


def _time(lib: Any, start: int) -> float:
    began = time.monotonic()
    failed = lib.madvise(ctypes.c_void_p(start), ctypes.c_size_t(BLOCK), MADV_COLLAPSE)
    took = time.monotonic() - began
    if failed:
        number = ctypes.get_errno()
        raise explain(number, "collapse 2 MB of this command's own memory", REMEDIES)
    return took
