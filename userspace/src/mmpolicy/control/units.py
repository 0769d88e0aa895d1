# SPDX-License-Identifier: GPL-2.0
"""Units of systemd that are bound whenever they start, before they run.

Their names are in the manifests of the host alone. A generator of systemd makes a drop-in for
each, at boot and at each daemon-reload, so nothing of it outlives the line in the manifest.
"""

import re

from mmpolicy.control.keys import Profile
from mmpolicy.control.manifest import Manifest
from mmpolicy.errors import Error, Exit
from mmpolicy.host.files import Tree, read_manifests

FOLDER = "/etc/mmpolicy"
# A service, also by its path as `save` prints it; not one of a user, nor in a container.
SERVICE = re.compile(r"(?:/(?:[\w:.\\-]+\.slice/)+)?([\w:.\\@-]+?)(?:\.service)?")
OTHER = re.compile(r".*\.(slice|scope|socket|mount|swap|target|timer|device|path)")
# Whatever becomes of it, the unit starts. `+`: as root, outside of the unit's sandbox.
DROP_IN = """\
[Unit]
After=mmpolicy.service

[Service]
ExecStartPre=-+/usr/bin/mmpolicy bind --cgroup %n {profile}
"""


def host_manifest(tree: Tree) -> Manifest:
    """Return what mmpolicy.service applies."""
    folder = str(tree.real(FOLDER))
    return Manifest(folder, read_manifests(folder) if tree.is_dir(FOLDER) else [])


def service_of(cgroup: str) -> str | None:
    """Return the name of the service that a manifest means by a cgroup, if it means one."""
    found = SERVICE.fullmatch(cgroup)
    return f"{found[1]}.service" if found and not OTHER.fullmatch(cgroup) else None


def drop_ins(tree: Tree) -> dict[str, str]:
    """Return the drop-in of each service that is bound, by its path below a folder of units."""
    found = (
        (service_of(name), profile) for name, profile in host_manifest(tree).bindings().items()
    )
    return {
        f"{unit}.d/50-mmpolicy.conf": DROP_IN.format(profile=Profile(profile).name)
        for unit, profile in found
        if unit
    }


def generate(folder: str, root: str = "/") -> int:
    """Write the drop-ins, for systemd; what is wrong in a manifest holds no boot up."""
    tree = Tree(root)
    try:
        for name, text in drop_ins(tree).items():
            tree.keep(f"{folder}/{name}", text, 0o644)
    except Error as err:
        err.show()
        return int(err.exit_code)
    return 0


def own_file(unit: str) -> str:
    """Return the manifest that binds a service alone."""
    return f"{FOLDER}/90-{unit}.toml"


def check_unit(tree: Tree, given: str, profile: str) -> str:
    """Return the name of a unit that can be bound; its profile has to be there at boot."""
    unit = service_of(given)
    if not unit or "/" in given:
        raise Error(f"'{given}' is no service", Exit.USAGE, "systemctl list-units lists them")
    known = host_manifest(tree).profiles()
    if profile not in known:
        hint = f"mmpolicy save {FOLDER}/host.toml keeps the profiles that there are now"
        text = f"profile '{profile}' is in no manifest of {tree.real(FOLDER)}"
        raise Error(f"{text}, so it would not be there after a boot", Exit.USAGE, hint)
    return unit


def keep_unit(tree: Tree, unit: str, profile: str) -> None:
    """Bind a service from its next start on."""
    text = "# Written by mmpolicy bind --unit.\n"
    text += f'version = 1\n\n[bindings]\n"{unit}" = "{profile}"\n'
    tree.keep(own_file(unit), text, 0o644)


def find_unit(tree: Tree, given: str) -> str:
    """Return the name of a service that keep_unit has bound."""
    unit = service_of(given) or given
    if not tree.exists(own_file(unit)):
        text = f"{unit} was not bound with --unit: there is no {tree.real(own_file(unit))}"
        hint = f"take its line out of the manifests in {FOLDER}, if one has it"
        raise Error(text, Exit.USAGE, hint)
    return unit
