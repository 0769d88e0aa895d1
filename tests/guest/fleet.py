# SPDX-License-Identifier: GPL-2.0
"""Three hosts that Ansible manages in a test: virtual machines with Debian and its kernel, without
a compiler, and with an ssh server.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from controller import Controller
from lab.guest import Guest, new_guest
from lab.machine import Kernel
from lab.programs import must

from .system import System, debian_kernels, dev

HOSTS = 3
# Commands that configure the network of a host. Its virtual machine has no udev, so nothing loads
# the driver.
NETWORK = "modprobe virtio_net && /run/vm/busybox ifconfig eth0 10.0.2.15"
# Each test has another host key, so none is checked; ssh does not take a slow host for lost.
SSH = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o ServerAliveInterval=30"
PATIENCE_S = 120


REPOSITORY = "srv/mmpolicy"
SOURCE = f"deb [trusted=yes] file:/{REPOSITORY} ./\n"
PACKAGES = ["mmpolicy", "mmpolicy-modules"]
INSTALL = f"apt-get install -y --no-install-recommends {' '.join(PACKAGES)}"


def host_system(folder: Path) -> System:
    """Return a Debian system with Debian's kernel, for all hosts of the fleet. mmpolicy is not
    installed, but its packages are in a repository in the system.
    """
    (base,) = dev("root", "--fleet")
    kernel = Kernel.of_flavor("6.12", "cloud")
    assert kernel.modules
    system = System(folder / "root", kernel.image.parent, kernel.modules.name)
    subprocess.run(["cp", "-a", base, system.folder], check=True)
    dev("package", "--modules", system.release, "--repository", str(system.folder / REPOSITORY))
    image = next(
        each for each in debian_kernels()[system.release] if each.name.startswith("linux-image")
    )
    system.run(f"rm -rf /etc/apt/sources.list*; dpkg -i {system.add(image)}")
    system.put("etc/apt/sources.list", SOURCE)
    system.run("apt-get update")
    return system


def free_ports(count: int) -> list[int]:
    """Return TCP ports that are free on this machine."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


class Fleet:
    """The booted hosts (virtual machines), and the files with which Ansible on this machine reaches
    them.
    """

    def __init__(self, guests: dict[str, Guest], pool: ThreadPoolExecutor, folder: Path) -> None:
        self.guests, self.pool = guests, pool
        self.connections = folder / "c"
        variables = {
            "ansible_host": "127.0.0.1",
            "ansible_user": "root",
            "ansible_ssh_private_key_file": str(folder / "key"),
            "ansible_ssh_args": "-o ControlMaster=auto -o ControlPersist=600",
            "ansible_ssh_common_args": SSH,
            "ansible_control_path_dir": str(self.connections),
            "ansible_pipelining": True,
            "ansible_ssh_timeout": PATIENCE_S,
            "ansible_python_interpreter": "/usr/bin/python3",
        }
        hosts = {name: {**variables, "ansible_port": each.ssh} for name, each in guests.items()}
        self.controller = Controller(folder, hosts)

    def each(self, command: str, timeout: float = 600) -> dict[str, str]:
        """Run a command on all hosts at the same time; return its output on each host, by the name
        of the host.
        """
        said = self.pool.map(lambda guest: must(guest, command, timeout), self.guests.values())
        return dict(zip(self.guests, said, strict=True))

    def disconnect(self) -> None:
        """Close the ssh connections that Ansible keeps open."""
        for path in self.connections.glob("*"):
            argv = ["ssh", "-S", str(path), "-O", "exit", "host"]
            subprocess.run(argv, capture_output=True, check=False)


def boot(system: System, port: int) -> Guest:
    """Boot one host of the fleet. port: the TCP port of this machine through which its ssh server
    is reached.
    """
    words = "transparent_hugepage=madvise"  # Debian's kernel would give huge pages to all programs
    guest = new_guest("cloud", mem="1536M", root=system.folder, append=words, ssh=port)
    guest.__enter__()
    return guest


@contextmanager
def booted(system: System) -> Iterator[Fleet]:
    """Boot the hosts, and yield the fleet. Each host writes to a layer of its own above the system
    that they share.
    """
    folder = Path(tempfile.mkdtemp(prefix="fleet-"))  # short, as the path of a socket is limited
    make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "key")]
    subprocess.run(make, check=True)
    system.put("root/.ssh/authorized_keys", (folder / "key.pub").read_text())
    # QEMU is killed when the thread that started it ends, so the threads must live as long as the
    # hosts.
    with ThreadPoolExecutor(HOSTS) as pool:
        begun = [pool.submit(boot, system, port) for port in free_ports(HOSTS)]
        try:
            guests = {f"host{number}": each.result() for number, each in enumerate(begun)}
            fleet = Fleet(guests, pool, folder)
            fleet.each(f"systemctl is-system-running --wait || true; {NETWORK}", timeout=900)
            yield fleet
            fleet.disconnect()
            for guest in guests.values():
                guest.check()
        finally:
            for each in begun:
                if not each.exception():
                    each.result().close()
            shutil.rmtree(folder, ignore_errors=True)


def changed_tasks(out: str) -> set[tuple[str, str]]:
    """Return (task, host) for each change that Ansible reports. With --check, these are changes
    that it would make.
    """
    found, task = set(), ""
    for line in out.splitlines():
        if line.startswith("TASK ["):
            task = line[len("TASK [") :].rpartition("]")[0]
        elif line.startswith("changed: ["):
            found.add((task, line.removeprefix("changed: [").partition("]")[0]))
    return found


def written(out: str) -> set[str]:
    """Return the lines that a play with --diff adds or removes, in files and kernel settings."""
    lines = (line for line in out.splitlines() if line[:1] in ("+", "-"))
    return {line for line in lines if not line.startswith(("+++ ", "--- "))}
