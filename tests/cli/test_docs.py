# SPDX-License-Identifier: GPL-2.0
"""The commands that the documents show are commands that there are."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from .fakes import Run

TREE = Path(__file__).parents[2]
DOCS = [TREE / "README.md", *sorted((TREE / "docs").rglob("*.md"))]
# A line of a shell, which may go on; or in the text, within ` and `.
COMMAND = re.compile(r"^\s*(?:[#$] )?(mmpolicy (?:.*\\\n)*.*)$|`(mmpolicy [^`]*)`", re.MULTILINE)


def commands(line: str) -> Iterator[str]:
    """Split a line of shell into those of its commands that are ours."""
    if line.count("'") % 2:  # the last line of a script in quotes
        line = line.removesuffix("'")
    words: list[str] = []
    line = line.replace("\\\n", " ") + ";"
    for word in shlex.shlex(line, posix=True, punctuation_chars="|&;<>"):
        if not set(word) <= set("|&;<>"):
            words.append(word)
            continue
        if words[:1] == ["mmpolicy"]:
            yield shlex.join(words)
        words = []


FOUND = {
    command
    for path in DOCS
    for match in COMMAND.finditer(path.read_text())
    for command in commands(match[1] or match[2])
}


LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
PAGES = [*DOCS, TREE / "CONTRIBUTING.md", TREE / "CHANGELOG.md"]


def anchors(path: Path) -> set[str]:
    """Return what the headings of a page are linked by."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_links_lead_somewhere(path: Path) -> None:
    for link in LINK.findall(CODE.sub("", path.read_text())):
        file, _, anchor = link.partition("#")
        target = path.parent / file if file else path
        assert re.match(r"https?:", link) or target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_the_site_has_every_page() -> None:
    named = set(re.findall(r": (\S+\.md)$", (TREE / "mkdocs.yml").read_text(), re.MULTILINE))
    assert named == {str(path.relative_to(TREE / "docs")) for path in DOCS[1:]}


def test_commands_are_found() -> None:
    """In more than one document."""
    assert {"mmpolicy reset", "mmpolicy bind --cgroup redis-server.service try --dry-run"} < FOUND
    assert len(FOUND) > 40


@pytest.mark.parametrize("command", sorted(FOUND))
def test_commands_are_understood(run: Run, command: str) -> None:
    """With --help at the end a command is parsed, and not run."""
    result = run(*shlex.split(command)[1:], "--help")
    assert (result.code, result.err) == (0, "")


def test_wrong_commands_are_not(run: Run) -> None:
    """That the test above can fail."""
    assert run("set", "--nonsense", "--help").code == run("nonsense", "--help").code == 2
