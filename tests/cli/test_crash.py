# SPDX-License-Identifier: GPL-2.0
"""A change that is interrupted at any of its writes: complete, undone, or reported."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import click
import click.testing
import pytest

from mmpolicy.cli import main
from mmpolicy.host.machine import Host

from .fakes import CONTROL, DEFAULT, FakeTree, Run, read_named

JOURNAL = "/var/lib/mmpolicy/journal.jsonl"
UNIT = "/etc/mmpolicy/90-nginx.service.toml"
MANIFEST = """\
version = 1
lease_ms = 60000
[profiles.default.anon_order]
policy = "adaptive"
[profiles.default.anon_order.adaptive]
max_order = 3
[profiles.db.anon_order]
policy = "fixed"
[profiles.db.anon_order.fixed]
max_order = 5
[bindings]
"/system.slice/nginx.service" = "db"
[experiment]
percent = 20
"""
APPLY, SET = ["apply", "FILE"], ["set", "anon_order", "fixed", "max_order=6"]
BIND, CREATE = ["bind", "--unit", "nginx", "web"], ["profile", "create", "new", "--from", "web"]
REVERT = ["revert", "--to", "2"]
CHANGES = [APPLY, SET, BIND, CREATE, REVERT]


@pytest.fixture
def host(tree: FakeTree, run: Run) -> FakeTree:
    """Return a host with a profile, a service, a change, and a manifest."""
    tree.put("/etc/mmpolicy/host.toml", "version = 1\n[profiles.web]\n")
    tree.put("/given.toml", MANIFEST)
    tree.make_cgroup("/system.slice/nginx.service")
    run("profile", "create", "web")
    run("set", "anon_order", "fixed", "max_order=7", "min_available_percent=3", "--profile", "web")
    run("set", "anon_order", "adaptive", "max_order=8", "min_folios=9", "--profile", "web")
    return tree


def words_of(tree: FakeTree, change: list[str]) -> list[str]:
    """Return the words of a change."""
    return [str(tree.real("/given.toml")) if word == "FILE" else word for word in change]


def at_write(tree: FakeTree, number: int, after: bool, do: Callable[[], None]) -> None:
    """Let a function run before or after a write, of sysfs or of a file that binds a service."""
    left = [number]

    def counted(plain: Callable[..., None], *args: object) -> None:
        left[0] -= 1
        if not left[0] and not after:
            do()
        plain(*args)
        if not left[0] and after:
            do()

    store, keep = tree.store, tree.keep
    tree.store = lambda *args: counted(store, *args)  # type: ignore[method-assign]

    def kept(path: str, *args: str | int) -> None:
        if path.startswith("/etc/"):
            counted(keep, path, *args)
        else:
            keep(path, *args)  # type: ignore[arg-type]

    tree.keep = kept  # type: ignore[assignment]


def plainly(tree: FakeTree) -> None:
    """Stop injecting events."""
    for name in ("store", "keep"):
        vars(tree).pop(name, None)


def whole(tree: FakeTree) -> dict[str, str]:
    """Return the state, and the file that binds the service."""
    found = read_named(tree)
    return found | {UNIT: tree.read(UNIT) if tree.exists(UNIT) else ""}


def count_writes(tree: FakeTree, run: Run, change: list[str]) -> int:
    """Return the number of writes of a change, which is undone."""
    count = [0]

    def one() -> None:
        count[0] += 1

    for number in range(1, 100):
        at_write(tree, number, False, one)
        run(*words_of(tree, change))
        plainly(tree)
        run("revert")
        if count[0] < number:
            return count[0]
    raise AssertionError


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change[0])
def test_a_signal_at_each_write(
    run: Run, host: FakeTree, change: list[str], after: bool, number: int
) -> None:
    """After a signal at each write, the state is the old one or the requested one, and the journal
    records which.
    """
    before, ends = whole(host), set()
    assert run(*words_of(host, change), "--dry-run").code == 0
    for nth in range(1, 30):
        made: list[int] = []

        def kill(made: list[int] = made) -> None:
            made.append(1)
            os.kill(os.getpid(), number)

        at_write(host, nth, after, kill)
        known = host.read(JOURNAL).count('"open": false')
        result = run(*words_of(host, change))
        plainly(host)
        if not made:
            break
        done = result.code == 0
        ends.add(done)
        if not done:
            assert result.code == 128 + number
            assert f"the command was interrupted by {signal.Signals(number).name}" in result.err
            assert whole(host) == before
        assert host.read(JOURNAL).count('"open": false') == known + 1
        if done:
            assert run("revert").code == 0
            assert whole(host) == before
        assert "was interrupted" not in run("status").out
    assert ends == {False, True}
    assert not host.exists(f"{UNIT}.new")


def kill_at(tree: FakeTree, words: list[str], number: int, after: bool) -> bool:
    """Run a change in a process of its own, which is killed at a write; return whether it was."""
    pid = os.fork()
    if not pid:
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 1)
        os.dup2(null, 2)
        at_write(tree, number, after, lambda: os.kill(os.getpid(), signal.SIGKILL))
        try:
            main(words, prog_name="mmpolicy", obj=Host(tree), standalone_mode=False)
        except (click.ClickException, SystemExit):
            pass
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change[0])
def test_sigkill_at_each_write(
    run: Run, host: FakeTree, change: list[str], after: bool, log: list[str]
) -> None:
    """After SIGKILL at each write, status, doctor and the next change name the remaining work, and
    revert ends it.
    """
    before, killed = whole(host), 0
    for nth in range(1, 30):
        if not kill_at(host, words_of(host, change), nth, after):
            break
        killed += 1
        for words in (["status"], ["doctor"]):
            assert f"'{change[0]}" in (told := run(*words).out)
            assert "was interrupted, so a part of it may be in force" in told
            assert "mmpolicy revert undoes that part" in told
        assert "this change was interrupted; it should have made:" in run("log").out
        result = run("revert")
        assert (result.code, "was interrupted" in result.err) == (0, True), result.err
        assert whole(host) == before, nth
        assert "was interrupted" not in run("status").out
        assert run("revert", "--dry-run").code == 0
    assert killed >= 2


def test_the_next_change_tells_and_takes_it_as_it_is(run: Run, host: FakeTree) -> None:
    before = whole(host)
    assert kill_at(host, words_of(host, APPLY), 4, True)
    half = whole(host)
    number = [each["number"] for each in run("log", "--json").json["changes"]][-1]
    result = run("set", "anon_order", "min_available_percent=42")
    assert (result.code, f"change {number}, 'apply'" in result.err) == (0, True)
    assert run("revert").code == 0
    assert whole(host) == half
    assert run("revert", "--to", str(number - 1)).code == 0
    assert whole(host) == before


def test_what_is_gone_with_the_boot_is_not_told(run: Run, host: FakeTree) -> None:
    assert kill_at(host, words_of(host, APPLY), 4, True)
    run("reset")
    assert "was interrupted" not in run("status").out
    assert kill_at(host, words_of(host, APPLY), 4, True)
    host.put("/proc/sys/kernel/random/boot_id", "another")
    assert "was interrupted" not in run("status").out


def test_a_change_that_is_under_way_is_not_cut_off(run: Run, host: FakeTree) -> None:
    told = []
    at_write(host, 2, False, lambda: told.append(run("status").out))
    assert run(*SET).code == 0
    assert told and "was interrupted" not in told[0]


def test_what_could_not_be_put_back_is_told(run: Run, host: FakeTree) -> None:
    host.refusals[f"{DEFAULT}/anon_order/policy"] = 22
    store = host.store

    def broken(path: str, value: str) -> None:
        if value == "4" and path.endswith("fixed/max_order"):
            raise OSError(5, "no way back")
        store(path, value)

    host.store = broken  # type: ignore[method-assign]
    assert "undoing the earlier writes of this command failed" in run(*SET).err
    assert "so a part of it may be in force" in run("status").out


# A service, and a system without systemd


def test_bind_unit_and_revert_are_opposites(run: Run, host: FakeTree, reloads: list[str]) -> None:
    before = whole(host)
    for words, units in ((BIND, 1), (["unbind", "--unit", "nginx"], 0)):
        assert run(*words).code == 0
        changed = whole(host)
        assert bool(changed[UNIT]) == bool(units)
        assert run("revert").code == 0
        assert bool(whole(host)[UNIT]) != bool(units)
        assert run("revert").code == 0
        assert whole(host) == changed
    assert whole(host) == before
    assert len(reloads) == 6


def test_without_systemd_nothing_of_it_is_left(
    run: Run, host: FakeTree, reloads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = whole(host)
    monkeypatch.setenv("PATH", str(host.real("/nowhere")))
    from mmpolicy.host.machine import reload_units

    app = Host(host, reload=reload_units)
    assert click.testing.CliRunner().invoke(main, BIND, obj=app).exit_code == 1
    assert whole(host) == before
    assert Path(host.real(CONTROL)).is_dir()
