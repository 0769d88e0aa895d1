# SPDX-License-Identifier: GPL-2.0
"""The console session of the command's document; that of the tutorial needs packages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.guest import Guest

from .conftest import Machines
from .sessions import replay


@pytest.fixture
def host(guest: Guest, all_machines: Machines) -> Iterator[Guest]:
    """A guest that ends with the session, as its journal is not for others."""
    yield guest
    guest.check()
    all_machines.end()


def test_session(host: Guest, tmp_path: Path) -> None:
    """Each command prints what the document shows."""
    replay(host, "cli", tmp_path)
