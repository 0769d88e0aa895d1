# SPDX-License-Identifier: GPL-2.0
"""The `mmpolicy` command: its options and verbs."""

from __future__ import annotations

import os

import click

from mmpolicy import __version__
from mmpolicy.host.files import CONTROL, Tree
from mmpolicy.host.machine import Host
from mmpolicy.verbs.group import Verbs

# file in verbs/ of each verb, by section; it is imported when the verb is used
GROUPS = {
    "Look": {
        "status": "status",
        "list": "look",
        "show": "look",
        "stats": "stats",
        "watch": "stats",
        "explain": "explain",
        "recommend": "explain",
        "log": "history",
        "export": "export",
    },
    "Also without the module": {
        "doctor": "diagnose",
        "thp": "thp",
        "top": "top",
        "map": "memory_map",
        "trim": "trim",
        "collapse": "collapse",
        "maintain": "maintain",
    },
    "Change": {
        "set": "settings",
        "profile": "profile",
        "bind": "bind",
        "unbind": "bind",
        "lease": "lease",
    },
    "Go back": {
        "reset": "settings",
        "revert": "history",
    },
    "The state as a whole": {
        "apply": "apply",
        "save": "apply",
        "diff": "apply",
        "verify": "apply",
    },
    "The module": {
        "load": "module",
        "unload": "module",
    },
    "Policies in BPF": {
        "policy": "policy",
    },
    "Compare settings": {
        "try": "try_service",
        "ab": "ab",
        "bench": "bench",
        "calibrate": "calibrate",
    },
}


if "_MMPOLICY_COMPLETE" in os.environ:
    import mmpolicy.verbs.completion  # noqa: F401 (knows how bash divides words)


@click.group(
    cls=Verbs,
    groups=GROUPS,
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
)
@click.version_option(__version__, prog_name="mmpolicy")
@click.option("--root", default="/", hidden=True, help="For tests.")
@click.pass_context
def main(ctx: click.Context, root: str) -> None:
    """Switch Linux memory-management policies at run time.

    Without a verb it shows this host: what is set, who has most huge pages, what works here, and
    what to type next.

    Back to stock at once: `mmpolicy reset`. Where the command does not start:

    \b
    echo 1 >/sys/kernel/mmpolicy/reset

    \b
    Exit codes: 0 done, 1 failed, 2 wrong usage, 3 the kernel lacks the module,
    a hook or a feature, 4 no permission, 5 the kernel refused the value,
    6 drift found by verify, 7 the experiment is inconclusive, 8 its treatment
    is worse, 9 an experiment is in the way, 70 a fault of this command,
    128 and more ended by a signal.
    """
    if ctx.obj is None:
        ctx.obj = Host(Tree(root))
    if ctx.invoked_subcommand is None:
        if ctx.obj.tree.is_dir(CONTROL):
            status = main.get_command(ctx, "status")
            assert status
            ctx.invoke(status)
        from mmpolicy.verbs.overview import exit_of, overview

        for line in overview(ctx.obj):
            click.echo(line)
        ctx.exit(exit_of(ctx.obj))
