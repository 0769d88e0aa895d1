# SPDX-License-Identifier: GPL-2.0
"""What access patterns cost and save on each of Debian's kernels is what they do on 6.12."""

from __future__ import annotations

import pytest

from bench.anon_order import ARMS, MALLOC, run, small
from lab.counting import Results, of_kernel
from lab.guest import ONE_KERNEL
from lab.machine import TREE

from .conftest import Machines

pytestmark = pytest.mark.full

# docs/testing.md says how it was made.
FIGURES = Results.resume(TREE / "docs/img/anon_order_stock.json", "anon_order", {})
OFF, SIZES, *POLICIES = FIGURES.arms()  # all sizes off, the kernel's own 64 kB, policies
FIXED = POLICIES[0]
PATTERNS = [case for case in FIGURES.cases() if case != MALLOC.name()]  # it has few faults
WITHIN = 0.03


@pytest.fixture(scope="module")
def found(all_machines: Machines, stock: str) -> Results:
    """The same arms on the kernel at hand."""
    all_machines.end()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(ONE_KERNEL, stock)
        return run(small(of_kernel(ARMS, FIGURES.arms())))


@pytest.mark.parametrize("case", PATTERNS)
@pytest.mark.parametrize("arm", POLICIES)
def test_a_pattern(found: Results, arm: str, case: str) -> None:
    """Faults and memory are the same multiples of those with all sizes off; no more is executed.

    A fault of one page costs other kernels more, so that all larger ones look cheaper there.
    """
    here, there = (
        {key: each.ratio(arm, OFF, case, key) for key in ("faults", "kb", "ticks")}
        for each in (found, FIGURES)
    )
    assert here.pop("ticks") <= there.pop("ticks") * (1 + WITHIN)
    assert here == pytest.approx(there, rel=WITHIN)


# With its own sizes a kernel takes twice as much for the first pattern after the boot.
@pytest.mark.parametrize("case", PATTERNS[1:])
def test_beside_the_own_sizes(found: Results, case: str) -> None:
    """The policy `fixed` costs the same multiple of the kernel's own folios of 64 kB."""
    here, there = (each.ratio(FIXED, SIZES, case, "ticks") for each in (found, FIGURES))
    assert here == pytest.approx(there, rel=WITHIN)
