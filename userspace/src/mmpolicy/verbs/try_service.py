# SPDX-License-Identifier: GPL-2.0
"""`try`: whether a change of memory policy can pay for a service, and which one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import click

from mmpolicy.errors import Error, Exit
from mmpolicy.host.cgroups import find_cgroup
from mmpolicy.host.evidence import THP
from mmpolicy.host.files import CONTROL
from mmpolicy.host.machine import Host
from mmpolicy.memory.findings import option_of
from mmpolicy.memory.reach import enabled
from mmpolicy.memory.trim import modes
from mmpolicy.memory.worth import Candidate, Seen, hints, judge
from mmpolicy.render import emit
from mmpolicy.verbs.options import (
    Seconds,
    complete_cgroup,
    complete_unit,
    json_option,
    pass_host,
)
from mmpolicy.verbs.reached import SHOWN
from mmpolicy.verbs.try_look import abilities, look, run_time

LOOK_S = 60.0
PRESET = "adaptive"  # all presets take the same time


@click.command("try")
@click.option(
    "--unit", metavar="NAME", shell_complete=complete_unit, help="A systemd unit that runs."
)
@click.option(
    "--cgroup", metavar="PATH", shell_complete=complete_cgroup,
    help="A cgroup: its directory, or its path below /sys/fs/cgroup.",
)  # fmt: skip
@click.option(
    "--seconds", type=Seconds(), default=LOOK_S, show_default=True, metavar="TIME",
    help="How long to look.",
)  # fmt: skip
@json_option
@pass_host
def try_service(
    host: Host, unit: str | None, cgroup: str | None, seconds: float, want_json: bool
) -> None:
    """Say if a change of memory policy can pay for a service, and which one; changes nothing.

    Looks at the service for a minute: the memory that it wastes, the most CPU time that its page
    faults can cost, and whether policies reach it. Below 1 % of a CPU, and 32 MiB or 5 % of its
    memory, the answer is "not worth it", with the figures. Else it prints the candidates that this
    host can have, the largest predicted gain first: the commands, their time, their price, the way
    back, and whether a switchback can prove them. It needs no module.

    Exits with 0 whatever the verdict is; --json has it.
    """
    if (unit is None) == (cgroup is None):
        raise click.UsageError("give one of --unit NAME and --cgroup PATH")
    path = find_cgroup(host.tree, unit or cgroup or "").name
    if path == "/":
        raise Error("/ is the whole host, no service", Exit.USAGE, "mmpolicy recommend")
    seen = look(host, path, seconds)
    here = abilities(host, option_of(path), path, run_time(PRESET))
    verdict, why, candidates = judge(seen, here)
    data = {
        "cgroup": path, "verdict": verdict, "why": why, "seen": asdict(seen),
        "candidates": [{**asdict(each), "proof": each.proof} for each in candidates],
        "notes": [*hints(seen, here.target)],
    }  # fmt: skip
    emit("try", want_json, data, lambda: [
        *_seen_lines(host, path, seen),
        f"verdict: {verdict}: {why}",
        *_candidate_lines(candidates),
        *(f"note: {text}" for text in hints(seen, here.target)),
    ])  # fmt: skip


def _seen_lines(host: Host, path: str, seen: Seen) -> Iterator[str]:
    mib = {name: getattr(seen, f"{name}_kib") / 1024
           for name in ("memory", "private", "waste", "error")}  # fmt: skip
    yield f"{path}: {seen.processes} processes, looked at for {seen.seconds:.0f} s"
    yield (
        f"  CPU      {seen.cpu:.2g} % of a CPU, {seen.kernel:.2g} % in the kernel; "
        f"{seen.faults:.0f} page faults a second"
    )
    yield (
        f"  faults   cost at most {seen.fault_cpu:.2g} % of a CPU, of which folios of 64 kB save "
        f"at most {seen.gain:.2g} % ({seen.cost_from})"
    )
    yield (
        f"  memory   {mib['memory']:.0f} MiB, {mib['private']:.0f} MiB of it private, of which "
        f"{mib['waste']:.0f} MiB (+- {mib['error']:.0f}) are empty parts of large folios"
    )
    yield f"  host     {_host_words(host)}"
    for each in seen.barriers[:SHOWN]:
        yield f"  reach    {each}"


def _candidate_lines(candidates: list[Candidate]) -> Iterator[str]:
    for number, each in enumerate((one for one in candidates if not one.why_not), 1):
        yield from _of_candidate(number, each)
    for each in candidates:
        if each.why_not:
            yield f"not here: {each.name} ({each.gain}): {each.why_not}; next: {each.next_step}"


def _host_words(host: Host) -> str:
    """Return the defaults of the host."""
    sizes = (f"{size} kB {mode}" for size, mode in modes(host.tree).items() if mode != "never")
    loaded = "the module is loaded" if host.tree.is_dir(CONTROL) else "the module is not loaded"
    given = f"folios: {', '.join(sizes) or 'none'}"
    return f"{THP}/enabled is {enabled(host.tree) or 'not there'}; {given}; {loaded}"


def _of_candidate(number: int, each: Candidate) -> Iterator[str]:
    yield f"{number}. {each.name}: {each.gain}"
    yield f"   do: {' && '.join(each.commands)}"
    yield f"   time: {each.time}"
    yield f"   price: {each.price}"
    yield f"   way back: {each.undo}"
    yield f"   proof: {each.proof}"
