# SPDX-License-Identifier: GPL-2.0
"""What is kept on disk: every change, so that it can be told of and reverted."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from mmpolicy.control.change import Done
from mmpolicy.control.keys import State, from_record, to_record
from mmpolicy.control.labels import label_of, shown, telling_keys
from mmpolicy.control.state import changed_keys
from mmpolicy.errors import Error, Exit
from mmpolicy.host.files import Tree

FOLDER = "/var/lib/mmpolicy"
JOURNAL = f"{FOLDER}/journal.jsonl"
APPLIED = f"{FOLDER}/applied.toml"
VERSION = 2
MOST_BYTES, KEPT = 4 << 20, 1000  # beyond so many bytes, only the last entries stay
UNSET = "4294967295"  # the login uid of what nobody has logged in for
HINT = "mmpolicy apply FILE, or set, goes to a state of your choice"


@dataclass(frozen=True)
class Entry:
    """One change, of which only what it has changed is kept."""

    number: int
    time: str
    boot: str
    command: str
    who: dict[str, int]
    done: Done
    note: str = ""

    def line(self) -> str:
        """Return it for the log of the system."""
        return f"{self.command} by {self.people()}: {'; '.join(self.told()) or self.note}"

    def people(self) -> str:
        """Return who made it."""
        return ", ".join(f"{name} {number}" for name, number in self.who.items())

    def told(self) -> list[str]:
        """Return what changed, in words."""
        before, after = self.done
        return [
            f"{label_of(key)}: {shown(key, before.get(key))} -> {shown(key, after.get(key))}"
            for key in telling_keys(*self.done)
        ]

    def to_json(self) -> str:
        """Return it as a line of the journal."""
        before, after = self.done
        changes = [
            {**to_record(key), "before": before.get(key), "after": after.get(key)}
            for key in changed_keys(*self.done)
        ]
        fields = {**vars(self), "version": VERSION, "changes": changes}
        del fields["done"]
        return json.dumps(fields)


def _from_json(line: str) -> Entry:
    fields = json.loads(line)
    version, changes = fields.pop("version"), fields.pop("changes")
    if version != VERSION:
        raise ValueError(f"version {version}, this tool knows {VERSION}")
    before: State = {}
    after: State = {}
    for change in changes:
        values = change.pop("before"), change.pop("after")
        key = from_record(change)
        for state, value in zip((before, after), values, strict=True):
            if value is not None:
                state[key] = _text(value)
    return Entry(done=Done(before, after), **fields)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _boot(tree: Tree) -> str:
    return tree.read("/proc/sys/kernel/random/boot_id")


def _who(tree: Tree) -> dict[str, int]:
    """Return who acts: the user, and whom sudo and the login know."""
    login = "/proc/self/loginuid"
    found = {
        "uid": str(os.getuid()),
        "sudo uid": os.environ.get("SUDO_UID", ""),
        "login uid": tree.read(login) if tree.exists(login) else "",
    }
    return {name: int(uid) for name, uid in found.items() if uid.isdigit() and uid != UNSET}


def read_journal(tree: Tree) -> list[Entry]:
    """Return all changes that are known, the oldest first.

    A line that a crash has cut off is passed over, unless it is the last one: what it was about
    is not known then.
    """
    if not tree.exists(JOURNAL):
        return []
    lines = tree.read_bytes(JOURNAL).decode(errors="replace").splitlines()
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(_from_json(line))
        except (ValueError, LookupError, TypeError, AttributeError, Error) as err:
            if isinstance(err, json.JSONDecodeError) and number < len(lines):
                continue
            text = f"{tree.real(JOURNAL)}, line {number}, is damaged: {err}"
            raise Error(text, Exit.FAILED, f"{HINT}; then remove the file") from err
    return found


def record(tree: Tree, command: str, done: Done, note: str = "") -> Entry | None:
    """Keep a change, unless there is nothing to tell of it."""
    keys = changed_keys(*done)
    if not keys and not note:
        return None
    parts = Done(*({key: state[key] for key in keys if key in state} for state in done))
    time = datetime.now(UTC).isoformat(timespec="seconds")
    number = _last_number(tree) + 1
    entry = Entry(number, time, _boot(tree), command, _who(tree), parts, note)
    tree.append(JOURNAL, entry.to_json())
    return entry


def _last_number(tree: Tree) -> int:
    """Return the number of the last change, 0 without one; forget the oldest if it is time to."""
    if not tree.exists(JOURNAL):
        return 0
    text = tree.read_bytes(JOURNAL).decode(errors="replace")
    lines = text.splitlines()
    if len(text) > MOST_BYTES:
        tree.keep(JOURNAL, "".join(f"{line}\n" for line in lines[-KEPT:]))
    for line in reversed(lines):
        try:
            return int(json.loads(line)["number"])
        except (ValueError, LookupError, TypeError):
            continue
    return 0


def last_changes(tree: Tree, after: int | None) -> tuple[list[Entry], Done]:
    """Return the last change, or all after the one of that number, and what they did together."""
    known = read_journal(tree)
    if known and after not in (None, known[0].number - 1, *(each.number for each in known)):
        raise Error(f"no change {after} is known", Exit.USAGE, "mmpolicy log lists them")
    entries = [entry for entry in known if any(entry.done)]
    chosen = entries[-1:] if after is None else [each for each in entries if each.number > after]
    if not chosen:
        raise Error(f"no change is known: see {tree.real(JOURNAL)}", Exit.FAILED, HINT)
    for entry in chosen:
        if entry.boot != _boot(tree):
            text = f"change {entry.number}, '{entry.command}' of {entry.time}, was before the boot"
            raise Error(text, Exit.FAILED, HINT)
    return chosen, _together([entry.done for entry in chosen])


def _together(changes: Sequence[Done]) -> Done:
    """Return what changes have made of the state, one after the other."""
    before: State = {}
    after: State = {}
    seen = set()
    for done in changes:
        for key in changed_keys(*done):
            if key not in seen and key in done.before:
                before[key] = done.before[key]
            seen.add(key)
            after.pop(key, None)
            if key in done.after:
                after[key] = done.after[key]
    return Done(before, after)
