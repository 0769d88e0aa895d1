#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# PR_SET_THP_DISABLE with PR_THP_DISABLE_EXCEPT_ADVISED (Linux 6.18; MemoryTHP=madvise of systemd)
# forbids huge pages to all memory without MADV_HUGEPAGE, and THP_enabled in /proc/PID/status
# still reads 1. A good guess is 0, as after the plain PR_SET_THP_DISABLE, which this line was
# made to show. No file in /proc tells the two apart; only the process itself can ask, by
# PR_GET_THP_DISABLE, which returns 3 instead of 1.
# Seen on Linux 6.18.44 (x86-64):
#   plain:           PR_GET_THP_DISABLE 1, THP_enabled 0
#   except advised:  PR_GET_THP_DISABLE 3, THP_enabled 1
# Needs python3 and no package; exits with 1 if the kernel behaves otherwise, with 2 if it does
# not know the flag.
set -euo pipefail
echo "kernel: $(uname -r)"
exec python3 - <<'PYTHON'
import ctypes, re, sys

libc = ctypes.CDLL(None, use_errno=True)
PR_SET_THP_DISABLE, PR_GET_THP_DISABLE, EXCEPT_ADVISED = 41, 42, 2


def prctl(what, first=0, second=0):
    zero = ctypes.c_ulong(0)
    return libc.prctl(what, ctypes.c_ulong(first), ctypes.c_ulong(second), zero, zero)


def shown():
    return int(re.search(r"THP_enabled:\s*(\d)", open("/proc/self/status").read())[1])


found = {}
for name, flags in (("plain", 0), ("except advised", EXCEPT_ADVISED)):
    if prctl(PR_SET_THP_DISABLE, 1, flags):
        print("this kernel does not know PR_THP_DISABLE_EXCEPT_ADVISED")
        sys.exit(2)
    found[name] = (prctl(PR_GET_THP_DISABLE), shown())
    print(f"{name}: PR_GET_THP_DISABLE {found[name][0]}, THP_enabled {found[name][1]}")
sys.exit(found != {"plain": (1, 0), "except advised": (3, 1)})
PYTHON
