# SPDX-License-Identifier: GPL-2.0
"""`apply`, `save`, `diff` and `verify`: the state as a whole."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from mmpolicy.control.journal import APPLIED
from mmpolicy.control.keys import LEASE, AbsentCgroup, State
from mmpolicy.control.manifest import Manifest
from mmpolicy.control.manifest import save as save_state
from mmpolicy.control.model import check_loaded
from mmpolicy.control.state import assign, plan, read_state
from mmpolicy.errors import Error, Exit
from mmpolicy.host.files import Tree, read_manifests, save_as
from mmpolicy.host.machine import Host
from mmpolicy.render import emit
from mmpolicy.verbs.commit import alone, commit, difference_data, difference_rows
from mmpolicy.verbs.options import dry_run_option, json_option, pass_host

Command = Callable[..., Any]

FILE = click.Path(allow_dash=True)
file_argument = click.argument("file", type=FILE, metavar="FILE")


def _read(name: str) -> Manifest:
    return Manifest("standard input" if name == "-" else name, read_manifests(name))


def missing_option(command: Command) -> Command:
    """Add the option about cgroups that are not there."""
    return click.option(
        "--missing", type=click.Choice(["fail", "skip"]), default="fail", show_default=True,
        help="What to do about bindings of cgroups that are not there.",
    )(command)  # fmt: skip


def _leave_out(manifest: Manifest, target: State, missing: str) -> State:
    """Return what can be without the cgroups that are not there, if it may be left out."""
    for key in [key for key in target if isinstance(key, AbsentCgroup)]:
        if missing == "fail":
            raise manifest.no_cgroup(key)
        click.echo(f"mmpolicy: {manifest.no_cgroup(key).message}: left out", err=True)
        del target[key]
    return target


@click.command()
@file_argument
@missing_option
@dry_run_option
@json_option
@pass_host
def apply(host: Host, file: str, missing: str, dry_run: bool, want_json: bool) -> None:
    """Make the state match a manifest, all of it or nothing.

    Everything that FILE does not name becomes stock, off or unbound, or is deleted. Only knobs and
    bindings of processes stay as they are. If the kernel refuses a line, the old state is restored.
    A lease in FILE is renewed. FILE - is standard input. If FILE is a folder, all *.toml in it are
    one manifest. If several name an entry, the last one wins. If there are none, nothing changes.
    """
    manifest = _read(file)
    with alone(host, dry_run):
        now = read_state(host.tree)
        target = manifest.target(host.tree, now)
        manifest.check_scope()
        target = _leave_out(manifest, target, missing)
        writes = plan(now, target)
        if target.get(LEASE, "0") == now.get(LEASE, "0") != "0":
            writes.insert(0, assign(LEASE, target[LEASE]))
        try:
            commit(host, writes, dry_run, want_json, manifest.where)
        except Error as err:
            err.exit_code = err.exit_code if err.exit_code == Exit.DENIED else Exit.FAILED
            raise
        if not dry_run:
            _keep_manifest(host.tree, manifest)


def _keep_manifest(tree: Tree, manifest: Manifest) -> None:
    try:
        tree.keep(APPLIED, manifest.text(), 0o644)
    except Error as err:
        click.echo(f"mmpolicy: {err.message}; mmpolicy verify will want a FILE", err=True)


@click.command()
@click.argument("file", type=FILE, default="-", metavar="[FILE]")
@pass_host
def save(host: Host, file: str) -> None:
    """Print the whole state as a manifest, or write it to FILE.

    Leaves out bindings of processes, because processes end.
    """
    text = save_state(host.tree, read_state(host.tree))
    if file == "-":
        click.echo(text, nl=False)
    else:
        save_as(Path(file), text.encode())


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
def diff(host: Host, file: str, want_json: bool) -> None:
    """Show what apply FILE would change."""
    manifest = _read(file)
    _emit("diff", want_json, host.tree, manifest, *_compare(host.tree, manifest))


@click.command()
@click.argument("file", type=FILE, required=False, metavar="[FILE]")
@missing_option
@json_option
@pass_host
def verify(host: Host, file: str | None, missing: str, want_json: bool) -> None:
    """Find what differs from a manifest: exit 6 if anything does.

    Compares with FILE, or without it with the last one that was applied. A bound cgroup that does
    not exist is a difference, unless you skip it.
    """
    check_loaded(host.tree)
    if file:
        manifest = _read(file)
    elif host.tree.exists(APPLIED):
        name = str(host.tree.real(APPLIED))
        manifest = Manifest(name, [(name, host.tree.read(APPLIED))])
    else:
        text = f"no manifest was applied: there is no {host.tree.real(APPLIED)}"
        raise Error(text, Exit.FAILED, "mmpolicy verify FILE")
    now, target = _compare(host.tree, manifest)
    if missing == "skip":
        target = _leave_out(manifest, target, missing)
    _emit("verify", want_json, host.tree, manifest, now, target)
    if now != target:
        click.get_current_context().exit(Exit.DRIFT)
