# SPDX-License-Identifier: GPL-2.0
"""Guests for the tests. Each worker has one at a time; tests with the same needs share it."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from common import new_guest
from vm import Guest, VmError

from . import tools


def pytest_configure(config: pytest.Config) -> None:
    """Say what the markers mean."""
    config.addinivalue_line(
        "markers", "flavor(name, ...): kernels that a test needs; without it, the patched one"
    )
    config.addinivalue_line("markers", "config(name, ...): options of the kernel that a test needs")
    config.addinivalue_line("markers", "full: takes long; only for ./dev test --full")


def flavors_of(item: pytest.Item) -> set[str]:
    """The kernels that a test needs, and "full" if it takes long."""
    marker = item.get_closest_marker("flavor")
    kernels = set(marker.args) if marker else {"patched"}
    return kernels | ({"full"} if item.get_closest_marker("full") else set())


@functools.cache
def options(tree: str) -> set[str]:
    """What a kernel's configuration turns on."""
    text = Path(tree, ".config").read_text()
    return set(re.findall(r"^CONFIG_(\w+)=[ym]$", text, re.MULTILINE))


def missing_options(item: pytest.Item) -> set[str]:
    """Options that a test needs, and that the user's own kernel is built without."""
    marker = item.get_closest_marker("config")
    tree = os.environ.get("KSRC")
    return set(marker.args) - options(tree) if marker and tree else set()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what ./dev test was not asked for, and begin with the long files.

    Workers take whole files: a long one at the end would leave the others idle.
    """
    items.sort(key=lambda item: not getattr(getattr(item, "module", None), "LONG", False))
    chosen = os.environ.get("MMPOLICY_FLAVORS", "").replace("ksrc", "patched").split()
    if not chosen:
        return
    unwanted = [i for i in items if not flavors_of(i) <= set(chosen) or missing_options(i)]
    config.hook.pytest_deselected(items=unwanted)
    items[:] = [item for item in items if item not in unwanted]


class Machines:
    """Boots guests, at most one at a time."""

    def __init__(self) -> None:
        self.guest: Guest | None = None
        self.needs: dict[str, Any] = {}

    def get(self, flavor: str = "patched", **needs: Any) -> Guest:
        """The running guest if it has what is needed, else a new one."""
        wanted = {"flavor": flavor, **needs}
        if self.guest is None or wanted != self.needs:
            self.end()
            guest = new_guest(**wanted)
            guest.__enter__()
            self.guest, self.needs = guest, wanted
            tools.back_to_boot(guest)  # a distribution's kernel has other defaults
        return self.guest

    def end(self) -> None:
        """End the running guest, if any."""
        if self.guest:
            self.guest.close()
        self.guest = None

    def tidy(self) -> None:
        """Leave things as after boot, and fail if the kernel logged a bug."""
        if self.guest is None:
            return
        try:
            tools.back_to_boot(self.guest)
            self.guest.check()
        except VmError:
            self.end()
            raise


@pytest.fixture(scope="session")
def all_machines() -> Iterator[Machines]:
    """For the session; use machines instead."""
    machines = Machines()
    yield machines
    machines.end()


@pytest.fixture
def machines(all_machines: Machines) -> Iterator[Machines]:
    """Guests of one's own choice; checked and tidied up after the test."""
    yield all_machines
    all_machines.tidy()


@pytest.fixture
def guest(machines: Machines) -> Guest:
    """The usual guest: patched, two CPUs, zram swap; the module is not loaded."""
    return machines.get(mem="2G", cpus=2, swap="1G")


@pytest.fixture
def loaded(guest: Guest) -> Guest:
    """The usual guest with the module loaded, all stock."""
    tools.must(guest, "modprobe mmpolicy")
    return guest


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.flavor(name)) for name in ("cloud", "amd64")],
)
def stock(request: pytest.FixtureRequest) -> str:
    """Debian's own kernels: for clouds, and for all machines."""
    return str(request.param)
