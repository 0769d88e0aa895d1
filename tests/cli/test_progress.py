# SPDX-License-Identifier: GPL-2.0
"""Output of `ab run` and of the live views on a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

import click
import pytest
from rich.console import Console
from rich.live import Live

from mmpolicy.ab.run.progress import Display
from mmpolicy.verbs.progress import Screen

from .ab_world import FIXED, SHORT, SWITCHBACK, World
from .fakes import FakeTree, Run

METRICS = ["vmstat.pgfault/s", "vmstat.nr_mapped", "psi.memory.full.total/s"]


@pytest.fixture
def clock(tree: FakeTree) -> World:
    """Return time in which scheduled events happen."""
    return World(tree)


@pytest.mark.parametrize("width", [40, 60, 200])
def test_a_run(
    run: Run, clock: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """A run shows the whole time at the start, a line for each metric, and a newline at the end."""
    file = StringIO()
    times = []

    @contextmanager
    def display() -> Iterator[Display]:
        console = Console(file=file, force_terminal=True, width=width, _environ={})
        with Live(console=console, auto_refresh=False) as live:
            yield Screen(live)

    def note(self: Screen, left_s: int, shown: object = Screen._show) -> None:
        times.append(left_s)
        shown(self, left_s)  # type: ignore[operator]

    monkeypatch.setattr("mmpolicy.verbs.ab_run.display", display)
    monkeypatch.setattr(Screen, "_show", note)
    words = ["--design", "switchback", *SHORT, "--pairs", "8", *FIXED]
    words += [word for metric in METRICS for word in ("--metric", metric)]
    assert run("ab", "run", "--out", str(tmp_path / "out"), *words).code == 0
    text = click.unstyle(file.getvalue())
    start, _, rest = text.partition("block 1 of 20 (aa), 1:16 left")
    assert "time: 1:20, 20 blocks of 4 s" in start
    assert "block 20 of 20 (ab), 0:00 left" in rest
    last = text.rpartition("block 20 of 20")[2].splitlines()
    assert max(map(len, last)) <= width
    whole = "".join("".join(last).split())  # lines are folded
    for metric in METRICS:
        assert f"{metric}:" in whole
    assert "pgfault/s:-10(-10..-10)%sofar" in whole
    assert text.endswith("\n")
    assert times == sorted(times, reverse=True)
    assert set(range(80)) <= set(times)  # within blocks too, second by second


def test_lines_where_there_is_no_terminal(run: Run, clock: World, tmp_path: Path) -> None:
    result = run("ab", "run", "--out", str(tmp_path / "out"), *SWITCHBACK, *FIXED)
    lines = result.err.splitlines()
    assert "time: 1:04, 16 blocks of 4 s" in lines
    assert len([line for line in lines if line.startswith("block ")]) == 16


def on_terminal(words: list[str], columns: int) -> str:
    """Run the command on a terminal of so many columns until it is interrupted."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm"}
    stop = "import time\nn = []\n"
    stop += "def sleep(t):\n    n.append(t)\n    if len(n) > 2: raise KeyboardInterrupt\n"
    code = "time.sleep = sleep\nimport sys\nfrom mmpolicy.cli import main\nmain(sys.argv[1:])"
    argv = [sys.executable, "-c", stop + code, *words]
    with subprocess.Popen(argv, stdin=its, stdout=its, stderr=its, env=env) as process:
        os.close(its)
        shown = b""
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:  # it has gone
                break
            shown += part
        os.close(ours)
    assert process.returncode == 0, shown
    return shown.decode()


@pytest.mark.parametrize("columns", [0, 30, 100])
def test_live_views_on_a_terminal(tree: FakeTree, columns: int) -> None:
    for words in (["stats", "--watch"], ["watch"]):
        shown = on_terminal(["--root", str(tree.root), *words, "--interval", "9"], columns)
        text = click.unstyle(shown)
        assert shown.endswith(("\n", "\x1b[?25h"))  # the cursor is there again
        assert ("PER_SECOND" if words[0] == "stats" else "no counter rises") in text
