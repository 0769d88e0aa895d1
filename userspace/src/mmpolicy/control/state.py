# SPDX-License-Identifier: GPL-2.0
"""Read the whole state of the control tree, plan the writes to another state, and make them.

A state is a flat map from keys to values, so two states are easy to compare and merge.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mmpolicy.control.keys import (
    BINDINGS,
    CONTROL_ARM,
    ENABLED,
    EXPERIMENT,
    LEASE,
    NO_ARM,
    PERCENT,
    PROFILES,
    TREATMENT_ARM,
    Binding,
    CgroupBinding,
    ExperimentFile,
    Key,
    Lease,
    LoadedPolicy,
    ProcessBinding,
    Profile,
    Setting,
    State,
    UnitBinding,
)
from mmpolicy.control.model import Control, active_of
from mmpolicy.control.own_units import put_unit, read_units
from mmpolicy.control.programs import UNKNOWN, Program, sources
from mmpolicy.errors import Error
from mmpolicy.host.cgroups import cgroup_paths
from mmpolicy.host.files import Tree
from mmpolicy.host.knobs import chosen
from mmpolicy.host.processes import start_of


@dataclass(frozen=True)
class Write:
    """One write to one file of the control tree, with its effect on the state."""

    path: str
    value: str
    key: Key  # entry of the state that the write changes
    result: str | None  # value of the entry after the write; None if the write removes it


# Reading


def read_state(tree: Tree) -> State:
    """Return the current state of the control tree.

    If a profile disappears while it is read, everything is read again. For example, the profiles of
    an experiment disappear when the lease expires.
    """
    control = Control(tree)
    profiles = control.profiles()
    try:
        return _read_all(control, profiles)
    except Error:
        if set(profiles) <= set(control.profiles()):
            raise
        return read_state(tree)


def _read_all(control: Control, profiles: Iterable[str]) -> State:
    tree = control.tree
    state = _read_programs(tree)
    if tree.exists(LEASE.path):
        state[LEASE] = tree.read(LEASE.path)
    if tree.is_dir(EXPERIMENT):
        for name in tree.names(EXPERIMENT):
            state[ExperimentFile(name)] = chosen(tree.read(ExperimentFile(name).path))
    for profile in profiles:
        state |= read_profile(control, profile)
    return state | read_units(tree)


def _read_programs(tree: Tree) -> State:
    return {
        LoadedPolicy(name): source.sha256 if source else UNKNOWN
        for name, source in sources(tree).items()
    }


def read_profile(control: Control, name: str) -> State:
    """Return the entries of a state that belong to a profile: the profile itself, its settings,
    and its bindings.
    """
    state: State = {Profile(name): ""}
    for point in control.points(name):
        state[point.choice] = point.active
        state |= {knob: chosen(control.tree.read(knob.path)) for knob in point.settings()}
    return state | _read_bindings(control.tree, name)


def _read_bindings(tree: Tree, profile: str) -> State:
    base = Profile(profile).path
    if not tree.exists(f"{base}/cgroups"):
        return {}
    cgroups = tree.read(f"{base}/cgroups").split()
    state: State = {CgroupBinding(int(number)): profile for number in cgroups}
    for pid in tree.read(f"{base}/pids").split():
        key = process_key(tree, int(pid))
        if key:
            state[key] = profile
    return state


def process_key(tree: Tree, pid: int) -> ProcessBinding | None:
    """Return the key for the binding of a process; None if the process has ended."""
    start = start_of(tree, pid)
    return None if start is None else ProcessBinding(pid, start)


def read_value(tree: Tree, key: Lease | ExperimentFile | Setting) -> str:
    """Return the current value of one file of the control tree."""
    if isinstance(key, Setting) and key.is_choice:
        return active_of(tree, key.path)[0]
    return chosen(tree.read(key.path))


# Parts of a state


def profiles_of(state: State) -> list[str]:
    """Return the names of the profiles of a state."""
    return [key.name for key in state if isinstance(key, Profile)]


def settings_of(state: State, profile: str) -> dict[Setting, str]:
    """Return the policies and knobs of a profile."""
    return {
        key: value
        for key, value in state.items()
        if isinstance(key, Setting) and key.profile == profile
    }


def users_of(state: State, program: Program) -> list[str]:
    """Return the profiles that use a policy, either actively or as their shadow."""
    return [
        profile
        for profile in profiles_of(state)
        if any(
            key.point == program.point and not key.policy and value == program.name
            for key, value in settings_of(state, profile).items()
        )
    ]


def bindings_of(state: State, profile: str) -> list[Binding]:
    """Return the cgroups and processes that are bound to a profile."""
    return [key for key, value in state.items() if isinstance(key, BINDINGS) and value == profile]


def experiment_of(state: State) -> dict[ExperimentFile, str]:
    """Return those entries of a state that are files of the experiment."""
    return {key: value for key, value in state.items() if isinstance(key, ExperimentFile)}


def changed_keys(old: State, new: State) -> list[Key]:
    """Return the sorted keys that differ between two states."""
    keys = (key for key in old | new if old.get(key) != new.get(key))
    return sorted(keys, key=lambda key: key.order)


# Writes


def assign(key: Lease | ExperimentFile | Setting, value: str) -> Write:
    """Return (without making it) the write that sets a file to a value."""
    return Write(key.path, value, key, value)


def create(profile: str) -> Write:
    """Return the write that creates a profile."""
    return Write(f"{PROFILES}/create", profile, Profile(profile), "")


def delete(profile: str) -> Write:
    """Return the write that deletes a profile."""
    return Write(f"{PROFILES}/delete", profile, Profile(profile), None)


def bind(key: Binding, profile: str) -> Write:
    """Return the write that binds a cgroup or a process, which also ends its earlier binding."""
    return Write(key.path(profile), str(key.number), key, profile)


def unbind(key: Binding, profile: str) -> Write:
    """Return the write that ends a binding to a profile."""
    return Write(key.path(profile), f"-{key.number}", key, None)


def bind_unit(key: UnitBinding, profile: str | None) -> Write:
    """Return the write that binds a systemd unit from its next start on, or unbinds it."""
    return Write(key.path, profile or "", key, profile)


def perform(tree: Tree, write: Write) -> None:
    """Make one write to the control tree, or to the manifest of a unit."""
    if isinstance(write.key, UnitBinding):
        put_unit(tree, write.key, write.result)
    else:
        tree.write(write.path, write.value)


def plan(old: State, new: State) -> list[Write]:
    """Return the writes that lead from one state to another; [] if they are equal.

    Every state in between is safe: a lease begins first and ends last, a profile is complete
    before anything is bound to it, and knobs are set before their policy is chosen.
    """
    steps = [*_stop(old, new), *_create(old, new), *_settings(old, new), *_bind(old, new)]
    steps += [*_experiment(old, new), *_delete(old, new), *_start(old, new), *_units(old, new)]
    lease = [assign(LEASE, new[LEASE])] if _differ(old, new, LEASE) else []
    return steps + lease if new.get(LEASE) == "0" else lease + steps


def _differ(old: State, new: State, key: Key) -> bool:
    return key in new and old.get(key) != new[key]


def _fixed_while_enabled(old: State, new: State) -> list[ExperimentFile]:
    """Return the files of the experiment that differ and can be written only while it
    is disabled.
    """
    keys = (key for key in experiment_of(new) if key not in (ENABLED, PERCENT))
    return [key for key in keys if _differ(old, new, key)]


def _stop(old: State, new: State) -> Iterator[Write]:
    ends = new.get(ENABLED) == "0" or _fixed_while_enabled(old, new)
    if old.get(ENABLED) == "1" and ends:
        yield assign(ENABLED, "0")


def _create(old: State, new: State) -> Iterator[Write]:
    for name in profiles_of(new):
        if Profile(name) not in old:
            yield create(name)


def _settings(old: State, new: State) -> Iterator[Write]:
    """Yield the writes of knobs and policies that differ; the policy of a point
    follows its knobs.
    """
    keys = [key for key in new if isinstance(key, Setting)]
    keys.sort(key=lambda key: (key.profile, key.point, key.is_choice, key.order))
    for key in keys:
        if new[key] != old.get(key, key.off):
            yield assign(key, new[key])


def _bind(old: State, new: State) -> Iterator[Write]:
    """Yield the writes of new and changed bindings, and then the writes that end bindings."""
    bound = [key for key in old | new if isinstance(key, BINDINGS)]
    for key in bound:
        if _differ(old, new, key):
            yield bind(key, new[key])
    for key in bound:
        if key not in new:
            yield unbind(key, old[key])


def _experiment(old: State, new: State) -> Iterator[Write]:
    taken = old.get(TREATMENT_ARM, NO_ARM)
    # the kernel refuses the same profile for both arms, so the treatment arm is cleared before its
    # profile becomes the control arm
    if taken != NO_ARM and taken == new.get(CONTROL_ARM):
        yield assign(TREATMENT_ARM, NO_ARM)
        old = old | {TREATMENT_ARM: NO_ARM}
    for key in [*_fixed_while_enabled(old, new), PERCENT]:
        if _differ(old, new, key):
            yield assign(key, new[key])


def _delete(old: State, new: State) -> Iterator[Write]:
    for name in profiles_of(old):
        if Profile(name) not in new:
            yield delete(name)


def _start(old: State, new: State) -> Iterator[Write]:
    stopped = old.get(ENABLED) != "1" or _fixed_while_enabled(old, new)
    if new.get(ENABLED) == "1" and stopped:
        yield assign(ENABLED, "1")


def _units(old: State, new: State) -> Iterator[Write]:
    for key in changed_keys(old, new):
        if isinstance(key, UnitBinding):
            yield bind_unit(key, new.get(key))


def without_gone(tree: Tree, now: State, state: State) -> State:
    """Return `state` without bindings of cgroups and processes that no longer exist.

    now: the current state; only bindings that are missing in it are checked.
    """
    missing = [key for key in state if key not in now]
    absent = any(isinstance(key, CgroupBinding) for key in missing)
    cgroups = {CgroupBinding(int(number)) for number in cgroup_paths(tree)} if absent else set()
    gone = {
        key
        for key in missing
        if (isinstance(key, CgroupBinding) and key not in cgroups)
        or (isinstance(key, ProcessBinding) and process_key(tree, key.number) != key)
    }
    return {key: value for key, value in state.items() if key not in gone}


def go_to(tree: Tree, state: State, now: State) -> None:
    """Restore a state that was read earlier.

    Bindings of processes and cgroups that have ended since are left out. Raises an error at the
    first write that the kernel refuses.
    """
    for write in plan(now, without_gone(tree, now, state)):
        perform(tree, write)
