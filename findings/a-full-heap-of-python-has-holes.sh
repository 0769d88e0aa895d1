#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# CPython fills arenas of 1 MiB from mmap(), back to back, with small objects. A good guess is that
# a heap of millions of live objects has each page of it, so that a tool may ask for ranges of 2 MB
# that are there in full. The pools in an arena are 16 KiB and aligned, and an arena begins where
# mmap() puts it, at a multiple of 4 KiB: unless that is one of 16 KiB too, the pages at both ends
# of each arena, 4 in all, never belong to a pool and are never touched. So most ranges of 2 MB of a
# full heap lack 8 pages, and for khugepaged with max_ptes_none=0 they are not full.
# Seen with Python 3.11.7 on Linux 6.18.44 (x86-64), eight processes with 2 million objects each;
# the others are at the ends of areas, and of the list that has the objects:
#   ranges of 2 MB that lack no page: 76, that lack 8: 55; others: 22
# Needs python3 (3.10 to 3.13), neither root nor a package; exits with 1 if arenas are filled
# otherwise, with 2 if this Python has no such arenas.
set -euo pipefail
echo "kernel: $(uname -r), $(python3 --version)"
python3 -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' ||
	{ echo "needs Python 3.10 to 3.13"; exit 2; }
exec env -u PYTHONMALLOC python3 - <<'PYTHON'
import collections, subprocess, sys

CODE = """
import struct
kept = [object() for _ in range(2000000)]
spans = []
for line in open("/proc/self/maps"):
    words = line.split()
    if words[1] == "rw-p" and len(words) == 5:
        spans.append([int(word, 16) for word in words[0].split("-")])
size = 2 << 20
with open("/proc/self/pagemap", "rb", 0) as pagemap:
    for start, end in spans:
        for at in range(-(-start // size) * size, end - size + 1, size):
            pagemap.seek(at // 4096 * 8)
            print(sum(not entry >> 63 for entry in struct.unpack("512Q", pagemap.read(4096))))
"""
found = collections.Counter()
for _ in range(8):
    run = subprocess.run([sys.executable, "-I", "-c", CODE], check=True, capture_output=True)
    found.update(int(line) for line in run.stdout.split())
others = sum(found.values()) - found[0] - found[8]
print(f"ranges of 2 MB that lack no page: {found[0]}, that lack 8: {found[8]}; others: {others}")
sys.exit(0 if found[8] > 20 and others < sum(found.values()) / 4 else 1)
PYTHON
