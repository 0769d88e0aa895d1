# SPDX-License-Identifier: GPL-2.0
"""The checks of ./dev lint. MMPOLICY_SOURCE is the kernel's source, for its checkpatch.pl."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from lab.machine import TREE, cache_dir
from lint import names, rooms, words

CONFIG = TREE / "userspace/pyproject.toml"
HOOK_LINES = 300  # at most, in the patches of a series
# Checks of 7.3's checkpatch for interfaces that 6.12 lacks.
LATER = "CONST_STRUCT,ALLOC_WITH_SIZEOF,ALLOC_WITH_MULTIPLY"
TRACE_STYLE = "OPEN_ENDED_LINE,PARENTHESIS_ALIGNMENT"
# Only compat.h may test versions. checkpatch knows neither macros that declare from a list, nor the
# style of trace events, nor code that is only compiled.
STYLES = {
    "compat.h": f"LINUX_VERSION_CODE,CONSTANT_COMPARISON,MACRO_ARG_REUSE,{LATER}",
    "features.c": "SPACING,AVOID_EXTERNS",
    "trace.h": TRACE_STYLE,
    "bpf/told.h": TRACE_STYLE,
}
STYLE = f"MACRO_ARG_REUSE,MACRO_ARG_UNUSED,TRAILING_SEMICOLON,{LATER}"


def source() -> Path:
    """Return the kernel's source."""
    return Path(os.environ["MMPOLICY_SOURCE"])


def silent(*argv: str | Path, **more: str) -> None:
    """Run a command that must succeed."""
    ended = subprocess.run(
        argv, cwd=TREE, env=os.environ | more, stdout=-1, stderr=subprocess.STDOUT, text=True
    )
    if ended.returncode:
        pytest.fail(ended.stdout, pytrace=False)


def files() -> Iterator[Path]:
    """Yield the files of the tree, without hidden ones."""
    for folder, folders, found in os.walk(TREE):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(folder, name) for name in sorted(found) if not name.startswith("."))


def scripts(interpreter: str) -> list[Path]:
    """Return the files whose first line names an interpreter."""

    def first(path: Path) -> bytes:
        with path.open("rb") as file:
            return file.readline(100).rstrip()

    return [path for path in files() if re.fullmatch(rb"#!.*" + interpreter.encode(), first(path))]


def python_files() -> list[Path]:
    """Return modules and scripts."""
    return [path for path in files() if path.suffix == ".py"] + [
        path for path in scripts("python3?") if path.suffix != ".py"
    ]


def shellcheck() -> None:
    """Sourced files are followed."""
    silent("shellcheck", "-x", "-a", "-P", TREE, *scripts("sh"), TREE / ".ci/run")


def ruff(*words: str) -> None:
    """Run ruff, with a cache outside the tree."""
    tool = Path(sys.prefix, "bin/ruff")
    silent(tool, *words, "--config", CONFIG, *python_files(), RUFF_CACHE_DIR=f"{cache_dir()}/ruff")


def mypy() -> None:
    words: list[str | Path] = [f"{sys.prefix}/bin/mypy", "--strict", "--scripts-are-modules"]
    words += [f"--cache-dir={cache_dir()}/mypy", f"--config-file={CONFIG}", *python_files()]
    roots = (TREE / "userspace/src", TREE / "tests", TREE)
    silent(*words, MYPYPATH=":".join(map(str, roots)))


def checkpatch(found: list[Path], *words: str) -> None:
    """Run checkpatch, which prints nothing about clean files."""
    assert found, "nothing to check"
    script = source() / "scripts/checkpatch.pl"
    options = ["--strict", "--no-summary", "--terse", "--quiet", f"--root={source()}"]
    silent("perl", script, *options, "--ignore", "FILE_PATH_CHANGES", *words, "--", *found)


def hook_style() -> None:
    """Check all patches."""
    checkpatch(sorted((TREE / "kernel-hooks").rglob("*.patch")))


def module_style() -> None:
    """Check all C files."""
    module = TREE / "module"
    found = set(module.rglob("*.[ch]")) - {module / name for name in STYLES}
    checkpatch(sorted(found), *style(STYLE))
    for name, left_out in STYLES.items():
        checkpatch([module / name], *style(left_out))


def style(left_out: str) -> list[str]:
    """Return the options for files that are no patches."""
    return ["--no-tree", "--ignore", left_out, "-f"]


def hook_size() -> None:
    """Check the size of each series."""
    for folder in (TREE / "kernel-hooks").glob("*/"):
        text = "\n".join(path.read_text() for path in folder.glob("*.patch"))
        lines = len(re.findall(r"^\+(?!\+)", text, re.MULTILINE))
        assert lines <= HOOK_LINES, f"{folder} adds {lines} lines of {HOOK_LINES}"


def ansible() -> None:
    """Run ansible-lint offline, with only our collection in its path."""
    home, folder = cache_dir() / "ansible", TREE / "deploy/ansible"
    words = ("--offline", "--strict", "--nocolor", f"--config-file={folder}/.ansible-lint")
    with TemporaryDirectory() as place:
        link = Path(place, "ansible_collections/mmpolicy/host")
        link.parent.mkdir(parents=True)
        link.symlink_to(folder)
        silent(
            "env", "-C", folder, "ansible-lint", *words, PATH=f"{home}/bin:{os.environ['PATH']}",
            LC_ALL="C.UTF-8", HOME=place, ANSIBLE_HOME=place, ANSIBLE_COLLECTIONS_PATH=place,
        )  # fmt: skip


def nothing(wrong: list[str]) -> None:
    """Fail with the lines of the findings."""
    if wrong:
        pytest.fail("\n".join(wrong), pytrace=False)


CHECKS: dict[str, Callable[[], None]] = {
    "mypy": mypy,
    "checkpatch, module": module_style,
    "checkpatch, kernel hooks": hook_style,
    "shellcheck": shellcheck,
    "ruff check": partial(ruff, "check"),
    "ruff format": partial(ruff, "format", "--check", "--diff"),
    "Ansible": ansible,
    "size of the kernel hooks": hook_size,
    "rooms": lambda: nothing(rooms.check(TREE)),
    "words, and lines of documents": lambda: nothing(words.check(TREE)),
    "functions that the documents name": lambda: nothing(names.check(TREE, source())),
}


@pytest.mark.parametrize("check", CHECKS)
def test_lint(check: str) -> None:
    """The check has no finding."""
    CHECKS[check]()
