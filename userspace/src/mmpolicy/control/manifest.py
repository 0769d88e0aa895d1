# SPDX-License-Identifier: GPL-2.0
"""Manifests: the whole state as one TOML file, with cgroups by path.

What a manifest does not name is stock, off or not there. Two things stay as they are: knobs, as
only the kernel knows their defaults, and bindings of processes, which no file can name.
"""

import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mmpolicy.control.model import CONTROL, active_of
from mmpolicy.control.state import DEFAULT, NO_ARM, State, Write, profiles_of, settings_of
from mmpolicy.control.toml import Key, dumps, key_lines, leaves
from mmpolicy.errors import Error, Exit, pick
from mmpolicy.host.cgroups import cgroup_paths, find_cgroup
from mmpolicy.host.files import Tree

VERSION = "1"
TOP = ("version", "lease_ms", "experiment", "bindings", "profiles")
OFF = {"enabled": "0", "control": NO_ARM, "treatment": NO_ARM}
SCOPE = "experiment/cgroup"
WHOLE_HOST = "0"
HINT = "mmpolicy save shows what a manifest of this host looks like"


def _word(value: Any) -> str:
    if not isinstance(value, int | str):
        raise Error(f"{value!r} is neither a number nor a text", Exit.FAILED, HINT)
    return str(int(value)) if isinstance(value, bool) else str(value)


class Manifest:
    """A file that says what the state should be."""

    def __init__(self, name: str, text: str) -> None:
        """Read the file; raises Error if it is no TOML."""
        self.name, self.text = name, text
        try:
            self._leaves = list(leaves(tomllib.loads(text)))
        except tomllib.TOMLDecodeError as err:
            raise Error(f"{name}: {err}", Exit.FAILED, "correct the file") from err
        self._lines = key_lines(text)
        self._ids: dict[str, str] = {}  # cgroup id -> what the file calls it

    def _line(self, key: Key) -> str:
        """Return `FILE:LINE: ` of the first line about a key, `FILE: ` without one."""
        lines = [at for each, at in self._lines.items() if each[: len(key)] == key]
        return f"{self.name}:{min(lines)}: " if lines else f"{self.name}: "

    def where(self, write: Write) -> str:
        """Return the line that a write comes from."""
        key = tuple(write.path.removeprefix(f"{CONTROL}/").split("/"))
        if key[-1] == "create":
            key = ("profiles", write.value)
        elif key[-1] == "cgroups":
            key = ("bindings", self._ids.get(write.value, write.value))
        return self._line(key)

    @contextmanager
    def _at(self, key: Key) -> Iterator[None]:
        """Let errors begin with the line of the key; a bad manifest is a failure."""
        try:
            yield
        except Error as err:
            err.message = self._line(key) + err.message
            err.exit_code = Exit.FAILED
            raise

    def target(self, tree: Tree, now: State, missing_allowed: bool = False) -> State:
        """Return the state that the manifest asks for, on a host whose state is now.

        A cgroup that is not there is an error, or, if allowed, a binding of its path.
        """
        state = {key: value for key, value in now.items() if key.startswith(("exp", "pids/"))}
        state |= {f"experiment/{name}": value for name, value in OFF.items()}
        state = {key: value for key, value in state.items() if key in now}
        state |= {"lease_ms": "0"} if "lease_ms" in now else {}
        state |= _left_alone(now, {DEFAULT, *self._profiles()})
        for key, value in self._leaves:
            with self._at(key):
                state |= self._entry(tree, now, key, value, missing_allowed)
        return state

    def _profiles(self) -> set[str]:
        return {key[1] for key, _ in self._leaves if key[0] == "profiles" and len(key) > 1}

    def _entry(self, tree: Tree, now: State, key: Key, value: Any, missing_allowed: bool) -> State:
        """Return what one entry of the file means."""
        kind = pick("entry of a manifest", key[0], TOP)
        if kind == "profiles" and value == {}:  # a profile that is all stock
            return {"/".join(key): ""}
        word, path = _word(value), "/".join(key)
        if kind == "version":
            pick("version of a manifest", word, [VERSION])
            return {}
        if kind == "bindings" and len(key) == 2:
            pick("profile", word, {DEFAULT, *self._profiles()})
            return {f"cgroups/{self._cgroup(tree, key[1], missing_allowed)}": word}
        if kind == "profiles" and len(key) > 2:
            _check_setting(tree, now, key, word)
            return {f"profiles/{key[1]}": "", path: word}
        pick("setting", path, [each for each in now if each.startswith(("experiment/", "lease"))])
        if path == SCOPE and word != WHOLE_HOST:
            word = self._cgroup(tree, word, missing_allowed)
        return {path: word}

    def _cgroup(self, tree: Tree, path: str, missing_allowed: bool) -> str:
        try:
            number = find_cgroup(tree, path)
        except Error:
            if not missing_allowed:
                raise
            return path
        self._ids[number] = path
        return number


def _left_alone(now: State, names: set[str]) -> State:
    """Return profiles with every point stock, and knobs as they are."""
    state = {}
    for name in names & set(profiles_of(now)):
        state[f"profiles/{name}"] = ""
        for path, value in settings_of(now, name).items():
            state[f"profiles/{name}/{path}"] = "stock" if path.endswith("/policy") else value
    return state


def _check_setting(tree: Tree, now: State, key: Key, word: str) -> None:
    """Refuse names that the kernel does not know; values are its own business."""
    profile = key[1] if f"profiles/{key[1]}" in now else DEFAULT
    known = settings_of(now, profile)
    point, name = key[2], "/".join(key[3:])
    pick("point", point, {path.partition("/")[0] for path in known})
    base = f"{point}/"
    names = [path.removeprefix(base) for path in known if path.startswith(base)]
    pick(f"setting of {point}", name, names)
    if name == "policy":
        policies = active_of(tree, f"{CONTROL}/profiles/{profile}/{point}/policy")[1]
        pick(f"policy of {point}", word, policies)


def save(tree: Tree, state: State) -> str:
    """Return the manifest of a state."""
    paths = cgroup_paths(tree) if _names_cgroups(state) else {}
    data: dict[str, Any] = {"version": int(VERSION)}
    for key, value in state.items():
        kind, _, number = key.partition("/")
        if kind == "cgroups":
            data.setdefault("bindings", {})[paths.get(number, number)] = value
        elif key == SCOPE:
            data.setdefault(kind, {})["cgroup"] = paths.get(value, int(WHOLE_HOST))
        elif kind != "pids" and value:
            _put(data, tuple(key.split("/")), int(value) if value.isdigit() else value)
    return dumps(data)


def _names_cgroups(state: State) -> bool:
    return any(key.startswith("cgroups/") for key in state) or state.get(SCOPE, "0") != WHOLE_HOST


def _put(data: dict[str, Any], key: Key, value: int | str) -> None:
    for name in key[:-1]:
        data = data.setdefault(name, {})
    data[key[-1]] = value
