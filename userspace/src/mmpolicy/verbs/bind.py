# SPDX-License-Identifier: GPL-2.0
"""`bind` and `unbind`: the cgroups and processes of a profile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import click

from mmpolicy.control.keys import Binding, CgroupBinding, UnitBinding
from mmpolicy.control.owners import Owned, check_free, check_owner, keep_owned
from mmpolicy.control.state import Write, process_key, profiles_of, read_state
from mmpolicy.control.state import bind as bind_write
from mmpolicy.control.state import bind_unit as bind_unit_write
from mmpolicy.control.state import unbind as unbind_write
from mmpolicy.control.units import check_unit, find_unit, named_units, units_of
from mmpolicy.errors import Error, Exit, pick
from mmpolicy.host.cgroups import cgroup_paths, find_bindable
from mmpolicy.host.files import CONTROL, Tree
from mmpolicy.host.machine import Host
from mmpolicy.host.processes import check_memory
from mmpolicy.host.systemd import Units, is_template, template_of
from mmpolicy.verbs.commit import commit, exclusive
from mmpolicy.verbs.options import (
    complete_owner,
    complete_profile,
    dry_run_option,
    json_option,
    pass_host,
)
from mmpolicy.verbs.reached import warn_of
from mmpolicy.verbs.targets import check_one, target_options

Command = Callable[..., Any]

owner_option = click.option(
    "--owner", metavar="NAME", shell_complete=complete_owner,
    help="The program that owns the binding of a cgroup; apply does not change it.",
)  # fmt: skip


def _find(tree: Tree, cgroup: str | None, pid: int | None, owner: str | None) -> Binding:
    """Return the key of the cgroup or process to bind. Raise an error if the target does not exist,
    or if another owner has bound the cgroup.
    """
    if cgroup is not None:
        group = CgroupBinding(find_bindable(tree, cgroup).number)
        check_free(tree, group, owner and check_owner(owner))
        return group
    if owner:
        raise click.UsageError("--owner needs --cgroup PATH")
    assert pid is not None
    key = process_key(tree, pid)
    if not key:
        raise Error(f"there is no process {pid}", Exit.USAGE, "ps -e lists the processes")
    return key


@click.command()
@target_options
@owner_option
@click.argument("profile", shell_complete=complete_profile)
@click.option("--force", is_flag=True, help="With --unit: bind a name that systemd does not know.")
@dry_run_option
@json_option
@pass_host
def bind(
    host: Host,
    cgroup: str | None,
    pid: int | None,
    unit: str | None,
    owner: str | None,
    profile: str,
    force: bool,
    dry_run: bool,
    want_json: bool,
) -> None:
    """Let a profile decide for a cgroup, a process or a service.

    A cgroup includes all cgroups below it. A binding elsewhere moves here. The nearest bound
    cgroup wins, and the binding of a process goes before that of its cgroup. Memory that is
    mapped already stays as it is.

    A unit is bound each time it starts, before it runs, also after a boot. A manifest in
    /etc/mmpolicy must have its profile. A template, such as worker@.service, stands for all of its
    instances; one that is bound by its own name keeps that. An alias stands for its unit.

    A cgroup that is bound in the name of an owner is left alone by apply, save and verify.
    """
    check_one(cgroup, pid, unit)
    with exclusive(host, dry_run):
        if unit is not None and not owner:
            running = _bind_unit(host, unit, profile, force, dry_run, want_json)
            warn_of(host.tree, running, profile)
            return
        pick("profile", profile, profiles_of(read_state(host.tree)))
        if pid is not None and not owner:
            check_memory(host.tree, pid, f"mmpolicy bind {profile} --pid")
        key = _find(host.tree, cgroup, pid, owner)
        then = _keep(host.tree, owner, key, profile)
        commit(host, [bind_write(key, profile)], dry_run, want_json, then=then)
    warn_of(host.tree, [key], profile)


def _keep(tree: Tree, owner: str | None, key: Binding, profile: str | None) -> Callable[[], None]:
    """Return a function that the caller calls after it has changed the binding. The function
    records the owner of the cgroup's binding, or, if profile is None, removes the record. Without
    an owner it does nothing.
    """
    if not owner or not isinstance(key, CgroupBinding):
        return lambda: None
    path = cgroup_paths(tree).get(str(key.number), "")
    new = Owned(owner, key.number, profile, path) if profile else None
    return partial(keep_owned, tree, owner, key, new)


def _running(units: Units, key: UnitBinding) -> list[CgroupBinding]:
    """Return the keys of the cgroups in which a systemd unit runs now; [] if the module is not
    loaded.

    For a template, these are the cgroups of its instances, except instances that a manifest binds
    by their own names.
    """
    if not units.tree.exists(CONTROL):
        return []
    named = named_units(units.tree) if is_template(key.unit) else {}
    found = units.running(key.unit).items()
    return [CgroupBinding(number) for unit, number in found if unit not in named]


def _bind_unit(
    host: Host, unit: str, profile: str, force: bool, dry_run: bool, want_json: bool
) -> list[CgroupBinding]:
    """Bind a systemd unit to a profile, now and at each later start; return the keys of the cgroups
    in which it runs now.
    """
    units = units_of(host.tree)
    key = check_unit(units, unit, profile, force)
    running = _running(units, key)
    if running:
        pick("profile", profile, profiles_of(read_state(host.tree)))
    writes = [*(bind_write(each, profile) for each in running), bind_unit_write(key, profile)]
    commit(host, writes, dry_run, want_json)
    _tell_of_now(running, key.unit, want_json)
    return running


def _unbind_unit(host: Host, unit: str, dry_run: bool, want_json: bool) -> None:
    """Unbind a systemd unit. A running instance is bound to the profile of its template, if the
    template has one.
    """
    units = units_of(host.tree)
    key = find_unit(units, unit)
    running, writes = _running(units, key), list[Write]()
    then = named_units(host.tree).get(template_of(key.unit))
    state = read_state(host.tree) if running else {}
    for each in running:
        profile = state.get(each)
        if profile and then:
            writes.append(bind_write(each, then))
        elif profile:
            writes.append(unbind_write(each, profile))
    commit(host, [*writes, bind_unit_write(key, None)], dry_run, want_json)
    _tell_of_now(running, key.unit, want_json)


def _tell_of_now(running: Sequence[CgroupBinding], unit: str, want_json: bool) -> None:
    if not running and not want_json:
        what = f"no instance of {unit} runs" if is_template(unit) else f"{unit} does not run"
        click.echo(f"{what} now")


@click.command()
@target_options
@owner_option
@dry_run_option
@json_option
@pass_host
def unbind(
    host: Host,
    cgroup: str | None,
    pid: int | None,
    unit: str | None,
    owner: str | None,
    dry_run: bool,
    want_json: bool,
) -> None:
    """Remove a binding.

    The next bound cgroup above then decides, or the default profile. A unit is no longer bound
    when it starts.
    """
    check_one(cgroup, pid, unit)
    with exclusive(host, dry_run):
        if unit is not None and not owner:
            _unbind_unit(host, unit, dry_run, want_json)
            return
        key = _find(host.tree, cgroup, pid, owner)
        profile = read_state(host.tree).get(key)
        if not profile:
            what = f"cgroup '{cgroup}'" if cgroup else f"process {pid}"
            hint = "mmpolicy profile list shows the profiles and what is bound to them"
            raise Error(f"{what} is not bound to a profile", Exit.USAGE, hint)
        then = _keep(host.tree, owner, key, None)
        commit(host, [unbind_write(key, profile)], dry_run, want_json, then=then)
