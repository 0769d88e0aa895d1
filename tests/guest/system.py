# SPDX-License-Identifier: GPL-2.0
"""A Debian in a folder: a guest boots it with systemd, and dpkg works in it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.guest import SERIES
from lab.machine import TREE, Kernel, cache_dir

# A marker for tests that boot a Debian with systemd; the root file system for arm64 has none.
AMD64 = pytest.mark.amd64("the root of arm64 has no systemd")
# The path under which the files of this machine are visible, both in the system's folder and in its
# guest.
HOST = "/run/vm/host"
# A script that changes its root to the folder of a system. It runs in a mount namespace of its own,
# so that its mounts end with it.
ENTER = """
mkdir -p "$1$3/$2" && mount --bind "$2" "$1$3/$2" && mount -t proc proc "$1/proc" || exit
exec chroot "$1" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    DEBIAN_FRONTEND=noninteractive sh -c "$4"
"""
# Paths in which a change does not count, because they differ between boots, are written at
# midnight, or belong to dpkg or to the tests.
NOISE = re.compile(
    r"/(proc|sys|dev|run|tmp|root|var/(log|cache|tmp|backups|lib/(dpkg|systemd|apt|redis|logrotate))"
    r"|etc/machine-id"
    r"|etc/ld\.so\.cache|etc/\.pwd\.lock|var/spool)(/.*)?|/lib/modules/[^/]+/modules\..*"
    r"|.*/__pycache__(/.*)?|/usr/lib/modules/[^/]+/modules\..*"
)


@contextmanager
def folder_of_root(name: str) -> Iterator[Path]:
    """Yield an empty folder for a Debian system, whose files belong to root; it is removed at the
    end.
    """
    if os.geteuid():
        pytest.skip("a Debian of its own takes root to install and to serve to the guest")
    path = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=cache_dir()))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def dev_says(*words: str, tree: Path = TREE) -> str:
    """Run a command of ./dev; return its output."""
    argv = [str(tree / "dev"), *words]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def dev(*words: str, tree: Path = TREE) -> list[Path]:
    """Run a command of ./dev; return the paths from its output, on the last of the lines that list
    paths.
    """
    found = [line.split()[1:] for line in dev_says(*words, tree=tree).splitlines()]
    paths = [words for words in found if words and all(word.startswith("/") for word in words)]
    return [Path(word) for word in paths[-1]]


def packages(folder: Path, version: str) -> list[Path]:
    """Build mmpolicy's packages from this tree, with the given version; return the
    package files.
    """
    copy = folder / f"tree-{version}"
    left_out = {"tests", "bench", "docs", "kernel-hooks", "__pycache__"}

    def ignored(place: str, names: list[str]) -> set[str]:
        hidden = {name for name in names if name.startswith(".")}
        return hidden | (left_out if Path(place) == TREE else {"__pycache__"})

    shutil.copytree(TREE, copy, ignore=ignored)
    shutil.copytree(TREE / "tests/lab", copy / "tests/lab")
    for path in (path for path in copy.rglob("*") if path.is_file()):
        text = path.read_text(errors="surrogateescape")
        if "0.1.0" in text:
            path.write_text(text.replace("0.1.0", version), errors="surrogateescape")
    return dev("package", tree=copy)


@dataclass(frozen=True)
class System:
    """A folder with a complete Debian system, and the kernel that its virtual machine boots."""

    folder: Path
    source: Path
    release: str

    def run(self, command: str) -> str:
        """Run a command on this machine with the folder of the system as its root; it
        must succeed.
        """
        argv = ["unshare", "--mount", "sh", "-c", ENTER, "enter"]
        argv += [str(self.folder), str(self.source), HOST, command]
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        text = done.stdout.decode(errors="replace")
        logs = [log.read_text(errors="replace") for log in self.folder.rglob("make.log")]
        assert done.returncode == 0, "\n".join([text, *logs])
        return text

    def put(self, path: str, text: str) -> None:
        """Write a text file in the system; path: its path within the system."""
        file = self.folder / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def add(self, *files: Path) -> str:
        """Copy files into the system; return their paths there, as words."""
        for file in files:
            shutil.copy(file, self.folder / "root")
        return " ".join(f"/root/{file.name}" for file in files)


def debian_kernels() -> dict[str, list[Path]]:
    """Return the packages of two of Debian's kernels, by release; the newer kernel is last."""
    found: dict[str, list[Path]] = {}
    for package in dev("package", "--distro", "cloud"):
        found.setdefault(package.parent.name, []).append(package)
    return found


def new_system(folder: Path, flavor: str) -> System:
    """Return a new system with a kernel: one of Debian's, installed from its packages, or one that
    ./dev has built.
    """
    (base,) = dev("root")
    kernel = Kernel.of_flavor(SERIES, flavor)
    assert kernel.modules
    source = (kernel.image.parent / "src").resolve()
    system = System(folder / "root", source, kernel.modules.name)
    folder.mkdir(exist_ok=True)
    subprocess.run(["cp", "-a", base, system.folder], check=True)
    if flavor == "cloud":
        system.run(f"dpkg -i {system.add(*debian_kernels()[system.release])}")
    else:
        put_kernel(system, kernel.modules)
    return system


def put_kernel(system: System, modules: Path) -> None:
    """Install a kernel that ./dev has built: its modules, its configuration and its source."""
    folder = system.folder / "lib/modules" / system.release
    shutil.copytree(modules, folder, ignore=shutil.ignore_patterns("updates", "build"))
    (folder / "build").symlink_to(f"{HOST}{system.source}")
    system.put(f"boot/config-{system.release}", (system.source / ".config").read_text())
    system.run(f"depmod {system.release}")


def listing(text: str) -> set[str]:
    """Return the lines that the script LIST has printed, except lines of paths in which changes do
    not count (NOISE).
    """
    return {line for line in text.splitlines() if not NOISE.fullmatch(line.split("\t")[0])}


# A script that prints each path with its kind, and for a file also its size and its modification
# time. Kernel headers are left out, as they are many.
LIST = r"""
find / -xdev \( -path /proc -o -path /sys -o -path /run -o -path '/usr/src/linux-headers-*' \) \
    -prune -o -type f -printf '%p\t%m %s %T@\n' -o -printf '%p\t%y%l\n'
"""
