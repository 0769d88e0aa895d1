# SPDX-License-Identifier: GPL-2.0
"""The lint of prose counts comments, docstrings and documents, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from lint.words import FEW, LIMIT, LINE, RATES, TREE, check, not_wrapped, rates

RIDDLE = "what is there is nobody to be told of that "  # three matches in ten words


def test_no_bound_is_loose() -> None:
    """A bound is at most one above the rate, so a directory that improves stays so."""
    found = rates(TREE)
    assert not [name for name, bound in RATES.items() if bound > found[name][0] + 1]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.c", "int a; /* {} */\n"),
        ("a.S", "/*\n * {} */\n"),
        ("a.py", '"""{}"""\n'),
        ("a.py", "a = 1  # {}\n"),
        ("a.md", "{}\n"),
        ("a.sh", "#!/bin/sh\n# {}\n"),
    ],
)
def test_prose_counts(tmp_path: Path, name: str, text: str) -> None:
    """In each language, a directory above the bound is named with its rate."""
    (tmp_path / "new").mkdir()
    path = tmp_path / "new" / name
    path.write_text(text.format(RIDDLE * FEW))
    assert [line.partition(":")[0] for line in check(tmp_path) if "headless" in line] == ["new"]
    path.write_text(text.format("The kernel splits the folio. " * FEW))
    assert [line for line in check(tmp_path) if "headless" in line] == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.c", '/* The kernel */ char *a = "{}";\n'),
        ("a.py", '"""The kernel."""\na = "{}"\n'),
        ("a.md", "The kernel\n```\n{}\n```\n"),
        ("a.py", "# SPDX-License-Identifier: {}\n"),
    ],
)
def test_code_and_output_do_not_count(tmp_path: Path, name: str, text: str) -> None:
    """Strings, output of commands and the license line are not prose."""
    (tmp_path / name).write_text(text.format(RIDDLE * FEW))
    assert all(rate <= LIMIT for rate, _words in rates(tmp_path).values())


def test_documents_are_wrapped(tmp_path: Path) -> None:
    """Sentences must be wrapped; headings, tables and output cannot be."""
    path, long = tmp_path / "a.md", "x" * (LINE + 1)
    path.write_text(f"# {long}\n| {long} |\n```\n{long}\n```\n{'x' * LINE}\n")
    assert list(not_wrapped(path)) == []
    path.write_text(f"a\n\n- {long}\n")
    assert list(not_wrapped(path)) == [f"{path}:3: {LINE + 3} columns, at most {LINE}"]
    assert check(tmp_path) == list(not_wrapped(path))
