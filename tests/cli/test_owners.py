# SPDX-License-Identifier: GPL-2.0
"""Bindings of owners: the host's manifests and an agent do not undo each other."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from .fakes import CONTROL, FakeTree, Run, read_named

WEB = f"{CONTROL}/profiles/web/cgroups"
POD = "/kubepods.slice/pod1.slice/one.scope"
FILE = "/run/mmpolicy/owners/agent"
MANIFEST = """\
version = 1

[profiles.web.anon_order]
policy = "fixed"

[bindings]
"/app.slice" = "web"
"""


@pytest.fixture
def pod(run: Run, tree: FakeTree, tmp_path: Path) -> str:
    """Apply a manifest, and bind a cgroup in the name of an owner; return its id."""
    tree.make_cgroup("/app.slice")
    number = tree.make_cgroup(POD)
    (tmp_path / "host.toml").write_text(MANIFEST)
    assert run("apply", str(tmp_path / "host.toml")).code == 0
    assert run("bind", "--owner", "agent", "--cgroup", POD, "web").code == 0
    return number


def value(run: Run, metric: str) -> str | None:
    found = re.search(rf"^{re.escape(metric)} (\S+)$", run("export").out, re.MULTILINE)
    return found and found[1]


def test_apply_leaves_it_alone(run: Run, tree: FakeTree, tmp_path: Path, pod: str) -> None:
    """`apply`, `diff`, `verify` and `save` leave a binding of an owner alone; a binding without an
    owner is removed.
    """
    free = tree.make_cgroup("/kubepods.slice/pod1.slice/free.scope")
    run("bind", "--cgroup", "/kubepods.slice/pod1.slice/free.scope", "web")
    name = str(tmp_path / "host.toml")
    assert run("verify", name).code == 6
    assert run("apply", name).code == 0
    bound = tree.read(WEB).split()
    assert pod in bound and free not in bound and len(bound) == 2
    assert run("verify", name).code == run("diff", "--exit-code", name).code == 0
    assert '"/app.slice"' in run("save").out and "one.scope" not in run("save").out
    status = run("status")
    assert "agent has bound 1 cgroups" in status.out
    assert run("status", "--json").json["owners"] == {"agent": 1}


def test_a_manifest_that_names_it_wins(run: Run, tree: FakeTree, tmp_path: Path, pod: str) -> None:
    text = MANIFEST.replace("[bindings]", f'[profiles.db]\n[bindings]\n"{POD}" = "db"')
    (tmp_path / "host.toml").write_text(text)
    assert run("apply", str(tmp_path / "host.toml")).code == 0
    assert read_named(tree)[f"cgroups/{pod}"] == "db"
    assert value(run, 'mmpolicy_bindings_lost{owner="agent"}') == "1.0"


@pytest.mark.parametrize("verb", [("bind", "web"), ("unbind",)])
def test_others_are_refused(run: Run, tree: FakeTree, pod: str, verb: tuple[str, ...]) -> None:
    before = tree.writes.copy()
    for owner in ((), ("--owner", "another")):
        done = run(verb[0], *owner, "--cgroup", POD, *verb[1:])
        assert done.code == 5 and "belongs to the owner 'agent'" in done.err
    assert tree.writes == before
    assert run(verb[0], "--owner", "agent", "--cgroup", POD, *verb[1:]).code == 0
    assert (pod in tree.read(WEB).split()) == (verb[0] == "bind")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--owner", "host", "--cgroup", POD), "is not a valid name of an owner"),
        (("--owner", "../x", "--cgroup", POD), "is not a valid name of an owner"),
        (("--owner", "agent", "--pid", "1"), "--owner needs --cgroup PATH"),
        (("--owner", "agent", "--unit", "x.service"), "--owner needs --cgroup PATH"),
    ],
)
def test_bad_words_change_nothing(
    run: Run, tree: FakeTree, pod: str, words: tuple[str, ...], message: str
) -> None:
    before, text = tree.writes.copy(), tree.read(FILE)
    done = run("bind", *words, "web")
    assert done.code == 2 and message in done.err
    assert (tree.writes, tree.read(FILE)) == (before, text)
    assert tree.names("/run/mmpolicy/owners") == ["agent"]


def test_a_dry_run_owns_nothing(run: Run, tree: FakeTree) -> None:
    tree.make_cgroup(POD)
    run("profile", "create", "web")
    assert run("bind", "--dry-run", "--owner", "agent", "--cgroup", POD, "web").code == 0
    assert not tree.exists(FILE) and tree.read(WEB) == ""


def test_what_has_gone_is_forgotten(run: Run, tree: FakeTree, pod: str) -> None:
    """Bindings of removed cgroups are forgotten, and damaged lines too; the file does not grow."""
    tree.put(FILE, f"{tree.read(FILE)}\nnonsense\n1 web")
    tree.remove(f"/sys/fs/cgroup{POD}")
    for number in range(5):
        path = f"/kubepods.slice/pod2.slice/{number}.scope"
        tree.make_cgroup(path)
        assert run("bind", "--owner", "agent", "--cgroup", path, "web").code == 0
        tree.remove(f"/sys/fs/cgroup{path}")
    assert len(tree.read(FILE).splitlines()) == 1
    assert value(run, 'mmpolicy_bindings_lost{owner="agent"}') is None


def test_a_lost_binding_is_told(run: Run, tree: FakeTree, tmp_path: Path, pod: str) -> None:
    """A lost binding of an agent or of the manifests is reported, as are the differences of the
    host from them.
    """
    agent, host = (f'mmpolicy_bindings_lost{{owner="{name}"}}' for name in ("agent", "host"))
    assert [value(run, each) for each in (agent, host, "mmpolicy_drift")] == ["0.0"] * 3
    run("unbind", "--cgroup", "/app.slice")
    assert [value(run, each) for each in (agent, host, "mmpolicy_drift")] == ["0.0", "1.0", "1.0"]
    tree.store(WEB, f"-{pod}")  # by hand with echo
    assert [value(run, each) for each in (agent, host, "mmpolicy_drift")] == ["1.0", "1.0", "1.0"]
    tree.store(f"{CONTROL}/profiles/default/anon_order/policy", "never")
    assert value(run, "mmpolicy_drift") == "2.0"
    assert run("apply", str(tmp_path / "host.toml")).code == 0
    assert [value(run, each) for each in (agent, host, "mmpolicy_drift")] == ["1.0", "0.0", "0.0"]


def test_the_profile_of_an_owner_cannot_go(run: Run, tree: FakeTree, pod: str) -> None:
    """The profile of an owner's binding cannot be deleted, as for a process: the manifest is
    refused as a whole.
    """
    before = read_named(tree)
    empty = tree.real("/empty.toml")
    empty.write_text("version = 1\n")
    assert run("apply", str(empty)).code == 1
    assert read_named(tree) == before


def test_neither_undoes_the_other(run: Run, tree: FakeTree, tmp_path: Path, pod: str) -> None:
    """Neither the manifests nor an agent undoes the other: in any order of their changes, each has
    its latest request in force.
    """
    dice = random.Random(33)
    pods = [f"/kubepods.slice/{number}.scope" for number in range(4)]
    numbers = [tree.make_cgroup(path) for path in pods]
    app = tree.make_cgroup("/app.slice")
    name, wanted = str(tmp_path / "host.toml"), dict.fromkeys(numbers, False)
    for _ in range(40):
        which = dice.randrange(6)
        if which < 4:
            verb = ("unbind",) if wanted[numbers[which]] else ("bind", "web")
            words = ("--owner", "agent", "--cgroup", pods[which], *verb[1:])
            assert run(verb[0], *words).code == 0
            wanted[numbers[which]] ^= True
        else:
            assert run("apply", name).code == 0
        bound = set(tree.read(WEB).split()) - {pod}
        assert bound == {app, *(number for number in numbers if wanted[number])}
