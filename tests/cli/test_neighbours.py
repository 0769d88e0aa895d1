# SPDX-License-Identifier: GPL-2.0
"""A running experiment, and concurrent changes of settings."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mmpolicy.control.experiment import LOCK

from .ab_world import FIXED, SWITCHBACK, World
from .fakes import CONTROL, FakeTree, Result, Run, read_named

MANIFEST = 'version = 1\n[profiles.default.anon_order]\npolicy = "never"\n'
ARM = ["--profile", "ab-treatment"]
ENDS = [["apply", "FILE"], ["lease", "0"], ["set", "anon_order", "never", *ARM],
        ["profile", "delete", "ab-treatment"], ["unload"]]  # fmt: skip


@pytest.fixture
def clock(tree: FakeTree) -> World:
    """Return time in which scheduled events happen."""
    tree.put("/host.toml", MANIFEST)
    return World(tree)


def words_of(tree: FakeTree, words: list[str]) -> list[str]:
    """Return the words of a change."""
    return [str(tree.real("/host.toml")) if word == "FILE" else word for word in words]


@pytest.mark.parametrize("words", ENDS, ids=lambda words: words[0])
def test_what_would_end_it_is_refused(
    ab: Run, run: Run, tree: FakeTree, clock: World, words: list[str]
) -> None:
    """A change that would end a run is refused with an exit code of its own, and the run goes on to
    its end.
    """
    found = []
    clock.at = [(30.0, lambda: found.append(run(*words_of(tree, words))))]
    assert ab(*SWITCHBACK, *FIXED).code == 0
    (result,) = found
    assert (result.code, "this change would end a running experiment: ab run" in result.err) == (
        9, True
    )  # fmt: skip
    assert "--force ends it" in result.err


def test_what_does_not_concern_it_is_done(ab: Run, run: Run, tree: FakeTree, clock: World) -> None:
    found = []
    other = ["set", "anon_order", "min_available_percent=33"]
    clock.at = [(30.0, lambda: found.append(run(*other).code))]
    clock.at += [(34.0, lambda: found.append(run("set", "anon_order", "fixed", *other[2:]).code))]
    assert ab(*SWITCHBACK, *FIXED, "--control", "stock").code == 0
    assert found == [0, 0]
    assert read_named(tree)["profiles/default/anon_order/min_available_percent"] == "33"


def test_only_what_is_its_own_is_kept_from_others(run: Run, tree: FakeTree) -> None:
    """A run keeps only its own settings from others: one without profiles, such as on knobs of the
    kernel, protects none.
    """
    with tree.locked(LOCK, "ab run, pid 99999999"):
        assert run("lease", "8").code == 0
        for name in ("ab-control", "ab-treatment"):
            tree.make_profile(name)
        assert run("set", "anon_order", "never").code == 0
        assert run("lease", "9").code == 9
        assert tree.read(f"{CONTROL}/lease_ms") == "8000"
    assert run("lease", "9").code == 0


def test_a_run_is_no_drift_and_is_told(ab: Run, run: Run, tree: FakeTree, clock: World) -> None:
    found: list[Result] = []
    clock.at = [(30.0, lambda: found.extend(run(*words) for words in (["verify"], ["status"])))]
    assert run("apply", str(tree.real("/host.toml"))).code == 0
    assert ab(*SWITCHBACK, *FIXED).code == 0
    verified, status = found
    assert (verified.code, verified.out[:12]) == (0, "the state is")
    assert "experiment: ab run, pid " in status.out and "until about 20" in status.out
    tree.write(f"{CONTROL}/experiment/percent", "7")  # by hand, without a run
    tree.put("/host.toml", f"{MANIFEST}[experiment]\npercent = 50\n")
    assert run("verify", str(tree.real("/host.toml"))).code == 6


def test_force_ends_it_and_it_goes_back_first(
    run: Run, tree: FakeTree, tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    """The run is told to end, and the change is made once the state is restored."""
    tree.put("/proc/vmstat", "pgfault 0")
    tree.put("/host.toml", MANIFEST)
    before = read_named(tree)
    command = [sys.executable, "-c", REAL, str(tree.root), "ab", "run", "--design", "switchback"]
    command += [
        "--metric",
        "vmstat.pgfault/s",
        "--block",
        "0.3",
        "--washout",
        "0.1",
        "--aa-pairs",
        "0",
    ]
    command += ["--interval", "0.1", "--pairs", "500", "--treatment", "anon_order=fixed"]
    tests = str(Path(__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{tests}"}
    process = subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=env
    )
    wait_until(lambda: tree.read(f"{CONTROL}/experiment/enabled") == "1")
    assert run("apply", str(tree.real("/host.toml"))).code == 9
    assert run("apply", "--force", str(tree.real("/host.toml"))).code == 0
    assert "interrupted: by SIGTERM; the former state was restored" in process.communicate()[1]
    assert process.returncode == 143  # 128 + SIGTERM
    policy = "profiles/default/anon_order/policy"
    assert read_named(tree) == before | {policy: "never"}
    assert not tree.holder(LOCK)


# A real process on the model of the kernel.
REAL = """
import sys
from pathlib import Path
from mmpolicy.cli import main
from mmpolicy.host.machine import Host
from cli.fakes import FakeTree
main(sys.argv[2:], prog_name="mmpolicy", obj=Host(FakeTree(Path(sys.argv[1]))))
"""
