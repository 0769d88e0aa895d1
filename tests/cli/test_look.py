# SPDX-License-Identifier: GPL-2.0
"""`list`, `show` and features common to all verbs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from errno import EACCES
from pathlib import Path

import click
import pytest

from mmpolicy import __version__
from mmpolicy.cli import main
from mmpolicy.control.model import Control
from mmpolicy.errors import explain
from mmpolicy.host.files import READ_REMEDIES
from mmpolicy.verbs.look import KNOB_COLUMNS, _knob_data, _knob_rows, _point_rows

from .fakes import CONTROL, DEFAULT, KNOBS, POINTS, FakeTree, Run


def walk(command: click.Command) -> list[click.Command]:
    if not isinstance(command, click.Group):
        return [command]
    context = click.Context(command)
    names = command.list_commands(context)
    children = [child for name in names if (child := command.get_command(context, name))]
    assert len(children) == len(names)
    return [command, *(each for child in children for each in walk(child))]


def test_list_shows_active_and_others(run: Run) -> None:
    run("set", "anon_order", "fixed")
    lines = run("list").out.splitlines()
    assert lines[0].split() == ["PROFILE", "POINT", "ACTIVE", "OTHERS"]
    assert " ".join(lines[1].split()) == "default anon_order fixed stock adaptive never vma_size"
    assert lines[2].split() == ["default", "bulk", "stock", "adaptive", "fixed"]
    assert lines[-1] == "state: active"


def test_list_json(run: Run) -> None:
    data = run("list", "--json").json
    assert (data["version"], data["command"], data["state"]) == (1, "list", "stock")
    assert set(data["profiles"]) == {"default"}
    expected = {"active": "stock", "policies": list(POINTS["anon_order"])}
    assert data["profiles"]["default"]["anon_order"] == expected


def test_list_says_what_cannot_be_had(run: Run, tree: FakeTree) -> None:
    tree.put(f"{CONTROL}/points/anon_order", "available")
    tree.put(f"{CONTROL}/points/compact", "unavailable: needs more")
    (line,) = [line for line in run("list").out.splitlines() if line.split()[1:2] == ["compact"]]
    assert line.endswith("(none: needs more)")
    points = run("list", "--json").json["profiles"]["default"]
    assert points["compact"]["unavailable"] == "needs more"
    assert "unavailable" not in points["anon_order"]


def test_list_says_which_policies_cannot_be_had(run: Run, tree: FakeTree) -> None:
    for name, text in {"fixed": "available", "never": "unavailable: too late"}.items():
        tree.put(f"{CONTROL}/policies/anon_order/{name}", text)
    (line,) = [line for line in run("list").out.splitlines() if "anon_order" in line]
    assert line.endswith("  adaptive fixed vma_size (not never: too late)")
    point = run("list", "--json").json["profiles"]["default"]["anon_order"]
    assert point["unavailable_policies"] == {"never": "too late"}


def test_a_point_without_other_policies(run: Run, tree: FakeTree) -> None:
    tree.put(f"{DEFAULT}/bulk/policy", "[stock]")
    (row,) = [line.split() for line in run("list").out.splitlines() if " bulk " in line]
    assert row == ["default", "bulk", "stock", "-"]


def test_list_hooks(run: Run, tree: FakeTree) -> None:
    assert run("list", "--hooks").out == (
        "the module hooks no function by ftrace, as this kernel has hooks of its own\n"
    )
    tree.put(f"{CONTROL}/hooked_functions", "anon_order first\ncompact second")
    lines = [line.split() for line in run("list", "--hooks").out.splitlines()]
    assert lines == [["POINT", "FUNCTION"], ["anon_order", "first"], ["compact", "second"]]
    found = run("list", "--hooks", "--json").json["hooked_functions"]
    assert found[1] == {"point": "compact", "function": "second"}
    tree.make_unloaded()
    assert run("list", "--hooks").code == 3


def test_list_finds_profiles_and_points_by_itself(run: Run, tree: FakeTree) -> None:
    tree.put(f"{CONTROL}/profiles/night/new_point/policy", "stock [clever]")
    tree.put(f"{CONTROL}/profiles/night/cgroups", "")
    tree.put(f"{CONTROL}/profiles/create", "")
    profiles = run("list", "--json").json["profiles"]
    assert profiles["night"] == {"new_point": {"active": "clever", "policies": ["stock", "clever"]}}


def test_show_lists_every_knob_and_marks_the_active_policy(run: Run) -> None:
    run("set", "anon_order", "adaptive")
    rows = [line.split() for line in run("show", "anon_order").out.splitlines()]
    found = [row[:4] for row in rows]
    assert ["anon_order", "(any)", "min_available_percent", "5"] in found
    assert ["anon_order", "[adaptive]", "min_folios", "32"] in found
    assert ["anon_order", "fixed", "max_order", "4"] in found
    assert ["anon_order", "never", "-", "-"] in found
    assert all(row[0] in ("POINT", "anon_order") for row in rows)


def test_an_ordinary_user_may_look_but_not_into_debugfs(run: Run, tree: FakeTree) -> None:
    def inodes(path: str) -> dict[str, int]:
        raise explain(EACCES, f"list {path}", READ_REMEDIES)

    assert run("list").code == 0
    tree.inodes = inodes  # type: ignore[method-assign]
    result = run("stats")
    assert (result.code, "next: run the command as root" in result.err) == (4, True)


def test_show_json(run: Run, tree: FakeTree) -> None:
    tree.put(f"{DEFAULT}/anon_order/fixed/max_order", "automatic")
    data = run("show", "--json").json
    point = data["points"]["anon_order"]
    assert (data["version"], data["profile"]) == (1, "default")
    assert set(data["points"]) == set(POINTS)
    assert (point["active"], point["knobs"]) == (
        "stock",
        {
            "max_copy_order": 4,
            "memory_on_read": 0,
            "min_available_percent": 5,
            "override_madvise": 0,
            "shadow": "none",
        },
    )
    assert point["policies"]["adaptive"]["min_folios"] == 32
    assert point["policies"]["fixed"] == {"max_order": "automatic"}
    assert point["policies"]["never"] == {}


def test_show_tells_what_the_module_says_of_knobs(run: Run, tree: FakeTree) -> None:
    run("set", "anon_order", "fixed", "max_order=7")
    rows = [re.split(r" {2,}", line) for line in run("show", "anon_order").out.splitlines()]
    assert tuple(rows[0]) == KNOB_COLUMNS
    meaning = "so many pieces of anon_order/fixed/max_order"
    assert [
        "anon_order",
        "[fixed]",
        "max_order",
        "7",
        "0..9",
        "4",
        "order: 2^n pages",
        meaning,
    ] in rows
    told = run("show", "--json").json["points"]["anon_order"]["about"]
    ours = {knob for knob in KNOBS if knob.startswith("anon_order/")}
    assert set(told) == {knob.removeprefix("anon_order/") for knob in ours}
    assert told["adaptive/min_folios"] == {
        "min": 1,
        "max": 1024,
        "default": 32,
        "unit": "folios",
        "meaning": "so many pieces of anon_order/adaptive/min_folios",
    }
    tree.remove(f"{CONTROL}/knobs")  # an older module
    rows = [line.split() for line in run("show", "anon_order").out.splitlines()]
    assert ["anon_order", "[fixed]", "max_order", "7", "-", "-", "-", "-"] in rows
    assert run("show", "--json").json["points"]["anon_order"]["about"] == {}


def test_unknown_names_get_a_suggestion_and_the_list(run: Run) -> None:
    point = run("show", "anon_ordr")
    assert point.code == 2
    assert "no point 'anon_ordr'; choose from: anon_order, bulk, compact" in point.err
    assert "next: did you mean anon_order?" in point.err
    profile = run("show", "--profile", "nigth")
    assert (profile.code, "choose from: default" in profile.err) == (2, True)


def make_lazy(tree: FakeTree) -> str:
    """Make two processes in a cgroup, and return the id of the cgroup above it."""
    tree.make_cgroup("/web/one")
    tree.put("/sys/fs/cgroup/web/one/cgroup.procs", "41\n42\n43\n44")
    for pid, rss, lazy in ((41, 1000, 600), (42, 50, 0)):
        tree.make_process(pid)
        tree.put(f"/proc/{pid}/cgroup", "1:cpu:/old\n0::/web/one")
        smaps = f"55-7f ---p 0 00:00 0 [rollup]\nRss:  {rss} kB\nPss: 7 kB\nLazyFree:  {lazy} kB"
        tree.put(f"/proc/{pid}/smaps_rollup", smaps)
    tree.make_process(43)  # a kernel thread; 44 has just exited
    return str(tree.inode("/sys/fs/cgroup/web"))


def test_show_pid(run: Run, tree: FakeTree) -> None:
    cgroup = make_lazy(tree)
    shown = run("show", "--pid", "41", "--json").json
    assert (shown["pid"], shown["profile"]) == (41, "default")
    assert [list(each.values())[:5] for each in shown["memory"]] == [
        ["process 41", 1, 1000, 600, 400],
        ["cgroup /web/one", 2, 1050, 600, 450],
    ]
    run("profile", "create", "quiet")
    run("bind", "--cgroup", "/web", "quiet")
    assert tree.read(f"{CONTROL}/profiles/quiet/cgroups") == cgroup
    lines = run("show", "anon_order", "--pid", "41").out.splitlines()
    assert lines[0] == "profile: quiet"
    assert lines[3].split() == ["process", "41", "1", "1000", "600", "400"]
    run("bind", "--pid", "41", "default")
    assert run("show", "--pid", "41").out.startswith("profile: default")
    assert run("show", "--pid", "42").out.startswith("profile: quiet")


def test_show_pid_without_cgroups(run: Run, tree: FakeTree) -> None:
    make_lazy(tree)
    tree.put("/proc/42/cgroup", "1:cpu:/old")
    assert len(run("show", "--pid", "42", "--json").json["memory"]) == 1
    gone = run("show", "--pid", "44")
    assert (gone.code, "there is no process 44" in gone.err) == (2, True)


def test_memory_of_others_needs_root(
    run: Run, tree: FakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_lazy(tree)
    read, allowed = tree.read_bytes, list[str]()

    def refuse(path: str) -> bytes:
        if path.endswith("smaps_rollup") and not path.startswith(tuple(allowed)):
            raise explain(EACCES, f"read {path}", READ_REMEDIES)
        return read(path)

    monkeypatch.setattr(tree, "read_bytes", refuse)
    denied = run("show", "--pid", "41")
    assert (denied.code, "cannot read /proc/41/smaps_rollup" in denied.err) == (4, True)
    assert run("stats", "--cgroup", "/web").code == 4
    allowed.append("/proc/42/")
    tree.put("/proc/41/statm", "500 250 0 0 0 0 0")
    assert run("show", "--pid", "41").code == 4
    found = run("show", "--pid", "42", "--json").json["memory"]  # 41 is in the same cgroup
    # what may not be read may be lazily freed or not, and no --hold changes that
    assert list(found[1].values()) == ["cgroup /web/one", 2, 1050, 0, 1050, 1000, 0, 1000, 50]


def test_stats_tells_the_memory_of_what_is_bound(run: Run, tree: FakeTree) -> None:
    make_lazy(tree)
    assert run("stats", "--json").json["memory"] == []
    run("profile", "create", "quiet")
    run("bind", "--cgroup", "/web", "quiet")
    run("bind", "--pid", "42", "quiet")
    assert run("stats", "--profile", "quiet", "--json").json["memory"] == []
    found = run("stats", "--profile", "quiet", "--memory", "--json").json["memory"]
    assert [list(each.values())[:5] for each in found] == [
        ["cgroup /web", 2, 1050, 600, 450],
        ["process 42", 1, 50, 0, 50],
    ]
    lines = run("stats", "--profile", "quiet", "--memory").out.splitlines()
    assert [line.split()[-1] for line in lines[-2:]] == ["450", "50"]


def test_stats_of_what_is_named(run: Run, tree: FakeTree) -> None:
    make_lazy(tree)
    words = ("stats", "--cgroup", "/", "--cgroup", "one", "--pid", "42")
    found = run(*words, "--json").json["memory"]
    assert [each["what"] for each in found] == ["cgroup /", "cgroup /web/one", "process 42"]
    assert [each["processes"] for each in found] == [2, 2, 1]
    watched = run(*words, "--watch", "--json").out.splitlines()[-1]
    assert json.loads(watched)["memory"] == found


@pytest.mark.parametrize(
    "verb",
    [["list"], ["list", "--hooks"], ["show"], ["set", "anon_order", "never"], ["stats"], ["watch"]],
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
    for words in (["list"], ["list", "--hooks"], ["policy", "list"]):
        result = run(*words)
        assert (result.code, "loaded, but broken" in result.err) == (3, True)


def test_unknown_abi_is_refused(run: Run, tree: FakeTree) -> None:
    tree.put(f"{CONTROL}/abi", "3")
    result = run("set", "anon_order", "never")
    assert (result.code, tree.writes) == (3, [])
    assert "and this command knows 2" in result.err


def test_policy_file_without_mark_is_an_error(run: Run, tree: FakeTree) -> None:
    tree.put(f"{DEFAULT}/bulk/policy", "stock")
    result = run("list")
    assert (result.code, "does not mark one active policy" in result.err) == (1, True)


def test_every_command_has_a_docstring() -> None:
    assert all(command.help for command in walk(main))


def test_version(run: Run) -> None:
    assert __version__ in run("--version").out


def test_python_m_with_root_on_real_files(tree: FakeTree) -> None:
    source = Path(__file__).parents[2] / "userspace" / "src"
    command = [sys.executable, "-m", "mmpolicy", "--root", str(tree.root)]
    command += ["set", "anon_order", "min_available_percent=7"]
    env = os.environ | {"PYTHONPATH": str(source)}
    result = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert tree.read(f"{DEFAULT}/anon_order/min_available_percent") == "7"


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


def test_what_is_not_stock_is_green(
    run: Run, tree: FakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row of a point with a policy is green, and so is the active one of the
    policies with knobs.
    """
    run("set", "anon_order", "adaptive")
    monkeypatch.setattr("mmpolicy.render.coloured", lambda: True)
    control = Control(tree)
    rows = _point_rows(tree, control.points("default"))
    assert [line.count("\x1b[32madaptive\x1b[0m") for line in rows if "anon_order" in line] == [1]
    assert "\x1b" not in "".join(line for line in rows if "anon_order" not in line)
    data = _knob_data(control, control.point("default", "anon_order"))
    marks = {str(mark) for _, mark, *_ in _knob_rows("anon_order", data)}
    assert {"(any)", "stock", "\x1b[32m[adaptive]\x1b[0m", "fixed"} < marks


def test_page_tables_are_walked_only_when_asked_for(
    run: Run, tree: FakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_lazy(tree)
    run("bind", "--cgroup", "/web", "default")
    read, seen = tree.read_bytes, set()

    def note(path: str) -> bytes:
        seen.add(path)
        return read(path)

    monkeypatch.setattr(tree, "read_bytes", note)
    for words in (["stats"], ["stats", "--watch"], ["watch"], ["status"]):
        assert run(*words).code == 0
    assert not [path for path in seen if "smaps" in path]
    run("stats", "--memory")
    assert [path for path in seen if "smaps" in path]
