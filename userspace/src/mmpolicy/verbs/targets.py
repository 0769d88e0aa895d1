# SPDX-License-Identifier: GPL-2.0
"""The options --cgroup, --pid and --unit, and the processes that they name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from mmpolicy.host.cgroups import Charged, cgroup_pids, find_cgroup
from mmpolicy.host.files import Tree
from mmpolicy.host.processes import check_memory, headless
from mmpolicy.memory.holds import Holds
from mmpolicy.verbs.options import PID, complete_cgroup, complete_pid, complete_unit

Command = Callable[..., Any]
EACH_START = "A systemd service, now and each time it starts."


def target_options(command: Command, of_unit: str = EACH_START) -> Command:
    """Return a command with the options --cgroup, --pid and --unit."""
    cgroup = click.option(
        "--cgroup", metavar="PATH", shell_complete=complete_cgroup,
        help="A cgroup: its directory, its path below /sys/fs/cgroup, or a systemd unit.",
    )  # fmt: skip
    pid = click.option(
        "--pid", type=PID, metavar="N", shell_complete=complete_pid,
        help="A process.",
    )  # fmt: skip
    unit = click.option(
        "--unit", metavar="NAME", shell_complete=complete_unit,
        help=of_unit,
    )  # fmt: skip
    return cgroup(pid(unit(command)))


def refuse_bare(given: str | None, verb: str) -> None:
    """Raise a usage error if a verb was given its target as a bare word, not as an option; the
    error suggests the right option. given: the word, or None.
    """
    if given:
        option = "--pid" if given.isdigit() else "--cgroup" if "/" in given else "--unit"
        raise click.UsageError(f"did you mean mmpolicy {verb} {option} {given}?")


def check_one(*given: object) -> None:
    """Raise a usage error unless exactly one of the values of --cgroup, --pid and --unit is set."""
    if sum(each is not None for each in given) != 1:
        raise click.UsageError("give one of --cgroup PATH, --pid N and --unit NAME")


def warn_if_slowed(holds: Holds) -> None:
    """Print a warning if the scheduler may take the CPU away from this command while it holds the
    mmap_lock of a program. The program's page faults would then wait.
    """
    if why := holds.slowed():
        click.echo(
            f"warning: this command may stop a program for as long as it waits for a CPU: {why}, "
            "and SCHED_FIFO is not permitted; start this command with SCHED_OTHER and nice 0",
            err=True,
        )


def find_processes(
    tree: Tree, verb: str, cgroup: str | None, pid: int | None, unit: str | None
) -> tuple[str, list[int]]:
    """Return the cgroup to which the memory of the target is charged ("" if not known), and the
    pids of its processes. Exactly one of the options must be set. A warning is printed for each
    process of a cgroup or unit whose main thread has ended.
    """
    check_one(cgroup, pid, unit)
    if pid is not None:
        check_memory(tree, pid, f"mmpolicy {verb} --pid")
        return Charged(tree).name(pid), [pid]
    path = find_cgroup(tree, cgroup or unit or "").name
    pids = [int(each) for each in cgroup_pids(tree, path)]
    for text in filter(None, (headless(tree, each) for each in pids)):
        click.echo(f"warning: {text}", err=True)
    return path, pids
