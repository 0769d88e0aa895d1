# SPDX-License-Identifier: GPL-2.0
"""Policies that are BPF programs, as the module lists them in its slots.

The kernel does not know from which file a program was loaded, so a record of it is written at
loading.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from mmpolicy.errors import Error, Exit
from mmpolicy.host.disk import read_given_bytes
from mmpolicy.host.files import CONTROL, Tree

SLOTS = f"{CONTROL}/bpf"
# Directory with a record of each loaded BPF program. It is empty after a boot, when the programs
# are gone, too.
RECORDS = "/run/mmpolicy/policies"
UNKNOWN = "unknown"  # shown in place of a file name for a program that this command has not loaded
UNLOAD_ALL = "mmpolicy policy unload --all"


class Program(NamedTuple):
    """A loaded policy that is a BPF program."""

    name: str
    point: str
    program: int  # id of the BPF program, as bpftool shows it
    clamped: int  # number of answers out of range, which the module has replaced
    error: str  # the error that the program has reported, after which the module no longer calls it


class Source(NamedTuple):
    """The object file that a policy was loaded from, and its SHA-256."""

    file: str
    sha256: str


def check_available(tree: Tree) -> None:
    """Raise an error if this kernel or this module does not support policies in BPF."""
    path = f"{SLOTS}/available"
    if not tree.exists(path):
        text = "the loaded module is too old for policies that are BPF programs"
        raise Error(
            text, Exit.LACKING, "install a newer module, then mmpolicy unload, mmpolicy load"
        )
    if reason := tree.read(path).partition("unavailable: ")[2]:
        raise Error(
            f"policies cannot be BPF programs here: {reason}", Exit.LACKING, "mmpolicy doctor"
        )


def programs(tree: Tree) -> list[Program]:
    """Return the loaded policies in BPF; [] without the module, or if it is too old for them."""
    if not tree.is_dir(SLOTS):
        return []
    found = []
    for slot in tree.dirs(SLOTS):
        if name := tree.read(f"{SLOTS}/{slot}/name"):
            text = {fact: tree.read(f"{SLOTS}/{slot}/{fact}") for fact in Program._fields[1:]}
            numbers = int(text["program"]), int(text["clamped"])
            found.append(Program(name, text["point"], *numbers, text["error"]))
    return sorted(found)


def digest(data: bytes) -> str:
    """Return the SHA-256 of the content of an object file."""
    from hashlib import sha256

    return sha256(data).hexdigest()


def keep_source(tree: Tree, program: Program, source: Source) -> None:
    """Record from which file a policy was loaded. The caller holds a lock, so there is only one
    writer.
    """
    record = {"program": program.program, **source._asdict()}
    tree.keep(f"{RECORDS}/{program.name}.json", json.dumps(record), 0o644)


def source_of(tree: Tree, program: Program) -> Source | None:
    """Return the object file that a policy was loaded from; None if mmpolicy has not loaded it."""
    path = f"{RECORDS}/{program.name}.json"
    if not tree.exists(path):
        return None
    try:
        record = json.loads(tree.read(path))
        source = Source(str(record["file"]), str(record["sha256"]))
        return source if record["program"] == program.program else None
    except (ValueError, LookupError, TypeError):
        return None


def sources(tree: Tree) -> dict[str, Source | None]:
    """Return the object file of each loaded policy, by the policy's name."""
    return {each.name: source_of(tree, each) for each in programs(tree)}


def read_source(source: Source) -> bytes:
    """Return the content of an object file; raise an error if it has changed since it was
    recorded.
    """
    data = read_given_bytes(source.file)
    if digest(data) != source.sha256:
        text = f"{source.file} is not the recorded file any more: it has another SHA-256"
        hint = (
            f"to take the new file: mmpolicy policy load {source.file} (policy replace, if the "
            "policy is loaded), then mmpolicy save MANIFEST"
        )
        raise Error(text, Exit.REFUSED, hint)
    return data
