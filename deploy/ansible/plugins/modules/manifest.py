#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Manifests of a host, on trial under a lease or for good."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any, NoReturn

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = """
module: manifest
short_description: Put manifests of mmpolicy in force, on trial or for good
description:
  - Makes the state of a host that of the manifests in a folder, all of it or nothing.
  - In check mode, and with C(--diff), tells each write that would be made.
options:
  files:
    description: Names of files in the folder with their text. Without a text, the file goes.
    type: dict
    default: {}
  state:
    description:
      - V(kept) writes the files, and puts the folder in force for good.
      - V(tried) puts it in force under a lease. The files stay as they are, so that the end of the
        lease, a boot and V(reverted) lead away from it.
      - V(reverted) goes back to the state before V(tried).
    type: str
    choices: [kept, tried, reverted]
    default: kept
  lease:
    description: How long a trial lasts unless C(mmpolicy lease) renews it, such as V(10m).
    type: str
    default: 10m
  number:
    description: For V(reverted), the C(number) that V(tried) has returned.
    type: int
  in_force:
    description: Whether to put it in force; without it, the files are written only.
    type: bool
    default: true
  folder:
    description: Where the manifests of the host are.
    type: path
    default: /etc/mmpolicy
  command:
    description: The command and its first words.
    type: list
    elements: str
    default: [mmpolicy]
  reload:
    description: What to run where files have changed, so that services are bound as they start.
    type: list
    elements: str
    default: [systemctl, daemon-reload]
author:
  - mmpolicy maintainers (@mmpolicy)
"""

EXAMPLES = """
- name: Bind the web server to a profile
  mmpolicy.host.manifest:
    files:
      50-web.toml: |
        version = 1
        [profiles.web.anon_order]
        policy = "adaptive"
        [bindings]
        "nginx.service" = "web"
"""

RETURN = """
writes:
  description: Each write that was made, or in check mode would be, with what was there before.
  type: list
  returned: always
number:
  description: Of the last change before a trial, for V(reverted).
  type: int
  returned: with V(tried)
"""

LEASE_FILE = "zz-lease.toml"
DONE = 0
DRIFT = 6


class Manifests:
    """The manifests of a host, and the command that puts them in force."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.folder = Path(module.params["folder"])
        self.files: dict[str, str | None] = module.params["files"]
        self.stage = Path(tempfile.mkdtemp(prefix="mmpolicy-"))

    # The command

    def call(self, *words: str) -> tuple[int, str, str]:
        """Run the command; its exit code and what it prints."""
        code, out, err = self.module.run_command([*self.module.params["command"], *words])
        return code, out, err

    def run(self, *words: str) -> Any:
        """Run the command, which has to succeed; the JSON that it prints."""
        code, out, err = self.call(*words)
        if code != DONE:
            self.fail(" ".join(words), code, err)
        return json.loads(out)

    def fail(self, words: str, code: int, err: str) -> NoReturn:
        """End with what the command has said, after its warnings, and with its exit code."""
        try:
            error = json.loads(err[err.index("{") :])["error"]
            text = f"{error['message']}; next: {error['next']}"
        except (ValueError, LookupError, TypeError):
            text = err.strip()
        self.module.fail_json(msg=f"mmpolicy {words}: {text}", rc=code)
        raise SystemExit(code)  # which fail_json does

    def state(self) -> str:
        """What the kernel says: stock, active or expired."""
        return str(self.run("lease", "--json")["state"])

    def acknowledge(self) -> bool:
        """Go on after a lease has expired: with what is kept on this host."""
        if self.state() != "expired":
            return False
        self.run("reset", "--json")
        self.run("apply", "--skip-missing", "--json", str(self.folder))
        return True

    def last(self) -> int:
        """The number of the last change."""
        changes = self.run("log", "-n", "1", "--json")["changes"]
        return int(changes[-1]["number"]) if changes else 0

    # Files

    def text(self, name: str) -> str | None:
        """What a file says now."""
        path = self.folder / name
        return path.read_text() if path.exists() else None

    def changed_files(self) -> dict[str, str | None]:
        """The files that differ from what is asked for, with what is asked for."""
        for name in self.files:
            if Path(name).name != name or not name.endswith(".toml") or name == LEASE_FILE:
                self.module.fail_json(msg=f"{name!r} is no name for a manifest: NAME.toml")
        return {name: text for name, text in self.files.items() if self.text(name) != text}

    def put(self, folder: Path, files: dict[str, str | None]) -> None:
        """Write or remove files, each of them as a whole."""
        for name, text in files.items():
            if text is None:
                (folder / name).unlink(missing_ok=True)
                continue
            new = self.stage / f"{name}.new"
            new.write_text(text)
            new.chmod(0o644)
            self.module.atomic_move(str(new), str(folder / name))

    def planned(self) -> list[dict[str, Any]]:
        """Fill the stage with what the folder is to be; each write that this takes."""
        for path in self.folder.glob("*.toml"):
            shutil.copy(path, self.stage)
        self.put(self.stage, self.files)
        if not self.module.params["in_force"] or not any(self.stage.glob("*.toml")):
            return []
        words = ("apply", "--dry-run", "--skip-missing", "--json", str(self.stage))
        return list(self.run(*words)["writes"])

    # States

    def kept(self) -> dict[str, Any]:
        """The files are there, and in force for good."""
        changed = self.changed_files()
        expired = self.module.params["in_force"] and self.state() == "expired"
        if expired and not self.module.check_mode:
            self.run("reset", "--json")
        writes = [] if expired and self.module.check_mode else self.planned()
        if self.module.check_mode or not (changed or writes or expired):
            return self.result(bool(changed or writes or expired), changed, writes)
        before = {name: self.text(name) for name in changed}
        diff = self.result(True, changed, writes)
        self.folder.mkdir(exist_ok=True)
        self.put(self.folder, changed)
        if self.module.params["in_force"]:
            code, _, err = self.call("apply", "--skip-missing", "--json", str(self.folder))
            if code != DONE:
                self.put(self.folder, before)
                self.fail("apply", code, err)
        if changed and self.module.params["reload"]:
            self.module.run_command(self.module.params["reload"], check_rc=True)
        return diff

    def tried(self) -> dict[str, Any]:
        """The files are in force under a lease, and a host that is as it should be comes first."""
        changed = self.changed_files()
        if not self.module.check_mode:
            self.acknowledge()
        if any(self.folder.glob("*.toml")):
            self.verify()
        number = self.last()
        writes = self.planned()
        if writes and not self.module.check_mode:
            lease = self.module.params["lease"]
            (self.stage / LEASE_FILE).write_text(f"version = 1\nlease_ms = {milliseconds(lease)}\n")
            self.run("apply", "--skip-missing", "--json", str(self.stage))
        return {**self.result(bool(writes or changed), changed, writes), "number": number}

    def verify(self) -> None:
        """Refuse a host that is not as its own manifests say: nothing would lead back there."""
        heal = () if self.module.check_mode else ("--heal",)
        code, out, err = self.call("verify", *heal, "--skip-missing", "--json", str(self.folder))
        if code == DRIFT:
            paths = [each["path"] for each in json.loads(out)["differences"]]
            text = f"this host is not as {self.folder} says: {', '.join(paths)}"
            hint = "mmpolicy save keeps it, systemctl reload mmpolicy ends it"
            self.module.fail_json(msg=f"{text}; next: {hint}, and a trial ends with its lease")
        if code != DONE:
            self.fail("verify", code, err)

    def reverted(self) -> dict[str, Any]:
        """The state is the one before the trial."""
        number = self.module.params["number"]
        if self.module.check_mode or self.acknowledge():
            return {"changed": True, "writes": []}
        if self.last() == number:
            return {"changed": False, "writes": []}
        code, _, _ = self.call("revert", "--json", "--to", str(number))
        if code != DONE:  # somebody has changed it since
            self.run("apply", "--skip-missing", "--json", str(self.folder))
        return {"changed": True, "writes": []}

    def result(
        self, changed: bool, files: dict[str, str | None], writes: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """What Ansible shows: each file, and each write."""
        diff = [
            {"before": self.text(name) or "", "after": text or "",
             "before_header": str(self.folder / name), "after_header": str(self.folder / name)}
            for name, text in files.items()
        ]  # fmt: skip
        if writes:
            old, new = (
                "".join(f"{each['path']}: {each[kind]}\n" for each in writes)
                for kind in ("now", "wanted")
            )
            diff.append({"before": old, "after": new})
        return {"changed": changed, "writes": writes, "diff": diff}


def milliseconds(lease: str) -> int:
    """A time such as 90, 90s, 10m or 2h."""
    unit = {"s": 1, "m": 60, "h": 3600}.get(lease[-1:])
    return round(float(lease[:-1] if unit else lease) * (unit or 1) * 1000)


OPTIONS = {
    "files": {"type": "dict", "default": {}},
    "state": {"choices": ["kept", "tried", "reverted"], "default": "kept"},
    "lease": {"default": "10m"},
    "number": {"type": "int"},
    "in_force": {"type": "bool", "default": True},
    "folder": {"type": "path", "default": "/etc/mmpolicy"},
    "command": {"type": "list", "elements": "str", "default": ["mmpolicy"]},
    "reload": {"type": "list", "elements": "str", "default": ["systemctl", "daemon-reload"]},
}


def main() -> None:
    """Do what the play asks for."""
    needs = [("state", "reverted", ["number"])]
    module = AnsibleModule(argument_spec=OPTIONS, supports_check_mode=True, required_if=needs)
    manifests = Manifests(module)
    try:
        module.exit_json(**getattr(manifests, module.params["state"])())
    finally:
        shutil.rmtree(manifests.stage, ignore_errors=True)


if __name__ == "__main__":
    main()
