# SPDX-License-Identifier: GPL-2.0
"""Each name() in the documents is defined: in this tree, in the kernel's source, or elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

TREE = Path(__file__).parents[2]
DOCS = ("README.md", "CONTRIBUTING.md", "docs/**/*.md", "docs/*.txt", "kernel-hooks/**/*.md")
OURS = ("module", "kernel-hooks", "userspace/src", "tests", "bench")
KERNEL = (
    "mm",
    "include/linux",
    "include/net",
    "arch/arm64/include",
    "arch/arm64/mm",
    "arch/x86/include",
    "net/core",
    "kernel",
)
SOURCES = (".c", ".h", ".py", ".sh", ".patch")
OTHERS = {
    "histogram_quantile",  # of Prometheus
    # Of one series of Linux alone; a run has the source of one.
    "collapse_scan_pmd",
    "khugepaged_scan_mm_slot",
    "map_anon_folio_pte_pf",
    "swap_cache_alloc_folio",
    "zap_vma_range",
}

CALLED = re.compile(r"(?<![\w.])(\w+)\(\)")
# At the start of a line in C, in the middle of a patch, in Python and in shell.
DEFINED = re.compile(
    r"^[-+ ]?(?:#\s*define (\w+)\(|SYSCALL_DEFINE\d\((\w+)|(?=[A-Za-z_])[\w \t*]*?\b(\w+)\([^;]*$)"
    r"|^\s*def (\w+)\(|^(\w+)\(\) \{",
    re.MULTILINE,
)


def defined(folders: list[Path]) -> set[str]:
    """Return the names defined in some folders; in patches, also those of changed functions."""
    names: set[str] = set()
    for folder in folders:
        for path in folder.rglob("*"):
            if path.suffix in SOURCES and path.is_file():
                for found in DEFINED.findall(path.read_text(errors="replace")):
                    names.update(filter(None, found))
    return names


def called(tree: Path) -> Iterator[tuple[str, str]]:
    """Yield each use of a name in the documents, as file:line and name."""
    for pattern in DOCS:
        for path in sorted(tree.glob(pattern)):
            for number, line in enumerate(path.read_text().splitlines(), 1):
                for name in CALLED.findall(line):
                    yield f"{path}:{number}", name


def check(tree: Path, source: Path) -> list[str]:
    """Return a line for each name in the documents without a definition."""
    known = defined([tree / name for name in OURS] + [source / name for name in KERNEL]) | OTHERS
    return [f"{at}: {name}() is not defined" for at, name in called(tree) if name not in known]
