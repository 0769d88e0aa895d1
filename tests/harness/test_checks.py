# SPDX-License-Identifier: GPL-2.0
"""The totals of ./dev for a run of tests: a run that ends early is a failure."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lab.machine import TREE, Arch, debian_flavors

PASSES, FAILS = "def test_passes(): pass\n", "def test_fails(): assert False\n"
ENDS = """
import os, pytest, time
def test_ends(request): {}
"""
CHECKS = """
set -euo pipefail
shopt -s inherit_errexit nullglob
say() {{ printf '%s\\n' "$*"; }}
hash_of() {{ sha256sum | cut -c1-12; }}
kernel_home() {{ echo "$CACHE/kernel/$1"; }}
TREE={tree} CACHE={tree}.cache LOG={tree}.cache/log VENV={venv} SERIES=6.12 FLAVORS=(cloud)
mkdir -p "$LOG"
. {checks}
{command}
finish
"""


def finish(tree: Path, command: str) -> tuple[str, int]:
    """Return the closing line and the status after a command of checks.sh in a temporary tree."""
    checks = TREE / "tests/lab/checks.sh"
    script = CHECKS.format(tree=tree, venv=sys.prefix, checks=checks, command=command)
    ended = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    return ended.stdout.splitlines()[-1], ended.returncode


def session(tree: Path, text: str, options: str = "-q") -> tuple[str, int]:
    """Return the closing line and the status after a session of pytest."""
    test = tree / "tests/planted/test_planted.py"
    test.parent.mkdir(parents=True)
    test.write_text(text)
    return finish(tree, f"run_pytest planted {options}")


def test_sessions_that_end_by_themselves(tmp_path: Path) -> None:
    """Each test is counted once."""
    assert session(tmp_path / "a", PASSES) == ("1 passed, 0 failed, 0 skipped", 0)
    assert session(tmp_path / "b", PASSES + FAILS) == ("1 passed, 1 failed, 0 skipped", 1)


@pytest.mark.parametrize(
    "end",
    [
        "pytest.exit('enough', 3)",
        "request.session.shouldstop = 'enough'",
        "raise KeyboardInterrupt",
        "os._exit(0)",
        "os._exit(1)",
    ],
)
def test_a_session_that_ends_early(tmp_path: Path, end: str) -> None:
    """The third test, which fails, never runs; the run must not pass."""
    line, status = session(tmp_path, PASSES + ENDS.format(end) + FAILS)
    assert status == 1 and ", 1 failed," in line


# The first test keeps count of its runs; the second one ends the first run.
STOPPED = """
import os, time
from pathlib import Path
COUNT, MARK = Path(r"{0}.count"), Path(r"{0}.mark")
def test_first():
    COUNT.write_text((COUNT.read_text() if COUNT.exists() else "") + "x")
def test_second():
    if not MARK.exists():
        MARK.touch()
        {2}
def test_third(): assert {1}
"""


@pytest.mark.parametrize(
    ("options", "end"),
    [("-q", "os._exit(1)"), ("-q -n1", "time.sleep(1); os.kill(os.getppid(), 9)")],
)
def test_a_run_that_was_stopped_goes_on(tmp_path: Path, options: str, end: str) -> None:
    """Tests that have passed do not run again, but count; a complete run begins afresh."""
    tree, count = tmp_path / "tree", Path(f"{tmp_path}/tree.count")
    assert session(tree, STOPPED.format(tree, True, end), options)[1] == 1
    for times in ("x", "xx"):
        assert finish(tree, f"run_pytest planted {options}") == ("3 passed, 0 failed, 0 skipped", 0)
        assert count.read_text() == times


def test_other_sources_begin_anew(tmp_path: Path) -> None:
    """Changed sources restart the run, and a failed test always runs again."""
    tree, count = tmp_path / "tree", Path(f"{tmp_path}/tree.count")
    session(tree, STOPPED.format(tree, False, "os._exit(1)"))
    test = tree / "tests/planted/test_planted.py"
    test.write_text(test.read_text() + "# changed\n")
    for _ in range(2):
        assert finish(tree, "run_pytest planted -q") == ("2 passed, 1 failed, 0 skipped", 1)
    assert count.read_text() == "xxx"


def test_a_session_whose_workers_die(tmp_path: Path) -> None:
    """pytest-xdist gives up; the remaining tests do not run."""
    text = ENDS.format("os._exit(1)") + PASSES + FAILS
    line, status = session(tmp_path, text, "-q -n1 --max-worker-restart=0")
    assert status == 1 and ", 0 failed," not in line


def test_a_session_without_a_test(tmp_path: Path) -> None:
    """A run of no test proves nothing, so it fails."""
    assert session(tmp_path, "X = 1\n")[1] == 1


@pytest.mark.parametrize(
    ("says", "status", "failed"),
    [
        ("3 passed, 0 failed", 0, 0),
        ("3 passed, 2 failed", 1, 2),
        ("3 passed, 0 failed", 134, 1),
        ("Segmentation fault", 139, 1),
    ],
)
def test_unit_tests(tmp_path: Path, says: str, status: int, failed: int) -> None:
    """A program that ends with an error has failed, whatever it printed before."""
    run = tmp_path / "tests/unit/run"
    run.parent.mkdir(parents=True)
    run.write_text(f"#!/bin/sh\necho '{says}'\nexit {status}\n")
    run.chmod(0o755)
    line, ended = finish(tmp_path, "unit")
    assert f", {failed} failed," in line and ended == bool(failed)


def kernels(kind: str, series: str) -> set[str]:
    """Return the kernels on which ./dev test runs guest tests."""
    script = f"TREE={TREE} SERIES={series}\nsource {TREE}/tests/lab/kernels/kernel.sh\n"
    script += f"tested_by {kind}"
    return set(subprocess.check_output(["bash", "-euc", script], text=True).split())


@pytest.mark.parametrize("series", ["6.12", "7.2", "7.3"])
def test_kernels_that_are_built(series: str) -> None:
    """./dev test builds none, and --full has all kernels of the other runs."""
    assert kernels("default", series) == {"cloud"}
    hooks = kernels("hooks", series)
    assert {"unpatched", "patched"} <= hooks
    assert hooks | {*debian_flavors()} < kernels("full", series)


def test_kernels_of_a_series_without_hooks() -> None:
    """Such a series is tested on Debian's own kernels only."""
    found = [kernels(kind, "6.12+deb13") for kind in ("default", "hooks", "full")]
    assert found == [{"cloud"}, set(), {*debian_flavors()}]


def test_one_table_of_flavors() -> None:
    """The help lists each kernel and each series; Debian's kernels are not built."""
    rows = (TREE / "tests/lab/kernels/flavors").read_text().splitlines()
    cells = [[cell.strip() for cell in row.split("|")] for row in rows if not row.startswith("#")]
    names = {cell[0] for cell in cells if cell[3] != "debian-arm64"}
    text = subprocess.check_output([TREE / "dev", "kernel", "--help"], text=True)
    told = set(re.findall(r"^  --(\S+)  +(?!cloud)", text, re.M)) - {"distro"}
    assert debian_flavors() == ["cloud", "amd64"]
    assert f"--distro {'|'.join(debian_flavors())}" in text
    assert told == names - {*debian_flavors()}
    series = {folder.name for folder in (TREE / "kernel-hooks").glob("*/")}
    (listed,) = re.findall(r"--series ([^]]+)\]", text)
    assert {*listed.split("|")} == series | {"6.12+deb13"}  # which has only Debian's kernel
    for name in names:
        assert (name in kernels("full", "6.12")) != name.endswith("-arm64")


@pytest.mark.parametrize("words", ["kernel --series 6.1", "module --series=6.1 --distro cloud"])
def test_a_series_that_does_not_exist(tmp_path: Path, words: str) -> None:
    """The error names those that exist; nothing is fetched, so 6.12 is not taken for 6.1."""
    argv = ["bash", str(TREE / "dev"), *words.split()]
    environment = {**os.environ, "MMPOLICY_CACHE": str(tmp_path / "cache")}
    ended = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment)
    assert (ended.returncode, ended.stdout) == (1, "")
    text, _, known = ended.stderr.strip().partition(": there are ")
    series = {folder.name for folder in (TREE / "kernel-hooks").glob("*/")}
    assert (text, {*known.split()}) == ("dev: --series 6.1", series | {"6.12+deb13"})
    assert not (tmp_path / "cache").exists()


def test_arm64_has_a_run_of_its_own() -> None:
    """Its kernel is not among those of ./dev test, which boots it after them."""
    assert kernels("arm64", "6.12") == {"cloud-arm64"}
    assert kernels("arm64", "7.3") == set()
    for kind in ("default", "hooks", "full"):
        assert "cloud-arm64" not in kernels(kind, "6.12")
    assert Arch.of_flavor("cloud-arm64").qemu == "qemu-system-aarch64"
    assert Arch.of_flavor("cloud") == Arch()


@pytest.mark.parametrize(
    ("status", "line"), [(0, "1 passed, 0 failed, 0 skipped"), (1, "1 passed, 0 failed, 1 skipped")]
)
def test_a_kernel_of_arm64_that_cannot_be_had(tmp_path: Path, status: int, line: str) -> None:
    """Without packages of arm64, its test counts as skipped, and ./dev test goes on."""
    dev = tmp_path / "dev"
    dev.write_text(f"#!/bin/sh\nexit {status}\n")
    dev.chmod(0o755)
    steps = "choose_arch() { :; }; need_guest_tools() { :; }; guest_tests() { :; }"
    assert finish(tmp_path, f"{steps}; add_counts 1 0 0; test_on_arm64") == (line, 0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--arch riscv64", "--arch riscv64: there are guests of amd64 and arm64"),
        ("--arch arm64 --series 7.2", "--arch arm64: its kernels are of 6.12 and 7.3, not 7.2"),
        ("--arch=arm64 --patched", "--arch arm64: not with patched"),
        ("--arch", "--arch needs an architecture"),
    ],
)
def test_other_architectures(options: str, said: str) -> None:
    """Nothing is installed or built for a combination that does not exist."""
    argv = ["bash", str(TREE / "dev"), "vm", *options.split()]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert ended.returncode == 1 and said in ended.stderr


@pytest.mark.parametrize("failing", ["", "test", "test --hooks"])
def test_ci_runs_both_and_fails_with_either(tmp_path: Path, failing: str) -> None:
    """The second run happens whatever the first returned, and its totals are the last line."""
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci/run").write_bytes((TREE / ".ci/run").read_bytes())
    dev = tmp_path / "dev"
    dev.write_text(f'#!/bin/sh\necho "ran $*"\n[ "$*" != "{failing}" ]\n')
    dev.chmod(0o755)
    ended = subprocess.run(["bash", tmp_path / ".ci/run"], capture_output=True, text=True)
    assert ended.stdout.splitlines() == ["ran test", "ran test --hooks"]
    assert bool(ended.returncode) == bool(failing)
