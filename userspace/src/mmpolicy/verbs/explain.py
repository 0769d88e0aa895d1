# SPDX-License-Identifier: GPL-2.0
"""`explain` and `recommend`: why a process has folios of its sizes, and which policy suits it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import click

from mmpolicy.control.bindings import profile_of
from mmpolicy.control.keys import (
    NO_PROFILES,
    NO_SHADOW,
    CgroupBinding,
    Profile,
    Setting,
    State,
    choice,
)
from mmpolicy.control.manifest import save
from mmpolicy.control.state import profiles_of, read_state, settings_of
from mmpolicy.errors import Error, Exit
from mmpolicy.host.cgroups import find_bindable
from mmpolicy.host.files import CONTROL
from mmpolicy.host.machine import Host
from mmpolicy.host.pagemap import PAGE
from mmpolicy.host.processes import Process, cgroup_of, check_memory
from mmpolicy.host.tracing import Recorded, record
from mmpolicy.memory.advice import Advice, advise
from mmpolicy.memory.explain import Explained, all_of, explain_areas
from mmpolicy.memory.folios import read_areas
from mmpolicy.memory.holds import Holds
from mmpolicy.memory.reach import ALL, Reach, reach
from mmpolicy.memory.space import Space
from mmpolicy.render import emit
from mmpolicy.verbs.around import look_around
from mmpolicy.verbs.memory_map import Progress
from mmpolicy.verbs.options import PID, Seconds, complete_pid, json_option, pass_host
from mmpolicy.verbs.reached import overrides

POINT = "anon_order"
UNLOADED = "the module is not loaded"


class Address(click.ParamType):
    """A parameter type: a hexadecimal address such as 7f3501c00000, with or without 0x."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return value if isinstance(value, int) else int(value, 16)
        except ValueError:
            self.fail(f"'{value}' is not an address such as 7f3501c00000", param, ctx)


class Seen(NamedTuple):
    """All that was found out about a process."""

    profile: str
    policy: str
    shadow: str
    areas: list[Explained]
    lost: int  # decisions that the trace buffer has lost
    reach: Reach
    loaded: bool  # True if the module is loaded
    longest_ms: float  # longest time that a read held the process's mmap_lock


PROCESS_S, HOST_S = 5.0, 60.0
seconds_option = click.option(
    "--seconds", type=Seconds(), default=PROCESS_S, show_default=True, metavar="TIME",
    help="How long to watch decisions.",
)  # fmt: skip
pid_argument = click.argument("pid", type=PID, shell_complete=complete_pid)


def _look(host: Host, process: Process, seconds: float) -> tuple[State, Seen]:
    pid = process.pid
    loaded = host.tree.is_dir(CONTROL)
    state = read_state(host.tree) if loaded else {}
    profile = profile_of(host.tree, state, pid) if loaded else "-"
    holds = Holds(host.tree)
    met = reach(host.tree, pid, holds, override=loaded and overrides(state, profile))
    recorded = Recorded([], 0)
    if loaded:
        recorded = record(host.tree, pid, lambda: host.sleep(seconds))
    process.check(host.tree)
    progress = Progress(host, Space(host.tree, pid, holds).sizes(), False, 0)
    areas = read_areas(host.tree, pid, contents=True, holds=holds, goes_on=progress.goes_on)
    progress.end()
    process.check(host.tree)
    found = explain_areas(areas, recorded.decisions)
    policy, shadow = "-", "none"
    if loaded:
        policy = state.get(choice(profile, POINT), policy)
        shadow = state.get(Setting(profile, POINT, "", "shadow"), shadow)
    longest = round(holds.longest_s * 1000, 1)
    return state, Seen(profile, policy, shadow, found, recorded.lost, met, loaded, longest)


@click.command()
@pid_argument
@click.argument("address", type=Address(), required=False)
@seconds_option
@json_option
@pass_host
def explain(host: Host, pid: int, address: int | None, seconds: float, want_json: bool) -> None:
    """Explain the folios of a process: their sizes, and why it has these.

    Prints for each anonymous memory area, or the one at ADDRESS, the folio sizes in use, how much
    of the large folios was never used, and for the page faults of some seconds which sizes the
    policy wanted and why. Does the same for a shadow policy, which is asked and not obeyed. Reasons
    for which no policy reaches some memory come first. To find unused pages, it reads all resident
    pages, which marks them as accessed. Without the module no policy decides, and only the folios
    and these reasons are shown.
    """
    process = check_memory(host.tree, pid, "mmpolicy explain")
    _, seen = _look(host, process, seconds)
    areas = [each for each in seen.areas if address is None or each.start <= address < each.end]
    if address is not None and not areas:
        text = f"process {pid} has no anonymous memory at {address:x}"
        raise Error(text, Exit.USAGE, f"mmpolicy explain {pid} lists the areas of the process")
    told = [each.as_data() for each in areas] if want_json else []
    data = {"pid": pid, **seen._asdict(), "areas": told, "reach": seen.reach.as_data()}
    emit("explain", want_json, data, lambda: _lines(seen, areas))


def _lines(seen: Seen, areas: list[Explained]) -> Iterator[str]:
    if seen.loaded:
        yield f"profile: {seen.profile}, policy: {seen.policy}, shadow: {seen.shadow}"
    else:
        yield f"{UNLOADED}, so the kernel decides by its own settings"
    yield from seen.reach.lines()
    yield from (f"not known: {text}" for text in seen.reach.unknown)
    for each in areas:
        yield f"{each.start:x}-{each.end:x} {each.name or '(anonymous)'}"
        yield from each.lines()
    if seen.loaded and not any(each.wanted.orders or each.shadow.orders for each in areas):
        yield _nothing_wanted(seen)
    if seen.lost:
        yield f"{seen.lost} decisions were lost, as there were too many at once"
    yield f"longest hold of the mmap_lock of the process by this command: {seen.longest_ms} ms"


def _nothing_wanted(seen: Seen) -> str:
    if seen.policy == "stock" and seen.shadow == "none":
        return (
            "no policy decided anything; this asks a policy without applying its answers: "
            f"{_begin_shadow(seen)}"
        )
    return "no page fault of the process reached the policy in this time"


def _begin_shadow(seen: Seen) -> str:
    return f"mmpolicy set {POINT} shadow=adaptive --profile {seen.profile}"


@click.command()
@click.argument("pid", type=PID, required=False)
@click.option("--name", metavar="NAME", help="Name of the profile; by default that of the process.")
@click.option(
    "--seconds", type=Seconds(), metavar="TIME",
    help="How long to watch: the process for 5 s by default, or without PID the host for 60 s.",
)  # fmt: skip
@json_option
@pass_host
def recommend(
    host: Host, pid: int | None, name: str | None, seconds: float | None, want_json: bool
) -> None:
    """Say what to do on this host, or propose a profile for a process.

    Without PID it looks at the whole host for a minute, as top does, and prints at most five
    lines, the largest cost first: who, what was seen, the command, the price. It needs no module
    then. Below 1 % of a CPU and 5 % of the memory of a service, it says that it is not worth it.

    With PID it prints a manifest for apply: the present state with one more profile, to which the
    cgroup of the process is bound, and the evidence. The decisions of adaptive are the best
    evidence: make it the shadow of the process's profile first. Exits with 7 if it saw too little,
    or if no policy reaches the process, and says why. Without the module it shows the folios of the
    process and the memory that no policy would reach, and exits with 3.

    Changes nothing.
    """
    if pid is None:
        if name:
            raise click.UsageError("--name needs a PID")
        look_around(host, seconds or HOST_S, want_json)
    else:
        _propose(host, pid, name, seconds or PROCESS_S, want_json)


def _propose(host: Host, pid: int, name: str | None, seconds: float, want_json: bool) -> None:
    """Print a manifest with a profile for a process. Raise an error if no policy would reach the
    process, or if there is too little evidence.
    """
    process = check_memory(host.tree, pid, "mmpolicy recommend")
    met = reach(host.tree, pid, override=True)
    if met.barred >= ALL:
        text = next(met.lines()).removesuffix(f"; remedy: {met.barriers[0].way_out}")
        raise Error(text, Exit.INCONCLUSIVE, met.barriers[0].way_out)
    state, seen = _look(host, process, seconds)
    if not seen.loaded:
        _tell_without_module(pid, seen, want_json)
    largest = max((each.pages * PAGE for each in seen.areas), default=0)
    advice = advise(all_of(seen.areas), largest)
    if not advice:
        text = f"process {pid} had too few decisions to recommend a policy"
        hint = (
            f"{_begin_shadow(seen)}, then this command again with more --seconds, while "
            "the process works"
        )
        raise Error(text, Exit.INCONCLUSIVE, hint)
    profile = name or profile_name(host.tree.read(f"/proc/{pid}/comm"), profiles_of(state))
    target, bound = _with_profile(host, state, seen.profile, profile, advice, pid)
    evidence = [f"process {pid}: {POINT} {advice.policy}", *advice.evidence]
    evidence += [*seen.reach.lines(), *(f"not known: {text}" for text in seen.reach.unknown)]
    if not bound:
        evidence.append("the process has no cgroup of its own; mmpolicy bind --pid binds it")
    manifest = save(host.tree, target)
    data = {
        "pid": pid, "profile": profile, "policy": advice.policy, "max_order": advice.max_order,
        "evidence": list(advice.evidence), "cgroup": bound, "manifest": manifest,
        "reach": seen.reach.as_data(),
    }  # fmt: skip
    lines = [*(f"# {line}" for line in evidence), manifest.rstrip("\n")]
    emit("recommend", want_json, data, lines)


def _tell_without_module(pid: int, seen: Seen, want_json: bool) -> None:
    """Print the facts about a process, and then raise an error: `--propose` needs the module,
    without which there is no profile to propose.
    """
    whole = all_of(seen.areas)
    lines = [*seen.reach.lines(), *(f"not known: {text}" for text in seen.reach.unknown)]
    data = {"pid": pid, "reach": seen.reach.as_data(), "all": whole.as_data(),
            "longest_ms": seen.longest_ms}  # fmt: skip
    emit("recommend", want_json, data, [*lines, f"process {pid}", *whole.lines()])
    text = f"{UNLOADED}, so there is no profile to propose"
    hint = (
        "mmpolicy doctor says whether the module can be loaded; mmpolicy recommend without "
        "a PID works without it"
    )
    raise Error(text, Exit.LACKING, hint)


def profile_name(comm: str, taken: list[str]) -> str:
    """Return a profile name made of a program's name: at most 31 characters, with the suffix -2 if
    the name is taken.
    """
    name = re.sub("[^a-z0-9_-]", "-", comm.lower()).strip("-_") or "process"
    return f"{name[:27]}-2" if name in (*taken, *NO_PROFILES) else name[:31]


def _with_profile(
    host: Host, state: State, old: str, name: str, advice: Advice, pid: int
) -> tuple[State, str]:
    """Return the state with a new profile for a process, and the path of the process's cgroup,
    which is bound to that profile. The profile is a copy of `old`, changed by the advice. The path
    is "" if the process has no cgroup of its own.
    """
    settings: State = {
        key.of(name): value
        for key, value in settings_of(state, old).items()
        if key.point == POINT or old != "default"
    }
    settings[Setting(name, POINT, "", "shadow")] = NO_SHADOW
    settings[choice(name, POINT)] = advice.policy
    if advice.max_order is not None:
        settings[Setting(name, POINT, advice.policy, "max_order")] = str(advice.max_order)
    target: State = {**state, Profile(name): "", **settings}
    cgroup = cgroup_of(host.tree, pid)
    if cgroup in ("", "/"):
        return target, ""
    return target | {CgroupBinding(find_bindable(host.tree, cgroup).number): name}, cgroup
