# SPDX-License-Identifier: GPL-2.0
"""`stats`, `watch` and `export`: the counters, once or again and again."""

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

from mmpolicy.app import (
    App,
    complete_cgroup,
    json_option,
    pass_app,
    point_argument,
    profile_option,
)
from mmpolicy.control.counters import Counters, Rates, counted_profiles, rates, read_counters
from mmpolicy.control.model import check_loaded, lease_of
from mmpolicy.control.prometheus import collect, text
from mmpolicy.control.state import State, read_state
from mmpolicy.host.cgroups import cgroup_paths, find_cgroup
from mmpolicy.host.files import Tree
from mmpolicy.host.processes import (
    Memory,
    memory_lines,
    memory_of_bound,
    memory_of_cgroup,
    memory_of_process,
)
from mmpolicy.render import as_json, emit, table

Sample = tuple[Counters, Rates]


def _lines(counters: Counters, *watched: Rates) -> list[str]:
    """Return the table of counters that are not 0, with a column for each set of rates."""
    rows = [
        (point, name, value, *(rate.get(point, {}).get(name, "-") for rate in watched))
        for point, values in counters.items()
        for name, value in values.items()
        if value
    ]
    header = ("POINT", "COUNTER", "VALUE", "PER_SECOND")[: 3 + len(watched)]
    return table(header, rows) if rows else ["every counter is 0"]


def _data(profile: str, counters: Counters, memory: list[Memory]) -> dict[str, Any]:
    told = [each._asdict() for each in memory]
    return {"profile": profile, "points": counters, "memory": told}


def _more(memory: list[Memory]) -> list[str]:
    """Return the table of memory that follows the counters."""
    return ["", *memory_lines(memory)] if memory else []


def _samples(read: Callable[[], Counters], app: App, interval: float) -> Iterator[Sample]:
    """Yield counters and their rates for ever; the first sample has no rates."""
    counters, last = read(), app.clock()
    per_second: Rates = {}
    while True:
        yield counters, per_second
        app.sleep(interval)
        new, now = read(), app.clock()
        per_second = rates(counters, new, now - last)
        counters, last = new, now


def _watch(samples: Iterator[Sample], show: Callable[[Counters, Rates], str]) -> None:
    """Print samples until the user has seen enough."""
    try:
        for counters, per_second in samples:
            click.echo(show(counters, per_second))
    except KeyboardInterrupt:
        pass


def _screen(lines: list[str]) -> str:
    """Return lines for a cleared screen, on a terminal only."""
    clear = "\x1b[2J\x1b[H" if sys.stdout.isatty() else ""
    return clear + "\n".join([*lines, ""])


interval_option = click.option(
    "--interval", type=click.FloatRange(min=0.1), default=1.0, show_default=True,
    metavar="SECONDS", help="Time between two prints.",
)  # fmt: skip


def _memory(tree: Tree, profile: str, pids: Sequence[int], cgroups: Sequence[str]) -> list[Memory]:
    """Return the memory of what is named, else of what is bound to the profile."""
    if not pids and not cgroups:
        return memory_of_bound(tree, read_state(tree), profile)
    paths = cgroup_paths(tree) if cgroups else {}
    found = [memory_of_cgroup(tree, paths[find_cgroup(tree, each)]) for each in cgroups]
    return found + [memory_of_process(tree, pid) for pid in pids]


@click.command()
@point_argument
@profile_option
@click.option(
    "--pid", "pids", type=click.IntRange(min=1), multiple=True, metavar="N",
    help="Also the memory of this process.",
)  # fmt: skip
@click.option(
    "--cgroup", "cgroups", multiple=True, metavar="PATH", shell_complete=complete_cgroup,
    help="Also the memory of this cgroup and those below it.",
)  # fmt: skip
@click.option("--watch", is_flag=True, help="Print again and again, with rates, until Ctrl-C.")
@interval_option
@json_option
@pass_app
def stats(
    app: App,
    point: str | None,
    profile: str,
    pids: tuple[int, ...],
    cgroups: tuple[str, ...],
    watch: bool,
    interval: float,
    want_json: bool,
) -> None:
    """Show counters; with --watch also how fast they rise.

    Those that are not 0. Then RSS, what of it is lazily freed, and RSS without that: of the cgroups
    and processes that are named, else of those that are bound to the profile.

    JSON has all counters, with --watch one object a line.
    """

    def memory() -> list[Memory]:
        return _memory(app.tree, profile, pids, cgroups)

    def show(counters: Counters, per_second: Rates) -> str:
        found = memory()
        data = {**_data(profile, counters, found), "per_second": per_second}
        line = as_json("stats", data, indent=None)
        return line if want_json else _screen(_lines(counters, per_second) + _more(found))

    if watch:
        _watch(_samples(lambda: read_counters(app.tree, profile, point), app, interval), show)
        return
    counters = read_counters(app.tree, profile, point)
    found = memory()
    emit("stats", want_json, _data(profile, counters, found), _lines(counters) + _more(found))


@click.command()
@interval_option
@json_option
@pass_app
def watch(app: App, interval: float, want_json: bool) -> None:
    """Watch all profiles live, until Ctrl-C.

    State, lease, policies, and the counters that rise. With --json one object a line.
    """

    def read() -> Counters:
        return {
            f"{profile}/{point}": counters
            for profile in counted_profiles(app.tree)
            for point, counters in read_counters(app.tree, profile, None).items()
        }

    def show(counters: Counters, per_second: Rates) -> str:
        state = read_state(app.tree)
        about = {"state": check_loaded(app.tree), **lease_of(app.tree)}
        if want_json:
            data = {**about, "points": counters, "per_second": per_second}
            return as_json("watch", data, indent=None)
        return _screen([*_head(state, about), "", *_rising(state, counters, per_second)])

    _watch(_samples(read, app, interval), show)


def _head(state: State, about: dict[str, Any]) -> Iterator[str]:
    left = about.get("lease_left_ms")
    yield f"state: {about['state']}" + (f", lease: {left / 1000:g} s left" if left else "")
    if state.get("experiment/enabled") == "1":
        control, treatment, percent = (
            state[f"experiment/{name}"] for name in ("control", "treatment", "percent")
        )
        yield f"experiment: {treatment} for {percent} %, {control} for the others"


def _rising(state: State, counters: Counters, per_second: Rates) -> list[str]:
    rows = []
    for point, rises in per_second.items():
        policy = state.get(f"profiles/{point}/policy", "-")
        rows += [(point, policy, name, counters[point][name], rise)
                 for name, rise in rises.items() if rise]  # fmt: skip
    header = ("PROFILE/POINT", "POLICY", "COUNTER", "VALUE", "PER_SECOND")
    return table(header, rows) if rows else ["no counter rises"]


@click.command()
@click.option(
    "--format", "form", type=click.Choice(["prometheus", "json"]), default="prometheus",
    show_default=True,
)  # fmt: skip
@pass_app
def export(app: App, form: str) -> None:
    """Print the state and all counters for a monitoring system.

    As a file for the textfile collector of node_exporter, or as JSON.
    """
    metrics = collect(app.tree)
    values = [
        {"metric": metric.name, "labels": labels, "value": value}
        for metric in metrics
        for labels, value in metric.values
    ]
    emit("export", form == "json", {"metrics": values}, text(metrics))
