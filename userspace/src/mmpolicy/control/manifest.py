# SPDX-License-Identifier: GPL-2.0
"""Manifests: the whole state as one TOML file, with cgroups by path.

An entry that a manifest does not name becomes stock or off, or is deleted. Four kinds of entries
stay as they are: knobs, as only the kernel knows their defaults; bindings of processes, which no
file can name; bindings that another program owns; and loaded policies in BPF.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from mmpolicy import tomllib
from mmpolicy.control.journal import APPLIED
from mmpolicy.control.keys import (
    CONTROL_ARM,
    DEFAULT,
    ENABLED,
    LEASE,
    NO_ARM,
    SCOPE,
    TREATMENT_ARM,
    AbsentCgroup,
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
from mmpolicy.control.model import active_of
from mmpolicy.control.owners import read_owned
from mmpolicy.control.programs import Source, sources
from mmpolicy.control.state import Write, profiles_of, settings_of
from mmpolicy.control.toml import TomlKey, key_lines, leaves
from mmpolicy.errors import Error, Exit, pick
from mmpolicy.figures import figure
from mmpolicy.host.cgroups import Finder, cgroup_paths
from mmpolicy.host.disk import files_of, read_given
from mmpolicy.host.files import Tree
from mmpolicy.host.systemd import Units, is_template, unknown_unit

VERSION = "1"
TABLES = ("bindings", "experiment", "maintain", "policies", "profiles")
OFF: State = {LEASE: "0", ENABLED: "0", CONTROL_ARM: NO_ARM, TREATMENT_ARM: NO_ARM}
WHOLE_HOST = "0"
# smallest and largest CPU budget of `maintain`, in percent of one CPU
LEAST_CPU, MOST_CPU = 0.1, 100.0
# name of a system service, or the path of its cgroup as `save` prints it; services of a user or in
# a container do not match
SERVICE = re.compile(r"(?:/(?:[\w:.\\-]+\.slice/)+)?([\w:.\\@-]+?)(?:\.service)?")
OTHER = re.compile(r".*\.(slice|scope|socket|mount|swap|target|timer|device|path)")
SHA256 = re.compile(r"[0-9a-f]{64}")
HINT = "mmpolicy save shows what a manifest of this host looks like"


def _word(value: Any) -> str:
    if not isinstance(value, (int, str)):
        raise Error(f"{value!r} is neither a number nor a text", Exit.FAILED, HINT)
    return str(int(value)) if isinstance(value, bool) else str(value)


def _entries(name: str, text: str) -> dict[TomlKey, Any]:
    """Return the keys and values of a manifest file; raise an error if the file is not TOML or has
    no version.
    """
    try:
        found = dict(leaves(tomllib.loads(text)))
    except (tomllib.TOMLDecodeError, RecursionError) as err:
        raise Error(f"{name}: {err}", Exit.FAILED, "correct the file") from err
    if ("version",) not in found:
        text = f"{name} has no `version` line: it is not a manifest, or not complete"
        raise Error(text, Exit.FAILED, f"begin the file with `version = {VERSION}`")
    return found


class Maintained(NamedTuple):
    """The part of a manifest that configures `maintain`."""

    cpu: float | None  # CPU budget in percent of one CPU; None if no file sets it
    services: list[str]  # names of the units and cgroups that `maintain` works for


class Manifest:
    """The state that one or more files ask for. If several files name an entry, the last file
    counts.
    """

    def __init__(self, name: str, files: Sequence[tuple[str, str]]) -> None:
        self.name = name
        self.files = list(files)
        self._entries: dict[TomlKey, Any] = {}
        self._places: dict[TomlKey, tuple[str, int]] = {}
        for file, text in files:
            self._entries |= _entries(file, text)
            self._places |= {key: (file, line) for key, line in key_lines(text).items()}
        # the name of each bound cgroup as the manifest has it, by the cgroup's id
        self._cgroups: dict[int, str] = {}
        self._absent_scope = ""

    @classmethod
    def read(cls, name: str, bad: Callable[[Error], None] | None = None) -> Manifest:
        """Return the manifest in a file, or in all *.toml files of a directory.

        bad(): called with the error of each file that cannot be read; such files are then skipped.
        """
        files = []
        for path in files_of(name):
            shown = "standard input" if path == "-" else path
            try:
                text = read_given(path)
                _entries(shown, text)
                files.append((shown, text))
            except Error as err:
                if not bad:
                    raise
                bad(err)
        return cls("standard input" if name == "-" else name, files)

    @classmethod
    def applied(cls, tree: Tree) -> Manifest | None:
        """Return the manifest that was applied last; None if there is none."""
        name = str(tree.real(APPLIED))
        return cls(name, [(name, tree.read(APPLIED))]) if tree.exists(APPLIED) else None

    def without(self, message: str) -> Manifest | None:
        """Return the manifest without the file whose name an error message begins with; None if it
        begins with no file of the manifest.
        """
        rest = [each for each in self.files if not message.startswith(f"{each[0]}:")]
        return Manifest(self.name, rest) if len(rest) < len(self.files) else None

    def text(self) -> str:
        """Return the manifest as the text of one file."""
        import tomli_w

        data: dict[str, Any] = {}
        for key, value in self._entries.items():
            _put(data, key, value)
        return tomli_w.dumps(data)

    def declare(self, tree: Tree, paths: Sequence[str]) -> None:
        """Add the files at some paths to the manifest that was applied last, with which `verify`
        compares the host. undeclare() removes a profile from it.
        """
        files = [*self.files, *((path, tree.read(path)) for path in paths)]
        tree.keep(APPLIED, Manifest(self.name, files).text(), 0o644)

    def bindings(self, bad: Callable[[Error], None]) -> dict[str, str]:
        """Return the profile of each cgroup, by its name in the files; call bad() for invalid
        entries.
        """
        found = {}
        for key in self._entries:
            if key[0] == "bindings" and len(key) == 2:
                try:
                    with self._at(key):
                        found[key[1]] = _word(self._entries[key])
                except Error as err:
                    bad(err)
        return found

    def _line(self, key: TomlKey) -> str:
        """Return `FILE:LINE: ` of the first line that sets a key; `FILE: ` if no line does."""
        places = [at for each, at in self._places.items() if each[: len(key)] == key]
        return "{}:{}: ".format(*min(places)) if places else f"{self.name}: "

    def where(self, write: Write) -> str:
        """Return `FILE:LINE: ` of the line that a write comes from."""
        if isinstance(write.key, CgroupBinding):
            number = write.key.number
            return self._line(("bindings", self._cgroups.get(number, str(number))))
        return self._line(_toml_key(write.key))

    @contextmanager
    def _at(self, key: TomlKey) -> Iterator[None]:
        """Put `FILE:LINE: ` of a key before the message of an error raised in this block, and set
        its exit code to 1.
        """
        try:
            yield
        except Error as err:
            err.message = self._line(key) + err.message
            err.exit_code = Exit.FAILED
            raise

    def target(self, tree: Tree, now: State) -> State:
        """Return the state that the manifest asks for, given the current state of the host.

        For a cgroup that does not exist, the state contains an AbsentCgroup. Without any manifest
        file, the current state is returned.
        """
        if not self._entries:
            return dict(now)
        kept = (ExperimentFile, LoadedPolicy, ProcessBinding, UnitBinding)
        owned = read_owned(tree)
        state: State = {
            key: value for key, value in now.items() if isinstance(key, kept) or key in owned
        }
        state |= {key: value for key, value in OFF.items() if key in now}
        state |= _left_alone(now, {DEFAULT, *self.profiles()})
        sources = self.sources()
        state |= {key: source.sha256 for key, source in sources.items()}
        self._absent = {key.name for key in sources if key not in now}
        self._finder = Finder(tree)
        self._units = Units(tree, partial(cgroup_paths, tree))
        # entries of templates are taken first, so that the entry of an instance overrides that of
        # its template, whatever their order in the file
        for key, value in sorted(self._entries.items(), key=lambda each: not _of_template(each[0])):
            with self._at(key):
                state |= self._entry(tree, now, key, value)
        return state

    def check_scope(self) -> None:
        """Raise an error if the experiment is limited to a cgroup that does not exist."""
        if self._absent_scope:
            text = (
                f"{self._line(_toml_key(SCOPE))}there is no cgroup '{self._absent_scope}', "
                "to which the experiment is limited"
            )
            raise Error(text, Exit.FAILED, "start the service of this cgroup, or correct the path")

    def no_cgroup(self, key: AbsentCgroup) -> Error:
        """Return the error about a cgroup of the manifest that does not exist."""
        line, unit = self._line(("bindings", key.given)), service_of(key.given)
        skip = "or give --skip-missing, which leaves it out"
        if not unit or not self._units.files:
            text = f"{line}there is no cgroup '{key.given}' to bind"
            hint = "start the service of this cgroup, or correct the path"
            return Error(text, Exit.FAILED, f"{hint}; {skip}")
        if self._units.knows(unit):
            text = (
                f"{line}{self._units.primary(unit)} does not run now, so it has no cgroup to bind"
            )
            hint = "start the service, and give the command again"
            return Error(text, Exit.FAILED, f"{hint}; {skip}")
        err = unknown_unit(self._units, unit)
        then = " " if err.next_step.endswith("?") else "; "
        return Error(f"{line}{err.message}", Exit.FAILED, f"{err.next_step}{then}{skip}")

    def profiles(self) -> set[str]:
        """Return the profiles that the files name."""
        return {key[1] for key in self._entries if key[0] == "profiles" and len(key) > 1}

    def maintained(self) -> Maintained:
        """Return the services that `maintain` works for, and its CPU budget."""
        cpu, services = None, dict[str, bool]()
        for key, value in self._entries.items():
            if key[0] == "maintain" and len(key) > 1:
                with self._at(key):
                    name, wanted = _maintained([*key[1:]], value)
                    if name:
                        services[name] = bool(wanted)
                    else:
                        cpu = wanted
        return Maintained(cpu, [name for name, wanted in services.items() if wanted])

    def sources(self) -> dict[LoadedPolicy, Source]:
        """Return the policies in BPF that the manifest loads, with their object files."""
        names = sorted({key[1] for key in self._entries if key[0] == "policies" and len(key) > 1})
        found = {}
        for name in names:
            with self._at(("policies", name)):
                found[LoadedPolicy(name)] = self._source(name)
        return found

    def _source(self, name: str) -> Source:
        facts = {key[2:]: value for key, value in self._entries.items()
                 if key[:2] == ("policies", name)}  # fmt: skip
        try:
            (file, sha256) = (str(facts.pop((fact,))) for fact in Source._fields)
        except KeyError as err:
            text = f"the entry of the policy {name} has no `{err.args[0][0]}`"
            raise Error(text, Exit.FAILED, HINT) from err
        if facts or not file.startswith("/") or not SHA256.fullmatch(sha256):
            text = (
                f"the entry of the policy {name} needs `file`, an absolute path, and "
                "`sha256`, 64 hex digits"
            )
            raise Error(text, Exit.FAILED, HINT)
        return Source(file, sha256)

    def _entry(self, tree: Tree, now: State, key: TomlKey, value: Any) -> State:
        """Return the part of the state that one entry of the manifest asks for."""
        table, *rest = key
        # an empty table [profiles.NAME] stands for a profile with all points at stock
        if table == "profiles" and len(rest) == 1 and value == {}:
            return {Profile(rest[0]): ""}
        if key == ("version",):
            pick("version of manifests", _word(value), [VERSION])
            return {}
        if key == ("lease_ms",) and LEASE in now:
            return {LEASE: _word(value)}
        if table == "bindings" and len(rest) == 1:
            profile = pick("profile", _word(value), {DEFAULT, *self.profiles()})
            return dict.fromkeys(self._cgroups_of(rest[0]), profile)
        if table == "profiles" and len(rest) > 2:
            profile, point, *names = rest
            of_profile = Profile(profile).name
            setting = _find_setting(tree, now, of_profile, point, names, value, self._absent)
            return {Profile(profile): "", setting: _word(value)}
        if table == "experiment" and len(rest) == 1 and ExperimentFile(rest[0]) in now:
            return {ExperimentFile(rest[0]): self._scope(rest[0], _word(value))}
        # the module has no setting for `maintain`, so this entry adds nothing to the state
        if table == "maintain" and rest:
            _maintained(rest, value)
            return {}
        if table in TABLES and not rest and value == {}:
            return {}
        if table == "policies" and rest:  # sources() has checked these entries
            return {}
        known = ["version", *TABLES, *map(_path_in_file, now)]
        pick("manifest entry", ".".join(key), [each for each in known if each])
        raise Error(f"'{'.'.join(key)}' is not a complete setting", Exit.FAILED, HINT)

    def _cgroups_of(self, given: str) -> list[CgroupBinding | AbsentCgroup]:
        """Return the cgroups that a name in a manifest stands for; for a template, those of all
        its instances.

        A service whose cgroup has another path now is found by its name or by an alias.
        """
        unit = service_of(given)
        try:
            numbers = [] if unit and is_template(unit) else [self._finder.find(given).number]
        except Error:
            numbers = []
        if unit and not numbers:
            numbers = list(self._units.running(self._units.primary(unit)).values())
            if is_template(unit) and not numbers and self._units.knows(unit):
                return []  # no instance of the template runs now, so there is no cgroup to bind
        self._cgroups |= dict.fromkeys(numbers, given)
        return [*map(CgroupBinding, numbers)] or [AbsentCgroup(given)]

    def _scope(self, name: str, word: str) -> str:
        if name != SCOPE.name or word == WHOLE_HOST:
            return word
        try:
            return str(self._finder.find(word).number)
        except Error:
            self._absent_scope = word
            return word


def _maintained(key: list[str], value: Any) -> tuple[str, float]:
    """Return the name of a service and whether `maintain` works for it; for the entry `cpu`, return
    "" and the CPU budget in percent.
    """
    if key == ["cpu"] and not isinstance(value, bool) and isinstance(value, (int, float)):
        if not LEAST_CPU <= value <= MOST_CPU:
            text = (
                f"[maintain] cpu: a budget of {figure(value)} % of a CPU is not between "
                f"{LEAST_CPU:g} and {MOST_CPU:g}"
            )
            raise Error(text, Exit.FAILED, "give a number in this range; the default is 3")
        return "", float(value)
    if len(key) == 2 and key[0] == "services" and isinstance(value, bool):
        return key[1], value
    hint = '[maintain] has cpu = PERCENT, and [maintain.services] "NAME" = true or false'
    raise Error(f"the manifest has an invalid entry: {'.'.join(['maintain', *key])} = {value!r}",
                Exit.FAILED, hint)  # fmt: skip


def service_of(cgroup: str) -> str | None:
    """Return the service that a cgroup name in a manifest stands for; None for another cgroup."""
    found = SERVICE.fullmatch(cgroup)
    return f"{found[1]}.service" if found and not OTHER.fullmatch(cgroup) else None


def _of_template(key: TomlKey) -> bool:
    unit = service_of(key[1]) if key[0] == "bindings" and len(key) == 2 else None
    return bool(unit and is_template(unit))


def _toml_key(key: Key) -> TomlKey:
    """Return the path of a key in a manifest; () for a key that has no single entry there."""
    if isinstance(key, Lease):
        return ("lease_ms",)
    if isinstance(key, ExperimentFile):
        return "experiment", key.name
    if isinstance(key, Profile):
        return "profiles", key.name
    if isinstance(key, LoadedPolicy):
        return "policies", key.name
    if isinstance(key, Setting):
        return ("profiles", key.profile, key.point, *filter(None, (key.policy, key.name)))
    return ()


def _path_in_file(key: Key) -> str:
    """Return the dotted path that the lease or a file of the experiment has in a manifest; "" for
    other keys.
    """
    return ".".join(_toml_key(key)) if isinstance(key, (Lease, ExperimentFile)) else ""


def _left_alone(now: State, names: set[str]) -> State:
    """Return those of the named profiles that exist, with all points at stock, without shadows,
    and with their current knobs.
    """
    state: State = {}
    for name in names & set(profiles_of(now)):
        state[Profile(name)] = ""
        for key, value in settings_of(now, name).items():
            state[key] = key.off or value
    return state


def _find_setting(
    tree: Tree,
    now: State,
    profile: str,
    point: str,
    names: list[str],
    value: Any,
    absent: Container[str],
) -> Setting:
    """Return the key of a setting in a manifest; raise an error if the module has no such setting.

    The kernel checks the value later. absent: policies that will be loaded later, so their
    settings cannot be checked.
    """
    like = profile if Profile(profile) in now else DEFAULT
    known = list(settings_of(now, like))
    pick("point", point, {key.point for key in known})
    if len(names) == 2 and names[0] in absent:
        return Setting(profile, point, *names)
    of_point = {key.inside.removeprefix(f"{point}/"): key for key in known if key.point == point}
    setting = of_point[pick(f"setting of {point}", "/".join(names), of_point)]
    if setting.is_choice and _word(value) not in absent:
        pick(f"policy of {point}", _word(value), active_of(tree, setting.path)[1])
    return setting.of(profile)


def undeclare(tree: Tree, profile: str) -> None:
    """Remove a profile, and the bindings to it, from the manifest that was applied last."""
    import tomli_w

    data: dict[str, Any] = tomllib.loads(tree.read(APPLIED)) if tree.exists(APPLIED) else {}
    if data.get("profiles", {}).pop(profile, None) is None:
        return
    bindings = data.get("bindings", {})
    data["bindings"] = {each: bound for each, bound in bindings.items() if bound != profile}
    tree.keep(APPLIED, tomli_w.dumps(data), 0o644)


def save(tree: Tree, state: State) -> str:
    """Return the text of a manifest that describes a state.

    Three kinds of entries are left out: the lease, as no command renews it after a boot; bindings
    of cgroups that no longer exist; and bindings that another program owns.
    """
    import tomli_w

    owned = read_owned(tree)
    state = {key: value for key, value in state.items() if key not in owned}
    scoped = state.get(SCOPE, WHOLE_HOST) != WHOLE_HOST
    needed = scoped or any(isinstance(key, CgroupBinding) for key in state)
    paths = cgroup_paths(tree) if needed else {}
    data: dict[str, Any] = {"version": int(VERSION)}
    loaded = sources(tree)
    for key, value in state.items():
        if isinstance(key, CgroupBinding) and str(key.number) in paths:
            _put(data, ("bindings", paths[str(key.number)]), value)
        elif key == SCOPE:
            _put(data, _toml_key(key), paths.get(value, int(WHOLE_HOST)))
        elif isinstance(key, (ExperimentFile, Setting)) and value:
            _put(data, _toml_key(key), int(value) if value.isdigit() else value)
        elif isinstance(key, LoadedPolicy) and (source := loaded.get(key.name)):
            _put(data, _toml_key(key), source._asdict())
        elif isinstance(key, Profile):
            data.setdefault("profiles", {}).setdefault(key.name, {})
    return tomli_w.dumps(data)


def _put(data: dict[str, Any], key: TomlKey, value: Any) -> None:
    for name in key[:-1]:
        data = data.setdefault(name, {})
    data[key[-1]] = data.get(key[-1], {}) | value if isinstance(value, dict) else value
