#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# PAGEMAP_SCAN (Linux 6.7) takes max_pages. A good guess is that a small one makes a short call, so
# that a tool which looks at a busy program page by page holds its mmap_lock for a moment only. The
# limit counts pages that match. With a filter that nothing matches, one call walks all pages up to
# the end of the range, whatever the limit is, and holds the lock for all of them: 262,144 pages
# here. A tool has to give each call a short range, or ask for pages that are there.
# Seen on Linux 6.18.44 (x86-64), 1 GiB of shared memory, all there, a scan for huge pages:
#   max_pages 1, pages that are there: 1 found, walked 1 of 262144
#   max_pages 1, pages that are huge: 0 found, walked 262144 of 262144
# Needs python3, 1 GiB of memory, neither root nor a package; exits with 1 if the kernel behaves
# otherwise, with 2 if it has no PAGEMAP_SCAN.
set -euo pipefail
echo "kernel: $(uname -r)"
exec python3 - <<'PYTHON'
import ctypes, fcntl, mmap, os, struct, sys

PAGE, SIZE = os.sysconf("SC_PAGESIZE"), 1 << 30
PRESENT, HUGE = 1 << 3, 1 << 6  # PAGE_IS_PRESENT, PAGE_IS_HUGE
FORM = "=12Q"  # struct pm_scan_arg
PAGEMAP_SCAN = 3 << 30 | struct.calcsize(FORM) << 16 | ord("f") << 8 | 16

area = mmap.mmap(-1, SIZE)  # shared, and so without huge pages unless shmem_enabled says so
anchor = ctypes.c_char.from_buffer(area)
start = ctypes.addressof(anchor)
for page in range(0, SIZE, PAGE):
    area[page] = 1
regions = ctypes.create_string_buffer(24)


def scan(mask):
    """Pages found and walked in one call with max_pages 1."""
    words = [struct.calcsize(FORM), 0, start, start + SIZE, 0, ctypes.addressof(regions), 1, 1,
             0, mask, 0, mask]
    arg = bytearray(struct.pack(FORM, *words))
    try:
        number = fcntl.ioctl(pagemap, PAGEMAP_SCAN, arg)
    except OSError as error:
        print("no PAGEMAP_SCAN:", error)
        sys.exit(2)
    begin, end = struct.unpack_from("=2Q", regions.raw) if number else (0, 0)
    return (end - begin) // PAGE, (struct.unpack(FORM, arg)[4] - start) // PAGE


pagemap = os.open("/proc/self/pagemap", os.O_RDONLY)
all_pages = SIZE // PAGE
there, huge = scan(PRESENT), scan(HUGE)
print(f"max_pages 1, pages that are there: {there[0]} found, walked {there[1]} of {all_pages}")
print(f"max_pages 1, pages that are huge: {huge[0]} found, walked {huge[1]} of {all_pages}")
sys.exit(0 if (there, huge) == ((1, 1), (0, all_pages)) else 1)
PYTHON
