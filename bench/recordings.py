# SPDX-License-Identifier: GPL-2.0
"""Record the order in which programs first touch their memory, for tests/unit.

Under the policy `never` each page has a fault of its own, for which the kernel asks the policy. So
kprobes on this call see all faults for which any policy could be asked. A recording has the events
of the address space with the most faults. Its lines, with numbers of pages:

    N           touch the page that is N pages after the last touched one
    v START N   the next touches are in the VMA of N pages from START on
    u START N   unmap N pages from START on
    m FROM TO N move N pages, as mremap() does

Regions of 1 GiB without a touch are left out when pages are numbered.
"""

from __future__ import annotations

import argparse
import lzma
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.anon_order import policy
from lab import counting
from lab.guest import Guest, new_guest
from lab.programs import must

MEM = "3G"
TRACING = "/sys/kernel/tracing"
PROBES = (  # x86-64: the arguments are in di, si, dx, cx, r8
    "fault mmpolicy:mmp_anon_orders mm=+16(+0(%di)) a=+24(%di) b=+0(+0(%di)) c=+8(+0(%di))",
    "unmap unmap_page_range mm=+16(%si) a=%dx b=%cx c=%cx",
    "move move_page_tables mm=+16(%di) a=%si b=%cx c=%r8",
    "end exit_mmap mm=%di a=%di b=%di c=%di",
)
EVENT = re.compile(r": (fault|unmap|move|end): \(.*?\) mm=0x(\w+) a=0x(\w+) b=0x(\w+) c=0x(\w+)")
REGION = 1 << 18  # pages of 1 GiB, the addresses that one page of PMDs maps


@dataclass
class Touches:
    """The events of one address space; each has a kind and three numbers of pages."""

    events: list[tuple[str, int, int, int]] = field(default_factory=list)

    def faults(self) -> int:
        """Return the number of page faults of the address space."""
        return sum(kind == "fault" for kind, *_ in self.events)

    def regions(self) -> dict[int, int]:
        """Return the number in the recording of each region with a fault; regions are 1 GiB, and
        numbers start at 0.
        """
        used = {a // REGION for kind, a, _, _ in self.events if kind == "fault"}
        return {region: number for number, region in enumerate(sorted(used))}


def largest(text: str) -> Touches:
    """Return the events of the address space with the most faults, from the text of a trace.

    After an address space has ended, another one may have the same mm address.
    """
    running: dict[str, Touches] = {}
    found = []
    for kind, mm, *numbers in EVENT.findall(text):
        if kind == "end":
            running.pop(mm, None)
            continue
        if mm not in running:
            running[mm] = Touches()
            found.append(running[mm])
        a, b, c = (int(number, 16) >> 12 for number in numbers)
        running[mm].events.append((kind, a, b, c))
    return max(found, key=Touches.faults)


class Lines:
    """Yields the lines of a recording, for one event after another."""

    def __init__(self, regions: dict[int, int]) -> None:
        self.regions = regions
        self.vma = (0, 0)
        self.page = 0

    def renumber(self, page: int) -> int:
        """Return the number of a page in the recording, which leaves out unused regions."""
        region = page // REGION
        return page + (self.regions[region] - region) * REGION

    def parts(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of a page range that lie in regions with a fault, one region at a
        time.
        """
        for region in self.regions:
            first, last = max(start, region * REGION), min(end, (region + 1) * REGION)
            if first < last:
                yield first, last

    def clipped(self, start: int, end: int, page: int) -> tuple[int, int]:
        """Return the VMA from `start` to `end`, clipped to the regions with faults around a
        page.
        """
        first = last = page // REGION
        while first - 1 in self.regions:
            first -= 1
        while last + 1 in self.regions:
            last += 1
        return max(start, first * REGION), min(end, (last + 1) * REGION)

    def fault(self, page: int, start: int, end: int) -> Iterator[str]:
        """Yield the lines of a recording for a touch of a page; a second touch of the same page in
        a row is left out.
        """
        start, end = self.clipped(start, end, page)
        vma = self.renumber(start), end - start
        if vma != self.vma:
            yield f"v {vma[0]} {vma[1]}"
        if (here := self.renumber(page)) != self.page:
            yield f"{here - self.page}"
        self.vma, self.page = vma, here

    def unmap(self, start: int, end: int, _: int) -> Iterator[str]:
        """Yield the lines of a recording for an unmapping of pages, without regions that have no
        fault.
        """
        for first, last in self.parts(start, end):
            yield f"u {self.renumber(first)} {last - first}"

    def move(self, start: int, to: int, size: int) -> Iterator[str]:
        """Yield the lines of a recording for a move of pages, unless a region in question has no
        fault.
        """
        if start // REGION in self.regions and to // REGION in self.regions:
            yield f"m {self.renumber(start)} {self.renumber(to)} {size}"


def recording(touches: Touches) -> str:
    """Return the text of the recording of an address space."""
    lines = Lines(touches.regions())
    write: dict[str, Callable[[int, int, int], Iterator[str]]] = {
        "fault": lines.fault,
        "unmap": lines.unmap,
        "move": lines.move,
    }
    return "".join(f"{line}\n" for kind, *where in touches.events for line in write[kind](*where))


def start_tracing(guest: Guest) -> None:
    """Select the policy `never`, and enable the kprobes in a guest."""
    probes = "\n".join(f"echo 'p:mmp/{probe}' >>kprobe_events" for probe in PROBES)
    must(guest, f"{policy('never')}; mountpoint -q {TRACING} || mount -t tracefs t {TRACING}")
    must(
        guest,
        f"set -e; cd {TRACING}\necho 200000 >buffer_size_kb\n{probes}\necho 1 >events/mmp/enable",
    )


def traced(guest: Guest, command: str) -> str:
    """Run a shell command with the kprobes enabled, and return its trace."""
    must(guest, f"echo 0 >{TRACING}/tracing_on; echo >{TRACING}/trace")
    must(guest, f"echo 1 >{TRACING}/tracing_on; {command}", 1200)
    return must(guest, f"echo 0 >{TRACING}/tracing_on; cat {TRACING}/trace", 1200)


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add --record, the folder of new recordings, to the options of a benchmark."""
    parser.add_argument(
        "--record",
        type=Path,
        metavar="FOLDER",
        help="only record in which order the programs touch their memory, for tests/unit",
    )


def record(folder: Path, commands: dict[str, str], cpus: int = 1) -> None:
    """Run each shell command in a guest, and write its recording to the file NAME.xz in `folder`.

    commands: shell commands by name. cpus: number of CPUs of the guest.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with new_guest("patched", mem=MEM, cpus=cpus) as guest:
        start_tracing(guest)
        for name, command in commands.items():
            touches = largest(traced(guest, command))
            packed = lzma.compress(recording(touches).encode(), preset=9)
            (folder / f"{name}.xz").write_bytes(packed)
            counting.progress(f"{name}: {touches.faults()} faults, {len(packed)} bytes")
