# SPDX-License-Identifier: GPL-2.0
"""`load` and `unload`: the kernel module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from mmpolicy.control.attach import settle_to_unload
from mmpolicy.control.change import StateChange
from mmpolicy.control.experiment import PROFILES, end_it, in_the_way, running
from mmpolicy.control.keys import Profile
from mmpolicy.control.model import check_loaded
from mmpolicy.control.programs import UNLOAD_ALL, programs
from mmpolicy.errors import Error, Exit, pick
from mmpolicy.host.files import CONTROL, MODULE, MODULE_DIR
from mmpolicy.host.machine import Host
from mmpolicy.host.step import Step
from mmpolicy.render import emit
from mmpolicy.verbs.commit import emit_plan, keep_change
from mmpolicy.verbs.look import emit_points
from mmpolicy.verbs.options import (
    completer,
    dry_run_option,
    force_option,
    json_option,
    pass_host,
)

ARM = PROFILES["treatment"]

if TYPE_CHECKING:
    from mmpolicy.host.kmod import Kmod


def _check_options(kmod: Kmod, options: Sequence[str]) -> None:
    """Raise a usage error for parameters that the module does not have, as the kernel would ignore
    them silently. A module file without any parameter is a stub that refuses to load. Its options
    are not checked, as its error at loading tells more.
    """
    info = kmod.info(MODULE)
    known = {value.partition(":")[0] for key, value in info if key in ("parm", "parmtype")}
    for option in options:
        name, equals, _ = option.partition("=")
        if not equals or option.split() != [option]:
            raise click.UsageError(f"'{option}' is not of the form POINT=POLICY")
        if known:
            pick("module parameter", name, known)


@click.command()
@click.argument(
    "options", nargs=-1, metavar="[POINT=POLICY]...", shell_complete=completer("parameter")
)
@dry_run_option
@json_option
@pass_host
def load(host: Host, options: tuple[str, ...], dry_run: bool, want_json: bool) -> None:
    """Load the kernel module.

    All points are then stock, except those that you give a policy. Options from modprobe.d apply
    too. The ones given here come after them and win.
    """
    loaded = host.tree.exists(MODULE_DIR)
    if loaded and options:
        hint = "mmpolicy set POINT POLICY sets a policy now; or mmpolicy unload first"
        raise Error(
            f"the module {MODULE} is loaded already, so options of load have no effect",
            Exit.FAILED,
            hint,
        )
    plan: list[Step] = []
    if not loaded:
        path, kmod = host.module_file(), host.kmod()
        _check_options(kmod, options)
        text = " ".join(filter(None, ("load", kmod.options(MODULE), *options)))
        plan = [Step(path, text, "not loaded", "loaded")]
    if dry_run:
        emit_plan("load", want_json, plan)
        return
    if not loaded:
        host.kmod().insert(MODULE, " ".join(options))
        keep_change(host, StateChange({}, {}), f"loaded {' '.join(options)}".rstrip())
    emit_points("load", want_json, host.tree, dry_run=False, loaded=True)


@click.command()
@force_option
@dry_run_option
@json_option
@pass_host
def unload(host: Host, force: bool, dry_run: bool, want_json: bool) -> None:
    """Unload the kernel module; the kernel goes back to stock.

    Policies in BPF keep the module loaded: `mmpolicy policy unload --all` unloads them first. The
    command waits up to 30 s until no task is in a hooked function of the kernel; if a busy task
    takes longer, the module stays loaded, with all points at stock.
    """
    loaded = host.tree.exists(MODULE_DIR)
    if names := [each.name for each in programs(host.tree)]:
        text = f"the module cannot be unloaded, as these policies in BPF use it: {', '.join(names)}"
        raise Error(text, Exit.REFUSED, UNLOAD_ALL)
    if dry_run and (loaded or want_json):
        step = Step(MODULE_DIR, "unload", "loaded", "not loaded")
        emit_plan("unload", want_json, [step] if loaded else [])
        return
    if loaded and (who := running(host.tree)) and host.tree.is_dir(Profile(ARM).path):
        if not force:
            raise in_the_way(who)
        end_it(host.tree)
    if loaded:
        if host.tree.is_dir(CONTROL) and check_loaded(host.tree) != "stock":
            settle_to_unload(host, lambda text: click.echo(text, err=True))
        host.kmod().remove(MODULE)
        keep_change(host, StateChange({}, {}), "unloaded, the kernel is stock again")
    data = {"dry_run": dry_run, "loaded": host.tree.exists(MODULE_DIR)}
    text = "unloaded, the kernel is stock again" if loaded else "was not loaded"
    emit("unload", want_json, data, [f"{MODULE}: {text}"])
