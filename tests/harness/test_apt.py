# SPDX-License-Identifier: GPL-2.0
"""./dev waits for other users of apt, such as unattended upgrades of a fresh host."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

DEV = Path(__file__).parents[2] / "dev"
FUNCTIONS = ("apt_install", "apt_update", "as_root", "say")
# The lock is busy $BUSY times, then free.
APT = """#!/bin/sh
echo "$*" >>"$0.calls"
[ "$1" != update ] || [ "$(grep -c update "$0.calls")" -gt "$BUSY" ] ||
	{ echo "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 7" >&2; exit 100; }
"""


def call(tmp_path: Path, words: str, busy: int, patience: int = 60) -> tuple[int, list[str]]:
    """Call a function of ./dev with a fake apt; return its status, and the calls of apt."""
    text = DEV.read_text()
    whole = r"^{}\(\) (?:\{{ [^\n]* \}}|\{{\n.*?^\}})$"
    parts = [re.search(whole.format(name), text, re.M | re.S) for name in FUNCTIONS]
    functions = "\n".join(part[0] for part in parts if part)
    assert len([part for part in parts if part]) == len(FUNCTIONS)
    apt = tmp_path / "apt-get"
    apt.write_text(APT)
    apt.chmod(0o755)
    script = f'sleep() {{ SECONDS=$((SECONDS + 5)); }}\nsudo() {{ "$@"; }}\n{functions}\n'
    script += f"APT_PATIENCE_S={patience} LOG={tmp_path}/log\n{words}"
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "BUSY": str(busy)}
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True)
    return done.returncode, (tmp_path / "apt-get.calls").read_text().splitlines()


def test_the_lists_are_waited_for(tmp_path: Path) -> None:
    assert call(tmp_path, "apt_update", busy=2) == (0, ["update"] * 3)


def test_not_for_ever(tmp_path: Path) -> None:
    status, calls = call(tmp_path, "apt_update", busy=99, patience=20)
    assert (status, 4 <= len(calls) <= 6) == (1, True)


def test_an_installation_waits_for_dpkg(tmp_path: Path) -> None:
    status, (words,) = call(tmp_path, "apt_install gcc", busy=0)
    assert (status, words.startswith("-o DPkg::Lock::Timeout=60 install -y")) == (0, True)
