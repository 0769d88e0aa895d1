# SPDX-License-Identifier: GPL-2.0
"""`apply`, `save`, `diff` and `verify`: the state as a whole."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from mmpolicy.control.experiment import declared
from mmpolicy.control.journal import APPLIED
from mmpolicy.control.keys import (
    LEASE,
    AbsentCgroup,
    CgroupBinding,
    LoadedPolicy,
    Profile,
    Setting,
    State,
)
from mmpolicy.control.manifest import Manifest
from mmpolicy.control.manifest import save as save_state
from mmpolicy.control.model import check_abi, check_loaded
from mmpolicy.control.notices import proofs
from mmpolicy.control.programs import Source
from mmpolicy.control.state import Write, assign, bind, plan, read_state
from mmpolicy.control.trials import drifted
from mmpolicy.errors import Error, Exit
from mmpolicy.figures import figure
from mmpolicy.host.disk import is_folder, save_as
from mmpolicy.host.files import Tree
from mmpolicy.host.machine import Host
from mmpolicy.render import emit
from mmpolicy.verbs.commit import change, commit, difference_data, difference_rows, exclusive
from mmpolicy.verbs.former import former_option
from mmpolicy.verbs.objects import load_again, not_to_be_loaded
from mmpolicy.verbs.options import dry_run_option, force_option, json_option, pass_host

Command = Callable[..., Any]

FORMER = click.Choice(["fail", "skip"])
FILE = click.Path(allow_dash=True)
file_argument = click.argument("file", type=FILE, metavar="FILE")


def missing_option(command: Command) -> Command:
    """Add --skip-missing, and the option --missing of older versions, to a command."""
    return click.option(
        "--skip-missing", is_flag=True,
        help="Leave out cgroups that do not exist, and policies that cannot be loaded.",
    )(former_option("--missing", "--skip-missing", type=FORMER)(command))  # fmt: skip


def _leave_out(manifest: Manifest, target: State, skip_missing: bool) -> State:
    """Return the target state without bindings of cgroups that do not exist; raise an error for
    the first such binding unless --skip-missing is given.
    """
    for key in [key for key in target if isinstance(key, AbsentCgroup)]:
        if not skip_missing:
            raise manifest.no_cgroup(key)
        click.echo(
            f"mmpolicy: {manifest.no_cgroup(key).message}: this binding is left out", err=True
        )
        del target[key]
    return target


@click.command()
@file_argument
@missing_option
@click.option(
    "--skip-invalid", is_flag=True,
    help="Leave out files of a folder that have errors.",
)  # fmt: skip
@former_option("--broken", "--skip-invalid", type=FORMER)
@force_option
@dry_run_option
@json_option
@pass_host
def apply(
    host: Host,
    file: str,
    skip_missing: bool,
    skip_invalid: bool,
    force: bool,
    dry_run: bool,
    want_json: bool,
) -> None:
    """Make the state match a manifest, all of it or nothing.

    Everything that FILE does not name becomes stock, off or unbound, or is deleted. Only knobs,
    bindings of processes and loaded policies in BPF stay as they are. Policies in BPF that FILE
    names are loaded first, or replaced. If the kernel refuses a line, the old state is restored.
    A lease in FILE is renewed. FILE - is standard input. If FILE is a folder, all *.toml in it are
    one manifest. If several name an entry, the last one wins. If there are none, nothing changes.
    """
    skip = is_folder(file) and skip_invalid
    manifest = Manifest.read(file, _left_out if skip else None)
    check_loaded(host.tree)
    check_abi(host.tree)
    with exclusive(host, dry_run, force):
        while True:
            try:
                _apply(host, manifest, skip_missing, dry_run, want_json)
                return
            except Error as err:
                rest = manifest.without(err.message) if skip else None
                if not rest:
                    if err.exit_code in (Exit.USAGE, Exit.LACKING, Exit.REFUSED):
                        err.exit_code = Exit.FAILED
                    raise
                _left_out(err)
                manifest = rest


def _left_out(err: Error) -> None:
    click.echo(f"mmpolicy: {err.message}: the file is left out", err=True)


def _apply(
    host: Host, manifest: Manifest, skip_missing: bool, dry_run: bool, want_json: bool
) -> None:
    now = read_state(host.tree)
    target = manifest.target(host.tree, now)
    manifest.check_scope()
    loads = _loads(manifest, now)
    if loads and not dry_run:
        _load(host, manifest, loads, skip_missing)
        now = read_state(host.tree)
        target = _without_policies(now, manifest.target(host.tree, now))
    target = _leave_out(manifest, target, skip_missing)
    writes = [*(loads if dry_run else []), *plan(now, target)]
    if target.get(LEASE, "0") == now.get(LEASE, "0") != "0":
        writes.insert(0, assign(LEASE, target[LEASE]))
    keep = partial(_keep_manifest, host.tree, manifest)
    commit(host, writes, dry_run, want_json, manifest.where, keep)


def _loads(manifest: Manifest, now: State) -> list[Write]:
    """Return a write for each BPF policy of the manifest that is not loaded yet, or that was loaded
    from another version of its object file.
    """
    return [
        Write(source.file, "replace" if key in now else "load", key, source.sha256)
        for key, source in manifest.sources().items()
        if now.get(key) != source.sha256
    ]


def _load(host: Host, manifest: Manifest, loads: list[Write], skip_missing: bool) -> None:
    """Load the BPF policies of a manifest, before any profile uses them. A policy that replaces a
    loaded one takes effect at once. With --skip-missing, a policy that cannot be loaded causes only
    a warning.
    """
    for write in loads:
        assert isinstance(write.key, LoadedPolicy) and write.result
        try:
            load_again(host, write.value, write.key.name, Source(write.path, write.result))
        except Error as err:
            err.message = manifest.where(write) + err.message
            if not skip_missing:
                raise
            click.echo(f"mmpolicy: {err.message}: this policy is left out", err=True)


def _without_policies(now: State, target: State) -> State:
    """Return the target state without BPF policies that could not be loaded: profiles get "stock"
    in their place.
    """
    absent = {
        key.name
        for key, value in target.items()
        if isinstance(key, LoadedPolicy) and now.get(key) != value
    }
    left: State = {}
    for key, value in target.items():
        if isinstance(key, Setting) and key.off and value in absent:
            left[key] = key.off
        elif not isinstance(key, Setting) or key.policy not in absent:
            left[key] = value
    return left


def _keep_manifest(tree: Tree, manifest: Manifest) -> None:
    try:
        tree.keep(APPLIED, manifest.text(), 0o644)
    except Error as err:
        click.echo(f"mmpolicy: {err.message}; mmpolicy verify will need a FILE", err=True)


@click.command()
@click.argument("file", type=FILE, default="-", metavar="[FILE]")
@pass_host
def save(host: Host, file: str) -> None:
    """Print the whole state as a manifest, or write it to FILE.

    Leaves out bindings of processes, because processes end, and the lease, because nobody would
    renew it after a boot. Of loaded policies in BPF, it has the path of the object and its SHA-256.
    """
    state = read_state(host.tree)
    text = save_state(host.tree, state)
    for line in not_to_be_loaded(host.tree):
        click.echo(f"note: {line}", err=True)
    if state.get(LEASE, "0") != "0":
        left = int(state[LEASE]) / 1000
        note = (
            f"note: the manifest does not contain the lease of {figure(left)} s, as nobody would "
            "renew it after a boot"
        )
        click.echo(note, err=True)
    if file == "-":
        click.echo(text, nl=False)
    else:
        save_as(Path(file), text.encode())


def _compare(tree: Tree, manifest: Manifest) -> tuple[State, State]:
    now = read_state(tree)
    return now, declared(tree, now, manifest.target(tree, now))


def _emit(
    command: str, want_json: bool, tree: Tree, manifest: Manifest, now: State, target: State
) -> None:
    if want_json:
        data = {"file": manifest.name, "differences": difference_data(tree, now, target)}
        emit(command, want_json, data, [])
        return
    lines = difference_rows(tree, now, target)
    emit(command, want_json, {}, lines or [f"the state is as {manifest.name} says"])


@click.command()
@file_argument
@click.option("--exit-code", is_flag=True, help="Exit with 6 if there is a difference.")
@json_option
@pass_host
def diff(host: Host, file: str, exit_code: bool, want_json: bool) -> None:
    """Show what apply FILE would change."""
    manifest = Manifest.read(file)
    now, target = _compare(host.tree, manifest)
    _emit("diff", want_json, host.tree, manifest, now, target)
    if exit_code and now != target:
        click.get_current_context().exit(Exit.DRIFT)


@click.command()
@click.argument("file", type=FILE, required=False, metavar="[FILE]")
@missing_option
@click.option(
    "--heal",
    is_flag=True,
    help="First bind those cgroups that the manifest binds and that are not bound.",
)
@json_option
@pass_host
def verify(host: Host, file: str | None, skip_missing: bool, heal: bool, want_json: bool) -> None:
    """Find what differs from a manifest: exit 6 if anything does.

    Compares with FILE, or without it with the last one that was applied. A bound cgroup that does
    not exist is a difference, unless you skip it. Settings of a running `ab run` are not a
    difference.

    Also without the module, knobs that a killed run has left changed, and sizes of folios that
    `try` keeps and that are not in force, are a difference. So is a setting of `try` that
    `try --watch` has taken back, until `try --stop` acknowledges that.
    """
    if drift := drifted(host.tree):
        raise Error(drift.text, Exit.DRIFT, drift.next_step)
    check_loaded(host.tree)
    bad: list[Error] = []
    manifest = (
        Manifest.read(file, bad.append if is_folder(file) else None)
        if file
        else Manifest.applied(host.tree)
    )
    if not manifest:
        _mind_proofs(host.tree)
        text = f"no manifest was applied: there is no {host.tree.real(APPLIED)}"
        raise Error(text, Exit.FAILED, "mmpolicy verify FILE")
    if heal:
        _heal(host, manifest)
    now, target = _compare(host.tree, manifest)
    if skip_missing:
        target = _leave_out(manifest, target, skip_missing)
    _emit("verify", want_json, host.tree, manifest, now, target)
    for err in bad:  # errors of manifests that mmpolicy.service skips
        raise err
    _mind_proofs(host.tree)
    if now != target:
        click.get_current_context().exit(Exit.DRIFT)


def _mind_proofs(tree: Tree) -> None:
    """Raise an error if `try --watch` has undone a setting that a trial kept, or was killed in a
    block that left its service at stock. Only the first such test is reported.
    """
    for each in proofs(tree):
        raise Error(each.text, Exit.DRIFT, each.next_step)


def _heal(host: Host, manifest: Manifest) -> None:
    """Bind the cgroups that the manifest binds, that exist, and that are not bound. A cgroup can be
    missing its binding if, for example, its service started before mmpolicy was ready.
    """
    with exclusive(host, dry_run=False):
        now, target = _compare(host.tree, manifest)
        missed = [key for key in target if isinstance(key, CgroupBinding) and key not in now]
        writes = [bind(key, target[key]) for key in missed if Profile(target[key]) in now]
        if writes:
            change(host, writes, manifest.where)
