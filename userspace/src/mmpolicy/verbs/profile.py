# SPDX-License-Identifier: GPL-2.0
"""`profile`: named sets of policies, one for each kind of workload."""

from typing import Any

import click

from mmpolicy.app import App, complete_profile, dry_run_option, json_option, pass_app
from mmpolicy.control.model import CONTROL
from mmpolicy.control.state import DEFAULT, State, Write, plan, profiles_of, read_state, settings_of
from mmpolicy.errors import Error, Exit, pick
from mmpolicy.host.cgroups import cgroup_paths
from mmpolicy.host.files import Tree
from mmpolicy.render import emit, table
from mmpolicy.verbs.commit import commit

profile_argument = click.argument("name", shell_complete=complete_profile)


@click.group()
def profile() -> None:
    """Make, delete and show profiles.

    A profile has one policy with its knobs for every point.
    """


def policies_of(state: State, name: str) -> dict[str, str]:
    """Return the active policy of each point of a profile."""
    base = f"profiles/{name}/"
    keys = (key for key in state if key.startswith(base) and key.endswith("/policy"))
    return {key.removeprefix(base).removesuffix("/policy"): state[key] for key in keys}


def bindings_of(state: State, name: str, paths: dict[str, str]) -> dict[str, list[Any]]:
    """Return cgroups and processes that are bound to a profile."""
    bound = [key.partition("@")[0].split("/") for key, value in state.items() if value == name]
    cgroups = [number for kind, number in bound if kind == "cgroups"]
    pids = sorted(int(number) for kind, number in bound if kind == "pids")
    return {"cgroups": [paths.get(number, number) for number in cgroups], "pids": pids}


def known_paths(tree: Tree, state: State) -> dict[str, str]:
    """Return the paths of cgroups by id; only looked for if something is bound."""
    return cgroup_paths(tree) if any(key.startswith("cgroups/") for key in state) else {}


def _facts(tree: Tree) -> dict[str, dict[str, Any]]:
    state = read_state(tree)
    paths = known_paths(tree, state)
    return {
        name: {"policies": policies_of(state, name), **bindings_of(state, name, paths)}
        for name in profiles_of(state)
    }


@profile.command("list")
@json_option
@pass_app
def list_profiles(app: App, want_json: bool) -> None:
    """List profiles.

    Each with the points that are not stock, and how much is bound to it.
    """
    facts = _facts(app.tree)
    rows = []
    for name, fact in facts.items():
        policies = fact["policies"].items()
        points = " ".join(f"{point}={policy}" for point, policy in policies if policy != "stock")
        rows.append((name, len(fact["cgroups"]), len(fact["pids"]), points or "stock"))
    lines = table(("PROFILE", "CGROUPS", "PROCESSES", "POLICIES"), rows)
    emit("profile list", want_json, {"profiles": facts}, lines)


@profile.command("show")
@profile_argument
@json_option
@pass_app
def show_profile(app: App, name: str, want_json: bool) -> None:
    """Show the settings of a profile, and what is bound to it."""
    state = read_state(app.tree)
    pick("profile", name, profiles_of(state))
    bound = bindings_of(state, name, known_paths(app.tree, state))
    settings = settings_of(state, name)
    rows = [*settings.items(), *(("cgroup", path) for path in bound["cgroups"])]
    rows += [("process", str(pid)) for pid in bound["pids"]]
    lines = table(("SETTING", "VALUE"), rows)
    emit("profile show", want_json, {"profile": name, "settings": settings, **bound}, lines)


@profile.command("create")
@click.argument("name")
@click.option(
    "--from", "model", metavar="PROFILE", shell_complete=complete_profile,
    help="Start with the settings of this one.",
)  # fmt: skip
@dry_run_option
@json_option
@pass_app
def create_profile(app: App, name: str, model: str | None, dry_run: bool, want_json: bool) -> None:
    """Make a profile; all stock, or as another one.

    Points of the whole host, such as bulk, stay in the default profile.
    """
    now = read_state(app.tree)
    if f"profiles/{name}" in now:
        hint = f"mmpolicy profile show {name}"
        raise Error(f"there is a profile '{name}' already", Exit.FAILED, hint)
    new = now | {f"profiles/{name}": ""}
    if model:
        pick("profile", model, profiles_of(now))
        values = settings_of(now, model)
        new |= {f"profiles/{name}/{key}": values[key] for key in values}
    commit(app, plan(now, new), dry_run, want_json)


@profile.command("delete")
@profile_argument
@dry_run_option
@json_option
@pass_app
def delete_profile(app: App, name: str, dry_run: bool, want_json: bool) -> None:
    """Delete a profile that nothing uses.

    No cgroup, no process and no experiment, that is.
    """
    state = read_state(app.tree)
    pick("profile", name, profiles_of(state))
    _refuse_used(app.tree, state, name)
    commit(app, [Write(f"{CONTROL}/profiles/delete", name)], dry_run, want_json)


def _refuse_used(tree: Tree, state: State, name: str) -> None:
    """Say what uses the profile; the kernel would only say EBUSY."""
    bound = bindings_of(state, name, known_paths(tree, state))
    users = [f"--cgroup {path}" for path in bound["cgroups"]]
    users += [f"--pid {pid}" for pid in bound["pids"]]
    arms = [arm for arm in ("control", "treatment") if state.get(f"experiment/{arm}") == name]
    if users:
        more = f" and {len(users) - 1} more" if len(users) > 1 else ""
        text = f"profile '{name}' is bound: {users[0]}{more}"
        raise Error(text, Exit.REFUSED, f"mmpolicy unbind {users[0]}")
    if arms:
        text = f"profile '{name}' is the {arms[0]} of the experiment"
        raise Error(text, Exit.REFUSED, "end the experiment first")
    if name == DEFAULT:
        raise Error("the default profile is always there", Exit.REFUSED, "mmpolicy reset")
