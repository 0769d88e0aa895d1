# SPDX-License-Identifier: GPL-2.0
"""The check of sizes counts right, up to the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from lint.sizes import FILE, FUNCTION, LINE, TREE, check, not_wrapped, too_long


def test_nothing_is_too_long_here() -> None:
    """In the project itself."""
    assert check(TREE) == []


@pytest.mark.parametrize("name", ["a.c", "a.h", "a.py"])
def test_files(tmp_path: Path, name: str) -> None:
    """The last line that is allowed, and the next."""
    path = tmp_path / name
    path.write_text("\n" * FILE)
    assert list(too_long(path)) == []
    path.write_text("\n" * (FILE + 1))
    assert list(too_long(path)) == [f"{path}: {FILE + 1} lines, at most {FILE}"]


def in_c(lines: int) -> str:
    return "int x;\n\nstatic int f(int a,\n\t     int b)\n{\n" + "\ta++;\n" * (lines - 4) + "}\n"


def in_python(lines: int) -> str:
    return "import os\n\ndef f():\n" + "    pass\n" * (lines - 1)


@pytest.mark.parametrize(("name", "make"), [("a.c", in_c), ("a.py", in_python)])
def test_functions(tmp_path: Path, name: str, make: object) -> None:
    """From the line with its name to the one that ends it."""
    assert callable(make)
    path = tmp_path / name
    path.write_text(make(FUNCTION))
    assert list(too_long(path)) == []
    path.write_text(make(FUNCTION + 1))
    assert list(too_long(path)) == [
        f"{path}:3: a function of {FUNCTION + 1} lines, at most {FUNCTION}"
    ]


def test_documents(tmp_path: Path) -> None:
    """A sentence is wrapped; what cannot be is left alone."""
    path, long = tmp_path / "a.md", "x" * (LINE + 1)
    path.write_text(f"# {long}\n| {long} |\n```\n{long}\n```\n{'x' * LINE}\n")
    assert list(not_wrapped(path)) == []
    path.write_text(f"a\n\n- {long}\n")
    assert list(not_wrapped(path)) == [f"{path}:3: {LINE + 3} columns, at most {LINE}"]
    assert check(tmp_path) == list(not_wrapped(path))
