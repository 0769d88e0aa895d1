# SPDX-License-Identifier: GPL-2.0
"""Pods with containerd (two releases), with runc and crun, and with the NRI plugin of
deploy/kubernetes.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from lab.machine import cache_dir
from lab.programs import must, workload

from .conftest import Machines

SECONDS = 60.0
KEY = "profile.mmpolicy.dev"
PAGES = 256
WORDS = f"map {PAGES} touch 0 {PAGES} folios 0 {PAGES} wait"
ORDERS = {"": 0, "small": 2, "large": 4}
# For each kind of pod: its annotations, the profile that they request for the first container, and
# the profile for the others ("": none).
WAYS = (
    ({f"{KEY}/container.c0": "small", f"{KEY}/pod": "large"}, "small", "large"),
    ({f"{KEY}/container.c0": "large", "example.org/pod": "small"}, "large", ""),
    ({f"{KEY}/pod": "small", KEY: "large"}, "small", "small"),
    ({KEY: "large"}, "large", "large"),
)


def pods(count: int, containers: int) -> dict[str, Any]:
    """Return pods by name. The pods request profiles in different ways, one of WAYS for each."""
    found = {}
    for number in range(count):
        annotations, first, others = WAYS[number % len(WAYS)]
        profiles = {"c0": first} | {f"c{each}": others for each in range(1, containers)}
        found[f"pod{number}"] = {"annotations": annotations, "containers": profiles}
    return found


def expected(profile: str, plugin: str, found: dict[int, int]) -> bool:
    """Return whether the program of a container had the folios of its profile from its first
    instruction on.

    plugin: the state of mmpolicy's NRI plugin at the start of the container. Without it ("gone"),
    the profile has no effect. If it was killed during the start ("killed"), the next plugin may
    have bound the container in between.
    """
    order = 0 if plugin == "gone" else ORDERS[profile]
    if plugin == "killed":
        return found.keys() <= {0, order} and sum(found.values()) == PAGES
    return found == {order: PAGES}


@pytest.mark.flavor("cloud")
@pytest.mark.amd64("runs containerd and the plugin of this machine")
@pytest.mark.parametrize(
    ("count", "containers", "containerd", "runtime"),
    [
        pytest.param(1, 3, "containerd-1", "runc", marks=pytest.mark.long),
        pytest.param(1, 3, "containerd-1", "crun", marks=pytest.mark.full),
        pytest.param(1, 3, "containerd-2", "runc", marks=pytest.mark.full),
        pytest.param(10, 10, "containerd-1", "runc", marks=pytest.mark.full),
        pytest.param(10, 10, "containerd-2", "runc", marks=pytest.mark.full),
    ],
)
def test_pods(
    machines: Machines, count: int, containers: int, containerd: str, runtime: str
) -> None:
    """Each container is bound to the profile that its pod requests before its first instruction,
    and no binding is lost.

    Each container is started, ended and started again; half of them are killed. For each pod,
    mmpolicy's NRI plugin is killed twice: while it is idle, and while a container starts. Two
    manifests of the host are applied in turn, while a plugin runs and while none does. The runtime
    must accept all calls.
    """
    machines.end()
    guest = machines.get("cloud", mem="2G")
    must(guest, "modprobe mmpolicy")
    cache = cache_dir()
    argv = [Path(__file__).with_name("containers.py"), cache / containerd, runtime]
    argv += [workload("ops"), cache / "go/cri", cache / "go/mmpolicy-nri"]
    asked = pods(count, containers)
    task = shlex.quote(json.dumps({"pods": asked, "words": WORDS.split(), "seed": count}))
    command = f"echo {task} | /usr/bin/python3 {shlex.join(map(str, argv))}"
    done = json.loads(must(guest, command, timeout=7200))
    wrong = []
    for start in done["starts"]:
        profile = asked[start["pod"]]["containers"][start["name"]]
        found = {int(order): n for order, n in start["folios"].items() if order != "none"}
        wrong += [] if expected(profile, start["plugin"], found) else [start]
    assert wrong == []
    assert len(done["starts"]) == count * (2 * containers + 1)
    assert done["kills"] == 2 * count
    assert done["lost"] == done["left"] == []
