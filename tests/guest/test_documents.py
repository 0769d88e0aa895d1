# SPDX-License-Identifier: GPL-2.0
"""The console sessions of the documents, command by command, on a real kernel."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from machine import TREE
from vm import Guest

from .conftest import Machines
from .test_ab import INCONCLUSIVE, WORSE
from .tools import must

# What is measured differs from run to run: the first line of it is enough.
MEASURED = re.compile(r"mmpolicy (stats|map|ab run (?!--dry-run)|ab report)")
SHORTER = {
    "sleep 10": "sleep 3",
    "--block 6s --washout 2s --pairs 12": "--block 2s --washout 0.5s --pairs 7",
}
LONG = True


class Step(NamedTuple):
    """A command, whether it is for the host with the policies, and what is shown of its output."""

    command: str
    here: bool
    output: str


def steps(text: str) -> list[Step]:
    """All commands of the console blocks of a document."""
    blocks = re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    pattern = re.compile(r"^([#$]) (.*\n(?:> .*\n)*)((?:(?![#$] ).*\n)*)", re.MULTILINE)
    return [
        Step(command.replace("\n> ", "\n").strip(), prompt == "#", output)
        for block in blocks
        for prompt, command, output in pattern.findall(block)
    ]


def shape(output: str, measured: bool) -> list[str]:
    """Lines without what differs from host to host: numbers, and the width of columns."""
    lines = [" ".join(re.sub(r"\d[\d.:]*", "N", line).split()) for line in output.splitlines()]
    return lines[:1] if measured else lines


def on_the_host(guest: Guest, command: str) -> str:
    """Run a command in the guest, which ends well or says why not."""
    result = guest.run(command, 600, cwd="/tmp/session")
    assert result.rc == 0 or result.out.startswith("mmpolicy: cannot "), result.out
    return result.out


def at_the_desk(command: str, folder: Path) -> str:
    """Run a command where the samples were copied to."""
    command = command.replace("mmpolicy", f"{sys.executable} -m mmpolicy", 1)
    done = subprocess.run(
        ["sh", "-c", command], check=False, cwd=folder, capture_output=True, text=True
    )
    assert done.returncode in (0, INCONCLUSIVE, WORSE), done.stderr
    return done.stdout


@pytest.fixture
def host(guest: Guest, all_machines: Machines) -> Iterator[Guest]:
    """A guest with redis, which redis-tools of Debian has under another name; it ends with us."""
    must(guest, "ln -sf /usr/bin/redis-check-rdb /run/vm/bin/redis-server; mkdir -p /tmp/session")
    yield guest
    guest.check()
    all_machines.end()


@pytest.mark.parametrize("name", ["cli", "tutorial"])
def test_sessions(host: Guest, tmp_path: Path, name: str) -> None:
    """Each command prints what the document shows."""
    for command, here, output in steps((TREE / f"docs/{name}.md").read_text()):
        short = command
        for long, shorter in SHORTER.items():
            short = short.replace(long, shorter)
        if here:
            printed = on_the_host(host, short)
        else:
            (tmp_path / "redis.jsonl").write_text(must(host, "cat /tmp/session/redis.jsonl"))
            printed = at_the_desk(short, tmp_path)
        measured = bool(MEASURED.match(command))
        assert shape(printed, measured) == shape(output, measured), f"{command}\n{printed}"
