# SPDX-License-Identifier: GPL-2.0
"""`bind` and `unbind`: which cgroups and processes a profile is for."""

from collections.abc import Callable
from typing import Any

import click

from mmpolicy.control.keys import Binding, CgroupBinding
from mmpolicy.control.state import bind as bind_write
from mmpolicy.control.state import process_key, profiles_of, read_state
from mmpolicy.control.state import unbind as unbind_write
from mmpolicy.errors import Error, Exit, pick
from mmpolicy.host.cgroups import find_cgroup
from mmpolicy.host.files import Tree
from mmpolicy.host.machine import Host
from mmpolicy.verbs.commit import alone, commit
from mmpolicy.verbs.options import (
    complete_cgroup,
    complete_profile,
    dry_run_option,
    json_option,
    pass_host,
)

Command = Callable[..., Any]


def target_options(command: Command) -> Command:
    """Add the options that name a cgroup or a process."""
    cgroup = click.option(
        "--cgroup", metavar="PATH", shell_complete=complete_cgroup,
        help="A cgroup: its directory, its path below /sys/fs/cgroup, or a systemd unit.",
    )  # fmt: skip
    pid = click.option("--pid", type=click.IntRange(min=1), metavar="N", help="A process.")
    return cgroup(pid(command))


def _find(tree: Tree, cgroup: str | None, pid: int | None) -> Binding:
    """Return the key of what the options name."""
    if (cgroup is None) == (pid is None):
        raise click.UsageError("give either --cgroup PATH or --pid N")
    if cgroup is not None:
        return CgroupBinding(int(find_cgroup(tree, cgroup)))
    assert pid is not None
    key = process_key(tree, pid)
    if not key:
        raise Error(f"no process {pid}", Exit.USAGE, "ps lists processes")
    return key


@click.command()
@target_options
@click.argument("profile", shell_complete=complete_profile)
@dry_run_option
@json_option
@pass_host
def bind(
    host: Host, cgroup: str | None, pid: int | None, profile: str, dry_run: bool, want_json: bool
) -> None:
    """Let a profile decide for a cgroup or a process.

    A cgroup stands for all below it too. What is bound elsewhere moves here. The nearest bound
    cgroup wins, and a process that is bound itself goes before its cgroup. What is mapped already
    stays as it is.
    """
    with alone(host, dry_run):
        pick("profile", profile, profiles_of(read_state(host.tree)))
        key = _find(host.tree, cgroup, pid)
        commit(host, [bind_write(key, profile)], dry_run, want_json)


@click.command()
@target_options
@dry_run_option
@json_option
@pass_host
def unbind(host: Host, cgroup: str | None, pid: int | None, dry_run: bool, want_json: bool) -> None:
    """Take a binding back.

    What decides then is the next bound cgroup above, or the default profile.
    """
    with alone(host, dry_run):
        key = _find(host.tree, cgroup, pid)
        profile = read_state(host.tree).get(key)
        if not profile:
            what = f"cgroup '{cgroup}'" if cgroup else f"process {pid}"
            hint = "mmpolicy profile list shows what is bound"
            raise Error(f"{what} is not bound to a profile", Exit.USAGE, hint)
        commit(host, [unbind_write(key, profile)], dry_run, want_json)
