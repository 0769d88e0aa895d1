# SPDX-License-Identifier: GPL-2.0
"""The demo that `./dev demo` runs after the build."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from bench import pictures

from .conftest import Machines


@pytest.mark.flavor("cloud")
def test_the_demo_on_a_stock_kernel(all_machines: Machines) -> None:
    """The demo (bench.demo) succeeds on Debian's own kernel, and its table shows the effects that
    README.md tells of.
    """
    all_machines.end()
    command = [sys.executable, "-m", "bench.demo", "cloud"]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300, env=env)
    output = done.stdout
    lines = output.partition("touches 64 MiB:\n\n")[2].splitlines()
    arms = lines[0].split()
    rows = [[float(word) for word in line.split()[-len(arms) :]] for line in lines[1:7]]
    table = dict(zip(arms, zip(*rows, strict=True), strict=True))
    faults, instructions, _, _, _, memory = range(6)
    small, large, adaptive = (table[name] for name in ("stock-4k", "stock-64k", "adaptive"))
    assert adaptive[faults] < small[faults] / 10
    assert adaptive[instructions] < small[instructions] / 3
    assert adaptive[memory] < 1.1 * small[memory] < large[memory] / 10
    typed = {line for line in pictures.TYPED.read_text().splitlines() if line.startswith("# ")}
    assert typed <= set(output.splitlines())  # README.md shows these lines of the output
    assert output.endswith("The guest's kernel log shows no warning and no bug.\n")
