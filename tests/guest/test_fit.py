# SPDX-License-Identifier: GPL-2.0
"""`doctor --kernel` predicts from a kernel image what the running kernel has."""

from __future__ import annotations

from hashlib import sha256

import pytest

from lab.guest import SERIES
from lab.machine import Kernel
from mmpolicy.host.files import Tree
from mmpolicy.kernel.image import Image
from mmpolicy.kernel.needs import needs
from mmpolicy.kernel.symbols import symbols
from mmpolicy.verbs.fit import look_at, told

from .conftest import Machines
from .tools import ROOT, TRACING, must

pytestmark = pytest.mark.flavor("cloud")
SECONDS = 20.0  # rough duration of each test, for the schedule


def test_the_image_and_the_running_kernel(machines: Machines, stock: str) -> None:
    """What `doctor --kernel` finds in the image of a kernel is true when that kernel runs: hook
    points, types and symbols. Each function to hook can be traced.
    """
    path = Kernel.of_flavor(SERIES, stock).image
    kernel, points = look_at(Tree(), str(path))
    guest = machines.get(stock, cpus=2)
    assert must(guest, "uname -r").strip() == kernel.release
    before = guest.run("mmpolicy doctor --json", timeout=300).out
    assert f"{kernel.release} can have {told(kernel, points)}" in before
    must(guest, "modprobe mmpolicy")
    for each in points:
        found = must(guest, f"cat {ROOT}/points/{each.point}").strip()
        expected = f"unavailable: {each.reasons[0]}" if each.reasons else "available"
        assert found == expected, each.point
    # for arm64 only "fits", as the module has not yet run on arm64 hardware
    status = "fits" if guest.arch.root else "tested"
    assert [each.status for each in points if each.point == "anon_order"] == [status]
    hooked = {line.split()[1] for line in must(guest, f"cat {ROOT}/hooked_functions").splitlines()}
    named = {one.name for need in needs(kernel.machine) if need.row == "HOOK" for one in need.ones}
    there = {name for name in named if kernel.has(name)}
    assert there == hooked
    traced = must(guest, f"cut -d' ' -f1 {TRACING}/available_filter_functions").split()
    assert hooked <= set(traced)


def test_types_and_symbols(machines: Machines, stock: str) -> None:
    """The types that are read from a kernel image equal those in /sys/kernel/btf, and the symbols
    equal those in /proc/kallsyms.
    """
    image = Image(Kernel.of_flavor(SERIES, stock)
                  .image.read_bytes())  # fmt: skip
    guest = machines.get(stock, cpus=2)
    types = must(guest, "sha256sum </sys/kernel/btf/vmlinux").split()[0]
    assert types == sha256(image.section(".BTF")).hexdigest()
    names = must(guest, "awk 'NF == 3 { print $3 }' /proc/kallsyms | sort | uniq -u", timeout=300)
    assert symbols(image.data) == set(names.split())
