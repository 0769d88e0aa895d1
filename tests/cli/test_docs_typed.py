# SPDX-License-Identifier: GPL-2.0
"""Commands in the documents do as the page says, on a host that has the objects they name.

Each command is run: with --dry-run if it would change a setting or start a program, and as it is if
it only reads. No file of the host changes.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
from pathlib import Path

import pytest

from mmpolicy.host.files import TRACING

from .fakes import Clock, FakeTree, Run
from .heaps import FakeAdvice
from .kernels import Small, bzimage
from .sparse import make_sparse, make_thp
from .test_ab_pool import lines_of
from .test_docs import FOUND, TREE, options_of
from .test_fit import NEEDS

PROFILES = ("try", "web", "go", "jvm", "redis", "postgres", "python", "vm", "trimmed")
SERVICES = [f"/system.slice/{name}.service" for name in (
    "redis-server", "redis", "yours", "postgresql@15-main", "cache")]  # fmt: skip
CGROUPS = ("/redis", "/cache", "/demo", "/machine.slice", "/web.slice/a", "/web.slice/b", *SERVICES)
RUNS = ("redis", "mine", "aa1", "aa2", "host1", "host2", "host3")  # experiments of the past
EXAMPLE = str(TREE / "debian/examples/workloads.toml")
NAMES = {
    "N": "4242", "PID": "4242", "CGROUP": "/redis", "PATH": "/redis", "PROFILE": "try", "P": "try",
    "NAME": "redis-server.service", "NAME.service": "redis-server.service", "FILE": "redis.jsonl",
    "/var/lib/prometheus/node-exporter/mmpolicy.prom": "mmpolicy.prom", "DIR": "/",
    "ab-*.jsonl": "redis.jsonl", "/etc/mmpolicy/50-try.toml": "50-try.toml",
    "6.18.15+deb13-amd64": "VERSION", "./linux-image-….deb": "./image",
} | dict.fromkeys(("/etc/mmpolicy", "NEW.toml", "web.toml"), EXAMPLE)  # fmt: skip
# In running text, these name a verb that needs more words; the error says so.
VERBS = ("ab report", "ab run", "bench", "collapse", "map", "trim")
NAMED = {f"mmpolicy {verb}" for verb in VERBS}
ENDS = dict.fromkeys(NAMED, 2) | {"mmpolicy set anon_order fixed max_order=-1": 5}
ENDS |= {"mmpolicy ab stop": 1}  # as no run is active
TRIALS = ("--status", "--report", "--stop", "--watch 2%")
ENDS |= dict.fromkeys((f"mmpolicy try {option}" for option in TRIALS), 1)  # none has run
ENDS |= {"mmpolicy export --listen 9978": 130}  # by Ctrl-C
KERNEL = bzimage(Small(NEEDS).vmlinux())
LACKING = 3  # status of doctor on a host that lacks something


def typed(command: str) -> list[str]:
    """Return the words of a command, with a value for each placeholder."""
    words = shlex.split(command.replace("'$(pidof' 'redis-server)'", "PID"))[1:]
    return [NAMES.get(word, word) for word in words]


def changes(command: str) -> bool:
    """Return whether a command would change the host and has an option to prevent it."""
    return command not in NAMED and "--dry-run" in options_of(shlex.split(command)[1:])


CHANGE = sorted(filter(changes, FOUND))
READ = sorted(FOUND - {*CHANGE})


def make_services(tree: FakeTree) -> None:
    """Make the services, some of which waste memory, and a process of each name."""
    make_thp(tree)
    tree.put("/proc/stat", "cpu  10 0 10 1000 0 0 0 0 0 0\n")
    for pid, path in (72, CGROUPS[0]), (4242, CGROUPS[0]), *enumerate(CGROUPS, 5000):
        make_sparse(tree, pid, "redis", 512, 16, path)
        tree.put(f"/proc/{pid}/task/{pid}/comm", "redis")
    for path in CGROUPS:
        tree.put(f"/sys/fs/cgroup{path}/memory.stat", "anon 4096\npgfault 5")
        tree.put(f"/sys/fs/cgroup{path}/memory.current", "4096")
        tree.put(f"/sys/fs/cgroup{path}/cpu.stat", "usage_usec 5\nsystem_usec 1")


def make_files(tree: FakeTree, folder: Path) -> None:
    """Make earlier measurements, a kernel that does not run, and a manifest of the host."""
    for number, name in enumerate(RUNS):
        (folder / f"{name}.jsonl").write_text("".join(lines_of(number).end(status="done")))
    tree.put("/boot/vmlinuz-VERSION", KERNEL)
    (folder / "image").write_bytes(KERNEL)
    own = "".join(f'\n[profiles.{name}.anon_order]\npolicy = "never"\n' for name in ("try", "web"))
    tree.put("/etc/mmpolicy/host.toml", Path(EXAMPLE).read_text() + own)


@pytest.fixture
def host(
    tree: FakeTree, run: Run, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Run:
    """Return the command on a host with the profiles, services and files of the documents."""
    make_services(tree)
    tree.advice = FakeAdvice(tree)
    make_files(tree, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    (tmp_path / "redis-cli").touch(0o755)
    clock.steps = [lambda: None] * 13  # a look at a host takes 12
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setitem(NAMES, "9978", str(server.getsockname()[1]))
    return run


def make_profiles(tree: FakeTree) -> None:
    """Make the profiles that the documents name."""
    for name in PROFILES:
        tree.make_profile(name)


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file of the host, but for locks, traces, and memory, which is large."""
    return {
        str(path): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.stat().st_mode & 0o400 and "lock" not in path.name
        and path.name not in ("mem", "pagemap") and TRACING not in str(path)
    }  # fmt: skip


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
    if words[0] == "load":
        tree.make_unloaded()
    if words[0] == "revert":
        assert host("set", "anon_order", "fixed").code == 0
    before = contents(tree.real("/"))
    result = host(*words[:at], *extra, *words[at:])
    assert result.code == ENDS.get(command, 0), result.err
    assert contents(tree.real("/")) == before


@pytest.mark.parametrize("command", READ)
def test_what_reads(host: Run, tree: FakeTree, command: str) -> None:
    make_profiles(tree)
    if "verify" in command:
        assert host("apply", EXAMPLE).code == 0
    before = contents(tree.real("/"))
    result = host(*typed(command))
    assert result.code in ((0, LACKING) if "doctor" in command else (ENDS.get(command, 0),)), result
    silent = re.search(r"\b(log|diff|verify|restore|save)\b", command)
    assert result.out or result.err or silent or Path("mmpolicy.prom").read_text()
    assert contents(tree.real("/")) == before
