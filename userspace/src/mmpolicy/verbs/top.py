# SPDX-License-Identifier: GPL-2.0
"""`top`: who wastes memory in large folios, and who pays for page faults; no module is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import click

from mmpolicy.control.bindings import profile_of, profile_of_cgroup
from mmpolicy.control.keys import State
from mmpolicy.control.state import read_state
from mmpolicy.errors import Error
from mmpolicy.host.calibration import Calibration, read_calibration
from mmpolicy.host.cgroups import find_cgroup
from mmpolicy.host.evidence import pressure_in
from mmpolicy.host.files import CONTROL, Tree
from mmpolicy.host.machine import Host
from mmpolicy.memory.explain import size
from mmpolicy.memory.survey import FIGURES, Row, Survey
from mmpolicy.render import as_json, emit, paint, show_live, table
from mmpolicy.verbs.options import complete_cgroup, json_option, pass_host
from mmpolicy.verbs.stats import print_json

BAR = 12  # cells
CPU, CPU_ONCE = 1.0, 20.0  # percent of one
HEADER = ("WASTE_MIB", "+-", "OF_MIB", "USED|EMPTY", "FAULTS/S", "FAULT_CPU%", "CPU%", "KERNEL%",
          "STALL%", "FOLIOS", "DECIDES")  # fmt: skip


@dataclass(frozen=True)
class TopOptions:
    """What `top` is asked for."""

    cgroup: str | None
    unit: str | None
    sort: str
    rows: int
    number: int | None
    interval: float
    cpu: float | None
    want_json: bool


def chosen_cgroup(tree: Tree, cgroup: str | None, unit: str | None) -> str:
    """Return the path of the cgroup that the options name, empty for the whole host."""
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
    "--rows", type=click.IntRange(min=1), default=10, show_default=True, metavar="N",
    help="Rows of each table.",
)  # fmt: skip
@click.option("-n", "--number", type=click.IntRange(min=1), metavar="N", help="End after N prints.")
@click.option(
    "--interval", type=click.FloatRange(min=0.1), default=5.0, show_default=True,
    metavar="SECONDS", help="Time between two prints.",
)  # fmt: skip
@click.option(
    "--cpu", type=click.FloatRange(min=0.1, max=100), metavar="PERCENT",
    help=f"How much of one CPU it may take; by default {CPU:g}, with -n 1 {CPU_ONCE:g}.",
)  # fmt: skip
@json_option
@pass_host
def top(host: Host, **options: Any) -> None:
    """Show which services and processes waste memory in large folios; needs no module.

    WASTE is the zero-filled part of large folios, estimated from random spots of anonymous
    memory, with its error (95 %). Also shows memory, page faults, CPU time and the part of it in
    the kernel, stalls on memory (PSI, 10 s), folio sizes, and who decides about them. What part
    of a CPU page faults take is told after `mmpolicy calibrate`, for single pages. Changes
    nothing. It looks at a few processes at a time, the largest of which least is known first.
    """
    given = TopOptions(**options)
    frames = _frames(host, given)
    if given.number == 1:
        _, last = next(frames), next(frames)  # rates need two looks
        emit("top", given.want_json, last, lambda: _lines(last))
    elif given.want_json:
        print_json(as_json("top", frame, indent=None) for frame in _first(frames, given.number))
    else:
        show_live(list(_lines(frame)) for frame in _first(frames, given.number))


def _first(frames: Iterator[dict[str, Any]], number: int | None) -> Iterator[dict[str, Any]]:
    for count, frame in enumerate(frames, start=1):
        yield frame
        if count == number:
            return


def _frames(host: Host, given: TopOptions) -> Iterator[dict[str, Any]]:
    """Yield what is seen in each interval, for ever."""
    within = chosen_cgroup(host.tree, given.cgroup, given.unit)
    if not given.want_json:
        table(HEADER, ())  # loads what draws it, before the time is counted
    percent = given.cpu or (CPU_ONCE if given.number == 1 else CPU)
    survey = Survey(host.tree, percent / 100, within)
    while True:
        survey.turn(host.clock(), given.interval)
        yield frame_of(host.tree, survey, given.sort, given.rows)
        host.sleep(survey.budget.pause(given.interval))


def frame_of(tree: Tree, survey: Survey, sort: str, rows: int) -> dict[str, Any]:
    """Return what a survey has seen, so many rows of it in order."""
    state = _state(tree)
    cgroups, processes = survey.most(FIGURES[sort], rows)
    costs = read_calibration(tree)
    return {
        "processes_seen": len(survey.processes),
        "memory_looked_at": round(survey.seen(), 3),
        "longest_hold_ms": round(survey.holds.longest_s * 1000, 2),
        "hold_limit_ms": survey.holds.limit_s * 1000,
        "notes": [survey.blind] * bool(survey.blind),
        "cgroups": [
            {"cgroup": row.name, **_data(row, costs), "stall_percent": _stall(tree, row.name),
             "decides": _decides(state, partial(profile_of_cgroup, tree, state, row.name))}
            for row in cgroups
        ],
        "processes": [
            {"pid": row.pids[0], "name": row.name, "cgroup": row.cgroup, **_data(row, costs),
             "decides": "itself" if row.forbids else
             _decides(state, partial(profile_of, tree, state, row.pids[0]))}
            for row in processes
        ],
    }  # fmt: skip


def _state(tree: Tree) -> State:
    """Return the state of the module, empty where it is not loaded, or may not be seen."""
    try:
        return read_state(tree) if tree.is_dir(CONTROL) else {}
    except Error:
        return {}


def _decides(state: State, find: Callable[[], str]) -> str:
    try:
        return find() if state else "kernel"
    except Error:  # it has just ended
        return "-"


def _stall(tree: Tree, cgroup: str) -> float | None:
    """Return which part of the last ten seconds a cgroup has waited for memory."""
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


def _lines(frame: dict[str, Any]) -> Iterator[str]:
    yield from frame["notes"]
    share = frame["memory_looked_at"]
    yield f"{frame['processes_seen']} processes, {share:.0%} of their memory looked at so far"
    yield ""
    found = [(row["cgroup"], *_cells(row)) for row in frame["cgroups"]]
    yield from table(("CGROUP", *HEADER), found)
    yield ""
    found = [(f"{row['pid']} {row['name']}", *_cells(row)) for row in frame["processes"]]
    yield from table(("PROCESS", *HEADER), found)


def _cells(row: dict[str, Any]) -> tuple[object, ...]:
    stall = row.get("stall_percent")
    known = bool(row["looked_at"])
    waste, error = ((f"{row[key] / 1024:.1f}") for key in ("waste_kib", "error_kib"))
    return (
        waste if known else "?", error if known else "?", f"{row['rss_kib'] / 1024:.1f}",
        _bar(row["waste_kib"], row["rss_kib"]), row["faults_per_second"],
        _in_faults(row["faults_percent"], row["faults_error_percent"]), row["cpu_percent"],
        row["kernel_percent"], "-" if stall is None else stall, _folios(row["folios"]),
        row["decides"],
    )  # fmt: skip


def _in_faults(percent: float | None, error: float | None) -> str:
    return "-" if percent is None else f"{percent:.2f} +-{error:.2f}"


def _bar(waste: float, whole: float) -> str:
    """Return how much of the memory is in use, and how much is empty."""
    empty = min(round(BAR * waste / whole), BAR) if whole else 0
    return "#" * (BAR - empty) + paint("." * empty, "red")


def _folios(folios: dict[str, float]) -> str:
    """Return the sizes that most of the memory is in."""
    most = sorted(folios.items(), key=lambda each: -each[1])[:3]
    return " ".join(f"{name.replace(' ', '')}:{part:.0%}" for name, part in most if part > 0) or "-"
