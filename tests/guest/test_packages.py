# SPDX-License-Identifier: GPL-2.0
"""The packages on a Debian with systemd: install, boot, restart, upgrade, and remove."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.guest import SERIES, Guest, new_guest
from lab.policies import example
from lab.programs import must, workload
from mmpolicy.host.bpf import PINS

from .sessions import for_one_service, replay
from .system import (
    AMD64,
    HOST,
    LIST,
    System,
    debian_kernels,
    dev,
    folder_of_root,
    listing,
    new_system,
    packages,
)
from .tools import ROOT, readme

SECONDS = 60.0  # rough duration of each test, for the schedule
FULL = "full" in os.environ.get("MMPOLICY_FLAVORS", "full").split()
PAGES = 2048
pytestmark = AMD64
# A service that has its own view of /proc and /sys, as many services have. It writes the folios
# that its memory got to a file.
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
# Folder in the system with modules that were built on this machine, as a compiler takes minutes in
# an emulated guest.
BUILT = "/usr/share/mmpolicy-dkms"
# Debian's kernel is tested only on 6.12: the packages of later kernels need other packages of a
# later Debian.
KERNELS = ("patched", "cloud") if SERIES == "6.12" else ("patched",)
KEEP_BUILT = """
dkms mktarball mmpolicy/{0} -k $(ls /lib/modules) --archive=mmpolicy-{0}.dkms.tar.gz
mv /var/lib/dkms/mmpolicy/{0}/tarball/* /root
"""
# Settings by which DKMS signs modules with a key of this host, and the command that makes the key.
KEY = "mok_signing_key=/root/key.priv\nmok_certificate=/root/key.der\n"
NEW_KEY = (
    "openssl req -new -x509 -nodes -newkey rsa:2048 -subj '/CN=mmpolicy test/' -days 9 "
    "-keyout /root/key.priv -outform DER -out /root/key.der 2>/dev/null"
)
# Without these drivers, depmod is fast: it reads all modules, which takes a minute in an emulated
# guest.
FEWER_DRIVERS = "rm -rf /lib/modules/*/kernel/drivers /lib/modules/*/kernel/net && depmod -a {}"
# A script that makes packages from the given ones, which differ only in a newer version.
NEWER = r"""
for file in {files}; do
    version=$(dpkg-deb -f $file Version)
    dpkg-deb -R $file /root/newer && sed -i "s/$version/&.1/g" /root/newer/DEBIAN/control &&
        dpkg-deb -Znone -b /root/newer $file && rm -r /root/newer || exit
done
"""
# Files of a BPF policy of the user: its object file, and a manifest that loads it at each boot.
OWN, KEPT = "/root/own.bpf.o", "/etc/mmpolicy/60-own.toml"
SAVE = f"cp {{}} {OWN} && mmpolicy policy replace {OWN} && mmpolicy save {KEPT}"
GONE = f'until [ -z "$(cat {ROOT}/bpf/slot*/name 2>/dev/null | xargs)" ]; do sleep 0.1; done'
REDIS = "[Service]\nPrivateUsers=no\n"  # the lean kernel has no user namespaces
YES = 'APT::Get::Assume-Yes "true";\n'
IN_AND_OUT = "Install and remove"  # of README.md


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.flavor(name)) for name in KERNELS],
)
def flavor(request: pytest.FixtureRequest) -> str:
    """Return the name of the kernel to test on: one with the hooks, and once the kernel of the
    Debian that is installed here.
    """
    return str(request.param)


@pytest.fixture(scope="module")
def folder(flavor: str) -> Iterator[Path]:
    """Yield a folder for a Debian system; its files belong to root."""
    with folder_of_root("system") as path:
        yield path


@pytest.fixture(scope="module")
def system(folder: Path, flavor: str) -> System:
    """Return a Debian system with two services, on which mmpolicy is not installed."""
    system = new_system(folder, flavor)
    for name in ("bound", "free"):
        system.put(f"etc/systemd/system/{name}.service", SERVICE)
    system.put("etc/systemd/system/redis-server.service.d/lean.conf", REDIS)
    system.put("etc/dkms/framework.conf.d/key.conf", KEY)
    system.put("etc/apt/apt.conf.d/90yes", YES)
    system.run(f"systemctl enable bound free; {NEW_KEY}; {FEWER_DRIVERS.format(system.release)}")
    return system


@pytest.fixture(scope="module")
def before(system: System) -> set[str]:
    """Return the list of all files in the Debian system before mmpolicy is installed."""
    return listing(system.run(LIST))


@pytest.fixture(scope="module")
def installed(system: System, before: set[str], folder: Path) -> System:
    """Return the Debian system with packages of mmpolicy whose version is newer than that of the
    packages that other tests install.
    """
    system.run(f"dpkg -i {system.add(*packages(folder, '0.1.1'))} && {KEEP_BUILT.format('0.1.1')}")
    return system


@pytest.fixture(scope="module")
def guest(
    request: pytest.FixtureRequest, system: System, before: set[str], flavor: str
) -> Iterator[Guest]:
    """Yield a guest with this Debian system, in which mmpolicy's packages are installed. Before,
    packages of a newer version are removed from it, which must leave no file.
    """
    if flavor == "patched" or FULL:
        request.getfixturevalue("installed").run("apt-get purge -q mmpolicy mmpolicy-dkms")
        assert listing(system.run(LIST)) == before  # a removal without systemd running
    system.run(f"dpkg -i {system.add(*dev('package'))} && {KEEP_BUILT.format('0.1.0')}")
    system.run(f"mkdir {BUILT} && mv /root/*.dkms.tar.gz {BUILT}")
    system.put("etc/mmpolicy/50-web.toml", MANIFEST)
    words = "transparent_hugepage=madvise"  # Debian's kernel would give huge pages to all programs
    with new_guest(flavor, mem="3G", cpus=2, root=system.folder, append=words) as guest:
        must(guest, "systemctl is-system-running --wait", timeout=600)
        yield guest


def folios(guest: Guest, unit: str) -> dict[str, int]:
    """Return the folios that a service has printed when it started."""
    wait = f"for i in $(seq 600); do [ -s /run/{unit} ] && break; sleep 0.1; done"
    found = json.loads(must(guest, f"{wait}; cat /run/{unit}"))
    return {order: count for order, count in found.items() if order != "none"}


SMALL, LARGE = {"0": PAGES}, {"4": PAGES}


def started_again(guest: Guest, unit: str) -> dict[str, int]:
    """Restart a service; return the folios that its memory gets."""
    must(guest, f"rm /run/{unit}; systemctl restart {unit}")
    return folios(guest, unit)


def module_of(system: System, release: str) -> list[str]:
    """Return for the module that a kernel of this release would load: the kernel version it was
    built for, and who signed it.
    """
    fields = (f"modinfo -k {release} -F {field} mmpolicy" for field in ("vermagic", "signer"))
    text = system.run("; ".join(fields))
    return [text.split()[0], text.splitlines()[-1]]


@pytest.mark.full
@pytest.mark.parametrize("flavor", ["cloud"], indirect=True)
@pytest.mark.flavor("cloud")
def test_another_kernel(installed: System) -> None:
    """Another kernel of Debian can be installed, upgraded and removed while mmpolicy is installed.
    Each installed kernel has a signed module of its own.
    """
    other, ours = debian_kernels()
    assert ours == installed.release
    files = installed.add(*debian_kernels()[other])
    for newer in ("", NEWER.format(files=files)):
        installed.run(f"{newer}\ndpkg -i {files}")
        versions = installed.run(f"dpkg-query -W -f '${{Version}}\n' 'linux-image-{other}'")
        assert versions.endswith(".1\n") == bool(newer)
        for release in (other, ours):
            assert module_of(installed, release) == [release, "mmpolicy test"]
    names = [package.name.partition("_")[0] for package in debian_kernels()[other]]
    installed.run(f"apt-get purge -q {' '.join(names)}")
    assert other not in installed.run("dkms status; ls /lib/modules")
    assert module_of(installed, ours) == [ours, "mmpolicy test"]


def test_boot(guest: Guest) -> None:
    """After a boot of a system with the packages, mmpolicy.service is active, and the policy
    decides only about the service that the manifest binds.
    """
    assert must(guest, "systemctl is-active mmpolicy mmpolicy-verify.timer") == "active\n" * 2
    assert must(guest, "systemctl --failed --plain --no-legend") == ""
    assert must(guest, "cat /sys/module/mmpolicy/version") == "0.1.0\n"
    assert (folios(guest, "bound"), folios(guest, "free")) == (LARGE, SMALL)


def test_restart(guest: Guest) -> None:
    """After a restart, a service has a new cgroup. The policy of its profile decides there from the
    first page on, also for a service that was bound by `bind --unit`.

    `log` lists the start, and `revert` applies to the new cgroup.
    """
    assert started_again(guest, "bound") == LARGE
    must(guest, "mmpolicy bind --unit free web")
    assert started_again(guest, "free") == LARGE
    told = [line.split()[1:] for line in must(guest, "mmpolicy log").splitlines()]
    assert ["/system.slice/free.service", "web"] in told
    group = must(guest, "stat -c %i /sys/fs/cgroup/system.slice/free.service").strip()
    bound = f"cat {ROOT}/profiles/web/cgroups"
    assert group in must(guest, bound).split()
    must(guest, "mmpolicy revert")
    assert group not in must(guest, bound).split()
    assert started_again(guest, "free") == SMALL
    must(guest, "! journalctl -q -t mmpolicy-generator -t mmpolicy -p err | grep .")


KNOB = "/sys/kernel/mm/transparent_hugepage/khugepaged/alloc_sleep_millisecs"
RUN = f"""
systemd-run -q --unit=run --working-directory=/root mmpolicy ab run --block 5 --washout 1 \\
    --aa-pairs 0 --pairs 99 --treatment khugepaged/alloc_sleep_millisecs=60001 \\
    --metric 'vmstat.pgfault/s lower'
until [ $(cat {KNOB}) = 60001 ]; do sleep 0.1; done
cd /sys/fs/cgroup/system.slice/run.service
echo 1 >cgroup.freeze
until grep -q 'frozen 1' cgroup.events; do sleep 0.1; done
echo 1 >cgroup.kill
until [ $(cat {KNOB}) = 60000 ] && [ ! -e /run/mmpolicy/knobs.json ]; do sleep 0.1; done
"""


def test_an_experiment_that_is_killed_as_a_whole(guest: Guest) -> None:
    """If an experiment and its watchdog are killed at the same moment, mmpolicy-restore.service
    restores the knob that they have changed.

    The cgroup of both is frozen before the kill: otherwise the watchdog might restore the knob in
    the moment between.
    """
    assert must(guest, f"cat {KNOB}") == "60000\n"
    must(guest, RUN, timeout=300)
    must(guest, "until systemctl show -p ActiveState mmpolicy-restore | grep inactive; do :; done")
    assert "restored the knobs that a killed" in must(guest, "journalctl -b -u mmpolicy-restore")
    must(guest, "systemctl reset-failed run; rm /root/ab-*.jsonl")


@pytest.mark.parametrize("flavor", ["patched"], indirect=True)
def test_drift(guest: Guest) -> None:
    """mmpolicy-verify.service fails while the settings differ from those of the manifest, and
    succeeds after the manifest was applied again.
    """
    must(guest, "systemctl start mmpolicy-verify")
    must(guest, "mmpolicy set anon_order never")
    assert guest.run("systemctl start mmpolicy-verify").rc
    assert must(guest, "systemctl show -p ExecMainStatus --value mmpolicy-verify") == "6\n"
    must(guest, "systemctl reload mmpolicy && systemctl start mmpolicy-verify")


@pytest.mark.parametrize("flavor", ["patched"], indirect=True)
def test_stop(guest: Guest) -> None:
    """After mmpolicy.service is stopped, all policies are at stock, and services still start. The
    next start of mmpolicy.service binds them again.
    """
    must(guest, "systemctl stop mmpolicy && [ ! -e /sys/module/mmpolicy ]")
    assert guest.run("systemctl is-active mmpolicy-verify.timer").out == "inactive\n"
    assert started_again(guest, "bound") == SMALL
    must(guest, "systemctl start mmpolicy")
    group = must(guest, "stat -c %i /sys/fs/cgroup/system.slice/bound.service").strip()
    assert must(guest, f"cat {ROOT}/profiles/web/cgroups").split() == [group]


@pytest.fixture
def with_program(guest: Guest, system: System, flavor: str) -> Iterator[None]:
    """Install the package mmpolicy-bpf on the system with Debian's kernel, and load a BPF policy.
    Its program keeps the module from being unloaded.
    """
    if flavor == "cloud":
        (package,) = (path for path in dev("package", "--bpf") if "-bpf_" in path.name)
        must(guest, f"dpkg -i {system.add(package)}", timeout=600)
        must(guest, f"mmpolicy policy load {HOST}{example('fixed')}")
        must(guest, "mmpolicy set anon_order fixed64")
        assert guest.run("rmmod mmpolicy").rc
    yield
    guest.run(f"rm -rf {PINS}; {GONE}")


@pytest.mark.full
@pytest.mark.usefixtures("with_program")
@pytest.mark.parametrize(
    "flavor",
    ["patched", pytest.param("cloud", marks=pytest.mark.flavor("cloud"))],
    indirect=True,
)
def test_upgrade(guest: Guest, flavor: str) -> None:
    """If the packages are upgraded while policies are active, one of them in BPF, all policies go
    to stock, the newer module is loaded, and the same policies are set again.
    """
    by_default = SMALL
    if flavor == "cloud":
        must(guest, SAVE.format(f"{HOST}{example('fixed')}"))
        by_default = LARGE
    assert started_again(guest, "free") == by_default
    must(guest, "dpkg -i /root/mmpolicy*_0.1.1_all.deb", timeout=1200)
    assert must(guest, "cat /sys/module/mmpolicy/version; mmpolicy --version").split() == [
        "0.1.1", "mmpolicy,", "version", "0.1.1"
    ]  # fmt: skip
    assert "unloaded, the kernel is stock again" in must(guest, "mmpolicy log")
    must(guest, "systemctl is-active mmpolicy mmpolicy-verify.timer")
    assert (started_again(guest, "bound"), started_again(guest, "free")) == (LARGE, by_default)
    assert "installed" in must(guest, "dkms status mmpolicy/0.1.1")
    must(guest, f"rm -f {OWN} {KEPT}; [ ! -e /var/lib/dkms/mmpolicy/0.1.0 ]")


@pytest.fixture
def tidy(guest: Guest) -> Iterator[Guest]:
    """Yield the guest in the state after the installation of the packages, and restore this state
    at the end.
    """
    must(guest, "rm -f /etc/mmpolicy/50-web.toml; systemctl restart mmpolicy redis-server")
    yield guest
    must(guest, "systemctl -q stop load; mmpolicy reset")


@pytest.mark.parametrize("flavor", ["patched"], indirect=True)
def test_readme_for_one_service(tidy: Guest, tmp_path: Path) -> None:
    """The steps of README.md for one service work with Debian's redis."""
    for_one_service(tidy, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("flavor", ["patched"], indirect=True)
def test_tutorial(tidy: Guest, tmp_path: Path) -> None:
    """Each command of the tutorial prints the output that the tutorial shows, if a new user types
    them after the installation.
    """
    replay(tidy, "tutorial", tmp_path)


def as_printed(guest: Guest, commands: list[str]) -> str:
    """Run commands as a user would type them, and return their output. Commands that run for ever,
    such as those with --watch, are ended.
    """
    watch = "cd /root; timeout -s INT 20 {}\ntrue"
    typed = ((watch if "--watch" in each else "cd /root; {}").format(each) for each in commands)
    return "".join(must(guest, each, timeout=900) for each in typed)


@pytest.mark.usefixtures("with_program")
def test_out(guest: Guest, before: set[str]) -> None:
    """The commands in README.md that remove mmpolicy remove the module and all of
    mmpolicy's files.
    """
    as_printed(guest, readme(IN_AND_OUT)[1])
    assert guest.run(f"ls -d {ROOT} /sys/module/mmpolicy /run/mmpolicy").rc
    assert started_again(guest, "bound") == SMALL
    left = listing(must(guest, LIST, timeout=600))
    assert {line for line in left if BUILT not in line} == before


@pytest.mark.skipif(SERIES != "6.12", reason="Debian 12 has no such kernel")
@pytest.mark.parametrize("flavor", ["cloud"], indirect=True)
@pytest.mark.flavor("cloud")
def test_readme(guest: Guest) -> None:
    """The five commands in README.md that install mmpolicy work on Debian's kernel, and a policy
    then takes effect.
    """
    commands = readme(IN_AND_OUT)[0]
    assert len(commands) == 5
    text = as_printed(guest, commands)
    assert "Policies can be switched (exit 0)" in text and "requested_order_4" in text
    assert started_again(guest, "free").get("4", 0) > PAGES / 2
