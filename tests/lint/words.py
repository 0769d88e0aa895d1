# SPDX-License-Identifier: GPL-2.0
"""Lint of prose: comments, docstrings and documents name their subjects, and lines are wrapped.

The expression lists headless phrases ("what is", "nobody", "of that"), which leave the reader to
guess the subject. The rate is matches per 1,000 words of one directory, so a single phrase that is
right in its place does no harm. Kernel subsystems and tools of similar size have 0 to 2.8.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

TREE = Path(__file__).parents[2]
LIMIT = 5.0  # matches per 1,000 words, of a directory that RATES does not list
MODULE_LIMIT = 2.0  # of a directory of the module that RATES does not list
LINE = 96  # columns of a line of prose in Markdown
FEW = 300  # words: a directory with fewer has no rate

# Directories written before this check: each one's rate may fall, and never rise. Lower the figure,
# or delete the row, in the commit that rewrites the words.
RATES = {
    "module/anon_order": 0.5,
    "module/madv_free": 0.5,
    "module/provider": 0.4,
    "module/sense": 0.4,
}

HEADLESS = re.compile(
    r"\b(nobody|somebody|whoever|who (?:is|has|was|can|may|acts))\b"
    r"|\b(the same|as above|of that|of those|of these|of it)\b"
    r"|\b(beside|besides|meanwhile|any more|at times|in vain)\b"
    r"|\bwhat (is|it|there|was|has|the|a|they)\b"
    r"|\b(is|are|was|were) to (be|have|go|let|see|do)\b",
    re.IGNORECASE,
)
LICENSE = re.compile("SPDX-License-Identifier.*")
DIRECTIVES = ("# noqa", "# type:", "# fmt:", "#!")


def in_c(text: str) -> Iterator[str]:
    """Yield the comments of C and of assembly."""
    for match in re.finditer(r"/\*(.*?)\*/", text, re.DOTALL):
        yield re.sub(r"\n\s*\*", " ", match[1])


def in_python(text: str) -> Iterator[str]:
    """Yield docstrings and comments."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
            yield ast.get_docstring(node) or ""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith(DIRECTIVES):
            yield token.string[1:]


def in_markdown(text: str) -> Iterator[str]:
    """Yield all but blocks of output and code."""
    yield re.sub(r"```.*?```", " ", text, flags=re.DOTALL)


def in_shell(text: str) -> Iterator[str]:
    """Yield comments that fill a line."""
    yield from re.findall(r"^\s*#(?!!)(.*)$", text, re.MULTILINE)


READERS = {
    ".c": in_c,
    ".h": in_c,
    ".S": in_c,
    ".py": in_python,
    ".md": in_markdown,
    ".txt": in_markdown,
    ".sh": in_shell,
}


def sources(tree: Path) -> Iterator[Path]:
    """Yield files with prose, except hidden ones and data of the tests."""
    for path in sorted(tree.rglob("*.*")):
        parts = path.relative_to(tree).parts
        hidden = any(part.startswith(".") or part in ("transcripts", "data") for part in parts)
        if path.suffix in READERS and path.is_file() and not hidden:
            yield path


def rates(tree: Path) -> dict[str, tuple[float, int]]:
    """Return matches per 1,000 words, and the words, of each directory."""
    words: Counter[str] = Counter()
    matches: Counter[str] = Counter()
    for path in sources(tree):
        folder = str(path.parent.relative_to(tree))
        for text in READERS[path.suffix](path.read_text()):
            prose = LICENSE.sub("", text)
            words[folder] += len(prose.split())
            matches[folder] += len(HEADLESS.findall(prose))
    return {name: (1000 * matches[name] / words[name], words[name]) for name in +words}


def too_headless(tree: Path) -> Iterator[str]:
    """Yield a line for each directory whose rate is above its bound."""
    for name, (rate, words) in sorted(rates(tree).items()):
        limit = RATES.get(name, MODULE_LIMIT if name.startswith("module") else LIMIT)
        if words >= FEW and rate > limit:
            yield (
                f"{name}: {rate:.1f} headless phrases per 1,000 words, at most {limit:.1f};"
                " see CONTRIBUTING.md, Words"
            )


def not_wrapped(path: Path) -> Iterator[str]:
    """Yield a line for each overlong line of prose; headings, tables and output may be long."""
    output = False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            output = not output
        elif len(line) > LINE and not output and line.lstrip()[0] not in "#|<[":
            yield f"{path}:{number}: {len(line)} columns, at most {LINE}"


def check(tree: Path) -> list[str]:
    """Return all findings in a tree of the project."""
    folders = ("*.md", "*/*.md", "docs/*/*.md", "deploy/*/*.md")
    texts = sorted(path for folder in folders for path in tree.glob(folder))
    return [*too_headless(tree), *(line for path in texts for line in not_wrapped(path))]
