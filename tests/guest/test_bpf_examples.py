# SPDX-License-Identifier: GPL-2.0
"""Knobs of BPF policies, effects of the examples, and the table with figures of the examples."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import pytest

from lab.guest import Guest
from lab.machine import TREE
from lab.policies import entering, example, examples_of, loading, policy_object
from lab.programs import ran, workload
from mmpolicy.host.bpf import Done, why

from .conftest import Machines
from .hostile_bpf import SOURCE
from .test_bindings import inside
from .test_bpf import DENSE, KB64, SINGLE, UNLOAD, ready
from .tools import POINT, ROOT, TOP, folios, histograms, must, ops_command, switch

SECONDS = 20.0  # rough duration of each test, for the schedule
pytestmark = [
    pytest.mark.flavor("cloud"),
    pytest.mark.amd64("mmpolicy-bpf is built for this machine alone"),
]

SPARSE = "map 4096 " + " ".join(f"touch {at} {at + 1}" for at in range(0, 4096, 64))
HUGE = {9: 4096}
PROFILES, KNOBS = f"{ROOT}/profiles", f"{ROOT}/knobs/anon_order"
PATTERNS = ("forward", "every_64k")
# relative deviation that a measured figure may have from the one in the document's table
CLOSE = 0.03


def with_module(machines: Machines, flavor: str) -> Iterator[Guest]:
    """Yield a guest with the module loaded. After the test, its BPF policies are unloaded, and all
    settings are reset.
    """
    for guest in ready(machines, flavor):
        yield guest
        must(guest, f"echo 1 >{ROOT}/reset")


@pytest.fixture
def guest(machines: Machines) -> Iterator[Guest]:
    """Return a guest with Debian's kernel for clouds."""
    yield from with_module(machines, "cloud")


def with_knobs(name: str, *knobs: str, order: str = "fault->knob[0]") -> str:
    """Return the command that loads a BPF policy with these knobs; order: the order that it
    answers, as C source.
    """
    more = f", .knobs = {{ {', '.join(knobs)} }}"
    source = SOURCE.replace("hostile", name) % ("", f"return MMP_ANSWER({order}, MMP_CAP);", more)
    return loading(policy_object(name, source))


def knob(name: str, text: str = "0, 9, 2") -> str:
    """Return the C source of a knob of a BPF policy; text: its least value, largest value and
    default.
    """
    return f'{{ "{name}", "order", "the order of all", {text} }}'


# Knobs


def test_knobs(guest: Guest) -> None:
    """The knobs of a BPF policy appear in each profile, also in profiles created later. They apply
    to the processes of their profile, and vanish when the policy is unloaded.
    """
    must(guest, f"echo old >{PROFILES}/create; {with_knobs('sized', knob('size'), knob('more'))}")
    must(guest, f"echo new >{PROFILES}/create")
    found = must(guest, f"cd {KNOBS}/sized/size && cat min max default unit meaning")
    assert found.splitlines() == ["0", "9", "2", "order", "the order of all"]
    for profile in "default", "old", "new":
        assert must(guest, f"cat {PROFILES}/{profile}/anon_order/sized/size") == "2\n"
    switch(guest, "sized")
    assert folios(guest, DENSE) == [{2: 4096}]
    switch(guest, "sized", size=4)
    assert folios(guest, DENSE) == [KB64]
    assert guest.run(f"echo 10 >{POINT}/sized/size").rc
    must(guest, f"mkdir -p {TOP}/a; stat -c %i {TOP}/a >{PROFILES}/old/cgroups")
    must(guest, f"echo sized >{PROFILES}/old/anon_order/policy")
    assert inside(guest, "a") == [{2: 4096}]
    must(guest, f"{UNLOAD}")
    assert must(guest, f"find {PROFILES} {KNOBS} -name sized") == ""
    must(guest, with_knobs("again", knob("other", "3, 5, 4")))
    assert must(guest, f"cat {PROFILES}/*/anon_order/again/other").split() == ["4"] * 3
    assert must(guest, f"ls {POINT}/again") == "other\n"


def test_the_command_knows_knobs(guest: Guest) -> None:
    """mmpolicy finds, sets, reverts and resets the knobs of a BPF policy as it does those of
    policies in C.
    """
    must(guest, with_knobs("sized", knob("size")))
    must(guest, "mmpolicy set anon_order sized size=4")
    assert folios(guest, DENSE) == [KB64]
    assert "the order of all" in must(guest, "mmpolicy show anon_order")
    must(guest, "mmpolicy set anon_order sized size=3; mmpolicy revert")
    assert must(guest, f"cat {POINT}/sized/size") == "4\n"
    must(guest, "mmpolicy reset")
    assert must(guest, f"cat {POINT}/sized/size") == "2\n"


WRONG = {
    "its name": knob("Size"),
    "no name left": knob("a" * 24),
    "a name twice": f"{knob('size')}, {knob('size')}",
    "the default is above": knob("size", "0, 9, 10"),
    "the default is below": knob("size", "3, 9, 2"),
    "two lines": '{ "size", "order", "one\\ntwo", 0, 9, 2 }',
}


def test_wrong_knobs(guest: Guest) -> None:
    """A BPF policy with an invalid knob is refused with a line that says so. A replacement is
    accepted only if it has the knobs of the policy that it replaces.
    """
    for what, knobs in WRONG.items():
        result = guest.run(with_knobs("wrong", knobs))
        assert "a knob of the policy" in why(Done(result.rc, "", result.out), "x", 30).message, what
    must(guest, with_knobs("sized", knob("size")))
    for knobs in knob("size", "0, 9, 3"), knob("other"):
        result = guest.run(with_knobs("sized", knobs).replace(" load ", " replace "))
        told = why(Done(result.rc, "", result.out), "x", 30).message
        assert "other knobs than the loaded policy" in told
    must(guest, with_knobs("sized", knob("size"), order="3").replace(" load ", " replace "))
    switch(guest, "sized")
    assert folios(guest, DENSE) == [{3: 4096}]


# The example policies in BPF, except `fixed` and `block`, which are tested in test_bpf.py


def test_per_process(guest: Guest) -> None:
    """The example policy `per_process` gives huge pages to the process whose pid is in its knob,
    and single pages to all others.
    """
    must(guest, loading(example("per_process")))
    switch(guest, "per_process")
    assert folios(guest, DENSE) == [SINGLE]
    named = f"echo $$ >{POINT}/per_process/pid; exec {ops_command(DENSE)}"
    assert histograms(must(guest, f"sh -c {shlex.quote(named)}")) == [HUGE]


def test_small_cgroups(guest: Guest) -> None:
    """The example policy `small_cgroups` gives single pages to a cgroup until the cgroup has min_mb
    MB of memory, and 64 kB folios from then on.
    """
    must(guest, f"mkdir -p {TOP}/a; echo +memory >/sys/fs/cgroup/cgroup.subtree_control")
    must(guest, f"echo +memory >{TOP}/cgroup.subtree_control")
    must(guest, loading(example("small_cgroups")))
    switch(guest, "small_cgroups", min_mb=4)
    (found,) = inside(guest, "a")
    assert 512 <= found[0] <= 1100 and found[4] >= 2900, found
    switch(guest, "small_cgroups", min_mb=0)
    assert inside(guest, "a") == [KB64]
    assert folios(guest, DENSE) == [KB64]


@pytest.mark.full
def test_pressure(guest: Guest) -> None:
    """The example policy `small_cgroups` gives single pages to a cgroup that stalls on memory
    because it is over its limit.
    """
    must(guest, f"mkdir -p {TOP}/a; echo +memory >/sys/fs/cgroup/cgroup.subtree_control")
    must(guest, f"echo +memory >{TOP}/cgroup.subtree_control; echo 8M >{TOP}/a/memory.high")
    must(guest, loading(example("small_cgroups")))
    switch(guest, "small_cgroups", min_mb=0, max_pressure=5)
    busy = f"echo 0 >{TOP}/a/cgroup.procs; until [ -e /run/over ]; do {ops_command(DENSE)}; done"
    job = guest.start(f"sh -c {shlex.quote(busy)} >/dev/null")
    some = f"sed -n 's/^some avg10=\\([0-9]*\\).*/\\1/p' {TOP}/a/memory.pressure"
    must(guest, f"until [ $({some}) -gt 10 ]; do sleep 0.5; done; echo max >{TOP}/a/memory.high")
    (found,) = inside(guest, "a")
    must(guest, "touch /run/over")
    assert not job.wait().rc
    must(guest, "rm /run/over")
    assert found == SINGLE


def test_bestfit(guest: Guest) -> None:
    """Under the example policy `bestfit`, a fault gets the largest free folio that fits into its
    memory area.
    """
    must(guest, loading(example("bestfit")))
    switch(guest, "bestfit")
    assert folios(guest, DENSE) == [HUGE]
    (found,) = folios(guest, "map 64 touch 0 64 folios 0 64")
    assert max(found) >= 5 and sum(found.values()) == 64
    switch(guest, "bestfit", max_order=4)
    assert folios(guest, DENSE) == [KB64]
    switch(guest, "bestfit", spare=1 << 20)
    assert folios(guest, DENSE) == [SINGLE]


def test_learn(guest: Guest) -> None:
    """Under the example policy `learn`, a process that fills its memory gets 64 kB folios after a
    while; a process that leaves gaps does not.
    """
    must(guest, loading(example("learn")))
    switch(guest, "learn")
    (dense,) = folios(guest, DENSE)
    assert dense[4] >= 4096 - 2 * 256 - 256, dense  # one in 16 blocks and the first ones are pages
    (found,) = folios(guest, f"{SPARSE} folios 0 4096")
    assert sum(found.values()) <= 64 + 4 * 15, found  # the shell, which ran before, taught a little


# The table with figures of the examples

ROW = re.compile(r"^\| `([\w.]+)` \|[^|]*" + r"\| ([\d.,]+) " * 4 + r"\|$", re.MULTILINE)


def measured(guest: Guest, policy: str) -> list[float]:
    """Return the faults and the MB of a program that touches 64 MB in a cgroup, first densely and
    then sparsely.
    """
    must(guest, f"echo {policy} >{POINT}/policy")
    found = []
    for pattern in PATTERNS:
        each = ran(guest, f"{entering(f'{TOP}/a')} {workload('touch')} {pattern} 64")
        found += [each["faults"], each["kb"] / 1024]
    return found


@pytest.mark.full
def test_table(guest: Guest) -> None:
    """The table in docs/writing-a-policy.md has the figures that this test measures, for the
    example policies and for policies in C.
    """
    must(guest, f"mkdir -p {TOP}/a; echo +memory >/sys/fs/cgroup/cgroup.subtree_control")
    must(guest, f"echo +memory >{TOP}/cgroup.subtree_control")
    rows = ROW.findall((TREE / "docs/writing-a-policy.md").read_text())
    wrong = []
    for policy, *cells in rows:
        name, _, kind = policy.partition(".")
        if kind:
            name = must(guest, loading(example(name))).strip()
        found = measured(guest, name)
        shown = [float(cell.replace(",", "")) for cell in cells]
        if shown != pytest.approx(found, rel=CLOSE, abs=0.5):
            wrong.append(f"{policy}: {found}, shown {shown}")
        must(guest, f"echo stock >{POINT}/policy; {UNLOAD}")
    assert len(rows) == 3 + len(examples_of("MMP_ORDER"))
    assert not wrong, "\n".join(wrong)
