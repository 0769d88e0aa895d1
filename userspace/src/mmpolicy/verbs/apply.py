# SPDX-License-Identifier: GPL-2.0
"""`apply`, `save`, `diff`, `verify` and `revert`: the state as a whole."""

from typing import TextIO

import click

from mmpolicy.control.change import undo
from mmpolicy.control.journal import APPLIED, last_changes
from mmpolicy.control.keys import LEASE, AbsentCgroup, Key, State
from mmpolicy.control.labels import cgroups_of, label_of
from mmpolicy.control.manifest import Manifest
from mmpolicy.control.manifest import save as save_state
from mmpolicy.control.state import assign, plan, read_state, without_gone
from mmpolicy.errors import Error, Exit
from mmpolicy.host.files import Tree
from mmpolicy.host.machine import Host
from mmpolicy.render import emit
from mmpolicy.verbs.commit import alone, commit, difference_data, difference_rows
from mmpolicy.verbs.options import dry_run_option, json_option, pass_host

file_argument = click.argument("file", type=click.File(), metavar="FILE")


def _read(file: TextIO) -> Manifest:
    try:
        return Manifest(file.name, file.read())
    except UnicodeDecodeError as err:
        raise Error(f"{file.name}: {err}", Exit.FAILED, "save it as UTF-8") from err


@click.command()
@file_argument
@click.option(
    "--missing", type=click.Choice(["fail", "skip"]), default="fail", show_default=True,
    help="What to do about bindings of cgroups that are not there.",
)  # fmt: skip
@dry_run_option
@json_option
@pass_host
def apply(host: Host, file: TextIO, missing: str, dry_run: bool, want_json: bool) -> None:
    """Make the state what a manifest says, all of it or nothing.

    What FILE does not name becomes stock, off, unbound or is deleted; only knobs and bindings of
    processes stay as they are. If the kernel refuses a line, the state is as before. A lease in
    FILE is renewed. FILE - is standard input.
    """
    manifest = _read(file)
    with alone(host, dry_run):
        now = read_state(host.tree)
        target = manifest.target(host.tree, now)
        manifest.check_scope()
        for key in [key for key in target if isinstance(key, AbsentCgroup)]:
            if missing == "fail":
                raise manifest.no_cgroup(key)
            click.echo(f"mmpolicy: {manifest.no_cgroup(key).message}: left out", err=True)
        writes = plan(now, target)
        if target.get(LEASE, "0") == now.get(LEASE, "0") != "0":
            writes.insert(0, assign(LEASE, target[LEASE]))
        try:
            commit(host, writes, dry_run, want_json, manifest.where)
        except Error as err:
            err.exit_code = err.exit_code if err.exit_code == Exit.DENIED else Exit.FAILED
            raise
        if not dry_run:
            host.tree.keep(APPLIED, manifest.text, 0o644)


@click.command()
@click.argument("file", type=click.File("w", lazy=True), default="-", metavar="[FILE]")
@pass_host
def save(host: Host, file: TextIO) -> None:
    """Print the whole state as a manifest, or write it to FILE.

    Bindings of processes are left out, as a process ends one day and a manifest does not.
    """
    click.echo(save_state(host.tree, read_state(host.tree)), file, nl=False)


def _compare(tree: Tree, manifest: Manifest) -> tuple[State, State]:
    now = read_state(tree)
    return now, manifest.target(tree, now)


def _emit(
    command: str, want_json: bool, tree: Tree, manifest: Manifest, now: State, target: State
) -> None:
    data = {"file": manifest.name, "differences": difference_data(tree, now, target)}
    lines = difference_rows(tree, now, target)
    emit(command, want_json, data, lines or [f"all is as in {manifest.name}"])


@click.command()
@file_argument
@json_option
@pass_host
def diff(host: Host, file: TextIO, want_json: bool) -> None:
    """Show what apply FILE would change."""
    manifest = _read(file)
    _emit("diff", want_json, host.tree, manifest, *_compare(host.tree, manifest))


@click.command()
@click.argument("file", type=click.File(), required=False, metavar="[FILE]")
@json_option
@pass_host
def verify(host: Host, file: TextIO | None, want_json: bool) -> None:
    """Find what differs from a manifest: exit 6 if anything does.

    From FILE, or without it from the last one that was applied.
    """
    if file:
        manifest = _read(file)
    elif host.tree.exists(APPLIED):
        manifest = Manifest(str(host.tree.real(APPLIED)), host.tree.read(APPLIED))
    else:
        text = f"no manifest was applied: there is no {host.tree.real(APPLIED)}"
        raise Error(text, Exit.FAILED, "mmpolicy verify FILE")
    now, target = _compare(host.tree, manifest)
    _emit("verify", want_json, host.tree, manifest, now, target)
    if now != target:
        click.get_current_context().exit(Exit.DRIFT)


@click.command()
@click.option(
    "--to", type=click.IntRange(min=0), metavar="N",
    help="Take back all changes after number N of mmpolicy log.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Also take back what somebody else changed since.")
@dry_run_option
@json_option
@pass_host
def revert(host: Host, force: bool, to: int | None, dry_run: bool, want_json: bool) -> None:
    """Restore what was before the last change.

    That is the last one that this command made; a second revert takes the first one back.
    What the change did not touch stays as it is. If somebody has since changed what it did
    touch, nothing happens without --force.
    """
    with alone(host, dry_run):
        (*_, entry), done = last_changes(host.tree, to)
        now = read_state(host.tree)
        target, conflicts = undo(done, now)
        if conflicts and not force:
            raise _conflict(host.tree, entry.command, done.after, now, conflicts)
        target = without_gone(host.tree, now, target)
        commit(host, plan(now, target), dry_run, want_json)


def _conflict(tree: Tree, command: str, after: State, now: State, keys: list[Key]) -> Error:
    paths = cgroups_of(tree, keys)
    told = [
        f"{label_of(key, paths)} was {after.get(key, '-')}, is {now.get(key, '-')}" for key in keys
    ]
    text = f"changed since '{command}' by somebody else: {'; '.join(told)}"
    return Error(text, Exit.FAILED, "mmpolicy revert --force overwrites that, --dry-run shows how")
