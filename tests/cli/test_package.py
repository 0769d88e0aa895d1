# SPDX-License-Identifier: GPL-2.0
"""The package: the files that it installs with the code."""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
import subprocess
import sys
import zipfile
from email import message_from_string
from importlib.metadata import version
from pathlib import Path

import click
import pytest
import tomllib

from mmpolicy import __version__
from mmpolicy.cli import main
from mmpolicy.errors import Exit

from .fakes import Run
from .test_look import walk

SOURCE = Path(__file__).parents[2] / "userspace"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Build the wheel and return its texts by name."""
    folder = tmp_path_factory.mktemp("package")
    shutil.copytree(SOURCE, folder / "source", ignore=shutil.ignore_patterns("build", "*.pyc"))
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps"]
    subprocess.run([*command, "-w", folder, folder / "source"], check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def test_the_oldest_versions_are_those_that_are_tested() -> None:
    """The oldest versions are tested: libraries run here at their lower bounds, which are Debian
    12's versions.
    """
    project = tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]
    here = [each for each in project["dependencies"] if "python_version < " not in each]
    lowest = dict(each.split(">=") for each in here)
    assert lowest == {name: version(name) for name in lowest}


@pytest.mark.parametrize(
    ("file", "pattern"),
    [("dkms.conf", r'^PACKAGE_VERSION="(.*)"'), ("debian/changelog", r"^mmpolicy \((.*)\)"),
     ("debian/mmpolicy-dkms.install", r"/mmpolicy-(.*)$"),
     ("module/core.c", r'^MODULE_VERSION\("(.*)"'), ("module/stub.c", r'^MODULE_VERSION\("(.*)"'),
     ("CHANGELOG.md", r"^## ([0-9.]+)"), ("docs/host.md", r"_([0-9.]+)_all[.]deb"),
     ("README.md", r"_([0-9.]+)_all[.]deb")],
)  # fmt: skip
def test_one_version(file: str, pattern: str) -> None:
    found = re.findall(pattern, (SOURCE.parent / file).read_text(), re.MULTILINE)
    newest = found[:1] if "change" in file.lower() else set(found)
    assert list(newest) == [__version__]


def test_what_an_old_pip_leaves_behind_is_told(tmp_path: Path) -> None:
    """If an old pip copies this folder alone, where the files shared with the module are missing,
    the error says to upgrade pip.
    """
    folder = shutil.copytree(
        SOURCE, tmp_path / "alone", symlinks=True, ignore=shutil.ignore_patterns("build")
    )
    command = [sys.executable, "setup.py", "--version"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    told = "needs.h is a link without a target; next: pip install -U pip"
    assert done.returncode == 1 and told in done.stderr


def test_metadata(files: dict[str, str]) -> None:
    (text,) = [text for name, text in files.items() if name.endswith("/METADATA")]
    fields = message_from_string(text)
    assert fields["License"] == "GPL-2.0-only"
    assert fields["Author"] == "mmpolicy maintainers"
    assert "mmpolicy reset" in str(fields.get_payload())
    assert "Operating System :: POSIX :: Linux" in fields.get_all("Classifier", [])


def pages(files: dict[str, str]) -> dict[str, str]:
    return {Path(name).stem: text for name, text in files.items() if "/man/man8/" in name}


def test_each_verb_has_a_page_with_its_options(files: dict[str, str]) -> None:
    leaves = [command for command in walk(main) if not isinstance(command, click.Group)]
    found = "\n".join(pages(files).values()).replace("\\-", "-")
    assert len(pages(files)) == len(walk(main))
    assert {name.rpartition("-")[2] for name in pages(files)} >= {str(leaf.name) for leaf in leaves}
    params = [
        param for leaf in leaves for param in leaf.params if not getattr(param, "hidden", False)
    ]
    options = {name for param in params for name in param.opts}
    assert not [name for name in options if name.startswith("--") and name not in found]
    assert "drift" in pages(files)["mmpolicy"]


def test_pages_list_options_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with click 8.5, arguments are listed too, some of them with no name."""
    monkeypatch.setattr(click.Argument, "get_help_record", lambda *_: ("", ""))
    setup = runpy.run_path(str(SOURCE / "setup.py"))
    setup["make_pages"](tmp_path, click.Context(main, info_name="mmpolicy"))
    assert r"\fB\fP" not in (tmp_path / "mmpolicy-trim.8").read_text()


def test_pages_are_roff_with_a_name(files: dict[str, str]) -> None:
    for text in pages(files).values():
        assert text.startswith('.TH "MMPOLICY')
        assert ".SH NAME\nmmpolicy" in text
        assert "..." not in text.partition(".SH NAME")[2].partition(".SH")[0]


def test_pages_say_what_a_page_has_to(files: dict[str, str]) -> None:
    for name, text in pages(files).items():
        assert f'.TH "{name.replace("-", " ").upper()}" "8"' in text
        for section in ("EXIT STATUS", "FILES", "ENVIRONMENT", "SEE ALSO"):
            assert text.count(f"\n.SH {section}\n") == 1
        status = text.partition(".SH EXIT STATUS")[2].partition(".SH")[0]
        assert re.findall(r"\\fB(\d+)\\fP", status) == [str(int(code)) for code in Exit]


def test_examples_keep_their_lines(files: dict[str, str], run: Run) -> None:
    found = pages(files)
    assert ".nf\nmmpolicy ab run " in found["mmpolicy-ab-run"]
    assert "max_order=6 \\e\n    \\-\\-metric" in found["mmpolicy-ab-run"]
    commands = [
        line.replace("\\-", "-")
        for text in found.values()
        for line in text.partition(".SH EXAMPLES\n.nf\n")[2].partition(".fi")[0].splitlines()
    ]
    assert len(commands) > 15
    for command in commands:
        assert run(*shlex.split(command)[1:], "--help").code == 0


def test_man_can_read_them(files: dict[str, str], tmp_path: Path) -> None:
    for name, text in pages(files).items():
        page = tmp_path / f"{name}.8"
        page.write_text(text)
        done = subprocess.run(
            ["man", "--warnings", "-l", page], capture_output=True, text=True, check=True
        )
        assert done.stderr == ""


@pytest.mark.parametrize(
    "name", ["bash-completion/completions/mmpolicy", "zsh/site-functions/_mmpolicy",
             "fish/vendor_completions.d/mmpolicy.fish"]
)  # fmt: skip
def test_completions(files: dict[str, str], name: str) -> None:
    (text,) = [text for path, text in files.items() if path.endswith(f"/share/{name}")]
    assert "_MMPOLICY_COMPLETE" in text


@pytest.mark.parametrize(("action", "told"), [("configure", True), ("abort-upgrade", False)])
def test_a_module_that_was_not_built_is_told(tmp_path: Path, action: str, told: bool) -> None:
    """A module that was not built is reported: without headers DKMS is silent, and apt succeeds."""
    (tmp_path / "uname").write_text("#!/bin/sh\necho 9.9-none\n")
    (tmp_path / "uname").chmod(0o755)
    done = subprocess.run(
        ["sh", SOURCE.parent / "debian/mmpolicy-dkms.postinst", action], capture_output=True,
        text=True, check=True, env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
    )  # fmt: skip
    assert ("no module was built for Linux 9.9-none" in done.stderr) == told
    assert ("linux-headers-9.9-none" in done.stderr) == told
