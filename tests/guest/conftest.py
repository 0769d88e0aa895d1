# SPDX-License-Identifier: GPL-2.0
"""Fixtures that give tests a virtual machine (guest), and the choice of the tests that run on a
kernel.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.guest import COMPILED, ONE_KERNEL, PYTHON, Guest, cache_dir
from lab.machine import TREE, debian_flavors
from lab.schedule import PIECES, UNKNOWN_S, Planned, pieces, recorded, write_json

from .machines import Machines
from .tools import must

__all__ = ["Machines"]


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers of the tests, with their meaning."""
    config.addinivalue_line(
        "markers", "flavor(name, ...): kernels that a test needs; without it, the patched one"
    )
    config.addinivalue_line("markers", "amd64(reason): is not for kernels of arm64")
    config.addinivalue_line("markers", "config(name, ...): options of the kernel that a test needs")
    config.addinivalue_line("markers", "long: a minute or more; not for a plain ./dev test")
    config.addinivalue_line("markers", "full: takes long; only for ./dev test --full")
    if not hasattr(config, "workerinput"):
        os.environ[PIECES] = str(DURATIONS.with_name(f"pieces-{os.getpid()}.json"))
        compile_command()
        config.pluginmanager.register(Stopwatch())


def compile_command() -> None:
    """Compile all Python modules that mmpolicy imports: once on this machine, as each guest is
    slow.
    """
    names = "pkgutil.walk_packages(mmpolicy.__path__, 'mmpolicy.')"
    imports = f"import importlib, pkgutil, mmpolicy\nfor module in {names}:"
    imports += "\n    module.name.endswith('__main__') or importlib.import_module(module.name)"
    env = {key: word for key, word in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    env |= {"PYTHONPATH": str(TREE / "userspace/src"), "PYTHONPYCACHEPREFIX": str(COMPILED)}
    subprocess.run([PYTHON, "-c", imports], env=env, check=True)


STOCK = frozenset(debian_flavors())
DURATIONS = cache_dir() / "durations-guest.json"


ARM64 = "-arm64"  # suffix of the names of kernels for arm64


def kernels_of(item: pytest.Item) -> set[str]:
    """Return the names of the kernels that a test needs.

    If all tests run on one kernel of arm64, it also stands for the kernel of amd64 with its name.
    """
    marker = item.get_closest_marker("flavor")
    kernels = set(marker.args) if marker else {"patched"}
    kernel = os.environ.get(ONE_KERNEL, "")
    if kernel.endswith(ARM64) and not item.get_closest_marker("amd64"):
        kernels = {kernel if name == kernel.removesuffix(ARM64) else name for name in kernels}
    return kernels


@functools.cache
def options(tree: str) -> set[str]:
    """Return the options that are on (=y or =m) in the configuration of a kernel; tree: the build
    folder of that kernel.
    """
    text = Path(tree, ".config").read_text()
    return set(re.findall(r"^CONFIG_(\w+)=[ym]$", text, re.MULTILINE))


def missing_options(item: pytest.Item) -> set[str]:
    """Return the configuration options that a test needs and that the kernel in KSRC lacks; the
    test is then not run.
    """
    marker = item.get_closest_marker("config")
    tree = os.environ.get("KSRC")
    return set(marker.args) - options(tree) if marker and tree else set()


def is_wanted(item: pytest.Item, chosen: set[str]) -> bool:
    """Return whether ./dev test runs a test. chosen: the kernels and markers that it was called
    for. With --hooks, tests that a stock kernel can run are left out, as ./dev test has run them
    before.
    """
    kernels = kernels_of(item)
    needs = kernels | {name for name in ("long", "full") if item.get_closest_marker(name)}
    done = "hooks" in chosen and needs <= STOCK
    return needs <= chosen and not done and not missing_options(item)


def plan(item: pytest.Item, seconds: dict[str, float]) -> Planned:
    """Return what a test needs, and how long it takes, so that the tests can be distributed over
    workers. seconds: durations of tests in earlier runs.
    """
    module = getattr(item, "module", None)
    unknown = getattr(module, "SECONDS", UNKNOWN_S)
    fixtures = getattr(item, "_fixtureinfo").name2fixturedefs.values()  # noqa: B009
    own = f"{item.nodeid.partition('::')[0]}"
    together = any(found[-1].scope == "module" and found[-1].baseid == own for found in fixtures)
    took = seconds.get(item.nodeid, unknown)
    return Planned(item.nodeid, own, frozenset(kernels_of(item)), together, took)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Drop the tests that ./dev test did not select, and group those that one worker has to run one
    after the other.
    """
    chosen = set(os.environ.get("MMPOLICY_FLAVORS", "").replace("ksrc", "patched").split())
    if chosen & {"hooks", "full"}:
        chosen.add("long")
    if chosen:
        unwanted = [item for item in items if not is_wanted(item, chosen)]
        config.hook.pytest_deselected(items=unwanted)
        items[:] = [item for item in items if item not in unwanted]
    tests, seconds = {item.nodeid: item for item in items}, recorded(DURATIONS)
    found = pieces(plan(item, seconds) for item in tests.values())
    items[:] = [tests[test.name] for piece in found for test in piece]
    if path := os.environ.get(PIECES):
        write_json(
            Path(path), {test.name: str(n) for n, piece in enumerate(found) for test in piece}
        )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return the scheduler by which the workers of pytest-xdist take whole groups of tests."""
    from lab.workers import Scheduling

    return Scheduling(config, log)


class Stopwatch:
    """Records how long each test took, by which the next run distributes the tests."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the time of one phase of a test: its setup, its call or its teardown."""
        before = self.seconds.get(report.nodeid, 0)
        self.seconds[report.nodeid] = round(before + report.duration, 1)

    def pytest_sessionfinish(self) -> None:
        """Write the durations to the file that the next schedule reads."""
        write_json(DURATIONS, recorded(DURATIONS) | self.seconds)
        Path(os.environ.pop(PIECES)).unlink(missing_ok=True)


@pytest.fixture(scope="session")
def all_machines() -> Iterator[Machines]:
    """The virtual machines (guests) that a worker of pytest boots for its tests, for the whole
    session. Tests use the fixture `machines`.
    """
    machines = Machines()
    yield machines
    machines.end()


@pytest.fixture
def machines(all_machines: Machines) -> Iterator[Machines]:
    """Virtual machines (guests), which a test boots by get(). After the test, the guest is checked
    for kernel bugs, and its settings are restored.
    """
    yield all_machines
    all_machines.tidy()


@pytest.fixture
def guest(machines: Machines) -> Guest:
    """The usual guest: a patched kernel, two CPUs and swap on zram. The module is not loaded."""
    return machines.get(mem="2G", cpus=2, swap="1G")


@pytest.fixture
def loaded(guest: Guest) -> Guest:
    """The usual guest with the module loaded, all stock."""
    must(guest, "modprobe mmpolicy")
    return guest


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.flavor(name)) for name in debian_flavors()],
)
def stock(request: pytest.FixtureRequest) -> str:
    """The name of a kernel that Debian builds. The test runs once with the kernel for clouds, and
    once with the kernel for all machines.
    """
    return os.environ.get(ONE_KERNEL) or str(request.param)
