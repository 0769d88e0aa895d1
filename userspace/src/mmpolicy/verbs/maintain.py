# SPDX-License-Identifier: GPL-2.0
"""`maintain`: `collapse` and `trim` for services, continuously and within a budget."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import click

from mmpolicy.control.change import StateChange
from mmpolicy.control.journal import record
from mmpolicy.control.keys import MANIFESTS
from mmpolicy.control.maintained import HOLDER, LIVE, LOCK
from mmpolicy.control.manifest import Maintained
from mmpolicy.control.state import read_state
from mmpolicy.control.trials import MAINTAIN
from mmpolicy.control.units import host_manifest, units_of
from mmpolicy.errors import Error, Exit
from mmpolicy.host.cgroups import cgroup_pids, find_cgroup
from mmpolicy.host.files import CONTROL, Tree
from mmpolicy.host.machine import Host
from mmpolicy.host.processes import Process, cgroup_of, check_memory
from mmpolicy.host.signals import noted
from mmpolicy.host.systemd import unit_of
from mmpolicy.memory.maintain import Maintainer, Rules, Work, kib
from mmpolicy.memory.pressure import Pressure
from mmpolicy.render import as_json, emit, table
from mmpolicy.verbs.collapse import NEVER, never_of
from mmpolicy.verbs.options import (
    PID,
    Percent,
    Seconds,
    complete_cgroup,
    complete_pid,
    complete_unit,
    hold_option,
    json_option,
    max_pressure_option,
    max_stop_option,
    min_empty_option,
    pass_host,
    reserve_option,
)
from mmpolicy.verbs.targets import warn_if_slowed

CPU = 3.0  # CPU budget in percent of one CPU, if neither --cpu nor a manifest says more
# prefix by which the name of a process (--pid) is told from that of a systemd unit
PROCESS = "process "
READ_S = 60.0  # seconds between two reads of the manifests
TOLD_S = 3600.0  # seconds between two lines in the system log
STEP_S = 1.0  # longest sleep in seconds, so that signals are handled in time
WORTH_KIB = 1024  # memory that was left as it was is not printed below this many kB per cause


@dataclass(frozen=True)
class MaintainOptions:
    """The options of `maintain`."""

    units: tuple[str, ...]
    cgroups: tuple[str, ...]
    pids: tuple[int, ...]
    cpu: float | None
    settle: float
    max_stop: float
    min_empty: float
    reserve: float
    max_pressure: float
    hold_ms: float
    once: bool
    dry_run: bool
    want_json: bool


@click.command()
@click.option(
    "--unit", "units", multiple=True, metavar="NAME", shell_complete=complete_unit,
    help="A systemd unit, also after it has started again; may be repeated.",
)  # fmt: skip
@click.option(
    "--cgroup", "cgroups", multiple=True, metavar="PATH", shell_complete=complete_cgroup,
    help="A cgroup with all below it; may be repeated.",
)  # fmt: skip
@click.option(
    "--pid", "pids", type=PID, multiple=True, metavar="N",
    shell_complete=complete_pid, help="A process, until it ends; may be repeated.",
)  # fmt: skip
@click.option(
    "--cpu", type=Percent(min=0.1), metavar="PERCENT",
    help=f"The CPU budget for all services together, in percent of one CPU.  [default: {CPU:g}]",
)  # fmt: skip
@click.option(
    "--settle", type=Seconds(1.0), default="10m", show_default=True, metavar="TIME",
    help="Work on a 2 MB range again only after it has been full, or empty, for this time.",
)  # fmt: skip
@max_stop_option("Make no 2 MB pages while")
@min_empty_option
@reserve_option
@max_pressure_option("Wait while")
@hold_option
@click.option(
    "--once", is_flag=True,
    help="Do what is due now, and end; empty memory is due after --settle at the earliest.",
)  # fmt: skip
@click.option(
    "--dry-run", is_flag=True, help="Print how much memory is full, or empty, now; change nothing."
)
@json_option
@pass_host
def maintain(host: Host, **options: Any) -> None:
    """Keep memory of services in 2 MB pages where full, and give back what is empty.

    Works until a signal ends it, as `collapse` and `trim` would, within a budget of CPU time; with
    --pid alone, until these processes have ended. A service that does not change costs next to
    nothing. It works on a 2 MB range again only after the range has been full, or empty, for ten
    minutes, and for twice as long each further time.

    Without --unit, --cgroup and --pid, it works for the services that [maintain] of the manifests
    in /etc/mmpolicy names, as mmpolicy-maintain.service does. No state of the host is changed; a
    profile with the policy 'never' is respected. `status`, `export` and `log` show its work.
    """
    given = MaintainOptions(**options)
    if not host.tree.is_root() or host.tree.is_confined():
        text = "no permission to read the memory of other processes"
        raise Error(text, Exit.DENIED, host.tree.who_may())
    if given.dry_run:
        Keeper(host, given, []).plan()
        return
    with _alone(host.tree), noted() as caught:
        keeper = Keeper(host, given, caught)
        try:
            keeper.run()
        finally:
            keeper.end()
        keeper.check_end()


@contextmanager
def _alone(tree: Tree) -> Iterator[None]:
    """Hold the lock of `maintain`. If another `maintain` holds it, raise an error that says how to
    end that process.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(tree.locked(LOCK, f"{HOLDER}{os.getpid()}"))
        except Error as err:
            pid = tree.holder(LOCK).removeprefix(HOLDER)
            if pid.isdigit():
                err.next_step = f"kill {pid} ends that process"
                if _unit(tree, int(pid)) == MAINTAIN:
                    err.message += f" ({MAINTAIN})"
                    err.next_step = f"systemctl stop {MAINTAIN} ends that process"
            raise
        yield


def _unit(tree: Tree, pid: int) -> str:
    try:
        return unit_of(cgroup_of(tree, pid))
    except Error:  # the process has just ended
        return ""


class Keeper:
    """Runs the rounds of `maintain` within its CPU budget, and reports on them."""

    def __init__(self, host: Host, given: MaintainOptions, caught: list[int]) -> None:
        self._host, self._given, self._caught = host, given, caught
        self._cpu = CPU
        self._works: dict[str, Work] = {}
        self._processes: dict[str, Process] = {}  # of --pid, by name
        self._lost = set[str]()  # names of the processes of --pid that have ended
        self._read_at, self._told_at = float("inf"), float("-inf")
        self._broken = set[str]()
        rules = Rules(
            self._cpu / 100, given.max_stop / 1000, given.reserve / 100, given.min_empty / 100,
            given.settle, given.hold_ms / 1000,
        )  # fmt: skip
        pressure = Pressure(host, given.max_pressure)
        self._maintainer = Maintainer(host, rules, pressure, self._tell, lambda: bool(caught))
        warn_if_slowed(self._maintainer.holds)
        self._read()
        self._began, self._cpu_s = host.clock(), time.process_time()
        self._check()
        if not pressure.known:
            self._say(
                "note: the kernel has no PSI (CONFIG_PSI): memory pressure does not stop the run"
            )

    def _check(self) -> None:
        """Raise an error if this host supports neither `collapse` nor `trim`; print a line if it
        supports only one of them.
        """
        no_trim, no_collapse = self._maintainer.no_trim, self._maintainer.no_collapse
        if no_trim and no_collapse:
            raise Error(f"{no_collapse}, and {no_trim}", Exit.LACKING, "mmpolicy doctor")
        if no_trim:
            self._say(f"maintain gives no empty memory back on this host: {no_trim}")
        if no_collapse:
            self._say(f"maintain makes no 2 MB pages on this host: {no_collapse}")

    def _read(self) -> None:
        """Read the names of the services that `maintain` works for, from the options or from the
        manifests. The manifests are read again every READ_S seconds.
        """
        given = self._given
        names = [*given.units, *given.cgroups, *(f"{PROCESS}{pid}" for pid in given.pids)]
        cpu = given.cpu
        if names and not self._works:
            self._check_names()
        elif not names:
            self._read_at = self._host.clock()
            cpu_there, names = self._of_manifests()
            cpu = cpu or cpu_there
        self._cpu = cpu or CPU
        self._maintainer.rules = replace(self._maintainer.rules, share=self._cpu / 100)
        self._works = {name: self._works.get(name) or Work(name) for name in names}

    def _of_manifests(self) -> tuple[float | None, list[str]]:
        """Return the CPU budget and the names of services from the manifests of this host. An
        invalid file is skipped with a warning. If the manifests as a whole cannot be read, the
        present names stay.
        """
        broken = set[str]()
        manifest = host_manifest(self._host.tree, lambda err: broken.add(err.message))
        try:
            wanted = manifest.maintained()
        except Error as err:
            broken.add(err.message)
            wanted = Maintained(self._cpu, [*self._works])
        for message in sorted(broken - self._broken):
            self._say(f"{message}; maintain leaves this out until it is corrected")
        self._broken = broken
        if not wanted.services and not self._works:
            self._say(
                f"maintain waits, as [maintain] of the manifests in {MANIFESTS} names no service"
            )
        return wanted.cpu, wanted.services

    def _check_names(self) -> None:
        """Raise an error for an option that names no process, cgroup or unit of this host. A
        stopped service is accepted, as it may start later.
        """
        for pid in self._given.pids:
            process = check_memory(self._host.tree, pid, "mmpolicy maintain --pid")
            self._processes[f"{PROCESS}{pid}"] = process
        for name in self._given.cgroups:
            find_cgroup(self._host.tree, name)
        units = units_of(self._host.tree)
        for name in self._given.units:
            unit = name if name.endswith((".service", ".slice", ".scope")) else f"{name}.service"
            if not units.files or not units.knows(units.primary(unit)):
                find_cgroup(self._host.tree, name)

    def _pids(self, name: str) -> list[int]:
        if process := self._processes.get(name):
            return [] if self._has_lost(name, process) else [process.pid]
        try:
            path = find_cgroup(self._host.tree, name).name
            return [int(pid) for pid in cgroup_pids(self._host.tree, path)]
        except Error:  # the service does not run at present
            return []

    def _has_lost(self, name: str, process: Process) -> bool:
        """Return whether a process of --pid has ended, also if another program has its PID now;
        print a line when this is found.
        """
        if name not in self._lost and (loss := process.loss(self._host.tree)):
            self._lost.add(name)
            self._works[name].processes.clear()
            self._tell("", loss)
        return name in self._lost

    def check_end(self) -> None:
        """With --once, raise an error if memory pressure or another limit ended the work before all
        memory was treated.
        """
        if self._given.once and self._maintainer.waits and not self._caught:
            text = f"maintain --once stopped before the end: {self._maintainer.waits}"
            raise Error(text, Exit.FAILED, "mmpolicy collapse explains this, and says what to do")

    def _forbids(self) -> Callable[[int], str]:
        """Return a function that tells, for a pid, which profile forbids 2 MB pages for the
        process: as text, or "" if none does.
        """
        tree = self._host.tree
        states = [read_state(tree)] if tree.exists(CONTROL) else []

        def forbids(pid: int) -> str:
            profile = never_of(tree, states[0], pid) if states else ""
            return f"the profile '{profile}' has the policy '{NEVER}'" if profile else ""

        return forbids

    def plan(self) -> None:
        """Print what the first round would do, and change nothing."""
        forbids = self._forbids()
        for name, work in self._works.items():
            for pid in self._pids(name):
                self._maintainer.look(work, pid, forbids)
        data = {**self._data(), "dry_run": True}
        for service, work in zip(data["services"], self._works.values()):
            service["empty_kib"] = kib(sum(each.empty for each in work.processes.values()))
        emit("maintain", self._given.want_json, data, lambda: _plan_lines(data))

    def run(self) -> None:
        """Repeat rounds of trims and collapses until a signal arrives, or all processes have ended
        where only --pid was given; with --once, until nothing is left to do.
        """
        host = self._host
        while not self._caught:
            if host.clock() - self._read_at >= READ_S:
                self._read()
            works = self._works
            before = [(each.made, each.freed) for each in works.values()]
            forbids = self._forbids()
            for name, work in works.items():
                self._maintainer.round(work, self._pids(name), forbids, self._rest)
            self._keep()
            if self._works and self._works.keys() == self._lost:
                return
            if before != [(each.made, each.freed) for each in works.values()]:
                self._show()
            elif self._given.once:
                return
            self._log()
            self._rest(self._maintainer.every_s)

    def _rest(self, least_s: float = 0.0) -> None:
        """Sleep for least_s seconds, and then until the CPU time that `maintain` has used is within
        its budget again.

        A signal ends the sleep. The function is also called after rounds that changed nothing, as
        the checks of many services alone may exceed the budget.
        """
        host = self._host
        end = self._began + self._used() / (self._cpu / 100)
        end = max(end, host.clock() + least_s)
        while not self._caught and host.clock() < end:
            host.sleep(max(min(STEP_S, end - host.clock()), 0.001))

    def _used(self) -> float:
        return time.process_time() - self._cpu_s

    def _data(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "seconds": round(self._host.clock() - self._began, 1),
            "cpu_s": round(self._used(), 3),
            "cpu_percent": self._cpu,
            "waits": self._maintainer.waits,
            "no_trim": self._maintainer.no_trim,
            "no_collapse": self._maintainer.no_collapse,
            "longest_look_ms": round(self._maintainer.holds.longest_s * 1000, 2),
            "services": [_data_of(work) for work in self._works.values()],
        }

    def _keep(self) -> None:
        self._host.tree.keep(LIVE, json.dumps(self._data()), 0o644)

    def _say(self, line: str) -> None:
        if self._given.want_json:
            click.echo(line, err=True)
        else:
            click.echo(line)

    def _tell(self, name: str, text: str) -> None:
        """Print an event, and write it to the system log; name: the service that the event
        concerns, or "".
        """
        line = f"{name}: {text}" if name else text
        self._say(line)
        self._host.log(f"maintain: {line}")

    def _show(self) -> None:
        if self._given.want_json:
            click.echo(as_json("maintain", self._data(), indent=None))
            return
        for line in _lines(self._data()):
            click.echo(line)

    def _log(self) -> None:
        if self._host.clock() - self._told_at >= TOLD_S:
            if self._told_at > float("-inf"):
                self._host.log(self._sum())
            self._told_at = self._host.clock()

    def _sum(self) -> str:
        works = self._works.values()
        return (
            f"maintain {', '.join(self._works) or 'nothing'}: "
            f"{kib(sum(each.made for each in works) * 512) >> 10} MiB put into 2 MB "
            f"pages, {kib(sum(each.freed for each in works)) >> 10} MiB given back, "
            f"{sum(each.again for each in works)} times the same 2 MB were worked on "
            f"again, {self._used():.1f} s of CPU in "
            f"{self._host.clock() - self._began:.0f} s"
        )

    def end(self) -> None:
        """Print the totals, remove the file with the live state, and add a line to the journal."""
        self._show()
        self._host.log(self._sum())
        if self._host.tree.exists(LIVE):
            self._host.tree.drop(LIVE)
        if any(each.made or each.freed for each in self._works.values()):
            record(self._host.tree, "maintain", StateChange({}, {}), note=self._sum())


def _data_of(work: Work) -> dict[str, Any]:
    watched = [each for each in work.processes.values() if each.pages]
    left = {cause: kib(pages) for cause, pages in work.left().most_common()}
    pages, huge, full = (sum(getattr(each, name) for each in watched)
                         for name in ("pages", "huge", "full"))  # fmt: skip
    return {
        "name": work.name, "processes": len(work.processes), "anon_kib": kib(pages),
        "huge_kib": kib(huge), "full_kib": kib(full), "collapsed_kib": kib(work.made * 512),
        "given_back_kib": kib(work.freed), "again": work.again, "looks": work.looks,
        "longest_ms": round(work.longest_s * 1000, 2),
        "left_kib": {cause: size for cause, size in left.items() if size},
    }  # fmt: skip


def _lines(data: dict[str, Any]) -> Iterator[str]:
    header = ("SERVICE", "PROCESSES", "ANON_MIB", "IN_2MB", "FULL_MIB", "MADE_MIB",
              "GIVEN_BACK_MIB", "AGAIN", "LOOKS", "LONGEST_MS")  # fmt: skip
    yield from table(header, [_row(each) for each in data["services"]])
    yield from _left(data)
    share = 100 * data["cpu_s"] / data["seconds"] if data["seconds"] else 0
    yield (
        f"maintain used {data['cpu_s']:.1f} s of CPU in {data['seconds']:.0f} s: "
        f"{share:.1f} % of a CPU"
    )


def _plan_lines(data: dict[str, Any]) -> Iterator[str]:
    header = ("SERVICE", "PROCESSES", "ANON_MIB", "IN_2MB", "FULL_MIB", "EMPTY_MIB")
    yield from table(header, [(*_row(each)[:5], each["empty_kib"] >> 10)
                              for each in data["services"]])  # fmt: skip
    yield from _left(data)


def _left(data: dict[str, Any]) -> Iterator[str]:
    for each in data["services"]:
        parts = [f"{size / 1024:.1f} MiB {cause}" for cause, size in each["left_kib"].items()
                 if size >= WORTH_KIB]  # fmt: skip
        if parts:
            yield f"{each['name']}: memory left as it was: {', '.join(parts)}"


def _row(each: dict[str, Any]) -> Sequence[object]:
    huge = f"{100 * each['huge_kib'] / each['anon_kib']:.1f} %" if each["anon_kib"] else "-"
    return (
        each["name"], each["processes"], each["anon_kib"] >> 10, huge, each["full_kib"] >> 10,
        each["collapsed_kib"] >> 10, each["given_back_kib"] >> 10, each["again"], each["looks"],
        each["longest_ms"],
    )  # fmt: skip
