#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# An aligned 2 MB whose 512 pages have consecutive frames from an aligned one on, all with the bit
# THP in /proc/kpageflags, looks like a huge page. After mprotect() of one page and back it is one
# folio still, but 512 entries map it, so the CPU sees single pages, and no later fault changes
# that. Only AnonHugePages and PAGEMAP_SCAN (Linux 6.7) tell, and MADV_COLLAPSE makes
# one entry of them again. On a fresh kernel single pages get consecutive frames, too, then without
# THP in their flags.
# Seen on Linux 6.18.44 (x86-64), as root:
#   before:   AnonHugePages 2048 kB, frames in a row, THP in kpageflags, one entry
#   mprotect: AnonHugePages 0 kB, frames in a row, THP in kpageflags, not one entry
#   collapse: AnonHugePages 2048 kB, frames in a row, THP in kpageflags, one entry
# Needs root, python3 and no package; exits with 1 if the kernel behaves otherwise, with 2 if it
# lacks PAGEMAP_SCAN or huge pages.
set -euo pipefail
echo "kernel: $(uname -r)"
exec python3 - <<'PYTHON'
import ctypes, fcntl, mmap, re, struct, sys

libc = ctypes.CDLL(None, use_errno=True)
libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
MADV_HUGEPAGE, MADV_COLLAPSE, READ, WRITE = 14, 25, 1, 2
HUGE, PAGE, THP = 2 << 20, 4096, 1 << 22
SCAN, PRESENT, MAPPED_HUGE = 0xC0606610, 1 << 3, 1 << 6

memory = mmap.mmap(-1, 2 * HUGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
start = -(-begin // HUGE) * HUGE
libc.madvise(begin, 2 * HUGE, MADV_HUGEPAGE)
for at in range(start - begin, start - begin + HUGE, PAGE):
    memory[at] = 1
if libc.madvise(start, HUGE, MADV_COLLAPSE):
    print("no huge page was to be had")
    sys.exit(2)


def one_entry():
    regions = (ctypes.c_uint64 * 3)()
    asked = bytearray(struct.pack("=12Q", 96, 0, start, start + HUGE, 0, ctypes.addressof(regions),
                                  1, 0, 0, 0, PRESENT, PRESENT | MAPPED_HUGE))
    with open("/proc/self/pagemap", "rb") as pagemap:
        try:
            fcntl.ioctl(pagemap, SCAN, asked)
        except OSError:
            print("this kernel has no PAGEMAP_SCAN")
            sys.exit(2)
    return bool(regions[2] & MAPPED_HUGE) and regions[1] - regions[0] == HUGE


def look(name):
    kib, inside = 0, False
    for line in open("/proc/self/smaps"):
        area = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if area:
            inside = int(area[1], 16) < start + HUGE and int(area[2], 16) > start
        elif inside and line.startswith("AnonHugePages:"):
            kib += int(line.split()[1])
    with open("/proc/self/pagemap", "rb") as pagemap:
        pagemap.seek(start // PAGE * 8)
        frames = [e & (1 << 55) - 1 for e in struct.unpack("512Q", pagemap.read(4096))]
    with open("/proc/kpageflags", "rb") as flags:
        flags.seek(frames[0] * 8)
        thp = all(each & THP for each in struct.unpack("512Q", flags.read(4096)))
    row = frames[0] % 512 == 0 and frames == list(range(frames[0], frames[0] + 512))
    one = one_entry()
    words = ["frames in a row" if row else "frames anywhere",
             f"{'' if thp else 'no '}THP in kpageflags", "one entry" if one else "not one entry"]
    print(f"{name + ':':9} AnonHugePages {kib} kB, {', '.join(words)}")
    return kib, row, thp, one


seen = [look("before")]
libc.mprotect(start + (1 << 20), PAGE, READ)
libc.mprotect(start + (1 << 20), PAGE, READ | WRITE)
for at in range(start - begin, start - begin + HUGE, PAGE):
    memory[at] = 2
seen.append(look("mprotect"))
if libc.madvise(start, HUGE, MADV_COLLAPSE):
    print("MADV_COLLAPSE failed")
seen.append(look("collapse"))
whole = (2048, True, True, True)
sys.exit(seen != [whole, (0, True, True, False), whole])
PYTHON
