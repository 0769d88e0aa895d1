# SPDX-License-Identifier: GPL-2.0
"""Shared by all verbs that change settings: take the lock, write the journal, make all writes or
undo them, and print the changes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from mmpolicy.control.attach import (
    LIMIT_S,
    UNDER_WAY,
    blockers,
    describe,
    point_error,
    settle,
)
from mmpolicy.control.change import (
    LOCK,
    Origin,
    StateChange,
    asked_for,
    carry_out,
    check_values,
    no_origin,
    state_of,
    steps_of,
)
from mmpolicy.control.experiment import end_it, has_arms, in_the_way, is_ours, running
from mmpolicy.control.journal import Entry, cut_off, part_of, record
from mmpolicy.control.keys import Key, State, UnitBinding
from mmpolicy.control.labels import cgroups_of, json_label_of, label_of, shown, telling_keys
from mmpolicy.control.notices import told_of
from mmpolicy.control.state import Write, changed_keys, read_state
from mmpolicy.errors import Error
from mmpolicy.host.files import PATIENCE_S, Tree
from mmpolicy.host.machine import Host
from mmpolicy.host.signals import noted
from mmpolicy.host.step import Step
from mmpolicy.render import emit, paint, table


def command_name() -> str:
    """Return the name of the running verb, such as `profile create`."""
    return click.get_current_context().command_path.partition(" ")[2]


@contextmanager
def exclusive(host: Host, dry_run: bool, force: bool = False) -> Iterator[Entry | None]:
    """Hold the lock that keeps other commands of mmpolicy from changing the state, from the first
    read of the state to the journal entry; a dry run takes no lock.

    Yield None; or, after a warning, the journal entry of an earlier change that was interrupted,
    with the writes it had made. force: end a running experiment first.
    """
    if dry_run:
        yield None
        return
    if force:
        end_it(host.tree)
    holder = f"mmpolicy {command_name()}, pid {os.getpid()}"
    with host.tree.locked(LOCK, holder, PATIENCE_S):
        yield _settle(host)


def _settle(host: Host) -> Entry | None:
    """If an earlier change was interrupted, print a warning, and record in the journal which of
    its writes were made. Return that entry, or None.
    """
    try:
        entry = cut_off(host.tree)
        if not entry:
            return None
        done = part_of(state_of(host.tree, ()), entry)
        settled = record(host.tree, entry.command, done, "was cut off", entry)
    except Error:  # the journal is unreadable: the verb itself reports this when it reads it
        return None
    verb = f"revert --to {entry.number - 1}"
    click.echo(f"warning: {told_of(entry, verb).line()}", err=True)
    return settled


def keep_change(host: Host, done: StateChange, note: str = "", begun: Entry | None = None) -> None:
    """Record a change in the journal, so that it can be reverted. If the journal cannot be written,
    print a message; the change stays in force.
    """
    try:
        entry = record(host.tree, command_name(), done, note, begun)
    except Error as err:
        click.echo(
            "mmpolicy: the change is made, but not in the journal, so mmpolicy revert will "
            f"not know it: {err.message}",
            err=True,
        )
        return
    if entry and (note or changed_keys(*done)):
        host.log(entry.line())


def _begin(host: Host, writes: Sequence[Write]) -> Entry | None:
    """Record the planned change in the journal before the first write, so that a later command
    sees what a crash has interrupted. Return None if the journal cannot be written.
    """
    before = state_of(host.tree, writes)
    try:
        return record(
            host.tree, command_name(), StateChange(before, asked_for(before, writes)), is_open=True
        )
    except Error:  # keep_change() reports that the journal cannot be written
        return None


def emit_plan(command: str, want_json: bool, plan: Iterable[Step], **more: Any) -> None:
    """Print the writes that a command without --dry-run would make; more: further facts,
    by name.
    """
    steps = list(plan)
    data = {"dry_run": True, "writes": [each._asdict() for each in steps], **more}
    lines = [each.line() for each in steps]
    emit(command, want_json, data, [*lines, *(f"{name}: {text}" for name, text in more.items())])


def commit(
    host: Host,
    writes: Sequence[Write],
    dry_run: bool,
    want_json: bool,
    origin: Origin = no_origin,
    then: Callable[[], None] = lambda: None,
    wait: bool | None = None,
) -> None:
    """Make all writes of a verb, or none if one fails, and print the changes.

    origin: where a write comes from, for its errors. then(): called after the writes and before
    anything is printed. wait: True waits until the kernel has attached its hooks, False only says
    whether it has, None does neither.
    """
    if dry_run:
        check_values(host.tree, writes, origin)
        before = state_of(host.tree, writes)
        emit_plan(command_name(), want_json, steps_of(before, writes))
        return
    done = change(host, writes, origin, then)
    if wait is not None:
        tell_settled(host, wait)
    asked = {write.key: write.result for write in writes}
    keys = [key for key in asked if key in done.before or key in done.after]
    keys += [key for key in telling_keys(*done) if key not in asked]
    paths = cgroups_of(host.tree, keys)
    changes = [_change(key, done, asked.get(key), paths) for key in keys]
    data = {"dry_run": False, "changes": changes}
    emit(command_name(), want_json, data, lambda: _rows(keys, done, asked, paths))


def tell_settled(host: Host, wait: bool) -> None:
    """Print a note while the kernel is still attaching or detaching the module's hooks, and a
    warning if the module has set a policy back to stock. wait: first wait for the hooks, up to
    LIMIT_S seconds.
    """
    state = settle(host, _tell, LIMIT_S if wait else 0)
    if state in UNDER_WAY:
        _tell(
            "note: the hooks in the kernel are "
            f"{describe(state, blockers(host.tree))}; mmpolicy status shows when this "
            "is done"
        )
    if reason := point_error(host.tree):
        _tell(f"warning: the module has set the policy back to stock: {reason}")


def _tell(text: str) -> None:
    click.echo(text, err=True)


def change(
    host: Host,
    writes: Sequence[Write],
    origin: Origin = no_origin,
    then: Callable[[], None] = lambda: None,
) -> StateChange:
    """Make all writes, or none if one fails, and record the change in the journal; raise an error
    if a running experiment uses the settings. Return the whole state before and after the writes,
    without what other processes change meanwhile. then: called after the journal has the change.
    """
    _mind_experiment(host, writes)
    of_units = any(isinstance(write.key, UnitBinding) for write in writes)
    finish = host.reload_units if of_units else lambda: None
    with noted() as caught:
        begun = _begin(host, writes)
        try:
            done = carry_out(host.tree, writes, origin, caught, finish)
        except Error as err:
            if not err.half:
                keep_change(host, StateChange({}, {}), begun=begun)
            raise
        keep_change(host, done, begun=begun)
        then()
    return done


def _mind_experiment(host: Host, writes: Sequence[Write]) -> None:
    """Raise an error if a write touches settings that a running experiment of `ab run` uses."""
    who = running(host.tree) if any(is_ours(write.key) for write in writes) else ""
    if who and has_arms(read_state(host.tree)):
        raise in_the_way(who)


def _change(
    key: Key, done: StateChange, asked: str | None, paths: dict[str, str]
) -> dict[str, Any]:
    before, after = done
    values = {"before": before.get(key), "asked": asked, "now": after.get(key)}
    return {"path": json_label_of(key, paths), **values}


def _rows(
    keys: Iterable[Key], done: StateChange, asked: dict[Key, str | None], paths: dict[str, str]
) -> list[str]:
    rows = []
    for key in keys:
        before, now = (state.get(key) for state in done)
        note = (
            ""
            if asked.get(key) in (now, None)
            else paint(f"(the command asked for {asked[key]})", "yellow")
        )
        rows.append((label_of(key, paths), shown(key, before), "->", shown(key, now), note))
    return table(("SETTING", "BEFORE", "", "NOW", ""), rows) if rows else ["nothing to change"]


def difference_data(tree: Tree, now: State, target: State) -> list[dict[str, str | None]]:
    """Return one entry for each setting that differs between two states, for JSON."""
    keys = changed_keys(now, target)
    paths = cgroups_of(tree, keys)
    return [
        {"path": json_label_of(key, paths), "now": now.get(key), "wanted": target.get(key)}
        for key in keys
    ]


def difference_rows(tree: Tree, now: State, target: State) -> list[str]:
    """Return a table of the settings that differ between two states; [] if none does."""
    keys = changed_keys(now, target)
    paths = cgroups_of(tree, keys)
    rows = [
        (label_of(key, paths), shown(key, now.get(key)), shown(key, target.get(key)))
        for key in keys
    ]
    return table(("SETTING", "NOW", "WANTED"), rows) if rows else []
