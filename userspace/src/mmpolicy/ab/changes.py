# SPDX-License-Identifier: GPL-2.0
"""All that an experiment changes: policies of the module, knobs of the kernel, or both."""

from __future__ import annotations

from collections.abc import Iterator

from mmpolicy.ab.arms import Settings
from mmpolicy.ab.design import Block
from mmpolicy.ab.knobs import Knobs
from mmpolicy.ab.policy_arms import PolicyArms
from mmpolicy.ab.scope import Scope
from mmpolicy.control.experiment import PROFILES
from mmpolicy.control.keys import DEFAULT
from mmpolicy.host.knobs import names_of
from mmpolicy.host.step import Step


class Changes:
    """What a run needs of both."""

    def __init__(self, policies: PolicyArms | None, knobs: Knobs) -> None:
        self.policies = policies
        self.knobs = knobs
        self.lease_ms = int(knobs.lease_s * 1000)
        self.timing = bool(policies and policies.timing)

    @property
    def arms(self) -> dict[str, Settings]:
        """Return policies and their knobs, of each arm."""
        return self.policies.arms if self.policies else {}

    @property
    def units(self) -> dict[str, str]:
        """Return the arm of each cgroup that is a unit, in a block of split."""
        return self.policies.units if self.policies else {}

    @property
    def profiles(self) -> dict[str, str]:
        """Map each arm to the profile whose counters it uses."""
        return PROFILES if self.policies else dict.fromkeys(PROFILES, DEFAULT)

    @property
    def scope(self) -> Scope:
        """Return what takes part."""
        return self.policies.scope if self.policies else Scope(self.knobs.tree)

    def settings(self, arm: str) -> dict[str, str]:
        """Return all of an arm, by name."""
        of_policies = {key.inside: value for key, value in self.arms.get(arm, {}).items()}
        of_kernel = self.knobs.arms[arm].items()
        return of_policies | {names_of(path)[0]: value for path, value in of_kernel}

    def rehearsal(self, unit: str) -> Iterator[Step]:
        """Yield the writes that begin the experiment."""
        yield from self.policies.rehearsal(unit) if self.policies else ()
        yield from self.knobs.rehearsal()

    def set_up(self, unit: str) -> None:
        """Make the arms."""
        if self.policies:
            self.policies.set_up(unit)
        self.knobs.set_up()

    def equip(self, phase: str) -> None:
        """Give each arm its settings; in the A/A phase, both those of the control."""
        if self.policies:
            self.policies.equip(phase)

    def enter(self, block: Block) -> None:
        """Begin a block."""
        self.knobs.enter(block)
        if self.policies:
            self.policies.enter(block)

    def renew(self) -> None:
        """Renew the lease, if it is still ours to renew."""
        self.knobs.renew()
        if self.policies:
            self.policies.renew()

    def look_after(self, restarting: bool) -> None:
        """End the run if what takes part is gone."""
        if self.policies:
            self.policies.look_after(restarting)

    def restore(self) -> str:
        """Go back; return what is to be told about it, if anything is."""
        notes = [self.knobs.restore(), self.policies.restore() if self.policies else ""]
        return "; ".join(filter(None, notes))
