# SPDX-License-Identifier: GPL-2.0
"""Read systemd's unit files, and find the cgroups of running units.

systemd.unit(5) has the rules: a template `worker@.service` has instances `worker@NAME.service`,
and a link to the file of another unit is an alias of that unit. If the name of a unit's cgroup
could be mistaken for a file of the kernel, systemd puts an underscore before it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from functools import cached_property

from mmpolicy.errors import Error, Exit, UnknownError
from mmpolicy.host.files import Tree

# directories of unit files in order of precedence, as `systemd-analyze unit-paths` prints them
FOLDERS = (
    "/etc/systemd/system.control", "/run/systemd/system.control", "/run/systemd/transient",
    "/run/systemd/generator.early", "/etc/systemd/system", "/run/systemd/system",
    "/run/systemd/generator", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system",
    "/lib/systemd/system", "/run/systemd/generator.late",
)  # fmt: skip
USER_FOLDERS = (
    "/etc/systemd/user", "/run/systemd/user", "/usr/local/lib/systemd/user",
    "/usr/lib/systemd/user",
)  # fmt: skip
# path of a cgroup that the host's systemd manages, not one of a user or a container
HOSTS_OWN = re.compile(r"(?:/[^/]+\.slice)*/[^/]+")
THP_SETTING = re.compile(r"^MemoryTHP=(\w*)\s*$", re.MULTILINE)
KINDS = re.compile(r".+\.(service|slice|scope)")
INSTANCE = re.compile(r"([^@]+@)([^/]+)(\.[a-z]+)")
MOST_LINKS = 8  # longest chain of links from an alias to its unit
# names that systemd does not give a cgroup, as the kernel has files of these names (cgroup-util.c)
TAKEN = re.compile(r"(?:[_.].*|notify_on_release|release_agent|tasks|cgroup\..*)")
CONTROLLERS = (
    "cpu", "cpuacct", "cpuset", "io", "blkio", "memory", "devices", "pids", "hugetlb", "misc",
    "rdma", "dmem", "freezer", "net_cls", "net_prio", "perf_event", "bpf-firewall", "bpf-devices",
)  # fmt: skip


def is_template(unit: str) -> bool:
    """Return whether a name belongs to a template unit, which itself never runs."""
    return "@." in unit


def template_of(unit: str) -> str:
    """Return the template of an instance; "" for another unit."""
    found = INSTANCE.fullmatch(unit)
    return f"{found[1]}{found[3]}" if found else ""


def cgroup_name(unit: str) -> str:
    """Return the name that systemd gives the cgroup of a unit."""
    taken = TAKEN.fullmatch(unit) or unit.partition(".")[0] in CONTROLLERS
    return f"_{unit}" if taken else unit


def unit_of(cgroup: str) -> str:
    """Return the service whose cgroup is the given one or contains it; "" without one."""
    parts = reversed(cgroup.split("/"))
    return next((part for part in parts if part.endswith(".service")), "")


def memory_thp(tree: Tree, unit: str) -> str:
    """Return MemoryTHP= of a service (systemd 260 and later); "" if it is not set.

    A running service may have been started with an older setting.
    """
    if not unit:
        return ""
    found = (THP_SETTING.findall(text) for text in _texts_of(tree, unit))
    return next((some[-1] for some in reversed([*found]) if some), "")


def _texts_of(tree: Tree, unit: str) -> Iterator[str]:
    """Yield the texts of the unit file and its drop-ins, in the order that systemd reads them."""
    names = [name for name in (unit, template_of(unit)) if name]
    whole = (f"{folder}/{name}" for name in names for folder in FOLDERS)
    drop_ins = dict[str, str]()
    for name in reversed([*names, unit.rpartition(".")[2]]):
        for folder in reversed([f"{each}/{name}.d" for each in FOLDERS]):
            if tree.is_dir(folder):
                drop_ins |= {file: f"{folder}/{file}" for file in tree.names(folder)}
    main = next(filter(tree.exists, whole), "")
    for path in filter(None, [main, *(drop_ins[file] for file in sorted(drop_ins))]):
        with suppress(Error):  # the path may belong to no file, or to one that was just removed
            yield tree.read(path)


class Units:
    """The units of a host; unit files and cgroups are read once, when first needed."""

    def __init__(self, tree: Tree, paths: Callable[[], Mapping[str, str]]) -> None:
        self.tree = tree
        self._paths = paths  # a function that returns the paths of all cgroups by id

    @cached_property
    def files(self) -> dict[str, str]:
        """Return all unit files by name; the value is the name of the target for a link, and "" for
        another file.
        """
        return dict(self._files(FOLDERS))

    @cached_property
    def user_files(self) -> set[str]:
        """Return the units of user managers, which do not read the system's drop-ins."""
        return set(dict(self._files(USER_FOLDERS))) - set(self.files)

    def _files(self, folders: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        for folder in reversed(folders):
            if self.tree.is_dir(folder):
                for name, target in self.tree.targets(folder).items():
                    if KINDS.fullmatch(name):
                        yield name, target.rpartition("/")[2]

    @cached_property
    def _cgroups(self) -> dict[str, list[int]]:
        """Return the ids of the cgroups of units that the host's systemd manages, by the last
        component of the cgroup's path.
        """
        found = defaultdict[str, list[int]](list)
        try:
            paths = self._paths()
        except Error:  # no cgroup hierarchy is mounted in which a profile could be bound
            return found
        for number, path in paths.items():
            if HOSTS_OWN.fullmatch(path):
                found[path.rpartition("/")[2]].append(int(number))
        return found

    def primary(self, unit: str) -> str:
        """Return the unit that a name stands for; the name may be an alias."""
        for _ in range(MOST_LINKS):
            file = unit if unit in self.files else template_of(unit)
            target = self.files.get(file, "")
            if target in ("", file) or target.rpartition(".")[2] != unit.rpartition(".")[2]:
                return unit
            found = INSTANCE.fullmatch(unit)
            unit = target.replace("@.", f"@{found[2]}.") if found else target
        return unit

    def running(self, unit: str) -> dict[str, int]:
        """Return the ids of the cgroups of a unit, or of all instances of a template, by unit."""
        if not is_template(unit):
            found = self._cgroups.get(cgroup_name(unit))
            return {unit: found[0]} if found else {}
        return {
            name.removeprefix("_"): numbers[0]
            for name, numbers in sorted(self._cgroups.items())
            if unit in (template_of(name), template_of(name.removeprefix("_")))
        }

    def knows(self, unit: str) -> bool:
        """Return whether a unit has a file or runs; also True if no unit files are readable, as
        then nothing is known.
        """
        return not self.files or bool(
            {unit, template_of(unit)} & set(self.files) or self.running(unit)
        )

    def close(self, unit: str) -> str:
        """Return the known unit with the most similar name; "" if none is similar."""
        stem, _, kind = (template_of(unit) or unit).rpartition(".")
        instances = {template_of(name) for name in self._cgroups} - {""}
        known = [*self.files, *instances, *filter(KINDS.fullmatch, self._cgroups)]
        stems = [name.rpartition(".")[0] for name in known if name.endswith(f".{kind}")]
        begin = [each for each in stems if each.startswith((f"{stem}@", f"{stem}-"))]
        found = get_close_matches(stem, stems, n=1) or sorted(begin, key=len)[:1]
        instance = INSTANCE.fullmatch(unit)
        if found and instance and found[0].endswith("@"):
            return f"{found[0]}{instance[2]}.{kind}"
        return f"{found[0]}.{kind}" if found else ""


def unknown_unit(units: Units, unit: str) -> UnknownError:
    """Return the error for a unit that systemd does not know."""
    if unit in units.user_files:
        text = (
            f"{unit} is a unit of a user's systemd, which does not read the settings of the system"
        )
        hint = (
            "mmpolicy bind --cgroup PATH binds it while it runs; --unit user@.service "
            "binds all units of all users"
        )
        return UnknownError(text, Exit.USAGE, hint)
    close = units.close(unit)
    listed = "systemctl list-unit-files lists the units, and mmpolicy top lists cgroups"
    hint = f"did you mean {close}?" if close else listed
    return UnknownError(f"systemd does not know the unit {unit}", Exit.USAGE, hint)


def missing_unit(units: Units, given: str) -> Error | None:
    """Return the error that a unit is stopped or unknown; None if the name belongs to no unit."""
    unit = given if KINDS.fullmatch(given) else f"{given}.service"
    if not given or "/" in given or not units.files:
        return None
    if not units.knows(unit):
        found = unknown_unit(units, unit)
        found.message = f"there is no cgroup '{given}', and {found.message}"
        return found
    if is_template(unit):
        names = ", ".join(units.running(unit)) or "none runs now"
        return Error(
            f"{unit} is a template, and a command needs one of its instances ({names})",
            Exit.USAGE,
            "ps -e -o unit lists the units that run",
        )
    unit = units.primary(unit)
    text = f"{unit} does not run now, so it has no cgroup"
    return Error(text, Exit.USAGE, f"systemctl start {unit}")
