# SPDX-License-Identifier: GPL-2.0
"""`revert` and `log`: undo and list the changes that this command has made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click

from mmpolicy.control.change import undo
from mmpolicy.control.journal import Entry, damaged, last_changes, read_journal
from mmpolicy.control.keys import Key, State
from mmpolicy.control.labels import cgroups_of, json_label_of, label_of
from mmpolicy.control.starts import Start, follow_services, read_starts
from mmpolicy.control.state import changed_keys, plan, read_state, without_gone
from mmpolicy.errors import Error, Exit
from mmpolicy.host.files import Tree
from mmpolicy.host.machine import Host
from mmpolicy.render import emit, table
from mmpolicy.verbs.commit import commit, exclusive
from mmpolicy.verbs.options import Count, dry_run_option, json_option, pass_host


@click.command()
@click.option(
    "--to", type=Count(min=0), metavar="N",
    help="Take back all changes after number N of mmpolicy log.",
)  # fmt: skip
@click.option(
    "--force", is_flag=True,
    help="Also overwrite later changes by others, and end an experiment.",
)  # fmt: skip
@dry_run_option
@json_option
@pass_host
def revert(host: Host, force: bool, to: int | None, dry_run: bool, want_json: bool) -> None:
    """Restore the state before the last change.

    Takes back the last change that this command made. A second revert takes back the first one.
    Settings that the change did not touch stay as they are. If somebody has changed a touched
    setting since, nothing happens without --force.
    """
    with exclusive(host, dry_run, force) as cut_off:
        # `revert` without --to undoes the last change. If that was interrupted, it is undone even
        # if it has changed nothing.
        if cut_off and to is None:
            entry, done = cut_off, cut_off.done
        else:
            (*_, entry), done = last_changes(host.tree, to)
        now = read_state(host.tree)
        target, conflicts = undo(done, now)
        if conflicts and not force:
            raise _conflict(host.tree, entry.command, done.after, now, conflicts)
        target = follow_services(host.tree, done, now, target)
        target = without_gone(host.tree, now, target)
        commit(host, plan(now, target), dry_run, want_json)


def _conflict(tree: Tree, command: str, after: State, now: State, keys: list[Key]) -> Error:
    paths = cgroups_of(tree, keys)
    told = [
        f"{label_of(key, paths)} was {after.get(key, '-')}, is {now.get(key, '-')}" for key in keys
    ]
    text = f"settings of '{command}' were changed again since: {'; '.join(told)}"
    return Error(
        text,
        Exit.FAILED,
        "mmpolicy revert --force overwrites the later changes; with --dry-run added, it only shows "
        "what it would write",
    )


@click.command()
@click.option(
    "-n", "number", type=Count(), default=20, show_default=True, metavar="N",
    help="Show only the last N changes.",
)  # fmt: skip
@json_option
@pass_host
def log(host: Host, number: int, want_json: bool) -> None:
    """Show who changed what with this command, and when.

    The system log has the same lines: `journalctl -t mmpolicy`. revert --to takes the number of a
    change. Services that a manifest has bound at their start are listed last, without a number.
    """
    bad: list[Error] = []

    def damaged_line(line: int, why: Exception) -> None:
        bad.append(damaged(host.tree, line, why))

    known = read_journal(host.tree, damaged_line)
    entries = [each for each in known if any(each.done) or each.note][-number:]
    for err in bad:
        click.echo(f"warning: {err.message}", err=True)
    starts = read_starts(host.tree)[-number:]
    data = {
        "changes": [_entry_data(entry) for entry in entries],
        "starts": [each._asdict() for each in starts],
    }
    emit("log", want_json, data, lambda: [*_entry_lines(entries), *_start_lines(starts)])


def _entry_data(entry: Entry) -> dict[str, Any]:
    before, after = entry.done
    changes = [
        {"path": json_label_of(key, {}), "before": before.get(key), "after": after.get(key)}
        for key in changed_keys(*entry.done)
    ]
    return {**vars(entry), "done": changes}


def _entry_lines(entries: Sequence[Entry]) -> Iterator[str]:
    rows: list[Sequence[object]] = []
    for entry in entries:
        first, *others = entry.told() or ["-"]
        rows.append((entry.number, entry.time, entry.people(), entry.command, first))
        rows += [("", "", "", "", other) for other in others]
    header = ("NUMBER", "TIME", "WHO", "COMMAND", "CHANGE")
    yield from table(header, rows) if rows else ["the journal has no change"]


def _start_lines(starts: Sequence[Start]) -> list[str]:
    rows = [(each.time, each.path, each.profile) for each in starts]
    return ["", *table(("STARTED", "SERVICE", "PROFILE"), rows)] if rows else []
