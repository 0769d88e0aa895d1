# SPDX-License-Identifier: GPL-2.0
"""Policies in BPF over a boot: `save` records their objects, and `apply` loads them again."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from mmpolicy.control.programs import RECORDS
from mmpolicy.host import bpf
from mmpolicy.host.bpf import PINS

from .fakes import CONTROL, DEFAULT, POINTS, FakeTree, Run, read_named

POLICY = f"{DEFAULT}/anon_order/policy"
FACTS = ("name", "point", "program", "clamped", "error")
# Loads the policy that the object names into the module's files; the kernel refuses "bad".
HELPER = """#!/bin/sh
read -r name
[ "$name" != bad ] || {{ echo refused register 34 >&2; exit 1; }}
[ -z "$4" ] || [ "$4" = "$name" ] || {{ echo refused wanted 0 >&2; exit 1; }}
echo "$1 $2" >>{root}/asked
echo "$name"
[ "$1" != verify ] || exit 0
slot={root}{control}/bpf/slot0
echo "$name" >$slot/name
echo anon_order >$slot/point
echo $(($(cat $slot/program) + 1)) >$slot/program
mkdir -p {root}{pins}/anon_order
: >{root}{pins}/anon_order/$name
[ "$1" = replace ] || sed -i "s/$/ $name/" {root}{control}/profiles/*/anon_order/policy
"""


@pytest.fixture
def host(tree: FakeTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeTree:
    """Return a host with the helper, and a module that accepts programs."""
    helper = tmp_path / "mmpolicy-bpf"
    helper.write_text(HELPER.format(root=tree.root, control=CONTROL, pins=PINS))
    helper.chmod(0o755)
    monkeypatch.setattr(bpf, "PLACES", str(tmp_path))
    monkeypatch.setitem(POINTS, "anon_order", (*POINTS["anon_order"], "own"))
    boot(tree)
    return tree


def boot(tree: FakeTree) -> None:
    """Let the host boot: only the module is loaded, and files in /run are gone."""
    tree.make_unloaded()
    tree.remove("/run/mmpolicy")
    tree.remove(PINS)
    tree.make_loaded()
    for fact in FACTS:
        tree.put(f"{CONTROL}/bpf/slot0/{fact}", "0" if fact in ("program", "clamped") else "")
    built = " ".join(POINTS["anon_order"][1:-1])
    tree.put(POLICY, f"[stock] {built}")


def put_object(path: Path, name: str = "own", more: str = "") -> str:
    """Make an object with a policy of a name; return its SHA-256."""
    path.write_text(f"{name}\n{more}")
    return sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return an object."""
    put_object(tmp_path / "own.bpf.o")
    return tmp_path / "own.bpf.o"


@pytest.fixture
def saved(host: FakeTree, run: Run, file: Path, tmp_path: Path) -> Path:
    """Return a manifest of a host on which a policy in BPF decides, booted since."""
    assert run("policy", "load", str(file)).code == 0
    run("set", "anon_order", "own")
    run("profile", "create", "web")
    run("set", "thp_gfp", "light", "--profile", "web")
    result = run("save", str(tmp_path / "host.toml"))
    assert (result.code, result.err) == (0, "")
    boot(host)
    (host.root / "asked").unlink()
    host.writes.clear()
    return tmp_path / "host.toml"


def asked(host: FakeTree) -> list[str]:
    """Return the requests to the helper."""
    path = host.root / "asked"
    return path.read_text().splitlines() if path.exists() else []


def test_round_trip(host: FakeTree, run: Run, saved: Path, file: Path) -> None:
    """After `save`, path and SHA-256 are in the manifest; `apply` loads the policy before its
    users, and only once.
    """
    digest = sha256(file.read_bytes()).hexdigest()
    assert f'[policies.own]\nfile = "{file}"\nsha256 = "{digest}"\n' in saved.read_text()
    assert "[own]" not in host.read(POLICY)
    result = run("apply", str(saved))
    assert (result.code, result.err) == (0, "")
    assert "[own]" in host.read(POLICY)
    assert run("verify").code == 0
    assert run("save").out == saved.read_text()
    file.unlink()  # a loaded program does not need its file
    assert run("apply", str(saved)).code == 0
    assert asked(host) == ["load own"]
    shown = run("policy", "show", "own", "--json").json
    assert (shown["file"], shown["sha256"]) == (str(file), digest)


def change(file: Path) -> None:
    """Compile the object again."""
    put_object(file, more="another")


def spoil(file: Path) -> None:
    """Let the kernel refuse the object, whatever its SHA-256."""
    saved = file.parent / "host.toml"
    old = sha256(file.read_bytes()).hexdigest()
    saved.write_text(saved.read_text().replace(old, put_object(file, "bad")))


def rename(file: Path) -> None:
    """Let the object have the policy under another name."""
    saved = file.parent / "host.toml"
    old = sha256(file.read_bytes()).hexdigest()
    saved.write_text(saved.read_text().replace(old, put_object(file, "other")))


@pytest.mark.parametrize(
    ("harm", "word"),
    [
        (Path.unlink, "ENOENT"),
        (change, "has another SHA-256"),
        (spoil, "max_order of the policy is not 2 to 9"),
        (rename, "the policy in the object file has another name than the one given"),
    ],
)
def test_what_cannot_be_loaded(
    host: FakeTree, run: Run, saved: Path, file: Path, harm: Callable[[Path], None], word: str
) -> None:
    """A policy that cannot be loaded gives one line; at boot its profile stays at stock, and all
    else is as the manifest says.
    """
    harm(file)
    before = read_named(host)
    result = run("apply", str(saved))
    line = saved.read_text().splitlines().index("[policies.own]") + 1
    assert (result.code, f"{saved}:{line}: " in result.err, word in result.err) == (1, True, True)
    assert len(result.err.splitlines()) == 2
    assert read_named(host) == before
    result = run("apply", "--skip-missing", str(saved))
    assert (result.code, len(result.err.splitlines())) == (0, 1)
    assert word in result.err and result.err.endswith(": this policy is left out\n")
    state = read_named(host)
    assert state["profiles/default/anon_order/policy"] == "stock"
    assert state["profiles/web/thp_gfp/policy"] == "light"
    assert asked(host) == []
    for _ in range(2):  # the timer's check reports it until it exists
        result = run("verify", "--skip-missing", str(saved))
        rows = [line.split()[:3] for line in result.out.splitlines()]
        assert (result.code, ["policy", "own", "-"] in rows) == (6, True)


def test_dry_run(host: FakeTree, run: Run, saved: Path, file: Path) -> None:
    """A dry run prints the load first; no program is loaded, and its own knobs are not checked."""
    text = saved.read_text() + "\n[profiles.default.anon_order.own]\nsize = 3\n"
    saved.write_text(text)
    result = run("apply", "--dry-run", str(saved))
    lines = result.out.splitlines()
    assert (result.code, asked(host), host.writes) == (0, [], [])
    assert lines[0].startswith(f"{file} <- load  (- -> ")
    assert f"{POLICY} <- own  (stock -> own)" in lines
    assert f"{DEFAULT}/anon_order/own/size <- 3  (- -> 3)" in lines
    assert run("diff", "--exit-code", str(saved)).code == 6


def test_another_object(host: FakeTree, run: Run, saved: Path, file: Path) -> None:
    """An object with another SHA-256 replaces the loaded one; the profile keeps the policy."""
    run("apply", str(saved))
    old = sha256(file.read_bytes()).hexdigest()
    new = put_object(file, more="better")
    saved.write_text(saved.read_text().replace(old, new))
    found = run("verify", "--json", str(saved)).json["differences"]
    assert found == [{"path": "policy own", "now": old, "wanted": new}]
    assert run("apply", str(saved)).code == 0
    assert asked(host) == ["load own", "replace own"]
    assert "[own]" in host.read(POLICY)
    put_object(file, more="best")
    saved.write_text(saved.read_text().replace(new, "0" * 64))
    result = run("apply", "--skip-missing", str(saved))
    assert (result.code, "left out" in result.err) == (0, True)
    assert "[stock]" in host.read(POLICY)  # never a program that the manifest does not mean


def test_what_save_has_to_say(host: FakeTree, run: Run, file: Path) -> None:
    """`save` reports the state that would be missing after a boot."""
    run("policy", "load", str(file))
    change(file)
    result = run("save")
    assert ("cannot be loaded again after a boot" in result.err, "sha256" in result.out) == (
        True,
        True,
    )
    for text in "{", "[]", "{}", json.dumps({"program": 1}):
        host.put(f"{RECORDS}/own.json", text)
        result = run("save")
        assert ("does not contain" in result.err, "sha256" in result.out) == (True, False)
    put_object(file)
    run("policy", "replace", str(file))
    assert run("save").err == ""
    host.put(f"{CONTROL}/bpf/slot0/program", "99")  # another loader
    assert "another program than mmpolicy has loaded it" in run("save").err
    assert run("policy", "show", "own", "--json").json["sha256"] is None


def test_a_load_that_cannot_be_written_down(host: FakeTree, run: Run, file: Path) -> None:
    """If the load of a policy cannot be recorded, the policy is still loaded."""
    host.put(RECORDS, "a file where the folder should be")
    result = run("policy", "load", str(file))
    assert (result.code, "mmpolicy save will leave the policy out" in result.err) == (0, True)


def test_what_is_no_change(host: FakeTree, run: Run, file: Path) -> None:
    """Policies that a manifest does not name stay loaded, and no change of settings has them."""
    run("policy", "load", str(file))
    empty = file.parent / "empty.toml"
    empty.write_text("version = 1\n[policies]\n")
    assert run("apply", str(empty)).out == "nothing to change\n"
    assert run("verify", str(empty)).code == 0
    run("set", "anon_order", "own")
    run("policy", "replace", str(file))
    assert run("revert").code == 0
    assert [line.split()[:2] for line in asked(host)] == [["load", "own"], ["replace", "own"]]


@pytest.mark.parametrize(
    "text",
    [
        "policies = 3",
        '[policies]\nown = "x"',
        "[policies.own]",
        '[policies.own]\nfile = "/x"',
        f'[policies.own]\nfile = "x"\nsha256 = "{"0" * 64}"',
        '[policies.own]\nfile = "/x"\nsha256 = "0"',
        f'[policies.own]\nfile = "/x"\nsha256 = "{"0" * 64}"\nname = "y"',
        f'[policies."../own"]\nfile = "/x"\nsha256 = "{"0" * 64}"',
    ],
)
def test_what_is_no_policy(host: FakeTree, run: Run, tmp_path: Path, text: str) -> None:
    """The error about an invalid entry has the line."""
    manifest = tmp_path / "m.toml"
    manifest.write_text(f"version = 1\n{text}\n")
    number = 2 + text.startswith("[policies]\n")
    result = run("apply", str(manifest))
    assert (result.code, f"{manifest}:{number}: " in result.err, host.writes) == (1, True, [])
