# SPDX-License-Identifier: GPL-2.0
"""Observe a service and its host for `try`, without changing anything."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot

from mmpolicy.ab.presets import read as read_preset
from mmpolicy.ab.run.scope import HOST
from mmpolicy.control.bindings import profile_of_cgroup
from mmpolicy.control.counters import rates
from mmpolicy.control.keys import DEFAULT
from mmpolicy.control.state import read_state
from mmpolicy.control.trials import SYSTEMD
from mmpolicy.errors import Error, Exit
from mmpolicy.figures import figure
from mmpolicy.host import evidence
from mmpolicy.host.calibration import Calibration
from mmpolicy.host.cgroups import cgroup_folders, cgroup_pids, charging
from mmpolicy.host.files import CONTROL, Tree
from mmpolicy.host.huge import read_stat
from mmpolicy.host.machine import Host
from mmpolicy.memory.findings import (
    HUGE_ORDER,
    OWN_SIZES,
    can_measure,
    gain_percent,
    missing,
    own_service,
    trim_options,
)
from mmpolicy.memory.pressure import Pressure
from mmpolicy.memory.reach import Reach
from mmpolicy.memory.survey import FIGURES, Row, Survey
from mmpolicy.memory.trim import check_possible, modes
from mmpolicy.memory.worth import Here, Seen, Way
from mmpolicy.render import duration
from mmpolicy.verbs.around import HUGE, SHARE, check_may_look, fault_costs, module_here, watch
from mmpolicy.verbs.here import verbs_here
from mmpolicy.verbs.reached import reach_in
from mmpolicy.verbs.try_now import WAITING, not_now, short_of_memory

CONTROLLERS = "/proc/cgroups"
WASHOUT = 1 / 3  # share of each block that is not measured
NO_SIZE = "this kernel has no folios below 2 MB of its own (Linux 6.8)"
# The counters to read: for each file of a cgroup, the name of a counter in this program and its key
# in the file.
COUNTERS = {
    "cpu.stat": {"cpu_us": "usage_usec", "kernel_us": "system_usec"},
    "memory.stat": {"faults": "pgfault"},
}


@dataclass(frozen=True)
class Counted:
    """Counters that were read at one moment: those of the service by name, and events of the whole
    host.
    """

    at: float
    service: dict[str, float]
    events: dict[str, int]
    made: dict[int, int]  # number of large folios allocated by faults, by size in bytes

    def since(self, old: Counted, name: str, default: float) -> float:
        """Return by how much a counter of the service has risen per second since an earlier
        reading; default if one of the readings lacks it.
        """
        if name not in self.service or name not in old.service:
            return default
        return max(self.service[name] - old.service[name], 0.0) / max(self.at - old.at, 1e-9)


def _count(host: Host, path: str) -> Counted:
    """Read the counters of a cgroup. Unlike sums over its processes, they include processes that
    end during the observation.
    """
    events = evidence.events(host.tree, every=False)
    found = _of_host(host.tree, events) if path == HOST else counters_of(host.tree, path)
    return Counted(host.clock(), found, events, evidence.folios_made(host.tree))


def _of_host(tree: Tree, events: dict[str, int]) -> dict[str, float]:
    times = evidence.cpu_times(tree.read(evidence.STAT))
    kernel = sum(times[name] for name in ("system", "irq", "softirq"))
    some = evidence.pressure(tree).get("memory some", {})
    return {"cpu_us": 1e6 * times["busy"], "kernel_us": 1e6 * kernel,
            "faults": float(events.get("pgfault", 0)),
            "stalled_us": float(some.get("total", 0))}  # fmt: skip


def counters_of(tree: Tree, path: str) -> dict[str, float]:
    """Return the counters that a cgroup has, by name; those that it lacks are left out."""
    found = dict[str, float]()
    for folder in cgroup_folders(tree, path):
        for file, counters in COUNTERS.items():
            stat = read_stat(tree, f"{folder}/{file}") if tree.exists(f"{folder}/{file}") else {}
            for name, key in counters.items():
                # "total_": in cgroup v1, the key that includes the descendants
                value = stat.get(f"total_{key}", stat.get(key, ""))
                if value.isdigit():
                    found.setdefault(name, float(value))
        pressure = f"{folder}/memory.pressure"
        if tree.exists(pressure):
            told = evidence.pressure_in(tree, pressure).get("some", {})
            found.setdefault("stalled_us", float(told.get("total", 0)))
    return found


def look(host: Host, path: str, seconds: float) -> Seen:
    """Observe a service for some seconds, and return its figures; raise an error if its cgroup has
    no process.
    """
    check_may_look(host.tree)
    if not any(cgroup_pids(host.tree, path)):
        hint = "start the service, and look while it works"
        raise Error(f"no process is in cgroup {path}", Exit.FAILED, hint)
    costs, cost_from = fault_costs(host)
    survey, pressure = Survey(host.tree, SHARE, within=path), Pressure(host, WAITING)
    before = _count(host, path)
    watch(host, survey, seconds)
    after = _count(host, path)
    compactions = _risen(before, after, "compact_stall")
    stalled = after.since(before, "stalled_us", 0.0) / 1e4
    short = pressure.too_high() or short_of_memory(stalled, compactions)
    rows = [row for row in survey.most(FIGURES["memory"], len(survey.processes) or 1)[0]
            if f"{row.name}/".startswith(f"{path.rstrip('/')}/")]  # fmt: skip
    processes = list(survey.processes.values())
    faults = after.since(before, "faults", sum(each.mean.faults for each in processes))
    cpu_us = after.since(before, "cpu_us", 1e6 * sum(each.mean.cpu for each in processes))
    kernel_us = after.since(before, "kernel_us", 1e6 * sum(each.mean.kernel for each in processes))
    kernel = kernel_us / 1e6
    huge = _huge_faults(before, after, faults)
    private = sum(row.anon_kib for row in rows)
    wasteful = max(rows, key=lambda row: row.waste_kib, default=None)
    options, stays, _ = (
        trim_options(survey, wasteful) if wasteful and wasteful.anon_kib else ("", "", "")
    )
    reached = reach_in(host.tree, [path])
    return Seen(
        seconds=after.at - before.at,
        processes=len(processes),
        cpu=cpu_us / 1e4,
        kernel=100 * kernel,
        faults=faults,
        fault_cpu=_fault_cpu(costs, faults - huge, huge, 100 * kernel),
        gain=gain_percent(costs, faults - huge, kernel),
        cost_from=cost_from,
        memory_kib=sum(row.rss_kib for row in rows),
        private_kib=private,
        waste_kib=sum(row.waste_kib - row.waste_shared_kib for row in rows),
        error_kib=hypot(*(row.error_kib for row in rows)),
        trim_options=options,
        stays=stays,
        freed_kib=sum(row.kinds.get("lazily_freed", 0.0) for row in rows),
        huge=_mean_share(rows),
        looked_at=survey.seen(),
        barred=_barred(reached),
        barriers=tuple(line for each in reached for line in each.lines()),
        stalled=stalled,
        compactions=compactions,
        not_now=short or not_now(host, own_service(path)),
    )


def _risen(before: Counted, after: Counted, event: str) -> float:
    passed = max(after.at - before.at, 1e-9)
    return rates({"": before.events}, {"": after.events}, passed)[""].get(event, 0.0)


def _huge_faults(before: Counted, after: Counted, faults: float) -> float:
    """Return an upper bound of the service's faults per second that got a 2 MB folio. The kernel
    counts these faults only for the whole host. So it is the host's rate of such faults, or the
    rate of all faults of the service if that is lower.
    """
    passed = max(after.at - before.at, 1e-9)
    made = (after.made.get(HUGE, 0) - before.made.get(HUGE, 0)) / passed
    return min(max(made, _risen(before, after, "thp_fault_alloc"), 0.0), faults)


def _fault_cpu(costs: Calibration, single: float, huge: float, kernel: float) -> float:
    """Return the most CPU time that page faults can cost, in percent of one CPU. single, huge:
    faults per second that got one page, and that got a 2 MB folio. kernel: measured CPU time in the
    kernel in percent, which the result cannot exceed.
    """
    return min((single * costs.ns() + huge * costs.ns(HUGE_ORDER)) / 1e7, kernel)


def _mean_share(rows: list[Row]) -> float:
    """Return the share (0 to 1) of the processes' private memory that is in 2 MB folios."""
    whole = sum(row.anon_kib for row in rows)
    huge = sum(row.anon_kib * row.sizes.get(HUGE_ORDER, 0.0) for row in rows)
    return huge / whole if whole else 0.0


def _barred(reached: list[Reach]) -> float:
    """Return the share (0 to 1) of the largest processes' memory that no policy reaches."""
    whole = sum(each.kib for each in reached)
    return sum(each.kib * each.barred for each in reached) / whole if whole else 0.0


def abilities(
    host: Host, target: str, path: str, run_time: str, options: Sequence[str], own: Sequence[str]
) -> Here:
    """Return for each verb or setting that `try` may propose for the cgroup whether this host can
    run it, and if not, why. options, own: what the user gave, as options of `try` and of `ab run`.
    """
    verbs = {each.name: Way(each.why_not, each.next_step) for each in verbs_here(host)}
    return Here(
        target=target,
        trim=_trim(host.tree),
        maintain=verbs["maintain"],
        collapse=verbs["collapse"],
        own_sizes=own_sizes(host.tree, path, verbs["ab run"]),
        module=_module(host, path),
        loaded=host.tree.is_dir(CONTROL),
        systemd=host.tree.is_dir(SYSTEMD),
        run_time=run_time,
        options="".join(f" {shlex.quote(word)}" for word in options),
        pace="".join(f" {word}" for word in own),
    )


def _trim(tree: Tree) -> Way:
    try:
        check_possible(tree)
    except Error as err:
        return Way(err.message, err.next_step)
    return Way()


def measurable(tree: Tree, path: str) -> Way:
    """Return an empty Way if a switchback experiment can measure the service, else a Way with the
    reason why not and the next step.
    """
    if can_measure(tree, path):
        return Way()
    hierarchy = charging(tree)[0]
    if not hierarchy.unified:
        step = "boot with systemd.unified_cgroup_hierarchy=1; mmpolicy try --host needs no cgroup"
        return Way("a switchback of a service needs cgroup v2, and this host has v1", step)
    if without := _no_memory_controller(tree, hierarchy.mount):
        return without
    text = f"cgroup {path} has no {' and no '.join(missing(tree, path))}"
    if unit := own_service(path):
        return Way(text, f"systemctl set-property {shlex.quote(unit)} MemoryAccounting=yes")
    return Way(text, f"enable the memory controller of cgroup {path} in its parent")


def _no_memory_controller(tree: Tree, mount: str) -> Way | None:
    """Return why no cgroup below this mount of cgroup v2 can account for memory; None if cgroups
    can.
    """
    file = f"{mount}/cgroup.controllers"
    if not tree.exists(file) or "memory" in tree.read(file).split():
        return None
    text = f"cgroup v2 has no memory controller here, by {tree.real(file)}"
    lines = tree.read(CONTROLLERS).splitlines() if tree.exists(CONTROLLERS) else []
    used = any(line.split()[::3] == ["memory", "1"] for line in lines)
    step = "cgroup_no_v1=memory" if used else "cgroup_enable=memory"
    return Way(text, f"boot with {step}; mmpolicy try --host needs no cgroup")


def own_sizes(tree: Tree, path: str, run: Way) -> Way:
    """Return an empty Way if the kernel has folio sizes of 16 to 64 kB that are not enabled yet,
    else a Way with the reason why a trial of them is not possible.
    """
    found = modes(tree)
    sizes = [int(name.split()[0]) for name in OWN_SIZES]
    if not any(size in found for size in sizes):
        return Way(NO_SIZE, "Linux 6.8 or newer")
    if all(found.get(size, "always") == "always" for size in sizes):
        text = "the host gives folios of 16 to 64 kB to all programs already"
        return Way(text, "leave the sizes unchanged")
    return run if run.why_not or path == HOST else measurable(tree, path)


def _module(host: Host, path: str) -> Way:
    found = module_here(host)
    if not found.possible or found.next_step:
        step = found.next_step or "mmpolicy doctor says what it lacks"
        text = "this host cannot load the module" + " now" * found.possible
        return Way(text, step)
    if host.tree.is_dir(CONTROL):
        profile = profile_of_cgroup(host.tree, read_state(host.tree), path)
        if profile != DEFAULT:
            text = f"{path} is bound to the profile '{profile}', and bindings win over experiments"
            return Way(text, f"mmpolicy unbind --cgroup {path}")
    return measurable(host.tree, path)._replace(commands=found.commands)


def run_time(preset: str, block: float | None, pairs: int | None) -> str:
    """Return as text how long a switchback experiment with this preset takes at most.

    block, pairs: seconds of a block and the most pairs, in place of those of the preset.
    """
    given = read_preset(preset)
    seconds = 2 * (pairs or given["pairs"]) * (block or given["block"])
    return f"at most {duration(seconds)}; it ends earlier if the answer is clear"


def options_of(
    work: str | None, block: float | None, pairs: int | None, lease: float | None
) -> list[str]:
    """Return as words the options of `try` that a later command needs to run the same trial;
    nothing for what is None. block, lease: in seconds.
    """
    words = ["--work", work] if work else []
    words += ["--block", figure(block, 15)] if block else []
    words += ["--pairs", str(pairs)] if pairs else []
    return words + (["--lease", figure(lease, 15)] if lease else [])


def pace(block: float | None, pairs: int | None, lease: float | None) -> list[str]:
    """Return as options of `ab run` the length of a block in seconds, with a wash-out and an
    interval that fit, the most pairs, and the lease in seconds; nothing for what is None.
    """
    words = []
    if block:
        words += ["--block", figure(block, 15), "--washout", figure(block * WASHOUT, 3)]
        words += ["--interval", figure(min(block / 24, 5), 3)]
    words += ["--pairs", str(pairs)] if pairs else []
    return words + (["--lease", figure(lease, 15)] if lease else [])
