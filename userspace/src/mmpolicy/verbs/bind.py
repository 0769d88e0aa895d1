# SPDX-License-Identifier: GPL-2.0
"""`bind` and `unbind`: which cgroups and processes a profile is for."""

from collections.abc import Callable
from typing import Any

import click

from mmpolicy.app import (
    App,
    complete_cgroup,
    complete_profile,
    dry_run_option,
    json_option,
    pass_app,
)
from mmpolicy.control.model import CONTROL
from mmpolicy.control.state import Write, process_key, profiles_of, read_state
from mmpolicy.errors import Error, Exit, pick
from mmpolicy.host.cgroups import find_cgroup
from mmpolicy.host.files import Tree
from mmpolicy.verbs.commit import commit

Command = Callable[..., Any]


def target_options(command: Command) -> Command:
    """Add the options that name a cgroup or a process."""
    cgroup = click.option(
        "--cgroup", metavar="PATH", shell_complete=complete_cgroup,
        help="A cgroup: its directory, its path below /sys/fs/cgroup, or a systemd unit.",
    )  # fmt: skip
    pid = click.option("--pid", type=click.IntRange(min=1), metavar="N", help="A process.")
    return cgroup(pid(command))


def _find(tree: Tree, cgroup: str | None, pid: int | None) -> str:
    """Return the key of what the options name."""
    if (cgroup is None) == (pid is None):
        raise click.UsageError("give either --cgroup PATH or --pid N")
    if cgroup is not None:
        return f"cgroups/{find_cgroup(tree, cgroup)}"
    key = process_key(tree, str(pid))
    if not key:
        raise Error(f"no process {pid}", Exit.USAGE, "ps lists processes")
    return key


def _number(key: str) -> str:
    return key.partition("@")[0].partition("/")[2]


@click.command()
@target_options
@click.argument("profile", shell_complete=complete_profile)
@dry_run_option
@json_option
@pass_app
def bind(
    app: App, cgroup: str | None, pid: int | None, profile: str, dry_run: bool, want_json: bool
) -> None:
    """Let a profile decide for a cgroup or a process.

    A cgroup stands for all below it too. What is bound elsewhere moves here. The nearest bound
    cgroup wins, and a process that is bound itself goes before its cgroup. What is mapped already
    stays as it is.
    """
    pick("profile", profile, profiles_of(read_state(app.tree)))
    key = _find(app.tree, cgroup, pid)
    file = f"{CONTROL}/profiles/{profile}/{key.partition('/')[0]}"
    commit(app, [Write(file, _number(key))], dry_run, want_json)


@click.command()
@target_options
@dry_run_option
@json_option
@pass_app
def unbind(app: App, cgroup: str | None, pid: int | None, dry_run: bool, want_json: bool) -> None:
    """Take a binding back.

    What decides then is the next bound cgroup above, or the default profile.
    """
    key = _find(app.tree, cgroup, pid)
    profile = read_state(app.tree).get(key)
    if not profile:
        what = f"cgroup '{cgroup}'" if cgroup else f"process {pid}"
        hint = "mmpolicy profile list shows what is bound"
        raise Error(f"{what} is not bound to a profile", Exit.USAGE, hint)
    file = f"{CONTROL}/profiles/{profile}/{key.partition('/')[0]}"
    commit(app, [Write(file, f"-{_number(key)}")], dry_run, want_json)
