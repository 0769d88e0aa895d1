# SPDX-License-Identifier: GPL-2.0
"""The changes that an experiment makes to the state of the module, and their rollback."""

from __future__ import annotations

from collections.abc import Iterable

from mmpolicy.ab.arms import Settings
from mmpolicy.ab.design import SATURATION, Block
from mmpolicy.ab.run.scope import NOWHERE, Scope
from mmpolicy.ab.run.units import arms_of, balanced
from mmpolicy.control.change import StateChange, steps_of, undo
from mmpolicy.control.experiment import PROFILES, is_ours
from mmpolicy.control.keys import (
    CONTROL_ARM,
    DEFAULT,
    ENABLED,
    LEASE,
    PERCENT,
    SCOPE,
    SEED,
    TIMES,
    TREATMENT_ARM,
    UNIT,
    Profile,
    State,
)
from mmpolicy.control.model import check_loaded, is_as_created
from mmpolicy.control.state import Write, plan, read_state, settings_of, without_gone
from mmpolicy.errors import Error, Exit
from mmpolicy.host.files import CONTROL, Tree
from mmpolicy.host.step import Step

# Percentage of treated units in a block, by the arm of the block. The key "" stands for a block of
# split, which runs both arms at once.
SHARES = {"": "50", "control": "0", "treatment": "100"}


class StoppedError(Exception):
    """Ends a run early. status: "guard", "interrupted", "lost" or "failed"; reason: as text."""

    def __init__(self, status: str, reason: str, arm: str = "") -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.arm = arm  # the arm in which the reason arose; "" if it concerns both


class PolicyArms:
    """Sets up the experiment in the kernel module and switches its arms. Each step writes only the
    settings that differ from those before.
    """

    def __init__(
        self, tree: Tree, arms: dict[str, Settings], lease_ms: int, scope: Scope, timing: bool
    ) -> None:
        self.tree = tree
        self.arms = arms
        self.lease_ms = lease_ms
        self.scope = scope
        self.timing = timing  # whether the module has to time page faults
        self.before = self.state = read_state(tree)
        self.fresh: Settings = {}  # the settings that a new profile has
        self.units: dict[str, str] = {}  # the arm of each cgroup in this block of split
        # seed of a block -> a seed with which the kernel gives each arm the same share of units
        self.drawn: dict[int, int] = {}
        self.levels = (10, 90)  # percentages of treated units in the phase "saturation": few, many
        self._check()

    def _check(self) -> None:
        """Raise an error if no run may begin: the module's lease has expired, the module is too
        old, or an experiment is set up already.
        """
        if check_loaded(self.tree) == "expired":
            hint = "mmpolicy reset acknowledges it; then start the experiment again"
            raise Error(
                "the lease of the policies has expired, so all points stay at stock until that is "
                "acknowledged, and no experiment can start",
                Exit.FAILED,
                hint,
            )
        if ENABLED not in self.before:
            text = (
                f"no {self.tree.real(CONTROL)}/experiment: the loaded module is older than "
                "this command, and has no experiments"
            )
            raise Error(
                text,
                Exit.LACKING,
                "install the module of the same version as the command, then mmpolicy "
                "unload, mmpolicy load",
            )
        if self.before[ENABLED] != "0":
            hint = f"mmpolicy ab stop ends it; if no process runs it: echo 0 >{ENABLED.path}"
            raise Error("an experiment is enabled in the kernel already", Exit.FAILED, hint)
        for profile in PROFILES.values():
            if Profile(profile) in self.before:
                hint = f"if no experiment runs: mmpolicy profile delete {profile}"
                raise Error(
                    f"the profile {profile}, which an experiment creates for its arms, "
                    "exists already",
                    Exit.FAILED,
                    hint,
                )
        self.scope.refuse_bound(self.before)

    def foundation(self, unit: str) -> State:
        """Return the state of the module at the beginning of the run: each arm has an empty
        profile, and the lease is set, but the experiment is still disabled.
        """
        state: State = self.before | {Profile(name): "" for name in PROFILES.values()}
        state |= {CONTROL_ARM: PROFILES["control"], TREATMENT_ARM: PROFILES["treatment"]}
        if TIMES in self.before:  # older modules lack this file, and time faults in each experiment
            state |= {TIMES: str(int(self.timing))}
        return state | {UNIT: unit, SCOPE: self.scope.number, LEASE: str(self.lease_ms)}

    def rehearsal(self, unit: str) -> Iterable[Step]:
        """Return the writes with which the experiment would begin, for a dry run."""
        state: State = self.foundation(unit) | {ENABLED: "1"}
        for arm, profile in PROFILES.items():
            state |= {
                key.of(profile): value
                for key, value in self.arms[arm].items()
                if not is_as_created(self.tree, key, value)
            }
        return steps_of(self.before, plan(self.before, state))

    def set_up(self, unit: str) -> None:
        """Create the profiles of both arms, and read the settings that a new profile has."""
        self.go(self.foundation(unit))
        self.state = read_state(self.tree)
        fresh = settings_of(self.state, PROFILES["control"])
        self.fresh = {key.of(DEFAULT): value for key, value in fresh.items()}

    def go(self, state: State) -> None:
        """Write the settings that differ between the present state of the module and a new one. If
        the kernel refuses a write, read the state that it has now, and raise the error.
        """
        try:
            for write in plan(self.state, state):
                self.tree.write(write.path, write.value)
        except Error:
            self.state = read_state(self.tree)
            raise
        self.state = state

    def host_settings(self, arm: str) -> State:
        """Return an arm's settings for points that apply to the whole host. They are keys of the
        default profile, as only it has these points.
        """
        keys = {key for each in self.arms.values() for key in each} - set(self.fresh)
        return {
            key: self.arms[arm].get(key, self.before[key]) for key in keys if key in self.before
        }

    def equip(self, phase: str) -> None:
        """Write the settings of the profiles; in the A/A phase, both arms get the control's."""
        state = dict(self.state)
        for arm, profile in PROFILES.items():
            settings = self.arms["control" if phase == "aa" else arm]
            for key, value in (self.fresh | settings).items():
                if key in self.fresh:
                    state[key.of(profile)] = value
        self.go(state)

    def enter(self, block: Block) -> None:
        """Begin a block and enable the experiment. The block sets the percentage of treated units
        and, in switchback, the settings of the points that apply to the whole host.
        """
        state: State = self.state | {PERCENT: SHARES[block.arm], ENABLED: "1"}
        if block.phase == SATURATION or not block.arm:
            self._draw(block, state)
        else:
            arm = "control" if block.phase == "aa" else block.arm
            state |= self.host_settings(arm)
        self.go(state)

    def _draw(self, block: Block, state: State) -> None:
        """Put seed and percentage of treated units for a block with both arms into `state`.

        In the phase "saturation", the few treated units are also among the many, so only the
        percentage of treated units differs.
        """
        if self.host_settings("control") != self.host_settings("treatment"):
            text = (
                "the arms differ in a setting of the whole host, but --design split runs "
                "both arms at once"
            )
            raise Error(text, Exit.USAGE, "give --design switchback")
        share, most = 50, 50
        if block.phase == SATURATION:
            share, most = self.levels[block.arm == "treatment"], self.levels[1]
        seed, self.units = block.seed, {}
        if self.state[UNIT] == "cgroup":
            units = self.scope.units(self.state)
            if block.seed not in self.drawn:
                self.drawn = {block.seed: balanced(units, block.seed, most)}
            seed = self.drawn[block.seed]
            self.units = arms_of(units, seed, share)
        state |= {SEED: str(seed), PERCENT: str(share)}

    def renew(self) -> None:
        """Renew the lease; raise StoppedError if the lease has expired, or if another command has
        ended the experiment.
        """
        # Read `enabled` before the state: if the lease expires between the two reads, the state
        # shows it, and is not taken for the work of another command.
        enabled = self.tree.read(ENABLED.path)
        if check_loaded(self.tree) == "expired":
            text = (
                "the lease of the experiment has expired, so the kernel is at stock; "
                "mmpolicy reset acknowledges it"
            )
            raise StoppedError("lost", text)
        if enabled != self.state[ENABLED]:
            raise StoppedError("lost", "another command has ended the experiment")
        self.tree.write(LEASE.path, str(self.lease_ms))

    def look_after(self, restarting: bool) -> None:
        """Raise StoppedError if the cgroup of the experiment was removed. If restarting is True, a
        command is restarting the service: continue with its new cgroup as soon as that exists.
        """
        if not self.scope.gone:
            return
        if not restarting:
            text = f"cgroup {self.scope.path} was removed, maybe by a restart of its service"
            raise StoppedError(
                "lost", f"{text}; --at-switch permits a restart at the start of each block"
            )
        again = self.scope.again()
        if again.number != NOWHERE:
            self.scope = again
            self.go(self.state | {SCOPE: again.number})

    def halt(self) -> None:
        """Disable the experiment, so that both arms are at stock before the rollback reads the
        state.
        """
        host = settings_of(self.before, DEFAULT)
        if self.state[ENABLED] == "1":
            self.go(self.state | host | {ENABLED: "0"})
            self.tree.write(LEASE.path, str(self.lease_ms))  # this leaves time for the rollback

    def way_back(self) -> list[Write]:
        """Return the writes that restore the module's state from before the run. A setting that
        another process has changed meanwhile is left as it is.
        """
        now = read_state(self.tree)
        target, conflicts = undo(StateChange(self.before, self.state), now)
        for key in conflicts:
            if key in now and not is_ours(key):
                target[key] = now[key]
        return plan(now, without_gone(self.tree, now, target))

    def restore(self) -> str:
        """Restore the state from before the run; if a write fails, reset the module to stock.
        Return a warning as text, or "".
        """
        if not self.tree.is_dir(CONTROL):
            return "the module was unloaded, so the kernel is at stock"
        if check_loaded(self.tree) == "expired":
            return "the lease has expired, so the kernel is at stock"
        try:
            self.halt()
            for write in self.way_back():
                self.tree.write(write.path, write.value)
        except Error as err:
            self.tree.write(f"{CONTROL}/reset", "1")
            return (
                "the kernel is at stock now, as the former state could not be "
                f"restored: {err.message}"
            )
        if check_loaded(self.tree) == "expired":
            return (
                "the kernel is at stock, as the lease expired before the former state was restored"
            )
        return ""
