# SPDX-License-Identifier: GPL-2.0
"""./dev replay: a policy in BPF on recorded programs, without a kernel."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from lab.machine import TREE
from lab.policies import examples_of

EXAMPLES = examples_of("MMP_ORDER")
GIVES_UP = """
#include "mmpolicy.bpf.h"
MMP_ORDER(order)
{
	static const char text[] = "I give up";

	mmp_bpf_error(fault, text);
	return MMP_ANSWER(4, MMP_CAP);
}
MMP_POLICY(gives_up, .order = (void *)order, .max_order = 4);
"""


def replay(path: Path, *programs: str) -> tuple[int, dict[str, tuple[int, float]], str]:
    """Return exit status, faults and MB by policy, and standard error."""
    done = subprocess.run(
        [TREE / "dev", "replay", path, *programs], capture_output=True, text=True, check=False
    )
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith(programs)]
    return done.returncode, {row[1]: (int(row[2]), float(row[3])) for row in rows}, done.stderr


@pytest.mark.parametrize(
    "name",
    [name if name in ("block.bpf.c", "learn.bpf.c") else pytest.param(name, marks=pytest.mark.full)
     for name in EXAMPLES],
)  # fmt: skip
def test_examples(name: str) -> None:
    """Each example runs, and its cost lies between that of pages only and of large folios only."""
    status, found, said = replay(TREE / "examples/bpf" / name, "redis")
    assert status == 0, said
    *_, (faults, memory) = found.values()
    assert len(found) == 4
    assert faults <= found["never"][0] and memory >= found["never"][1]
    if name == "fixed.bpf.c":
        assert found["fixed64"] == found["fixed"]
    if name in ("block.bpf.c", "learn.bpf.c"):
        assert faults < found["never"][0] / 2 and memory <= found["fixed"][1]


@pytest.mark.full
def test_one_that_gives_up(tmp_path: Path) -> None:
    """It acts like pages from then on, and the reason is shown."""
    path = tmp_path / "gives_up.bpf.c"
    path.write_text(GIVES_UP)
    status, found, said = replay(path, "redis")
    assert status == 1 and "I give up" in said
    assert found["gives_up"][1] <= found["never"][1] + 0.1


def test_no_source() -> None:
    """The error says so, as it does for a policy of another point."""
    status, _, said = replay(TREE / "README.md")
    assert status == 1 and "FILE.bpf.c" in said
    status, _, said = replay(TREE / "examples/bpf/calm.bpf.c", "redis")
    assert status and "only policies of anon_order" in said
