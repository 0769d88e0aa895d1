# SPDX-License-Identifier: GPL-2.0
"""The commands in the documents exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import click
import pytest
from click import Context

from mmpolicy.ab.presets import read
from mmpolicy.cli import main
from mmpolicy.memory.findings import OWN_SIZES

from .fakes import Run

TREE = Path(__file__).parents[2]
DOCS = [TREE / "README.md", *sorted((TREE / "docs").rglob("*.md"))]
# A line of a shell, which may be continued; or in the text, within ` and `.
COMMAND = re.compile(r"^\s*(?:[#$] )?(mmpolicy (?:.*\\\n)*.*)$|`(mmpolicy [^`]*)`", re.MULTILINE)


def commands(line: str) -> Iterator[str]:
    """Split a line of shell into its commands of mmpolicy."""
    if line.count("'") % 2:  # the last line of a script in quotes
        line = line.removesuffix("'")
    words: list[str] = []
    line = re.sub(r"\\\n(> )?", " ", line) + "\n;"  # also after a comment
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    for word in lexer:
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
    """Return the link targets of a page's headings."""
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
    others = {"index.md", "kernel-hooks.md", "contributing.md", "changelog.md"}
    assert named == {str(path.relative_to(TREE / "docs")) for path in DOCS[1:]} | others


def test_what_readme_shows_is_of_the_page_of_the_command() -> None:
    """The output of a session that README repeats agrees with the page."""
    session = re.findall(r"^```\n(# .*?)^```$", (TREE / "README.md").read_text(), re.M | re.DOTALL)
    lines = "".join(session).splitlines()
    assert len(lines) == 5
    assert {*lines} <= {*(TREE / "docs/cli.md").read_text().splitlines()}


def test_no_page_and_no_hint_takes_a_name_of_an_index() -> None:
    """No page and no hint installs mmpolicy from a public index, as any user may register that
    name, and root would run it.
    """
    hints = [*PAGES, *(TREE / "userspace").rglob("*.py"), *(TREE / "debian").rglob("*.*")]
    named = re.compile(r"(pip|pipx|uv)3? install ([^\n]*\s)?['\"]?mmpolicy")
    assert [path for path in hints if path.is_file() and named.search(path.read_text())] == []


def test_nothing_is_saved_over_a_file_of_the_package() -> None:
    """No page saves over a file of the package, as an upgrade would ask about it; README.md once
    did so.
    """
    shipped = {
        f"/{folder}/{Path(file).name}"
        for file, folder in re.findall(
            r"^(\S+) (etc/mmpolicy)$", (TREE / "debian/mmpolicy.install").read_text(), re.M
        )
    }
    saved = {shlex.split(each)[2] for each in FOUND if re.match(r"mmpolicy save [^-]", each)}
    assert "/etc/mmpolicy/50-try.toml" in saved and "/etc/mmpolicy/host.toml" in shipped
    assert not saved & shipped


def test_rss_that_is_too_high_has_its_four_causes_first() -> None:
    """The page on RSS that is too high begins with its four causes, each with a command, its
    output, and a step on a page.
    """
    text = (TREE / "docs/symptoms.md").read_text()
    first = re.split(r"^## ", text, flags=re.MULTILINE)[1]
    rows = re.findall(r"^\| ([a-z].*?) \| (.*?) \| (.*?) \| (.*?) \|$", first, re.MULTILINE)[1:]
    assert first.startswith("RSS is too high\n") and len(rows) == 4
    for word, (cause, command, prints, then) in zip(
        ("large folios", "allocator", "fork", "freed"), rows
    ):
        assert word in cause and "`" in command and prints and then
    assert "docs/symptoms.md" in (TREE / "README.md").read_text().partition("\n## ")[0]


def test_readme_recommend_and_the_preset_have_the_same_sizes() -> None:
    """README, `recommend` and the preset have the same sizes, and the figures of "to 64" in
    docs/evidence.md.
    """
    text = (TREE / "README.md").read_text()
    (line,) = re.findall(r"^echo always \| tee (.*)$", text, re.MULTILINE)
    assert line.split() == [f"hugepages-{size.replace(' ', '')}/enabled" for size in OWN_SIZES]
    assert "all sizes from 16 to 64 kB" in (TREE / "docs/evidence.md").read_text()
    every = [f"hugepages-{4 << order}kB" for order in range(2, 10)]
    short = "hugepages-??kB"
    chosen = [f"{name}/enabled" for name in every if fnmatch(name, short)]
    assert chosen == line.split() and f"{short}/enabled=always' -- python3 load.py" in text
    assert read("thp-sizes")["treatment"] == f"{short}/enabled=always"


TABLE = re.findall(
    r"^\| (`[^|]*(?:\\\|[^|]*)*) \|", (TREE / "docs/cli.md").read_text(), re.MULTILINE
)


def options_of(words: list[str]) -> set[str]:
    """Return the options of a verb, which the words begin with."""
    command: click.Command = main
    for word in words:
        found = isinstance(command, click.Group) and command.get_command(Context(command), word)
        if not found:
            break
        command = found
    return {name for parameter in command.params for name in parameter.opts}


def test_the_table_has_every_verb_and_options_that_there_are() -> None:
    verbs = set()
    for cell in TABLE:
        first, *rest = re.findall(r"`([^`]*)`", cell)
        words = first.split()
        if words[0] in main.list_commands(Context(main)):
            verbs.add(words[0])
            named = re.findall(r"(?<![\w-])--?[a-z][a-z-]*", " ".join([first, *rest]))
            assert set(named) <= options_of(words), cell
    assert verbs == set(main.list_commands(Context(main)))


def test_commands_are_found() -> None:
    """Commands are found in more than one document."""
    assert {"mmpolicy reset", "mmpolicy bind --cgroup redis-server.service try --dry-run"} < FOUND
    assert len(FOUND) > 40


@pytest.mark.parametrize("command", sorted(FOUND))
def test_commands_are_understood(run: Run, command: str) -> None:
    """Commands are understood: with --help at the end a command is parsed, and not run."""
    words = [*shlex.split(command), "--"][1:]
    result = run(*words[: words.index("--")], "--help")  # behind "--" is what others understand
    assert (result.code, result.err) == (0, "")


def test_wrong_commands_are_not(run: Run) -> None:
    """Wrong commands are refused, so the test above can fail."""
    assert run("set", "--nonsense", "--help").code == run("nonsense", "--help").code == 2
