# SPDX-License-Identifier: GPL-2.0
"""Shell completion from the tree."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import BashComplete, get_completion_class

from mmpolicy.cli import main
from mmpolicy.control.owners import OWNERS
from mmpolicy.host.kmod import Kmod
from mmpolicy.host.machine import Host
from mmpolicy.verbs import completion

from .fakes import RELEASE, FakeLib, FakeTree


@pytest.mark.parametrize(
    ("words", "incomplete", "expected"),
    [
        (["set"], "an", ["anon_order"]),
        (["set", "anon_order"], "a", ["adaptive"]),
        (
            ["set", "anon_order", "fixed"],
            "m",
            [
                "max_copy_order=4",
                "memory_on_read=0",
                "min_available_percent=5",
                "max_order=4",
            ],
        ),
        (["set", "anon_order", "adaptive"], "min_f", ["min_folios=32"]),
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
        (["bind", "--pid"], "4", ["42", "423"]),
        (["explain"], "42", ["42", "423"]),
        (["doctor", "--kernel"], RELEASE[:4], [RELEASE]),
        (["map"], "423", ["423"]),
        (["show", "--pid"], "423", ["423"]),
        (["stats", "--pid"], "423", ["423"]),
        (["bind", "--unit"], "", ["a.service"]),
        (["unbind", "--unit"], "a", ["a.service"]),
        (["unbind", "--owner"], "", ["agent", "other"]),
        (["load"], "anon", ["anon_order="]),
        (["ab", "run", "--cgroup"], "/app.slice/", ["/app.slice/a.service"]),
        (["ab", "run", "--control"], "w", ["web"]),
        (["ab", "run", "--control"], "st", ["stock"]),
        (["ab", "run", "--treatment"], "anon_order=f", ["anon_order=fixed"]),
        (
            ["ab", "run", "--treatment"],
            "anon_order=fixed,max_o",
            ["anon_order=fixed,max_order=4"],
        ),
        (["ab", "run", "--treatment"], "anon_order=fixed,w", []),
        (
            ["ab", "run", "--treatment"],
            "transparent_hugepage/defrag=defer",
            [
                "transparent_hugepage/defrag=defer",
                "transparent_hugepage/defrag=defer+madvise",
            ],
        ),
        (["ab", "run", "--treatment"], "vm/swappi", ["vm/swappiness=60"]),
        (["ab", "run", "--metric"], "vmstat.pgfau", ["vmstat.pgfault"]),
        (["ab", "run", "--metric"], "cpu.b", ["cpu.busy/s"]),
        (["ab", "run", "--metric"], "cg", ["cgroup:"]),
        (["ab", "run", "--guard"], "psi.memory.full.avg1", ["psi.memory.full.avg10"]),
    ],
)
def test_completion(
    tree: FakeTree, lib: FakeLib, monkeypatch: pytest.MonkeyPatch,
    words: list[str], incomplete: str, expected: list[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(completion, "Host", lambda tree: Host(tree, Kmod(lib=lib)))
    for pid in (42, 423):
        tree.make_process(pid)
    tree.put("/proc/sys/vm/swappiness", "60")
    tree.put("/proc/vmstat", "nr_free_pages 7\npgfault 12")
    tree.put("/proc/pressure/memory", "full avg10=0.00 avg60=0.00 total=0")
    tree.make_cgroup("/app.slice/a.service")
    tree.make_profile("web")
    for owner in ("other", "agent"):
        tree.put(f"{OWNERS}/{owner}", "")
    completer = BashComplete(main, {}, "mmpolicy", "_MMPOLICY_COMPLETE")
    found = completer.get_completions(["--root", str(tree.root), *words], incomplete)
    assert [item.value for item in found] == expected


def test_completion_without_the_module(tree: FakeTree) -> None:
    tree.make_unloaded()
    completer = BashComplete(main, {}, "mmpolicy", "_MMPOLICY_COMPLETE")
    assert completer.get_completions(["--root", str(tree.root), "set"], "") == []


# As bash splits it: `=` and `:` are words of their own.
ASK = """
mmpolicy() {{ "$@"; }}
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
. {script}
_mmpolicy_completion {command}
printf '%s\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("set anon_order max_copy_order = ''", ["4"]),
        ("set anon_order max_copy_o", ["max_copy_order=4"]),
        ("ab run --treatment anon_order = f", ["fixed"]),
        ("ab run --treatment anon_order = fixed,max_o", ["fixed,max_order=4"]),
        ("ab run --treatment anon_order = fixed,max_order =", ["4"]),
        ("ab run --treatment anon_order = never --control st", ["stock"]),
        ("bind --unit a", ["a.service"]),
    ],
)
def test_in_bash(tree: FakeTree, tmp_path: Path, typed: str, expected: list[str]) -> None:
    """The match replaces the last word that bash sees."""
    tree.make_cgroup("/app.slice/a.service")
    kind = get_completion_class("bash")
    assert kind
    script, command = tmp_path / "completion", tmp_path / "mmpolicy"
    script.write_text(kind(main, {}, "mmpolicy", "_MMPOLICY_COMPLETE").source())
    source = Path(__file__).parents[2] / "userspace/src"
    command.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, '{source}')\n"
        "from mmpolicy.cli import main\nfrom mmpolicy.host.files import Tree\n"
        "from mmpolicy.verbs import completion\n"
        f"completion.Tree = lambda _root: Tree('{tree.root}')\nmain(prog_name='mmpolicy')\n"
    )
    command.chmod(0o755)
    text = ASK.format(words=f"mmpolicy {typed}", script=script, command=command)
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == expected, done.stderr
