# SPDX-License-Identifier: GPL-2.0
"""Advice for a host, from a survey of its processes: the most expensive finding comes first.

The cost of a finding is the share of a CPU that page faults take, by the figures of `calibrate`,
or the size of empty memory. Both are compared as shares of the host. Below 1 % of a CPU and 5 % of
the memory of a service, a change is not worth its price, and only the figures are reported. Each
printed command does what its line says; a line without a command names the next step.
"""

from __future__ import annotations

import os
import re
import shlex
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import nlargest
from typing import NamedTuple

from mmpolicy.errors import Error
from mmpolicy.figures import figure
from mmpolicy.host import evidence
from mmpolicy.host.calibration import PAGE, Calibration
from mmpolicy.host.cgroups import find_bindable
from mmpolicy.host.evidence import THP
from mmpolicy.host.files import Tree
from mmpolicy.host.machine import hardware_of
from mmpolicy.host.systemd import HOSTS_OWN
from mmpolicy.memory.allocators import GLIBC, Allocator, allocator_of
from mmpolicy.memory.holds import SURE, Holds
from mmpolicy.memory.lazily import memory_of_process
from mmpolicy.memory.reach import Clues, reach
from mmpolicy.memory.space import Space
from mmpolicy.memory.survey import FIGURES, Process, Row, Survey
from mmpolicy.memory.trim import LOCKED, SMALLER, cause_of, check_possible

LINES = 5
LEAST_PERCENT = 1.0  # a change is worth its price if it may save this percentage of a CPU
# A change is worth its price if at least this much memory is empty, and this share of the service's
# memory.
LEAST_KIB, LEAST_SHARE = 32 << 10, 0.05
# If a cause explains at least this share of the empty memory, the advice depends on the cause.
MOST = 0.5
# If a smaller share of the memory than this is empty, each folio may be too full for `trim` to
# split, so the advised command lowers --min-empty.
EVEN = 0.15
STALLS = 5.0  # from this number of direct compactions per second on, the advice mentions them
# The advice enables several folio sizes, as a smaller folio may fit where a larger one does not.
OWN_SIZES = ("16 kB", "32 kB", "64 kB")
HUGE_ORDER, SIZE_ORDER = 9, 4
# If at least this share of a process's faults get 2 MB pages, the clearing of these pages explains
# its kernel time.
CLEARING = 0.2
SINGLE = "single pages, measured now; mmpolicy calibrate measures all sizes"
GAIN = "17 programs measured with these sizes saved 4 to 20 % of their CPU time"
# files of a cgroup that the metrics of the presets of `ab` read
MEASURED = ("memory.current", "memory.stat", "cpu.stat")
SERVICE = re.compile(r".*\.service")
# A service with more memory than this gets a line even without a finding, as users ask about it.
LARGE_KIB = 256 << 10


class Finding(NamedTuple):
    """One line of advice about a service, a process or the host, with what the problem costs: CPU
    time in percent of a CPU, and memory in MiB.
    """

    who: str
    what: str
    commands: tuple[str, ...] = ()
    price: str = ""
    next_step: str = ""  # the next step as text, if no command does it
    cpu_percent: float = 0.0
    mib: float = 0.0
    worth: bool = True

    def line(self) -> str:
        """Return the finding as one line of text."""
        if not self.worth:
            return f"not worth it: {self.who}: {self.what}"
        command = f"; do: {' && '.join(self.commands)}" if self.commands else ""
        price = f"; price: {self.price}" if self.price else ""
        step = f"; next: {self.next_step}" if self.next_step else ""
        return f"{self.who}: {self.what}{command}{price}{step}"


class Module(NamedTuple):
    """Whether this host can load the module, and the step to load it: commands or a text."""

    possible: bool
    commands: tuple[str, ...] = ()  # commands that load the module; empty if it is loaded
    next_step: str = ""  # the next step as text, if no command loads the module


@dataclass
class Evidence:
    """The measurements of a host, from which the advice for it is derived."""

    tree: Tree
    survey: Survey
    rates: Mapping[str, float]  # events per second of the host, by name
    made: Mapping[int, float]  # large folios that faults allocate per second, by size in bytes
    costs: Calibration  # costs of page faults; only those of single pages are always known
    module: Module
    # what the shadow policy of a profile has counted, as text, by the profile's name
    shadows: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.hardware = hardware_of(self.tree)

    def part(self, found: Finding) -> float:
        """Return the part of the host that a finding concerns, to rank findings: of its CPUs, or
        of its memory.
        """
        memory = (self.hardware.memory or 0) >> 20
        of_memory = found.mib / memory if memory else 0.0
        return max(found.cpu_percent / 100 / (self.hardware.cpus or 1), of_memory)


def find(host: Evidence) -> list[Finding]:
    """Return up to LINES findings that are worth a change, the most expensive first, then those
    that are not.
    """
    cgroups, processes = host.survey.most(FIGURES["waste"], LINES)
    rows = _named(cgroups, processes)
    wasteful = [row for row in rows if _wastes(row)]
    found = [_trim(host.survey, row) for row in wasteful[:2]]
    found += [_little(row) for row in rows[:1] if not wasteful and row.waste_kib >= 1024]
    found += _sizes(host, wasteful)
    found += _clearing(host)
    found += _compaction(host.rates)
    found += [Finding(f"profile {name}", *_obey(name, text)) for name, text in host.shadows.items()]
    found += _forbidding(host)
    found += _lazily(host)
    found = [_where_it_works(host.tree, each) for each in found]
    worth = sorted((each for each in found if each.worth), key=lambda each: -host.part(each))
    if not any(each.mib for each in worth):
        worth += _written(host, rows)
    return worth[:LINES] + [each for each in found if not each.worth]


def _where_it_works(tree: Tree, found: Finding) -> Finding:
    """Return a finding with a text in place of its commands if these cannot run here, as in a
    container with a read-only /sys.
    """
    knobs = any(each.startswith(("echo ", "mmpolicy ab run ")) for each in found.commands)
    if not knobs or tree.writable(f"{THP}/enabled"):
        return found
    step = f"run this on the host itself, as {THP} is read-only here: {' && '.join(found.commands)}"
    return found._replace(commands=(), next_step=step)


def _named(cgroups: Sequence[Row], processes: Sequence[Row]) -> list[Row]:
    """Return the rows that an option of a command can select, those with most empty memory first:
    all cgroups but the root cgroup, which is the whole host, and the processes in the root cgroup.
    """
    alone = [row for row in processes if row.cgroup == "/"]
    rows = [row for row in cgroups if row.name != "/"] + alone
    return sorted(rows, key=lambda row: -row.waste_kib)


def _wastes(row: Row) -> bool:
    return is_waste(_private(row), row.error_kib, row.anon_kib)


def is_waste(waste_kib: float, error_kib: float, anon_kib: float) -> bool:
    """Return whether empty memory justifies a change, even if the estimate is too high by its
    error.
    """
    return waste_kib - error_kib >= LEAST_KIB and waste_kib >= LEAST_SHARE * anon_kib


def _private(row: Row) -> float:
    """Return the empty memory that `trim` can give back: the kernel keeps empty pages of shared
    memory.
    """
    return row.waste_kib - row.waste_shared_kib


def name_of(row: Row) -> str:
    """Return the option that selects a row for a command, such as "--pid 42"."""
    return f"--pid {row.pids[0]}" if not row.is_cgroup else option_of(row.name)


def option_of(cgroup: str) -> str:
    """Return the option that selects a cgroup for a command: --unit for a systemd service, else
    --cgroup.
    """
    unit = own_service(cgroup)
    return f"--unit {shlex.quote(unit)}" if unit else f"--cgroup {shlex.quote(cgroup)}"


def own_service(cgroup: str) -> str:
    """Return the name of the systemd service that has this cgroup; "" if the host's own systemd
    does not run it, as for a service in a container.
    """
    unit = cgroup.rpartition("/")[2]
    return unit if HOSTS_OWN.fullmatch(cgroup) and SERVICE.fullmatch(unit) else ""


def _trim(survey: Survey, row: Row) -> Finding:
    waste, error, anon = (int(kib) >> 10 for kib in (_private(row), row.error_kib, row.anon_kib))
    what = (
        f"{waste} MiB (+- {error}) of the {anon} MiB of private memory are empty parts of "
        "large folios"
    )
    try:
        check_possible(survey.tree, cgroup=row.cgroup)
    except Error as err:
        return Finding(row.name, f"{what}; {err.message}", next_step=err.next_step, mib=waste)
    options, stays, unsure = trim_options(survey, row)
    if stays:
        return Finding(row.name, f"{what}; {stays}", next_step=SMALLER, mib=waste)
    what += f"; {unsure}" if unsure else ""
    price = "the program loses these huge pages; without --bind the kernel may make them again"
    return Finding(row.name, what, (f"mmpolicy trim {name_of(row)}{options}",), price, mib=waste)


def trim_options(survey: Survey, row: Row) -> tuple[str, str, str]:
    """Return three texts for a row, each of which may be "": the options that `trim` needs, the
    reason why `trim` cannot free the memory, and a caveat.
    """
    left = _left_alone(survey, row)
    if left["locked"] >= MOST:
        why = "these pages are locked (mlock, VFIO) or pinned (RDMA, io_uring), so trim frees none"
        return "", why, ""
    asked = unsure = ""
    if left["asked"] + left["unknown"] >= MOST:
        asked = " --include-madvised"
        if left["unknown"] > left["asked"]:
            unsure = "it is not known whether the program asked for these folios by madvise()"
    # By default, trim skips folios with a low empty share. The mean share here is near this limit,
    # so the option lowers it.
    share = _private(row) / row.anon_kib
    least = f" --min-empty {50 * share:.0f}" if share < EVEN else ""
    return asked + least, "", unsure


def _left_alone(survey: Survey, row: Row) -> Counter[str]:
    """Return for each cause the share of a row's empty memory that `trim` would not give back."""
    found = Counter[str]()
    there = [survey.processes[pid] for pid in row.pids if pid in survey.processes]
    most = nlargest(LINES, there, key=lambda each: each.anon_kib * each.sample.share)
    for each in most:
        with suppress(Error):  # a process that has ended is left out
            found.update(_causes(survey, each))
    whole = sum(found.values())
    return Counter({cause: kib / whole for cause, kib in found.items()}) if whole else found


def _causes(survey: Survey, process: Process) -> dict[str, float]:
    """Return the empty memory of a process in kB, by the cause for which `trim` would leave it
    alone.
    """
    waste, empties = process.anon_kib * process.sample.share, process.sample.empties()
    space = Space(survey.tree, process.pid, survey.holds)
    sizes, areas = space.sizes(), space.areas()
    details, starts = space.details(areas), [each.start for each in areas]
    told = {where: each for where, each in details.items() if each and LOCKED in each.flags}
    by_mlock = sum((end - start) >> 10 for start, end in told)
    if sizes.pinned + max(sizes.locked - by_mlock, 0) >= MOST * sizes.anon:
        # the counter of locked memory includes pages that VFIO pins without mlock(), so all of the
        # memory counts as locked
        return {"locked": waste}
    whole, found = sum(pages for _, pages in empties), defaultdict[str, float](float)
    for start, pages in empties:
        area = areas[max(bisect_right(starts, start) - 1, 0)]
        cause = cause_of(details[area.start, area.end], bool(sizes.locked), advised=False)
        found[cause] += waste * pages / whole
    return found


def _rss(tree: Tree, pid: int) -> int:
    try:
        return int(tree.read(f"/proc/{pid}/statm").split()[1])
    except (Error, ValueError, IndexError):  # the process has ended, so it has no memory
        return 0


def _little(row: Row) -> Finding:
    share = row.waste_kib / row.anon_kib if row.anon_kib else 0.0
    what = (
        f"{row.waste_kib / 1024:.0f} MiB (+- {row.error_kib / 1024:.0f}) are empty "
        f"parts of large folios, {share:.0%}"
    )
    return Finding(row.name, f"{what} of its memory", worth=False)


def gain_percent(costs: Calibration, faults: float, kernel: float) -> float:
    """Return how much 64 kB folios can save at most, in percent of a CPU.

    faults: page faults per second of the process. kernel: the share of a CPU that the process
    spends in the kernel, which includes its faults.
    """
    return min(faults * costs.saved_ns(SIZE_ORDER) / 1e7, 100 * kernel)


def _sizes(host: Evidence, wasteful: Sequence[Row]) -> Iterator[Finding]:
    """Yield a finding if the kernel's own folio sizes would save faults.

    If some services waste memory in large folios, the finding is about the busiest process alone.
    """
    others = (each for each in host.survey.processes.values() if each.pid != os.getpid())
    busy = [each for each in others if each.mean.faults >= 1]
    busy = [each for each in busy if not each.forbids and not _clears(host, each)]
    busy = nlargest(LINES, busy, key=lambda each: each.mean.faults)
    known = evidence.sizes(host.tree)
    modes = {size: known.get(size, {}).get("set", {}).get("enabled") for size in OWN_SIZES}
    off = [size for size, mode in modes.items() if mode not in ("always", None)]
    if not busy or not off:
        return
    faults = sum(each.mean.faults for each in busy)
    gain = gain_percent(host.costs, faults, sum(each.mean.kernel for each in busy))
    who = ", ".join(dict.fromkeys(each.name for each in busy))
    what = f"{faults:.0f} page faults a second, {_of_a_cpu(host.costs, gain)}"
    if gain < LEAST_PERCENT:
        yield Finding(who, what, cpu_percent=gain, worth=False)
    elif wasteful:
        yield from _for_it_alone(host, busy[0], what, gain, [row.name for row in wasteful])
    else:
        yield _own_sizes(who, what, gain, off)


def _of_a_cpu(costs: Calibration, percent: float) -> str:
    gain = f"for which larger folios save at most {figure(percent, 2)} % of a CPU"
    return gain if costs.has_folios else f"{gain} (by the cost of {SINGLE})"


def _own_sizes(who: str, what: str, gain: float, off: Sequence[str]) -> Finding:
    lines = tuple(f"echo always >{THP}/hugepages-{size.replace(' ', '')}/enabled" for size in off)
    text = f"{what}; the kernel's own folio sizes can save it without the module"
    return Finding(who, text, lines, f"0 to 5 % more memory, gcc 15 %; {GAIN}", cpu_percent=gain)


def _for_it_alone(
    host: Evidence, busy: Process, what: str, gain: float, wasteful: Sequence[str]
) -> Iterator[Finding]:
    """Yield a finding that gives large folios to one process only: a setting in sysfs would also
    give them to services that waste memory in them.
    """
    others = (
        f"the settings in sysfs would give larger folios to {', '.join(wasteful)}, too, "
        "which waste memory in them"
    )
    if host.module.possible:
        shadow = "mmpolicy set anon_order shadow=adaptive"
        commands = (*host.module.commands, shadow) if not host.module.next_step else ()
        step = (
            host.module.next_step
            or f"after a minute, mmpolicy recommend {busy.pid} shows the result"
        )
        text = (
            f"{what}; a profile would give large folios to this program alone; a "
            "shadow policy, which only counts, shows first how many faults that saves"
        )
        price = f"the module takes up to 1 % of the time of faults; {others}"
        yield Finding(busy.name, text, commands, price, step, cpu_percent=gain)
    elif can_measure(host.tree, busy.cgroup):
        command = f"mmpolicy ab run --preset thp-sizes --yes {option_of(busy.cgroup)}"
        price = f"up to four hours of measuring, during which {others}"
        text = f"{what}; the command measures the effect of folios of 16 to 64 kB"
        yield Finding(busy.name, text, (command,), price, cpu_percent=gain)
    else:
        yield Finding(busy.name, f"{what}; but {others}", cpu_percent=gain)


def missing(tree: Tree, cgroup: str) -> list[str]:
    """Return the files that the metrics of `mmpolicy ab`'s presets read and that a cgroup lacks."""
    try:
        folder = find_bindable(tree, cgroup).folder
    except Error:
        return [*MEASURED]
    return [file for file in MEASURED if not tree.exists(f"{folder}/{file}")]


def can_measure(tree: Tree, cgroup: str) -> bool:
    """Return whether `mmpolicy ab` can measure a cgroup with its presets: it is not the root
    cgroup, and has the files that their metrics read.
    """
    return cgroup != "/" and not missing(tree, cgroup)


def _clears(host: Evidence, process: Process) -> bool:
    """Return whether a process spends its kernel time in few, long faults of huge pages."""
    huge, faults = host.made.get(PAGE << HUGE_ORDER, 0.0), process.mean.faults
    left = 100 * process.mean.kernel - faults * host.costs.ns() / 1e7
    return left >= LEAST_PERCENT and huge > 0 and min(huge, faults) >= CLEARING * faults > 0


def _clearing(host: Evidence) -> Iterator[Finding]:
    """Yield a finding about the process whose huge pages are cleared again and again, as it frees
    and reuses them.
    """
    slow = [each for each in host.survey.processes.values() if _clears(host, each)]
    for each in nlargest(1, slow, key=lambda one: one.mean.kernel):
        percent = 100 * each.mean.kernel
        huge = min(host.made[PAGE << HUGE_ORDER], each.mean.faults)
        by = huge * host.costs.ns(HUGE_ORDER) / 1e7 if host.costs.has_folios else 0.0
        cost = f", which takes {figure(by, 2)} % of a CPU" if by else ""
        what = (
            f"the process spends {percent:.0f} % of a CPU in the kernel, at "
            f"{each.mean.faults:.0f} page faults a second: {huge:.0f} huge pages a "
            f"second are cleared{cost}, freed, and cleared again"
        )
        known = _allocator(host.tree, each.pid)
        keep = f"let {known.name} keep memory that it frees: {known.keep}" if known else ""
        other = f"let its allocator keep memory that it frees; for glibc, {GLIBC.keep}"
        step = f"{keep or other}; then restart it"
        yield Finding(each.name, what, next_step=step, cpu_percent=percent)


def _allocator(tree: Tree, pid: int) -> Allocator | None:
    try:
        space = Space(tree, pid, Holds(tree))
        return allocator_of(Clues(tree, pid, space.areas()), space.sizes().anon)
    except Error:  # the process has ended, or access is denied
        return None


def _compaction(rates: Mapping[str, float]) -> Iterator[Finding]:
    stalls = rates.get("compact_stall", 0.0)
    if stalls >= STALLS:
        what = (
            f"programs have to compact memory themselves {stalls:.0f} times a second, to "
            "get a huge page"
        )
        price = "programs get fewer huge pages at first, and khugepaged makes them later"
        yield Finding("host", what, (f"echo defer >{THP}/defrag",), price)


def _obey(profile: str, text: str) -> tuple[str, tuple[str, ...], str]:
    command = f"mmpolicy set anon_order adaptive --profile {profile}"
    return (
        f"the shadow policy of this profile counts: {text}",
        (command,),
        "the additional pages that the shadow policy counts",
    )


def _forbidding(host: Evidence) -> Iterator[Finding]:
    """Yield findings about processes that forbid large folios and spend CPU time in faults."""
    for each in host.survey.processes.values():
        rates = each.mean
        gain = gain_percent(host.costs, rates.faults, rates.kernel) if each.forbids else 0.0
        if not each.forbids or gain < LEAST_PERCENT:
            continue
        try:
            found = reach(host.tree, each.pid, into_kib=0).barriers[0]
        except (Error, IndexError):  # the process has ended, or nothing is out of reach
            continue
        what = f"{each.mean.faults:.0f} page faults a second, {_of_a_cpu(host.costs, gain)}, "
        what += found.what + (f"; cause: {found.likely}" if found.likely else "")
        yield Finding(each.name, what, next_step=found.way_out, cpu_percent=gain)


def _lazily(host: Evidence) -> Iterator[Finding]:
    """Yield a finding about the process with most memory freed by MADV_FREE, which is no leak.

    The survey has an upper bound only: after MADV_FREE, a page that the program has written again
    looks like one it has not, until memory is short. smaps has the exact figure.
    """
    cgroups, processes = host.survey.most(FIGURES["memory"], LINES)
    for row in nlargest(1, _named(cgroups, processes), key=_freed):
        there = (host.survey.processes[pid] for pid in row.pids)
        largest = max(there, key=lambda each: each.kinds.get("lazily_freed", 0.0), default=None)
        if largest and is_waste(_freed(row), 0.0, row.anon_kib):
            with suppress(Error):  # the process has ended, so there is no finding about it
                yield from _freed_lazily(host, row, largest)


def _freed_lazily(host: Evidence, row: Row, largest: Process) -> Iterator[Finding]:
    found = memory_of_process(host.tree, largest.pid, host.survey.holds)
    unsure = min(found.not_known_kib, largest.kinds["lazily_freed"])
    most = found.lazily_freed_kib + unsure
    if not is_waste(most, 0.0, found.rss_kib):
        return
    whose = f"of the RSS of {largest.name} (pid {largest.pid})"
    what, steps = f"{most / 1024:.0f} MiB {whose} are freed by MADV_FREE, and still counted", []
    if unsure >= LEAST_KIB:
        what = f"up to {what}, including pages that were written again since"
        show = f"mmpolicy show --pid {largest.pid} --hold {found.hold_ms}"
        steps.append(
            f"{show} shows the exact figure, and blocks mmap() of the process for about "
            f"{found.hold_ms / SURE:.0f} ms"
        )
    if host.module.possible:
        steps.append("the policies cap and eager of the point madv_free keep this memory small")
    what += "; the kernel takes freed pages when memory is short"
    yield Finding(row.name, what, next_step="; ".join(steps))


def _freed(row: Row) -> float:
    return row.kinds.get("lazily_freed", 0.0)


def _written(host: Evidence, rows: Sequence[Row]) -> Iterator[Finding]:
    """Yield a finding about the largest service if its memory is written data, not empty folios."""
    large = [row for row in rows if row.anon_kib >= LARGE_KIB and row.seen >= 0.5]
    for row in nlargest(1, large, key=lambda row: row.anon_kib):
        known = _allocator(host.tree, max(row.pids, key=lambda pid: _rss(host.tree, pid)))
        if known and row.waste_kib < LEAST_SHARE * row.anon_kib:
            share = row.waste_kib / row.anon_kib
            what = (
                f"{row.anon_kib / 1024:.0f} MiB of private memory are no waste of large "
                f"folios: {share:.0%} are empty, "
            )
            what += "the rest was written by the program"
            step = (
                f"if that is too much memory, let {known.name} return what the program has "
                f"freed: {known.give_back}"
            )
            yield Finding(row.name, what, next_step=step)
