# SPDX-License-Identifier: GPL-2.0
"""The console session of docs/cli.md, and the commands of docs/oncall.md.

The session of the tutorial is in test_packages.py and test_boot.py, as it needs packages.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.guest import Guest

from .conftest import Machines
from .sessions import replay
from .tools import ROOT, back_to_boot, must, readme

PAGE = "docs/oncall.md"
SECONDS = 60.0  # rough duration of each test, for the schedule


@pytest.fixture
def host(guest: Guest, all_machines: Machines) -> Iterator[Guest]:
    """Yield a guest that no other test uses, so that the journal of mmpolicy is empty at the
    beginning.
    """
    yield guest
    guest.check()
    all_machines.end()


def test_session(host: Guest, tmp_path: Path) -> None:
    """Each command of docs/cli.md prints the output that the document shows for it."""
    replay(host, "cli", tmp_path)


@pytest.mark.flavor("cloud")
def test_on_call(machines: Machines) -> None:
    """On Debian's own kernel, the commands for on-call engineers show an active policy, and each
    way to end it works.
    """
    guest = machines.get("cloud", mem="2G", cpus=2)
    back_to_boot(guest)
    (looks,), (ways,) = readme("Is it on?", PAGE), readme("Off, now", PAGE)
    must(guest, "modprobe mmpolicy")
    for way in ways:  # each way also removes the profile
        must(guest, "mmpolicy profile create web && mmpolicy set anon_order fixed --profile web")
        seen = must(guest, "\n".join(looks))
        assert seen.startswith("active\n")
        assert f"{ROOT}/profiles/web/anon_order/policy:" in seen and "[fixed]" in seen
        must(guest, way)
        seen = must(guest, "\n".join(looks))
        assert seen.startswith("stock\n") and "[fixed]" not in seen
