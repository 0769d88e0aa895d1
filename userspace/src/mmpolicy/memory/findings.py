# SPDX-License-Identifier: GPL-2.0
"""What to do on a host, from what was seen of it: first what costs most memory."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from heapq import nlargest
from typing import NamedTuple

from mmpolicy.errors import Error
from mmpolicy.host import evidence
from mmpolicy.host.calibration import read_calibration
from mmpolicy.host.evidence import THP
from mmpolicy.host.files import Tree
from mmpolicy.host.systemd import HOSTS_OWN
from mmpolicy.memory.survey import FIGURES, Process, Row, Survey
from mmpolicy.memory.trim import check_possible

LINES = 5
MUCH_KIB, MUCH = 32 << 10, 0.1  # of waste: so much, and such a part of the memory
FAULTS, KERNEL = 500.0, 0.02  # a second, and of a CPU: from which on faults are worth a change
STALLS = 5.0  # direct compactions a second
TWO_SIZES = ("64 kB", "16 kB")  # in the gaps where the first does not fit, the second may
GAIN = "17 programs that were measured took 4 to 20 % less CPU time"
SERVICE = re.compile(r".*\.service")


class Finding(NamedTuple):
    """One line of advice."""

    who: str
    what: str
    commands: tuple[str, ...] = ()
    price: str = ""

    def line(self) -> str:
        """Return it in words."""
        command = f"; do: {' && '.join(self.commands)}" if self.commands else ""
        price = f"; price: {self.price}" if self.price else ""
        return f"{self.who}: {self.what}{command}{price}"


def find(
    tree: Tree, survey: Survey, rates: Mapping[str, float], shadows: Mapping[str, str]
) -> list[Finding]:
    """Return what to do; rates are of events of the host, shadows what those of profiles told."""
    cgroups, processes = survey.most(FIGURES["waste"], LINES)
    wasteful = [row for row in _named(cgroups, processes) if _wastes(row)]
    found = [_trim(tree, row) for row in wasteful[:2]]
    found += _sizes(tree, survey, [row.name for row in wasteful])
    found += _compaction(rates)
    found += [Finding(f"profile {name}", *_obey(name, text)) for name, text in shadows.items()]
    found += _forbidding(survey)
    return found[:LINES]


def _named(cgroups: Sequence[Row], processes: Sequence[Row]) -> list[Row]:
    """Return the rows that can be named to a command: not the root, which is the whole host."""
    alone = [row for row in processes if row.cgroup == "/"]
    rows = [row for row in cgroups if row.name != "/"] + alone
    return sorted(rows, key=lambda row: -row.waste_kib)


def _wastes(row: Row) -> bool:
    sure = row.waste_kib - row.error_kib
    return sure >= MUCH_KIB and row.waste_kib >= MUCH * row.anon_kib


def name_of(row: Row) -> str:
    """Return the options that name it to a command."""
    if not row.is_cgroup:
        return f"--pid {row.pids[0]}"
    unit = row.name.rpartition("/")[2]
    if HOSTS_OWN.fullmatch(row.name) and SERVICE.fullmatch(unit):
        return f"--unit {shlex.quote(unit)}"
    return f"--cgroup {shlex.quote(row.name)}"


def _trim(tree: Tree, row: Row) -> Finding:
    waste, error, anon = (int(kib) >> 10 for kib in (row.waste_kib, row.error_kib, row.anon_kib))
    what = f"{waste} MiB (+- {error}) of its {anon} MiB are the empty part of large folios"
    try:
        check_possible(tree)
    except Error as err:
        return Finding(row.name, f"{what}; {err.message}", (), err.next_step)
    price = "it loses these huge pages; without --keep they may come back"
    return Finding(row.name, what, (f"mmpolicy trim {name_of(row)}",), price)


def _sizes(tree: Tree, survey: Survey, wasteful: Sequence[str]) -> Iterator[Finding]:
    """Yield what would save faults: the sizes of the kernel itself where nobody would waste."""
    busy = [each for each in survey.processes.values() if _pays(each) and not each.forbids]
    busy = nlargest(LINES, busy, key=lambda each: each.mean.faults)
    known = evidence.sizes(tree)
    modes = {size: known.get(size, {}).get("set", {}).get("enabled") for size in TWO_SIZES}
    off = [size for size, mode in modes.items() if mode not in ("always", None)]
    if not busy or not off:
        return
    faults = sum(each.mean.faults for each in busy)
    costs = read_calibration(tree)
    what = f"{faults:.0f} page faults a second{f', {costs.of_a_cpu(faults)}' if costs else ''}"
    who = ", ".join(dict.fromkeys(each.name for each in busy))
    if wasteful:
        commands = ("mmpolicy doctor", f"mmpolicy recommend {busy[0].pid}")
        price = f"a module; sysfs would give larger folios to {', '.join(wasteful)} too"
        yield Finding(who, f"{what}; a profile gives large folios to it alone", commands, price)
        return
    lines = tuple(f"echo always >{THP}/hugepages-{size.replace(' ', '')}/enabled" for size in off)
    price = f"0 to 5 % more memory, gcc 15 %; {GAIN}"
    yield Finding(who, f"{what}; the kernel's own sizes will do, no module is needed", lines, price)


def _pays(process: Process) -> bool:
    return process.mean.faults >= FAULTS and process.mean.kernel >= KERNEL


def _compaction(rates: Mapping[str, float]) -> Iterator[Finding]:
    stalls = rates.get("compact_stall", 0.0)
    if stalls >= STALLS:
        what = f"{stalls:.0f} times a second a program compacts memory itself, for a huge page"
        price = "fewer huge pages at first, khugepaged makes them later"
        yield Finding("host", what, (f"echo defer >{THP}/defrag",), price)


def _obey(profile: str, text: str) -> tuple[str, tuple[str, ...], str]:
    command = f"mmpolicy set anon_order adaptive --profile {profile}"
    return f"its shadow says: {text}", (command,), "the pages that it says"


def _forbidding(survey: Survey) -> Iterator[Finding]:
    names = sorted({each.name for each in survey.processes.values() if each.forbids})
    if names:
        what = "forbid large folios by themselves (prctl), so no setting reaches them"
        yield Finding(", ".join(names), what)
