# SPDX-License-Identifier: GPL-2.0
"""Programs of tests/workloads, and commands in a guest that must succeed."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .guest import Guest
from .machine import TREE, Arch, cache_dir

WORKLOADS = TREE / "tests/workloads"
COMPILE = ["-O2", "-Wall", "-Werror", "-pthread"]


class BenchError(Exception):
    """A measurement failed, or its result cannot be trusted."""


@functools.cache
def workload(name: str, linking: str = "-static") -> Path:
    """Return the program made from tests/workloads/NAME.c; compile it if it has changed.

    The program is for the architecture of the guests under test.
    """
    flavors = os.environ.get("MMPOLICY_FLAVORS", "").split() or [""]
    compiler = Arch.of_flavor(flavors[0]).compiler
    sources = [WORKLOADS / f"{name}.c", *sorted(WORKLOADS.glob("*.h"))]
    texts = [linking.encode(), *(path.read_bytes() for path in sources)]
    if compiler != "gcc":
        texts.append(compiler.encode())
    key = hashlib.sha256(b"".join(texts)).hexdigest()[:12]
    program = cache_dir() / "workloads" / f"{name}-{key}"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        unfinished = program.with_suffix(f".{os.getpid()}")
        argv = [compiler, *COMPILE, linking, "-o", str(unfinished), str(sources[0])]
        subprocess.run(argv, check=True)
        unfinished.rename(program)
    return program


@contextmanager
def started(
    argv: Sequence[str], mib: int, stdin: int | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Start a program on this machine, wait until it prints "ready", and kill it after the block.

    `mib` is the memory that the program needs, for the error if it ends before.
    """
    with subprocess.Popen(argv, stdin=stdin, stdout=subprocess.PIPE, text=True) as job:
        try:
            assert job.stdout
            if job.stdout.readline() != "ready\n":
                raise BenchError(f"{argv[0]} ended early: it needs {mib} MiB of memory")
            yield job
        finally:
            job.kill()


def must(guest: Guest, command: str, timeout: float | None = 600) -> str:
    """Run a command in the guest and return its output; raise BenchError if it fails."""
    result = guest.run(command, timeout)
    if result.rc:
        raise BenchError(f"in the guest, exit status {result.rc}: {command[:500]}\n{result.out}")
    return result.out


def ran(guest: Guest, command: str, timeout: float = 600) -> dict[str, Any]:
    """Return the JSON object that a command prints; its stderr is shown only if it fails."""
    apart = f"({command}\n) 2>/run/beside || {{ status=$?; cat /run/beside; exit $status; }}"
    found: dict[str, Any] = json.loads(must(guest, apart, timeout))
    return found
