# SPDX-License-Identifier: GPL-2.0
"""The check of names in documents finds defined and undefined ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from lint.names import TREE, check, defined


def tree(folder: Path, doc: str, **sources: str) -> Path:
    """Return a tree with a document, and sources in module/."""
    (folder / "module").mkdir()
    (folder / "docs").mkdir()
    (folder / "docs/a.md").write_text(doc)
    for name, text in sources.items():
        (folder / "module" / name.replace("_", ".")).write_text(text)
    return folder


def test_what_is_gone_is_told(tmp_path: Path) -> None:
    """The finding has file and line; a call or a declaration defines nothing."""
    text = "int gone(void);\n\tgone();\nstatic int\n\there(int a)\n"
    found = check(tree(tmp_path, "one\n`gone()` and more\n", a_c=text), tmp_path)
    assert found == [f"{tmp_path}/docs/a.md:2: gone() is not defined"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.c", "static __always_inline pte_t name(const pte_t *pte,\n\t\tlong pages)\n{\n"),
        ("a.c", "#define name(bits) (bits)\n"),
        ("a.c", "SYSCALL_DEFINE0(name)\n"),
        ("a.patch", "+bool name(void)\n"),
        ("a.py", "    def name(self) -> None:\n"),
        ("a.sh", "name() {\n"),
    ],
)
def test_definitions(tmp_path: Path, name: str, text: str) -> None:
    """Definitions are found in each language of the tree."""
    (tmp_path / name).write_text(text)
    assert "name" in defined([tmp_path])


def test_own_names_in_our_documents() -> None:
    """Names with our prefix must be defined in this tree."""
    wrong = [line for line in check(TREE, Path("/nonexistent")) if ": mmp_" in line.lower()]
    assert wrong == []
