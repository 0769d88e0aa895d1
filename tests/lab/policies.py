# SPDX-License-Identifier: GPL-2.0
"""BPF policies: compiled on this host, loaded in a guest by the helper that `./dev bpf` builds."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

from mmpolicy.host.bpf import PINS, object_name

from .machine import TREE, cache_dir
from .programs import BenchError

EXAMPLES = TREE / "examples/bpf"
HEADERS = TREE / "userspace/bpf"
FLAGS = [f"@{HEADERS}/flags", "-Wno-uninitialized"]


def helper() -> Path:
    """Return the path of mmpolicy-bpf; raise BenchError if it has not been built."""
    found = cache_dir() / "bpf/mmpolicy-bpf"
    if not found.exists():
        raise BenchError(f"{found} is missing: ./dev bpf builds it")
    return found


def policy_object(name: str, source: str) -> Path:
    """Return the object file of a policy in C; compile it unless the cache has it."""
    include = helper().parent / "include"
    texts = [source, (HEADERS / "mmpolicy.bpf.h").read_text(), *FLAGS]
    key = hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]
    found = cache_dir() / "bpf-objects" / f"{name}-{key}.o"
    if not found.exists():
        found.parent.mkdir(parents=True, exist_ok=True)
        text, new = found.with_suffix(f".{os.getpid()}.c"), found.with_suffix(f".{os.getpid()}")
        text.write_text(source)
        subprocess.run(
            ["clang", *FLAGS, f"-I{HEADERS}", f"-I{include}", "-c", str(text), "-o", str(new)],
            check=True,
        )
        text.unlink()
        new.rename(found)
    return found


def example(name: str) -> Path:
    """Return the object of examples/bpf/NAME.bpf.c."""
    return policy_object(name, (EXAMPLES / f"{name}.bpf.c").read_text())


def examples_of(function: str) -> list[str]:
    """Return the names of the examples for a point: those that use its macro, `function`."""
    return sorted(path.name for path in EXAMPLES.iterdir() if f"{function}(" in path.read_text())


def loading(path: Path, verb: str = "load") -> str:
    """Return shell words that load a policy by mmpolicy-bpf, faster than by `mmpolicy`."""
    return f"{helper()} {verb} {object_name(path)} {PINS} <{path}"


def entering(group: str) -> str:
    """Return shell words that run a program in a cgroup, as the process of policy per_process."""
    pid = "/sys/kernel/mmpolicy/profiles/default/anon_order/per_process/pid"
    told = f"[ ! -e {pid} ] || echo $$ >{pid}"
    return f"""sh -c 'echo 0 >{group}/cgroup.procs; {told}; exec "$0" "$@"'"""
