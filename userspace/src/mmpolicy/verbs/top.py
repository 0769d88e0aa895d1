# SPDX-License-Identifier: GPL-2.0
"""`top`: waste in large folios and cost of page faults, by service and process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import click

from mmpolicy.control.bindings import profile_of, profile_of_cgroup
from mmpolicy.control.keys import State
from mmpolicy.control.state import read_state
from mmpolicy.errors import Error
from mmpolicy.host.calibration import Calibration, read_calibration
from mmpolicy.host.cgroups import find_cgroup
from mmpolicy.host.evidence import pressure_in
from mmpolicy.host.files import CONTROL, SPLIT, Tree
from mmpolicy.host.machine import Host
from mmpolicy.host.processes import Process
from mmpolicy.memory.explain import size
from mmpolicy.memory.reach import excepted, reach_of
from mmpolicy.memory.survey import FIGURES, Row, Survey
from mmpolicy.memory.trim import check_possible
from mmpolicy.render import as_json, emit, show_live
from mmpolicy.verbs.options import Count, Number, complete_cgroup, json_option
from mmpolicy.verbs.stats import print_json
from mmpolicy.verbs.top_screen import (
    Terminal,
    View,
    as_tables,
    memory_of,
    run_aside,
    size_of_screen,
)

# Default CPU budget of the survey in percent of one CPU: CPU if `top` prints repeatedly, CPU_ONCE
# if it prints only once.
CPU, CPU_ONCE = 1.0, 20.0
LOOK_S = 1.0  # seconds between two checks whether the terminal has another size


@dataclass(frozen=True)
class TopOptions:
    """The options of `top`."""

    cgroup: str | None
    unit: str | None
    sort: str
    rows: int
    number: int | None
    interval: float
    cpu: float | None
    read_only: bool
    want_json: bool


def chosen_cgroup(tree: Tree, cgroup: str | None, unit: str | None) -> str:
    """Return the path of the cgroup that the options name, "" for the whole host."""
    if cgroup and unit:
        raise click.UsageError("give one of --cgroup PATH and --unit NAME")
    given = cgroup or unit
    path = find_cgroup(tree, given).name if given else ""
    return "" if path == "/" else path


@click.command()
@click.option(
    "--cgroup", metavar="PATH", shell_complete=complete_cgroup,
    help="Show this cgroup and those below it, not the whole host.",
)  # fmt: skip
@click.option("--unit", metavar="NAME", help="Show this systemd unit, not the whole host.")
@click.option(
    "--sort", type=click.Choice(list(FIGURES)), default="waste", show_default=True,
    help="What comes first.",
)  # fmt: skip
@click.option(
    "--rows", type=Count(), default=10, show_default=True, metavar="N",
    help="Rows of each table.",
)  # fmt: skip
@click.option("-n", "--number", type=Count(), metavar="N", help="End after N prints.")
@click.option(
    "--interval", type=Number(0.1, 86400), default=5.0, show_default=True,
    metavar="SECONDS", help="Time between two prints.",
)  # fmt: skip
@click.option(
    "--cpu", type=Number(min=0.1, max=100), metavar="PERCENT",
    help=f"The CPU budget in percent of one CPU; by default {CPU:g}, with -n 1 {CPU_ONCE:g}.",
)  # fmt: skip
@click.option("--read-only", is_flag=True, help="On the screen, do not offer to give memory back.")
@json_option
@click.pass_context
def top(ctx: click.Context, **options: Any) -> None:
    """Show which services and processes waste memory in large folios; needs no module.

    WASTE is the zero-filled part of large folios, estimated from random spots of anonymous memory,
    with its error (95 %). Also shows memory, page faults, CPU time and the part of it in the
    kernel, stalls on memory (PSI, 10 s), folio sizes, and who decides about them. After `mmpolicy
    calibrate`, it also shows what share of a CPU page faults take, as if all were of single pages.
    It looks at a few processes at a time, first at the large ones that it has seen least of.

    On a terminal it has keys, which ? lists. It changes nothing, except by `t`, which runs
    `mmpolicy trim` for the selected row after a question.
    """
    given, host = TopOptions(**options), ctx.ensure_object(Host)
    if not (given.number or given.want_json) and sys.stdin.isatty() and sys.stdout.isatty():
        _on_screen(ctx, host, given)
        return
    frames = _frames(host, given)
    if given.number == 1:
        _, last = next(frames), next(frames)  # rates need two turns of the survey
        emit("top", given.want_json, last, lambda: as_tables(last))
    elif given.want_json:
        print_json(as_json("top", frame, indent=None) for frame in _first(frames, given.number))
    else:
        show_live(list(as_tables(frame)) for frame in _first(frames, given.number))


def _first(frames: Iterator[dict[str, Any]], number: int | None) -> Iterator[dict[str, Any]]:
    for count, frame in enumerate(frames, start=1):
        yield frame
        if count == number:
            return


def _frames(host: Host, given: TopOptions) -> Iterator[dict[str, Any]]:
    """Yield the data to print, again and again without end. The survey of the processes' memory
    works in the interval between two prints.
    """
    survey = _survey(host, given)
    while True:
        survey.turn(host.clock(), given.interval)
        yield frame_of(host.tree, survey, given.sort, given.rows)
        host.sleep(survey.budget.pause(given.interval))


def _survey(host: Host, given: TopOptions) -> Survey:
    within = chosen_cgroup(host.tree, given.cgroup, given.unit)
    percent = given.cpu or (CPU_ONCE if given.number == 1 else CPU)
    return Survey(host.tree, percent / 100, within)


def _on_screen(ctx: click.Context, host: Host, given: TopOptions) -> None:
    """Show the data on the terminal until the user quits."""
    survey = _survey(host, given)
    view = View(given.sort, _why_no_trim(host.tree, given))

    def run(words: Sequence[str]) -> None:
        """Run a verb that a key has started. Its CPU time is not counted against the budget of the
        survey. A process that has ended since its row was drawn is an error.
        """
        if words[:2] == ["trim", "--pid"] and (known := survey.processes.get(int(words[2]))):
            Process(known.pid, known.usage.start).check(host.tree)
        root = ctx.find_root().command
        root.main(list(words), obj=host, standalone_mode=False)
        survey.budget.forgive(given.interval)

    with suppress(KeyboardInterrupt), Terminal() as terminal:
        terminal.show(["looking at all processes"])
        while _watch(terminal, host, survey, view, given.interval, run):
            pass


def _watch(
    terminal: Terminal, host: Host, survey: Survey, view: View, interval: float,
    run: Callable[[Sequence[str]], None],
) -> bool:  # fmt: skip
    """Make one turn of the survey, and show its result until the next turn is due. Return False if
    the user quits, else True. A key may start a verb, which ends the turn early.
    """
    survey.turn(host.clock(), interval)
    until, shown = host.clock() + survey.budget.pause(interval), (0, 0)
    details: dict[str, list[str]] = {}
    while (left := until - host.clock()) > 0:
        if shown != size_of_screen():
            shown = size_of_screen()
            frame = _frame_for(host.tree, survey, view)
            view.take(frame)
            if view.opened and view.details not in details:
                details[view.details] = _details(host.tree, survey, view)
            below = details[view.details] if view.opened else []
            terminal.show(view.lines(frame, below, *shown))
        for key in terminal.keys(min(left, LOOK_S)):
            if key == "q" and not view.mode:
                return False
            if words := view.press(key):
                run_aside(terminal, words, run)
                return True
            shown = (0, 0)
    return True


def _frame_for(tree: Tree, survey: Survey, view: View) -> dict[str, Any]:
    frame = frame_of(tree, survey, view.sort, view.rows, view.only)
    if view.expanded:
        every = frame_of(tree, survey, view.sort, len(survey.processes), cgroups=0)
        frame["members"] = {
            path: [row for row in every["processes"] if row["cgroup"] == path]
            for path in view.expanded
        }
    return frame


def _details(tree: Tree, survey: Survey, view: View) -> list[str]:
    """Return the lines to show below the selected row: its memory, and which part of it policies
    reach. [] if no row is selected.
    """
    item = view.current
    if not item:
        return []
    row = item.row
    inside = survey.processes.values()
    pids = [row["pid"]] if "pid" in row else [e.pid for e in inside if e.cgroup == row["cgroup"]]
    what = f"{len(pids)} processes in {row['cgroup']}" if "pid" not in row else item.label
    found = [line for each in reach_of(tree, pids, 1) for line in each.lines()]
    seen = f"{what}: {row['looked_at']:.0%} of the memory was looked at"
    return [*filter(None, (seen, memory_of(row))), *found]


def _why_no_trim(tree: Tree, given: TopOptions) -> str:
    """Return why this screen cannot start `trim`, or ""."""
    if given.read_only:
        return "top was started with --read-only"
    try:
        check_possible(tree)
    except Error as err:
        return f"{err.message}; next: {err.next_step}"
    return "" if tree.writable(SPLIT) else f"no permission to write {SPLIT}"


def _certain(row: Row) -> tuple[float, float]:
    """Return the key by which rows are sorted by empty memory, both parts in KiB: first the memory
    that is certainly empty, which is the estimate less its error, then the estimate.
    """
    return max(row.waste_kib - row.error_kib, 0.0), row.waste_kib


def _chosen_rows(found: list[Row], sort: str, rows: int, only: str) -> list[Row]:
    if sort == "waste":
        found = sorted(found, key=_certain, reverse=True)
    return [each for each in found if only in each.name or only in each.cgroup][:rows]


def frame_of(
    tree: Tree, survey: Survey, sort: str, rows: int, only: str = "", cgroups: int | None = None
) -> dict[str, Any]:
    """Return the result of a survey as data for one print: at most `rows` cgroups and `rows`
    processes. only: a row is left out unless its name or its cgroup contains this text.

    cgroups: the most cgroups, if that is not `rows`.
    """
    state = _state(tree)
    many = len(survey.processes) if only else 2 * rows
    of_cgroups, of_processes = survey.most(FIGURES[sort], many)
    of_cgroups = _chosen_rows(of_cgroups, sort, rows if cgroups is None else cgroups, only)
    of_processes = _chosen_rows(of_processes, sort, rows, only)
    costs = read_calibration(tree)
    # excepted() reads unit files, so the cache asks it only once for each cgroup of this print.
    by_unit = cache(partial(excepted, tree))
    return {
        "processes_seen": len(survey.processes),
        "memory_looked_at": round(survey.seen(), 3),
        "longest_hold_ms": round(survey.holds.longest_s * 1000, 2),
        "hold_limit_ms": survey.holds.limit_s * 1000,
        "notes": [survey.blind] * bool(survey.blind),
        "cgroups": [
            {"cgroup": row.name, **_data(row, costs), "stall_percent": _stall(tree, row.name),
             "decides": "unit" if by_unit(row.name) else
             _decides(state, partial(profile_of_cgroup, tree, state, row.name))}
            for row in of_cgroups
        ],
        "processes": [
            {"pid": row.pids[0], "name": row.name, "cgroup": row.cgroup, **_data(row, costs),
             "barriers": found.as_data()["barriers"] if found else None,
             "decides": (found and found.decider) or ("unit" if by_unit(row.cgroup) else
             _decides(state, partial(profile_of, tree, state, row.pids[0])))}
            for row in of_processes
            for found in [survey.reach(row.pids[0])]
        ],
    }  # fmt: skip


def _state(tree: Tree) -> State:
    """Return the state of the module; {} if it is not loaded or not readable."""
    try:
        return read_state(tree) if tree.is_dir(CONTROL) else {}
    except Error:
        return {}


def _decides(state: State, find: Callable[[], str]) -> str:
    try:
        return find() if state else "kernel"
    except Error:  # the cgroup or process has ended since the survey saw it
        return "-"


def _stall(tree: Tree, cgroup: str) -> float | None:
    """Return the percentage of the last ten seconds in which tasks of a cgroup waited for memory;
    None if the kernel does not report it.
    """
    try:
        path = f"{find_cgroup(tree, cgroup).folder}/memory.pressure"
        return float(pressure_in(tree, path)["some"]["avg10"])
    except (Error, KeyError, ValueError):
        return None


def _data(row: Row, costs: Calibration | None) -> dict[str, Any]:
    in_faults, error = costs.percent(row.rates.faults) if costs else (None, None)
    return {
        "processes": len(row.pids),
        "waste_kib": round(row.waste_kib),
        "error_kib": round(row.error_kib),
        "waste_shared_kib": round(row.waste_shared_kib),
        "kinds_kib": {kind: round(kib) for kind, kib in row.kinds.items()},
        "not_looked_at_kib": {kind: round(kib) for kind, kib in row.unseen.items()},
        "charged_elsewhere_kib": round(row.elsewhere_kib),
        "rss_kib": row.rss_kib,
        "anon_kib": row.anon_kib,
        "looked_at": round(row.seen, 3),
        "faults_per_second": round(row.rates.faults, 1),
        "faults_percent": in_faults and round(in_faults, 2),
        "faults_error_percent": error and round(error, 2),
        "cpu_percent": round(100 * row.rates.cpu, 1),
        "kernel_percent": round(100 * row.rates.kernel, 1),
        "folios": {size(order): round(part, 3) for order, part in sorted(row.sizes.items())},
        "forbids_large_folios": list(row.forbids),
    }
