# SPDX-License-Identifier: GPL-2.0
"""Services of systemd that are bound at each start, and a folder of manifests."""

from __future__ import annotations

import pytest

from mmpolicy.control.manifest import service_of
from mmpolicy.control.units import generate
from mmpolicy.errors import Exit

from .fakes import CONTROL, FakeTree, Run, read_named

FOLDER = "/etc/mmpolicy"
OWN = f"{FOLDER}/90-redis-server.service.toml"
HOST = """\
version = 1

[profiles.web.anon_order]
policy = "never"

[bindings]
"/system.slice/nginx.service" = "web"
"postgresql@15-main" = "web"
"app.slice" = "web"
"/user.slice/user-0.slice/user@0.service/x.service" = "web"
"""


@pytest.fixture
def host(tree: FakeTree) -> FakeTree:
    """Return a host with a manifest, which is applied, and redis."""
    tree.put(f"{FOLDER}/host.toml", HOST)
    tree.make_profile("web")
    tree.make_cgroup("/system.slice/redis-server.service")
    return tree


def drop_ins(tree: FakeTree) -> dict[str, str]:
    """Run the generator; return its files, by path."""
    folder = tree.real("/run/generator")
    assert generate("/run/generator", str(tree.root)) == 0
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*.conf")}


def test_services_of_the_manifests_get_a_drop_in(host: FakeTree) -> None:
    found = drop_ins(host)
    assert set(found) == {
        "nginx.service.d/50-mmpolicy.conf",
        "postgresql@15-main.service.d/50-mmpolicy.conf",
    }
    text = found["nginx.service.d/50-mmpolicy.conf"]
    assert "ExecStartPre=-+/usr/lib/mmpolicy/bind-service web\n" in text
    assert "\nAfter=mmpolicy.service\n" in text


@pytest.mark.parametrize(
    ("given", "unit"),
    [("a", "a.service"), ("a.b", "a.b.service"), ("/a.slice/a-b.slice/c.service", "c.service"),
     (r"dev-\x2d@1.service", r"dev-\x2d@1.service"), ("a.scope", None), ("a\nb", None),
     ("/docker/1.service", None), ("%n", None), ("", None)],
)  # fmt: skip
def test_names_of_services(given: str, unit: str | None) -> None:
    assert service_of(given) == unit


@pytest.mark.parametrize("profile", ["web\\nExecStart=/bin/true", "a b", "../x", "%n"])
def test_no_word_gets_into_a_unit(host: FakeTree, profile: str) -> None:
    host.put(f"{FOLDER}/host.toml", f'version = 1\n[bindings]\nnginx = "{profile}"\n')
    assert generate("/run/generator", str(host.root)) != 0
    assert not host.exists("/run/generator")


def test_a_broken_manifest_makes_no_drop_in(
    host: FakeTree, capsys: pytest.CaptureFixture[str]
) -> None:
    host.put(f"{FOLDER}/50-broken.toml", "version = ")
    assert generate("/run/generator", str(host.root)) == Exit.FAILED
    assert "50-broken.toml" in capsys.readouterr().err


def test_a_unit_is_bound_now_and_at_its_next_start(
    run: Run, host: FakeTree, reloads: list[str]
) -> None:
    assert run("bind", "--unit", "redis-server", "web").code == 0
    number = host.inode("/sys/fs/cgroup", "system.slice/redis-server.service")
    assert read_named(host)[f"cgroups/{number}"] == "web"
    assert "redis-server.service.d/50-mmpolicy.conf" in drop_ins(host)
    assert reloads == ["reload"]
    result = run("unbind", "--unit", "redis-server.service")
    assert (result.code, "does not run" in result.out) == (0, False)
    assert f"cgroups/{number}" not in read_named(host)
    assert not host.exists(OWN)
    assert len(reloads) == 2


def test_a_unit_need_not_run(run: Run, host: FakeTree) -> None:
    result = run("bind", "--unit", "memcached.service", "web")
    said = "memcached.service does not run now\n"
    assert (result.code, result.out.endswith(said)) == (0, True)
    assert "memcached.service.d/50-mmpolicy.conf" in drop_ins(host)
    host.make_unloaded()
    result = run("unbind", "--unit", "memcached")
    assert (result.code, result.out.endswith(said)) == (0, True)


def test_a_profile_that_would_not_be_there_after_a_boot(run: Run, host: FakeTree) -> None:
    host.make_profile("fleeting")
    result = run("bind", "--unit", "redis-server", "fleeting")
    assert (result.code, "after a boot" in result.err) == (Exit.USAGE, True)
    assert f"mmpolicy save {FOLDER}/50-try.toml" in result.err
    assert not host.exists(OWN)


@pytest.mark.parametrize(
    "words",
    [("bind", "web"), ("bind", "--unit", "a", "--pid", "1", "web"), ("unbind", "--unit", "nginx"),
     ("bind", "--unit", "a.socket", "web"), ("bind", "--unit", "/a.slice/b.service", "web")],
)  # fmt: skip
def test_bad_words_change_nothing(
    run: Run, host: FakeTree, reloads: list[str], words: tuple[str, ...]
) -> None:
    assert run(*words).code == Exit.USAGE
    assert host.names(FOLDER) == ["host.toml"]
    assert (host.writes, reloads) == ([], [])


def test_a_dry_run_of_a_unit(run: Run, host: FakeTree, reloads: list[str]) -> None:
    lines = run("bind", "--unit", "redis-server", "web", "--dry-run").out.splitlines()
    assert lines[0].startswith(f"{CONTROL}/profiles/web/cgroups <- ")
    assert lines[1] == f"{OWN} <- web  (- -> web)"
    assert (host.exists(OWN), host.writes, reloads) == (False, [], [])


def test_a_name_with_an_escape_is_written_so_that_it_can_be_read(run: Run, host: FakeTree) -> None:
    """A unit with an escaped name, as systemd-escape makes it, is applied and bound at
    the next boot.
    """
    unit = r"postgresql@16\x2dmain.service"
    host.make_cgroup(f"/system.slice/{unit}")
    assert run("bind", "--unit", unit, "web").code == 0
    assert run("apply", "--skip-missing", str(host.real(FOLDER))).code == 0
    number = host.inode("/sys/fs/cgroup", f"system.slice/{unit}")
    assert read_named(host)[f"cgroups/{number}"] == "web"
    assert f"{unit}.d/50-mmpolicy.conf" in drop_ins(host)


@pytest.mark.parametrize(
    "text", ["version = ", "version = 1\n[bindings]\nx = 'nobody'\n", "\udcff"]
)
def test_one_bad_file_costs_what_is_in_it_and_no_more(
    run: Run, host: FakeTree, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    host.put(f"{FOLDER}/50-bad.toml", text.encode(errors="surrogateescape"))
    host.put(OWN, 'version = 1\n[bindings]\n"redis-server.service" = "web"\n')
    folder = str(host.real(FOLDER))
    generate("/run/generator", str(host.root))
    assert host.exists("/run/generator/redis-server.service.d/50-mmpolicy.conf")
    assert host.exists("/run/generator/nginx.service.d/50-mmpolicy.conf")
    capsys.readouterr()
    words = ["--skip-missing", folder]
    assert (run("apply", *words).code, host.writes) == (1, [])
    result = run("apply", "--skip-invalid", *words)
    assert (result.code, "50-bad.toml" in result.err, "left out" in result.err) == (0, True, True)
    number = host.inode("/sys/fs/cgroup", "system.slice/redis-server.service")
    assert read_named(host)[f"cgroups/{number}"] == "web"
    assert read_named(host)["profiles/web/anon_order/policy"] == "never"
    assert run("verify", *words).code == 1  # so that the timer reports it


# A folder of manifests


def test_the_last_file_wins(run: Run, tree: FakeTree) -> None:
    folder = tree.real(FOLDER)
    tree.put(f"{FOLDER}/10-a.toml", HOST)
    tree.put(f"{FOLDER}/20-b.toml", 'version = 1\n[profiles.web.anon_order]\npolicy = "fixed"\n')
    tree.put(f"{FOLDER}/30-c.toml", 'version = 1\n[bindings]\nnginx = "web"\n')
    tree.put(f"{FOLDER}/notes.txt", "no manifest")
    tree.make_cgroup("/system.slice/nginx.service")
    assert run("apply", "--skip-missing", str(folder)).code == 0
    assert read_named(tree)["profiles/web/anon_order/policy"] == "fixed"
    assert run("verify", "--skip-missing", str(folder)).code == 0
    assert run("verify", "--skip-missing").code == 0  # the stored manifest has all of them
    assert run("verify", str(folder)).code == Exit.DRIFT  # three units do not run
    run("set", "anon_order", "never", "--profile", "web")
    assert run("verify", "--skip-missing", str(folder)).code == Exit.DRIFT


def test_an_error_names_the_file_of_the_folder(run: Run, tree: FakeTree) -> None:
    tree.put(f"{FOLDER}/10-a.toml", HOST)
    tree.put(f"{FOLDER}/20-b.toml", 'version = 1\n\n[profiles.web.anon_order]\npolicy = "x"\n')
    result = run("apply", "--skip-missing", str(tree.real(FOLDER)))
    assert (result.code, tree.writes) == (Exit.FAILED, [])
    assert f"{FOLDER}/20-b.toml:4: " in result.err


def test_a_folder_without_manifests_leaves_all_as_it_is(run: Run, tree: FakeTree) -> None:
    run("set", "anon_order", "never")
    tree.put(f"{FOLDER}/notes.txt", "")
    assert run("apply", str(tree.real(FOLDER))).code == 0
    assert read_named(tree)["profiles/default/anon_order/policy"] == "never"


def test_the_unit_of_the_host_goes_before_that_of_a_container(run: Run, host: FakeTree) -> None:
    inner = "/machine.slice/machine-a.scope/payload/system.slice/redis-server.service"
    host.make_cgroup(inner)
    assert run("bind", "--cgroup", "redis-server.service", "web").code == 0
    number = host.inode("/sys/fs/cgroup", "system.slice/redis-server.service")
    assert read_named(host)[f"cgroups/{number}"] == "web"
