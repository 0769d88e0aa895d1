# SPDX-License-Identifier: GPL-2.0
"""Services bound at their start: the log lists them, and revert knows them."""

from __future__ import annotations

import pytest

from .fakes import CONTROL, FakeTree, Run, read_named
from .services import start_service

UNIT = "/system.slice/redis-server.service"
MANIFEST = 'version = 1\n[profiles.web.anon_order]\npolicy = "never"\n'


@pytest.fixture
def host(tree: FakeTree) -> FakeTree:
    """Return a host with a manifest that is applied, and redis."""
    tree.put("/etc/mmpolicy/host.toml", MANIFEST)
    tree.make_profile("web")
    tree.make_cgroup(UNIT)
    return tree


def restart(host: FakeTree, profile: str = "") -> str:
    """Give redis a new cgroup, and let its drop-in bind it; return its id."""
    old = host.inode("/sys/fs/cgroup", UNIT.strip("/"))
    host.real(f"/sys/fs/cgroup{UNIT}").rename(host.real("/sys/fs/cgroup/old"))
    number = host.make_cgroup(UNIT)
    host.remove("/sys/fs/cgroup/old")
    assert number != str(old)
    for name in host.dirs(f"{CONTROL}/profiles"):  # the kernel drops removed cgroups
        path = f"{CONTROL}/profiles/{name}/cgroups"
        host.put(path, " ".join(set(host.read(path).split()) - {str(old)}))
    if profile:
        assert start_service(host, "redis-server", profile).returncode == 0
    return number


def test_the_log_tells_of_it(run: Run, host: FakeTree) -> None:
    assert "STARTED" not in run("log").out
    number = restart(host, "web")
    run("set", "anon_order", "never")
    lines = run("log").out.splitlines()
    assert lines[-2].split() == ["STARTED", "SERVICE", "PROFILE"]
    assert lines[-1].split()[1:] == [UNIT, "web"]
    (start,) = run("log", "--json").json["starts"]
    assert (start["cgroup"], start["profile"], start["path"]) == (int(number), "web", UNIT)
    host.put("/run/mmpolicy/bound", f"{host.read('/run/mmpolicy/bound')}\n2026-01-01T0")
    assert len(run("log", "--json").json["starts"]) == 1  # half a line does not count


def test_what_fails_is_not_told_as_done(run: Run, host: FakeTree) -> None:
    assert start_service(host, "redis-server", "gone").returncode == 1
    assert run("log", "--json").json["starts"] == []


def test_the_record_has_a_bound(run: Run, host: FakeTree) -> None:
    line = f"2026-01-01T00:00:00+00:00 1 web {UNIT}\n"
    host.put("/run/mmpolicy/bound", line * (1_000_000 // len(line) + 1))
    restart(host, "web")
    assert host.read("/run/mmpolicy/bound").count("\n") == 0
    starts = run("log", "-n", "2", "--json").json["starts"]
    assert [each["cgroup"] == 1 for each in starts] == [True, False]


def test_revert_takes_back_a_unit_that_has_started_since(run: Run, host: FakeTree) -> None:
    """`revert` takes back a unit that has started since, and a second revert undoes the first."""
    assert run("bind", "--unit", "redis-server", "web").code == 0
    number = restart(host, "web")
    assert read_named(host)[f"cgroups/{number}"] == "web"
    assert run("revert").code == 0
    assert f"cgroups/{number}" not in read_named(host)
    assert not host.exists("/etc/mmpolicy/90-redis-server.service.toml")
    number = restart(host)
    assert run("revert").code == 0
    assert read_named(host)[f"cgroups/{number}"] == "web"


def test_revert_leaves_what_somebody_else_has_bound_since(run: Run, host: FakeTree) -> None:
    host.make_profile("other")
    assert run("bind", "--unit", "redis-server", "web").code == 0
    number = restart(host, "other")
    assert run("revert").code == 0
    assert read_named(host)[f"cgroups/{number}"] == "other"


def test_revert_takes_a_profile_from_services_that_have_started_since(
    run: Run, host: FakeTree
) -> None:
    """`revert` takes a profile from services that have started since, as the kernel would refuse to
    delete it.
    """
    text = MANIFEST + '[profiles.new]\n[bindings]\n"redis-server.service" = "new"\n'
    host.put("/etc/mmpolicy/host.toml", text)
    assert run("apply", str(host.real("/etc/mmpolicy"))).code == 0
    number = restart(host, "new")
    result = run("revert")
    assert (result.code, result.err) == (0, "")
    assert f"cgroups/{number}" not in read_named(host)
    assert not host.is_dir(f"{CONTROL}/profiles/new")


def test_a_name_with_an_escape(run: Run, host: FakeTree) -> None:
    name = r"postgresql@16\x2dmain\x5cn"
    host.make_cgroup(f"/system.slice/{name}.service")
    assert start_service(host, name).returncode == 0
    assert run("log", "--json").json["starts"][0]["path"] == f"/system.slice/{name}.service"
