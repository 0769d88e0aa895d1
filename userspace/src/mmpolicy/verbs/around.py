# SPDX-License-Identifier: GPL-2.0
"""`recommend` without a PID: observe all processes of the host for a while, and print advice."""

from __future__ import annotations

from typing import Any

from mmpolicy.bench.calibrate import measure
from mmpolicy.control.counters import Counters, counted_profiles, rates, read_counters
from mmpolicy.control.keys import Setting, choice
from mmpolicy.control.shadow import shadows_of
from mmpolicy.control.state import read_state
from mmpolicy.errors import LOAD, Error, Exit
from mmpolicy.host import evidence
from mmpolicy.host.calibration import PAGE, Calibration, read_calibration
from mmpolicy.host.files import CONTROL, Tree
from mmpolicy.host.machine import Host
from mmpolicy.host.pagemap import no_frames
from mmpolicy.memory.findings import SINGLE, Evidence, Module, find
from mmpolicy.memory.survey import Survey
from mmpolicy.render import emit, own_line, progress_line
from mmpolicy.verbs.here import without_module

POINT, POLICY = "anon_order", "adaptive"
SHARE = 0.05  # The survey of the processes' memory may use this share of one CPU.
TURN_S = 5.0  # seconds of one turn of the survey
EVENTS = "vmstat"  # key under which rates() has the counters of /proc/vmstat
HUGE = 2 << 20


def look_around(host: Host, seconds: float, want_json: bool) -> None:
    """Watch the host for some seconds, and print at most five findings; change nothing."""
    check_may_look(host.tree)
    costs, _ = fault_costs(host)
    survey = Survey(host.tree, SHARE)
    events, made, begin = _events(host.tree), evidence.folios_made(host.tree), host.clock()
    watch(host, survey, seconds)
    passed = host.clock() - begin
    rising = rates(events, _events(host.tree), passed)[EVENTS]
    more = evidence.folios_made(host.tree)
    sizes = {size: (more[size] - made.get(size, 0)) / passed for size in more}
    # Before Linux 6.8, faults are not counted by folio size: count those that got 2 MB.
    sizes.setdefault(HUGE, rising.get("thp_fault_alloc", 0.0))
    shadows = _shadows(host.tree)
    known = find(Evidence(host.tree, survey, rising, sizes, costs, module_here(host), shadows))
    found, small = ([each for each in known if each.worth is worth] for worth in (True, False))
    data: dict[str, Any] = {
        "seconds": seconds,
        "processes_seen": len(survey.processes),
        "memory_looked_at": round(survey.seen(), 3),
        "longest_hold_ms": round(survey.holds.longest_s * 1000, 2),
        "notes": [survey.blind] * bool(survey.blind),
        "findings": [{**each._asdict(), "line": each.line()} for each in found],
        "not_worth_it": [{**each._asdict(), "line": each.line()} for each in small],
    }
    seen = _seen(survey)
    lines = [each.line() for each in found] or [f"nothing to do: {seen} was looked at"]
    emit("recommend", want_json, data, [*data["notes"], *lines, *(each.line() for each in small)])
    if survey.blind and not found and not survey.seen():
        text = "the memory of no process could be looked at"
        raise Error(text, Exit.DENIED, survey.blind.rpartition("; next: ")[2])


def check_may_look(tree: Tree) -> None:
    """Raise an error at once if this user may not read page frames (/proc/kpageflags, and frame
    numbers in pagemap); without this check, the error would come only after the survey of a minute.
    """
    if tree.is_confined():
        raise no_frames(tree)
    try:
        tree.read_at("/proc/kpageflags", 8)
    except Error as err:
        if err.exit_code == Exit.DENIED:
            raise


def fault_costs(host: Host) -> tuple[Calibration, str]:
    """Return the cost of a page fault, and as text where it comes from: the file that `calibrate`
    wrote, or, if there is none, a measurement of single pages that is made now.
    """
    kept = read_calibration(host.tree)
    if kept:
        return kept, "mmpolicy calibrate"
    with own_line():
        found = measure([PAGE], lambda _size: None, lambda seconds: progress_line(
            f"measures the cost of a fault: {seconds:.0f} s", is_last=False))  # fmt: skip
    return Calibration(found), SINGLE


def watch(host: Host, survey: Survey, seconds: float) -> None:
    """Let the survey read the memory of processes for this many seconds, and print the progress."""
    turns = max(round(seconds / TURN_S), 1)
    with own_line():
        for turn in range(turns):
            survey.turn(host.clock(), seconds / turns)
            left = seconds * (turns - turn) / turns
            progress_line(f"looked at {_seen(survey)}; {left:.0f} s to go", is_last=False)
            host.sleep(seconds / turns)
        survey.turn(host.clock(), seconds / turns)


def _seen(survey: Survey) -> str:
    number = len(survey.processes)
    return f"{survey.seen():.0%} of the memory of {number} process{'es' * (number != 1)}"


def _events(tree: Tree) -> Counters:
    return {EVENTS: evidence.events(tree, False)}


def module_here(host: Host) -> Module:
    """Return whether this host can load the module, and the command that loads it or makes it
    possible. `doctor` says more about it.
    """
    if host.tree.is_dir(CONTROL):
        return Module(True)
    verdict = without_module(host)
    if verdict.never:
        return Module(False)
    if verdict.next_step == LOAD:
        return Module(True, (LOAD,))
    return Module(True, next_step=verdict.next_step)


def _shadows(tree: Tree) -> dict[str, str]:
    """Return by profile, as text, what the shadow policy `adaptive` has found out. A shadow policy
    only counts what it would decide. Only profiles with another active policy count, and only if
    the shadow would have spared most faults.
    """
    if not tree.is_dir(CONTROL):
        return {}
    try:
        state, found = read_state(tree), {}
        for name in counted_profiles(tree):
            shadow = state.get(Setting(name, POINT, "", "shadow"))
            if shadow != POLICY or state.get(choice(name, POINT)) == POLICY:
                continue
            said = shadows_of(read_counters(tree, name, POINT)).get(POINT)
            if said and said.spared_least * 2 > said.faults:
                found[name] = said.text(read_calibration(tree))
    except Error:  # only root may read the counters, or the module was unloaded meanwhile
        return {}
    return found
