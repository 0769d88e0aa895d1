# SPDX-License-Identifier: GPL-2.0
"""No process of mmpolicy is throttled: it may hold a lock of the process that it reads.

A reader that has used up its quota, or is idle while others run, keeps its mmap_lock until it runs
again, and that process waits as long.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TREE = Path(__file__).parents[2]
SLOW = re.compile(
    r"\b(?:Nice|CPUQuota\w*|CPUWeight|StartupCPUWeight|CPUSchedulingPolicy|CPUShares"
    r"|AllowedCPUs)\s*=|--nice\b|\bos\.nice\(|\bchrt\b|\bnice -n"
)
# Limits of a container's CPU time; a request is no limit.
LIMIT = re.compile(
    r"^(?P<in>[ -]*)limits:[^\n{]*(?:\{[^}\n]*\bcpu\b|(?:\n(?P=in) +\w+:[^\n]*)*?\n(?P=in) +cpu:)",
    re.MULTILINE,
)
FOLDERS = ("debian", "deploy", "userspace/src")
SUFFIXES = {
    ".service",
    ".timer",
    ".path",
    ".slice",
    ".yaml",
    ".yml",
    ".tpl",
    ".j2",
    ".py",
    ".conf",
    "",
}


def files() -> list[Path]:
    found = [path for folder in FOLDERS for path in (TREE / folder).rglob("*")]
    return sorted(path for path in found if path.is_file() and path.suffix in SUFFIXES)


def faults(text: str) -> list[str]:
    return [match[0] for pattern in (SLOW, LIMIT) for match in pattern.finditer(text)]


def test_no_unit_and_no_container_is_slowed_down() -> None:
    looked = files()
    assert {"debian/units/mmpolicy.service", "deploy/kubernetes/base/daemonset.yaml"} <= {
        str(path.relative_to(TREE)) for path in looked
    }
    found = {}
    for path in looked:
        text = path.read_bytes().decode(errors="replace")
        if wrong := faults(text):
            found[str(path.relative_to(TREE))] = wrong
    assert not found


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("[Service]\nNice=10\n", True),
        ("CPUQuota=5%", True),
        ("CPUSchedulingPolicy=idle", True),
        ("systemd-run --nice=5", True),
        ("limits:\n  memory: 1Mi\n  cpu: 100m\n", True),
        ("limits: {cpu: 1}", True),
        ("requests:\n  cpu: 10m\nlimits:\n  memory: 128Mi\n", False),
        ("  limits:\n    memory: 128Mi\n  requests:\n    cpu: 10m\n", False),
        ("MemoryHigh=1G", False),
    ],
)
def test_what_slows_down_is_found(text: str, wrong: bool) -> None:
    assert bool(faults(text)) == wrong
