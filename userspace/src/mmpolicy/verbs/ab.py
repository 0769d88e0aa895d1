# SPDX-License-Identifier: GPL-2.0
"""`ab`: experiments."""

from __future__ import annotations

import click

from mmpolicy.verbs.group import Group

GROUPS = {
    "Run": {
        "run": "ab_run",
        "status": "ab_jobs",
        "stop": "ab_jobs",
        "list": "ab_jobs",
        "restore": "ab_restore",
    },
    "Say what was found": {
        "report": "ab_report",
        "pool": "ab_report",
        "plan": "ab_report",
    },
}


@click.group(cls=Group, groups=GROUPS)
def ab() -> None:
    """Compare two settings on this host by experiment."""
