# SPDX-License-Identifier: GPL-2.0
"""Everything that an experiment changes: policies of the module, knobs of the kernel, or both."""

from __future__ import annotations

from collections.abc import Iterator

from mmpolicy.ab.arms import Settings
from mmpolicy.ab.design import Block
from mmpolicy.ab.run.knobs import Knobs
from mmpolicy.ab.run.policy_arms import PolicyArms
from mmpolicy.ab.run.scope import Scope
from mmpolicy.control.experiment import PROFILES
from mmpolicy.control.keys import DEFAULT
from mmpolicy.host.knobs import names_of
from mmpolicy.host.step import Step


class Changes:
    """Switches a run between its arms: each method acts on the policies of the module and on the
    knobs of the kernel.
    """

    def __init__(self, policies: PolicyArms | None, knobs: Knobs) -> None:
        self.policies = policies
        self.knobs = knobs
        self.lease_ms = int(knobs.lease_s * 1000)
        self.timing = bool(policies and policies.timing)

    @property
    def arms(self) -> dict[str, Settings]:
        """Return the policies of each arm with their settings."""
        return self.policies.arms if self.policies else {}

    @property
    def units(self) -> dict[str, str]:
        """Return the arm of each cgroup in this block of split; {} if the units are no cgroups."""
        return self.policies.units if self.policies else {}

    @property
    def profiles(self) -> dict[str, str]:
        """Return for each arm the profile in whose counters the decisions of the arm are
        counted.
        """
        return PROFILES if self.policies else dict.fromkeys(PROFILES, DEFAULT)

    @property
    def scope(self) -> Scope:
        """Return the cgroup that the experiment is limited to, or the whole host."""
        return self.policies.scope if self.policies else Scope(self.knobs.tree)

    def settings(self, arm: str) -> dict[str, str]:
        """Return all settings of an arm, by name, with their values."""
        of_policies = {key.inside: value for key, value in self.arms.get(arm, {}).items()}
        of_kernel = self.knobs.arms[arm].items()
        return of_policies | {names_of(path)[0]: value for path, value in of_kernel}

    def rehearsal(self, unit: str) -> Iterator[Step]:
        """Yield the writes with which the experiment would begin, for a dry run."""
        yield from self.policies.rehearsal(unit) if self.policies else ()
        yield from self.knobs.rehearsal()

    def set_up(self, unit: str) -> None:
        """Create the profiles of both arms, and check that all knobs can be written."""
        if self.policies:
            self.policies.set_up(unit)
        self.knobs.set_up()

    def equip(self, phase: str) -> None:
        """Write the settings of the profiles; in the A/A phase, both arms get the control's."""
        if self.policies:
            self.policies.equip(phase)

    def enter(self, block: Block) -> None:
        self.knobs.enter(block)
        if self.policies:
            self.policies.enter(block)

    def renew(self) -> None:
        """Renew the leases of the module and of the watchdog; raise StoppedError if another process
        has changed the settings of the run.
        """
        self.knobs.renew()
        if self.policies:
            self.policies.renew()

    def look_after(self, restarting: bool) -> None:
        """Raise StoppedError if the cgroup of the experiment was removed. restarting: True if the
        command of --at-switch is at work, which may create the cgroup again.
        """
        if self.policies:
            self.policies.look_after(restarting)

    def restore(self) -> str:
        """Restore the state from before the run; return a warning as text, or ""."""
        notes = [self.knobs.restore(), self.policies.restore() if self.policies else ""]
        return "; ".join(filter(None, notes))
