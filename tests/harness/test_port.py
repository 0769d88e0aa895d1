# SPDX-License-Identifier: GPL-2.0
"""./dev port: the hooks fit a kernel's source, or the misfit is named."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from lab.machine import TREE, cache_dir

SERIES = "6.12"


def touched() -> set[str]:
    """Return the files that the patches of the series change."""
    patches = (TREE / "kernel-hooks" / SERIES).glob("*.patch")
    lines = [line for patch in patches for line in patch.read_text().splitlines()]
    return {line[6:] for line in lines if line.startswith("+++ b/")}


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    """Return the part of a kernel's source that the script reads."""
    (source,) = (cache_dir() / "src").glob(f"{SERIES}-*")
    for name in {"Makefile", *touched()}:
        if (source / name).exists():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source / name, tmp_path / name)
    return tmp_path


def port(kernel: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [TREE / "dev", "port", kernel], capture_output=True, text=True, check=False
    )


def test_its_own_kernel_fits_and_stays_as_it_is(kernel: Path) -> None:
    """All patches apply, and the tree stays unchanged."""
    before = {path: path.read_bytes() for path in kernel.rglob("*") if path.is_file()}
    result = port(kernel)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("\nok ") == 8
    assert before == {path: path.read_bytes() for path in kernel.rglob("*") if path.is_file()}


def test_a_hunk_that_does_not_fit_is_named(kernel: Path) -> None:
    """The output names its file and line, and where to read on."""
    madvise = kernel / "mm/madvise.c"
    madvise.write_text(madvise.read_text().replace("VM_WARN_ON(start > end);", "", 1))
    result = port(kernel)
    assert result.returncode == 1
    assert "FAIL  0008-" in result.stdout
    assert "mm/madvise.c: hunk #2, line " in result.stdout
    assert result.stdout.count("FAIL") == 1
    assert "1 patches do not fit" in result.stderr


def test_a_file_that_is_gone_is_named(kernel: Path) -> None:
    """A missing file counts as a misfit."""
    (kernel / "mm/madvise.c").unlink()
    result = port(kernel)
    assert result.returncode == 1
    assert "FAIL  0008-" in result.stdout


def test_another_kernel_gets_the_nearest_series(kernel: Path) -> None:
    """The version of the kernel decides."""
    makefile = kernel / "Makefile"
    makefile.write_text(makefile.read_text().replace("PATCHLEVEL = 12", "PATCHLEVEL = 14"))
    assert "Linux 6.14, hooks for 6.12:" in port(kernel).stdout
    makefile.write_text(makefile.read_text().replace("VERSION = 6\n", "VERSION = 7\n"))
    assert "Linux 7.14, hooks for 7.3:" in port(kernel).stdout


def test_no_kernel_tree_is_told(tmp_path: Path) -> None:
    """The script prints one clear error."""
    result = port(tmp_path)
    assert result.returncode == 1
    assert "is no kernel tree" in result.stderr


def new_files(series: Path, folder: Path) -> dict[str, str]:
    """Return the new files that the patches of a series add."""
    names = ("include/linux/mm_policy.h", "mm/mm_policy.c")
    folder.mkdir()
    for patch in sorted(series.glob("*.patch")):
        subprocess.run(
            ["git", "apply", *(f"--include={name}" for name in names), patch],
            cwd=folder,
            env={**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)},
            check=True,
        )
    return {name: (folder / name).read_text() for name in names}


def test_all_series_have_the_same_interface(tmp_path: Path) -> None:
    """Header and slot are identical in all series, as one module serves all kernels."""
    first, *others = (
        new_files(series, tmp_path / series.name)
        for series in sorted((TREE / "kernel-hooks").glob("*/"))
    )
    assert others
    assert all(other == first for other in others)
