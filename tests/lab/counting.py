# SPDX-License-Identifier: GPL-2.0
"""Helpers of the benchmarks: guests that count instructions, results, tables.

A guest under QEMU's icount runs one instruction per nanosecond of its clock, so the time stamp
counter counts instructions: path length, not speed. Many rounds repeat to 0.05 %, independent of
load on the host, with two precautions. A first run, which is not counted, fills the kernel's free
lists. And the per-CPU lists of free pages get a fixed size: by default they grow and shrink with
earlier load, which changes a sparse pattern by up to 7 %.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from .guest import ONE_KERNEL, PYTHON, Guest, VmError, new_guest
from .machine import TREE
from .programs import BenchError, must

THP = "/sys/kernel/mm/transparent_hugepage"
# a string of C, which is group 1, or a comment
COMMENT = re.compile(rb'("(?:\\.|[^"\\\n])*")|/\*.*?\*/|//[^\n]*', re.DOTALL)
CPU = "QEMU TCG, icount, one CPU: max,-erms,-fsrm (a page is cleared by 512 counted instructions)"


@dataclass(frozen=True)
class Arm:
    """One side of a benchmark's comparison: a guest kernel, and shell commands that set it up."""

    name: str
    flavor: str = "patched"
    setup: str = ""


SomeArm = TypeVar("SomeArm", bound=Arm)


@dataclass(frozen=True)
class Sample:
    """The numbers that one arm (a kernel and its setup) gave in one case of a benchmark."""

    arm: str
    case: str
    values: dict[str, float]


@dataclass
class Results:
    """All samples of one run of a benchmark, and facts about the run."""

    bench: str
    about: dict[str, str] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)

    def arms(self) -> list[str]:
        """Return the names of the arms, in the order of measurement."""
        return list(dict.fromkeys(sample.arm for sample in self.samples))

    def cases(self) -> list[str]:
        """Return the names of the cases, in the order of measurement."""
        return list(dict.fromkeys(sample.case for sample in self.samples))

    def find(self, arm: str, case: str, key: str) -> float | None:
        """Return the number `key` of an arm in a case, or None if it was not measured."""
        for sample in self.samples:
            if (sample.arm, sample.case) == (arm, case):
                return sample.values.get(key)
        return None

    def value(self, arm: str, case: str, key: str) -> float:
        """Return the number `key` of an arm in a case; raise BenchError if it was not measured."""
        found = self.find(arm, case, key)
        if found is None:
            raise BenchError(f"{self.bench}: no {key} of {case} in {arm}")
        return found

    def ratio(self, arm: str, base: str, case: str, key: str) -> float:
        """Return the number `key` of an arm in a case, divided by that of the arm `base`."""
        return self.value(arm, case, key) / self.value(base, case, key)

    def complete(self, arms: Sequence[str]) -> list[str]:
        """Return the cases of which each of these arms has a sample."""
        return [
            case
            for case in self.cases()
            if set(arms) <= {sample.arm for sample in self.samples if sample.case == case}
        ]

    def save(self, path: Path) -> None:
        """Write all results to a file, as JSON."""
        # rename() makes the file appear complete or not at all
        new = path.with_name(f"{path.name}.new")
        new.write_text(json.dumps({"version": 1, **asdict(self)}, indent=1) + "\n")
        new.replace(path)

    @classmethod
    def resume(cls, path: Path | None, bench: str, about: dict[str, str]) -> Results:
        """Return the results saved in a file, or empty results if there is none.

        Raise BenchError if the file is of another bench, or `about` (kernel, settings) differs.
        """
        if not path or not path.exists():
            return cls(bench, about)
        found = json.loads(path.read_text())
        for key, value in {**about, "bench": bench}.items():
            if {**found["about"], "bench": found["bench"]}.get(key) != value:
                raise BenchError(f"{path}: another {key}: remove it, or give another name")
        samples = [Sample(**sample) for sample in found["samples"]]
        return cls(bench, found["about"], samples)


def hash_of(*folders: str) -> str:
    """Return a hash of the contents of all files in folders of the source tree, without comments
    of C.
    """
    paths = (path for folder in folders for path in sorted((TREE / folder).rglob("*")))
    texts = (
        COMMENT.sub(rb"\1", path.read_bytes())
        if path.suffix in (".c", ".h", ".S")
        else path.read_bytes()
        for path in paths
        if path.is_file()
    )
    return hashlib.sha256(b"".join(texts)).hexdigest()[:12]


def progress(text: str) -> None:
    """Print a line for the user, on standard error."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def counting_guest(flavor: str, mem: str, **needs: Any) -> Iterator[Guest]:
    """Boot a fresh guest whose clock counts instructions, and end it after the block."""
    with new_guest(flavor, mem=mem, icount=True, **needs) as guest:
        must(guest, "echo 1000 >/proc/sys/vm/percpu_pagelist_high_fraction")
        if not has_hooks():  # Debian's kernels have "always" here, the test kernels "madvise"
            must(guest, f"echo madvise >{THP}/enabled")
        yield guest


def has_hooks() -> bool:
    """Return whether kernels with the hooks are measured, not the one in MMPOLICY_KERNEL."""
    return not os.environ.get(ONE_KERNEL)


def of_kernel(arms: Sequence[SomeArm], names: Sequence[str] = ()) -> list[SomeArm]:
    """Return the arms to measure.

    If one kernel serves all arms (not has_hooks()), this drops an arm that differs from the others
    only by its kernel with the hooks. With names, return the named arms and the first one, which
    is the base of the ratios. Raise BenchError for an unknown name.
    """
    found = [arm for arm in arms if has_hooks() or arm.setup or arm.flavor != "patched"]
    if unknown := set(names) - {arm.name for arm in arms}:
        raise BenchError(f"no arm {', '.join(sorted(unknown))}; there are: {names_of(found)}")
    wanted = {arms[0].name, *names} if names else {arm.name for arm in found}
    return [arm for arm in found if arm.name in wanted]


def names_of(arms: Sequence[Arm]) -> str:
    """Return the names of arms in their order, separated by spaces."""
    return " ".join(arm.name for arm in arms)


def measure(
    results: Results,
    arms: Sequence[Arm],
    mem: str,
    take: Callable[[Guest, Arm], Iterator[Sample]],
    path: Path | None = None,
) -> None:
    """Take the samples of each arm, each in a fresh guest: no state carries over.

    With a path, results are saved after each sample.
    """
    for number, arm in enumerate(arms, start=1):
        begin = time.monotonic()
        with counting_guest(arm.flavor, mem) as guest:
            results.about[f"kernel of {arm.name}"] = must(guest, "uname -r").strip()
            must(guest, arm.setup or ":")
            for sample in take(guest, arm):
                results.samples.append(sample)
                if path:
                    results.save(path)
        seconds = time.monotonic() - begin
        progress(f"{results.bench}: {arm.name} ({number} of {len(arms)}) took {seconds:.0f} s")


def counters(guest: Guest, point: str) -> dict[str, int]:
    """Return the module's counters of a point, in the profile "default", by name."""
    text = must(guest, f"cat /sys/kernel/debug/mmpolicy/default/{point}/stats")
    return {key: int(value) for key, value in map(str.split, text.splitlines())}


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as text: the first column is left-aligned, the others right-aligned."""
    lines = [head, *rows]
    width = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width[0]) if i == 0 else cell.rjust(width[i]) for i, cell in enumerate(line)
        ).rstrip()
        for line in lines
    )


def by_arm(results: Results, cases: Sequence[str], cell: Callable[[str, str], str]) -> str:
    """Return a table with a row per case and a column per arm with samples."""
    having = {sample.arm for sample in results.samples if sample.case in cases}
    arms = [arm for arm in results.arms() if arm in having]
    return table(["", *arms], [[case, *(cell(arm, case) for arm in arms)] for case in cases])


def options(bench: str, text: str, plots: bool = False) -> argparse.ArgumentParser:
    """Return the option parser of a benchmark; with `plots`, it also has --plot and --arm."""
    parser = argparse.ArgumentParser(prog=f"./dev bench {bench}", description=text)
    parser.add_argument("--hooks", action="store_true", help="use a kernel built with the hooks")
    parser.add_argument("--quick", action="store_true", help="measure fewer arms and cases")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers to FILE")
    if plots:
        parser.add_argument(
            "--arm", action="append", help="measure only this arm and the first; may be repeated"
        )
        parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="plot results to FILE")
    return parser


def pyplot() -> Any:
    """Return matplotlib.pyplot; raise BenchError if matplotlib, which is optional, is missing."""
    try:
        matplotlib = importlib.import_module("matplotlib")
    except ImportError:
        raise BenchError(f"--plot needs matplotlib: {PYTHON} -m pip install matplotlib") from None
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "mmpolicy"  # equal numbers make an equal file
    return importlib.import_module("matplotlib.pyplot")


def main(run: Callable[[], None]) -> int:
    """Run a benchmark; errors that a user can act on are printed without a traceback."""
    try:
        run()
    except (BenchError, VmError, subprocess.CalledProcessError) as error:
        progress(f"bench: {error}")
        return 1
    return 0
