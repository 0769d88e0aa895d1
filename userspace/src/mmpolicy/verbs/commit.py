# SPDX-License-Identifier: GPL-2.0
"""What all verbs that change the state do: write, keep the way back, tell what became of it."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click

from mmpolicy.app import App
from mmpolicy.control.change import Done, carry_out
from mmpolicy.control.journal import record
from mmpolicy.control.model import CONTROL
from mmpolicy.control.state import State, Write, differences, is_profile
from mmpolicy.errors import Error
from mmpolicy.host.cgroups import cgroup_paths
from mmpolicy.host.files import Tree
from mmpolicy.render import emit, emit_plan, paint, table

Where = Callable[[Write], str]


def command_name() -> str:
    """Return the words of the verb that runs, such as `profile create`."""
    return click.get_current_context().command_path.partition(" ")[2]


def keep_change(tree: Tree, done: Done) -> None:
    """Keep the way back; a change that has been made is good without it too."""
    try:
        record(tree, command_name(), done)
    except Error as err:
        click.echo(f"mmpolicy: {err.message}; mmpolicy revert will not know this change", err=True)


def commit(
    app: App, writes: Sequence[Write], dry_run: bool, want_json: bool,
    where: Where = lambda _write: "",
) -> None:  # fmt: skip
    """Make the writes of a verb, all or none, and tell what they have changed."""
    if dry_run:
        emit_plan(command_name(), want_json, writes)
        return
    done = carry_out(app.tree, writes, where)
    keep_change(app.tree, done)
    asked = {path.removeprefix(f"{CONTROL}/"): value for path, value in writes}
    keys = [key for key in asked if key in done.after]
    keys += [key for key in _telling(done) if key not in asked]
    label = labels(app.tree, keys)
    changes = [
        {"path": label[key][0], "before": done.before.get(key), "asked": asked.get(key),
         "now": done.after.get(key)}
        for key in keys
    ]  # fmt: skip
    data = {"dry_run": False, "changes": changes}
    lines = _rows([label[key][1] for key in keys], changes)
    emit(command_name(), want_json, data, lines if keys else ["nothing to change"])


def _telling(done: Done) -> list[str]:
    """Return the keys that changed, without the settings of profiles that came or went."""
    keys = differences(*done)
    whole = tuple(f"{key}/" for key in keys if is_profile(key))
    return [key for key in keys if not key.startswith(whole)]


def labels(tree: Tree, keys: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return how JSON and how people name each key of a state."""
    keys = list(keys)
    paths = cgroup_paths(tree) if any(key.startswith("cgroups/") for key in keys) else {}
    return {key: _label(key, paths) for key in keys}


def _label(key: str, paths: dict[str, str]) -> tuple[str, str]:
    kind, _, name = key.partition("/")
    if kind == "cgroups":
        text = f"cgroup {paths.get(name, f'{name} (gone)')}"
    elif kind == "pids":
        text = f"process {name.partition('@')[0]}"
    elif kind == "profiles" and "/" not in name:
        text = f"profile {name}"
    else:
        return f"{CONTROL}/{key}", key.removeprefix("profiles/")
    return text, text


def _rows(names: Iterable[str], changes: Iterable[dict[str, Any]]) -> list[str]:
    rows = []
    for name, change in zip(names, changes, strict=True):
        now, asked = change["now"], change["asked"]
        note = "" if asked in (now, None) else paint(f"(asked for {asked})", "yellow")
        rows.append((name, _shown(change["before"]), "->", _shown(now), note))
    return table(("SETTING", "BEFORE", "", "NOW", ""), rows)


def _shown(value: str | None) -> str:
    return "-" if value is None else value or "exists"


def difference_data(tree: Tree, now: State, target: State) -> list[dict[str, str | None]]:
    """Return for JSON what differs between what is and what should be."""
    keys = differences(now, target)
    label = labels(tree, keys)
    return [{"path": label[key][0], "now": now.get(key), "wanted": target.get(key)} for key in keys]


def difference_rows(tree: Tree, now: State, target: State) -> list[str]:
    """Return a table of what differs between what is and what should be, empty without."""
    keys = differences(now, target)
    label = labels(tree, keys)
    rows = [(label[key][1], _shown(now.get(key)), _shown(target.get(key))) for key in keys]
    return table(("SETTING", "NOW", "WANTED"), rows) if rows else []
