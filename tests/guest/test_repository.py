# SPDX-License-Identifier: GPL-2.0
"""Modules that were built on another machine: a Debian without a compiler installs them from a
repository on its disk.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.guest import new_guest
from lab.machine import Kernel
from lab.programs import must, workload

from .system import AMD64, HOST, System, debian_kernels, dev, folder_of_root
from .test_signature import key
from .tools import ROOT, readme

pytestmark = [pytest.mark.flavor("cloud"), pytest.mark.full, AMD64]

SECONDS = 250.0  # rough duration of each test, for the schedule
PAGES = 2048
PLACE = "srv/mmpolicy"  # path of the package repository within the system
YES = 'APT::Get::Assume-Yes "true";\n'
BARE = """
apt-get purge -q -y --autoremove dkms pahole gcc-12 cpp-12 make binutils || exit
rm -rf /etc/apt/sources.list* && mkdir /etc/apt/sources.list.d
for each in gcc cc make ld dkms; do ! command -v $each || exit; done
"""
# A script that prints the files of mmpolicy that are left in the system, except in places where the
# test itself puts files.
LEFT = r"""
find / -xdev \( -path /proc -o -path /sys -o -path /run -o -path /srv -o -path /root -o -path /tmp \
    -o -path /etc/apt -o -path /usr/share/keyrings -o -path '/var/l*' -o -path /var/cache \
    \) -prune -o -name '*mmpolicy*' -print -o -path '/usr/lib/modules/*/updates' -print
"""
GPG = "gpg --batch --passphrase= --quick-generate-key"
WHO = "modules@mmpolicy.example"
KERNEL = "linux-image-cloud-amd64"  # Debian's metapackage that depends on its newest kernel


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a folder for the system and its signing keys; gpg has a key in it."""
    with folder_of_root("repository") as path:
        gpg = path / "gpg"
        gpg.mkdir(mode=0o700)
        monkeypatch.setenv("GNUPGHOME", str(gpg))
        subprocess.run([*GPG.split(), WHO], check=True, capture_output=True)
        yield path
        subprocess.run(["gpgconf", "--kill", "all"], check=True)


@pytest.fixture
def system(folder: Path) -> System:
    """Return a Debian system that has no compiler, no sources for apt, and no kernel."""
    (base,) = dev("root")
    kernel = Kernel.of_flavor("6.12", "cloud")
    assert kernel.modules
    system = System(folder / "root", (kernel.image.parent / "src").resolve(), kernel.modules.name)
    subprocess.run(["cp", "-a", base, system.folder], check=True)
    system.run(BARE)
    system.put("etc/apt/apt.conf.d/90yes", YES)
    return system


def publish(system: System, folder: Path, *releases: str) -> Path:
    """Put signed modules for these kernel releases into the package repository of the system;
    return the certificate of the key that has signed them.
    """
    private, certificate = folder / "module.priv", folder / "module.der"
    if not certificate.exists():
        private, certificate = key(folder, "module")
    words = ["package", "--modules", *releases, "--sign", str(private), str(certificate)]
    dev(*words, "--repository", str(system.folder / PLACE), "--signed-by", WHO)
    return certificate


def image(release: str) -> Path:
    """Return the Debian package with the image of the kernel of this release."""
    return next(each for each in debian_kernels()[release] if each.name.startswith("linux-image"))


def signer(system: System, release: str) -> str:
    """Return who has signed the module that a kernel of this release would load."""
    return system.run(f"modinfo -k {release} -F signer mmpolicy").strip()


def test_five_commands(system: System, folder: Path) -> None:
    """The five commands in docs/host.md install a signed module, which can be loaded under Secure
    Boot. After mmpolicy was removed, no file of it is left.
    """
    certificate = publish(system, folder, system.release)
    system.run(f"dpkg -i {system.add(image(system.release))}")
    _, commands = readme("Without a compiler", "docs/host.md")
    assert len(commands) == 5
    words = "transparent_hugepage=madvise"  # Debian's kernel would give huge pages to all programs
    with new_guest("cloud", mem="2G", root=system.folder, key=certificate, append=words) as guest:
        must(guest, "systemctl is-system-running --wait", timeout=600)
        for command in commands:
            must(guest, command, timeout=900)
        found = must(guest, f"{HOST}{workload('ops')} map {PAGES} touch 0 {PAGES} folios 0 {PAGES}")
        assert json.loads(found).get("4", 0) > PAGES / 2
        must(guest, "mount -t securityfs none /sys/kernel/security || true")
        assert ("the module is signed by 'module', whose key the kernel knows") in must(
            guest, "mmpolicy doctor"
        )
        must(guest, "systemctl is-active mmpolicy && apt purge mmpolicy mmpolicy-modules")
        assert guest.run(f"ls -d {ROOT} /sys/module/mmpolicy").rc
        assert must(guest, LEFT) == ""


def test_kernel_and_module_come_together(system: System, folder: Path) -> None:
    """One upgrade of the system installs a new kernel together with its module. A purge of mmpolicy
    removes all modules, and leaves both kernels.
    """
    old, new = debian_kernels()
    place = system.folder / PLACE
    place.mkdir(parents=True)
    for version, release in (("1", old), ("2", new)):
        shutil.copy(image(release), place)
        meta = folder / f"meta-{version}"
        (meta / "DEBIAN").mkdir(parents=True)
        fields = f"Package: {KERNEL}\nVersion: {version}\nArchitecture: amd64\n"
        fields += f"Maintainer: {WHO}\nDescription: kernel\nDepends: linux-image-{release}\n"
        (meta / "DEBIAN/control").write_text(fields)
    make = ["dpkg-deb", "--build", str(folder / "meta-1"), str(place)]
    subprocess.run(make, check=True, capture_output=True)
    publish(system, folder, old)
    for command in readme("Without a compiler", "docs/host.md")[1][:3]:
        system.run(command)
    system.run(f"apt install {KERNEL} mmpolicy mmpolicy-modules")
    assert signer(system, old) == "module"
    assert new not in system.run("ls /lib/modules")

    subprocess.run([*make[:2], str(folder / "meta-2"), str(place)], check=True, capture_output=True)
    publish(system, folder, old, new)
    system.run("apt update && apt upgrade")
    assert [signer(system, release) for release in (old, new)] == ["module", "module"]
    system.run("apt purge mmpolicy mmpolicy-modules")
    assert system.run(LEFT) == ""
    assert f"{old}\n{new}\n" in system.run("ls /lib/modules")
