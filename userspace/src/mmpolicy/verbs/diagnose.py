# SPDX-License-Identifier: GPL-2.0
"""`doctor`: check what this host has and lacks, and print the next step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import click

from mmpolicy.control.ready import CHECKS, check_can_load, verdict
from mmpolicy.errors import Exit
from mmpolicy.host.doctor import Check, Facts
from mmpolicy.host.machine import Host
from mmpolicy.render import blocks, emit, paint, wrapped
from mmpolicy.verbs.here import Verb, as_data, as_lines, verbs_here, without_module
from mmpolicy.verbs.options import completer, json_option, pass_host

COLOURS = {"ok": "green", "warn": "yellow", "fail": "red", "-": "white"}
RESULTS = {
    Exit.DONE: "Policies can be switched",
    Exit.LACKING: "Policies cannot be switched",
    Exit.DENIED: "Policies cannot be switched by you",
}
# names of the checks that still matter on a kernel that can never load the module
WITHOUT_MODULE = ("kernel", "thp", "left")


class Findings(NamedTuple):
    """The result of `doctor`: its verdict, the verbs that work, and the checks that matter on this
    host.
    """

    verdict: str
    result: Exit
    works: list[Verb]
    checks: list[Check]

    def lines(self) -> Iterator[str]:
        """Yield the lines that `doctor` prints."""
        yield f"{self.verdict} (exit {int(self.result)})"
        for line in as_lines(self.works) if self.result != Exit.DONE else ():
            yield from wrapped(line, "  ")
        yield ""
        rows = [
            (paint(each.status, COLOURS[each.status]), each.name, each.detail)
            for each in self.checks
        ]
        for lines, check in zip(blocks(("", "CHECK", "FOUND"), rows)[1:], self.checks):
            yield from lines
            if check.next_step:
                yield from wrapped(f"next: {check.next_step}", "      ")


def look(host: Host, facts: Facts, everything: bool) -> Findings:
    """Make all checks of `doctor`, and return its result. everything: keep also the checks that do
    not matter on a kernel that can never load the module.
    """
    from mmpolicy.verbs.fit import check_kernel

    checks = [check(facts) for check in (check_kernel, *CHECKS)]
    result = verdict(checks)
    text = RESULTS[result]
    if result == Exit.LACKING and not facts.loaded:
        found = without_module(host)
        text = found.text
        if found.never and not everything:
            checks = [check for check in checks if check.name in WITHOUT_MODULE]
    return Findings(text, result, verbs_here(host), checks)


@click.command()
@click.option(
    "--can-load",
    is_flag=True,
    help="Print nothing, and return by the exit code whether the module can be loaded.",
)
@click.option(
    "--kernel",
    "image",
    metavar="VERSION|IMAGE",
    shell_complete=completer("kernel"),
    help="Print which points a kernel could have, by its image; it need not be running.",
)
@click.option("--brief", is_flag=True, help="With --kernel: one line.")
@click.option(
    "--all", "everything", is_flag=True, help="Also print checks that do not matter on this kernel."
)
@json_option
@pass_host
def doctor(
    host: Host, can_load: bool, image: str | None, brief: bool, everything: bool, want_json: bool
) -> None:  # fmt: skip
    """Say what is there, what is missing, and what to do next.

    Works on any machine. The first line says if policies can be switched, the next ones which
    verbs work without that. Exits with 0 only if policies can be switched now, with 4 if only
    permission is missing, and with 3 otherwise.

    With --kernel, it reads the image of an installed kernel, or a file: a vmlinuz, a vmlinux or a
    Debian package. It exits with 3 if no point can be had there.
    """
    if image:
        from mmpolicy.verbs.fit import show_fit

        click.get_current_context().exit(int(show_fit(host.tree, image, brief, want_json)))
    facts = Facts(host)
    if can_load:
        click.get_current_context().exit(int(check_can_load(facts)))
    found = look(host, facts, everything or want_json)
    data = {
        "ready": found.result == Exit.DONE,
        "exit": int(found.result),
        "verdict": found.verdict,
        **as_data(found.works),
        "checks": [check._asdict() for check in found.checks],
    }
    emit("doctor", want_json, data, found.lines())
    click.get_current_context().exit(int(found.result))
