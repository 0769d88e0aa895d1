# SPDX-License-Identifier: GPL-2.0
"""No file of module/, of the command and of deploy/ is over 400 lines, no function over 40.

Sentences of the documents are wrapped, so that a changed sentence is a changed line.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TREE = Path(__file__).parents[2]
FOLDERS = ("module", "userspace/src", "deploy")
FILE, FUNCTION, LINE = 400, 40, 96


def functions_in_c(text: str) -> Iterator[tuple[int, int]]:
    """First and last line of each function, which its braces alone on a line tell."""
    head = start = 0
    for number, line in enumerate(text.splitlines(), 1):
        if line == "{":
            start = head
        elif line == "}" and start:
            yield start, number
            start = 0
        elif line and line[0] not in "\t }#*/" and not start:
            head = number


def functions_in_python(text: str) -> Iterator[tuple[int, int]]:
    """First and last line of each function."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.end_lineno:
            yield node.lineno, node.end_lineno


def too_long(path: Path) -> Iterator[str]:
    """A line for a file, and for each function in it, that is too long."""
    text = path.read_text()
    lines = text.count("\n")
    if lines > FILE:
        yield f"{path}: {lines} lines, at most {FILE}"
    functions = functions_in_python if path.suffix == ".py" else functions_in_c
    for first, last in functions(text):
        if last - first >= FUNCTION:
            yield f"{path}:{first}: a function of {last - first + 1} lines, at most {FUNCTION}"


def not_wrapped(path: Path) -> Iterator[str]:
    """A line for each line of text that is too long; headings, tables and output are none."""
    output = False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            output = not output
        elif len(line) > LINE and not output and line.lstrip()[0] not in "#|<[":
            yield f"{path}:{number}: {len(line)} columns, at most {LINE}"


def check(tree: Path) -> list[str]:
    """What is too long in a tree of the project."""
    found = [path for folder in FOLDERS for path in (tree / folder).rglob("*.*")]
    sources = sorted(path for path in found if path.suffix in (".c", ".h", ".py"))
    folders = ("*.md", "*/*.md", "docs/*/*.md", "deploy/*/*.md")
    texts = sorted(path for folder in folders for path in tree.glob(folder))
    return [
        *(line for path in sources for line in too_long(path)),
        *(line for path in texts for line in not_wrapped(path)),
    ]
