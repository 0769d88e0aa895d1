# SPDX-License-Identifier: GPL-2.0
"""Runs the commands that a document shows, and compares their output with that in the document."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from lab.guest import Guest
from lab.machine import TREE

from .test_ab import INCONCLUSIVE, WORSE
from .tools import ROOT, must, readme

PLACE = "/tmp/session"  # working folder of the commands
# The output of these commands contains measured numbers, so only its first line is compared with
# the document.
MEASURED = re.compile(r"mmpolicy (stats|map|try|ab run (?!--dry-run)|ab report)")
# Shorter durations, which take the place of those in a document when a test types its commands.
IN_A_TEST = {
    "--block 6s --washout 2s --pairs 12": "--block 2s --washout 0.5s --pairs 7",
    "--lease 1m --cmd-timeout 30s": "--lease 5m --cmd-timeout 2m",
}
FEW_PAIRS = "--block 1s --washout 0.2s --pairs 6 --aa-pairs 1"


class Step(NamedTuple):
    """A command in a document: the command line, whether it runs on the host or, if `here` is
    False, at a desk, and the output that the document shows for it.
    """

    command: str
    here: bool
    output: str


def steps(text: str) -> list[Step]:
    """Return all commands in the console blocks of a document, each with the output that the
    document shows below it.
    """
    blocks = re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    pattern = re.compile(r"^([#$]) (.*\n(?:> .*\n)*)((?:(?![#$] ).*\n)*)", re.MULTILINE)
    return [
        Step(command.replace("\n> ", "\n").strip(), prompt == "#", output)
        for block in blocks
        for prompt, command, output in pattern.findall(block)
    ]


def shape(output: str, measured: bool) -> list[str]:
    """Return the lines of an output without the details that differ between hosts: numbers, hashes,
    the compression of modules, widths of columns. measured: return only the first line, as the
    others contain measured values.
    """
    number = r"\b[0-9A-F]{20,}\b|\d[\d.:]*"
    output = re.sub(r"\.ko\.(xz|gz|zst)\b", ".ko", output)
    lines = [" ".join(re.sub(number, "N", line).split()) for line in output.splitlines()]
    return lines[:1] if measured else lines


def on_the_host(guest: Guest, command: str) -> str:
    """Run a command of a document in the guest, and return its output. It must succeed, or print
    that it cannot do something.
    """
    result = guest.run(command, 1200, cwd=PLACE)
    assert result.rc == 0 or result.out.startswith("mmpolicy: cannot "), result.out
    return result.out


def at_the_desk(command: str, folder: Path) -> str:
    """Run a command on this machine, in the folder to which the samples were copied."""
    command = command.replace("mmpolicy", f"{sys.executable} -m mmpolicy", 1)
    done = subprocess.run(
        ["sh", "-c", command], check=False, cwd=folder, capture_output=True, text=True
    )
    assert done.returncode in (0, INCONCLUSIVE, WORSE), done.stderr
    return done.stdout


# Commands that print another output than the document shows on a kernel without hooks, which lacks
# some policies.
OF_HOOKS = re.compile(r"mmpolicy (doctor|list|reset)\b")


def replay(guest: Guest, name: str, folder: Path, hooks: bool = True) -> None:
    """Type all commands of a document in the guest. Each must print the output that the document
    shows.
    """
    must(guest, f"mkdir -p {PLACE}")
    for command, here, output in steps((TREE / f"docs/{name}.md").read_text()):
        print(f"# {command}", flush=True)  # so that a failure shows its place
        typed = command
        for shown, instead in IN_A_TEST.items():
            typed = typed.replace(shown, instead)
        if here:
            printed = on_the_host(guest, typed)
        else:
            (folder / "redis.jsonl").write_text(must(guest, f"cat {PLACE}/redis.jsonl"))
            printed = at_the_desk(typed, folder)
        measured = bool(MEASURED.match(command))
        if hooks or not OF_HOOKS.match(command):
            assert shape(printed, measured) == shape(output, measured), f"{command}\n{printed}"


def let_redis_have_them(guest: Guest) -> None:
    """Type the commands of README.md that give redis large folios where `enabled` is `always`."""
    section = (TREE / "README.md").read_text().partition("\n## For one service\n")[2]
    before = section.partition("\n```\n")[0]
    commands = re.findall(r"^    (\S.*)$", before, re.MULTILINE)
    (asked,) = re.findall(r"`(grep THP_enabled [^`]*)`", before)
    assert must(guest, asked).split() == ["THP_enabled:", "0"]
    must(guest, "\n".join(["set -e", *commands]), timeout=300)
    assert must(guest, asked).split() == ["THP_enabled:", "1"]


def for_one_service(guest: Guest, folder: Path) -> None:
    """Type README.md's commands for one service, and check their effect."""
    ((*commands, report), _) = readme("For one service")
    lines = [each.replace("pgfault/s lower'", f"pgfault/s lower' {FEW_PAIRS}") for each in commands]
    must(guest, f"mkdir -p {PLACE}")
    for some, bound in (lines[:3], True), (lines[3:], False):
        must(guest, "\n".join([f"cd {PLACE} || exit; set -e", *some]))
        assert bool(must(guest, f"cat {ROOT}/profiles/try/cgroups")) == bound
    assert must(guest, f"cat {ROOT}/experiment/enabled") == "0\n"
    (folder / "ab-1.jsonl").write_text(must(guest, f"cat {PLACE}/ab-*.jsonl"))
    assert "verdict: " in at_the_desk(report, folder)
    assert (folder / "ab.html").exists()


def keep_it(guest: Guest) -> None:
    """Type the commands of README.md that keep the setting across a boot."""
    _, commands = readme("For one service")
    must(guest, "\n".join(["set -e", *commands]), timeout=300)
    # No file of the package in /etc has changed, so an upgrade does not ask what to do with it.
    assert "5" not in must(guest, "dpkg --verify mmpolicy | grep /etc/ | cut -d' ' -f1 || true")
