#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# MADV_COLLAPSE (Linux 6.1) of the first 64 kB of an aligned 2 MB returns success and changes
# nothing. A good guess is EINVAL, or a folio of the length that was asked for, as Linux 6.8 and
# later have folios of 64 kB. The same 64 kB one page further on give EINVAL up to Linux 6.18, and
# success from 7.2 on; 4 MB from there return success although only the one whole 2 MB inside is
# made. So the result says nothing: a tool has to align ranges by itself and look at AnonHugePages
# afterwards.
# Seen on Linux 6.1, 6.12 and 6.18.44 (x86-64), and with "ok" in the second line on 7.2 and 7.3:
#   64 kB from 0 kB: ok, AnonHugePages 0 kB
#   64 kB from 4 kB: EINVAL, AnonHugePages 0 kB
#   4096 kB from 4 kB: ok, AnonHugePages 2048 kB
# Either result passes on the releases between 6.18 and 7.2, where nobody has tried.
# Needs python3 and no package; exits with 1 if the kernel behaves otherwise, with 2 if it has no
# MADV_COLLAPSE.
set -euo pipefail
echo "kernel: $(uname -r)"
exec python3 - <<'PYTHON'
import ctypes, errno, mmap, os, re, sys

libc = ctypes.CDLL(None, use_errno=True)
libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
MADV_NOHUGEPAGE, MADV_HUGEPAGE, MADV_COLLAPSE = 15, 14, 25
HUGE, PAGE = 2 << 20, 4096


def huge_kib(start):
    """AnonHugePages of the area that has this address."""
    inside = False
    for line in open("/proc/self/smaps"):
        area = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if area:
            inside = int(area[1], 16) <= start < int(area[2], 16)
        elif inside and line.startswith("AnonHugePages:"):
            return int(line.split()[1])
    return -1


def filled():
    """8 MiB in single pages; returns the map and its first aligned address."""
    memory = mmap.mmap(-1, 8 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc.madvise(start, 8 << 20, MADV_NOHUGEPAGE)
    for at in range(0, 8 << 20, PAGE):
        memory[at] = 1
    libc.madvise(start, 8 << 20, MADV_HUGEPAGE)
    return memory, -(-start // HUGE) * HUGE


memory, aligned = filled()
if libc.madvise(aligned, HUGE, MADV_COLLAPSE) and ctypes.get_errno() == errno.EINVAL:
    print("this kernel has no MADV_COLLAPSE")
    sys.exit(2)
right = True
release = tuple(map(int, re.findall(r"\d+", os.uname().release)[:2]))
moved = ([errno.EINVAL] if release < (7, 2) else []) + ([0] if release > (6, 18) else [])
for offset, kib, errors, expected in ((0, 64, [0], 0), (4, 64, moved, 0), (4, 4096, [0], 2048)):
    memory, aligned = filled()
    failed = libc.madvise(aligned + (offset << 10), kib << 10, MADV_COLLAPSE)
    result = ctypes.get_errno() if failed else 0
    found = huge_kib(aligned)
    word = errno.errorcode[result] if result else "ok"
    print(f"{kib} kB from {offset} kB: {word}, AnonHugePages {found} kB")
    right &= result in errors and found == expected
sys.exit(not right)
PYTHON
