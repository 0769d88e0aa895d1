# SPDX-License-Identifier: GPL-2.0
"""Decide whether `try` may change a service now: not while it is being deployed, and not while
memory is short.
"""

from __future__ import annotations

from mmpolicy.host.machine import Host
from mmpolicy.host.service import unsteady
from mmpolicy.memory.findings import STALLS
from mmpolicy.memory.pressure import Pressure

WAITING = 10.0  # percentage of the time that tasks may wait for memory; the presets have it too


def short_of_memory(stalled: float, compactions: float) -> str:
    """Return a reason not to change the service, if its tasks wait for memory and compaction is
    not the cause; else "".

    The pressure of the whole host would not do: with many CPUs it says little about one service.
    stalled: percentage of the time. compactions: per second.
    """
    if stalled <= WAITING or compactions >= STALLS:
        return ""
    return f"the service waits for memory {stalled:.0f} % of the time, more than {WAITING:g} %"


def not_now(host: Host, unit: str) -> str:
    """Return why a service must not be changed now; "" if it may be changed. unit: its systemd
    unit, or "".
    """
    return Pressure(host, WAITING).too_high() or next(unsteady(host.show_units, unit), "")
