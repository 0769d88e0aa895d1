# SPDX-License-Identifier: GPL-2.0
"""The experiment of `ab run`: its process, and the settings reserved for it."""

from __future__ import annotations

import os
import re
import signal
import time
from contextlib import suppress
from typing import Any

from mmpolicy.control.keys import ExperimentFile, Key, Lease, Profile, Setting, State
from mmpolicy.control.watched import wanted_now
from mmpolicy.errors import Error, Exit
from mmpolicy.host.files import Tree

LOCK = "/run/mmpolicy/ab.lock"
RECOVERY = "/run/mmpolicy/knobs.json"  # knobs to restore if the run is killed
LIVE = "/run/mmpolicy/ab.json"  # where the run is now
FOLDER = "/var/lib/mmpolicy/ab"  # samples of runs that have no terminal
RESTORE = "ab restore, pid "
RUN = "ab run, pid "  # prefix of the text in the lock
BENCH = "bench, pid "
PROFILES = {"control": "ab-control", "treatment": "ab-treatment"}
PATIENCE_S, LOOK_AGAIN_S = 60.0, 0.1  # for its way back


def is_ours(key: Key) -> bool:
    """Tell if a setting is reserved for the run."""
    if isinstance(key, Profile):
        return key.name in PROFILES.values()
    if isinstance(key, Setting):
        return key.profile in PROFILES.values()
    return isinstance(key, (ExperimentFile, Lease))


def running(tree: Tree) -> str:
    """Return the process that runs an experiment, in words; empty if there is none."""
    holder = tree.holder(LOCK)
    return holder if holder.startswith((RUN, BENCH)) else ""


def live(tree: Tree) -> dict[str, Any]:
    """Return the progress of the run; None if no run is in progress, or it is unknown."""
    if not running(tree).startswith(RUN):
        return {}
    return tree.record(LIVE)


def declared(tree: Tree, now: State, target: State) -> State:
    """Return a target in which a run of this command has its own, whatever a manifest says."""
    target = wanted_now(tree, target)
    if not running(tree) or not has_arms(now):
        return target
    rest = {key: value for key, value in target.items() if not is_ours(key)}
    return rest | {key: value for key, value in now.items() if is_ours(key)}


def has_arms(state: State) -> bool:
    """Tell if an experiment has policies as its arms, and not only knobs of the kernel itself."""
    return any(Profile(name) in state for name in PROFILES.values())


def in_the_way(who: str) -> Error:
    """Return the error for a change that would end a run."""
    text = f"an experiment runs, which this would end: {who}"
    return Error(text, Exit.EXPERIMENT, "wait for its end; --force ends it, and goes back first")


def end_it(tree: Tree) -> None:
    """Ask the run to end, and wait until it has gone back."""
    who = running(tree)
    pid = re.match(rf"(?:{RUN}|{BENCH})(\d+)", who)
    if not pid:
        return
    with suppress(ProcessLookupError):
        os.kill(int(pid[1]), signal.SIGTERM)
    end = time.monotonic() + PATIENCE_S
    while running(tree) == who:
        if time.monotonic() > end:
            text = f"the experiment does not end: {who}"
            raise Error(text, Exit.EXPERIMENT, f"kill -KILL {pid[1]}, then mmpolicy reset")
        time.sleep(LOOK_AGAIN_S)
