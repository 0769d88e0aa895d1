# SPDX-License-Identifier: GPL-2.0
"""A fleet of model hosts, and Ansible, which reaches them by a fake ssh."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from controller import TREE, Controller

from .fakes import CONTROL, FakeTree, read_named

# Runs its last word as a command. A host is unreachable while the file exists.
SSH = """\
#!/bin/bash
[ ! -e {root}/lost ] || exit 255
exec sh -c "${{!#}}"
"""
OLD = 'version = 1\n[profiles.default.anon_order]\npolicy = "never"\n'
NEW = 'version = 1\n[profiles.default.anon_order]\npolicy = "fixed"\nfixed.max_order = 3\n'


class Fleet(Controller):
    """Hosts with a manifest in force on each."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.hosts = {f"host{number}": self._host(f"host{number}") for number in range(count)}
        super().__init__(folder, {name: self._variables(name) for name in self.hosts})

    def _host(self, name: str) -> FakeTree:
        tree = FakeTree(self.folder / name)
        tree.make_host()
        tree.make_loaded()
        tree.put("/etc/mmpolicy/host.toml", OLD.rstrip())
        tree.put(f"/{name}-ssh", SSH.format(root=tree.root).rstrip())
        tree.real(f"/{name}-ssh").chmod(0o755)
        self.command(name, "apply", str(tree.real("/etc/mmpolicy")))
        return tree

    def _variables(self, name: str) -> dict[str, Any]:
        root = self.folder / name
        return {
            "ansible_connection": "ssh",
            "ansible_ssh_executable": f"{root}/{name}-ssh",
            "ansible_pipelining": True,
            "ansible_python_interpreter": sys.executable,
            "ansible_become": False,
            "mmpolicy_command": [sys.executable, str(TREE / "tests/cli/fake_host.py"), str(root)],
            "mmpolicy_folder": f"{root}/etc/mmpolicy",
            "mmpolicy_service": "",
            "mmpolicy_reload": ["touch", f"{root}/reloaded"],
        }

    def command(self, name: str, *words: str) -> str:
        """Run the command on a host."""
        argv = [sys.executable, str(TREE / "tests/cli/fake_host.py"), str(self.folder / name)]
        done = subprocess.run([*argv, *words], capture_output=True, text=True, check=True)
        return done.stdout

    def rollout(self, *options: str, **variables: Any) -> tuple[int, str]:
        """Roll NEW out, with a look at the gates at once."""
        times = {"rollout_period": 0, "rollout_hold": 0, "rollout_steps": [1, "100%"]}
        return self.play(
            "rollout", *options, mmpolicy_manifests={"host.toml": NEW}, **{**times, **variables}
        )

    def policies(self) -> dict[str, str]:
        """The policy that is in force on each host."""
        return {
            name: read_named(tree)["profiles/default/anon_order/policy"]
            for name, tree in self.hosts.items()
        }

    def kept(self) -> dict[str, str]:
        """The manifest of each host after its next boot: old or new."""
        names = {OLD: "old", NEW: "new"}
        return {
            name: names[tree.real("/etc/mmpolicy/host.toml").read_text()]
            for name, tree in self.hosts.items()
        }

    def leases(self) -> set[str]:
        """All leases of the fleet."""
        return {tree.read(f"{CONTROL}/lease_ms") for tree in self.hosts.values()}
