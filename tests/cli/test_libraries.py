# SPDX-License-Identifier: GPL-2.0
"""Verbs on a host without numpy, scipy, matplotlib and jinja2, as a plain install is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mmpolicy.verbs.libraries import lacking

PLAIN = """
import sys
sys.modules |= dict.fromkeys(("numpy", "scipy", "matplotlib", "jinja2"))
from mmpolicy.cli import main
main()
"""


def plain(words: list[str]) -> subprocess.CompletedProcess[str]:
    """Run the command without any library that only some verbs need."""
    argv = [sys.executable, "-c", PLAIN, *words]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("words", "library", "package"),
    [
        (["bench", "--runs", "7", "--", "touch", "{}/ran"], "numpy", "scipy"),
        (["bench", "--plot", "{}/x.svg", "--", "touch", "{}/ran"], "matplotlib", "matplotlib"),
        (["bench", "--html", "{}/x.html", "--", "touch", "{}/ran"], "matplotlib", "matplotlib"),
        (["ab", "report", "{}/samples"], "numpy", "scipy"),
        (["ab", "pool", "{}/a", "{}/b"], "numpy", "scipy"),
        (["ab", "plan", "{}/a", "--hosts", "2"], "numpy", "scipy"),
        (["map", str(os.getpid()), "--no-content", "-o", "{}/x.png"], "matplotlib", "matplotlib"),
    ],
)
def test_the_line_to_type(tmp_path: Path, words: list[str], library: str, package: str) -> None:
    """Without a library, a verb exits with 3 before a program ran or a file was made, and prints
    the line that installs it here.
    """
    done = plain([word.format(tmp_path) for word in words])
    text = f"mmpolicy: this command needs the Python library {library}, which is not installed\n"
    line = f"next: {sys.prefix}/bin/pip install {package}\n"
    assert (done.returncode, done.stdout, done.stderr) == (3, "", text + line)
    assert [*tmp_path.iterdir()] == []


def test_a_library_that_does_not_load(tmp_path: Path) -> None:
    """A library that does not load is named, as on a host where a package that numpy is linked to
    was removed.
    """
    for name in ("numpy", "scipy"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(
            "try:\n    raise ImportError('libx.so.3: cannot open shared object file')\n"
            "except ImportError as err:\n    raise ImportError('much advice\\nand more') from err\n"
        )
    argv = [sys.executable, "-m", "mmpolicy", "bench", "--runs", "7", "--", "true"]
    path = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path}
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == (
        "mmpolicy: this command needs the Python library numpy, which is installed and "
        "cannot be loaded: libx.so.3: cannot open shared object file\nnext: "
        f"{sys.prefix}/bin/pip install --force-reinstall scipy\n"
    )


def test_what_needs_no_library_runs(tmp_path: Path) -> None:
    done = plain(["bench", "--dry-run", "--", "true"])
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("programs", "line"),
    [
        (("apt",), "apt install python3-scipy"),
        (("dnf",), "dnf install python3-scipy"),
        ((), f"{sys.executable} -m pip install --user scipy"),
    ],
)
def test_the_line_is_that_of_the_host(
    monkeypatch: pytest.MonkeyPatch, programs: tuple[str, ...], line: str
) -> None:
    for name in ("prefix", "base_prefix"):
        monkeypatch.setattr(sys, name, "/usr" if programs else "/opt")
    monkeypatch.setattr(shutil, "which", lambda name: name if name in programs else None)
    found = lacking(ModuleNotFoundError("gone", name="scipy.stats"))
    assert found and (found.exit_code, found.next_step) == (3, line)


def test_a_fault_of_this_command_is_told_as_one() -> None:
    assert lacking(ModuleNotFoundError("gone", name="mmpolicy.ab.gone")) is None
