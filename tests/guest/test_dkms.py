# SPDX-License-Identifier: GPL-2.0
"""DKMS: it builds the module for a kernel with hooks, and a stub for a kernel without them.

DKMS runs on this machine, in folders of its own; a guest loads the result.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.guest import Guest, cache_dir, new_guest
from lab.machine import TREE, Kernel

from .conftest import Machines
from .tools import ROOT, must

AS_ROOT = [] if os.geteuid() == 0 else ["unshare", "--map-root-user"]
# the program DKMS of a later Debian, which ./dev has put there
LATER = cache_dir() / "dkms/usr/sbin/dkms"
SOURCES = ("Kbuild", "dkms.conf", "module")


@dataclass(frozen=True)
class Dkms:
    """DKMS with folders of its own, so that it changes nothing on this machine, and the kernel that
    it builds the module for.
    """

    program: str
    folder: Path
    source: Path
    release: str

    def run(self, verb: str) -> str:
        """Run one verb of DKMS, which must succeed; return its output."""
        argv = [*AS_ROOT, self.program, verb, "mmpolicy/0.1.0", "-k", self.release]
        argv += ["--kernelsourcedir", str(self.source), "--no-depmod"]
        for option in ("dkmstree", "sourcetree", "installtree"):
            argv += [f"--{option}", str(self.folder / option)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        logs = [log.read_text() for log in self.folder.rglob("make.log")]
        assert done.returncode == 0, "\n".join([done.stdout, done.stderr, *logs])
        return done.stdout

    def installed(self) -> list[Path]:
        """Return the module files in the folder where DKMS installs them."""
        return sorted((self.folder / "installtree").rglob("*.ko*"))


def tree_of(guest: Guest) -> tuple[Path, str]:
    """Return the folder with the source of a guest's kernel, in which the kernel was built, and the
    release of that kernel.
    """
    source = Kernel.of_flavor(guest.series, guest.flavor).image.parent / "src"
    return source.resolve(), (source / "include/config/kernel.release").read_text().strip()


@pytest.fixture(params=["dkms", pytest.param(str(LATER), marks=pytest.mark.full, id="later")])
def program(request: pytest.FixtureRequest) -> str:
    """Return the path of DKMS. The tests run once with the version of this Debian, and once with
    that of a later one.
    """
    return str(request.param)


@pytest.fixture
def dkms(request: pytest.FixtureRequest, program: str) -> Iterator[Dkms]:
    """Yield DKMS with a copy of this tree as the source of the module."""
    source, release = tree_of(new_guest(request.param))
    folder = Path(tempfile.mkdtemp(prefix="dkms-", dir=cache_dir()))
    copy = folder / "sourcetree/mmpolicy-0.1.0"
    copy.mkdir(parents=True)
    for name in SOURCES:
        (shutil.copytree if (TREE / name).is_dir() else shutil.copy)(TREE / name, copy / name)
    (folder / "dkmstree").mkdir()
    (folder / "installtree" / release).mkdir(parents=True)
    yield Dkms(program, folder, source, release)
    shutil.rmtree(folder)


def build_and_install(dkms: Dkms) -> Path:
    """Let DKMS add, build and install the module; return the installed file."""
    dkms.run("add")
    dkms.run("build")
    dkms.run("install")
    assert f"{dkms.release}, x86_64: installed" in dkms.run("status")
    (module,) = dkms.installed()
    assert "updates/dkms" in str(module)
    return module


@pytest.mark.parametrize("dkms", ["patched"], indirect=True)
def test_module(dkms: Dkms, machines: Machines) -> None:
    """A module that DKMS builds for a kernel with hooks can be loaded. After DKMS has removed it,
    no file is left.
    """
    guest = machines.get(mem="2G", cpus=2, swap="1G")
    module = build_and_install(dkms)
    assert must(guest, f"modinfo -F version {module}") == "0.1.0\n"
    must(guest, f"insmod {module} && cat {ROOT}/state && rmmod mmpolicy")
    dkms.run("remove")
    assert not dkms.installed()


@pytest.mark.parametrize("dkms", ["patched"], indirect=True)
def test_a_module_that_cannot_be_built(dkms: Dkms, machines: Machines) -> None:
    """If the module cannot be built, DKMS still succeeds, so that the installation of a kernel goes
    on. An attempt to load the module then fails with an error that names the log of the build.
    """
    with (dkms.folder / "sourcetree/mmpolicy-0.1.0/module/core.c").open("a") as core:
        core.write("#error this kernel is too new\n")
    module = build_and_install(dkms)
    guest = machines.get(mem="2G", cpus=2, swap="1G")
    assert guest.run(f"insmod {module}").rc
    assert "make.log" in must(guest, "dmesg | grep -i mmpolicy | tail -n 1")
    (log,) = dkms.folder.rglob("make.log")
    assert "this kernel is too new" in log.read_text()


@pytest.mark.flavor("unpatched")
@pytest.mark.parametrize("dkms", ["unpatched"], indirect=True)
def test_stub(dkms: Dkms, machines: Machines) -> None:
    """For a kernel without hooks, DKMS builds a stub module. It cannot be loaded, and the error
    names the reason.
    """
    guest = machines.get("unpatched", mem="1G")
    module = build_and_install(dkms)
    assert guest.run(f"insmod {module}").rc
    assert "mmpolicy: " in (last := must(guest, "dmesg | grep -i mmpolicy | tail -n 1"))
    assert "CONFIG_MM_POLICY" in last
    assert "mmpolicy" not in must(guest, "cat /proc/modules")
    dkms.run("remove")
    assert not dkms.installed()
