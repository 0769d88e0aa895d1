# SPDX-License-Identifier: GPL-2.0
"""The `mmpolicy` command: its options, and the verbs it has."""

import click

from mmpolicy import __version__
from mmpolicy.host.files import Tree
from mmpolicy.host.machine import Host
from mmpolicy.verbs import (
    ab,
    apply,
    bind,
    diagnose,
    export,
    history,
    lease,
    look,
    memory_map,
    module,
    profile,
    settings,
    stats,
    status,
)
from mmpolicy.verbs.group import Verbs


@click.group(
    cls=Verbs,
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
)
@click.version_option(__version__, prog_name="mmpolicy")
@click.option("--root", default="/", hidden=True, help="For tests.")
@click.pass_context
def main(ctx: click.Context, root: str) -> None:
    """Switch Linux memory-management policies at run time.

    Without a verb it is `mmpolicy status`.

    \b
    Exit codes: 0 done, 1 failed, 2 wrong usage, 3 the kernel lacks the module,
    a hook or a feature, 4 no permission, 5 the kernel refused the value,
    6 drift found by verify, 7 the experiment is inconclusive, 8 its treatment
    is worse.
    """
    if ctx.obj is None:
        ctx.obj = Host(Tree(root))
    if ctx.invoked_subcommand is None:
        ctx.invoke(status.status)


for verb in (
    status.status,
    diagnose.doctor,
    module.load,
    module.unload,
    look.list_points,
    look.show,
    settings.set_point,
    settings.reset,
    profile.profile,
    bind.bind,
    bind.unbind,
    lease.lease,
    apply.apply,
    apply.save,
    apply.diff,
    apply.verify,
    history.revert,
    history.log,
    stats.stats,
    stats.watch,
    export.export,
    memory_map.map_memory,
    ab.ab,
):
    main.add_command(verb)
