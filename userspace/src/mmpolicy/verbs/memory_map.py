# SPDX-License-Identifier: GPL-2.0
"""`map`: a picture of the memory of a process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from mmpolicy.host.disk import save_as
from mmpolicy.host.machine import Host
from mmpolicy.memory.folios import PAGE, Area, read_areas, totals
from mmpolicy.memory.picture import as_png, as_svg, draw, terminal
from mmpolicy.render import emit, table
from mmpolicy.verbs.options import complete_pid, json_option, pass_host


def _summary(areas: list[Area]) -> list[str]:
    rows = []
    for order, total in totals(areas).items():
        kib, zero = total.pages * PAGE >> 10, total.zero * PAGE >> 10
        share = f"{total.zero / total.pages:.0%}" if order else "-"
        rows.append((order, f"{PAGE << order >> 10} kB", total.folios, kib, zero, share))
    if not rows:
        return ["no page is resident"]
    return table(("ORDER", "FOLIO", "FOLIOS", "RESIDENT_KIB", "ZERO_KIB", "ZERO"), rows)


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


def _lines(areas: list[Area]) -> Iterator[str]:
    yield from terminal(areas)
    yield ""
    yield from _summary(areas)


def _draw(title: str, areas: list[Area], output: Path) -> None:
    if output.suffix not in (".svg", ".png"):
        raise click.UsageError(f"{output}: the name has to end in .svg or .png")
    drawing = draw(title, areas)
    save_as(output, as_svg(drawing).encode() if output.suffix == ".svg" else as_png(drawing))


@click.command("map")
@click.argument("pid", type=click.IntRange(min=1), shell_complete=complete_pid)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="Draw into FILE.svg, or FILE.png (which needs matplotlib).",
)  # fmt: skip
@click.option("--no-content", is_flag=True, help="Do not read the memory to find zeroes.")
@click.option("--files", is_flag=True, help="Also show mappings of files and shared memory.")
@json_option
@pass_host
def map_memory(
    host: Host, pid: int, output: Path | None, no_content: bool, files: bool, want_json: bool
) -> None:
    """Show which folio sizes back a process, and how much is empty.

    Zero-filled pages of large folios were most likely never written: smaller folios would have
    saved this memory. The command reads only resident pages, which marks them as accessed.
    """
    areas = read_areas(host.tree, pid, contents=not no_content, files=files)
    if output:
        name = host.tree.read(f"/proc/{pid}/comm")
        _draw(f"process {pid} ({name})", areas, output)
        emit("map", want_json, {"pid": pid, **_data(areas)}, _summary(areas))
        return
    emit("map", want_json, {"pid": pid, **_data(areas)}, _lines(areas))
