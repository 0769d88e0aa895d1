# SPDX-License-Identifier: GPL-2.0
"""BPF policies on a kernel with the hooks: tests for Debian's own kernel pass there, too.

The tests are those of other files that take less than a minute, the short storm, and the cost.
"""

from __future__ import annotations

from collections.abc import Iterator
from inspect import signature

import pytest

from lab.guest import Guest
from lab.programs import must

from . import test_bpf, test_bpf_cost, test_bpf_examples, test_bpf_points
from .conftest import Machines
from .limits import Repeated
from .tools import ROOT

pytestmark = pytest.mark.flavor("btf")
SECONDS = 20.0  # rough duration of each test, for the schedule

GUESTS = {
    test_bpf.__name__: test_bpf.ready,
    test_bpf_points.__name__: test_bpf_points.with_nodes,
    test_bpf_examples.__name__: test_bpf_examples.with_module,
}
# a test that uses one of these fixtures can also run on the kernel with the hooks
PLACES = {"guest", "costs"}
# a test with one of these markers is left out: it takes long, or is for one kernel
ELSEWHERE = {"full", "flavor"}
# Left out: the kernel with the hooks skips blocks in which compaction cannot succeed, so that
# hardly any attempt scans a page.
NOT_HERE = {"test_backoff"}


@pytest.fixture
def guest(machines: Machines, request: pytest.FixtureRequest) -> Iterator[Guest]:
    """Yield a guest with the hooks in its kernel, made in the way of the file that defines the
    test.
    """
    for guest in GUESTS[request.function.__module__](machines, "btf"):
        assert must(guest, f"cat {ROOT}/provider") == "hooks\n"
        yield guest


@pytest.fixture(scope="module")
def costs(all_machines: Machines) -> Repeated:
    """Return a measurement of what BPF policies cost on the kernel with the hooks."""
    return test_bpf_cost.costs_on(all_machines, "btf")


for module in (test_bpf, test_bpf_points, test_bpf_examples, test_bpf_cost):
    for name, function in [*vars(module).items()]:
        if not name.startswith("test_") or not PLACES & signature(function).parameters.keys():
            continue
        marks = {mark.name for mark in getattr(function, "pytestmark", ())}
        if name not in NOT_HERE and marks.isdisjoint(ELSEWHERE):
            assert name not in globals(), name
            globals()[name] = function
