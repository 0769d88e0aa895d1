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
# file with the values to which kernel knobs are restored if `ab run` is killed
RECOVERY = "/run/mmpolicy/knobs.json"
# file with the progress of the running experiment, for other commands
LIVE = "/run/mmpolicy/ab.json"
FOLDER = "/var/lib/mmpolicy/ab"  # directory for the samples of detached runs
RESTORE = "ab restore, pid "
RUN = "ab run, pid "  # beginning of the text in the lock file while `ab run` holds the lock
BENCH = "bench, pid "
PROFILES = {"control": "ab-control", "treatment": "ab-treatment"}
# seconds to wait until a running experiment has restored its settings and ended, and seconds
# between checks of that
PATIENCE_S, LOOK_AGAIN_S = 60.0, 0.1


def is_ours(key: Key) -> bool:
    """Return whether an entry of the state is reserved for the experiment."""
    if isinstance(key, Profile):
        return key.name in PROFILES.values()
    if isinstance(key, Setting):
        return key.profile in PROFILES.values()
    return isinstance(key, (ExperimentFile, Lease))


def running(tree: Tree) -> str:
    """Return the process that runs an experiment, as text such as `ab run, pid 7`; "" if none
    does.
    """
    holder = tree.holder(LOCK)
    return holder if holder.startswith((RUN, BENCH)) else ""


def live(tree: Tree) -> dict[str, Any]:
    """Return the progress that the running experiment has recorded; {} if none runs."""
    if not running(tree).startswith(RUN):
        return {}
    return tree.record(LIVE)


def declared(tree: Tree, now: State, target: State) -> State:
    """Return a target state in which all entries of a running experiment have their present values,
    so that applying the target does not disturb the experiment.

    The same holds for bindings that `try --watch` has removed for one block.
    """
    target = wanted_now(tree, target)
    if not running(tree) or not has_arms(now):
        return target
    rest = {key: value for key, value in target.items() if not is_ours(key)}
    return rest | {key: value for key, value in now.items() if is_ours(key)}


def has_arms(state: State) -> bool:
    """Return whether a state has the profiles of an experiment: the experiment then compares
    policies, and not only the kernel's own knobs.
    """
    return any(Profile(name) in state for name in PROFILES.values())


def in_the_way(who: str) -> Error:
    """Return the error for a change that would end a running experiment."""
    text = f"this change would end a running experiment: {who}"
    return Error(
        text,
        Exit.EXPERIMENT,
        "wait until the experiment ends; --force ends it first, and restores its settings",
    )


def end_it(tree: Tree) -> None:
    """Ask the running experiment to end, and wait until it has restored its settings."""
    who = running(tree)
    pid = re.match(rf"(?:{RUN}|{BENCH})(\d+)", who)
    if not pid:
        return
    with suppress(ProcessLookupError):
        os.kill(int(pid[1]), signal.SIGTERM)
    end = time.monotonic() + PATIENCE_S
    while running(tree) == who:
        if time.monotonic() > end:
            text = f"the experiment still runs after SIGTERM: {who}"
            raise Error(text, Exit.EXPERIMENT, f"kill -KILL {pid[1]}, then mmpolicy reset")
        time.sleep(LOOK_AGAIN_S)
