# SPDX-License-Identifier: GPL-2.0
"""Detect by PSI that the host is short of memory."""

from __future__ import annotations

from mmpolicy.errors import Error
from mmpolicy.host.evidence import PRESSURE, pressure_in
from mmpolicy.host.machine import Host

LOOK_S = 0.25  # seconds between checks of the memory pressure


class Pressure:
    """Detects that the host is short of memory."""

    def __init__(self, host: Host, limit: float) -> None:
        self._host, self._limit = host, limit
        self._path = f"{PRESSURE}/memory"
        self._last = self._read()
        self.known = self._last is not None
        self._when = host.clock()

    def _read(self) -> tuple[float, float] | None:
        """Return the seconds since boot that tasks have waited for memory, and the percentage of
        the last ten seconds; None if the kernel has no PSI.
        """
        try:
            some = pressure_in(self._host.tree, self._path)["some"]
            return int(some["total"]) / 1e6, float(some["avg10"])
        except (Error, KeyError, ValueError):
            return None

    def too_high(self) -> str:
        """Return the reason to stop because tasks wait for memory, or ""."""
        now, seconds = self._read(), self._host.clock() - self._when
        if not now or not self._last:
            return ""
        share = now[1]
        if seconds >= LOOK_S:
            share = max(share, 100 * (now[0] - self._last[0]) / seconds)
            self._last, self._when = now, self._host.clock()
        if share <= self._limit:
            return ""
        return f"tasks wait for memory {share:.0f} % of the time, more than {self._limit:g} %"
