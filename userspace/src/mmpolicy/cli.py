# SPDX-License-Identifier: GPL-2.0
"""The `mmpolicy` command: its options, and the verbs it has."""

import click

from mmpolicy import __version__
from mmpolicy.host.files import Tree
from mmpolicy.host.machine import Host
from mmpolicy.verbs.group import Verbs

# The file in verbs/ that has it; it is imported when the verb is asked for.
VERBS = {
    "status": "status",
    "doctor": "diagnose",
    "load": "module",
    "unload": "module",
    "list": "look",
    "show": "look",
    "set": "settings",
    "reset": "settings",
    "profile": "profile",
    "bind": "bind",
    "unbind": "bind",
    "lease": "lease",
    "apply": "apply",
    "save": "apply",
    "diff": "apply",
    "verify": "apply",
    "revert": "history",
    "log": "history",
    "stats": "stats",
    "watch": "stats",
    "export": "export",
    "host": "evidence",
    "map": "memory_map",
    "explain": "explain",
    "recommend": "explain",
    "ab": "ab",
}


@click.group(
    cls=Verbs,
    verbs=VERBS,
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
)
@click.version_option(__version__, prog_name="mmpolicy")
@click.option("--root", default="/", hidden=True, help="For tests.")
@click.pass_context
def main(ctx: click.Context, root: str) -> None:
    """Switch Linux memory-management policies at run time.

    Without a verb it runs `mmpolicy status`.

    \b
    Exit codes: 0 done, 1 failed, 2 wrong usage, 3 the kernel lacks the module,
    a hook or a feature, 4 no permission, 5 the kernel refused the value,
    6 drift found by verify, 7 the experiment is inconclusive, 8 its treatment
    is worse.
    """
    if ctx.obj is None:
        ctx.obj = Host(Tree(root))
    if ctx.invoked_subcommand is None:
        status = main.get_command(ctx, "status")
        assert status
        ctx.invoke(status)
