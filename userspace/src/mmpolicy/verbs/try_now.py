# SPDX-License-Identifier: GPL-2.0
"""Decide whether `try` may change a service now: not while it is being deployed, and not while
memory is short.
"""

from __future__ import annotations

from mmpolicy.host.machine import Host
from mmpolicy.host.service import unsteady
from mmpolicy.memory.findings import STALLS
from mmpolicy.memory.pressure import Pressure

# A service is left unchanged if its tasks wait for memory during a larger percentage of the time;
# the presets of `ab run` have the same limit.
WAITING = 10.0


def short_of_memory(stalled: float, compactions: float) -> str:
    """If the tasks of a service wait for memory, and compaction is not the cause, return as text
    that the service must not be changed now; else "".

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
