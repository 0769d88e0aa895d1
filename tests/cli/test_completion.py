# SPDX-License-Identifier: GPL-2.0
"""Shell completion from the tree."""

import pytest
from click.shell_completion import BashComplete

from mmpolicy.cli import main

from .fakes import FakeTree


@pytest.mark.parametrize(
    ("words", "incomplete", "expected"),
    [
        (["set"], "an", ["anon_order"]),
        (["set", "anon_order"], "a", ["adaptive"]),
        (["set", "anon_order", "fixed"], "", ["pressure_percent=10", "shadow=none", "max_order=4"]),
        (["set", "anon_order", "adaptive"], "min", ["min_faults=2"]),
        (["set", "no_such_point"], "", []),
        (["show"], "b", ["bulk"]),
        (["show", "--profile"], "", ["default", "web"]),
        (["stats"], "c", ["compact"]),
        ([], "loa", ["load"]),
        (["profile", "delete"], "w", ["web"]),
        (["profile"], "s", ["show"]),
        (["bind", "--cgroup"], "/app", ["/app.slice", "/app.slice/a.service"]),
        (["unbind", "--cgroup"], "/app.slice/", ["/app.slice/a.service"]),
        (["bind", "--pid", "1"], "", ["default", "web"]),
    ],
)
def test_completion(
    tree: FakeTree, words: list[str], incomplete: str, expected: list[str],
) -> None:  # fmt: skip
    tree.make_cgroup("/app.slice/a.service")
    tree.make_profile("web")
    completer = BashComplete(main, {}, "mmpolicy", "_MMPOLICY_COMPLETE")
    found = completer.get_completions(["--root", str(tree.root), *words], incomplete)
    assert [item.value for item in found] == expected


def test_completion_without_the_module(tree: FakeTree) -> None:
    tree.make_unloaded()
    completer = BashComplete(main, {}, "mmpolicy", "_MMPOLICY_COMPLETE")
    assert completer.get_completions(["--root", str(tree.root), "set"], "") == []
