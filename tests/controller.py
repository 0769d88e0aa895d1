# SPDX-License-Identifier: GPL-2.0
"""Ansible with the collection of this tree, in the environment that ./dev makes for it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from processes import children

TREE = Path(__file__).parents[1]
CACHE = Path(os.environ.get("MMPOLICY_CACHE") or Path.home() / ".cache/mmpolicy")
PLAYBOOK = CACHE / "ansible/bin/ansible-playbook"


class Controller:
    """A folder with the collection and an inventory."""

    def __init__(self, folder: Path, hosts: dict[str, dict[str, Any]]) -> None:
        self.folder = folder
        home = folder / "collections/ansible_collections/mmpolicy"
        home.mkdir(parents=True)
        (home / "host").symlink_to(TREE / "deploy/ansible")
        self.inventory = folder / "hosts.json"
        self.inventory.write_text(json.dumps({"mmpolicy": {"hosts": hosts}}))

    def vary(self, name: str, **variables: str) -> None:
        """Give a host variables of its own."""
        inventory = json.loads(self.inventory.read_text())
        inventory["mmpolicy"]["hosts"][name] |= variables
        self.inventory.write_text(json.dumps(inventory))

    def start(self, playbook: str, *options: str, **variables: Any) -> subprocess.Popen[str]:
        """Start a playbook of the collection."""
        argv = [str(PLAYBOOK), f"mmpolicy.host.{playbook}"]
        argv += ["-i", str(self.inventory), "--extra-vars", json.dumps(variables)]
        environment = {
            **os.environ,
            "ANSIBLE_COLLECTIONS_PATH": str(self.folder / "collections"),
            "ANSIBLE_HOME": str(self.folder / "ansible"),
            "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default",
            "ANSIBLE_SSH_TRANSFER_METHOD": "piped",
            "ANSIBLE_NOCOLOR": "1",
            "LC_ALL": "C.UTF-8",
            "PYTHONPATH": str(TREE / "userspace/src"),
            "PYTHONUNBUFFERED": "1",
            "ANSIBLE_LOCALHOST_WARNING": "0",
        }
        return subprocess.Popen(
            [*argv, *options], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, env=environment, cwd=self.folder,
            start_new_session=True,
        )  # fmt: skip

    def play(self, playbook: str, *options: str, **variables: Any) -> tuple[int, str]:
        """Run a playbook; return its exit code and output."""
        process = self.start(playbook, *options, **variables)
        out, _ = process.communicate()
        return process.returncode, out


def kill(process: subprocess.Popen[str]) -> None:
    """End a playbook with all that it has started, but for what ssh keeps connected."""
    doomed = [process.pid]
    for pid in doomed:  # a stopped process starts no more of them
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
        doomed += children(pid)
    for pid in doomed:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.communicate()


def recap(out: str) -> dict[str, dict[str, int]]:
    """Parse the recap of a play: the counts of each host."""
    found = {}
    for line in out.partition("PLAY RECAP")[2].splitlines()[1:]:
        name, _, counts = line.partition(":")
        pairs = (word.partition("=") for word in counts.split())
        found[name.strip()] = {key: int(value) for key, _, value in pairs}
    return {name: counts for name, counts in found.items() if counts}
