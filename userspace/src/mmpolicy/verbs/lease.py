# SPDX-License-Identifier: GPL-2.0
"""The verb `lease`: the kernel goes back to stock when the lease is not renewed in time."""

from __future__ import annotations

import click

from mmpolicy.control.keys import LEASE
from mmpolicy.control.model import Control, lease_of
from mmpolicy.control.state import assign
from mmpolicy.errors import Error, Exit
from mmpolicy.figures import figure
from mmpolicy.host.machine import Host
from mmpolicy.render import emit
from mmpolicy.verbs.commit import commit, exclusive
from mmpolicy.verbs.options import Seconds, dry_run_option, force_option, json_option, pass_host


@click.command()
@click.argument("time", required=False, type=Seconds(least=0))
@force_option
@dry_run_option
@json_option
@pass_host
def lease(host: Host, time: float | None, force: bool, dry_run: bool, want_json: bool) -> None:
    """Show the lease, or set it.

    TIME is 30, 90s, 10m or 2h, for example. Everything goes back to stock unless the lease is
    renewed in time. Each call with TIME renews it. 0 ends it.
    """
    control = Control(host.tree)
    data = lease_of(host.tree)
    if not data:
        hint = "install a newer module, then mmpolicy unload, mmpolicy load"
        raise Error("the loaded module is too old for leases", Exit.LACKING, hint)
    if time is not None:
        with exclusive(host, dry_run, force):
            write = assign(LEASE, str(round(time * 1000)))
            commit(host, [write], dry_run, want_json)
        return
    lease_s, left_s = data["lease_ms"] / 1000, data["lease_left_ms"] / 1000
    line = f"lease: {figure(lease_s)} s, {figure(left_s)} s left" if lease_s else "no lease"
    emit("lease", want_json, {"state": control.state, **data}, [line, f"state: {control.state}"])
