# SPDX-License-Identifier: GPL-2.0
"""Errors of `--json` are JSON."""

import json
import os
from errno import EACCES, EROFS
from pathlib import Path
from typing import Any

import pytest

from mmpolicy.errors import Error
from mmpolicy.host.disk import explained
from mmpolicy.host.files import READ_REMEDIES

from .fakes import DEFAULT, FakeTree, Run

KNOB = f"{DEFAULT}/anon_order/fixed/max_order"


def error(run: Run, *words: str) -> tuple[str, dict[str, object]]:
    """Run a command that fails; return its name and the error."""
    result = run(*words, "--json")
    assert result.out == ""
    data = json.loads(result.err)
    assert data["version"] == 1
    assert data["error"]["exit"] == result.code
    return data["command"], data["error"]


def test_a_refusal(run: Run, tree: FakeTree) -> None:
    name, told = error(run, "set", "anon_order", "fixed", "max_order=99")
    assert (name, told["exit"], told["errno"]) == ("set", 5, "ERANGE")
    assert told["path"] == str(tree.real(KNOB))
    assert "cannot write '99' to" in str(told["message"])
    assert told["next"]


@pytest.mark.parametrize(
    ("words", "name", "code"),
    [
        (["set", "anon_ordr", "fixed"], "set", 2),
        (["set"], "set", 2),
        (["profile", "show", "nobody"], "profile show", 2),
        (["bind", "--pid", "zero", "default"], "bind", 2),
        (["apply", "/no/such/file"], "apply", 1),
        (["nonsense"], "", 2),
        (["show", "--nonsense"], "show", 2),
    ],
)
def test_other_errors(run: Run, words: list[str], name: str, code: int) -> None:
    found, told = error(run, *words)
    assert (found, told["exit"], bool(told["message"])) == (name, code, True)


def test_without_the_module(run: Run, tree: FakeTree) -> None:
    tree.make_unloaded()
    _, told = error(run, "list")
    assert (told["exit"], told["next"]) == (3, "mmpolicy load")


def test_a_verb_that_is_mistyped(run: Run) -> None:
    result = run("stauts")
    assert (result.code, "did you mean stats?" in result.err) == (2, True)


def test_a_run_directory_that_cannot_be_written(
    run: Run, tree: FakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = os.open

    def fail(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if str(path).endswith(".lock") and flags & os.O_CREAT:
            raise OSError(EROFS, "Read-only file system", path)
        return plain(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", fail)
    result = run("set", "anon_order", "never")
    assert (result.code, tree.writes) == (1, [])
    assert f"cannot lock {tree.real('/run/mmpolicy/change.lock')}: EROFS" in result.err
    assert "next: run it where /run is mounted read-write" in result.err


@pytest.mark.parametrize(
    ("euid", "hint"), [(0, "root may not look into it here: a container"), (1000, "run it as root")]
)
def test_what_nobody_may_read_below_proc(
    monkeypatch: pytest.MonkeyPatch, euid: int, hint: str
) -> None:
    """A hint for root is not that root should run it."""
    monkeypatch.setattr(os, "geteuid", lambda: euid)
    with pytest.raises(Error) as told, explained("read", Path("/proc/1/smaps"), READ_REMEDIES):
        raise OSError(EACCES, "Permission denied")
    assert (told.value.exit_code, told.value.next_step.startswith(hint)) == (4, True)


def test_codes_that_are_no_errors_stay(run: Run, tree: FakeTree) -> None:
    tree.denied = True
    result = run("doctor", "--json")
    assert (result.code, result.json["exit"], result.err) == (4, 4, "")
    assert run("list", "--json").code == 0
