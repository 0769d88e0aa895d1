# SPDX-License-Identifier: GPL-2.0
"""Records of `try`: a file for each trial, which says how far it came.

A record is written before the first change, before a setting is kept, and at the end. A trial
that was killed leaves its last record behind, and the lock tells that no process works on it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from mmpolicy.control.keys import CgroupBinding, Profile, UnitBinding
from mmpolicy.control.notices import Notice, knobs_left
from mmpolicy.control.state import read_state
from mmpolicy.errors import Error, Exit
from mmpolicy.host.cgroups import cgroup_id
from mmpolicy.host.files import Tree
from mmpolicy.host.knobs import Values, read_knob

FOLDER = "/var/lib/mmpolicy/try"
LOCK = "/run/mmpolicy/try.lock"
SYSTEMD = "/run/systemd/system"  # is there where systemd runs the host
BOOT_FILE = "/etc/tmpfiles.d/mmpolicy-sizes.conf"  # sets the sizes that are kept
RUN = "try, pid "  # prefix of the text in the lock
VERSION = 1
RUNNING, KEEPING, KEPT, BACK = "running", "keeping", "kept", "back"  # phases
CUT_OFF, HALF_KEPT, CHANGED = "cut off", "half kept", "changed since"
LEFT = "not put back"


@dataclass(frozen=True)
class Trial:
    """One trial, as far as it came."""

    name: str
    started: str
    cgroup: str
    unit: str  # empty for a cgroup of no service
    candidate: str
    treatment: str
    file: str  # of the samples
    rule: str
    phase: str = RUNNING
    profile: str = ""  # that is kept
    exit: int = 0
    page: tuple[str, ...] = ()
    undo: str = ""
    sizes: Values = field(default_factory=dict)  # of the kernel's own that are kept

    @property
    def path(self) -> str:
        """Return its file."""
        return f"{FOLDER}/{self.name}.json"

    def keep(self, tree: Tree, **changes: Any) -> Trial:
        """Write it down with some changes, and return that."""
        new = replace(self, **changes)
        tree.keep(self.path, json.dumps({"version": VERSION, **asdict(new)}, indent=1), 0o644)
        return new


def running(tree: Tree) -> str:
    """Return the process that tries something, in words; empty if there is none."""
    holder = tree.holder(LOCK)
    return holder if holder.startswith(RUN) else ""


def read_trials(tree: Tree) -> list[Trial]:
    """Return all trials of this host, the oldest first; a file that is no record is left out."""
    found = []
    for file in tree.names(FOLDER) if tree.is_dir(FOLDER) else ():
        record = tree.record(f"{FOLDER}/{file}") if file.endswith(".json") else {}
        if record.pop("version", None) != VERSION:
            continue
        try:
            found.append(Trial(**record | {"page": tuple(record.get("page", ()))}))
        except TypeError:
            continue
    return sorted(found, key=lambda each: each.name)


def standing(tree: Tree, trial: Trial) -> str:
    """Return what is in force of a trial now: a phase, or how the host differs from it."""
    if trial.phase == BACK:
        return BACK
    if trial.phase in (RUNNING, KEEPING) and running(tree):
        return trial.phase
    if trial.phase in (RUNNING, KEEPING) and knobs_left(tree):
        return LEFT
    if trial.phase == RUNNING:
        return CUT_OFF
    parts = _parts_kept(tree, trial)
    if all(parts):
        return KEPT
    if trial.phase == KEPT:
        return CHANGED
    return HALF_KEPT if any(parts) else CUT_OFF


def _parts_kept(tree: Tree, trial: Trial) -> list[bool]:
    """Tell of each part of a setting that was to be kept if it is there."""
    if trial.sizes:
        values = (tree.exists(path) and read_knob(tree, path) == value
                  for path, value in trial.sizes.items())  # fmt: skip
        return [tree.exists(BOOT_FILE), *values]
    try:
        state = read_state(tree)
    except Error:  # the module is not loaded
        return [False]
    parts = [Profile(trial.profile) in state]
    if trial.unit:
        parts.append(state.get(UnitBinding(trial.unit)) == trial.profile)
    number = cgroup_id(tree, trial.cgroup)
    if number:  # else the service does not run now
        parts.append(state.get(CgroupBinding(number)) == trial.profile)
    return parts


def drifted(tree: Tree) -> Notice | None:
    """Return a notice if sizes of the kernel are neither as before the last trial, nor as kept."""
    if left := knobs_left(tree):
        return left
    for trial in read_trials(tree)[-1:]:
        parts = _parts_kept(tree, trial) if trial.sizes else []
        if any(parts) and not all(parts) and not running(tree):
            text = f"sizes of folios that {trial.name} keeps are no longer all in force"
            return Notice("sizes_drifted", text, trial.undo or "mmpolicy try --status")
    return None


def withdraw(tree: Tree) -> None:
    """Take a trial back that was killed while it kept its sizes, which have been restored."""
    for trial in read_trials(tree)[-1:]:
        if trial.sizes and trial.phase == KEEPING:
            if tree.exists(BOOT_FILE):
                tree.drop(BOOT_FILE)
            page = (*trial.page, "decision   back as it was: it was killed while it kept the sizes")
            trial.keep(tree, phase=BACK, page=page, exit=int(Exit.FAILED))
