# SPDX-License-Identifier: GPL-2.0
"""`list`, `show` and what all verbs have in common."""

import os
import subprocess
import sys
from errno import EACCES
from pathlib import Path

import click
import pytest

from mmpolicy import __version__
from mmpolicy.cli import main
from mmpolicy.errors import explain
from mmpolicy.sysfs import READ_REMEDIES

from .fakes import CONTROL, DEFAULT, POINTS, FakeTree, Run


def walk(command: click.Command) -> list[click.Command]:
    children = command.commands.values() if isinstance(command, click.Group) else ()
    return [command, *(each for child in children for each in walk(child))]


def test_list_shows_active_and_others(run: Run) -> None:
    run("set", "anon_order", "fixed")
    lines = run("list").out.splitlines()
    assert lines[0].split() == ["PROFILE", "POINT", "ACTIVE", "OTHERS"]
    assert " ".join(lines[1].split()) == "default anon_order fixed stock never vma_size adaptive"
    assert lines[2].split() == ["default", "bulk", "stock", "-"]
    assert lines[-1] == "state: active"


def test_list_json(run: Run) -> None:
    data = run("list", "--json").json
    assert (data["version"], data["command"], data["state"]) == (1, "list", "stock")
    assert set(data["profiles"]) == {"default"}
    expected = {"active": "stock", "policies": list(POINTS["anon_order"])}
    assert data["profiles"]["default"]["anon_order"] == expected


def test_list_finds_profiles_and_points_by_itself(run: Run, tree: FakeTree) -> None:
    tree.put(f"{CONTROL}/profiles/night/new_point/policy", "stock [clever]")
    tree.put(f"{CONTROL}/profiles/night/cgroups", "")
    tree.put(f"{CONTROL}/profiles/create", "")
    profiles = run("list", "--json").json["profiles"]
    assert profiles["night"] == {"new_point": {"active": "clever", "policies": ["stock", "clever"]}}


def test_show_lists_every_knob_and_marks_the_active_policy(run: Run) -> None:
    run("set", "anon_order", "adaptive")
    rows = [line.split() for line in run("show", "anon_order").out.splitlines()]
    assert ["anon_order", "(any)", "pressure_percent", "10"] in rows
    assert ["anon_order", "[adaptive]", "min_faults", "2"] in rows
    assert ["anon_order", "fixed", "max_order", "4"] in rows
    assert ["anon_order", "never", "-", "-"] in rows
    assert all(row[0] in ("POINT", "anon_order") for row in rows)


def test_an_ordinary_user_may_look_but_not_into_debugfs(run: Run, tree: FakeTree) -> None:
    def names(path: str) -> list[str]:
        raise explain(EACCES, f"list {path}", READ_REMEDIES)

    assert run("list").code == 0
    tree.names = names  # type: ignore[method-assign]
    result = run("stats")
    assert (result.code, "next: run it as root" in result.err) == (4, True)


def test_show_json(run: Run, tree: FakeTree) -> None:
    tree.put(f"{DEFAULT}/anon_order/fixed/max_order", "automatic")
    data = run("show", "--json").json
    point = data["points"]["anon_order"]
    assert (data["version"], data["profile"]) == (1, "default")
    assert set(data["points"]) == set(POINTS)
    assert (point["active"], point["knobs"]) == ("stock", {"pressure_percent": 10})
    assert point["policies"]["adaptive"] == {"max_order": 9, "min_faults": 2}
    assert point["policies"]["fixed"] == {"max_order": "automatic"}
    assert point["policies"]["never"] == {}


def test_unknown_names_get_a_suggestion_and_the_list(run: Run) -> None:
    point = run("show", "anon_ordr")
    assert point.code == 2
    assert "no point 'anon_ordr'; there is: anon_order, bulk, compact" in point.err
    assert "next: did you mean anon_order?" in point.err
    profile = run("show", "--profile", "nigth")
    assert (profile.code, "there is: default" in profile.err) == (2, True)


@pytest.mark.parametrize(
    "verb", [["list"], ["show"], ["set", "anon_order", "never"], ["reset"], ["stats"]]
)
def test_without_the_module_every_verb_says_how_to_go_on(
    run: Run, tree: FakeTree, verb: list[str]
) -> None:
    tree.make_unloaded()
    result = run(*verb)
    assert (result.code, result.out) == (3, "")
    assert "next: mmpolicy load" in result.err
    assert len(result.err.splitlines()) == 2


def test_module_without_control_tree(run: Run, tree: FakeTree) -> None:
    tree.remove(CONTROL)
    result = run("list")
    assert (result.code, "loaded, but broken" in result.err) == (3, True)


def test_unknown_abi_is_refused(run: Run, tree: FakeTree) -> None:
    tree.put(f"{CONTROL}/abi", "2")
    result = run("set", "anon_order", "never")
    assert (result.code, tree.writes) == (3, [])
    assert "abi is 2, this tool knows 1" in result.err


def test_policy_file_without_mark_is_an_error(run: Run, tree: FakeTree) -> None:
    tree.put(f"{DEFAULT}/bulk/policy", "stock")
    result = run("list")
    assert (result.code, "marks no active policy" in result.err) == (1, True)


def test_every_command_has_a_docstring() -> None:
    assert all(command.help for command in walk(main))


def test_version(run: Run) -> None:
    assert __version__ in run("--version").out


def test_python_m_with_root_on_real_files(tree: FakeTree) -> None:
    source = Path(__file__).parents[2] / "userspace" / "src"
    command = [sys.executable, "-m", "mmpolicy", "set", "anon_order", "pressure_percent=7"]
    env = os.environ | {"PYTHONPATH": str(source), "MMPOLICY_ROOT": str(tree.root)}
    result = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert tree.read(f"{DEFAULT}/anon_order/pressure_percent") == "7"


@pytest.mark.parametrize(("tty", "no_color", "coloured"), [(1, "", 1), (1, "1", 0), (0, "", 0)])
def test_colour_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, tty: int, no_color: str, coloured: int
) -> None:
    from mmpolicy import render

    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: bool(tty), raising=False)
    assert ("\x1b" in render.paint("x", "red")) == bool(coloured)
    rows = [(render.paint("a", "red"), "b"), ("long", "c")]
    lines = [click.unstyle(line) for line in render.table(("H", "I"), rows)]
    assert lines == ["H     I", "a     b", "long  c"]
