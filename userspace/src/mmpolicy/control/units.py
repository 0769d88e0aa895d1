# SPDX-License-Identifier: GPL-2.0
"""Bind systemd units to profiles at each start, before their programs run.

The manifests of the host name the units. At boot and at each daemon-reload, systemd runs a
generator that writes a drop-in for each unit. So removing a line of a manifest also removes the
drop-in.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from mmpolicy.control.keys import MANIFESTS, Profile, UnitBinding
from mmpolicy.control.manifest import Manifest, service_of
from mmpolicy.errors import Error, Exit
from mmpolicy.host.cgroups import cgroup_paths
from mmpolicy.host.files import Tree
from mmpolicy.host.systemd import Units, unknown_unit

FOLDER = MANIFESTS
# with `-` the unit starts even if the binding fails; with `+` the command runs as root outside the
# sandbox
DROP_IN = """\
[Unit]
After=mmpolicy.service

[Service]
ExecStartPre=-+/usr/lib/mmpolicy/bind-service {profile}
"""


def host_manifest(tree: Tree, bad: Callable[[Error], None] | None = None) -> Manifest:
    """Return the manifest in /etc/mmpolicy, which mmpolicy.service applies."""
    return Manifest.read(str(tree.real(FOLDER)), bad)


def generate(folder: str, root: str = "/") -> int:
    """Write a drop-in for each service that a manifest binds; systemd runs this as a generator.

    An error in a manifest affects only its own entry, and never the boot.
    """
    tree, errors = Tree(root), list[Error]()
    units = units_of(tree)
    for name, profile in host_manifest(tree, errors.append).bindings(errors.append).items():
        unit = service_of(name)
        if not unit:
            continue
        try:
            text = DROP_IN.format(profile=Profile(profile).name)
            tree.keep(f"{folder}/{units.primary(unit)}.d/50-mmpolicy.conf", text, 0o644)
        except Error as err:
            errors.append(err)
    for each in errors:
        each.show()
    return int(errors[0].exit_code) if errors else 0


def units_of(tree: Tree) -> Units:
    """Return the systemd units of a host."""
    return Units(tree, partial(cgroup_paths, tree))


def named_units(tree: Tree) -> dict[str, str]:
    """Return the profile of each service and template that the manifests of the host name."""
    found = host_manifest(tree, lambda _err: None).bindings(lambda _err: None)
    named = {service_of(given): profile for given, profile in found.items()}
    return {unit: profile for unit, profile in named.items() if unit}


def check_unit(units: Units, given: str, profile: str, force: bool) -> UnitBinding:
    """Return the key for binding a unit; raise an error if its profile would not exist after a
    boot.

    A name that systemd does not know needs `force`, as its binding would never take effect.
    """
    tree, unit = units.tree, service_of(given)
    if given.endswith(".slice"):
        hint = (
            f"mmpolicy bind --cgroup {given} binds the slice while it exists; a manifest "
            "can name it, too"
        )
        raise Error(
            f"'{given}' is a slice; --unit is for units that start a program", Exit.USAGE, hint
        )
    if not unit or "/" in given:
        raise Error(
            f"'{given}' is not the name of a service",
            Exit.USAGE,
            "systemctl list-units lists the services",
        )
    unit = units.primary(unit)
    if not units.knows(unit) and not force:
        err = unknown_unit(units, unit)
        err.next_step += "; --force binds it all the same"
        raise err
    known = host_manifest(tree, lambda _err: None).profiles()
    if profile not in known:
        hint = f"mmpolicy save {FOLDER}/50-try.toml saves all profiles for the next boot"
        text = f"profile '{profile}' is in no manifest of {tree.real(FOLDER)}"
        raise Error(f"{text}, so the profile would not exist after a boot", Exit.USAGE, hint)
    return UnitBinding(unit)


def find_unit(units: Units, given: str) -> UnitBinding:
    """Return the key of a unit that was bound with --unit."""
    tree, key = units.tree, UnitBinding(service_of(given) or given)
    if not tree.exists(key.path):
        key = UnitBinding(units.primary(key.unit))
    if not tree.exists(key.path):
        text = (
            f"the unit {key.unit} was not bound with bind --unit: there is no {tree.real(key.path)}"
        )
        hint = f"if a manifest in {FOLDER} binds the unit, remove its line from the manifest"
        raise Error(text, Exit.USAGE, hint)
    return key
