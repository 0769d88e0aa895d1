# SPDX-License-Identifier: GPL-2.0
"""Verbs of mmpolicy that read or change the whole state, such as `apply` and `save`, on a real
kernel.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from lab.guest import Guest
from lab.machine import TREE
from lab.programs import ran

from .test_load import DENSE, cli
from .tools import ROOT, SCRIPT, folios, histograms, must, ops_command

GROUP = "/sys/fs/cgroup/app.slice/web.service"
SEEN = f"cd {ROOT} && find . -type f -perm /400 ! -name '*_left_ms' | sort | xargs grep ''"
FILE = "/tmp/host.toml"
VICTIMS = [
    "/run/victim",
    "/run/victims/anon_order/policy",
    "/run/victims/anon_order/fixed/max_order",
    "/sys/kernel/mm/transparent_hugepage/enabled",
    "/proc/sys/vm/swappiness",
]


def in_group(guest: Guest, words: str, *shell: str) -> str:
    """Run the program `ops` in the cgroup GROUP; return its output."""
    return must(guest, f"echo 0 >{GROUP}/cgroup.procs && exec {ops_command(words, *shell)}")


def put(guest: Guest, text: str) -> None:
    """Write a manifest to FILE."""
    must(guest, f"printf %s {shlex.quote(text)} >{FILE}")


def forty(bad: int, value: str) -> str:
    """Return a manifest with forty lines, of which line number `bad` has the text `value` and is
    invalid if the text is; line 41 declares the profile `old`.
    """
    lines = ["version = 1", "lease_ms = 600000", "[bindings]", '"web.service" = "old"']
    for number in range(9):
        lines += [f"[profiles.p{number}.anon_order]", 'policy = "fixed"']
        lines += [f"[profiles.p{number}.anon_order.fixed]", f"max_order = {number % 8 + 2}"]
    lines[bad - 1] = value
    assert len(lines) == 40
    return "\n".join([*lines, "[profiles.old]", ""])


def test_profiles_and_bindings(loaded: Guest) -> None:
    """A profile decides about the processes in the cgroup that is bound to it, and about no other
    process.
    """
    must(loaded, f"mkdir -p {GROUP}")
    cli(loaded, "profile create web")
    cli(loaded, "set anon_order fixed max_order=3 --profile web")
    cli(loaded, "bind --cgroup web.service web")
    assert histograms(in_group(loaded, DENSE)) == [{3: 4096}]
    assert folios(loaded, DENSE) == [{0: 4096}]
    before = must(loaded, SEEN)
    refused = cli(loaded, "profile delete web", 5)
    assert "is bound: --cgroup /app.slice/web.service" in refused
    assert len(refused.splitlines()) == 2
    raw = loaded.run(f"echo web >{ROOT}/profiles/delete")
    assert raw.rc and must(loaded, SEEN) == before
    cli(loaded, "revert")  # undoes the binding, the last change
    assert histograms(in_group(loaded, DENSE)) == [{0: 4096}]


def test_one_bad_line_of_forty(loaded: Guest) -> None:
    """If one of forty lines of a manifest is invalid, `apply` names its number, and each file of
    the module keeps its value.
    """
    must(loaded, f"mkdir -p {GROUP}")
    old = f"{ROOT}/profiles/old"
    must(loaded, f"echo old >{ROOT}/profiles/create && stat -c %i {GROUP} >{old}/cgroups")
    must(loaded, f"echo 5 >{old}/anon_order/fixed/max_order && echo fixed >{old}/anon_order/policy")
    before = must(loaded, SEEN)
    for bad, value in ((24, "max_order = 10"), (2, "lease_ms = 7"), (39, "nonsense = 1")):
        put(loaded, forty(bad, value))
        assert f"{FILE}:{bad}: " in cli(loaded, f"apply {FILE}", 1)
        assert must(loaded, SEEN) == before
    assert histograms(in_group(loaded, DENSE)) == [{5: 4096}]


def test_manifest_there_and_back(loaded: Guest) -> None:
    """After a reset, `apply` of a manifest that `save` has written restores the state. `verify`
    finds a setting that was changed without mmpolicy.
    """
    must(loaded, f"mkdir -p {GROUP}")
    put(loaded, forty(4, '"web.service" = "p1"'))
    cli(loaded, f"apply {FILE}")
    assert histograms(in_group(loaded, DENSE)) == [{3: 4096}]
    cli(loaded, "verify")
    before = must(loaded, SEEN)
    cli(loaded, "save /tmp/saved.toml")
    must(loaded, f"echo 1 >{ROOT}/reset")
    assert histograms(in_group(loaded, DENSE)) == [{0: 4096}]
    cli(loaded, "apply /tmp/saved.toml")
    assert must(loaded, SEEN) == before.replace("lease_ms:600000", "lease_ms:0")
    must(loaded, f"echo never >{ROOT}/profiles/p1/anon_order/policy")
    assert "p1/anon_order/policy" in cli(loaded, "verify", 6)
    assert "p1/anon_order/policy" in cli(loaded, f"diff {FILE}")
    assert "is never" in cli(loaded, "revert", 1)
    cli(loaded, "revert --force")
    assert must(loaded, f"cat {ROOT}/state") == "stock\n"


@pytest.mark.parametrize("number", (2000, pytest.param(10_000, marks=pytest.mark.full)))
def test_hostile_names(loaded: Guest, number: int) -> None:
    """If root gives names, manifests or journals with hostile contents to mmpolicy, nothing outside
    of mmpolicy's files changes.
    """
    targets = [*VICTIMS, f"{ROOT}/reset"]
    for path in VICTIMS[:3]:
        must(loaded, f"mkdir -p {Path(path).parent} && echo precious >{path}")
    elsewhere = f"cat {' '.join(VICTIMS)}; grep -rs . /sys/kernel/mm/*/ /proc/sys/vm; ls -lR /etc"
    elsewhere += f"; ls -l --time-style=full-iso {' '.join(VICTIMS[:3])}"
    unstable = "| grep -v 'stat\\|pages_\\|full_scans\\|swap/'"
    before = must(loaded, f"({elsewhere}) {unstable} | sha256sum")
    words = " ".join(map(shlex.quote, targets))
    out = must(loaded, f"{SCRIPT} {TREE}/tests/cli/hostile.py 1 {number} {words}")
    assert out == "0\n"
    assert must(loaded, f"({elsewhere}) {unstable} | sha256sum") == before


def test_the_log_of_the_system(loaded: Guest) -> None:
    """The system log has a line for each change, with the user who made it, the old and the new
    value.
    """
    log = "/run/messages"
    must(loaded, f"busybox syslogd -n -O {log} >/dev/null 2>&1 & echo $! >/run/syslogd")
    must(loaded, "n=0; until [ -S /dev/log ]; do sleep 0.1; n=$((n + 1)); [ $n -lt 100 ]; done")
    must(loaded, "SUDO_UID=1000 mmpolicy set anon_order fixed max_order=3")
    must(loaded, "mmpolicy reset")
    seen = must(loaded, f"sleep 1; cat {log}; kill $(cat /run/syslogd)")
    change = "default/anon_order/fixed/max_order: 4 -> 3; default/anon_order/policy: stock -> fixed"
    assert re.search(rf"daemon.notice mmpolicy\[\d+\]: set by uid 0, sudo uid 1000: {change}", seen)
    assert re.search(r"mmpolicy\[\d+\]: reset by uid 0: .*policy: fixed -> stock", seen)
    (first, second) = ran(loaded, "mmpolicy log -n 2 --json")["changes"]
    assert (first["command"], second["command"]) == ("set", "reset")


def test_map_sees_what_the_process_has(loaded: Guest) -> None:
    """`map` shows the same folios that the process itself finds in its pagemap, and all its
    zero-filled pages.
    """
    cli(loaded, "set anon_order fixed max_order=4")
    look = "exec mmpolicy map --json $PPID"
    output = must(loaded, ops_command("map 1024 every 0 512 16 folios 0 1024 sh", look))
    own, _, seen = output.partition("\n")
    assert histograms(own) == [{4: 512}]
    areas = json.loads(seen)["areas"]
    (runs,) = [area["runs"] for area in areas if area["end"] - area["start"] == 1024 * 4096]
    assert {run["kind"] for run in runs} == {"4"}
    assert sum(run["pages"] for run in runs) == 512
    assert [run["pages"] for run in runs if not run["zero"]] == [1] * 32
