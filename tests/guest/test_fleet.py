# SPDX-License-Identifier: GPL-2.0
"""The collection for Ansible on three hosts with systemd, over ssh."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from controller import recap

from .fleet import PACKAGES, Fleet, booted, changed_tasks, host_system, written
from .system import folder_of_root
from .test_packages import LARGE, MANIFEST, SERVICE, SMALL

SECONDS = 400.0

pytestmark = [pytest.mark.flavor("cloud"), pytest.mark.full]


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    """Three hosts with a service, and nothing of ours."""
    with folder_of_root("fleet") as path:
        system = host_system(path)
        system.put("etc/systemd/system/bound.service", SERVICE)
        system.run("systemctl enable bound; systemctl disable redis-server")
        with booted(system) as fleet:
            yield fleet


RESTARTED = """
rm -f /run/bound; systemctl restart bound
for i in $(seq 300); do [ -s /run/bound ] && break; sleep 0.1; done; cat /run/bound
"""
LEFT = "ls -d /var/cache/mmpolicy /etc/mmpolicy /usr/bin/mmpolicy 2>/dev/null || true"


def folios(fleet: Fleet) -> dict[str, dict[str, int]]:
    """What the memory of the service is made of on each host, when it starts again."""
    return {
        name: {order: count for order, count in json.loads(text).items() if order != "none"}
        for name, text in fleet.each(RESTARTED).items()
    }


def test_from_nothing(fleet: Fleet) -> None:
    """One play leads to a bound service, as its check says before; the second changes nothing."""
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
