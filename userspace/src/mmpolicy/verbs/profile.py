# SPDX-License-Identifier: GPL-2.0
"""`profile`: list, show, create and delete profiles, which are named sets of policies."""

from __future__ import annotations

from typing import Any

import click

from mmpolicy.control.experiment import in_the_way, running
from mmpolicy.control.keys import (
    CONTROL_ARM,
    DEFAULT,
    TREATMENT_ARM,
    CgroupBinding,
    ProcessBinding,
    Profile,
    State,
)
from mmpolicy.control.labels import cgroups_of
from mmpolicy.control.model import is_as_created
from mmpolicy.control.state import bindings_of, delete, plan, profiles_of, read_state, settings_of
from mmpolicy.errors import Error, Exit, pick
from mmpolicy.host.files import Tree
from mmpolicy.host.machine import Host
from mmpolicy.render import emit, table
from mmpolicy.verbs.commit import commit, exclusive
from mmpolicy.verbs.options import (
    complete_profile,
    dry_run_option,
    force_option,
    json_option,
    pass_host,
)

profile_argument = click.argument("name", shell_complete=complete_profile)


@click.group()
def profile() -> None:
    """Create, delete and show profiles.

    A profile has one policy with its knobs for every point.
    """


def policies_of(state: State, name: str) -> dict[str, str]:
    """Return the active policy of each point in a profile, by point."""
    return {key.point: value for key, value in settings_of(state, name).items() if key.is_choice}


def bound_to(state: State, name: str, paths: dict[str, str]) -> dict[str, list[Any]]:
    """Return the cgroups (paths) and the processes (pids) that are bound to a profile; paths: by
    id.
    """
    bound = bindings_of(state, name)
    ids = [str(key.number) for key in bound if isinstance(key, CgroupBinding)]
    pids = sorted(key.number for key in bound if isinstance(key, ProcessBinding))
    return {"cgroups": [paths.get(number, number) for number in ids], "pids": pids}


def _facts(tree: Tree) -> dict[str, dict[str, Any]]:
    state = read_state(tree)
    paths = cgroups_of(tree, state)
    return {
        name: {"policies": policies_of(state, name), **bound_to(state, name, paths)}
        for name in profiles_of(state)
    }


@profile.command("list")
@json_option
@pass_host
def list_profiles(host: Host, want_json: bool) -> None:
    """List profiles.

    Shows for each profile the points that are not stock, and how much is bound to it.
    """
    facts = _facts(host.tree)
    emit("profile list", want_json, {"profiles": facts}, lambda: _list_lines(facts))


def _list_lines(facts: dict[str, dict[str, Any]]) -> list[str]:
    rows = []
    for name, fact in facts.items():
        policies = fact["policies"].items()
        points = " ".join(f"{point}={policy}" for point, policy in policies if policy != "stock")
        rows.append((name, len(fact["cgroups"]), len(fact["pids"]), points or "stock"))
    return table(("PROFILE", "CGROUPS", "PROCESSES", "POLICIES"), rows)


@profile.command("show")
@profile_argument
@json_option
@pass_host
def show_profile(host: Host, name: str, want_json: bool) -> None:
    """Show the settings of a profile, and what is bound to it."""
    state = read_state(host.tree)
    pick("profile", name, profiles_of(state))
    bound = bound_to(state, name, cgroups_of(host.tree, state))
    settings = {key.inside: value for key, value in settings_of(state, name).items()}
    rows = [*settings.items(), *(("cgroup", path) for path in bound["cgroups"])]
    rows += [("process", str(pid)) for pid in bound["pids"]]
    data = {"profile": name, "settings": settings, **bound}
    emit("profile show", want_json, data, lambda: table(("SETTING", "VALUE"), rows))


@profile.command("create")
@click.argument("name")
@click.option(
    "--from", "model", metavar="PROFILE", shell_complete=complete_profile,
    help="Copy the settings of this profile.",
)  # fmt: skip
@dry_run_option
@json_option
@pass_host
def create_profile(
    host: Host, name: str, model: str | None, dry_run: bool, want_json: bool
) -> None:
    """Create a profile, all stock or as a copy.

    Only the default profile has points of the whole host, such as bulk.
    """
    with exclusive(host, dry_run):
        now = read_state(host.tree)
        if Profile(name) in now:
            hint = f"mmpolicy profile show {name}"
            raise Error(f"the profile '{name}' exists already", Exit.FAILED, hint)
        new: State = now | {Profile(name): ""}
        if model:
            values = settings_of(now, pick("profile", model, profiles_of(now)))
            new |= {
                key.of(name): value
                for key, value in values.items()
                if not is_as_created(host.tree, key, value)
            }
        commit(host, plan(now, new), dry_run, want_json)


@profile.command("delete")
@profile_argument
@force_option
@dry_run_option
@json_option
@pass_host
def delete_profile(host: Host, name: str, force: bool, dry_run: bool, want_json: bool) -> None:
    """Delete a profile that nothing uses.

    No cgroup, process or experiment may use it.
    """
    with exclusive(host, dry_run, force):
        state = read_state(host.tree)
        pick("profile", name, profiles_of(state))
        _refuse_used(host.tree, state, name)
        commit(host, [delete(name)], dry_run, want_json)


def _refuse_used(tree: Tree, state: State, name: str) -> None:
    """Raise an error that names what still uses a profile: the kernel would only return EBUSY."""
    bound = bound_to(state, name, cgroups_of(tree, state))
    users = [f"--cgroup {path}" for path in bound["cgroups"]]
    users += [f"--pid {pid}" for pid in bound["pids"]]
    arms = [arm.name for arm in (CONTROL_ARM, TREATMENT_ARM) if state.get(arm) == name]
    if users:
        more = f" and {len(users) - 1} more" if len(users) > 1 else ""
        text = f"profile '{name}' is bound: {users[0]}{more}"
        raise Error(text, Exit.REFUSED, f"mmpolicy unbind {users[0]}")
    if arms:
        if who := running(tree):
            raise in_the_way(who)
        text = f"the profile '{name}' is the {arms[0]} of the running experiment"
        raise Error(text, Exit.REFUSED, "mmpolicy ab stop ends the experiment")
    if name == DEFAULT:
        raise Error("the default profile is always there", Exit.REFUSED, "mmpolicy reset")
