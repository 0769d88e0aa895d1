# SPDX-License-Identifier: GPL-2.0
"""Output of commands on known hosts, in full: one file of transcripts/ for each scene.

Other tests check the required properties, with reasons. This one shows any change at all. With
MMPOLICY_TRANSCRIBE=1 it rewrites the files; read the difference before you commit it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from mmpolicy.memory.survey import Survey

from . import scenes
from .ab_world import World
from .fakes import Clock, FakeTree, Run

HERE = Path(__file__).parent / "transcripts"
TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.+\d:]*)")
NUMBER = re.compile(r"(?<=cgroup )\d{3,}|(?<=uid )\d+")  # an inode, a user
LONG_NUMBER = re.compile(r"(?<![\w.])-?\d+\.\d+(?:e[-+]\d+)?")


@pytest.fixture
def clock(tree: FakeTree, request: pytest.FixtureRequest) -> Clock:
    """Return time, in which the arms of an experiment work if the scene has one."""
    scene = request.node.callspec.params["scene"]
    return World(tree) if scene.__name__.startswith("ab_run") else Clock()


def plain(text: str, folder: Path, tree: FakeTree) -> str:
    """Return a text without parts that differ between runs, and figures to five digits."""
    text = text.replace(str(tree.real("/")).rstrip("/"), "").replace(str(folder), "DIR")
    text = text.replace(os.uname().machine, "MACHINE")
    text = text.replace(" --help' for help.", " -h' for help.")  # as printed by click 8.5
    text = NUMBER.sub("NUMBER", TIME.sub("TIME", text))
    return LONG_NUMBER.sub(lambda found: f"{float(found[0]):.5g}", text)


@pytest.mark.parametrize("scene", scenes.ALL, ids=lambda scene: scene.__name__)
def test_commands_print_what_they_did(
    scene: Callable[[FakeTree, Clock, Path], scenes.Words],
    run: Run, tree: FakeTree, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    # Each look at memory takes an equal time, and goes to equal pages.
    defaults = ("", partial(next, count(0, 0.01)), 1, None)
    monkeypatch.setattr(Survey.__init__, "__defaults__", defaults)
    monkeypatch.setattr("time.perf_counter", lambda: 0.0)  # looks seem to hold no lock
    told = ""
    for words in scene(tree, clock, tmp_path):
        if isinstance(words, str):
            told += f"{words}\n"
            continue
        if words[:1] == ["cat"]:
            told += f"$ {' '.join(words)}\n{Path(words[1]).read_text()}\n"
            continue
        result = run(*words)
        end = f"(exit {result.code})\n" if result.code else ""
        told += f"$ {' '.join(['mmpolicy', *words])}\n{result.out}{result.err}{end}\n"
    told, file = plain(told, tmp_path, tree), HERE / f"{scene.__name__}.txt"
    if "MMPOLICY_TRANSCRIBE" in os.environ:
        file.write_text(told)
    assert told == file.read_text()
