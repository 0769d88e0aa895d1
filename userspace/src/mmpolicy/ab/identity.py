# SPDX-License-Identifier: GPL-2.0
"""How a samples file identifies its experiment and its host. By this, `ab pool` knows which files
of many hosts belong together.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import platform
import re
from collections.abc import Sequence
from typing import Any

import click

from mmpolicy.ab.design import MAX_SEED
from mmpolicy.ab.metrics import Metric
from mmpolicy.control.journal import boot_of
from mmpolicy.host.files import Tree
from mmpolicy.host.machine import Host, hardware_of

MACHINE = "/etc/machine-id"
KEY = b"mmpolicy ab"
NODES = "/sys/devices/system/node"
# Fields of the header of a samples file that must be equal in all files that are pooled.
# digest_of() hashes them.
EQUAL = (
    "design", "block_s", "washout_s", "interval_s", "metrics", "margin", "length", "detect",
    "unit", "cgroup_path", "at_switch", "saturation",
)  # fmt: skip


def _keyed(tree: Tree, text: str) -> bytes:
    """Return a hash of a text with the machine-id as its key, which the hash does not reveal."""
    return hmac.new(tree.read(MACHINE).encode(), KEY + text.encode(), hashlib.sha256).digest()


def host_id(tree: Tree) -> str:
    """Return the id by which files name this host; "" if the host has no machine-id."""
    return _keyed(tree, "")[:16].hex() if tree.exists(MACHINE) else ""


def seed_here(tree: Tree, seed: int) -> int:
    """Return a seed made from --seed and the machine-id, so that hosts with equal --seed draw
    different assignments.
    """
    if not tree.exists(MACHINE):
        return seed
    return int.from_bytes(_keyed(tree, str(seed))[:8], "little") % MAX_SEED


def labels_of(texts: Sequence[str]) -> dict[str, str]:
    """Parse labels given as KEY=VALUE; raise a usage error for any other form."""
    pairs = [text.partition("=") for text in texts]
    wrong = [text for text, (key, _, value) in zip(texts, pairs) if not key or not value]
    if wrong:
        raise click.UsageError(f"'{wrong[0]}' is not of the form KEY=VALUE")
    return {key: value for key, _, value in pairs}


def about_host(host: Host, labels: dict[str, str]) -> dict[str, Any]:
    """Return facts about a host, such as kernel, CPUs and name. Readers need them to compare the
    effects on this host with those on other hosts.
    """
    tree, made_of = host.tree, hardware_of(host.tree)
    facts: dict[str, Any] = {"kernel": host.release(), "machine": made_of.machine}
    facts |= {"cpus": made_of.cpus, "name": platform.node(), "boot": boot_of(tree)}
    facts["id"] = host_id(tree)
    told = {"cpu": made_of.cpu, "memory_bytes": made_of.memory}
    facts |= {name: value for name, value in told.items() if value is not None}
    if tree.is_dir(NODES):
        facts["nodes"] = sum(bool(re.fullmatch(r"node\d+", name)) for name in tree.dirs(NODES))
    return facts | ({"labels": labels} if labels else {})


def digest_of(header: dict[str, Any]) -> str:
    """Return a digest of the header fields that must be equal in files that are pooled."""
    equal = {name: header.get(name) for name in EQUAL if name != "saturation" or header.get(name)}
    equal |= {arm: header[arm]["settings"] for arm in ("control", "treatment")}
    return hashlib.sha256(json.dumps(equal, sort_keys=True).encode()).hexdigest()[:16]


def roles_of(metrics: Sequence[Metric], margin: float | None) -> dict[str, Any]:
    """Return for each metric, by its name, its role (guard or primary), which direction is better,
    and its margin. margin: percentage for metrics without a margin of their own.
    """
    return {
        each.name: {
            "role": "guard" if each.guard else "primary",
            "better": each.better or None,
            "margin": each.margin or margin,
        }
        for each in metrics
    }
