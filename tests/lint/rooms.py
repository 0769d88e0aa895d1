# SPDX-License-Identifier: GPL-2.0
"""Which room may use which: in module/, in the command, and in tests/ with bench/.

A use is an include or an import, and in C also a name that another file defines. Comments and
strings do not count.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

TREE = Path(__file__).parents[2]

Table = Mapping[str, str]
Modules = Mapping[tuple[str, ...], Path]

# A room is a folder, or a file at the top level; a folder within a room is one if the table has it.
# Each may use itself and the listed rooms.
POINTS = "anon_order thp_gfp compact bulk madv_free"
MODULE: Table = {
    "core": f"control bpf {POINTS} provider policies trace",
    "bpf": "control anon_order thp_gfp compact mmpolicy compat",
    "control": "sense provider",
    "provider": "anon_order sense mmpolicy compat arch",
    "arch": "provider anon_order sense mmpolicy compat features",
    **dict.fromkeys(POINTS.split(), "sense mmpolicy compat trace"),
    "sense": "mmpolicy",
    "mmpolicy": "compat policies",
    "policies": "",
    "compat": "features mm_policy arch",
    "features": "",
    "mm_policy": "",
    "trace": "",
    "stub": "",
}
COMMAND: Table = {
    "__main__": "cli",
    "cli": "verbs host errors __init__",
    "verbs": "ab ab/run ab/report bench control host kernel memory render figures errors __init__",
    "bench": "ab ab/run ab/report control host render figures errors",
    "ab": "control host tomllib figures errors",
    "ab/run": "ab control host render figures errors",
    "ab/report": "ab control host render figures errors",
    "memory": "host render figures errors",
    "control": "host tomllib figures errors __init__",
    "host": "render figures errors",
    "kernel": "",
    "render": "errors",
    "errors": "",
    "figures": "",
    "tomllib": "",
    "__init__": "",
}
TESTS: Table = {
    "lab": "",
    "abi": "",
    "processes": "",
    "controller": "processes",
    "lint": "lab",
    "plant": "",
    "site": "",
    "bench": "lab cli",
    "cli": "abi controller processes bench",
    "guest": "lab bench abi controller processes",
    "harness": "lab lint bench guest",
}


class Use(NamedTuple):
    """One file uses another, by a name in it or as a whole."""

    user: str
    used: str
    name: str


class Source(NamedTuple):
    """A C file as the compiler sees it: without comments and strings."""

    includes: list[str]
    macros: dict[str, set[str]]
    defined: set[str]
    names: set[str]


def room(path: str, table: Table) -> str:
    """Return the room of a file: the innermost of its folders that the table has."""
    folder, *deeper = Path(path).parts
    inner = [parent.as_posix() for parent in Path(path).parents if parent.as_posix() in table]
    return inner[0] if inner else folder if deeper else Path(path).stem


# ---- C

NOISE = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.DOTALL)
WORD = re.compile(r"[A-Za-z_]\w*")
DEFINES = re.compile(
    r"^(?:DEFINE_PER_CPU\s*\([^,]*,|(?:DEFINE_(?!\w*ATTRIBUTE)\w+|LIST_HEAD)\s*\()\s*(\w+)"
)
FUNCTION = re.compile(r"(\w+)\s*\([^()]*(?:\([^()]*\)[^()]*)*\)\s*$")
VARIABLE = re.compile(r"(\w+)\s*(?:\[[^\]]*\]\s*)*$")


def top_level(code: str) -> Iterator[tuple[str, str]]:
    """Yield each declaration of a file: the part before its braces or value, and the rest."""
    head = body = ""
    depth, valued = 0, False
    for token in re.findall(r"[{}();=]|[^{}();=]+", code):
        inside = depth > 0 or valued or body != ""
        depth += {"{": 1, "}": -1}.get(token, 0)
        valued = valued or (token == "=" and depth == 0 and "(" not in head)
        if inside or token == "{" or valued:
            body += token
        else:
            head += token
        ends = token == ";" or (token == "}" and head.rstrip().endswith(")"))
        if depth == 0 and ends:
            yield head.strip().rstrip(";").strip(), body
            head, body, valued = "", "", False


def defines(head: str, body: str) -> str | None:
    """Return the name that a declaration defines for other files, or None."""
    words = WORD.findall(head)
    if not words or words[0] in ("static", "extern", "typedef") or head.startswith("DECLARE"):
        return None
    if found := DEFINES.match(head):
        return found[1]
    if found := FUNCTION.search(head):
        return found[1] if body.startswith("{") else None
    if len(words) < 2 or (words[0] in ("struct", "enum", "union") and len(words) == 2):
        return None
    found = VARIABLE.search(head)
    return found[1] if found else None


def read_c(text: str) -> Source:
    """Return the includes, definitions and names of a C file."""
    includes = re.findall(r'^\s*#\s*include\s+"([^"]+)"', text, re.MULTILINE)
    text = NOISE.sub(" ", text).replace("\\\n", " ")
    macros = {
        name: set(WORD.findall(value))
        for name, value in re.findall(r"^\s*#\s*define\s+(\w+)(.*)$", text, re.MULTILINE)
    }
    code = re.sub(r"^\s*#.*$", "", text, flags=re.MULTILINE)
    defined, names = set(), set()
    for head, body in top_level(code):
        if name := defines(head, body):
            defined.add(name)
        names |= set(WORD.findall(body))
        if re.match(r"(?!DECLARE|DEFINE)[A-Z_]+\(", head):  # a macro that defines something
            names |= set(WORD.findall(head))
    return Source(includes, macros, defined, names)


def unit(path: str) -> str:
    """Return the unit of a file: a C file and its header are one."""
    return path.rsplit(".", 1)[0]


def expanded(names: set[str], macros: Mapping[str, set[str]]) -> set[str]:
    """Return names, with those in the macros among them."""
    done: set[str] = set()
    while names:
        done |= names
        names = {inner for name in names for inner in macros.get(name, ())} - done
    return done


def uses_in_c(root: Path) -> list[Use]:
    """Return all uses between the files of a folder."""
    paths = [path for path in sorted(root.rglob("*.[ch]")) if "tests" not in path.parts]
    sources = {path.relative_to(root).as_posix(): read_c(path.read_text()) for path in paths}
    macros = {name: words for source in sources.values() for name, words in source.macros.items()}
    home = {
        name: path
        for path, source in sources.items()
        if path.endswith(".c")
        for name in source.defined
    }
    uses = set()
    for path, source in sources.items():
        for include in source.includes:
            target = (root / path).parent.joinpath(include).resolve()
            used = target.relative_to(root.resolve()).as_posix()
            uses.add(Use(unit(path), unit(used), f"#include {include}"))
        for name in expanded(source.names, macros) & home.keys():
            uses.add(Use(unit(path), unit(home[name]), name))
    return sorted(use for use in uses if use.user != use.used)


# ---- Python


def imported(tree: ast.Module, package: list[str]) -> Iterator[tuple[list[str], str]]:
    """Yield each import of a module: its origin, and the imported name, if any."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((name.name.split("."), "") for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            origin = start + (node.module.split(".") if node.module else [])
            yield from ((origin, name.name) for name in node.names)


def modules(root: Path) -> Modules:
    """Return the modules of a folder, by their import path; the folder itself is one."""
    paths = [path.relative_to(root.parent) for path in root.rglob("*.py")]
    return {path.with_suffix("").parts: root.parent / path for path in paths}


def test_modules(tree: Path) -> Modules:
    """Return the modules of tests/, whose folders may be packages, and of bench/."""
    found: dict[tuple[str, ...], Path] = {
        (path.stem,): path for path in (tree / "tests").glob("*.py")
    }
    for folder in [*(tree / "tests").glob("*/"), tree / "bench"]:
        found.update(modules(folder))
    return found


def uses_in_python(files: Modules, rooms_below: int = 0) -> list[Use]:
    """Return all uses between modules, named without the folders above the rooms."""
    uses = set()
    for parts, path in files.items():
        for origin, name in imported(ast.parse(path.read_text()), [*parts[:-1]]):
            inner = tuple(origin)
            used = next(
                (way for way in ((*inner, name), inner, (*inner, "__init__")) if way in files), None
            )
            if used and used != parts:
                user, used_by_it = ("/".join(way[rooms_below:]) for way in (parts, used))
                uses.add(Use(user, used_by_it, name or ".".join(origin)))
    return sorted(uses)


# ---- Rules


def forbidden(uses: Iterable[Use], table: Table, suffix: str = "") -> Iterator[str]:
    """Yield a line for each use that the table does not permit."""
    for use in uses:
        user, used = room(use.user, table), room(use.used, table)
        if user not in table:
            yield f"{use.user}{suffix}: the table has no room {user}"
        elif user != used and used not in table[user].split():
            yield f"{use.user}{suffix}: {user} may not use {used}: {use.name} of {use.used}"


def circles(uses: Iterable[Use]) -> Iterator[str]:
    """Yield a line for each circle of files, with the names that cause it."""
    ties: dict[str, dict[str, str]] = {}
    for use in uses:
        ties.setdefault(use.user, {})[use.used] = use.name
    reach = {start: reachable(start, ties) for start in ties}
    seen: set[str] = set()
    for start in sorted(ties):
        circle = {end for end in reach[start] if start in reach.get(end, ())}
        if not circle or start in seen:
            continue
        seen |= circle
        tied = [
            f"{user} -> {used} ({name})"
            for user in sorted(circle)
            for used, name in sorted(ties[user].items())
            if used in circle
        ]
        yield f"circle: {', '.join(tied)}"


def reachable(start: str, ties: Mapping[str, Mapping[str, str]]) -> set[str]:
    """Return all files that one uses, directly or indirectly."""
    found: set[str] = set()
    new = set(ties[start])
    while new:
        found |= new
        new = {used for user in new for used in ties.get(user, ())} - found
    return found


def check(tree: Path) -> list[str]:
    """Return the violations in a tree of the project."""
    in_c = uses_in_c(tree / "module")
    in_python = uses_in_python(modules(tree / "userspace/src/mmpolicy"), rooms_below=1)
    in_tests = uses_in_python(test_modules(tree))
    return [
        *forbidden(in_c, MODULE),
        *circles(in_c),
        *forbidden(in_python, COMMAND, ".py"),
        *circles(in_python),
        *forbidden(in_tests, TESTS, ".py"),
        *circles(in_tests),
    ]
