# SPDX-License-Identifier: GPL-2.0
"""The packages on a Debian with systemd: in, boot, restart, upgrade, and out again."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from common import must, new_guest, workload
from machine import cache_dir
from vm import Guest

from .system import HOST, LIST, System, dev, listing, new_system, packages
from .tools import ROOT

LONG = True
PAGES = 2048
# As services are: their own view of /proc and /sys. What maps their memory is told to a file.
SERVICE = f"""\
[Service]
ExecStart={HOST}{workload("ops")} map {PAGES} touch 0 {PAGES} folios 0 {PAGES} sh "sleep infinity"
StandardOutput=truncate:/run/%N
ProtectSystem=strict
ProtectKernelTunables=yes
PrivateTmp=yes

[Install]
WantedBy=multi-user.target
"""
MANIFEST = """\
version = 1

[profiles.web.anon_order]
policy = "fixed"

[profiles.web.anon_order.fixed]
max_order = 4

[bindings]
"bound.service" = "web"
"absent.service" = "web"
"""
# Where the package looks for modules that were built elsewhere: compilers take
# minutes in an emulated guest.
BUILT = "/usr/share/mmpolicy-dkms"
KEEP_BUILT = """
dkms mktarball mmpolicy/0.1.1 -k $(ls /lib/modules) --archive=mmpolicy-0.1.1.dkms.tar.gz
mv /var/lib/dkms/mmpolicy/0.1.1/tarball/* /root
"""
INSTALL = "apt-get install -q -y --no-install-recommends"
CLOUD_KERNELS = (
    "apt-cache search -n '^linux-image-6[.]12[.][0-9]+[+].*-cloud-amd64$' | "
    "sed -E 's/^linux-image-(\\S+) .*/\\1/' | sort -V"
)
NEW_KEY = (
    "openssl req -new -x509 -nodes -newkey rsa:2048 -subj '/CN=mmpolicy test/' -days 9 "
    "-keyout /root/key.priv -outform DER -out /root/key.der 2>/dev/null"
)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Where the system is; it has files of root."""
    if os.geteuid():
        pytest.skip("a Debian of its own takes root to install and to serve to the guest")
    path = Path(tempfile.mkdtemp(prefix="system-", dir=cache_dir()))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def system(folder: Path) -> System:
    """A Debian with two services, and nothing of ours."""
    system = new_system(folder, "patched")
    for name in ("bound", "free"):
        system.put(f"etc/systemd/system/{name}.service", SERVICE)
    system.run("systemctl enable bound free")
    return system


@pytest.fixture(scope="module")
def before(system: System) -> set[str]:
    """All files of it."""
    return listing(system.run(LIST))


@pytest.fixture(scope="module")
def guest(system: System, before: set[str], folder: Path) -> Iterator[Guest]:
    """A guest that has booted it with the packages, and has newer ones beside."""
    newer = system.add(*packages(folder, "0.1.1"))
    system.run(f"dpkg -i {newer} && {KEEP_BUILT}")
    system.run("apt-get purge -q -y mmpolicy mmpolicy-dkms")
    assert listing(system.run(LIST)) == before  # also where nothing runs
    system.run(f"mkdir {BUILT} && mv /root/*.dkms.tar.gz {BUILT}")
    system.run(f"dpkg -i {system.add(*dev('package'))}")
    system.put("etc/mmpolicy/50-web.toml", MANIFEST)
    with new_guest("patched", mem="3G", root=system.folder) as guest:
        must(guest, "systemctl is-system-running --wait", timeout=600)
        yield guest


def folios(guest: Guest, unit: str) -> dict[str, int]:
    """How the memory of a service is made up."""
    wait = f"for i in $(seq 100); do [ -s /run/{unit} ] && break; sleep 0.1; done"
    found = json.loads(must(guest, f"{wait}; cat /run/{unit}"))
    return {order: count for order, count in found.items() if order != "none"}


SMALL, LARGE = {"0": PAGES}, {"4": PAGES}


def started_again(guest: Guest, unit: str) -> dict[str, int]:
    """The same after a restart."""
    must(guest, f"rm /run/{unit}; systemctl restart {unit}")
    return folios(guest, unit)


def test_boot(guest: Guest) -> None:
    """The service is active, and its policy decides for the service that is bound, alone."""
    assert must(guest, "systemctl is-active mmpolicy mmpolicy-verify.timer") == "active\n" * 2
    assert must(guest, "systemctl --failed --plain --no-legend") == ""
    assert must(guest, "cat /sys/module/mmpolicy/version") == "0.1.0\n"
    assert (folios(guest, "bound"), folios(guest, "free")) == (LARGE, SMALL)


def test_restart(guest: Guest) -> None:
    """A new cgroup, and the policy again from the first page on; `bind --unit` does the same."""
    assert started_again(guest, "bound") == LARGE
    must(guest, "mmpolicy bind --unit free web; systemctl daemon-reload")
    assert started_again(guest, "free") == LARGE
    must(guest, "mmpolicy unbind --unit free")
    assert started_again(guest, "free") == SMALL
    must(guest, "! journalctl -q -t mmpolicy-generator -t mmpolicy -p err | grep .")


def test_drift(guest: Guest) -> None:
    """What the timer runs fails where the state is another one, until it is applied again."""
    must(guest, "systemctl start mmpolicy-verify")
    must(guest, "mmpolicy set anon_order never")
    assert guest.run("systemctl start mmpolicy-verify").rc
    assert must(guest, "systemctl show -p ExecMainStatus --value mmpolicy-verify") == "6\n"
    must(guest, "systemctl reload mmpolicy && systemctl start mmpolicy-verify")


def test_stop(guest: Guest) -> None:
    """All is stock, services start all the same, and are bound again when it is back."""
    must(guest, "systemctl stop mmpolicy && [ ! -e /sys/module/mmpolicy ]")
    assert guest.run("systemctl is-active mmpolicy-verify.timer").out == "inactive\n"
    assert started_again(guest, "bound") == SMALL
    must(guest, "systemctl start mmpolicy")
    group = must(guest, "stat -c %i /sys/fs/cgroup/system.slice/bound.service").strip()
    assert must(guest, f"cat {ROOT}/profiles/web/cgroups").split() == [group]


def test_upgrade(guest: Guest) -> None:
    """With policies active: stock, the newer module, the same policies."""
    must(guest, "dpkg -i /root/*_0.1.1_all.deb", timeout=600)
    assert must(guest, "cat /sys/module/mmpolicy/version; mmpolicy --version").split() == [
        "0.1.1", "mmpolicy,", "version", "0.1.1"
    ]  # fmt: skip
    assert "unloaded, the kernel is stock again" in must(guest, "mmpolicy log")
    must(guest, "systemctl is-active mmpolicy mmpolicy-verify.timer")
    assert started_again(guest, "bound") == LARGE
    assert "installed" in must(guest, "dkms status mmpolicy/0.1.1")
    must(guest, "[ ! -e /var/lib/dkms/mmpolicy/0.1.0 ]")


def test_out(guest: Guest, before: set[str]) -> None:
    """The module is gone from the kernel, and every file from the disk."""
    must(guest, f"rm -r {BUILT}; apt-get purge -q -y mmpolicy mmpolicy-dkms", timeout=600)
    assert guest.run(f"ls -d {ROOT} /sys/module/mmpolicy /run/mmpolicy").rc
    assert started_again(guest, "bound") == SMALL
    assert listing(must(guest, LIST, timeout=600)) == before


@pytest.mark.full
def test_kernel_of_debian(folder: Path) -> None:
    """It comes and goes beside us; apt is content, and there is a module, which is signed."""
    system = new_system(folder / "kernel", "patched")
    shutil.copy("/etc/resolv.conf", system.folder / "etc/resolv.conf")
    system.put("etc/dkms/framework.conf.d/key.conf",
               "mok_signing_key=/root/key.priv\nmok_certificate=/root/key.der\n")  # fmt: skip
    system.run(f"apt-get update -q && {INSTALL} openssl && {NEW_KEY}")
    system.run(f"dpkg -i {system.add(*dev('package'))}")
    release = system.run(f"{CLOUD_KERNELS} | tail -n 1").strip()
    system.run(f"{INSTALL} linux-headers-{release}")
    assert system.run(f"modinfo -k {release} -F signer mmpolicy") == "mmpolicy test\n"
    assert f"{release}, x86_64: installed" in system.run("dkms status")
    system.run(f"apt-get purge -q -y linux-image-{release} linux-headers-{release}")
    assert release not in system.run("dkms status")
