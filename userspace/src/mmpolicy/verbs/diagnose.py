# SPDX-License-Identifier: GPL-2.0
"""`doctor`: what is there, what is missing, and the next step."""

from __future__ import annotations

from collections.abc import Iterator

import click

from mmpolicy.control.ready import CHECKS, check_can_load, verdict
from mmpolicy.errors import Exit
from mmpolicy.host.doctor import Check, Facts
from mmpolicy.host.machine import Host
from mmpolicy.render import blocks, emit, paint, wrapped
from mmpolicy.verbs.options import completer, json_option, pass_host

COLOURS = {"ok": "green", "warn": "yellow", "fail": "red", "-": "white"}
RESULTS = {
    Exit.DONE: "policies can be switched",
    Exit.LACKING: "policies cannot be switched",
    Exit.DENIED: "policies cannot be switched by you",
}


def _lines(checks: list[Check], result: Exit) -> Iterator[str]:
    rows = [(paint(each.status, COLOURS[each.status]), each.name, each.detail) for each in checks]
    for lines, check in zip(blocks(("", "CHECK", "FOUND"), rows)[1:], checks):
        yield from lines
        if check.next_step:
            yield from wrapped(f"next: {check.next_step}", "      ")
    yield f"{RESULTS[result]} (exit {int(result)})"


@click.command()
@click.option(
    "--can-load", is_flag=True, help="Only tell, by the exit code, if the module can be loaded."
)
@click.option(
    "--kernel",
    "image",
    metavar="VERSION|IMAGE",
    shell_complete=completer("kernel"),
    help="Tell which points this kernel would have, from its image; it need not run.",
)
@click.option("--brief", is_flag=True, help="With --kernel: one line.")
@json_option
@pass_host
def doctor(
    host: Host, can_load: bool, image: str | None, brief: bool, want_json: bool
) -> None:  # fmt: skip
    """Say what is there, what is missing, and what to do next.

    Works on any machine. Exits with 0 only if policies can be switched now,
    with 4 if only permission is missing, and with 3 otherwise.

    With --kernel, it reads the image of an installed kernel, or a file: a vmlinuz, a vmlinux or a
    Debian package. It exits with 3 if no point can be had there.
    """
    if image:
        from mmpolicy.verbs.fit import show_fit

        click.get_current_context().exit(int(show_fit(host.tree, image, brief, want_json)))
    facts = Facts(host)
    if can_load:
        click.get_current_context().exit(int(check_can_load(facts)))
    from mmpolicy.verbs.fit import check_kernel

    checks = [check(facts) for check in (check_kernel, *CHECKS)]
    result = verdict(checks)
    details = [check._asdict() for check in checks]
    data = {"ready": result == Exit.DONE, "exit": int(result), "checks": details}
    emit("doctor", want_json, data, _lines(checks, result))
    click.get_current_context().exit(int(result))
