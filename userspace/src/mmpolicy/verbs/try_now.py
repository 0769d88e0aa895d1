# SPDX-License-Identifier: GPL-2.0
"""Decide whether `try` may change a service now: not during a deployment or when
memory is short.
"""

from __future__ import annotations

from mmpolicy.host.machine import Host
from mmpolicy.host.service import unsteady
from mmpolicy.memory.findings import STALLS
from mmpolicy.memory.pressure import Pressure

WAITING = 10.0  # largest percentage of the time that tasks may wait for memory, as in the presets


def short_of_memory(stalled: float, compactions: float) -> str:
    """Return the reason if tasks of a service wait for memory, and not because of compaction; else
    "".

    On a host with many CPUs, the pressure of the whole host says little about one service.
    """
    if stalled <= WAITING or compactions >= STALLS:
        return ""
    return f"its tasks wait for memory {stalled:.0f} % of the time, more than {WAITING:g} %"


def not_now(host: Host, unit: str) -> str:
    """Return why a service must not be changed now; "" if it may be changed."""
    return Pressure(host, WAITING).too_high() or next(unsteady(host.show_units, unit), "")
