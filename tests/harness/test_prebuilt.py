# SPDX-License-Identifier: GPL-2.0
"""./dev package --modules: its arguments, and the repository that it makes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from lab.machine import TREE

KERNELS = TREE / "tests/lab/kernels"


def package(*words: str) -> subprocess.CompletedProcess[str]:
    """Call it with arguments that it refuses before it builds anything."""
    argv = [str(TREE / "dev"), "package", *words]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--modules"], "--modules needs a kernel"),
        (["--modules", "--sign", "key", "certificate"], "--modules needs a kernel"),
        (["--modules", "6.12.1", "--sign", "key"], "--sign needs a private key and a certificate"),
        (["--modules", "6.12.1", "--sign", "/absent", "/absent"], "/absent"),
        (["--modules", "6.12.1", "--repository"], "--repository needs a folder"),
        (["--modules", "6.12.1", "--wrong"], "--wrong is not understood"),
        (["--modules", "/proc"], "/proc has no headers of a kernel"),
    ],
)
def test_wrong_words(words: list[str], error: str) -> None:
    """The script prints one clear error, and builds nothing."""
    result = package(*words)
    assert result.returncode
    assert error in result.stderr
    assert "packages:" not in result.stdout


@pytest.mark.parametrize(
    ("release", "series"),
    [
        ("6.12.117+deb12-cloud-amd64", "6.12"),
        ("6.12.117+deb13-amd64", "6.12+deb13"),
        ("7.3.4+deb13-cloud-amd64", "7.3"),
        ("6.14.0-29-generic", "6.14"),
    ],
)
def test_whose_kernel_it_is(release: str, series: str) -> None:
    """The release decides where ./dev looks for its headers, and which compiler builds for it."""
    script = f". {KERNELS}/source.sh; . {KERNELS}/packages.sh; series_of {release}"
    environment = {"PATH": "/usr/bin:/bin", "TREE": str(TREE)}
    found = subprocess.check_output(["bash", "-euc", script], text=True, env=environment)
    assert found == f"{series}\n"


def test_two_who_make_a_root_at_once(tmp_path: Path) -> None:
    """The second process, after waiting for the lock, finds the root made, and leaves it alone."""
    script = f". {KERNELS}/packages.sh; as_root() {{ mkdir $DEST.new; }}; debian_sources() {{ :; }}"
    script += "; make_root $DEST; make_root $DEST; ls -A $DEST"
    environment = {"PATH": "/usr/bin:/bin", "DEST": str(tmp_path / "root")}
    found = subprocess.check_output(["bash", "-euc", script], text=True, env=environment)
    assert found == ""
    assert [each.name for each in tmp_path.iterdir()] == ["root"]


def test_a_repository_grows(tmp_path: Path) -> None:
    """Later packages are added to earlier ones, and all are listed."""
    for version in ("1", "2"):
        meta = tmp_path / version
        (meta / "DEBIAN").mkdir(parents=True)
        fields = f"Package: one\nVersion: {version}\nArchitecture: all\nDescription: one\n"
        (meta / "DEBIAN/control").write_text(f"{fields}Maintainer: one@example.org\n")
        deb = tmp_path / f"one_{version}.deb"
        subprocess.run(["dpkg-deb", "--build", meta, deb], check=True, capture_output=True)
        script = f". {KERNELS}/packages.sh; SIGNED_BY=; add_to_repository {tmp_path}/apt {deb}"
        subprocess.run(["bash", "-euc", script], check=True)
    text = (tmp_path / "apt/Packages").read_text()
    assert [line for line in text.splitlines() if line.startswith("Version")] == [
        "Version: 1", "Version: 2"
    ]  # fmt: skip
    assert " Packages.gz\n" in (tmp_path / "apt/Release").read_text()


def test_the_line_that_installs_works_in_any_folder(tmp_path: Path) -> None:
    """`apt install ./NAME.deb`, as README.md had it, found nothing: packages are in the cache."""
    script = f'. {KERNELS}/packages.sh; say() {{ echo "$*"; }}; say_install "$@"'
    debs = [f"{tmp_path}/mmpolicy-dkms_0.1.0_all.deb", f"{tmp_path}/mmpolicy_0.1.0_all.deb"]
    done = subprocess.run(
        ["bash", "-euc", script, "test", *debs], capture_output=True, text=True, check=True, cwd="/"
    )
    assert done.stdout == f"to install them, as root: apt install {' '.join(debs)}\n"
    calls = (TREE / "dev").read_text().count('say_install "$PACKAGES"/*.deb')
    assert calls == 1 and "PACKAGES=$CACHE/" in (KERNELS / "packages.sh").read_text()
