# SPDX-License-Identifier: GPL-2.0
"""`lease`: a time after which the kernel goes back to stock by itself."""

import click

from mmpolicy.app import App, dry_run_option, json_option, pass_app
from mmpolicy.errors import Error, Exit
from mmpolicy.model import CONTROL, Control
from mmpolicy.render import emit
from mmpolicy.state import Write
from mmpolicy.verbs.commit import commit


@click.command()
@click.argument("seconds", required=False, type=click.FloatRange(min=0))
@dry_run_option
@json_option
@pass_app
def lease(app: App, seconds: float | None, dry_run: bool, want_json: bool) -> None:
    """Show the lease, or set it: without a renewal in time, everything goes back to stock.

    Each setting renews it; 0 ends it.
    """
    control = Control(app.tree)
    if not app.tree.exists(f"{CONTROL}/lease_ms"):
        hint = "mmpolicy unload, then load a newer one"
        raise Error("this module has no lease", Exit.LACKING, hint)
    if seconds is not None:
        write = Write(f"{CONTROL}/lease_ms", str(round(seconds * 1000)))
        commit(app, [write], dry_run, want_json)
        return
    lease_ms, left_ms = (
        int(app.tree.read(f"{CONTROL}/{name}")) for name in ("lease_ms", "lease_left_ms")
    )
    lines = [f"lease: {lease_ms / 1000:g} s, {left_ms / 1000:g} s left" if lease_ms else "no lease"]
    data = {"state": control.state, "lease_ms": lease_ms, "lease_left_ms": left_ms}
    emit("lease", want_json, data, [*lines, f"state: {control.state}"])
