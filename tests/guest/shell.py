# SPDX-License-Identifier: GPL-2.0
"""./dev shell --systemd: a shell in a Debian with systemd, redis and mmpolicy, to try README.md."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

from lab.guest import VmError, new_guest

from .system import HOST, System, dev_says, folder_of_root, new_system
from .test_packages import REDIS

READY = """
A Debian with its own kernel and defaults, redis, and mmpolicy's packages, which are
also in /root. What you change is gone when you leave (exit). The host's files are in {host}.
"""


def with_packages(system: System) -> None:
    """Install mmpolicy's packages in the system. The command is the line that `./dev package`
    prints, as README.md tells users.
    """
    system.put("etc/systemd/system/redis-server.service.d/lean.conf", REDIS)
    (line,) = re.findall("^to install them, as root: (apt install /.*)$", dev_says("package"), re.M)
    debs = [Path(word) for word in line.split()[2:]]
    system.add(*debs)
    for deb in debs:
        place = system.folder / deb.relative_to("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(deb, place)
    system.run(f"cd / && {line}")


def main() -> int:
    """Boot the Debian system as a virtual machine, and connect the terminal to a shell in it."""
    if os.geteuid():
        raise VmError("a Debian of its own takes root to install and to serve to the guest")
    if not sys.stdin.isatty():
        raise VmError("a shell needs a terminal")
    with folder_of_root("shell") as folder:
        print("installing the packages", flush=True)
        system = new_system(folder, "cloud")
        with_packages(system)
        print("booting: a minute or more where KVM is missing", flush=True)
        with new_guest("cloud", mem="3G", cpus=2, root=system.folder, boot_timeout=900.0) as guest:
            guest.run("systemctl is-system-running --wait", 900)
            print(READY.format(host=HOST))
            return guest.shell()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except VmError as error:
        print(f"shell: {error}", file=sys.stderr)
        sys.exit(99)
