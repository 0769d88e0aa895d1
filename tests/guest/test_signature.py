# SPDX-License-Identifier: GPL-2.0
"""Signed modules on Debian's kernel under Secure Boot, with a key that the firmware knows."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.guest import Guest
from lab.machine import Kernel, cache_dir
from lab.programs import must

from .conftest import Machines
from .tools import folios, switch

pytestmark = [pytest.mark.flavor("cloud"), pytest.mark.amd64("boots by the firmware of amd64")]
SECONDS = 80.0  # rough duration of each test, for the schedule

NEW_KEY = "openssl req -new -x509 -nodes -newkey rsa:2048 -days 9 -outform DER"


def key(folder: Path, name: str) -> tuple[Path, Path]:
    """Make a private key and its certificate; return the files with both."""
    paths = folder / f"{name}.priv", folder / f"{name}.der"
    argv = [*NEW_KEY.split(), "-subj", f"/CN={name}/", "-keyout", str(paths[0])]
    subprocess.run([*argv, "-out", str(paths[1])], check=True, capture_output=True)
    return paths


def sign(kernel: Kernel, folder: Path, name: str) -> tuple[Path, Path]:
    """Sign the module with a new key; return the file of the signed module, and the certificate of
    the key.
    """
    assert kernel.modules
    signed = folder / f"{name}.ko"
    (tool,) = kernel.image.parent.glob("root/usr/lib/linux-kbuild-*/scripts/sign-file")
    private, certificate = key(folder, name)
    unsigned = kernel.modules / "updates/mmpolicy.ko"
    subprocess.run([tool, "sha256", private, certificate, unsigned, signed], check=True)
    return signed, certificate


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder that guests can read; it is removed at the end."""
    path = Path(tempfile.mkdtemp(prefix="keys-", dir=cache_dir()))
    yield path
    shutil.rmtree(path)


def refused(guest: Guest, why: str) -> None:
    """Check that the kernel refuses to load the module, and that `doctor` says why and
    what to do.
    """
    assert guest.run("mmpolicy load").rc
    text = guest.run("mmpolicy doctor").out
    assert f"warn  signature   {why}\n      next: mokutil --import" in text


@pytest.mark.long
def test_who_has_signed(machines: Machines, folder: Path) -> None:
    """With signatures required, a module that is not signed, or signed with an unknown key, is
    refused; one that is signed with an enrolled key is loaded.
    """
    kernel = Kernel.of_flavor("6.12", "cloud")
    known, certificate = sign(kernel, folder, "enrolled")
    unknown, _ = sign(kernel, folder, "stranger")
    guest = machines.get("cloud", mem="2G", key=certificate)
    must(guest, "mount -t securityfs none /sys/kernel/security")
    must(guest, "dmesg | grep -q 'Secure boot enabled'")
    assert "[integrity]" in must(guest, "cat /sys/kernel/security/lockdown")
    refused(guest, "the kernel accepts only signed modules, and this module is not signed")
    place = "/lib/modules/$(uname -r)/updates/mmpolicy.ko"
    must(guest, f"cp {unknown} {place}")
    refused(guest, "the module is signed by 'stranger', whose key the kernel does not know")
    must(guest, f"cp {known} {place} && mmpolicy load")
    assert ("the module is signed by 'enrolled', whose key the kernel knows") in must(
        guest, "mmpolicy doctor"
    )
    switch(guest, "fixed")
    assert folios(guest, "map 1024 touch 0 1024 folios 0 1024") == [{4: 1024}]
