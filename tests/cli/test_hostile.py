# SPDX-License-Identifier: GPL-2.0
"""Only files of the control tree are ever written, whatever a name contains."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from mmpolicy.cli import main
from mmpolicy.control.keys import CgroupBinding, ExperimentFile, Profile, Setting
from mmpolicy.errors import Error
from mmpolicy.host.disk import save_as
from mmpolicy.host.files import Tree
from mmpolicy.verbs.bench import Threads
from mmpolicy.verbs.options import Levels, Seconds

from .fakes import CONTROL, POINTS, FakeTree, Run
from .hostile import attack, run, snapshot, write_raw

VICTIMS = (
    "/run/victim",
    "/etc/shadow",
    "/etc/cgroups",
    "/etc/anon_order/policy",
    "/etc/anon_order/fixed/max_order",
    "/sys/kernel/mm/ksm/run",
    "/sys/kernel/debug/mmpolicy/measure",
)


@pytest.fixture
def host(tree: FakeTree) -> Path:
    """Return a small host of real files, with some that must not be written."""
    for path in VICTIMS:
        tree.put(path, "precious")
    for path in (*(set(POINTS) - {"anon_order"}), "anon_order/adaptive"):
        tree.remove(f"{CONTROL}/profiles/default/{path}")
    for folder in allowed_by(tree.root):
        folder.mkdir(parents=True, exist_ok=True)
    return tree.root


def allowed_by(host: Path) -> list[Path]:
    """Return the writable files: the control tree, the command's own files, its locks."""
    return [host / path for path in ("sys/kernel/mmpolicy", "var/lib/mmpolicy", "run/mmpolicy")]


@pytest.mark.parametrize(
    "words",
    [
        ["profile", "create", "../../../../run/victim"],
        ["profile", "create", "../../../../etc/shadow", "--from", "default"],
        ["profile", "create", f"/{CONTROL}/../../../run/victim"],
        ["bind", "--cgroup", "../../../etc", "default"],
        ["bind", "--cgroup", "/sys/fs/cgroup/../../../etc", "default"],
        ["set", "../../../../../etc/anon_order", "fixed"],
        ["set", "--profile", "../../../../etc", "anon_order", "stock"],
    ],
)
def test_names_on_the_command_line(host: Path, words: list[str]) -> None:
    kept = allowed_by(host)[1:]
    before = snapshot(host, kept)
    assert "next: " in run(host, words)
    assert snapshot(host, kept) == before


def options(
    group: click.Group, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.ParamType]]:
    """Yield each option and argument after its verb, with its type."""
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        if isinstance(command, click.Group):
            yield from options(command, (*words, name))
        elif command:
            yield from (((*words, name, each.opts[0]), each.type) for each in command.params)


def test_numbers_are_finite(host: Path) -> None:
    """No bound holds for nan, so the verbs would work without their limits."""
    found = [words for words, kind in options(main) if isinstance(kind, click.FloatRange)]
    assert ("collapse", "--max-stop") in found
    for words in found:
        for number in ("nan", "inf"):
            assert f"Invalid value for '{words[-1]}'" in run(host, [*words, number])


HUGE = "9" * 20


def test_whole_numbers_have_bounds(host: Path) -> None:
    found = {words: kind for words, kind in options(main)
             if isinstance(kind, (click.types.IntParamType, Levels, Threads))}  # fmt: skip
    assert {("ab", "run", "--pairs"), ("try", "--pairs"), ("explain", "pid")} <= {*found}
    for words, kind in found.items():
        if isinstance(kind, click.types.IntParamType):
            assert isinstance(kind, click.IntRange)
            assert None not in (kind.min, kind.max)
        if words[-1].startswith("-"):
            for number in (HUGE, "9" * 5000, "\N{SUPERSCRIPT TWO}", "-1"):
                assert f"Invalid value for '{words[-1]}" in run(host, [*words, number])


def test_times_have_bounds(host: Path) -> None:
    """A longer one than the kernel sleeps would end the command."""
    found = [words for words, kind in options(main) if isinstance(kind, Seconds)]
    assert ("ab", "run", "--block") in found
    for words in found:
        given = words[:-1] if not words[-1].startswith("-") else words
        for text in (HUGE, "9000h"):
            assert "Invalid value for '" in run(host, [*given, text])
    for verb in ("watch", "top"):
        assert "Invalid value for '--interval'" in run(host, [verb, "--interval", "1e300"])


@pytest.mark.parametrize("given", ["\N{SUPERSCRIPT TWO}", "9" * 5000, "0"])
def test_what_is_no_number_of_a_process(host: Path, given: str) -> None:
    assert f"there is no process and no service '{given}'" in run(host, ["map", given])
    assert "is not of the form" in run(host, ["export", "--listen", f":{given}x"])


@pytest.mark.parametrize(
    "entry",
    [
        '[profiles."../../../../run/victim"]',
        '[profiles."../../../../etc".anon_order]\npolicy = "stock"',
        '[profiles."../../../../etc".anon_order.fixed]\nmax_order = 3',
        '[profiles.default."../../../../../etc/anon_order"]\npolicy = "fixed"',
        '[profiles.default.anon_order."../../../../../../etc/anon_order/fixed"]\nmax_order = 1',
        '[experiment]\n"../../mm/ksm/run" = 1',
        '[bindings]\n"../../../etc" = "default"',
        '"../mm/ksm/run" = 1',
    ],
)
def test_manifests(host: Path, entry: str) -> None:
    file = host / "bad.toml"
    file.write_text(f"version = 1\n{entry}\n")
    before = snapshot(host, allowed_by(host))
    printed = run(host, ["apply", str(file)])
    assert f"{file}:{1 + len(entry.splitlines())}: " in printed
    assert snapshot(host, allowed_by(host)) == before


@pytest.mark.parametrize(
    "key",
    [
        {"kind": "profile", "name": "../../../../run/victim"},
        {"kind": "setting", "profile": "default", "point": "..", "policy": "..", "name": "run"},
        {
            "kind": "setting",
            "profile": "../../../..",
            "point": "run",
            "policy": "",
            "name": "victim",
        },
        {"kind": "experiment", "name": "../../mm/ksm/run"},
        {"kind": "cgroup", "number": "../1"},
        {"kind": "process", "number": 1, "start": None},
        {"kind": "path", "path": "/run/victim"},
        {"kind": "lease", "path": "/run/victim"},
    ],
)
def test_journals(host: Path, key: dict[str, object]) -> None:
    entry = {"version": 2, "number": 1, "time": "", "boot": "6f1c", "command": "set", "note": ""}
    changes = [{**key, "before": "evil", "after": "1"}]
    path = host / "var/lib/mmpolicy/journal.jsonl"
    path.write_text(json.dumps({**entry, "who": {}, "changes": changes}) + "\n")
    before = snapshot(host, [host / "run/mmpolicy"])
    assert "is damaged in line 1" in run(host, ["revert", "--force"])
    assert snapshot(host, [host / "run/mmpolicy"]) == before


def test_a_journal_cannot_bind_to_a_path(host: Path) -> None:
    entry = {"version": 2, "number": 1, "time": "", "boot": "6f1c", "command": "set", "note": ""}
    number = (host / "sys/fs/cgroup").stat().st_ino
    changes = [{"kind": "cgroup", "number": number, "before": "../../../../etc", "after": None}]
    path = host / "var/lib/mmpolicy/journal.jsonl"
    path.write_text(json.dumps({**entry, "who": {}, "changes": changes}) + "\n")
    before = snapshot(host, [host / "run/mmpolicy"])
    assert "'../../../../etc' is not a valid name of a profile" in run(host, ["revert"])
    assert snapshot(host, [host / "run/mmpolicy"]) == before


@pytest.mark.parametrize("seed", range(2))
def test_ten_thousand(host: Path, seed: int) -> None:
    """Commands, manifests and journals, on real files."""
    allowed = allowed_by(host)
    before = snapshot(host, allowed)
    rng = random.Random(seed)
    for _ in range(10):
        attack(host, 500, rng, VICTIMS)
        assert snapshot(host, allowed) == before
    assert write_raw(Tree(str(host)), 10_000, rng, VICTIMS) < 100  # names of the tree exist
    assert snapshot(host, allowed) == before


def test_the_second_lock_by_itself(host: Path) -> None:
    """A path or a link that leads out of the tree is not written, whatever made it."""
    tree = Tree(str(host))
    (host / "sys/kernel/mmpolicy/way_out").symlink_to(host / "run")
    (host / "sys/kernel/mmpolicy/victim").symlink_to(host / "run/victim")
    for path in (
        "/run/victim",
        f"{CONTROL}/../../../run/victim",
        f"{CONTROL}/./reset",
        f"{CONTROL}//reset",
        f"{CONTROL}/way_out/victim",
        f"{CONTROL}/victim",
        CONTROL,
    ):
        for write in (tree.write, tree.store):
            with pytest.raises((Error, OSError)):
                write(path, "0")
    assert (host / "run/victim").read_text() == "precious\n"
    tree.write(f"{CONTROL}/reset", "1")
    assert tree.read(f"{CONTROL}/reset") == "1"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", "a\n", "a\0", "a b", "ä", "-a"])
def test_names_that_no_key_takes(name: str) -> None:
    for make in (
        lambda: Profile(name),
        lambda: Setting(name, "anon_order", "", "policy"),
        lambda: Setting("default", name, "", "policy"),
        lambda: Setting("default", "anon_order", "fixed", name),
        lambda: ExperimentFile(name),
        lambda: CgroupBinding(7).path(name),
        lambda: CgroupBinding(name),  # type: ignore[arg-type]
    ):
        with pytest.raises(Error):
            make()


def test_a_cgroup_is_below_the_mount(run: Run, tree: FakeTree) -> None:
    tree.put("/etc/passwd", "")
    tree.real("/sys/fs/cgroup/link").symlink_to(tree.real("/etc"))
    for given in ("../../../etc", "a/../../../../etc", "/sys/fs/cgroup/../../../etc", "link", ""):
        result = run("bind", "--cgroup", given, "default", "--dry-run")
        assert (result.code, result.out) == (2, "")
        assert "no cgroup" in result.err


def test_no_variable_moves_the_root(
    run: Run, tree: FakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MMPOLICY_ROOT", "/nowhere")
    monkeypatch.setenv("MMPOLICY_MAIN_ROOT", "/nowhere")
    assert run("list").code == 0


def test_files_that_the_command_keeps(tree: FakeTree) -> None:
    """No link is followed, and no other user may write files that revert trusts."""
    tree.put("/run/victim", "precious")
    victim = tree.real("/run/victim")
    for name in ("kept", "kept.new", "added", "lock", "saved"):
        tree.real(f"/run/{name}").symlink_to(victim)
    tree.keep("/run/kept", "new")
    with pytest.raises(Error, match="ELOOP"):
        tree.append("/run/added", lambda _text: "new")
    with pytest.raises(Error, match="ELOOP"), tree.locked("/run/lock", "me"):
        pass
    with pytest.raises(Error, match="ELOOP"):
        save_as(tree.real("/run/saved"), b"new")
    assert victim.read_text() == "precious\n"
    assert tree.read("/run/kept") == "new"
    tree.append("/run/fresh", lambda _text: "line")
    for name in ("kept", "fresh"):
        assert tree.real(f"/run/{name}").lstat().st_mode & 0o777 == 0o600
