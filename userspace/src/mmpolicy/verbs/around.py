# SPDX-License-Identifier: GPL-2.0
"""`recommend` without a process: looks at the whole host for a while."""

from __future__ import annotations

from typing import Any

from mmpolicy.control.counters import counted_profiles, rates, read_counters
from mmpolicy.control.keys import Setting, choice
from mmpolicy.control.shadow import shadows_of
from mmpolicy.control.state import read_state
from mmpolicy.errors import Error
from mmpolicy.host import evidence
from mmpolicy.host.calibration import read_calibration
from mmpolicy.host.files import CONTROL, Tree
from mmpolicy.host.machine import Host
from mmpolicy.memory.findings import find
from mmpolicy.memory.survey import Survey
from mmpolicy.render import emit

POINT, POLICY = "anon_order", "adaptive"
SHARE = 0.05  # of a CPU, while it looks
TURN_S = 5.0
EVENTS = "vmstat"


def look_around(host: Host, seconds: float, want_json: bool) -> None:
    """Print what to do on this host, at most five lines; nothing is changed."""
    turns = max(round(seconds / TURN_S), 1)
    survey = Survey(host.tree, SHARE)
    events, begin = {EVENTS: evidence.events(host.tree, False)}, host.clock()
    for _ in range(turns):
        survey.turn(host.clock(), seconds / turns)
        host.sleep(seconds / turns)
    survey.turn(host.clock(), seconds / turns)
    new = {EVENTS: evidence.events(host.tree, False)}
    rising = rates(events, new, host.clock() - begin)[EVENTS]
    found = find(host.tree, survey, rising, _shadows(host.tree))
    data: dict[str, Any] = {
        "seconds": seconds,
        "processes_seen": len(survey.processes),
        "memory_looked_at": round(survey.seen(), 3),
        "notes": [survey.blind] * bool(survey.blind),
        "findings": [{**each._asdict(), "line": each.line()} for each in found],
    }
    seen = f"{survey.seen():.0%} of the memory of {len(survey.processes)} processes"
    lines = [each.line() for each in found] or [f"nothing to do: {seen} was looked at"]
    emit("recommend", want_json, data, [*data["notes"], *lines])


def _shadows(tree: Tree) -> dict[str, str]:
    """Return what the shadow `adaptive` says, of each profile that does not obey it."""
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
    except Error:  # it is for root, or was unloaded meanwhile
        return {}
    return found
