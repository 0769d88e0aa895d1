# SPDX-License-Identifier: GPL-2.0
"""The commands that the documents show do what the page says, on a host that has what they name.

What changes something is run with --dry-run, and what only reads is run. The rest waits, draws or
needs memory to look at: the tests in guests type it. test_fit.py reads kernels that do not run.
"""

import re
import shlex
from pathlib import Path

import pytest

from .fakes import FakeTree, Run
from .test_docs import FOUND, TREE, options_of

PROFILES = ("try", "web", "go", "jvm", "redis", "postgres", "python", "vm", "trimmed")
CGROUPS = ("/redis", "/cache", "/machine.slice", *(f"/system.slice/{name}.service" for name in (
    "redis-server", "yours", "postgresql@15-main", "cache")))  # fmt: skip
NAMES = {
    "N": "4242", "PID": "4242", "CGROUP": "/redis", "PATH": "/redis", "PROFILE": "try", "P": "try",
    "NAME": "redis-server.service", "NAME.service": "redis-server.service",
}  # fmt: skip
EXAMPLE = str(TREE / "debian/examples/workloads.toml")
FILES = {"/etc/mmpolicy", "NEW.toml", "web.toml"}
LATER = {"--watch", "--heal", "--kernel"}  # never ends, changes, or wants an image
READERS = {"diff", "doctor", "list", "log", "show", "stats", "status"}
# Typed in guests: these run programs, or look at memory, at units or at what was done before.
ELSEWHERE = ("ab", "bench", "calibrate", "load", "revert", "trim")
REFUSED = {"mmpolicy set anon_order fixed max_order=-1": 5}
LACKING = 3  # what doctor says of a host of which something is missing


def typed(command: str) -> list[str]:
    """Return the words of a command, with something in place of each placeholder."""
    words = shlex.split(command.replace("'$(pidof' 'redis-server)'", "PID"))[1:]
    return [EXAMPLE if word in FILES else NAMES.get(word, word) for word in words]


CHANGE = sorted(
    each for each in FOUND
    if "--dry-run" in options_of(shlex.split(each)[1:]) and each.split()[1] not in ELSEWHERE
)  # fmt: skip
READ = sorted(
    each for each in FOUND
    if {*shlex.split(each)} & READERS and not LATER & {*shlex.split(each)}
)  # fmt: skip


@pytest.fixture
def host(tree: FakeTree, run: Run) -> Run:
    """Return the command on a host with the profiles, services and files of the documents."""
    for path in CGROUPS:
        tree.make_cgroup(path)
    own = "".join(f'\n[profiles.{name}.anon_order]\npolicy = "never"\n' for name in ("try", "web"))
    tree.put("/etc/mmpolicy/host.toml", Path(EXAMPLE).read_text() + own)
    for pid in 72, 4242:
        tree.make_process(pid)
        tree.put(f"/proc/{pid}/cgroup", "0::/redis")
    return run


def make_profiles(tree: FakeTree) -> None:
    """Make the profiles that the documents name."""
    for name in PROFILES:
        tree.make_profile(name)


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file of the host, but for locks."""
    return {
        str(path): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.stat().st_mode & 0o400 and "lock" not in path.name
    }


@pytest.mark.parametrize("command", CHANGE)
def test_what_changes_can_be_tried(host: Run, tree: FakeTree, command: str) -> None:
    words = typed(command)
    at = words.index("--") if "--" in words else len(words)
    extra = [] if "--dry-run" in words else ["--dry-run"]
    if words[:2] != ["profile", "create"]:
        make_profiles(tree)
    if words[:2] == ["unbind", "--unit"]:
        text = f'version = 1\n\n[bindings]\n"{words[2]}" = "try"\n'
        tree.put(f"/etc/mmpolicy/90-{words[2]}.toml", text)
    before = contents(tree.real("/"))
    result = host(*words[:at], *extra, *words[at:])
    assert result.code == REFUSED.get(command, 0), result.err
    assert contents(tree.real("/")) == before


@pytest.mark.parametrize("command", READ)
def test_what_reads(host: Run, tree: FakeTree, command: str) -> None:
    make_profiles(tree)
    result = host(*typed(command))
    assert result.code in ((0, LACKING) if "doctor" in command else (0,)), result.err
    assert result.out or re.search(r"\b(log|diff|verify)\b", command)
