# SPDX-License-Identifier: GPL-2.0
"""`set` and `reset`: the verbs that write to the control tree."""

from collections.abc import Sequence

import click

from mmpolicy.control.change import Done
from mmpolicy.control.model import Control, Point
from mmpolicy.control.state import Write, assign, read_state
from mmpolicy.errors import pick
from mmpolicy.host.files import CONTROL
from mmpolicy.host.machine import Host
from mmpolicy.render import emit_plan
from mmpolicy.verbs.commit import alone, commit, keep_change
from mmpolicy.verbs.look import emit_points
from mmpolicy.verbs.options import (
    complete_point,
    complete_setting,
    dry_run_option,
    json_option,
    pass_host,
    profile_option,
)


def _parse(settings: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Split `POLICY KNOB=VALUE ...` into the policy, maybe empty, and the knobs."""
    policies = [word for word in settings if "=" not in word]
    pairs = [word.split("=", 1) for word in settings if "=" in word]
    knobs = dict(pairs)
    if len(policies) > 1:
        raise click.UsageError(f"one policy at a time, not: {', '.join(policies)}")
    if len(knobs) < len(pairs):
        raise click.UsageError("a knob is given twice")
    return policies[0] if policies else "", knobs


def _plan(point: Point, policy: str, knobs: dict[str, str]) -> list[Write]:
    """Return the writes: knobs first, so that a new policy starts with them."""
    if policy:
        pick(f"policy of {point.name}", policy, point.policies)
    owner = policy or point.active
    writes = [assign(point.find_knob(owner, knob), value) for knob, value in knobs.items()]
    return [*writes, assign(point.choice, policy)] if policy else writes


@click.command("set")
@click.argument("point", shell_complete=complete_point)
@click.argument(
    "settings", nargs=-1, required=True, metavar="[POLICY] [KNOB=VALUE]...",
    shell_complete=complete_setting,
)  # fmt: skip
@profile_option
@dry_run_option
@json_option
@pass_host
def set_point(
    host: Host, point: str, settings: tuple[str, ...], profile: str, dry_run: bool, want_json: bool
) -> None:
    """Switch a point to a policy, change knobs, or both.

    Without a policy, the knobs are those of the active one. Writes the knobs first. If the kernel
    refuses a write, the earlier ones are undone.
    """
    policy, knobs = _parse(settings)
    with alone(host, dry_run):
        target = Control(host.tree).point(profile, point)
        commit(host, _plan(target, policy, knobs), dry_run, want_json)


@click.command()
@dry_run_option
@json_option
@pass_host
def reset(host: Host, dry_run: bool, want_json: bool) -> None:
    """Go back to stock, at once.

    The state is then as after load, without profiles and bindings. Acknowledges an expired
    lease.
    """
    path = f"{CONTROL}/reset"
    before = read_state(host.tree)
    if dry_run:
        emit_plan("reset", want_json, [(path, "1")])
        return
    host.tree.write(path, "1")
    keep_change(host, Done(before, read_state(host.tree)))
    emit_points("reset", want_json, host.tree, dry_run=False)
