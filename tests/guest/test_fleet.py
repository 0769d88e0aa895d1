# SPDX-License-Identifier: GPL-2.0
"""The Ansible collection on three hosts with systemd, over ssh: install, roll out, compare."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from bisect import bisect_right
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from controller import kill, recap
from lab.programs import must, workload

from .fleet import INSTALL, PACKAGES, Fleet, booted, changed_tasks, host_system, written
from .system import AMD64, HOST, folder_of_root
from .test_packages import LARGE, MANIFEST, PAGES, SERVICE, SMALL
from .tools import ROOT

SECONDS = 400.0

pytestmark = [pytest.mark.flavor("cloud"), pytest.mark.full, AMD64]

KEPT = "/etc/mmpolicy/web.toml"
NEXT = MANIFEST.replace("max_order = 4", "max_order = 2")
NEXT_FOLIOS = {"2": PAGES}
# Programs of two services, which touch memory again and again and print what it costs. `sparse`
# touches one page in 16, `dense` each page.
LOADS = {"sparse": "every_64k 8", "dense": "forward 8"}
LOAD = (
    "[Service]\nExecStart=sh -c '"
    f"while :; do {HOST}{workload('touch')} {{pattern}} >/run/{{name}}.new; "
    "mv /run/{name}.new /run/{name}; sleep 1; done'\n"
)
WORSE = MANIFEST.replace("max_order = 4", "max_order = 3") + '"sparse.service" = "web"\n'


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    """Yield three hosts with services, on which mmpolicy is not installed yet."""
    with folder_of_root("fleet") as path:
        system = host_system(path)
        services = {name: LOAD.format(name=name, pattern=LOADS[name]) for name in LOADS}
        for name, text in {**services, "bound": SERVICE}.items():
            system.put(f"etc/systemd/system/{name}.service", text)
        system.run("systemctl enable bound; systemctl disable redis-server")
        with booted(system) as fleet:
            yield fleet


RESTARTED = """
rm -f /run/bound; systemctl restart bound
for i in $(seq 300); do [ -s /run/bound ] && break; sleep 0.1; done; cat /run/bound
"""
LEFT = "ls -d /var/cache/mmpolicy /etc/mmpolicy /usr/bin/mmpolicy 2>/dev/null || true"


def folios(fleet: Fleet) -> dict[str, dict[str, int]]:
    """Restart the service `bound` on each host; return the folios that its memory gets, by host."""
    return {
        name: {order: count for order, count in json.loads(text).items() if order != "none"}
        for name, text in fleet.each(RESTARTED).items()
    }


def test_from_nothing(fleet: Fleet) -> None:
    """One Ansible play installs mmpolicy and binds a service. It makes the changes that its check
    mode has predicted, and changes nothing when it runs again.
    """
    play = fleet.controller.play
    told = {"mmpolicy_packages": PACKAGES, "mmpolicy_manifests": {"web.toml": MANIFEST}}
    assert folios(fleet) == dict.fromkeys(fleet.guests, SMALL)
    code, checked = play("install", "--check", "--diff", **told)
    assert code == 0, checked
    assert set(fleet.each(LEFT).values()) == {""}
    code, out = play("install", "--diff", **told)
    assert code == 0, out
    assert changed_tasks(out) == changed_tasks(checked)
    assert written(checked) <= written(out)
    assert folios(fleet) == dict.fromkeys(fleet.guests, LARGE)
    code, out = play("install", **told)
    assert code == 0 and {each["changed"] for each in recap(out).values()} == {0}, out


# From here on, mmpolicy is installed. Each test begins with the manifest MANIFEST in force, and
# also in place for the next boot.
BEGIN = f"""
command -v mmpolicy >/dev/null || {INSTALL}
systemctl stop {" ".join(LOADS)}; systemctl start mmpolicy; mkdir -p /etc/mmpolicy
cat >{KEPT} <<'END'
{MANIFEST}END
systemctl daemon-reload
[ $(cat {ROOT}/state) != expired ] || mmpolicy reset
mmpolicy apply --skip-missing /etc/mmpolicy
"""


@pytest.fixture
def installed(fleet: Fleet) -> Fleet:
    """Return the hosts with MANIFEST in force, whatever earlier tests have changed."""
    fleet.each(BEGIN)
    return fleet


def roll(fleet: Fleet, text: str, lease_s: int, **variables: Any) -> subprocess.Popen[str]:
    """Start an Ansible play that rolls out a manifest, first to one host and then to all; return
    its process.
    """
    times = {"rollout_lease": lease_s, "rollout_period": 2, "rollout_hold": 4}
    told = {"mmpolicy_manifests": {"web.toml": text}, "rollout_steps": [1, "100%"], **times}
    return fleet.controller.start("rollout", **told, **variables)


class Host(NamedTuple):
    """The state of a host after a manifest was rolled out to it."""

    state: str
    lease: str
    kept: str  # the manifest that the next boot applies
    folios: dict[str, int]


NOW = f"cat {ROOT}/state {ROOT}/lease_ms {KEPT}"


def hosts(fleet: Fleet) -> dict[str, Host]:
    """Restart the service on each host; return for each host its state, and the folios that the
    service then gets.
    """
    found = {}
    for name, made_of in folios(fleet).items():
        state, lease, kept = must(fleet.guests[name], NOW).split("\n", 2)
        found[name] = Host(state, lease, kept, made_of)
    return found


# A gate for the roll-out: a script that exits with 8 if the sparse service uses at least twice the
# memory that it writes to. It skips the service's first report, which may be about the time before
# the change.
SAID = r"s/.*\"{}\": \([0-9]*\).*/\1/p"
GATE = f"""
! systemctl -q is-active sparse || {{
    for i in 1 2; do rm -f /run/sparse; until [ -s /run/sparse ]; do sleep 0.1; done; done
    [ $(sed -n '{SAID.format("kb")}' /run/sparse) -lt 1024 ] || exit 8
}}
"""
SET = f"grep -rs . {ROOT}/profiles --include=policy --include=max_order --include=cgroups | sort"
PATIENT_S = 600
TASK = "TASK [mmpolicy.host.rollout : "


def test_a_planted_regression(installed: Fleet) -> None:
    """If a manifest makes a host worse, the host's gates notice this when they first run. The
    roll-out to the hosts of this step is undone; the host of the step before keeps the manifest.
    """
    bad = installed.guests["host2"]
    must(bad, f"systemctl start sparse; {GATE}")
    before = installed.each(f"{SET}; {NOW}")
    process = roll(installed, WORSE, PATIENT_S, rollout_gates=[GATE])
    out, _ = process.communicate()
    assert process.returncode == 2, out
    assert "host2 has not passed: non-zero return code (exit 8)" in out
    assert out.rpartition(f"{TASK}Try the manifests")[2].count(f"{TASK}Look at the gates") == 1, out
    after = installed.each(f"{SET}; {NOW}")
    assert WORSE in after.pop("host0")
    assert after == {name: before[name] for name in after}
    must(bad, GATE)
    assert folios(installed) == {"host0": {"3": PAGES}, "host1": LARGE, "host2": LARGE}


def begins(process: subprocess.Popen[str]) -> Iterator[float]:
    """Yield when each task of a play begins, in seconds after the first task, and at last when the
    play ends.
    """
    assert process.stdout
    start = None
    for line in process.stdout:
        if line.startswith(("TASK [", "PLAY RECAP")):
            now = time.monotonic()
            start = start or now
            yield now - start


@pytest.fixture(scope="module")
def course(fleet: Fleet) -> list[float]:
    """Return when the tasks of a roll-out begin that nothing disturbs, in seconds after
    the first.
    """
    fleet.each(BEGIN)
    process = roll(fleet, NEXT, PATIENT_S)
    found = list(begins(process))
    assert process.wait() == 0
    assert hosts(fleet) == dict.fromkeys(fleet.guests, PASSED)
    return found


PASSED = Host("active", "0", NEXT, NEXT_FOLIOS)
BEFORE = Host("active", "0", MANIFEST, LARGE)
ENDS = [PASSED, BEFORE, *(Host("expired", "0", text, SMALL) for text in (MANIFEST, NEXT))]
# Waits until the processes that Ansible has started on a host have ended; they may outlive its
# connection.
SETTLED = """
while cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -qE '{}'; do sleep 0.2; done
"""
LEASE_ENDS = f"""
[ $(cat {ROOT}/lease_ms) = 0 ] || until [ $(cat {ROOT}/state) = expired ]; do sleep 0.2; done
"""


def settle(fleet: Fleet) -> None:
    """Wait until the processes that Ansible has started on all hosts have ended, and close its
    connections.
    """
    fleet.each(SETTLED.format("pytho[n]3"))
    fleet.disconnect()
    fleet.each(SETTLED.format("pytho[n]3|s[s]hd: root@"))


@pytest.mark.parametrize("seed", range(20))
def test_a_controller_that_dies(installed: Fleet, course: list[float], seed: int) -> None:
    """If Ansible is killed at a random moment of a roll-out, each host has the new manifest, or the
    old one, or goes to stock when its lease ends.
    """
    moment = random.Random(seed).random() * course[-1]
    number = bisect_right(course, moment)
    process = roll(installed, NEXT, round(course[-1] / 2))
    for _ in islice(begins(process), number):
        pass
    time.sleep(moment - course[number - 1])
    kill(process)
    if seed % 2:
        installed.disconnect()
    settle(installed)
    installed.each(LEASE_ENDS, timeout=course[-1] * 4)
    found = hosts(installed)
    print(f"after {number} of {len(course) - 1} tasks: {found}")
    assert all(host in ENDS for host in found.values())
    # The roll-out to the second step's hosts begins only after the host of the first step has
    # passed its gates.
    assert found["host0"] == PASSED or PASSED not in found.values()


FIXED = ["--treatment", "anon_order=fixed,max_order=4"]
SHORT = ["--design", "switchback", "--aa-pairs", "0", "--pairs", "6"]
SHORT += ["--block", "15", "--washout", "5", "--interval", "5"]
FAULTS = f"faults=cmd:sed -n '{SAID.format('faults')}' /run/dense lower"


@pytest.mark.parametrize(("treatment", "verdict"), [(FIXED, "better"), ([], "inconclusive")])
def test_an_experiment(
    installed: Fleet, tmp_path: Path, treatment: list[str], verdict: str
) -> None:
    """Ansible draws hosts that are under load. Each of them runs the experiment on its own, and the
    results of all are pooled. Arms with equal settings show no difference.
    """
    installed.each("systemctl start dense; until [ -s /run/dense ]; do sleep 0.1; done")
    before = installed.each(f"{SET}; {NOW}")
    code, out = installed.controller.play(
        "experiment", experiment_name="faults", experiment_folder=str(tmp_path),
        experiment_hosts=2, experiment_period=20,
        experiment_pool_command=[sys.executable, "-m", "mmpolicy"],
        experiment_options=[*treatment, "--metric", FAULTS, *SHORT],
    )  # fmt: skip
    assert code == 0 and f"verdict: {verdict}" in out, out
    drawn = {path.stem for path in (tmp_path / "faults").iterdir()}
    assert len(drawn) == 2 and drawn < set(installed.guests)
    assert installed.each(f"systemctl is-active -q dense; {SET}; {NOW}") == before
