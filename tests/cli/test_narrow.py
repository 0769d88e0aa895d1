# SPDX-License-Identifier: GPL-2.0
"""Tables on a terminal that is too narrow for them."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence
from pathlib import Path

import pytest
from click import Context

from mmpolicy.cli import main
from mmpolicy.render import table

from .fakes import FakeTree, Run

SOURCE = Path(__file__).parents[2] / "userspace/src"


def start(tree: FakeTree, words: Sequence[str], output: int) -> subprocess.Popen[bytes]:
    """Start the command."""
    environment = {key: os.environ[key] for key in os.environ if key not in ("COLUMNS", "LINES")}
    argv = [sys.executable, "-m", "mmpolicy", "--root", str(tree.root), *words]
    path = f"{SOURCE}:{os.environ.get('PYTHONPATH', '')}"
    settings = {"PYTHONPATH": path, "NO_COLOR": "1"}
    return subprocess.Popen(argv, stdout=output, env=environment | settings)


def into_a_pipe(tree: FakeTree, words: Sequence[str]) -> list[str]:
    """Run the command; return the lines that it prints."""
    return start(tree, words, subprocess.PIPE).communicate()[0].decode().splitlines()


def on_a_terminal(tree: FakeTree, words: Sequence[str], columns: int) -> list[str]:
    """Run the command on a terminal; return the lines that it prints there."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 25, columns, 0, 0))
    child = start(tree, words, its)
    os.close(its)
    text = b""
    try:
        while some := os.read(ours, 65536):
            text += some
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    child.wait()
    return text.decode().replace("\r\n", "\n").splitlines()


def words_of(lines: list[str]) -> list[str]:
    """Return all words in their order, whether cells stand side by side or below each other."""
    return sorted(word for line in lines for word in line.split() if word != "-")


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("words", [("show",), ("log",), ("doctor",), ("list",), ("status",)])
def test_no_line_is_too_long_and_no_word_is_lost(
    run: Run, tree: FakeTree, words: tuple[str, ...], columns: int
) -> None:
    """The words are those of a pipe, which has a row in a line."""
    tree.make_profile("web")
    run("profile", "create", "one")
    run("bind", "--cgroup", str(tree.real("/sys/fs/cgroup")), "web")
    run(
        "set",
        "anon_order",
        "adaptive",
        "max_order=5",
        "min_folios=3",
        "--profile",
        "web",
    )
    lines = on_a_terminal(tree, words, columns)
    assert [line for line in lines if len(line) > max(columns, longest_word(line) + 10)] == []
    assert words_of(lines) == words_of(into_a_pipe(tree, words))


def longest_word(line: str) -> int:
    """Return the length of the longest word of a line, such as a path, which is not broken."""
    return max((len(word) for word in line.split()), default=0)


def test_what_stands_below_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmpolicy.render.columns", lambda: 30)
    rows = [
        ("a", "1", "the text of the first row is long"),
        ("b", "2", ""),
        ("", "", "more"),
    ]
    assert table(("NAME", "N", "MEANING"), rows) == [
        "NAME  N",
        "    MEANING",
        "a     1",
        "    the text of the first row",
        "      is long",
        "b     2",
        "    more",
    ]


def test_what_goes_on_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmpolicy.render.columns", lambda: 44)
    green = "\x1b[32ma\x1b[0m"  # which takes one column
    rows = [(green, "the text of the first row is too long for it"), ("bc", "short"), ("", "")]
    assert table(("NAME", "MEANING"), rows) == [
        "NAME  MEANING",
        f"{green}     the text of the first row is too long",
        "      for it",
        "bc    short",
        "",
    ]


def test_a_pipe_has_each_row_in_a_line(run: Run, tree: FakeTree) -> None:
    header, *rows = run("show", "anon_order").out.splitlines()
    assert header.endswith("MEANING")
    assert all(row.startswith("anon_order") for row in rows)


def test_the_help_has_each_verb_once_and_whole(tree: FakeTree) -> None:
    """The help has each verb once, grouped by purpose; no sentence ends in the middle."""
    lines = on_a_terminal(tree, ["--help"], 80)
    verbs = [line.split()[0] for line in lines if line.startswith("  ") and line[2].isalpha()]
    assert set(main.list_commands(Context(main))) <= set(verbs)
    titles = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert titles[0] == "Options:" and titles[1] == "Look:" and len(titles) > 5
    assert not [line for line in lines if "..." in line and not line.startswith("Usage")]
