# SPDX-License-Identifier: GPL-2.0
"""Whether `try` may change something now: not in the midst of a deploy, nor short of memory."""

from __future__ import annotations

from mmpolicy.host.machine import Host
from mmpolicy.host.service import unsteady
from mmpolicy.memory.findings import STALLS
from mmpolicy.memory.trim import Pressure

WAITING = 10.0  # percent of the time that tasks may wait for memory, as in the presets


def short_of_memory(stalled: float, compactions: float) -> str:
    """Return that the tasks of a service wait for memory, unless for compaction.

    On a host with many CPUs the pressure of the whole host does not show one service.
    """
    if stalled <= WAITING or compactions >= STALLS:
        return ""
    return f"its tasks wait for memory {stalled:.0f} % of the time, more than {WAITING:g} %"


def not_now(host: Host, unit: str) -> str:
    """Return why a service must be left alone now; empty if nothing stands against a change."""
    return Pressure(host, WAITING).too_high() or next(unsteady(host.show_units, unit), "")
