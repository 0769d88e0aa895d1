# SPDX-License-Identifier: GPL-2.0
"""`set` and `reset`: the verbs that write to the control tree."""

from __future__ import annotations

from collections.abc import Sequence

import click

from mmpolicy.control.change import StateChange
from mmpolicy.control.journal import known_state
from mmpolicy.control.model import Control, Point, about, check_loaded
from mmpolicy.control.programs import UNLOAD_ALL, programs
from mmpolicy.control.state import Write, assign, read_state
from mmpolicy.errors import Error, pick
from mmpolicy.host.calibration import PAGE, dear_in, read_calibration
from mmpolicy.host.files import CONTROL, MODULE, MODULE_DIR
from mmpolicy.host.machine import Host
from mmpolicy.host.step import Step
from mmpolicy.render import emit
from mmpolicy.verbs.commit import commit, emit_plan, exclusive, keep_change, tell_settled
from mmpolicy.verbs.look import emit_points
from mmpolicy.verbs.options import (
    complete_point,
    complete_setting,
    dry_run_option,
    force_option,
    json_option,
    pass_host,
    profile_option,
    wait_option,
)


def _parse(settings: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Split the words `POLICY KNOB=VALUE ...` of `set` into the policy ("" if none is given) and
    the values of its knobs, by name.
    """
    policies = [word for word in settings if "=" not in word]
    pairs = [word.split("=", 1) for word in settings if "=" in word]
    knobs = dict(pairs)
    if len(policies) > 1:
        raise click.UsageError(f"give one policy, not several: {', '.join(policies)}")
    if len(knobs) < len(pairs):
        raise click.UsageError("a knob is given twice")
    return policies[0] if policies else "", knobs


def _plan(point: Point, policy: str, knobs: dict[str, str]) -> list[Write]:
    """Return the writes that set the knobs of a hook point and its policy; policy: "" leaves the
    active one. The writes of knobs come first, so that a new policy starts with the given values.
    """
    if policy:
        pick(f"policy of {point.name}", policy, point.policies)
    owner = policy or point.active
    writes = [assign(point.find_knob(owner, knob), value) for knob, value in knobs.items()]
    return [*writes, assign(point.choice, policy)] if policy else writes


def _warn_of_dear(host: Host, point: Point, policy: str, knobs: dict[str, str]) -> None:
    """Warn if a knob of a policy sets a folio size that is too dear: `calibrate --all-cpus` found
    that it costs more per page than single pages if many CPUs fault at once.
    """
    for name, value in knobs.items():
        told = about(host.tree, point.find_knob(policy or point.active, name))
        if not (told and told.unit.startswith("order") and value.isdecimal()):
            continue
        costs = read_calibration(host.tree, busy=0.0)
        if costs and (dear := dear_in(costs.together, PAGE << int(value))):
            text = f"{name}={value}: folios of {dear.size >> 10} kB cost more than single pages"
            text += f" where {dear.cpus} CPUs fault at once, by mmpolicy calibrate --all-cpus"
            click.echo(f"warning: {text}", err=True)


@click.command("set")
@click.argument("point", shell_complete=complete_point)
@click.argument(
    "settings", nargs=-1, required=True, metavar="[POLICY] [KNOB=VALUE]...",
    shell_complete=complete_setting,
)  # fmt: skip
@profile_option
@force_option
@wait_option
@dry_run_option
@json_option
@pass_host
def set_point(
    host: Host,
    point: str,
    settings: tuple[str, ...],
    profile: str,
    force: bool,
    wait: bool,
    dry_run: bool,
    want_json: bool,
) -> None:
    """Switch a point to a policy, change knobs, or both.

    Without a policy, the knobs are those of the active one. Writes the knobs first. If the kernel
    refuses a write, the earlier ones are undone.
    """
    policy, knobs = _parse(settings)
    with exclusive(host, dry_run, force):
        target = Control(host.tree).point(profile, point)
        plan = _plan(target, policy, knobs)
        _warn_of_dear(host, target, policy, knobs)
        commit(host, plan, dry_run, want_json, wait=wait)


@click.command()
@wait_option
@dry_run_option
@json_option
@pass_host
def reset(host: Host, wait: bool, dry_run: bool, want_json: bool) -> None:
    """Go back to stock, at once.

    The state is then as after load, without profiles and bindings. Acknowledges an expired
    lease. Policies in BPF stay loaded. It needs no more than the kernel, so this does the same
    without the command:

    \b
    echo 1 >/sys/kernel/mmpolicy/reset
    """
    path = f"{CONTROL}/reset"
    if not host.tree.exists(MODULE_DIR) and not host.tree.is_dir(CONTROL):
        data = {"dry_run": dry_run, "state": "stock", "loaded": False}
        emit("reset", want_json, data, [f"{MODULE}: not loaded, the kernel is stock"])
        return
    if dry_run:
        step = Step(path, "1", check_loaded(host.tree), "stock")
        emit_plan("reset", want_json, [step])
        return
    # Write before any file is read: a file that cannot be read must not prevent the reset to stock.
    host.tree.write(path, "1")
    try:
        tell_settled(host, wait)
        now = read_state(host.tree)
        keep_change(
            host, StateChange(now | known_state(host.tree), now), "all points are set to stock"
        )
        names = [each.name for each in programs(host.tree)]
        emit_points("reset", want_json, host.tree, dry_run=False, loaded_policies=names)
        if names and not want_json:
            text = (
                "the module cannot be unloaded yet, as these policies in BPF are still "
                f"loaded: {', '.join(names)}; {UNLOAD_ALL}"
            )
            click.echo(text)
    except Error as err:
        text = f"warning: the kernel is at stock, but a later step of reset failed: {err.message}"
        click.echo(text, err=True)
