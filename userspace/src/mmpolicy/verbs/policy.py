# SPDX-License-Identifier: GPL-2.0
"""`policy`: load, unload and show policies that are BPF programs."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing, suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

import click

from mmpolicy.control.keys import State
from mmpolicy.control.model import check_loaded
from mmpolicy.control.programs import Program, Source, digest, programs, source_of
from mmpolicy.control.state import read_state, users_of
from mmpolicy.errors import Error, Exit, pick
from mmpolicy.host.bpf import PINS
from mmpolicy.host.disk import is_there, read_given_bytes, save_as
from mmpolicy.host.files import MODULE_DIR, Tree
from mmpolicy.host.machine import Host
from mmpolicy.host.step import Step
from mmpolicy.host.tracing import QUESTION, Told, follow
from mmpolicy.render import as_json, emit, table
from mmpolicy.verbs.commit import emit_plan, exclusive
from mmpolicy.verbs.objects import TIMEOUT_S, loaded_as, run_object
from mmpolicy.verbs.options import (
    Count,
    Seconds,
    completer,
    dry_run_option,
    json_option,
    pass_host,
)

OBJECT = click.Path(path_type=Path, dir_okay=False, exists=True)
NAME = re.compile(r"[a-z0-9_]{1,15}")
# The command lines in the head comment of skeleton.bpf.c, which `policy new` prints as next steps.
NEXT = re.compile(r"^ \* ((?:clang|sudo) .*)$", re.MULTILINE)
# After an unload, the kernel frees a BPF program only after its grace periods: how many seconds to
# wait for that, and seconds between two checks.
PATIENCE_S, STEP_S = 5.0, 0.1
name_argument = click.argument("name", shell_complete=completer("program"))
timeout_option = click.option(
    "--timeout", type=Seconds(), default=f"{TIMEOUT_S:g}s", show_default=True, metavar="TIME",
    help="Give up if the verifier takes longer.",
)  # fmt: skip
log_option = click.option(
    "--log", "want_log", is_flag=True, help="Print the verifier's log if it refuses the program."
)

verify_option = click.option(
    "--dry-run", is_flag=True, help="Only let the kernel's verifier check the program."
)


def takes_object(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with the argument for an object file, and the options of its loading."""
    for option in (pass_host, json_option, verify_option, log_option, timeout_option):
        command = option(command)
    return click.argument("file", type=OBJECT)(command)


@click.group()
def policy() -> None:
    """Load and unload policies that are BPF programs.

    A loaded policy is one more policy of its point: set, bind, ab and the others take its name. It
    goes away at a reboot, but mmpolicy save writes the lines that load it again. While one is
    loaded, the module cannot be unloaded.
    """


def _check_name(ctx: click.Context, param: click.Parameter, name: str) -> str:
    if NAME.fullmatch(name) and name != "stock":
        return name
    raise click.BadParameter("a name has 1 to 15 characters of a-z, 0-9 and _, and is not 'stock'")


@policy.command()
@click.argument("name", callback=_check_name)
@json_option
def new(name: str, want_json: bool) -> None:
    """Begin a policy: write NAME.bpf.c, which works as it is, into this folder."""
    path = Path(f"{name}.bpf.c")
    if is_there(str(path)):
        raise Error(
            f"the file {path} exists already", Exit.FAILED, "give another name, or remove the file"
        )
    text = files(__package__).joinpath("skeleton.bpf.c").read_text().replace("NAME", name)
    save_as(path, text.encode())
    lines = [f"{path}: written", *(f"next: {line}" for line in NEXT.findall(text))]
    emit("policy new", want_json, {"name": name, "file": str(path)}, lines)


def _data(program: Program, state: State) -> dict[str, Any]:
    return program._asdict() | {"profiles": users_of(state, program)}


def _change(
    host: Host,
    verb: str,
    file: Path,
    timeout: float,
    want_log: bool,
    dry_run: bool,
    want_json: bool,
) -> None:
    data = read_given_bytes(str(file))
    words = ["verify" if dry_run else verb]
    name = run_object(host, words, str(file), data, timeout, want_log)
    if dry_run:
        text = f"{name}: the BPF verifier accepts the program; nothing is loaded"
        emit(f"policy {verb}", want_json, {"dry_run": True, "name": name}, [text])
        return
    with exclusive(host, dry_run=False):
        found = loaded_as(host, verb, name, Source(str(file.absolute()), digest(data)))
    done = f"{verb}ed" if verb == "load" else f"{verb}d"
    lines = [f"{name}: {done}, as BPF program {found.program}"]
    if verb == "load":
        lines.append(f"next: mmpolicy set {found.point} {name}")
    emit(f"policy {verb}", want_json, _data(found, read_state(host.tree)), lines)


@policy.command()
@takes_object
def load(host: Host, **options: Any) -> None:
    """Load a policy from an object file, which clang has made.

    The kernel verifies it first. Nothing uses it until you choose it.
    """
    _change(host, "load", **options)


@policy.command()
@takes_object
def replace(host: Host, **options: Any) -> None:
    """Put another program in place of the loaded policy of the same name.

    Profiles that have the policy keep it, without a moment at stock.
    """
    _change(host, "replace", **options)


@policy.command("list")
@json_option
@pass_host
def list_programs(host: Host, want_json: bool) -> None:
    """List the loaded policies, and which profiles have them."""
    state = read_state(host.tree)
    found = [_data(each, state) for each in programs(host.tree)]
    emit("policy list", want_json, {"policies": found}, lambda: _lines(found))


def _lines(found: list[dict[str, Any]]) -> list[str]:
    rows = [
        (each["name"], each["point"], each["program"], each["clamped"],
         ", ".join(each["profiles"]) or "-", each["error"] or "-")
        for each in found
    ]  # fmt: skip
    if rows:
        return table(("POLICY", "POINT", "PROGRAM", "CLAMPED", "PROFILES", "ERROR"), rows)
    return ["no policy in BPF is loaded"]


@policy.command("show")
@name_argument
@click.option(
    "--live", is_flag=True, help="Print its calls and answers as they come, until Ctrl-C."
)
@click.option("--count", type=Count(), metavar="N", help="With --live: end after N answers.")
@json_option
@pass_host
def show_program(host: Host, name: str, live: bool, count: int | None, want_json: bool) -> None:
    """Show a loaded policy: program, file, answers out of range, error, profiles."""
    if count and not live:
        raise click.UsageError("--count needs --live")
    check_loaded(host.tree)
    program = _find(host.tree, name)
    data = _data(program, read_state(host.tree))
    if live:
        if not data["profiles"]:
            click.echo(
                "note: no profile uses this policy, so it is not called; to use it: "
                f"mmpolicy set {program.point} {name}",
                err=True,
            )
        _show_told(host.tree, name, count, want_json)
        return
    data["pin"] = _pin(program) if host.tree.exists(_pin(program)) else None
    source = source_of(host.tree, program)
    data |= source._asdict() if source else dict.fromkeys(Source._fields)
    rows = [
        (key, " ".join(value) if isinstance(value, list) else "-" if value is None else value)
        for key, value in data.items()
    ]
    emit("policy show", want_json, data, lambda: table(("WHAT", "VALUE"), rows))


def _show_told(tree: Tree, name: str, count: int | None, want_json: bool) -> None:
    answers = 0
    with suppress(KeyboardInterrupt), closing(follow(tree, name)) as found:
        for each in found:
            data = each._asdict() if isinstance(each, Told) else {"lost": each}
            click.echo(as_json("policy show", data, indent=None) if want_json else _told(each))
            answers += isinstance(each, Told) and each.event != QUESTION
            if answers == count:
                return


def _told(each: Told | int) -> str:
    if not isinstance(each, Told):
        return f"{each} calls are missing here, as they came too fast"
    facts = " ".join(f"{fact}={text}" for fact, text in each.facts.items())
    return f"{each.task}-{each.pid}: {facts}"


def _find(tree: Tree, name: str) -> Program:
    found = {each.name: each for each in programs(tree)}
    return found[pick("loaded policy", name, found)]


@policy.command()
@click.argument("name", required=False, shell_complete=completer("program"))
@click.option("--all", "want_all", is_flag=True, help="Unload all, also those that are in use.")
@click.option(
    "--force", is_flag=True, help="Unload it even if a profile uses it; the profile goes to stock."
)
@dry_run_option
@json_option
@pass_host
def unload(
    host: Host, name: str | None, want_all: bool, force: bool, dry_run: bool, want_json: bool
) -> None:
    """Unload a policy. Without this command, this unloads all of them:

    \b
    rm -r /sys/fs/bpf/mmpolicy
    """
    if bool(name) == want_all:
        raise click.UsageError("give the name of a policy, or --all")
    found = _which(host.tree, name)
    state = read_state(host.tree) if found else {}
    for each in found:
        _check_unload(host.tree, each, [] if force or want_all else users_of(state, each))
    if dry_run:
        steps = [Step(_pin(each), "remove", each.name, "") for each in found]
        emit_plan("policy unload", want_json, steps)
        return
    for each in found:
        host.tree.drop(_pin(each))
    names = [each.name for each in found]
    _wait(host, names)
    if names:
        host.log(f"policy unload: {', '.join(names)}")
    lines = [f"{each}: unloaded" for each in names] or ["no policy in BPF is loaded"]
    emit("policy unload", want_json, {"unloaded": names}, lines)


def _which(tree: Tree, name: str | None) -> list[Program]:
    """Return the policies to unload: the named one, or all that are loaded if name is None."""
    if not name:
        return programs(tree)
    check_loaded(tree)
    return [_find(tree, name)]


def _pin(program: Program) -> str:
    return f"{PINS}/{program.point}/{program.name}"


def _check_unload(tree: Tree, program: Program, users: list[str]) -> None:
    name = program.name
    if users:
        text = f"the policy {name} is in use by: {', '.join(users)}"
        raise Error(
            text, Exit.REFUSED, "set another policy for them, or give --force, which sets stock"
        )
    if not tree.exists(_pin(program)):
        text = (
            f"the policy {name} cannot be unloaded, as it is not pinned at "
            f"{_pin(program)}: a process or another pin holds it"
        )
        raise Error(
            text, Exit.REFUSED, "bpftool -f link shows which: end that process, or remove that pin"
        )


def _keeps_module(tree: Tree) -> bool:
    """Return whether a freed BPF policy still holds a reference to the module, which then cannot be
    unloaded. False if other policies are loaded, as they hold a reference anyway.
    """
    path = f"{MODULE_DIR}/refcnt"
    return not programs(tree) and tree.exists(path) and tree.read(path) != "0"


def _wait(host: Host, names: list[str]) -> None:
    """Wait until the kernel has freed the policies with these names and, if no policy is left, also
    the reference to the module. Raise an error if policies are left after PATIENCE_S seconds.
    """
    end = host.clock() + PATIENCE_S
    while True:
        left = [each.name for each in programs(host.tree) if each.name in names]
        in_time = host.clock() <= end
        if not left and not (names and in_time and _keeps_module(host.tree)):
            return
        if not in_time:
            text = (
                "these policies are still loaded, as another process or pin holds them: "
                f"{', '.join(left)}"
            )
            raise Error(
                text,
                Exit.FAILED,
                "bpftool link shows who holds them; mmpolicy policy list shows the policies",
            )
        host.sleep(STEP_S)
