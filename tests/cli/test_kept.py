# SPDX-License-Identifier: GPL-2.0
"""The command's own files:

a full disk, a crash or a second writer leave the old one or the new one.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from mmpolicy.control.journal import JOURNAL
from mmpolicy.host import disk

from .fakes import FakeTree, Run, read_named

OLD = "version = 1\n# the old one\n"
VERBS = (["save"], ["export", "-o"])


class Full:
    """A disk with room for some more bytes."""

    def __init__(self, room: int) -> None:
        self.room = room

    def write(self, file: int, data: bytes) -> int:
        """Write as much as fits, as the kernel does, and fail if no byte does."""
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = os.pwrite(file, data[: self.room], os.fstat(file).st_size)
        self.room -= done
        return done


def fill(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """Let the disk be full after a number of bytes."""
    full = Full(room)

    class Os:
        """Replaces the module `os`."""

        def __getattr__(self, name: str) -> object:
            return full.write if name == "write" else getattr(os, name)

    monkeypatch.setattr(disk, "os", Os())


@pytest.mark.parametrize("words", VERBS)
@pytest.mark.parametrize("room", [0, 40])
def test_a_full_disk_leaves_the_old_file(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], room: int
) -> None:
    file = tmp_path / "host.toml"
    file.write_text(OLD)
    fill(monkeypatch, room)
    result = run(*words, str(file))
    assert (result.code, "ENOSPC" in result.err) == (1, True)
    assert "next: free space on the disk; the former file is unchanged" in result.err
    assert (file.read_text(), list(tmp_path.iterdir())) == (OLD, [file])


def test_a_file_keeps_its_mode_and_what_is_no_file_is_written_to(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "host.toml"
    file.write_text(OLD)
    file.chmod(0o640)
    assert run("save", str(file)).code == 0
    assert (file.stat().st_mode & 0o777, file.read_text()) == (0o640, run("save").out)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert run("save", str(pipe)).code == 0
    assert os.read(reader, 1 << 16).decode() == run("save").out
    os.close(reader)


@pytest.mark.parametrize("room", [0, 100])
def test_a_journal_without_room_has_no_half_line(
    run: Run, tree: FakeTree, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    run("set", "anon_order", "fixed")
    with monkeypatch.context() as patch:
        fill(patch, room)
        result = run("set", "anon_order", "never")
    assert (result.code, "mmpolicy revert will not know it" in result.err) == (0, True)
    assert run("set", "anon_order", "adaptive").code == 0
    assert [each["number"] for each in run("log", "--json").json["changes"]] == [1, 2]
    assert run("log").err == ""
    assert run("revert").code == 0


@pytest.mark.parametrize("line", ["{", "half of a li", '{"version": 9}'])
def test_one_bad_line_does_not_hide_the_others(run: Run, tree: FakeTree, line: str) -> None:
    run("set", "anon_order", "fixed")
    tree.real(JOURNAL).write_text(f"{tree.read(JOURNAL)}\n{line}\n")
    result = run("log")
    assert (result.code, "default/anon_order/policy: stock -> fixed" in result.out) == (0, True)
    assert "is damaged in line 3" in result.err
    assert run("revert").code == 1
    assert read_named(tree)["profiles/default/anon_order/policy"] == "fixed"


def _add(root: str, count: int) -> None:
    tree = FakeTree(Path(root))
    for _ in range(count):
        tree.append("/var/log/lines", lambda text: f"{text.count(chr(10)) + 1}")


def test_writers_of_the_journal_wait_for_each_other(tree: FakeTree) -> None:
    """Each line has a number of its own, also without the lock of changes."""
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_add, args=(str(tree.root), 40)) for _ in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    lines = tree.read("/var/log/lines").splitlines()
    assert lines == [str(number) for number in range(1, 121)]


def test_files_that_are_written_at_once(tree: FakeTree, tmp_path: Path) -> None:
    """If files are written at the same time, as by cron and by the timer, each writer has a file of
    its own, and the last one stays.
    """
    file = tmp_path / "mmpolicy.prom"
    words = command(tree, "export", "-o", str(file))
    begun = [subprocess.Popen(words, stderr=subprocess.PIPE, text=True) for _ in range(6)]
    assert [(each.communicate()[1], each.returncode) for each in begun] == [("", 0)] * 6
    assert "mmpolicy_up 1.0" in file.read_text()
    assert list(tmp_path.iterdir()) == [file]


# Unprintable text


def command(tree: FakeTree, *words: str) -> list[str]:
    """Return the words of a real process."""
    return [sys.executable, "-m", "mmpolicy", "--root", str(tree.root), *words]


@pytest.mark.parametrize("words", [["list"], ["save"], ["doctor"], ["list", "--json"]])
def test_a_full_output_is_told_in_one_line(tree: FakeTree, words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command(tree, *words), stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert "ENOSPC" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_closed_output(tree: FakeTree, closed: str) -> None:
    """A closed output behaves as /dev/null does."""
    words = shlex.join(command(tree, "list"))
    done = subprocess.run(["sh", "-c", f"{words} {closed}"], stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_that_goes_away_ends_it_as_other_commands(tree: FakeTree) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(command(tree, "list"), stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_fault_of_the_command_is_told_in_one_line(
    run: Run, tree: FakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("--help")
    monkeypatch.setattr("mmpolicy.verbs.look.emit_points", lambda *_a, **_k: 1 / 0)
    result = run("list")
    assert result.code == 70
    assert re.match("mmpolicy: internal error: ZeroDivisionError: .*\nnext: ", result.err)
    error = run("list", "--json")
    assert (error.code, '"exit": 70' in error.err) == (70, True)
