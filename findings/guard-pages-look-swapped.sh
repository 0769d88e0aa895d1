#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# A guard page (MADV_GUARD_INSTALL, Linux 6.13; thread stacks of glibc 2.42) has bit 62 in
# /proc/PID/pagemap, which the documentation calls "page swapped". A good guess is an entry of
# zeroes, as the page has no memory and smaps counts no swap for it. A tool that takes bit 62 for
# swap reports swapped memory on a host without swap. Bit 58 (Linux 6.15) tells guards apart.
# Seen on Linux 6.18.44 (x86-64):
#   8 guard pages: bit 62 in 8, bit 58 in 8, Swap in smaps 0 kB
# Needs python3 and no package; exits with 1 if the kernel behaves otherwise, with 2 if it has no
# guard pages.
set -euo pipefail
echo "kernel: $(uname -r)"
exec python3 - <<'PYTHON'
import ctypes, mmap, re, struct, sys

libc = ctypes.CDLL(None, use_errno=True)
libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
MADV_GUARD_INSTALL, PAGE, PAGES = 102, mmap.PAGESIZE, 8
memory = mmap.mmap(-1, 64 * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory[:] = b"x" * len(memory)
start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
if libc.madvise(start, PAGES * PAGE, MADV_GUARD_INSTALL):
    print("this kernel has no guard pages")
    sys.exit(2)
with open("/proc/self/pagemap", "rb") as file:
    file.seek(start // PAGE * 8)
    entries = struct.unpack(f"{PAGES}Q", file.read(8 * PAGES))
swap = sum(entry >> 62 & 1 for entry in entries)
guard = sum(entry >> 58 & 1 for entry in entries)
inside, swapped = False, 0
for line in open("/proc/self/smaps"):
    area = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
    if area:
        inside = int(area[1], 16) <= start < int(area[2], 16)
    elif inside and line.startswith("Swap:"):
        swapped = int(line.split()[1])
print(f"{PAGES} guard pages: bit 62 in {swap}, bit 58 in {guard}, Swap in smaps {swapped} kB")
sys.exit(not (swap == PAGES and swapped == 0))
PYTHON
