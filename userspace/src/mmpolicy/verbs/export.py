# SPDX-License-Identifier: GPL-2.0
"""`export`: state and counters for a monitoring system."""

import click

from mmpolicy.host.files import MODULE
from mmpolicy.host.machine import Host
from mmpolicy.render import emit
from mmpolicy.verbs.options import pass_host


@click.command()
@click.option(
    "--format", "form", type=click.Choice(["prometheus", "json"]), default="prometheus",
    show_default=True,
)  # fmt: skip
@pass_host
def export(host: Host, form: str) -> None:
    """Print the state and all counters for a monitoring system.

    As a file for the textfile collector of node_exporter, or as JSON. Where the counters cannot
    be read, mmpolicy_counters_up is 0, and the state is printed all the same.
    """
    from mmpolicy.control.prometheus import families, text

    found = families(host.tree)
    values = [
        {"metric": name.removeprefix(f"{MODULE}_"), "labels": labels, "value": value}
        for family in found
        for name, labels, value, *_ in family.samples
    ]
    emit("export", form == "json", {"metrics": values}, [text(found).rstrip()])
