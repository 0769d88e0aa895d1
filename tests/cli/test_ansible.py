# SPDX-License-Identifier: GPL-2.0
"""The collection for Ansible, on models of hosts; ./dev puts a new Ansible into the cache."""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path

import pytest

import controller
from controller import PLAYBOOK, kill, recap

from .fakes import CONTROL, SETTABLE, THP, read_named
from .fleet import NEW, Fleet


@pytest.fixture(
    autouse=True,
    params=[
        pytest.param(PLAYBOOK, id="new"),
        pytest.param(Path("/usr/bin/ansible-playbook"), id="Debian", marks=pytest.mark.full),
    ],
)
def ansible(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test with the Ansible of PyPI, and with that of Debian 12."""
    monkeypatch.setattr(controller, "PLAYBOOK", request.param)


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path, 3)


def test_a_manifest_is_kept(tmp_path: Path) -> None:
    """A manifest is kept: check mode predicts the changes, and the second play changes no host."""
    fleet = Fleet(tmp_path, 1)
    before = read_named(fleet.hosts["host0"])
    told = {"mmpolicy_manifests": {"host.toml": NEW}, "mmpolicy_hosts": "mmpolicy"}
    code, out = fleet.play("install", "--check", "--diff", **told)
    assert code == 0, out
    assert read_named(fleet.hosts["host0"]) == before and fleet.kept() == {"host0": "old"}
    assert recap(out)["host0"]["changed"] == 1
    assert '-policy = "never"' in out and '+policy = "fixed"' in out
    foretold = [line for line in out.splitlines() if line[:1] in "+-" and CONTROL in line]
    code, out = fleet.play("install", "--diff", **told)
    assert code == 0, out
    assert [line for line in out.splitlines() if line[:1] in "+-" and CONTROL in line] == foretold
    after = read_named(fleet.hosts["host0"])
    changed = {f"+{CONTROL}/{key}: {after[key]}" for key in after if after[key] != before.get(key)}
    assert {line for line in foretold if line.startswith("+")} == changed and len(changed) == 2
    assert fleet.kept() == {"host0": "new"} and (tmp_path / "host0/reloaded").exists()
    code, out = fleet.play("install", **told)
    assert code == 0 and recap(out)["host0"]["changed"] == 0, out


@pytest.mark.full
def test_a_manifest_that_is_refused_changes_nothing(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, 1)
    before = read_named(fleet.hosts["host0"])
    bad = NEW.replace("max_order = 3", "max_order = 30")
    code, out = fleet.play("install", mmpolicy_manifests={"host.toml": bad})
    assert code == 2 and "max_order" in out and "next: give a number from 0 to 9" in out
    assert read_named(fleet.hosts["host0"]) == before and fleet.kept() == {"host0": "old"}


@pytest.mark.full
def test_rollout(fleet: Fleet) -> None:
    """After a roll-out all hosts have the manifest permanently; a second play sets no lease, and
    changes no host.
    """
    code, out = fleet.rollout(rollout_gates=["true && false || true"])
    assert code == 0, out
    assert set(fleet.policies().values()) == {"fixed"} and fleet.leases() == {"0"}
    assert set(fleet.kept().values()) == {"new"}
    code, out = fleet.rollout(rollout_gates=["false"])
    assert code == 0 and {each["changed"] for each in recap(out).values()} == {0}, out


def test_a_step_goes_back_as_a_whole(fleet: Fleet) -> None:
    """A step goes back as a whole: the first step is kept; one host of the second exits with 8, so
    both its hosts roll back.
    """
    before = read_named(fleet.hosts["host2"])
    gate = "[ {{ inventory_hostname }} != host1 ] || exit 8"
    code, out = fleet.rollout(rollout_gates=[gate])
    assert code == 2, out
    assert "The step has gone back: host1 has not passed: non-zero return code (exit 8)" in out
    assert fleet.policies() == {"host0": "fixed", "host1": "never", "host2": "never"}
    assert fleet.kept() == {"host0": "new", "host1": "old", "host2": "old"}
    assert fleet.leases() == {"0"} and read_named(fleet.hosts["host2"]) == before


@pytest.mark.full
def test_a_lost_host_stops_its_step(fleet: Fleet) -> None:
    """If a host is lost, the others of its step roll back at once, and the lost one by its lease,
    which is not renewed.
    """
    gate = "[ {{ inventory_hostname }} != host1 ] || touch " + str(fleet.folder / "host1/lost")
    code, out = fleet.rollout(rollout_gates=[gate], rollout_hold=2, rollout_period=1)
    assert code == 2, out
    end = "host1 only when the lease ends: host1 has not passed: it is lost"
    assert f"The step has gone back, {end}" in out, out
    assert fleet.policies() == {"host0": "fixed", "host1": "fixed", "host2": "never"}
    assert fleet.kept()["host1"] == "old"
    assert fleet.hosts["host1"].read(f"{CONTROL}/lease_ms") == "600000"
    # Its lease expires, it can be reached again, and the next roll-out begins with its old
    # manifest.
    fleet.hosts["host1"].expire()
    fleet.hosts["host1"].remove("/lost")
    code, out = fleet.rollout()
    assert code == 0 and set(fleet.policies().values()) == {"fixed"}, out
    assert set(fleet.kept().values()) == {"new"} and fleet.leases() == {"0"}


@pytest.mark.full
def test_what_somebody_has_set_is_not_lost(fleet: Fleet) -> None:
    """A host that differs from its manifests is refused before any change."""
    fleet.command("host0", "set", "compact", "budget")
    before = read_named(fleet.hosts["host0"])
    code, out = fleet.rollout()
    assert code == 2 and "this host is not as" in out and "compact/policy" in out
    assert read_named(fleet.hosts["host0"]) == before and fleet.policies()["host1"] == "never"


@pytest.mark.full
def test_a_reset_stops_the_step(fleet: Fleet) -> None:
    """If an administrator resets a host, the others of its step roll back."""
    brake = json.loads((fleet.folder / "hosts.json").read_text())
    command = brake["mmpolicy"]["hosts"]["host2"]["mmpolicy_command"]
    gate = f"[ {{{{ inventory_hostname }}}} != host2 ] || {' '.join(command)} reset"
    code, out = fleet.rollout(rollout_gates=[gate], rollout_hold=2, rollout_period=1)
    assert code == 2 and "host2 has not passed" in out, out
    assert fleet.policies()["host1"] == "never" and fleet.kept()["host2"] == "old"


@pytest.mark.parametrize("moments", [1, pytest.param(20, marks=pytest.mark.full)])
def test_a_controller_that_dies(tmp_path: Path, moments: int) -> None:
    """If the controller dies, each host has a step that passed or its old manifest; or its lease
    ends the step.
    """
    dice = random.Random(33)
    for number in range(moments):
        folder = tmp_path / str(number)
        folder.mkdir()
        fleet = Fleet(folder, 2)
        process = fleet.start(
            "rollout", mmpolicy_manifests={"host.toml": NEW}, rollout_period=0, rollout_hold=0
        )
        wait_for_a_moment(fleet, dice)
        kill(process)
        for name, tree in fleet.hosts.items():
            policy, kept = fleet.policies()[name], fleet.kept()[name]
            if tree.read(f"{CONTROL}/lease_ms") == "0":
                assert (policy, kept) in {("never", "old"), ("fixed", "new")}, (number, name)
            else:
                tree.expire()  # to stock, whatever manifest it has
        code, out = fleet.play(
            "rollout", mmpolicy_manifests={"host.toml": NEW}, rollout_period=0, rollout_hold=0
        )
        assert code == 0 and set(fleet.kept().values()) == {"new"}, out


def wait_for_a_moment(fleet: Fleet, dice: random.Random) -> None:
    """Wait for a number of changes, so that the speed of the machine does not matter."""
    journal = [tree.real("/var/lib/mmpolicy/journal.jsonl") for tree in fleet.hosts.values()]
    start = sum(path.stat().st_size for path in journal)
    events, seen, end = dice.randrange(12), start, time.monotonic() + 120
    while events and time.monotonic() < end:
        now = sum(path.stat().st_size for path in journal)
        events -= now != seen
        seen = now
        if all(kept == "new" for kept in fleet.kept().values()):
            break
        time.sleep(0.005)


ARMS = ["--treatment", "hugepages-64kB/enabled=always"]
SHORT = [
    "--aa-pairs",
    "0",
    "--pairs",
    "6",
    "--block",
    "0.8",
    "--washout",
    "0.2",
    "--interval",
    "0.2",
]
SIZE = f"{THP}/hugepages-64kB/enabled"
TELL = "grep -q '[[]always' $ROOT{} && echo $(({} + RANDOM % 3)) || echo $((100 + RANDOM % 3))\n"


@pytest.mark.full
def test_an_experiment(tmp_path: Path) -> None:
    """In an experiment, hosts are drawn from each stratum, run detached, and are pooled; a
    regression fails.
    """
    fleet = Fleet(tmp_path, 5)
    for number in range(5):
        fleet.vary(f"host{number}", kind="large" if number < 2 else "small")
    for effect, code in ((60, 0), (100, 7), (160, 8)):
        script = fleet.folder / f"tell{effect}"
        script.write_text(TELL.format(SIZE, effect))
        metric = f"m=cmd:bash {script} lower"
        exit_code, out = fleet.play(
            "experiment", experiment_name=f"e{effect}", experiment_stratum="kind",
            experiment_hosts=2, experiment_folder=str(tmp_path), experiment_period=1,
            experiment_options=[*ARMS, *SHORT, "--metric", metric],
            experiment_pool_command=[sys.executable, "-m", "mmpolicy"],
        )  # fmt: skip
        assert exit_code == (2 if code == 8 else 0), out
        files = sorted(path.name for path in (tmp_path / f"e{effect}").iterdir())
        assert len(files) == 4 and {"host0.jsonl", "host1.jsonl"} < set(files)
        words = {0: "verdict: better", 7: "verdict: inconclusive", 8: "verdict: worse"}
        assert words[code] in out, out
        assert {tree.read(SIZE) for tree in fleet.hosts.values()} == {SETTABLE[SIZE]}
