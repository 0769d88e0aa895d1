# SPDX-License-Identifier: GPL-2.0
"""Numbers that the command passes to the kernel agree with headers of glibc, musl and Linux.

ctypes knows none of them, so they are written down; a wrong one would be another call.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from mmpolicy.bench import programs, starter
from mmpolicy.host import advice, pagemap

# Values that a C compiler finds in its headers: name there -> number here.
LIBC = {
    "SYS_pidfd_open": advice.PIDFD_OPEN,
    "SYS_process_madvise": advice.PROCESS_MADVISE,
    "SYS_perf_event_open": starter.PERF_EVENT_OPEN["x86_64"],
    "MADV_COLLAPSE": advice.MADV_COLLAPSE,
    "PR_SET_THP_DISABLE": advice.PR_SET_THP_DISABLE,
    "PR_SET_PDEATHSIG": starter.SET_PDEATHSIG,
    "PR_SET_CHILD_SUBREAPER": starter.SET_CHILD_SUBREAPER,
    "(int) sizeof(struct iovec)": 2 * 8,  # two words, as process_madvise() takes them
    "(int) sizeof(long)": 8,
}
OF_ARM64 = {"SYS_perf_event_open": starter.PERF_EVENT_OPEN["aarch64"]}
ARM64, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64-static"
LATER = ("MADV_COLLAPSE",)  # not in Debian 12's libraries, but in the kernel's headers
GENERIC = {  # for arm64, with the generic numbers of new architectures
    "__NR_pidfd_open": advice.PIDFD_OPEN,
    "__NR_process_madvise": advice.PROCESS_MADVISE,
    "__NR_perf_event_open": starter.PERF_EVENT_OPEN["aarch64"],
}
PERF = {
    "PERF_ATTR_SIZE_VER0": 64,
    "PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING": starter.TIMES_TOO,
    "PERF_TYPE_HARDWARE": programs.HARDWARE,
    "PERF_TYPE_HW_CACHE": programs.CACHE,
    "PERF_COUNT_HW_INSTRUCTIONS": 1,
    "PERF_COUNT_HW_CACHE_DTLB": programs.DTLB,
    "PERF_COUNT_HW_CACHE_OP_WRITE << 8": programs.STORES,
    "PERF_COUNT_HW_CACHE_RESULT_MISS << 16": programs.MISSES,
    "FLAGS": starter.WITH_CHILDREN_FROM_EXEC,
}
HEADERS = "\n".join(
    f"#include <{name}.h>" for name in ("sys/mman", "sys/prctl", "sys/syscall", "sys/uio")
)
# The bits of a structure are known once it is filled.
OF_PERF = """
#include <linux/perf_event.h>
#include <string.h>
static long flags(void)
{
	struct perf_event_attr attr = { .disabled = 1, .inherit = 1, .enable_on_exec = 1 };
	unsigned long bits;

	memcpy(&bits, (char *)&attr + 40, 8);	/* behind read_format */
	return bits;
}
#define FLAGS flags()
"""
# struct pm_scan_arg of linux/fs.h, for headers that are older than Linux 6.7.
OF_SCAN = """
#include <linux/types.h>
#include <linux/fs.h>
#include <linux/ioctl.h>
#ifndef PAGEMAP_SCAN
struct pm_scan_arg {
	__u64 size, flags, start, end, walk_end, vec, vec_len, max_pages, category_inverted;
	__u64 category_mask, category_anyof_mask, return_mask;
};
#define PAGEMAP_SCAN _IOWR('f', 16, struct pm_scan_arg)
#endif
"""


def numbers(folder: Path, compiler: str, headers: str, names: list[str]) -> list[int | None]:
    """Return the value of each name in the headers; None if it is not defined."""
    lines = []
    for name in names:
        told = f'printf("%ld\\n", (long)({name}));'
        known = f'#ifdef {name}\n{told}\n#else\nputs("-");\n#endif'
        lines.append(known if name in LATER else told)
    source, program = folder / "numbers.c", folder / "numbers"
    body = "\n".join(lines)
    source.write_text(f"#include <stdio.h>\n{headers}\nint main(void)\n{{\n{body}\nreturn 0;\n}}\n")
    built = subprocess.run(
        [compiler, "-static", "-std=gnu11", "-D_GNU_SOURCE", "-o", program, source],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    run = [*([EMULATOR] if compiler == ARM64 else []), str(program)]
    said = subprocess.run(run, capture_output=True, text=True, check=True).stdout.split()
    return [None if word == "-" else int(word) for word in said]


@pytest.mark.parametrize("compiler", ["gcc", "musl-gcc", ARM64])
def test_numbers_of_the_library(tmp_path: Path, compiler: str) -> None:
    assert shutil.which(compiler), f"install gcc, musl-tools, libc6-dev-arm64-cross and {EMULATOR}"
    kernel = "" if compiler == "musl-gcc" else "\n#include <linux/mman.h>"
    ours = LIBC | OF_ARM64 if compiler == ARM64 else LIBC
    found = numbers(tmp_path, compiler, HEADERS + kernel, [*ours])
    for (name, number), theirs in zip(ours.items(), found, strict=True):
        assert theirs == number or (theirs is None and compiler == "musl-gcc"), name


def test_numbers_of_arm64(tmp_path: Path) -> None:
    headers = "#include <asm-generic/unistd.h>"
    assert numbers(tmp_path, "gcc", headers, [*GENERIC]) == [*GENERIC.values()]


@pytest.mark.parametrize("compiler", ["gcc", ARM64])
def test_numbers_of_counters(tmp_path: Path, compiler: str) -> None:
    assert numbers(tmp_path, compiler, OF_PERF, [*PERF]) == [*PERF.values()]


@pytest.mark.parametrize("compiler", ["gcc", ARM64])
def test_numbers_of_a_scan(tmp_path: Path, compiler: str) -> None:
    names = ["PAGEMAP_SCAN", "sizeof(struct pm_scan_arg)"]
    expected = [pagemap.SCAN, pagemap.ARGUMENT.size]
    assert numbers(tmp_path, compiler, OF_SCAN, names) == expected
