# SPDX-License-Identifier: GPL-2.0
"""A host with many cgroups and services: the CPU time of each command."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mmpolicy.host.files import Tree

from .fakes import CONTROL, FakeTree, Run
from .services import start_service

SERVICES, CGROUPS, FILES = 40, 1500, 6


@pytest.fixture
def host(tree: FakeTree) -> FakeTree:
    """Return a host with many services, and with the usual files for each cgroup."""
    text = "version = 1\n[profiles.web]\n[bindings]\n"
    for number in range(CGROUPS):
        path = f"/system.slice/s{number}.service"
        folder = tree.real(f"/sys/fs/cgroup{path}")
        folder.mkdir(parents=True)
        for file in range(FILES):
            (folder / f"memory.file{file}").touch()
        text += f'"s{number}.service" = "web"\n' if number < SERVICES else ""
    tree.put("/host.toml", text)
    tree.make_profile("web")
    return tree


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Fail if the block takes more CPU time."""
    begin = time.process_time()
    yield
    assert time.process_time() - begin < seconds


def test_many_bindings_by_name_are_one_walk(run: Run, host: FakeTree) -> None:
    listed: list[str] = []
    plain = Tree.inodes

    def inodes(path: str) -> dict[str, int]:
        listed.append(path)
        return plain(host, path)

    host.inodes = inodes  # type: ignore[method-assign]
    with at_most(1.0):
        result = run("diff", str(host.real("/host.toml")))
    assert (result.code, result.out.count("web")) == (0, SERVICES)
    walks = [path for path in listed if path == "/sys/fs/cgroup"]
    assert len(walks) <= 2  # to find them, and to name them


def start(host: FakeTree, number: int, profile: str = "web") -> subprocess.CompletedProcess[str]:
    """Run the commands that systemd runs before one of many services."""
    return start_service(host, f"s{number}", profile)


def test_what_runs_before_a_service_takes_milliseconds(host: FakeTree) -> None:
    before = os.times()
    for number in range(SERVICES):
        done = start(host, number)
        assert (done.returncode, done.stderr) == (0, "")
        group = host.read(f"{CONTROL}/profiles/web/cgroups")
        assert group == str(host.inode("/sys/fs/cgroup", f"system.slice/s{number}.service"))
    after = os.times()
    spent = after.children_user + after.children_system
    assert spent - before.children_user - before.children_system < 0.05 * SERVICES


def test_what_it_cannot_bind_is_logged(host: FakeTree) -> None:
    done = start(host, 1, "gone")
    assert done.returncode == 1
    for text in (done.stderr, host.read("/logged")):
        assert "/system.slice/s1.service is not bound to the profile 'gone'" in text
        assert "next: systemctl reload mmpolicy" in text


def test_what_was_missed_is_healed(run: Run, host: FakeTree, log: list[str]) -> None:
    """Missing bindings are restored, and no other binding changes."""
    manifest = str(host.real("/host.toml"))
    assert run("apply", manifest).code == 0
    group = str(host.inode("/sys/fs/cgroup", "system.slice/s3.service"))
    host.write(f"{CONTROL}/profiles/web/cgroups", f"-{group}")
    run("set", "anon_order", "never")
    assert run("verify", manifest).code == 6
    result = run("verify", "--heal", manifest)
    assert (result.code, group in host.read(f"{CONTROL}/profiles/web/cgroups").split()) == (6, True)
    assert log[-1].endswith(f"cgroup {group}: - -> web")
    run("set", "anon_order", "stock")
    assert run("verify", "--heal", manifest).code == 0


def test_a_long_text_in_a_manifest(run: Run, tree: FakeTree) -> None:
    text = "\n".join(f"line {number}" for number in range(1500))
    tree.put("/long.toml", f'version = 1\n[profiles.web]\nx = """\n{text}\n"""\n')
    with at_most(1.0):
        assert run("diff", str(tree.real("/long.toml"))).code in (1, 2)


def test_a_manifest_of_brackets(run: Run, tree: FakeTree) -> None:
    tree.put("/deep.toml", f"version = 1\nx = {'[' * 3000}{']' * 3000}\n")
    result = run("apply", str(tree.real("/deep.toml")))
    assert (result.code, "correct the file" in result.err) == (1, True)
