# SPDX-License-Identifier: GPL-2.0
"""`lease`: a time after which the kernel goes back to stock by itself."""

import click

from mmpolicy.app import App, dry_run_option, json_option, pass_app
from mmpolicy.control.model import CONTROL, Control, lease_of
from mmpolicy.control.state import Write
from mmpolicy.errors import Error, Exit
from mmpolicy.render import emit
from mmpolicy.verbs.commit import commit


@click.command()
@click.argument("seconds", required=False, type=click.FloatRange(min=0))
@dry_run_option
@json_option
@pass_app
def lease(app: App, seconds: float | None, dry_run: bool, want_json: bool) -> None:
    """Show the lease, or set it.

    Without a renewal in time, everything goes back to stock. Each setting renews it; 0 ends it.
    """
    control = Control(app.tree)
    data = lease_of(app.tree)
    if not data:
        hint = "mmpolicy unload, then load a newer one"
        raise Error("this module has no lease", Exit.LACKING, hint)
    if seconds is not None:
        write = Write(f"{CONTROL}/lease_ms", str(round(seconds * 1000)))
        commit(app, [write], dry_run, want_json)
        return
    lease_s, left_s = data["lease_ms"] / 1000, data["lease_left_ms"] / 1000
    line = f"lease: {lease_s:g} s, {left_s:g} s left" if lease_s else "no lease"
    emit("lease", want_json, {"state": control.state, **data}, [line, f"state: {control.state}"])
