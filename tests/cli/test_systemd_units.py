# SPDX-License-Identifier: GPL-2.0
"""Names by the rules of systemd: templates, instances, aliases, escapes, slices, user units."""

from __future__ import annotations

import pytest

from mmpolicy.control.units import generate, units_of
from mmpolicy.errors import Exit
from mmpolicy.host.systemd import cgroup_name, template_of

from .fakes import FakeTree, Run, read_named
from .services import start_service

FOLDER = "/etc/mmpolicy"
LIB = "/usr/lib/systemd/system"
FILES = (
    "worker@.service", "redis-server.service", "postgresql@.service", "memory.service",
    "app.slice", "user@.service", "getty@.service", "nginx.service",
)  # fmt: skip
WORKERS = "/system.slice/system-worker.slice"
PROFILES = "version = 1\n[profiles.web]\n[profiles.db]\n"


@pytest.fixture
def host(tree: FakeTree) -> FakeTree:
    """Return a host with unit files, aliases, and two running instances of a template."""
    for name in FILES:
        tree.put(f"{LIB}/{name}", "[Service]\n")
    tree.put("/etc/systemd/system/worker@special.service", "[Service]\n")
    tree.put("/usr/lib/systemd/user/pipewire.service", "[Service]\n")
    for name, target in (
        ("redis.service", f"{LIB}/redis-server.service"),
        ("autovt@.service", f"{LIB}/getty@.service"),
        ("old.service", "/dev/null"),
    ):
        tree.real(f"/etc/systemd/system/{name}").symlink_to(target)
    for name in ("1", r"a\x2db", "special"):
        tree.make_cgroup(f"{WORKERS}/worker@{name}.service")
    tree.make_cgroup("/user.slice/user-0.slice/user@0.service/app.slice/worker@9.service")
    tree.put(f"{FOLDER}/50-try.toml", PROFILES)
    for name in ("web", "db"):
        tree.make_profile(name)
    return tree


def bound(host: FakeTree) -> dict[str, str]:
    """Return the profile of each bound cgroup, by the last name of its path."""
    named, found = read_named(host), {}
    for path in host.real("/sys/fs/cgroup").rglob("*.service"):
        if profile := named.get(f"cgroups/{path.stat().st_ino}"):
            found[str(path.relative_to(host.real("/sys/fs/cgroup"))).rpartition("/")[2]] = profile
    return found


def start(host: FakeTree, unit: str, profile: str, folder: str = WORKERS) -> None:
    """Let a service start whose drop-in binds it."""
    host.make_cgroup(f"{folder}/{unit}")
    number = host.inode("/sys/fs/cgroup", f"{folder}/{unit}".strip("/"))
    host.write(f"/sys/kernel/mmpolicy/profiles/{profile}/cgroups", str(number))


def drop_ins(host: FakeTree) -> dict[str, str]:
    """Run the generator; return the profile of each unit that it made a drop-in for."""
    assert generate("/run/generator", str(host.root)) == 0
    return {
        path.parent.name.removesuffix(".d"): path.read_text().split()[-1]
        for path in host.real("/run/generator").rglob("*.conf")
    }


# Templates


def test_a_template_is_bound_with_its_instances(run: Run, host: FakeTree) -> None:
    """A template is bound with its instances: running ones now, each other one when it starts;
    those of users are not.
    """
    result = run("bind", "--unit", "worker@.service", "web")
    assert (result.code, "runs now" in result.out) == (0, False), result.err
    assert bound(host) == dict.fromkeys(
        ("worker@1.service", r"worker@a\x2db.service", "worker@special.service"), "web"
    )
    assert drop_ins(host) == {"worker@.service": "web"}
    assert run("unbind", "--unit", "worker@").code == 0
    assert bound(host) == {}


def test_what_reload_verify_and_export_make_of_a_template(run: Run, host: FakeTree) -> None:
    """After reload, verify and export, no binding of a template is lost, also of instances started
    since; there is no drift.
    """
    folder = str(host.real(FOLDER))
    assert run("bind", "--unit", "worker@.service", "web").code == 0
    start(host, "worker@2.service", "web")
    before = bound(host)
    assert len(before) == 4
    for _ in range(2):
        for words in (
            ("apply", "--skip-missing", folder), ("apply", folder),
            ("verify", "--heal", "--skip-missing", folder), ("verify", folder),
        ):  # fmt: skip
            result = run(*words)
            assert (result.code, result.err, bound(host)) == (0, "", before)
    told = run("export").out
    assert "\nmmpolicy_drift 0.0\n" in told
    assert 'mmpolicy_bindings_lost{owner="host"} 0.0' in told


def test_an_instance_that_is_not_bound_is_drift_and_healed(run: Run, host: FakeTree) -> None:
    folder = str(host.real(FOLDER))
    assert run("bind", "--unit", "worker@.service", "web").code == 0
    assert run("apply", "--skip-missing", folder).code == 0
    host.make_cgroup(f"{WORKERS}/worker@late.service")
    assert "\nmmpolicy_drift 1.0\n" in run("export").out
    assert 'mmpolicy_bindings_lost{owner="host"} 1.0' in run("export").out
    result = run("verify", "--skip-missing", folder)
    assert (result.code, "worker@late.service" in result.out) == (Exit.DRIFT, True)
    assert run("verify", "--heal", "--skip-missing", folder).code == 0
    assert bound(host)["worker@late.service"] == "web"


@pytest.mark.parametrize("order", [("worker@special", "worker@"), ("worker@", "worker@special")])
def test_an_instance_goes_before_its_template(
    run: Run, host: FakeTree, order: tuple[str, str]
) -> None:
    """An instance goes before its template, whichever comes first in a manifest or on the command
    line.
    """
    profiles = {"worker@special": "db", "worker@": "web"}
    lines = "".join(f'"{unit}.service" = "{profiles[unit]}"\n' for unit in order)
    host.put(f"{FOLDER}/host.toml", f"version = 1\n[bindings]\n{lines}")
    expected = {
        "worker@1.service": "web", r"worker@a\x2db.service": "web", "worker@special.service": "db",
    }  # fmt: skip
    assert run("apply", str(host.real(FOLDER))).code == 0
    assert bound(host) == expected
    assert drop_ins(host) == {"worker@.service": "web", "worker@special.service": "db"}
    host.put(f"{FOLDER}/host.toml", "version = 1\n")
    assert run("apply", str(host.real(FOLDER))).code == 0
    assert bound(host) == {}
    for unit in order:
        assert run("bind", "--unit", unit, profiles[unit]).code == 0
    assert bound(host) == expected


def test_unbinding_an_instance_leaves_it_to_its_template(run: Run, host: FakeTree) -> None:
    for unit, profile in (("worker@.service", "web"), ("worker@special", "db")):
        assert run("bind", "--unit", unit, profile).code == 0
    assert run("unbind", "--unit", "worker@special").code == 0
    assert bound(host)["worker@special.service"] == "web"
    assert run("bind", "--unit", "worker@special", "db").code == 0
    assert run("unbind", "--unit", "worker@.service").code == 0
    assert bound(host) == {"worker@special.service": "db"}


def test_a_template_without_instances(run: Run, host: FakeTree) -> None:
    result = run("bind", "--unit", "postgresql@.service", "web")
    assert (result.code, "no instance of postgresql@.service runs now" in result.out) == (0, True)
    folder = str(host.real(FOLDER))
    for words in (("apply", folder), ("verify", folder)):
        assert (run(*words).code, run(*words).err) == (0, "")


def test_revert_of_a_template_with_instances_since(run: Run, host: FakeTree) -> None:
    assert run("bind", "--unit", "worker@.service", "web").code == 0
    start(host, "worker@2.service", "web")
    assert run("revert").code == 0
    assert bound(host) == {}


# Aliases, escapes, and paths that have changed


@pytest.mark.parametrize("given", ["redis", "redis.service", "redis-server"])
def test_an_alias_stands_for_its_unit(run: Run, host: FakeTree, given: str) -> None:
    host.make_cgroup("/system.slice/redis-server.service")
    assert run("bind", "--unit", given, "web").code == 0
    assert host.names(FOLDER) == ["50-try.toml", "90-redis-server.service.toml"]
    assert bound(host) == {"redis-server.service": "web"}
    assert drop_ins(host) == {"redis-server.service": "web"}
    assert run("unbind", "--unit", given).code == 0
    assert bound(host) == {}


def test_an_alias_in_a_manifest_is_not_unbound(run: Run, host: FakeTree) -> None:
    host.put(f"{FOLDER}/host.toml", 'version = 1\n[bindings]\nredis = "web"\n"autovt@" = "db"\n')
    start(host, "redis-server.service", "web", "/system.slice")
    start(host, "getty@tty1.service", "db", "/system.slice/system-getty.slice")
    folder = str(host.real(FOLDER))
    for words in (("apply", "--skip-missing", folder), ("apply", folder), ("verify", folder)):
        assert (run(*words).code, run(*words).err) == (0, "")
        assert bound(host) == {"redis-server.service": "web", "getty@tty1.service": "db"}
    assert set(drop_ins(host)) == {"redis-server.service", "getty@.service"}


def test_a_service_that_has_moved_to_another_slice_is_not_unbound(run: Run, host: FakeTree) -> None:
    """A service that has moved to another slice is not unbound: its drop-in binds it by name, while
    the manifest has the old path.
    """
    line = '"/system.slice/nginx.service" = "web"\n'
    host.put(f"{FOLDER}/host.toml", f"version = 1\n[bindings]\n{line}")
    start(host, "nginx.service", "web", "/app.slice")
    assert run("apply", "--skip-missing", str(host.real(FOLDER))).code == 0
    assert bound(host) == {"nginx.service": "web"}


@pytest.mark.parametrize(
    ("unit", "cgroup"),
    [
        ("memory.service", "_memory.service"),
        ("_odd.service", "__odd.service"),
        ("cgroup.x.service", "_cgroup.x.service"),
        ("memory-x.service", "memory-x.service"),
        ("a.memory.service", "a.memory.service"),
    ],
)
def test_names_that_the_kernel_has_files_of(
    run: Run, host: FakeTree, unit: str, cgroup: str
) -> None:
    """For names that the kernel has files of, systemd puts an underscore before the
    cgroup's name.
    """
    assert cgroup_name(unit) == cgroup
    host.make_cgroup(f"/system.slice/{cgroup}")
    assert run("bind", "--force", "--unit", unit, "web").code == 0
    assert bound(host) == {cgroup: "web"}
    assert run("apply", "--skip-missing", str(host.real(FOLDER))).code == 0
    assert bound(host) == {cgroup: "web"}


@pytest.mark.parametrize(
    ("unit", "template"),
    [("a@b.service", "a@.service"), (r"a@x\x2dy.service", "a@.service"), ("a@.service", ""),
     ("a.service", ""), ("a@b@c.service", "a@.service"), ("a-b@1.slice", "a-b@.slice")],
)  # fmt: skip
def test_templates_of_instances(unit: str, template: str) -> None:
    assert template_of(unit) == template


# Names that are wrong


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("redis-sever", "did you mean redis-server.service?"),
        ("worker", "did you mean worker@.service?"),
        ("workr@.service", "did you mean worker@.service?"),
        ("workr@1", "did you mean worker@"),
        ("postgresql", "did you mean postgresql@.service?"),
        ("qqq", "systemctl list-unit-files lists the units"),
        ("pipewire", "is a unit of a user's systemd"),
        ("app.slice", "mmpolicy bind --cgroup app.slice"),
    ],
)
def test_a_wrong_name_is_refused(run: Run, host: FakeTree, given: str, said: str) -> None:
    before = host.names(FOLDER)
    result = run("bind", "--unit", given, "web")
    assert (result.code, said in result.err, host.names(FOLDER)) == (Exit.USAGE, True, before)
    assert host.writes == []


@pytest.mark.parametrize(
    "given", ["redis-server", "worker@new", "worker@special", "getty@tty9", "old", "transient"]
)
def test_a_unit_that_systemd_knows_is_bound(run: Run, host: FakeTree, given: str) -> None:
    """A unit that systemd knows is bound: by its file, by its template's file, by an instance's
    own, masked, or without a file.
    """
    host.make_cgroup("/system.slice/transient.service")
    assert run("bind", "--unit", given, "web").code == 0


def test_a_wrong_name_can_be_forced(run: Run, host: FakeTree) -> None:
    result = run("bind", "--unit", "later", "web")
    assert "--force binds it all the same" in result.err
    assert run("bind", "--unit", "later", "web", "--force").code == 0
    assert run("unbind", "--unit", "later").code == 0


def test_what_is_left_out_tells_a_stopped_unit_from_a_wrong_one(run: Run, host: FakeTree) -> None:
    lines = 'nginx = "web"\nngnix = "web"\n"/system.slice/redis-server.service" = "web"\n'
    host.put(f"{FOLDER}/host.toml", f"version = 1\n[bindings]\n{lines}")
    result = run("apply", "--skip-missing", str(host.real(FOLDER)))
    assert result.code == 0
    told = [
        line.rpartition(": this binding is left out")[0].partition("toml:")[2]
        for line in result.err.splitlines()
    ]
    assert told == [
        (
            "3: nginx.service does not run now, so it has no cgroup to bind"
        ), "4: systemd does not know the unit ngnix.service",
        "5: redis-server.service does not run now, so it has no cgroup to bind",
    ]  # fmt: skip
    result = run("apply", str(host.real(FOLDER)))
    assert (result.code, "start the service, and give the command again; or" in result.err) == (
        1,
        True,
    )
    host.put(f"{FOLDER}/host.toml", 'version = 1\n[bindings]\nngnix = "web"\n')
    result = run("apply", str(host.real(FOLDER)))
    assert (result.code, "did you mean nginx.service?" in result.err) == (1, True)


@pytest.mark.parametrize(
    "words",
    ["top -n 1 --unit", "top -n 1 --cgroup", "stats --cgroup", "unbind --cgroup"],
)
def test_a_stopped_unit_and_a_wrong_one(run: Run, host: FakeTree, words: str) -> None:
    """A stopped unit and a wrong name are distinguished wherever a unit names a cgroup."""
    for given in ("nginx", "nginx.service"):
        stopped = run(*words.split(), given)
        assert (
            stopped.code,
            "nginx.service does not run now, so it has no cgroup" in stopped.err,
        ) == (2, True)
        assert "systemctl start nginx.service" in stopped.err
    wrong = run(*words.split(), "ngnix")
    assert (wrong.code, "did you mean nginx.service?" in wrong.err) == (2, True)
    template = run(*words.split(), "worker@.service")
    assert (template.code, "worker@1.service" in template.err) == (2, True)
    path = run(*words.split(), "/system.slice/nginx.service")
    assert (path.code, "give a directory below" in path.err) == (2, True)


def test_a_stopped_unit_in_place_of_a_process(run: Run, host: FakeTree) -> None:
    """Where a process is given by its service, a stopped service is not called unknown."""
    stopped, wrong = run("map", "nginx"), run("map", "ngnix")
    assert (stopped.code, "nginx.service does not run now" in stopped.err) == (2, True)
    assert (wrong.code, "no process and no service 'ngnix'" in wrong.err) == (2, True)


def test_a_host_without_systemd_takes_any_name(run: Run, tree: FakeTree) -> None:
    tree.put(f"{FOLDER}/50-try.toml", PROFILES)
    tree.make_profile("web")
    assert units_of(tree).knows("anything.service")
    assert run("bind", "--unit", "anything", "web").code == 0


def test_what_the_drop_in_of_an_instance_binds(host: FakeTree) -> None:
    """The drop-in of an instance binds the cgroup that the instance starts in, by the id of the
    kernel.
    """
    host.make_cgroup("/system.slice/worker@1.service")
    done = start_service(host, "worker@1")
    assert done.returncode == 0, done.stderr
