# SPDX-License-Identifier: GPL-2.0
"""The whole state of the control tree: read it, plan the way to another one, go there.

A state is flat, so that comparing, merging and keeping states is plain:

    lease_ms                         what was set
    experiment/<file>                as the file
    profiles/<profile>               empty: there is such a profile
    profiles/<profile>/<point>/...   policy and knobs, as the files
    cgroups/<id>                     the profile that the cgroup is bound to
    pids/<pid>@<start>               the profile that the process is bound to

The start of a process, in ticks since boot, tells it from a later one with its number.
"""

from collections.abc import Iterator
from typing import NamedTuple

from mmpolicy.control.model import CONTROL, Control, chosen
from mmpolicy.errors import Error
from mmpolicy.host.cgroups import cgroup_paths
from mmpolicy.host.files import Tree

State = dict[str, str]
NO_ARM = "none"
DEFAULT = "default"


class Write(NamedTuple):
    """One write to one file of the tree."""

    path: str
    value: str


def read_state(tree: Tree) -> State:
    """Return the state as it is now."""
    control = Control(tree)
    state = {}
    if tree.exists(f"{CONTROL}/lease_ms"):
        state["lease_ms"] = tree.read(f"{CONTROL}/lease_ms")
    if tree.is_dir(f"{CONTROL}/experiment"):
        for name in tree.names(f"{CONTROL}/experiment"):
            state[f"experiment/{name}"] = chosen(tree.read(f"{CONTROL}/experiment/{name}"))
    for profile in control.profiles():
        state |= _read_profile(control, profile)
    return state


def _read_profile(control: Control, profile: str) -> State:
    state = {f"profiles/{profile}": ""}
    for point in control.points(profile):
        state[f"profiles/{profile}/{point.name}/policy"] = point.active
        for paths in (point.common, *point.knobs.values()):
            for path in paths.values():
                state[path.removeprefix(f"{CONTROL}/")] = control.tree.read(path)
    return state | _read_bindings(control.tree, profile)


def _read_bindings(tree: Tree, profile: str) -> State:
    base = f"{CONTROL}/profiles/{profile}"
    if not tree.exists(f"{base}/cgroups"):
        return {}
    state = {f"cgroups/{number}": profile for number in tree.read(f"{base}/cgroups").split()}
    for pid in tree.read(f"{base}/pids").split():
        key = process_key(tree, pid)
        if key:
            state[key] = profile
    return state


def process_key(tree: Tree, pid: str) -> str | None:
    """Return the key of a process, None if it has ended."""
    try:
        stat = tree.read(f"/proc/{pid}/stat")
    except Error:
        return None
    # The name, which is in parentheses, may have spaces and parentheses itself.
    start = stat.rpartition(")")[2].split()[19]
    return f"pids/{pid}@{start}"


def is_profile(key: str) -> bool:
    """Tell if the key stands for a profile, not for something in one."""
    return key.startswith("profiles/") and key.count("/") == 1


def profiles_of(state: State) -> list[str]:
    """Return the names of the profiles of a state."""
    return [key.partition("/")[2] for key in state if is_profile(key)]


def settings_of(state: State, name: str) -> State:
    """Return policies and knobs of a profile, by their path in it."""
    base = f"profiles/{name}/"
    return {key.removeprefix(base): state[key] for key in state if key.startswith(base)}


def differences(old: State, new: State) -> list[str]:
    """Return the sorted keys that differ."""
    return sorted(key for key in old | new if old.get(key) != new.get(key))


def plan(old: State, new: State) -> list[Write]:
    """Return the writes that lead from one state to another, empty if there is no difference.

    The way is safe at every step: a lease begins first and ends last, a profile is complete
    before anything is bound to it, and knobs come before their policy.
    """
    steps = [*_stop(old, new), *_create(old, new), *_settings(old, new), *_bind(old, new)]
    steps += [*_experiment(old, new), *_delete(old, new), *_start(old, new)]
    lease = [Write("lease_ms", new["lease_ms"])] if _differ(old, new, "lease_ms") else []
    steps = steps + lease if new.get("lease_ms") == "0" else lease + steps
    return [Write(f"{CONTROL}/{path}", value) for path, value in steps]


def _differ(old: State, new: State, key: str) -> bool:
    return key in new and old.get(key) != new[key]


def _experiment_keys(old: State, new: State) -> list[str]:
    """Return the files of the experiment that have to be written while it is off."""
    fixed = {"experiment/enabled", "experiment/percent"}
    keys = (key for key in new if key.startswith("experiment/") and key not in fixed)
    return [key for key in keys if _differ(old, new, key)]


def _stop(old: State, new: State) -> Iterator[Write]:
    ends = new.get("experiment/enabled") == "0" or _experiment_keys(old, new)
    if old.get("experiment/enabled") == "1" and ends:
        yield Write("experiment/enabled", "0")


def _create(old: State, new: State) -> Iterator[Write]:
    for name in profiles_of(new):
        if f"profiles/{name}" not in old:
            yield Write("profiles/create", name)


def _settings(old: State, new: State) -> Iterator[Write]:
    """Yield knobs and policies that differ, the policy of a point after its knobs."""
    keys = [key for key in new if key.startswith("profiles/") and key.count("/") > 1]
    for key in sorted(keys, key=lambda key: (key.split("/")[:3], key.endswith("/policy"), key)):
        was = old.get(key, "stock" if key.endswith("/policy") else None)
        if new[key] != was:
            yield Write(key, new[key])


def _bind(old: State, new: State) -> Iterator[Write]:
    """Yield what binds, which also moves, and then what unbinds."""
    bound = [key for key in old | new if key.startswith(("cgroups/", "pids/"))]
    for key in (key for key in bound if _differ(old, new, key)):
        kind, number = key.partition("@")[0].split("/")
        yield Write(f"profiles/{new[key]}/{kind}", number)
    for key in (key for key in bound if key not in new):
        kind, number = key.partition("@")[0].split("/")
        yield Write(f"profiles/{old[key]}/{kind}", f"-{number}")


def _experiment(old: State, new: State) -> Iterator[Write]:
    control, treatment = "experiment/control", "experiment/treatment"
    taken = old.get(treatment, NO_ARM)
    if taken != NO_ARM and taken == new.get(control):  # the arms may never be the same
        yield Write(treatment, NO_ARM)
        old = old | {treatment: NO_ARM}
    for key in [*_experiment_keys(old, new), "experiment/percent"]:
        if _differ(old, new, key):
            yield Write(key, new[key])


def _delete(old: State, new: State) -> Iterator[Write]:
    for name in profiles_of(old):
        if f"profiles/{name}" not in new:
            yield Write("profiles/delete", name)


def _start(old: State, new: State) -> Iterator[Write]:
    stopped = old.get("experiment/enabled") != "1" or _experiment_keys(old, new)
    if new.get("experiment/enabled") == "1" and stopped:
        yield Write("experiment/enabled", "1")


def without_gone(tree: Tree, now: State, state: State) -> State:
    """Return the state without bindings of cgroups and processes that are no more."""
    missing = {key for key in state if key not in now}
    gone = {key for key in missing if key.startswith("pids/") and _has_ended(tree, key)}
    cgroups = {key for key in missing if key.startswith("cgroups/")}
    if cgroups:
        gone |= cgroups - {f"cgroups/{number}" for number in cgroup_paths(tree)}
    return {key: value for key, value in state.items() if key not in gone}


def _has_ended(tree: Tree, key: str) -> bool:
    pid = key.removeprefix("pids/").partition("@")[0]
    return process_key(tree, pid) != key


def restore(tree: Tree, state: State) -> None:
    """Go back to a state that was read before.

    Bindings of what has ended meanwhile stay away: the kernel would have dropped them too.
    Raises Error at the first write that the kernel refuses.
    """
    now = read_state(tree)
    for write in plan(now, without_gone(tree, now, state)):
        tree.write(*write)
