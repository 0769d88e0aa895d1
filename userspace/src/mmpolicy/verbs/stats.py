# SPDX-License-Identifier: GPL-2.0
"""`stats` and `watch`: counters, once or repeatedly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from shlex import quote
from typing import Any

import click

from mmpolicy.control.counters import (
    HISTOGRAM,
    Counters,
    Rates,
    counted_profiles,
    histograms,
    rates,
    read_counters,
    time_of,
)
from mmpolicy.control.keys import (
    CONTROL_ARM,
    ENABLED,
    PERCENT,
    TREATMENT_ARM,
    CgroupBinding,
    ProcessBinding,
    Setting,
    State,
)
from mmpolicy.control.model import check_loaded, lease_of
from mmpolicy.control.shadow import shadow_data, shadow_lines
from mmpolicy.control.state import bindings_of, read_state
from mmpolicy.figures import figure
from mmpolicy.host.calibration import Calibration, read_calibration
from mmpolicy.host.cgroups import cgroup_paths, find_cgroup
from mmpolicy.host.files import Tree
from mmpolicy.host.machine import Host
from mmpolicy.host.processes import check_memory
from mmpolicy.memory.holds import Holds
from mmpolicy.memory.lazily import Memory, memory_lines, memory_of_cgroup, memory_of_process
from mmpolicy.render import as_json, emit, show_live, table
from mmpolicy.verbs.options import (
    PID,
    Number,
    complete_cgroup,
    complete_pid,
    hold_option,
    json_option,
    pass_host,
    point_argument,
    profile_option,
)

# All counters at one moment, and for each counter by how much it rose per second since the reading
# before.
Reading = tuple[Counters, Rates]


@dataclass(frozen=True)
class StatsOptions:
    """The options of `stats`."""

    point: str | None
    profile: str
    pids: tuple[int, ...]
    cgroups: tuple[str, ...]
    memory: bool
    watch: bool
    interval: float
    hold_ms: float
    want_json: bool


def _lines(counters: Counters, costs: Calibration | None, *watched: Rates) -> list[str]:
    """Return a table of the counters that are not 0, and below it a line for each histogram of
    times, whose buckets are left out of the table.

    watched: rates per second, each shown as a column.
    """
    rows = [
        (point, name, value, *(rate.get(point, {}).get(name, "-") for rate in watched))
        for point, values in counters.items()
        for name, value in values.items()
        if value and not HISTOGRAM.fullmatch(name)
    ]
    header = ("POINT", "COUNTER", "VALUE", "PER_SECOND")[: 3 + len(watched)]
    if not rows:
        return ["every counter is 0"]
    return [*table(header, rows), *_times(counters), *shadow_lines(counters, costs)]


def _times(counters: Counters) -> Iterator[str]:
    """Yield a line with mean and percentiles in ns for each histogram of times that has entries."""
    for point, values in counters.items():
        for name, counts in histograms(values).items():
            mean = time_of(counts, None, values.get(name, 0))
            if mean is not None:
                shares = (f"p{share} {time_of(counts, share):.0f}" for share in (50, 90, 99))
                number = sum(counts.values())
                yield f"{point} {name} of {number:.0f}: mean {mean:.0f}, {', '.join(shares)} ns"


def _data(profile: str, counters: Counters, memory: list[Memory]) -> dict[str, Any]:
    told = [each.as_data() for each in memory]
    shadows = shadow_data(counters)
    return {"profile": profile, "points": counters, "shadows": shadows, "memory": told}


def _more(memory: list[Memory], given: StatsOptions) -> list[str]:
    """Return the table of memory, preceded by an empty line, to print after the counters; [] if the
    options ask for no memory.
    """
    words = ["mmpolicy stats", *(f"--pid {pid}" for pid in given.pids)]
    words += [f"--cgroup {quote(each)}" for each in given.cgroups]
    words += [f"--memory --profile {given.profile}"] * given.memory
    return ["", *memory_lines(memory, " ".join(words))] if memory else []


def readings(read: Callable[[], Counters], host: Host, interval: float) -> Iterator[Reading]:
    """Read counters once per interval, without end. Yield each reading with the rates per second
    since the reading before; with the first reading, the rates are {}.
    """
    counters, last = read(), host.clock()
    per_second: Rates = {}
    while True:
        yield counters, per_second
        host.sleep(interval)
        new, now = read(), host.clock()
        per_second = rates(counters, new, now - last)
        counters, last = new, now


def print_json(lines: Iterator[str]) -> None:
    """Print lines of JSON until Ctrl-C is pressed."""
    try:
        for line in lines:
            click.echo(line)
    except KeyboardInterrupt:
        pass


interval_option = click.option(
    "--interval", type=Number(0.1, 86400), default=1.0, show_default=True,
    metavar="SECONDS", help="Time between two prints.",
)  # fmt: skip


def memory_of_bound(tree: Tree, state: State, profile: str, holds: Holds) -> list[Memory]:
    """Return the memory of each cgroup and each process that is bound to a profile. Bound cgroups
    that no longer exist are left out.
    """
    bound = bindings_of(state, profile)
    ids = [str(key.number) for key in bound if isinstance(key, CgroupBinding)]
    paths = cgroup_paths(tree) if ids else {}
    cgroups = [memory_of_cgroup(tree, paths[number], holds) for number in ids if number in paths]
    pids = [key.number for key in bound if isinstance(key, ProcessBinding)]
    return cgroups + [memory_of_process(tree, pid, holds) for pid in pids]


def _memory(tree: Tree, given: StatsOptions, holds: Holds) -> list[Memory]:
    """Return the memory of the cgroups and processes that the options name, and with --memory also
    of those that are bound to the profile.

    The kernel walks page tables for these figures, which may take seconds for large processes.
    """
    bound = memory_of_bound(tree, read_state(tree), given.profile, holds) if given.memory else []
    names = [find_cgroup(tree, each).name for each in given.cgroups]
    found = bound + [memory_of_cgroup(tree, name, holds) for name in names]
    return found + [memory_of_process(tree, pid, holds) for pid in given.pids]


@click.command()
@point_argument
@profile_option
@click.option(
    "--pid", "pids", type=PID, multiple=True, metavar="N",
    shell_complete=complete_pid,
    help="Also show the memory of this process.",
)  # fmt: skip
@click.option(
    "--cgroup", "cgroups", multiple=True, metavar="PATH", shell_complete=complete_cgroup,
    help="Also show the memory of this cgroup and those below it.",
)  # fmt: skip
@click.option(
    "--memory",
    is_flag=True,
    help="Also show the memory of everything that is bound to the profile.",
)
@click.option("--watch", is_flag=True, help="Print again and again, with rates, until Ctrl-C.")
@hold_option
@interval_option
@json_option
@pass_host
def stats(host: Host, **options: Any) -> None:
    """Show counters; with --watch also how fast they rise.

    Shows counters that are not 0, and what a shadow would have done. With --pid, --cgroup or
    --memory also shows RSS, the lazily freed part of it, and RSS without that part. The kernel
    walks page tables for it, which takes time with large processes.

    JSON has all counters, and with --watch one object per line.
    """
    given = StatsOptions(**options)
    holds = Holds(host.tree, given.hold_ms / 1000)
    again = "mmpolicy stats --pid"
    processes = [check_memory(host.tree, pid, again) for pid in given.pids]

    def read() -> Counters:
        for each in processes:
            each.check(host.tree)
        return read_counters(host.tree, given.profile, given.point)

    if given.watch:
        _watch_stats(host, given, holds, readings(read, host, given.interval))
        return
    counters, memory = read(), _memory(host.tree, given, holds)
    costs = read_calibration(host.tree)
    data = _data(given.profile, counters, memory)
    emit(
        "stats",
        given.want_json,
        data,
        lambda: (
            _lines(counters, costs) + _elsewhere(host.tree, given, counters) + _more(memory, given)
        ),
    )


def _elsewhere(tree: Tree, given: StatsOptions, counters: Counters) -> list[str]:
    """If all counters of this profile are 0, return a line with the names of the other profiles
    whose counters are not; else [].
    """
    if any(value for values in counters.values() for value in values.values()):
        return []
    others = [
        name
        for name in counted_profiles(tree)
        if name != given.profile
        and any(any(values.values()) for values in read_counters(tree, name, None).values())
    ]
    return [
        f"profiles with counters above 0: {', '.join(others)} (mmpolicy stats --profile NAME)"
    ] * bool(others)


def _watch_stats(
    host: Host, given: StatsOptions, holds: Holds, readings: Iterator[Reading]
) -> None:
    if given.want_json:
        print_json(
            as_json(
                "stats",
                _data(given.profile, counters, _memory(host.tree, given, holds))
                | {"per_second": per_second},
                indent=None,
            )
            for counters, per_second in readings
        )
        return
    costs = read_calibration(host.tree)
    show_live(
        _lines(counters, costs, per_second) + _more(_memory(host.tree, given, holds), given)
        for counters, per_second in readings
    )


@click.command()
@interval_option
@json_option
@pass_host
def watch(host: Host, interval: float, want_json: bool) -> None:
    """Watch all profiles live, until Ctrl-C.

    Shows state, lease, policies, and the counters that rise. With --json one object per line.
    """

    def read() -> Counters:
        return {
            f"{profile}/{point}": counters
            for profile in counted_profiles(host.tree)
            for point, counters in read_counters(host.tree, profile, None).items()
        }

    moments = readings(read, host, interval)
    if want_json:
        print_json(
            as_json(
                "watch",
                {**_about(host.tree), "points": counters, "per_second": per_second},
                indent=None,
            )
            for counters, per_second in moments
        )
        return
    show_live(_frame(host.tree, *reading) for reading in moments)


def _about(tree: Tree) -> dict[str, Any]:
    return {"state": check_loaded(tree), **lease_of(tree)}


def _frame(tree: Tree, counters: Counters, per_second: Rates) -> list[str]:
    state = read_state(tree)
    return [*_head(state, _about(tree)), "", *_rising(state, counters, per_second)]


def _head(state: State, about: dict[str, Any]) -> Iterator[str]:
    left = about.get("lease_left_ms")
    yield f"state: {about['state']}" + (f", lease: {figure(left / 1000)} s left" if left else "")
    if state.get(ENABLED) == "1":
        control, treatment, percent = (state[key] for key in (CONTROL_ARM, TREATMENT_ARM, PERCENT))
        yield f"experiment: {treatment} for {percent} %, {control} for the others"


def _rising(state: State, counters: Counters, per_second: Rates) -> list[str]:
    rows = []
    policies = {
        f"{key.profile}/{key.point}": value
        for key, value in state.items()
        if isinstance(key, Setting) and key.is_choice
    }
    for place, rises in per_second.items():
        policy = policies.get(place, "-")
        rows += [(place, policy, name, counters[place][name], rise)
                 for name, rise in rises.items() if rise]  # fmt: skip
    header = ("PROFILE/POINT", "POLICY", "COUNTER", "VALUE", "PER_SECOND")
    return table(header, rows) if rows else ["no counter rises"]
