# SPDX-License-Identifier: GPL-2.0
"""The journal: a file with every change, so that `log` can list it and `revert` can undo it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from mmpolicy.control.change import StateChange
from mmpolicy.control.keys import Profile, Setting, State, from_record, to_record
from mmpolicy.control.labels import label_of, shown, telling_keys
from mmpolicy.control.state import changed_keys
from mmpolicy.errors import Error, Exit
from mmpolicy.host.files import Tree

FOLDER = "/var/lib/mmpolicy"
JOURNAL = f"{FOLDER}/journal.jsonl"
APPLIED = f"{FOLDER}/applied.toml"
VERSION = 2
# If the journal has more bytes than MOST_BYTES, only its last KEPT entries are kept.
MOST_BYTES, KEPT = 4 << 20, 1000
# the highest number of a change is searched in this many lines at the end of the journal
LOOKED_AT = 100
# login uid of a process without a login session, as the kernel shows it; not recorded
UNSET = "4294967295"
HINT = "mmpolicy apply FILE, mmpolicy set or mmpolicy unbind makes the settings that you want"


@dataclass(frozen=True)
class Entry:
    """One change in the journal, with the values before and after it."""

    number: int
    time: str
    boot: str
    command: str
    who: dict[str, int]
    done: StateChange
    note: str = ""
    # True if the change has begun and not ended; `done` then holds the requested values
    open: bool = False

    def line(self) -> str:
        """Return the change as one line for the system log."""
        return f"{self.command} by {self.people()}: {'; '.join(self.told())}"

    def people(self) -> str:
        """Return the users who made the change, as text such as `uid 0, sudo uid 1000`."""
        return ", ".join(f"{name} {number}" for name, number in self.who.items())

    def told(self) -> list[str]:
        """Return the change as lines of text: its note, if any, and one line `NAME: BEFORE ->
        AFTER` for each key of the state that it changed. A profile that was created or deleted is
        one line, without its settings.
        """
        before, after = self.done
        note = "this change was interrupted; it should have made:" if self.open else self.note
        return [note] * bool(note) + [
            f"{label_of(key)}: {shown(key, before.get(key))} -> {shown(key, after.get(key))}"
            for key in telling_keys(*self.done)
        ]

    def to_json(self) -> str:
        """Return the change as one line of the journal in JSON."""
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
        raise ValueError(f"it has version {version}, and this command knows version {VERSION}")
    before: State = {}
    after: State = {}
    for change in changes:
        values = change.pop("before"), change.pop("after")
        key = from_record(change)
        for state, value in zip((before, after), values):
            if value is not None:
                state[key] = _text(value)
    return Entry(done=StateChange(before, after), **fields)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def boot_of(tree: Tree) -> str:
    """Return the id of this boot."""
    return tree.read("/proc/sys/kernel/random/boot_id")


def _who(tree: Tree) -> dict[str, int]:
    """Return the ids of the acting user, of the user who called sudo, and of the user who logged
    in.
    """
    login = "/proc/self/loginuid"
    found = {
        "uid": str(os.getuid()),
        "sudo uid": os.environ.get("SUDO_UID", ""),
        "login uid": tree.read(login) if tree.exists(login) else "",
    }
    return {name: int(uid) for name, uid in found.items() if uid.isdigit() and uid != UNSET}


def read_journal(tree: Tree, bad: Callable[[int, Exception], None]) -> list[Entry]:
    """Return all readable changes, the oldest first; call bad() for each damaged line.

    A change has one line when it begins and another when it has ended; the last line counts.
    """
    if not tree.exists(JOURNAL):
        return []
    lines = tree.read_bytes(JOURNAL).decode(errors="replace").splitlines()
    found: dict[int, Entry] = {}
    for number, line in enumerate(lines, start=1):
        try:
            entry = _from_json(line)
            found[entry.number] = entry
        except (ValueError, LookupError, TypeError, AttributeError, Error) as err:
            bad(number, err)
    return list(found.values())


def whatever(_number: int, _err: Exception) -> None:
    """Do nothing about a damaged line of the journal; for read_journal()."""


def damaged(tree: Tree, number: int, why: Exception) -> Error:
    """Return the error for a damaged line of the journal."""
    text = f"the journal of changes, {tree.real(JOURNAL)}, is damaged in line {number}: {why}"
    return Error(text, Exit.FAILED, f"{HINT}; then remove the journal")


def whole_journal(tree: Tree) -> list[Entry]:
    """Return all changes; raise an error if one of them cannot be read.

    A line that a crash has cut short is ignored, unless it is the last one: then the effect of the
    last change is not known.
    """
    found: dict[int, Exception] = {}
    entries = read_journal(tree, found.__setitem__)
    lines = tree.read(JOURNAL).count("\n") + 1 if found else 0
    for number, err in found.items():
        if not isinstance(err, json.JSONDecodeError) or number == lines:
            raise damaged(tree, number, err)
    return entries


def _kept(tree: Tree, entry_of: Callable[[int], Entry]) -> Entry:
    """Append an entry to the journal, with the next free number."""
    made: list[Entry] = []

    def line_of(text: str) -> str:
        made.append(entry_of(_last_number(text) + 1))
        return made[0].to_json()

    text = tree.append(JOURNAL, line_of)
    if len(text) > MOST_BYTES:
        with suppress(Error):  # fails if the disk is full; the journal then stays long
            tree.keep(JOURNAL, "".join(f"{line}\n" for line in text.splitlines()[-KEPT:]))
    return made[0]


def record(
    tree: Tree, command: str, done: StateChange, note: str = "", begun: Entry | None = None,
    is_open: bool = False,
) -> Entry | None:  # fmt: skip
    """Append a change to the journal; return its entry, or None if it was skipped.

    A change without keys and without a note is skipped. begun: the open entry of a change that this
    entry ends; it is never skipped.
    """
    keys = changed_keys(*done)
    if not keys and not note and not begun:
        return None
    parts = StateChange(*({key: state[key] for key in keys if key in state} for state in done))
    time = datetime.now(timezone.utc).isoformat(timespec="seconds")
    boot, who = boot_of(tree), _who(tree)

    def entry_of(number: int) -> Entry:
        if begun:
            return replace(begun, done=parts, note=note, open=False)
        return Entry(number, time, boot, command, who, parts, note, is_open)

    return _kept(tree, entry_of)


def _last_number(text: str) -> int:
    """Return the highest number of a change in the last LOOKED_AT lines of the journal; 0 without
    one.
    """
    numbers = [0]
    for line in text.splitlines()[-LOOKED_AT:]:
        try:
            numbers.append(int(json.loads(line)["number"]))
        except (ValueError, LookupError, TypeError):
            continue
    return max(numbers)


def part_of(now: State, entry: Entry) -> StateChange:
    """Return what an interrupted change has done: the entries that it was to write, with their
    values before it and their values now.
    """
    new = {key.name for key in entry.done.after if isinstance(key, Profile)}
    keys = {*changed_keys(*entry.done)}
    keys |= {key for key in now if isinstance(key, Setting) and key.profile in new}
    return StateChange(entry.done.before, {key: now[key] for key in keys if key in now})


def _in_force(tree: Tree) -> list[Entry]:
    """Return the changes since the module was loaded or reset in this boot."""
    found: list[Entry] = []
    for entry in read_journal(tree, whatever):
        fresh = entry.boot != boot_of(tree) or entry.command in ("load", "unload", "reset")
        found = [] if fresh else [*found, entry]
    return found


def known_state(tree: Tree) -> State:
    """Return the values that mmpolicy has set since the module was loaded or reset, by the
    journal.
    """
    return _together([entry.done for entry in _in_force(tree)]).after


def cut_off(tree: Tree) -> Entry | None:
    """Return the last change that has begun and not ended; None if there is none."""
    return next((entry for entry in reversed(_in_force(tree)) if entry.open), None)


def last_changes(tree: Tree, after: int | None) -> tuple[list[Entry], StateChange]:
    """Return the last change, or all changes after a given number, and their joint effect."""
    known = whole_journal(tree)
    if known and after not in (None, known[0].number - 1, *(each.number for each in known)):
        raise Error(
            f"the journal has no change {after}", Exit.USAGE, "mmpolicy log lists the changes"
        )
    entries = [entry for entry in known if any(entry.done)]
    chosen = entries[-1:] if after is None else [each for each in entries if each.number > after]
    if not chosen:
        raise Error(
            f"there is no change to take back: {tree.real(JOURNAL)} has none", Exit.FAILED, HINT
        )
    for entry in chosen:
        if entry.boot != boot_of(tree):
            text = (
                f"change {entry.number}, '{entry.command}' of {entry.time}, was made "
                "before the last boot, which has undone all of it but bindings of units"
            )
            raise Error(text, Exit.FAILED, HINT)
    return chosen, _together([entry.done for entry in chosen])


def _together(changes: Sequence[StateChange]) -> StateChange:
    """Return several changes, made one after the other, as one change: each entry with its value
    before the first and after the last of them.
    """
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
    return StateChange(before, after)
