# SPDX-License-Identifier: GPL-2.0
"""Units of systemd that are bound whenever they start, before they run.

Their names are in the manifests of the host alone. A generator of systemd makes a drop-in for
each, at boot and at each daemon-reload, so nothing of it outlives the line in the manifest.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from mmpolicy.control.keys import MANIFESTS, Profile, UnitBinding
from mmpolicy.control.manifest import Manifest
from mmpolicy.errors import Error, Exit
from mmpolicy.host.files import Tree

FOLDER = MANIFESTS
# A service, also by its path as `save` prints it; not one of a user, nor in a container.
SERVICE = re.compile(r"(?:/(?:[\w:.\\-]+\.slice/)+)?([\w:.\\@-]+?)(?:\.service)?")
OTHER = re.compile(r".*\.(slice|scope|socket|mount|swap|target|timer|device|path)")
# Whatever becomes of it, the unit starts. `+`: as root, outside of the unit's sandbox.
DROP_IN = """\
[Unit]
After=mmpolicy.service

[Service]
ExecStartPre=-+/usr/lib/mmpolicy/bind-service {profile}
"""


def host_manifest(tree: Tree, bad: Callable[[Error], None] | None = None) -> Manifest:
    """Return what mmpolicy.service applies."""
    return Manifest.read(str(tree.real(FOLDER)), bad)


def service_of(cgroup: str) -> str | None:
    """Return the name of the service that a manifest means by a cgroup, if it means one."""
    found = SERVICE.fullmatch(cgroup)
    return f"{found[1]}.service" if found and not OTHER.fullmatch(cgroup) else None


def generate(folder: str, root: str = "/") -> int:
    """Write a drop-in for each service that is bound, for systemd.

    What is wrong in a manifest holds no boot up, and costs what it is about alone.
    """
    tree, errors = Tree(root), list[Error]()
    for name, profile in host_manifest(tree, errors.append).bindings(errors.append).items():
        unit = service_of(name)
        if not unit:
            continue
        try:
            text = DROP_IN.format(profile=Profile(profile).name)
            tree.keep(f"{folder}/{unit}.d/50-mmpolicy.conf", text, 0o644)
        except Error as err:
            errors.append(err)
    for each in errors:
        each.show()
    return int(errors[0].exit_code) if errors else 0


def check_unit(tree: Tree, given: str, profile: str) -> UnitBinding:
    """Return the key of a unit that can be bound; its profile has to be there at boot."""
    unit = service_of(given)
    if not unit or "/" in given:
        raise Error(f"'{given}' is no service", Exit.USAGE, "systemctl list-units lists them")
    known = host_manifest(tree, lambda _err: None).profiles()
    if profile not in known:
        hint = f"mmpolicy save {FOLDER}/host.toml keeps the profiles that there are now"
        text = f"profile '{profile}' is in no manifest of {tree.real(FOLDER)}"
        raise Error(f"{text}, so it would not be there after a boot", Exit.USAGE, hint)
    return UnitBinding(unit)


def find_unit(tree: Tree, given: str) -> UnitBinding:
    """Return the key of a service that is bound by a file of its own."""
    key = UnitBinding(service_of(given) or given)
    if not tree.exists(key.path):
        text = f"{key.unit} was not bound with --unit: there is no {tree.real(key.path)}"
        hint = f"take its line out of the manifests in {FOLDER}, if one has it"
        raise Error(text, Exit.USAGE, hint)
    return key
