# SPDX-License-Identifier: GPL-2.0
"""`ab restore`: restore knobs that a killed run and its killed watchdog have left changed."""

from __future__ import annotations

import os
from math import inf

import click

from mmpolicy.ab.run.keeper import left_behind, put_back
from mmpolicy.control.change import StateChange
from mmpolicy.control.experiment import LOCK, RESTORE
from mmpolicy.host.machine import Host
from mmpolicy.render import emit
from mmpolicy.verbs.commit import emit_plan, keep_change
from mmpolicy.verbs.options import dry_run_option, json_option, pass_host


@click.command()
@click.option("--wait", is_flag=True, help="Wait until a running experiment has ended.")
@dry_run_option
@json_option
@pass_host
def restore(host: Host, wait: bool, dry_run: bool, want_json: bool) -> None:
    """Restore the knobs of a run that was killed together with its watchdog.

    `ab run` also does this before it begins, and mmpolicy-restore.service whenever a run ends.
    """
    with host.tree.locked(LOCK, f"{RESTORE}{os.getpid()}", inf if wait else 0.0):
        if dry_run:
            keeper = left_behind(host.tree)
            emit_plan("ab restore", want_json, keeper.rehearsal() if keeper else ())
            return
        note = put_back(host.tree)
        if note:
            keep_change(host, StateChange({}, {}), note)
    data = {"dry_run": False, "restored": note}
    emit("ab restore", want_json, data, [note or "no killed experiment has left knobs changed"])
