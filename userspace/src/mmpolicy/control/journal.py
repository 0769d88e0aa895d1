# SPDX-License-Identifier: GPL-2.0
"""What is kept on disk: the last change, so that it can be reverted, and the last manifest."""

import json
from datetime import UTC, datetime
from typing import Any

from mmpolicy.control.change import Done
from mmpolicy.control.state import State, differences
from mmpolicy.errors import Error, Exit
from mmpolicy.host.files import Tree

FOLDER = "/var/lib/mmpolicy"
LAST = f"{FOLDER}/last.json"
APPLIED = f"{FOLDER}/applied.toml"
VERSION = 1


def record(tree: Tree, command: str, done: Done) -> None:
    """Keep a change, unless it changed nothing."""
    if not differences(*done):
        return
    time = datetime.now(UTC).isoformat(timespec="seconds")
    entry = {"version": VERSION, "command": command, "time": time, "boot": _boot(tree)}
    tree.keep(LAST, json.dumps(entry | done._asdict(), indent=1) + "\n")


def _boot(tree: Tree) -> str:
    return tree.read("/proc/sys/kernel/random/boot_id")


def last_change(tree: Tree) -> tuple[dict[str, Any], Done]:
    """Return what is known of the last change since boot, and the change."""
    hint = "mmpolicy apply FILE, or set, goes to a state of your choice"
    if not tree.exists(LAST):
        raise Error(f"no change is known: there is no {tree.real(LAST)}", Exit.FAILED, hint)
    try:
        entry = json.loads(tree.read(LAST))
        done = Done(entry["before"], entry["after"])
        known = entry["version"] == VERSION
    except (ValueError, KeyError, TypeError) as err:
        raise Error(f"{tree.real(LAST)} is damaged: {err!r}", Exit.FAILED, hint) from err
    if not known:
        text = f"{tree.real(LAST)} has version {entry['version']}, this tool knows {VERSION}"
        raise Error(text, Exit.FAILED, hint)
    if entry["boot"] != _boot(tree):
        text = f"the last change, '{entry['command']}' of {entry['time']}, was before the boot"
        raise Error(text, Exit.FAILED, hint)
    return entry, done


def undo(done: Done, now: State) -> tuple[State, list[str]]:
    """Return now without the change, and the keys that somebody has changed since.

    What the change did not touch stays as it is now, whoever set it.
    """
    target, conflicts = dict(now), []
    for key in differences(*done):
        old = done.before.get(key)
        if now.get(key) not in (old, done.after.get(key)):
            conflicts.append(key)
        target.pop(key, None)
        if old is not None:
            target[key] = old
    return target, conflicts
