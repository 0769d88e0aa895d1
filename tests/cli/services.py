# SPDX-License-Identifier: GPL-2.0
"""Services of a host made of files, as systemd starts them."""

from __future__ import annotations

import subprocess
from pathlib import Path

from .fakes import FakeTree

SCRIPT = Path(__file__).parents[2] / "debian/bind-service"


def start_service(
    host: FakeTree, name: str, profile: str = "web"
) -> subprocess.CompletedProcess[str]:
    """Run the commands that systemd runs before a service, as if in its cgroup."""
    host.real("/run/mmpolicy").mkdir(parents=True, exist_ok=True)
    script = SCRIPT.read_text().replace("/sys/", f"{host.root}/sys/")
    script = script.replace("=/run/", f"={host.root}/run/")
    script = script.replace("/proc/self/cgroup", str(host.real("/own-cgroup")))
    script = script.replace("logger -t", f"echo >>{host.real('/logged')} -t")
    path = f"/system.slice/{name}.service"
    host.put("/own-cgroup", f"12:memory:/x\n0::{path}/.control\n1:name=systemd:{path}")
    return subprocess.run(["sh", "-c", script, "sh", profile], text=True, capture_output=True)
