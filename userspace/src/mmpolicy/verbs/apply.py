# SPDX-License-Identifier: GPL-2.0
"""`apply`, `save`, `diff`, `verify` and `revert`: the state as a whole."""

from typing import TextIO

import click

from mmpolicy.app import App, dry_run_option, json_option, pass_app
from mmpolicy.control.journal import APPLIED, last_change, undo
from mmpolicy.control.manifest import Manifest
from mmpolicy.control.manifest import save as save_state
from mmpolicy.control.model import CONTROL
from mmpolicy.control.state import State, Write, plan, read_state, without_gone
from mmpolicy.errors import Error, Exit
from mmpolicy.host.files import Tree
from mmpolicy.render import emit
from mmpolicy.verbs.commit import commit, difference_data, difference_rows, labels

file_argument = click.argument("file", type=click.File(), metavar="FILE")


def _read(file: TextIO) -> Manifest:
    try:
        return Manifest(file.name, file.read())
    except UnicodeDecodeError as err:
        raise Error(f"{file.name}: {err}", Exit.FAILED, "save it as UTF-8") from err


@click.command()
@file_argument
@dry_run_option
@json_option
@pass_app
def apply(app: App, file: TextIO, dry_run: bool, want_json: bool) -> None:
    """Make the state what a manifest says, all of it or nothing.

    What FILE does not name becomes stock, off, unbound or is deleted; only knobs and bindings of
    processes stay as they are. If the kernel refuses a line, the state is as before. A lease in
    FILE is renewed. FILE - is standard input.
    """
    manifest = _read(file)
    now = read_state(app.tree)
    target = manifest.target(app.tree, now)
    writes = plan(now, target)
    if target.get("lease_ms", "0") == now.get("lease_ms", "0") != "0":
        writes.insert(0, Write(f"{CONTROL}/lease_ms", target["lease_ms"]))
    try:
        commit(app, writes, dry_run, want_json, manifest.where)
    except Error as err:
        err.exit_code = err.exit_code if err.exit_code == Exit.DENIED else Exit.FAILED
        raise
    if not dry_run:
        app.tree.keep(APPLIED, manifest.text)


@click.command()
@click.argument("file", type=click.File("w", lazy=True), default="-", metavar="[FILE]")
@pass_app
def save(app: App, file: TextIO) -> None:
    """Print the whole state as a manifest, or write it to FILE.

    Bindings of processes are left out, as a process ends one day and a manifest does not.
    """
    click.echo(save_state(app.tree, read_state(app.tree)), file, nl=False)


def _compare(tree: Tree, manifest: Manifest) -> tuple[State, State]:
    now = read_state(tree)
    return now, manifest.target(tree, now, missing_allowed=True)


def _emit(
    command: str, want_json: bool, tree: Tree, manifest: Manifest, now: State, target: State
) -> None:
    data = {"file": manifest.name, "differences": difference_data(tree, now, target)}
    lines = difference_rows(tree, now, target)
    emit(command, want_json, data, lines or [f"all is as in {manifest.name}"])


@click.command()
@file_argument
@json_option
@pass_app
def diff(app: App, file: TextIO, want_json: bool) -> None:
    """Show what apply FILE would change."""
    manifest = _read(file)
    _emit("diff", want_json, app.tree, manifest, *_compare(app.tree, manifest))


@click.command()
@click.argument("file", type=click.File(), required=False, metavar="[FILE]")
@json_option
@pass_app
def verify(app: App, file: TextIO | None, want_json: bool) -> None:
    """Find what differs from a manifest: exit 6 if anything does.

    From FILE, or without it from the last one that was applied.
    """
    if file:
        manifest = _read(file)
    elif app.tree.exists(APPLIED):
        manifest = Manifest(str(app.tree.real(APPLIED)), app.tree.read(APPLIED))
    else:
        text = f"no manifest was applied: there is no {app.tree.real(APPLIED)}"
        raise Error(text, Exit.FAILED, "mmpolicy verify FILE")
    now, target = _compare(app.tree, manifest)
    _emit("verify", want_json, app.tree, manifest, now, target)
    if now != target:
        click.get_current_context().exit(Exit.DRIFT)


@click.command()
@click.option("--force", is_flag=True, help="Also take back what somebody else changed since.")
@dry_run_option
@json_option
@pass_app
def revert(app: App, force: bool, dry_run: bool, want_json: bool) -> None:
    """Restore what was before the last change.

    That is the last one that this command made; a second revert takes the first one back.
    What the change did not touch stays as it is. If somebody has since changed what it did
    touch, nothing happens without --force.
    """
    entry, done = last_change(app.tree)
    now = read_state(app.tree)
    target, conflicts = undo(done, now)
    if conflicts and not force:
        raise _conflict(app.tree, entry["command"], done.after, now, conflicts)
    target = without_gone(app.tree, now, target)
    commit(app, plan(now, target), dry_run, want_json)


def _conflict(tree: Tree, command: str, after: State, now: State, keys: list[str]) -> Error:
    label = labels(tree, keys)
    told = [f"{label[key][1]} was {after.get(key, '-')}, is {now.get(key, '-')}" for key in keys]
    text = f"changed since '{command}' by somebody else: {'; '.join(told)}"
    return Error(text, Exit.FAILED, "mmpolicy revert --force overwrites that, --dry-run shows how")
