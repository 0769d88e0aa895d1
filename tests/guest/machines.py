# SPDX-License-Identifier: GPL-2.0
"""The virtual machines (guests) of one worker of pytest: one runs at a time, and tests with the
same needs share it.
"""

from __future__ import annotations

from typing import Any

from lab.guest import Guest, VmError, new_guest
from lab.programs import BenchError

from . import tools


class Machines:
    """Boots virtual machines (guests) for tests, at most one at a time, and reuses a
    running one.
    """

    def __init__(self) -> None:
        self.guest: Guest | None = None
        self.needs: dict[str, Any] = {}

    def get(self, flavor: str = "patched", **needs: Any) -> Guest:
        """Return the running guest if it meets the needs; else end it and boot a new one."""
        wanted = {"flavor": flavor, **needs}
        if self.guest is None or self.guest.spoiled or wanted != self.needs:
            self.end()
            guest = new_guest(**wanted)
            guest.__enter__()
            self.guest, self.needs = guest, wanted
            tools.back_to_boot(guest)  # sets the defaults that tests expect; Debian's differ
        return self.guest

    def end(self) -> None:
        """End the running guest, if there is one. Fail if its kernel has logged a bug."""
        guest, self.guest = self.guest, None
        if guest is None:
            return
        try:
            guest.check()
        finally:
            guest.close()

    def tidy(self) -> None:
        """Restore the settings of the guest as they were after its boot. Fail if its kernel has
        logged a bug.
        """
        guest = self.guest
        if guest is None:
            return
        try:
            tools.back_to_boot(guest)
            guest.check()
        except (VmError, BenchError):
            self.guest = None
            guest.close()
            raise
