# SPDX-License-Identifier: GPL-2.0
"""A host made of files, and the command that runs on it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from click.testing import CliRunner

from mmpolicy.cli import main
from mmpolicy.host.kmod import Kmod
from mmpolicy.host.machine import Host
from mmpolicy.verbs import around

from .fakes import SLOW, Clock, FakeLib, FakeTree, Result, Run

# A background job, or one under nohup, ignores signals, and so would all its children.
for number in signal.SIGINT, signal.SIGHUP:
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)


def pytest_configure(config: pytest.Config) -> None:
    """Name the mark of long tests."""
    config.addinivalue_line("markers", "full: takes long; only for ./dev test --full")


@pytest.fixture
def tree() -> Iterator[FakeTree]:
    """Return a host with a patched kernel and the module loaded."""
    memory = "/dev/shm"
    with TemporaryDirectory(dir=memory if Path(memory).is_dir() else None) as root:
        tree = FakeTree(Path(root))
        tree.make_host()
        tree.make_loaded()
        yield tree


@pytest.fixture(autouse=True)
def costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a host that was never calibrated have the same cost of a fault in each run."""
    monkeypatch.setattr(around, "measure", lambda *_given: SLOW.costs)


@pytest.fixture
def lib(tree: FakeTree) -> FakeLib:
    """Return the libkmod of the host."""
    return FakeLib(tree)


@pytest.fixture
def clock() -> Clock:
    """Return the clock of the host."""
    return Clock()


@pytest.fixture
def log() -> list[str]:
    """Return the lines that the system's log has got."""
    return []


@pytest.fixture
def reloads() -> list[str]:
    """Return a word for each reload of units that was requested from systemd."""
    return []


@pytest.fixture
def units() -> list[list[str]]:
    """Return the words of each unit that systemd was told to run."""
    return []


@pytest.fixture
def shown() -> dict[str, dict[str, str]]:
    """Return the properties of units that systemd shows; it knows of none at first."""
    return {}


@pytest.fixture
def run(
    tree: FakeTree, lib: FakeLib, clock: Clock, log: list[str], reloads: list[str],
    units: list[list[str]], shown: dict[str, dict[str, str]],
) -> Run:  # fmt: skip
    """Return a function that runs the command on the host."""

    def show(words: Sequence[str]) -> str:
        names = [word.partition("=")[2] for word in words if word.startswith("--property=")]
        found = [{"Id": unit} | shown[unit] for unit in words if unit in shown]
        lines = ([f"{name}={each[name]}" for name in names if name in each] for each in found)
        return "\n\n".join("\n".join(each) for each in lines)

    def run(*args: str) -> Result:
        try:
            runner = CliRunner(mix_stderr=False)
        except TypeError:  # click 8.2 separates the two without this option
            runner = CliRunner()
        reload = partial(reloads.append, "reload")
        app = Host(tree, Kmod(lib=lib), clock.sleep, lambda: clock.now, log.append, reload)
        if tree.advice:
            app.advice = tree.advice
        app.start_unit = lambda argv: units.append([*argv])
        app.start_path_unit = lambda unit, words: units.append([f"{unit}.path", *words])
        app.enable_unit = lambda unit: units.append(["enable", unit])
        app.show_units = show
        result = runner.invoke(main, args, obj=app)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Result(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture
def wait_until() -> Callable[[Callable[[], object]], None]:
    """Return a function that waits until a condition holds."""

    def wait_until(condition: Callable[[], object]) -> None:
        end = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < end
            time.sleep(0.02)

    return wait_until


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Return the path for the samples of an experiment."""
    return tmp_path / "samples.jsonl"


@pytest.fixture
def ab(run: Run, out: Path) -> Run:
    """Return a function that runs an experiment."""

    def ab(*words: str) -> Result:
        return run("ab", "run", "--out", str(out), *words)

    return ab
