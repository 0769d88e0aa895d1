# SPDX-License-Identifier: GPL-2.0
"""What all verbs that change the state do: write, keep the way back, tell what became of it."""

import os
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import click

from mmpolicy.control.change import LOCK, PATIENCE_S, Done, Where, carry_out, no_place
from mmpolicy.control.journal import record
from mmpolicy.control.keys import Key, State
from mmpolicy.control.labels import cgroups_of, json_label_of, label_of, shown, telling_keys
from mmpolicy.control.state import Write, changed_keys
from mmpolicy.errors import Error
from mmpolicy.host.files import Tree
from mmpolicy.host.machine import Host
from mmpolicy.render import emit, emit_plan, paint, table


def command_name() -> str:
    """Return the words of the verb that runs, such as `profile create`."""
    return click.get_current_context().command_path.partition(" ")[2]


def alone(host: Host, dry_run: bool) -> AbstractContextManager[None]:
    """Keep other changes by this command away, from the first look to the record of the change."""
    holder = f"mmpolicy {command_name()}, pid {os.getpid()}"
    return nullcontext() if dry_run else host.tree.locked(LOCK, holder, PATIENCE_S)


def keep_change(host: Host, done: Done, note: str = "") -> None:
    """Keep the way back; a change that has been made is good without it too."""
    try:
        entry = record(host.tree, command_name(), done, note)
    except Error as err:
        click.echo(f"mmpolicy: {err.message}; mmpolicy revert will not know this change", err=True)
        return
    if entry:
        host.log(entry.line())


def emit_writes(command: str, want_json: bool, writes: Iterable[Write]) -> None:
    """Print the writes that a dry run leaves out."""
    emit_plan(command, want_json, [(write.path, write.value) for write in writes])


def commit(
    host: Host, writes: Sequence[Write], dry_run: bool, want_json: bool, where: Where = no_place
) -> None:
    """Make the writes of a verb, all or none, and tell what they have changed."""
    if dry_run:
        emit_writes(command_name(), want_json, writes)
        return
    done = carry_out(host.tree, writes, where)
    keep_change(host, done)
    asked = {write.key: write.result for write in writes}
    keys = [key for key in asked if key in done.before or key in done.after]
    keys += [key for key in telling_keys(*done) if key not in asked]
    paths = cgroups_of(host.tree, keys)
    changes = [_change(key, done, asked.get(key), paths) for key in keys]
    data = {"dry_run": False, "changes": changes}
    emit(command_name(), want_json, data, lambda: _rows(keys, done, asked, paths))


def _change(key: Key, done: Done, asked: str | None, paths: dict[str, str]) -> dict[str, Any]:
    before, after = done
    values = {"before": before.get(key), "asked": asked, "now": after.get(key)}
    return {"path": json_label_of(key, paths), **values}


def _rows(
    keys: Iterable[Key], done: Done, asked: dict[Key, str | None], paths: dict[str, str]
) -> list[str]:
    rows = []
    for key in keys:
        before, now = (state.get(key) for state in done)
        note = "" if asked.get(key) in (now, None) else paint(f"(asked for {asked[key]})", "yellow")
        rows.append((label_of(key, paths), shown(key, before), "->", shown(key, now), note))
    return table(("SETTING", "BEFORE", "", "NOW", ""), rows) if rows else ["nothing to change"]


def difference_data(tree: Tree, now: State, target: State) -> list[dict[str, str | None]]:
    """Return for JSON what differs between what is and what should be."""
    keys = changed_keys(now, target)
    paths = cgroups_of(tree, keys)
    return [
        {"path": json_label_of(key, paths), "now": now.get(key), "wanted": target.get(key)}
        for key in keys
    ]


def difference_rows(tree: Tree, now: State, target: State) -> list[str]:
    """Return a table of what differs between what is and what should be, empty without."""
    keys = changed_keys(now, target)
    paths = cgroups_of(tree, keys)
    rows = [
        (label_of(key, paths), shown(key, now.get(key)), shown(key, target.get(key)))
        for key in keys
    ]
    return table(("SETTING", "NOW", "WANTED"), rows) if rows else []
