# SPDX-License-Identifier: GPL-2.0
"""`map`: a picture of the memory of a process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from mmpolicy.figures import figure
from mmpolicy.host.disk import save_as
from mmpolicy.host.machine import Host
from mmpolicy.host.pagemap import PAGE
from mmpolicy.host.processes import find_process
from mmpolicy.memory.folios import HUGETLB, Area, count_of, read_areas, totals
from mmpolicy.memory.holds import Holds
from mmpolicy.memory.picture import as_png, as_svg, draw, terminal
from mmpolicy.memory.space import Sizes, Space
from mmpolicy.render import emit, progress_line, table
from mmpolicy.verbs.options import (
    Seconds,
    complete_pid,
    hold_option,
    json_option,
    pass_host,
)

LONG_KIB = 256 << 10  # the progress is shown from this many kB on, as reading them takes seconds
SECONDS = 60.0  # default time limit; a heap of some hundred GiB, or a sparse one, takes longer
LATE = "memory for which there was no time"
# If the picture lacks memory of a kind, that is reported only from this many kB on, as the kernel's
# counters are not exact.
WORTH_KIB = 1024


def _summary(areas: list[Area]) -> list[str]:
    rows = []
    for order, total in totals(areas).items():
        kib, zero = total.pages * PAGE >> 10, total.zero * PAGE >> 10
        share = f"{total.zero / total.pages:.0%}" if order else "-"
        rows.append((order, f"{PAGE << order >> 10} kB", total.folios, kib, zero, share))
    if not rows:
        return ["the process has no resident page"]
    return table(("ORDER", "FOLIO", "FOLIOS", "RESIDENT_KIB", "ZERO_KIB", "ZERO"), rows)


def not_shown(areas: list[Area], sizes: Sizes, files: bool, stopped: bool) -> dict[str, int]:
    """Return how much memory of the process the picture of its address space does not show, in kB
    by kind.

    files: whether the picture shows file mappings. stopped: whether reading ended at the time
    limit.
    """
    resident = sum(total.pages for total in totals(areas).values()) * PAGE >> 10
    pools = max(sizes.hugetlb - (count_of(areas, HUGETLB) * PAGE >> 10), 0)
    wanted = sizes.anon + sizes.shared + (sizes.file if files else 0)
    rest = {
        "files": 0 if files else sizes.file,  # shown only with --files
        "hugetlb": pools,
        LATE if stopped else "other private or shared memory": max(wanted - resident, 0),
    }
    return {name: kib for name, kib in rest.items() if kib >= WORTH_KIB}


def _data(areas: list[Area]) -> dict[str, Any]:
    return {
        "page_bytes": PAGE,
        "orders": {order: total._asdict() for order, total in totals(areas).items()},
        "areas": [
            {"start": area.start, "end": area.start + len(area.kinds) * PAGE, "name": area.name,
             "runs": [run._asdict() for run in area.runs()]}
            for area in areas
        ],
    }  # fmt: skip


def _lines(areas: list[Area], rest: dict[str, Any], summary: bool) -> Iterator[str]:
    yield from _summary(areas)
    yield from _rest(rest)
    if not summary:
        yield ""
        yield from terminal(areas)


def _rest(rest: dict[str, Any]) -> Iterator[str]:
    if rest["not_shown_kib"]:
        kinds = (
            f"{name} {kib >> 10} MiB" + " (--files shows them)" * (name == "files")
            for name, kib in rest["not_shown_kib"].items()
        )
        yield f"memory that is not shown here: {', '.join(kinds)}"
    if rest["stopped_after_s"] is not None:
        after = f"the look was stopped after {figure(rest['stopped_after_s'])} s"
        yield f"{after}, so memory at higher addresses is missing; --seconds 0 looks at all of it"
    if rest["partly_unmapped_kib"] >= WORTH_KIB:
        mib = rest["partly_unmapped_kib"] >> 10
        yield (
            f"{mib} MiB of these folios are mapped by no process and counted in no RSS; "
            "mmpolicy trim gives them back"
        )
    yield f"longest hold of the mmap_lock of the process by this command: {rest['longest_ms']} ms"


def _draw(title: str, areas: list[Area], output: Path) -> None:
    if output.suffix not in (".svg", ".png"):
        raise click.UsageError(f"{output}: the name must end in .svg or .png")
    drawing = draw(title, areas)
    save_as(output, as_svg(drawing).encode() if output.suffix == ".svg" else as_png(drawing))


class Progress:
    """Prints the progress for a large process, and ends the reading at the time limit."""

    def __init__(self, host: Host, sizes: Sizes, files: bool, limit_s: float) -> None:
        self._kib = sizes.anon + sizes.shared + sizes.swap + (sizes.file if files else 0)
        self._done_kib = self._percent = 0
        self._clock, self._limit_s = host.clock, limit_s
        self._began, self.stopped = host.clock(), False

    def goes_on(self, pages: int) -> bool:
        """Add pages that were read to the progress; return False once the time limit is reached."""
        self._done_kib += pages * PAGE >> 10
        percent = min(100 * self._done_kib // max(self._kib, 1), 99)
        if self._kib >= LONG_KIB and percent > self._percent:
            self._percent = percent
            self._show(percent)
        self.stopped = 0 < self._limit_s <= self._clock() - self._began
        return not self.stopped

    def end(self) -> None:
        """Print the last progress line, if any was printed."""
        if self._percent:
            self._show(self._percent if self.stopped else 100, is_last=True)

    def _show(self, percent: int, is_last: bool = False) -> None:
        progress_line(f"looked at {percent} % of {self._kib >> 10} MiB", is_last)


@click.command("map")
@click.argument("given", metavar="PID|NAME|UNIT", shell_complete=complete_pid)
@click.option("--summary", is_flag=True, help="Only the table, without the picture.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="Draw the picture into FILE, which must end in .svg or .png (.png needs matplotlib).",
)  # fmt: skip
@click.option("--no-content", is_flag=True, help="Do not read the memory to find zeroes.")
@click.option("--files", is_flag=True, help="Also show mappings of files.")
@click.option(
    "--seconds", type=Seconds(least=0), default=SECONDS, show_default=True, metavar="TIME",
    help="Read page tables for this long at most, from the lowest address on; 0: read all.",
)  # fmt: skip
@hold_option
@json_option
@pass_host
def map_memory(
    host: Host, given: str, summary: bool, output: Path | None, no_content: bool, files: bool,
    seconds: float, hold_ms: float, want_json: bool,
) -> None:  # fmt: skip
    """Show which folio sizes back a process, and how much is empty.

    The process is given by its number, its name, or its service, if that has only one process. The
    table comes first, then a picture of all areas, which --summary leaves out. Zero-filled pages of
    large folios were most likely never written: smaller folios would have saved this memory. The
    command reads only resident pages, which marks them as accessed. After --seconds it ends, and
    says how much it has not looked at.
    """
    pid = find_process(host.tree, given)
    holds = Holds(host.tree, hold_ms / 1000)
    sizes = Space(host.tree, pid, holds).sizes()
    progress = Progress(host, sizes, files, seconds)
    areas = read_areas(host.tree, pid, not no_content, files, True, holds, progress.goes_on)
    progress.end()
    missing = not_shown(areas, sizes, files, progress.stopped)
    rest: dict[str, Any] = {
        "not_shown_kib": missing,
        "stopped_after_s": seconds if LATE in missing else None,
        "partly_unmapped_kib": sum(area.lost for area in areas) * PAGE >> 10,
        "longest_ms": round(holds.longest_s * 1000, 1),
    }
    data = {"pid": pid, **_data(areas), **rest} if want_json else {}
    if output:
        name = host.tree.read(f"/proc/{pid}/comm")
        _draw(f"process {pid} ({name})", areas, output)
        emit("map", want_json, data, [*_summary(areas), *_rest(rest)])
        return
    emit("map", want_json, data, lambda: _lines(areas, rest, summary))
