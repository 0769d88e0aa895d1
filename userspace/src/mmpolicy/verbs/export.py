# SPDX-License-Identifier: GPL-2.0
"""`export`: state and counters for a monitoring system."""

from __future__ import annotations

import re
from pathlib import Path

import click

from mmpolicy.errors import Error, Exit
from mmpolicy.host.disk import save_as
from mmpolicy.host.files import MODULE
from mmpolicy.host.machine import Host
from mmpolicy.render import as_json
from mmpolicy.verbs.options import pass_host

LONG_S = 3600.0  # the main thread sleeps, while others answer requests


def _listen(host: Host, given: str) -> None:
    """Serve Prometheus over HTTP until the process ends."""
    from prometheus_client import start_http_server

    from mmpolicy.control.prometheus import families_or_down, registry

    address, _, port = given.rpartition(":")
    if not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
        raise click.UsageError(f"'{given}' is not of the form [ADDRESS:]PORT")
    find = registry(lambda: families_or_down(host.tree))
    try:
        start_http_server(int(port), address.strip("[]") or "127.0.0.1", find)
    except OSError as err:
        hint = "give another [ADDRESS:]PORT"
        raise Error(f"cannot listen on {given}: {err}", Exit.FAILED, hint) from err
    while True:
        host.sleep(LONG_S)


@click.command()
@click.option(
    "--format", "form", type=click.Choice(["prometheus", "json"]), default="prometheus",
    show_default=True,
)  # fmt: skip
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE.prom",
    help="Write a file, atomically, such as for the textfile collector of node_exporter.",
)  # fmt: skip
@click.option(
    "--listen", metavar="[ADDRESS:]PORT",
    help="Answer Prometheus over HTTP, on 127.0.0.1 if no address is given.",
)  # fmt: skip
@pass_host
def export(host: Host, form: str, output: Path | None, listen: str | None) -> None:
    """Print the state and all counters for a monitoring system.

    The format is that of Prometheus, or JSON. If the counters cannot be read, mmpolicy_counters_up
    is 0, and the state is still there.
    """
    from mmpolicy.control.prometheus import families_or_down, text

    if listen:
        _listen(host, listen)
    found = families_or_down(host.tree, _warn)
    values = [
        {"metric": name.removeprefix(f"{MODULE}_"), "labels": labels, "value": value}
        for family in found
        for name, labels, value, *_ in family.samples
    ]
    told = as_json("export", {"metrics": values}) if form == "json" else text(found).rstrip()
    if output:
        save_as(output, f"{told}\n".encode())
    else:
        click.echo(told)


def _warn(err: Error) -> None:
    click.echo(f"warning: {err.message}; next: {err.next_step}", err=True)
