# SPDX-License-Identifier: GPL-2.0
"""Writes the table in docs/kernels.md: which points work on Debian's newest kernel of each series.

It reads the BTF of each kernel image. ``./dev fit --debian`` runs this, with the package index of
the suite that has the kernels.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from lab.machine import TREE, cache_dir
from mmpolicy.host.files import Tree
from mmpolicy.verbs.fit import look_at

PAGE = TREE / "docs/kernels.md"
BEGIN, END = "<!-- fits: made by ./dev fit --debian -->\n", "<!-- end of fits -->"
PACKAGE = re.compile(r"linux-(binary|image)-(\d+\.\d+)\.(\d+)(\+deb\d+)-((?:cloud-)?amd64)")
FLAVORS = ("cloud-amd64", "amd64")


def apt(*words: str, cwd: Path | None = None) -> str:
    """Run an apt command with the index of backports, which has all series; return its output."""
    (config,) = cache_dir().glob("apt/*-backports/apt.conf")
    environment = {**os.environ, "APT_CONFIG": str(config)}
    return subprocess.check_output(words, env=environment, text=True, cwd=cwd)


def newest() -> dict[tuple[str, str], str]:
    """Return the name of the newest package with a kernel image, by series and flavor."""
    known = apt("apt-cache", "pkgnames", "linux-")
    found: dict[tuple[str, str], tuple[int, str, str]] = {}
    for match in filter(None, map(PACKAGE.fullmatch, known.split())):
        kind, series, release, _, flavor = match.groups()
        # From 6.19 on the image is in "binary", and "image" is nearly empty.
        rank = (int(release), "0" if kind == "binary" else "1", match[0])
        before = found.get((series, flavor), (-1, "", ""))
        if rank[0] > before[0] or (rank[0] == before[0] and rank[1] < before[1]):
            found[series, flavor] = rank
    return {key: rank[2] for key, rank in found.items()}


def fetched(package: str) -> Path:
    """Return the file of a package, from the cache or by a download."""
    folder = cache_dir() / "fits"
    folder.mkdir(parents=True, exist_ok=True)
    if not any(folder.glob(f"{package}_*.deb")):
        apt("apt-get", "download", package, cwd=folder)
    return next(folder.glob(f"{package}_*.deb"))


def rows() -> Iterator[str]:
    """Yield the lines of the table: a header, and a row for each kernel image."""
    found = newest()
    points: list[str] = []
    for series, flavor in sorted(found, key=lambda k: ([*map(int, k[0].split("."))], k[1])):
        kernel, fits = look_at(Tree(), str(fetched(found[series, flavor])))
        if not points:
            points = [f"`{each.point}`" for each in fits]
            yield f"| image | {' | '.join(points)} |"
            yield "|---" * (len(points) + 1) + "|"
        cells = ["; ".join(each.reasons) or each.status for each in fits]
        yield f"| {kernel.release} | {' | '.join(cells)} |"


def main() -> None:
    """Replace the table in docs/kernels.md, and print it."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    table = "\n".join(rows())
    PAGE.write_text(f"{before}{BEGIN}\n{table}\n\n{END}{after}")
    print(table)


if __name__ == "__main__":
    main()
