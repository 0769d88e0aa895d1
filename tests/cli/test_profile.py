# SPDX-License-Identifier: GPL-2.0
"""`profile`, `bind`, `unbind` and `lease`."""

from __future__ import annotations

import os

import pytest

from .fakes import CONTROL, MOST_PROFILES, FakeTree, Run

WEB = f"{CONTROL}/profiles/web"


@pytest.fixture
def web(run: Run, tree: FakeTree) -> str:
    """Make a profile and a cgroup for it; return the cgroup's id."""
    assert run("profile", "create", "web").code == 0
    return tree.make_cgroup("/app.slice/web.service")


def test_create(run: Run, tree: FakeTree) -> None:
    run("set", "anon_order", "fixed", "max_order=6")
    assert run("profile", "create", "web", "--from", "default").code == 0
    assert "[fixed]" in tree.read(f"{WEB}/anon_order/policy")
    assert tree.read(f"{WEB}/anon_order/fixed/max_order") == "6"
    assert run("profile", "create", "plain").out.splitlines()[1].split() == [
        "profile", "plain", "-", "->", "exists",
    ]  # fmt: skip
    again = run("profile", "create", "web")
    assert (again.code, "the profile 'web' exists already" in again.err) == (1, True)
    bad = run("profile", "create", "Web!")
    assert (bad.code, "not a valid name of a profile" in bad.err) == (5, True)
    assert "next: use at most 31 characters of a-z, 0-9, _ and -" in bad.err


def test_create_from_default_writes_what_was_set(run: Run, tree: FakeTree) -> None:
    """`profile create` from default writes what was set, except points of the whole host, which
    only default has.
    """
    run("set", "anon_order", "max_copy_order=2")
    tree.writes.clear()
    assert run("profile", "create", "web", "--from", "default").code == 0
    assert tree.writes == [
        (f"{CONTROL}/profiles/create", "web"),
        (f"{WEB}/anon_order/max_copy_order", "2"),
    ]
    assert not tree.exists(f"{WEB}/bulk")


def test_as_many_profiles_as_the_kernel_takes(run: Run, tree: FakeTree) -> None:
    for number in range(MOST_PROFILES - 1):  # and default
        tree.real(f"{CONTROL}/profiles/{number}").mkdir()
    result = run("profile", "create", "web")
    assert (result.code, "ENOSPC" in result.err) == (1, True)


def test_create_from_a_profile_is_all_or_nothing(run: Run, tree: FakeTree) -> None:
    tree.refusals[f"{WEB}/compact/policy"] = 5
    assert run("profile", "create", "web", "--from", "default").code == 0  # stock needs no write
    run("profile", "delete", "web")
    run("set", "anon_order", "fixed", "max_order=6")
    tree.refusals[f"{WEB}/anon_order/policy"] = 5
    assert run("profile", "create", "web", "--from", "default").code == 1
    assert not tree.exists(WEB)


def test_list_and_show(run: Run, tree: FakeTree, web: str) -> None:
    tree.make_process(10)
    run("set", "anon_order", "never", "--profile", "web")
    run("bind", "--cgroup", "web", "web")
    run("bind", "--pid", "10", "web")
    rows = [line.split() for line in run("profile", "list").out.splitlines()]
    assert ["web", "1", "1", "anon_order=never"] in rows
    assert ["default", "0", "0", "stock"] in rows
    listed = run("profile", "list", "--json").json["profiles"]["web"]
    assert (listed["cgroups"], listed["pids"]) == (["/app.slice/web.service"], [10])
    shown = [line.split() for line in run("profile", "show", "web").out.splitlines()]
    assert ["anon_order/policy", "never"] in shown
    assert ["cgroup", "/app.slice/web.service"] in shown
    assert run("profile", "show", "web", "--json").json["pids"] == [10]
    assert "did you mean web?" in run("profile", "show", "webb").err


def test_delete_of_a_bound_profile_is_refused(run: Run, tree: FakeTree, web: str) -> None:
    run("bind", "--cgroup", "web", "web")
    writes = list(tree.writes)
    result = run("profile", "delete", "web")
    assert (result.code, tree.writes) == (5, writes)
    assert result.err.splitlines() == [
        "mmpolicy: profile 'web' is bound: --cgroup /app.slice/web.service",
        "next: mmpolicy unbind --cgroup /app.slice/web.service",
    ]
    run("unbind", "--cgroup", "web")
    assert run("profile", "delete", "web").code == 0
    assert not tree.exists(WEB)


def test_delete_of_others_is_refused(run: Run, tree: FakeTree, web: str) -> None:
    tree.write(f"{CONTROL}/experiment/treatment", "web")
    arm = run("profile", "delete", "web")
    assert (arm.code, "is the treatment of the running experiment" in arm.err) == (5, True)
    assert run("profile", "delete", "default").code == 5
    assert run("profile", "delete", "nobody").code == 2


@pytest.mark.parametrize(
    "given", ["/sys/fs/cgroup/app.slice/web.service/", "/app.slice/web.service",
              "app.slice/web.service", "web.service", "web"]
)  # fmt: skip
def test_bind_takes_a_cgroup_as_operators_name_it(
    run: Run, tree: FakeTree, web: str, given: str
) -> None:
    assert run("bind", "--cgroup", given, "web").code == 0
    assert tree.read(f"{WEB}/cgroups") == web
    ended = run("unbind", "--cgroup", given)
    assert (ended.code, "web" in ended.out) == (0, True)
    assert tree.read(f"{WEB}/cgroups") == ""


def test_bind_moves(run: Run, tree: FakeTree, web: str) -> None:
    run("profile", "create", "other")
    run("bind", "--cgroup", "web", "web")
    out = run("bind", "--cgroup", "web", "other").out
    assert out.splitlines()[1].split() == [
        "cgroup", "/app.slice/web.service", "web", "->", "other",
    ]  # fmt: skip
    assert tree.read(f"{WEB}/cgroups") == ""


def test_bind_of_the_root(run: Run, tree: FakeTree, web: str) -> None:
    for given in ("/", "/sys/fs/cgroup"):
        assert run("bind", "--cgroup", given, "web").code == 0
    assert tree.read(f"{WEB}/cgroups") == str(tree.inode("/sys/fs/cgroup"))


def test_bind_refuses(run: Run, tree: FakeTree, web: str) -> None:
    tree.make_cgroup("/user.slice/web.service")
    writes = list(tree.writes)
    both = run("bind", "--cgroup", "web", "web")
    assert (both.code, "several cgroups have the name" in both.err) == (2, True)
    assert "no cgroup '/nowhere'" in run("bind", "--cgroup", "/nowhere", "web").err
    assert "there is no process 4711" in run("bind", "--pid", "4711", "web").err
    assert run("bind", "web").code == 2
    assert run("bind", "--pid", "1", "--cgroup", "/", "web").code == 2
    assert run("bind", "--cgroup", "/app.slice", "nobody").code == 2
    unbound = run("unbind", "--cgroup", "/app.slice")
    assert (unbound.code, "is not bound to a profile" in unbound.err) == (2, True)
    assert tree.writes == writes


def test_without_cgroup_v2(run: Run, tree: FakeTree, web: str) -> None:
    tree.mount("cgroup /sys/fs/cgroup/memory rw,memory")
    result = run("bind", "--cgroup", "web", "web")
    assert (result.code, "next: boot with systemd.unified_cgroup" in result.err) == (3, True)
    tree.mount("tmpfs /run")
    result = run("bind", "--cgroup", "web", "web")
    assert (result.code, "next: mount -t cgroup2" in result.err) == (3, True)


@pytest.mark.parametrize("words", [["status"], ["profile", "list"], ["export"], ["diff", "-"]])
def test_names_of_cgroups_are_not_worth_an_error(
    run: Run, tree: FakeTree, web: str, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    """If cgroup v2 is not mounted, bindings are shown by number, without an error."""
    monkeypatch.setattr("mmpolicy.control.manifest.read_given", lambda _name: "version = 1\n")
    run("bind", "--cgroup", "web", "web")
    tree.mount("cgroup /sys/fs/cgroup/memory rw,memory")
    result = run(*words)
    assert (result.code, result.err) == (0, "")


def test_a_cgroup_whose_name_is_no_text(run: Run, tree: FakeTree, web: str) -> None:
    folder = os.fsencode(tree.real("/sys/fs/cgroup")) + b"/\xff"
    os.mkdir(folder)  # noqa: PTH102 (pathlib knows no bytes)
    number = str(os.stat(folder).st_ino)  # noqa: PTH116
    tree.put(f"{WEB}/cgroups", number)
    for words in (["status"], ["export"], ["profile", "show", "web"]):
        assert run(*words).code == 0
    assert r"/\xff" in run("status").out
    assert run("unbind", "--cgroup", r"/\xff").code == 0
    assert run("bind", "--cgroup", r"\xff", "web").code == 0
    assert tree.read(f"{WEB}/cgroups") == number


def test_bind_dry_run(run: Run, tree: FakeTree, web: str) -> None:
    out = run("bind", "--cgroup", "web", "web", "--dry-run").out
    assert out == f"{WEB}/cgroups <- {web}  (- -> web)\n"
    assert tree.read(f"{WEB}/cgroups") == ""


def test_lease(run: Run, tree: FakeTree) -> None:
    assert run("lease").out == "no lease\nstate: stock\n"
    assert run("lease", "90").code == 0
    tree.put(f"{CONTROL}/lease_left_ms", "4500")
    assert run("lease").out == "lease: 90 s, 4.5 s left\nstate: stock\n"
    assert run("lease", "--json").json["lease_left_ms"] == 4500
    assert run("lease", "0.01").code == 5
    assert run("lease", "0", "--dry-run").out == f"{CONTROL}/lease_ms <- 0  (90000 -> 0)\n"
    assert (
        run("lease", "10m", "--dry-run").out == f"{CONTROL}/lease_ms <- 600000  (90000 -> 600000)\n"
    )
    assert run("lease", "soon").code == 2
    assert run("lease", "0").code == 0
    tree.remove(f"{CONTROL}/lease_ms")
    assert run("lease", "1").code == 3


@pytest.mark.parametrize("verb", [("bind", "default"), ("unbind",)])
def test_one_thing_is_bound_at_a_time(run: Run, tree: FakeTree, verb: tuple[str, ...]) -> None:
    tree.make_process(41)
    for words in ((), ("--pid", "41", "--cgroup", "/"), ("--cgroup", "/", "--unit", "a")):
        result = run(*verb, *words)
        assert (result.code, "give one of --cgroup PATH" in result.err) == (2, True)
    assert tree.writes == []
