# SPDX-License-Identifier: GPL-2.0
"""Errors of `--json` are JSON."""

import json

import pytest

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


def test_codes_that_are_no_errors_stay(run: Run, tree: FakeTree) -> None:
    tree.denied = True
    result = run("doctor", "--json")
    assert (result.code, result.json["exit"], result.err) == (4, 4, "")
    assert run("list", "--json").code == 0
