# SPDX-License-Identifier: GPL-2.0
"""Records of `try`: each trial has a file with its progress.

A record is written before the first change, before a setting is kept, and at the end. If the
process is killed, its record stays in the phase `running` or `keeping`, and the kernel releases its
lock. So such a phase without a held lock means that the trial was interrupted.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from mmpolicy.control.keys import MANIFESTS, CgroupBinding, Profile, UnitBinding
from mmpolicy.control.notices import Notice, knobs_left
from mmpolicy.control.state import read_state
from mmpolicy.control.watched import is_left_at_stock, watched_of
from mmpolicy.errors import Error, Exit
from mmpolicy.host.cgroups import cgroup_id
from mmpolicy.host.files import Tree
from mmpolicy.host.knobs import Values, read_knob

FOLDER = "/var/lib/mmpolicy/try"
LOCK = "/run/mmpolicy/try.lock"
SYSTEMD = "/run/systemd/system"  # directory that exists if systemd runs this host
# file by which systemd sets the folio sizes that a trial has kept, at each boot
BOOT_FILE = "/etc/tmpfiles.d/mmpolicy-sizes.conf"
RUN = "try, pid "  # beginning of the text in the lock file while a trial holds the lock
VERSION = 1
# beginning of the line of a trial's report that says what the trial has decided
DECISION = "decision   "
# beginning of the lines of a trial's report that have the effect on a metric
EFFECT = "metric     "
MAINTAIN = "mmpolicy-maintain.service"
ENABLED = f"/etc/systemd/system/multi-user.target.wants/{MAINTAIN}"
RUNNING, KEEPING, KEPT, BACK = "running", "keeping", "kept", "back"  # phases of a trial
# also a phase: the candidate ran once, and its effect is kept; there is no setting to keep
DONE = "done once"
# also a phase: the trial ended before its first block, or before its verb had worked
UNTOUCHED = "changed nothing"
CUT_OFF, HALF_KEPT, CHANGED = "cut off", "half kept", "changed since"
LEFT = "not put back"
# `try --watch` was killed while it compared the kept setting with stock, so the service is at stock
AT_STOCK = "at stock"


@dataclass(frozen=True)
class Trial:
    """The record of one trial and its progress."""

    name: str
    started: str
    cgroup: str
    unit: str  # systemd unit of the cgroup; "" if it belongs to no service
    candidate: str
    treatment: str
    file: str  # path of the file with the samples
    rule: str
    phase: str = RUNNING
    profile: str = ""  # profile that the trial has kept; "" if it has kept none
    exit: int = 0
    page: tuple[str, ...] = ()
    undo: str = ""
    # folio sizes of the kernel that the trial has kept
    sizes: Values = field(default_factory=dict)
    maintained: bool = False  # True if the trial has kept `maintain`, by a manifest
    # for a trial that measures before and after: its phase as text, and the latest time by
    # Host.clock() at which its measurements end; 0 while the verb works
    doing: str = ""
    until: float = 0.0

    @property
    def path(self) -> str:
        """Return the path of the trial's record."""
        return f"{FOLDER}/{self.name}.json"

    @property
    def decision(self) -> tuple[str, ...]:
        """Return the lines of the trial's report from the last decision on; () before a
        decision.
        """
        begins = [at for at, line in enumerate(self.page) if line.startswith(DECISION)]
        return self.page[begins[-1] :] if begins else ()

    @property
    def effects(self) -> tuple[str, ...]:
        """Return the lines of the trial's report that have an effect with its interval."""
        return tuple(line for line in self.page if line.startswith(EFFECT))

    @property
    def manifest(self) -> str:
        """Return the path of the manifest by which a boot restores the kept setting."""
        return file_of(self.profile)

    def keep(self, tree: Tree, **changes: Any) -> Trial:
        """Write the record with some fields changed, and return it."""
        new = replace(self, **changes)
        tree.keep_record(self.path, VERSION, asdict(new))
        return new


def file_of(profile: str) -> str:
    """Return the path of the manifest by which a boot restores the setting that a trial has kept
    in this profile.
    """
    return f"{MANIFESTS}/50-try-{profile}.toml"


def running(tree: Tree) -> str:
    """Return the process that runs a trial, as text such as `try, pid 7`; "" if none does."""
    holder = tree.holder(LOCK)
    return holder if holder.startswith(RUN) else ""


def read_trials(tree: Tree) -> list[Trial]:
    """Return all trials of this host, the oldest first; skip files that are not records."""
    found = []
    for record in tree.records(FOLDER, VERSION):
        try:
            found.append(Trial(**record | {"page": tuple(record.get("page", ()))}))
        except TypeError:
            continue
    return sorted(found, key=lambda each: each.name)


def standing(tree: Tree, trial: Trial) -> str:
    """Return the phase of a trial; if the host no longer agrees with it, return how, such as
    CUT_OFF.
    """
    if trial.phase in (BACK, DONE, UNTOUCHED):
        return trial.phase
    if trial.phase in (RUNNING, KEEPING) and running(tree):
        return trial.phase
    if trial.phase in (RUNNING, KEEPING) and knobs_left(tree):
        return LEFT
    if trial.phase == RUNNING:
        return CUT_OFF
    watched = watched_of(tree, trial.name)
    if watched and watched.at_stock and watched.running(tree):
        # the service is at stock just for one block of a comparison, so the setting counts as kept
        return KEPT
    parts = _parts_kept(tree, trial)
    if all(parts):
        return KEPT
    if watched and is_left_at_stock(tree, watched):
        return AT_STOCK
    if trial.phase == KEPT:
        return CHANGED
    return HALF_KEPT if any(parts) else CUT_OFF


def _parts_kept(tree: Tree, trial: Trial) -> list[bool]:
    """Return for each part of a setting that a trial has kept, such as a binding, whether it is in
    force.
    """
    if trial.sizes:
        values = (tree.exists(path) and read_knob(tree, path) == value
                  for path, value in trial.sizes.items())  # fmt: skip
        return [tree.exists(BOOT_FILE), *values]
    return [there for there, _ in _parts_of_setting(tree, trial)]


def _parts_of_setting(tree: Tree, trial: Trial) -> Iterator[tuple[bool, str]]:
    """Yield for each part of a setting that a trial has kept, such as a binding, whether it is in
    force, and the command that undoes it.

    Unloading the module removes the profile, but neither its file nor the binding of a unit.
    """
    if trial.maintained:
        yield tree.exists(trial.manifest), f"rm {tree.real(trial.manifest)}"
        yield tree.exists(ENABLED), ""
        return
    try:
        state = read_state(tree)
    # the module is not loaded, so its state cannot be read, and no part of it counts as in force
    except Error:
        state = {}
    unit, number = trial.unit, cgroup_id(tree, trial.cgroup)
    if unit:
        bound = state.get(UnitBinding(unit)) == trial.profile
        yield bound, f"mmpolicy unbind --unit {shlex.quote(unit)}"
    if number:  # the number is 0 while the service does not run
        there = state.get(CgroupBinding(number)) == trial.profile
        command = f"mmpolicy unbind --cgroup {shlex.quote(trial.cgroup)}"
        yield there, "" if unit and bound else command
    yield Profile(trial.profile) in state, f"mmpolicy profile delete {trial.profile}"
    yield tree.exists(trial.manifest), f"rm {tree.real(trial.manifest)}"


def undo_of(tree: Tree, trial: Trial) -> str:
    """Return the commands that undo those parts of a kept setting that are in force."""
    if trial.sizes:
        return trial.undo
    parts = _parts_of_setting(tree, trial)
    return " && ".join(command for there, command in parts if there and command)


def drifted(tree: Tree) -> Notice | None:
    """Return a notice if only some of the folio sizes that the last trial has kept are still in
    force.
    """
    if left := knobs_left(tree):
        return left
    for trial in read_trials(tree)[-1:]:
        parts = _parts_kept(tree, trial) if trial.sizes else []
        if any(parts) and not all(parts) and not running(tree):
            text = f"some folio sizes that {trial.name} keeps are no longer in force"
            return Notice("sizes_drifted", text, trial.undo or "mmpolicy try --status")
    return None


def withdraw(tree: Tree) -> None:
    """Record the last trial as undone, if it was killed while it set the folio sizes to keep; the
    caller has restored the former sizes.
    """
    for trial in read_trials(tree)[-1:]:
        if trial.sizes and trial.phase == KEEPING:
            if tree.exists(BOOT_FILE):
                tree.drop(BOOT_FILE)
            page = (
                *trial.page,
                "decision   not kept: the trial was killed while it set the "
                "sizes; the former sizes are restored",
            )
            trial.keep(tree, phase=BACK, page=page, exit=int(Exit.FAILED), undo="")
