# SPDX-License-Identifier: GPL-2.0
"""The kernel's own knobs, which are files below a few directories and need no module."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from fnmatch import fnmatch

from mmpolicy.errors import Error, Exit, pick
from mmpolicy.host.files import KNOB_FOLDERS, Tree

ACTIONS = ("stat_refresh",)  # files of which a read triggers an action
SIZE = "hugepages-"  # beginning of the name of the directory of each folio size

Values = dict[str, str]  # by path


def chosen(text: str) -> str:
    """Return the word in brackets of a text such as `[process] cgroup`; the whole text without
    brackets.
    """
    marked = [word for word in text.split() if word.startswith("[") and word.endswith("]")]
    return marked[0].strip("[]") if len(marked) == 1 else text


def read_knob(tree: Tree, path: str) -> str:
    """Return the value of a knob, in the form in which it can be written."""
    return " ".join(chosen(tree.read(path)).split())


def read_knobs(tree: Tree) -> Values:
    """Return the values of all knobs that can be read, as only these can be restored later."""
    found: Values = {}
    for path in (path for folder in KNOB_FOLDERS for path in _walk(tree, folder)):
        try:
            found[path] = read_knob(tree, path) if tree.is_knob(path) else ""
        except Error:
            continue
    return {path: value for path, value in found.items() if value}


def _walk(tree: Tree, folder: str) -> Iterator[str]:
    for name in tree.names(folder) if tree.is_dir(folder) else ():
        path = f"{folder}/{name}"
        if name in ACTIONS:
            continue
        if tree.is_dir(path):
            yield from _walk(tree, path)
        else:
            yield path


def names_of(path: str) -> list[str]:
    """Return the names by which a user may call a knob, the usual name first.

    For example: `transparent_hugepage/defrag`, the full path, and `defrag`.
    """
    folder = next(each for each in KNOB_FOLDERS if path.startswith(f"{each}/"))
    above = folder.rpartition("/")[0]
    return [path.removeprefix(f"{above}/"), path, path.removeprefix(f"{folder}/")]


def checked(paths: Iterable[str]) -> list[str]:
    """Return the paths, or raise a ValueError if one is outside the directories of knobs."""
    found = list(paths)
    inside = tuple(f"{folder}/" for folder in KNOB_FOLDERS)
    if wrong := [path for path in found if not path.startswith(inside)]:
        raise ValueError(f"{wrong[0]!r} is not a knob of the kernel")
    return found


def find_knobs(knobs: Iterable[str], given: str) -> list[str]:
    """Return the paths of the knobs that a name with wildcards `*` and `?` matches."""
    return [path for path in knobs if any(fnmatch(name, given) for name in names_of(path))]


def no_knob(knobs: Iterable[str], given: str) -> Error:
    """Return the error for a name that matches no knob."""
    if given.startswith(SIZE) and not find_knobs(knobs, f"{SIZE}*"):
        text = f"this kernel has large folios of 2 MB only, so it has no '{given}'"
        return Error(text, Exit.LACKING, "boot Linux 6.8 or newer; enabled=always is for 2 MB")
    close = get_close_matches(given, [name for path in knobs for name in names_of(path)], n=1)
    hint = f"did you mean {close[0]}?" if close else "mmpolicy thp --all lists the knobs"
    return Error(f"the kernel has no knob '{given}' that can be read and written", Exit.USAGE, hint)


def choices(tree: Tree, path: str) -> list[str]:
    """Return the words that a knob accepts, or its current value if it takes other values."""
    text = tree.read(path)
    return [word.strip("[]") for word in text.split()] if chosen(text) != text else [text]


def check_value(tree: Tree, path: str, value: str) -> str:
    """Return the value if the knob accepts it; raise an error for a word that the knob does not
    list.
    """
    text = tree.read(path)
    if chosen(text) != text:
        pick(f"value of {names_of(path)[0]}", value, choices(tree, path))
    elif not value.split() or (_numeric(text) and not _numeric(value)):
        hint = f"give a value like the present one, which is {text}"
        raise Error(f"'{value}' is not a valid value for {names_of(path)[0]}", Exit.USAGE, hint)
    return value


def _numeric(text: str) -> bool:
    return all(re.fullmatch(r"-?\d+", word) for word in text.split())
