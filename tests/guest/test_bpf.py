# SPDX-License-Identifier: GPL-2.0
"""Policies in BPF on Debian's own kernel: their effects, and all that can end a policy."""

from __future__ import annotations

import json
import shlex
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from lab.guest import Guest
from lab.policies import EXAMPLES, HEADERS, example, helper, policy_object
from lab.policies import loading as load
from lab.programs import ran, workload
from mmpolicy.host.bpf import PINS, Done, why

from .conftest import Machines
from .hostile_bpf import HOSTILE, SOURCE, TAKES_LONG
from .test_bindings import bind, inside
from .tools import POINT, ROOT, TOP, folios, histograms, must, ops_command, readme, switch

pytestmark = pytest.mark.amd64("mmpolicy-bpf is built for this machine alone")
SECONDS = 20.0  # rough duration of each test, for the schedule

DENSE = "map 4096 touch 0 4096 folios 0 4096"
SLOT = f"{ROOT}/bpf/slot0"
GONE = f'until [ -z "$(cat {ROOT}/bpf/slot*/name | xargs)" ]; do sleep 0.1; done'
UNLOAD = f"rm -rf /sys/fs/bpf/mmpolicy; {GONE}"
# A program that opens the link of a BPF policy by its pin, as bpftool does, removes the pin, and
# keeps the link open until the file /run/over exists.
HOLD = f"""
import ctypes, os, time
path = ctypes.create_string_buffer(b"{PINS}/anon_order/fixed64")
attr = ctypes.create_string_buffer(120)
attr[0:8] = ctypes.addressof(path).to_bytes(8, "little")
assert ctypes.CDLL(None).syscall(321, 7, attr, 120) > 0
os.unlink("{PINS}/anon_order/fixed64")
while not os.path.exists("/run/over"):
    time.sleep(0.1)
os.unlink("/run/over")
"""
SINGLE, KB64, KB16 = {0: 4096}, {4: 4096}, {2: 4096}


def answering(answer: str, name: str = "answering", body: str = "", more: str = "") -> Path:
    """Return the object file of a BPF policy that gives this answer to each fault."""
    source = SOURCE.replace("hostile", name) % ("", f"{body} return {answer};", more)
    return policy_object(name, source)


def ready(machines: Machines, flavor: str) -> Iterator[Guest]:
    """Yield a guest with the module loaded. BPF policies that the test has loaded are unloaded at
    its end.
    """
    guest = machines.get(flavor, mem="2G", cpus=2, swap="1G")
    must(guest, "mountpoint -q /sys/fs/bpf || mount -t bpf bpf /sys/fs/bpf; modprobe mmpolicy")
    yield guest
    must(guest, UNLOAD)


@pytest.fixture
def guest(machines: Machines, stock: str) -> Iterator[Guest]:
    """Return a guest with one of Debian's own kernels."""
    yield from ready(machines, stock)


@pytest.fixture(
    params=[
        pytest.param(name, marks=pytest.mark.flavor(name)) for name in ("cloud", "traced-kasan")
    ]
)
def checked(machines: Machines, request: pytest.FixtureRequest) -> Iterator[Guest]:
    """Return a guest with Debian's kernel for clouds, or with a kernel that has KASAN and lockdep,
    which find bugs.
    """
    yield from ready(machines, request.param)


def stats(guest: Guest) -> dict[str, int]:
    """Return the counters of the hook point anon_order in the default profile."""
    text = must(guest, "cat /sys/kernel/debug/mmpolicy/default/anon_order/stats")
    return {name: int(value) for name, value in map(str.split, text.splitlines())}


def slot(guest: Guest, name: str) -> str:
    """Return the content of a file of the first slot for BPF policies in sysfs."""
    return must(guest, f"cat {SLOT}/{name}").strip()


# Effects of a policy


def test_fixed(guest: Guest) -> None:
    """The example policy `fixed` in BPF is listed among the policies, and gives the same folios as
    the policy `fixed` in C.
    """
    must(guest, load(example("fixed")))
    assert "fixed64" in must(guest, f"cat {POINT}/policy").split()
    switch(guest, "fixed64")
    assert folios(guest, DENSE) == [KB64]
    must(guest, f"echo stock >{POINT}/policy")
    assert folios(guest, DENSE) == [SINGLE]


def test_block(guest: Guest) -> None:
    """Under the example policy `block`, nearly all memory of a program that uses its pages in order
    is in 64 kB folios. A program that uses one page in 256 kB gets single pages only.
    """
    must(guest, load(example("block")))
    switch(guest, "block")
    (dense,) = folios(guest, DENSE)
    assert dense[4] >= 4096 - 32
    sparse = "map 4096 " + " ".join(f"touch {at} {at + 1}" for at in range(0, 4096, 64))
    (found,) = folios(guest, f"{sparse} folios 0 4096")
    assert found == {0: 64}


@pytest.mark.full
def test_block_asks_as_without_the_flag(guest: Guest) -> None:
    """With the flag MMP_IF_NEAR, the kernel calls a BPF policy for fewer faults, but the program
    gets the same folios as without the flag.
    """
    source = (EXAMPLES / "block.bpf.c").read_text()
    always = policy_object("always", source.replace(", .flags = MMP_IF_NEAR", ""))
    found = []
    for path in example("block"), always:
        must(guest, load(path))
        switch(guest, "block")
        found.append(folios(guest, DENSE))
        must(guest, UNLOAD)
    assert found[0] == found[1]


def test_questions(guest: Guest) -> None:
    """The kfuncs for BPF policies return correct values. The policy of this test checks them, and
    reports a wrong value as its error.
    """
    body = """
    __s64 page = fault->address - fault->start >> 12;
    static const char wrong[] = "a question was answered wrongly";

    if (fault->end - fault->start != 4096 << 12 || page < 64)
        return MMP_ANSWER(0, MMP_CAP);
    if (mmp_bpf_used(fault, -64, 64) != 64 || mmp_bpf_mapped(fault, -64, 65) != 64 ||
        mmp_bpf_used(fault, 0, 64) || mmp_bpf_mapped(fault, 0, 64) ||
        mmp_bpf_used(fault, -page - 64, 64) || mmp_bpf_mapped(fault, 4096 - page, 64) ||
        !mmp_bpf_full(fault, -1, 16) || mmp_bpf_full(fault, 1, 1) ||
        mmp_bpf_full(fault, -1000, 1) || mmp_bpf_used(fault, 1LL << 62, 64) ||
        mmp_into(fault, 4) != (page & 15))
        mmp_bpf_error(fault, wrong);
"""
    must(guest, load(answering("MMP_ANSWER(0, MMP_CAP)", body=body)))
    switch(guest, "answering")
    assert folios(guest, DENSE) == [SINGLE]
    assert slot(guest, "error") == ""
    assert slot(guest, "name") == "answering"


WRITER = """
import ctypes, mmap, os, sys
area = mmap.mmap(-1, 8 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
there = ctypes.addressof(ctypes.c_char.from_buffer(area))
owner = os.getpid()
if not os.fork():
    with open("/sys/fs/cgroup/t/b/cgroup.procs", "w") as procs:
        procs.write(str(os.getpid()))
    own = bytearray(b"x" * (100 << 20))  # makes its cgroup a large one
    pair = ctypes.c_size_t * 2
    here = ctypes.addressof(ctypes.c_char.from_buffer(own))
    local, remote = pair(here, 8 << 20), pair(there, 8 << 20)
    one, no_flags = ctypes.c_ulong(1), ctypes.c_ulong(0)
    write = ctypes.CDLL(None).process_vm_writev
    os._exit(write(owner, local, one, remote, one, no_flags) != 8 << 20)
assert not os.wait()[1]
"""


def test_whose_cgroup_is_asked_about(guest: Guest) -> None:
    """mmp_bpf_cgroup_pages() counts the pages of the cgroup of the process that owns the memory,
    even if another process makes the fault by writing to this memory.
    """
    large = "mmp_bpf_cgroup_pages(fault) > 16384"
    must(guest, load(answering(f"MMP_ANSWER({large} ? 4 : 0, MMP_CAP)", "by_size")))
    must(guest, f"echo a >{ROOT}/profiles/create")
    must(guest, f"echo by_size >{ROOT}/profiles/a/anon_order/policy; mkdir -p {TOP}")
    must(guest, f"for up in {TOP}/.. {TOP}; do echo +memory >$up/cgroup.subtree_control; done")
    must(guest, f"mkdir {TOP}/a {TOP}/b")
    must(guest, bind("a", "a"))
    inner = f"echo $$ >{TOP}/a/cgroup.procs; exec python3 -c {shlex.quote(WRITER)}"
    must(guest, f"sh -c {shlex.quote(inner)}")
    text = must(guest, "cat /sys/kernel/debug/mmpolicy/a/anon_order/stats")
    found = {name: int(value) for name, value in map(str.split, text.splitlines())}
    must(guest, f"echo a >{ROOT}/profiles/delete; rmdir {TOP}/a {TOP}/b")
    assert found["requested_order_0"] >= 2048  # pages of the 8 MB, and of the writer itself
    assert found["requested_order_4"] == 0


def test_another_version_of_the_header(guest: Guest) -> None:
    """A BPF policy that was built with another layout of the header's structs works, as the loader
    finds their members by name.
    """
    body = "return MMP_ANSWER(fault->site <= MMP_AT_COPY && !fault->knob[3] ? 4 : 0, MMP_CAP);"
    include = '#include "mmpolicy.bpf.h"'
    moved = f"#define site moved[8]; __u32 site\n{include}\n#undef site"
    source = SOURCE.replace(include, moved).replace("hostile", "moved") % ("", body, "")
    must(guest, load(policy_object("moved", source)))
    switch(guest, "moved")
    assert folios(guest, DENSE) == [KB64]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("9", KB64),
        pytest.param("0xffffffff", KB64, marks=pytest.mark.full),
        pytest.param("MMP_ANSWER(4, 100)", KB64, marks=pytest.mark.full),
        pytest.param("MMP_ANSWER(0, 8)", SINGLE, marks=pytest.mark.full),
    ],
)
def test_wrong_answers(guest: Guest, answer: str, expected: dict[int, int]) -> None:
    """If a BPF policy answers with a wrong order, it is lowered to max_order; a wrong reason is
    replaced. Both are counted.
    """
    must(guest, load(answering(answer)))
    assert slot(guest, "clamped") == "0"
    switch(guest, "answering")
    assert folios(guest, DENSE) == [expected]
    assert int(slot(guest, "clamped")) >= 256


@pytest.mark.full
def test_reasons_are_counted(guest: Guest) -> None:
    """The reasons and folios of a BPF policy are counted in the same counters as those of policies
    in C.
    """
    must(guest, load(answering("MMP_ANSWER(4, MMP_DENSE_NEIGHBOUR)")))
    switch(guest, "answering")
    before = stats(guest)
    folios(guest, DENSE)
    after = stats(guest)
    assert after["reason_dense_neighbour"] - before["reason_dense_neighbour"] >= 256
    assert after["allocated_order_4"] - before["allocated_order_4"] >= 256


# Several BPF policies at once, and a BPF policy as the shadow policy


def test_bound(guest: Guest) -> None:
    """Two bound cgroups can have different BPF policies. If one of them is unloaded, the other
    cgroup keeps its own.
    """
    must(guest, f"{load(example('fixed'))}; {load(answering('2'))}; mkdir -p {TOP}/a {TOP}/b")
    for name, policy in ("a", "fixed64"), ("b", "answering"):
        must(guest, f"echo {name} >{ROOT}/profiles/create; {bind(name, name)}")
        must(guest, f"echo {policy} >{ROOT}/profiles/{name}/anon_order/policy")
    assert inside(guest, "a", DENSE) == [KB64]
    assert inside(guest, "b", DENSE) == [KB16]
    must(
        guest,
        f"rm {PINS}/anon_order/fixed64; "
        f"until grep -q '.stock.' {ROOT}/profiles/a/anon_order/policy; do :; done",
    )
    assert inside(guest, "a", DENSE) == [SINGLE]
    assert inside(guest, "b", DENSE) == [KB16]


def test_shadow(guest: Guest) -> None:
    """A BPF policy that is the shadow policy is called, and its answers are counted, but they
    change no folio.
    """
    must(
        guest, f"{load(example('fixed'))}; echo never >{POINT}/policy; echo fixed64 >{POINT}/shadow"
    )
    assert folios(guest, DENSE) == [SINGLE]
    assert stats(guest)["shadow_requested_order_4"] > 0
    must(guest, f"{UNLOAD}; until grep -q '.none.' {POINT}/shadow; do :; done")
    assert "[never]" in must(guest, f"cat {POINT}/policy")


# The contexts that a BPF policy gets, and `policy show --live`, which prints them

INSTANCE = "/sys/kernel/tracing/instances/mmpolicy"
# background jobs of a shell ignore SIGINT by default, so restore it
WITH_CTRL_C = "env --default-signal=INT"
WATCHED = f"{INSTANCE}/events/mmpolicy/mmpolicy_bpf_anon_order/enable"


def answers_of_dense(guest: Guest) -> Counter[tuple[str, str]]:
    """Return how often each result of mmp_bpf_full() led to each order, counted over the faults of
    the area that DENSE maps.
    """
    lines = must(guest, "cat /run/told").splitlines(keepends=True)
    told = [json.loads(line) for line in lines if line.endswith("\n")]
    assert not [each for each in told if "lost" in each]
    orders = Counter[tuple[str, str]]()
    for question, answer in pairwise(told):
        facts = answer["facts"]
        size = int(facts.get("end", "0"), 16) - int(facts.get("start", "0"), 16)
        if size == 4096 << 12 and facts["site"] == "pte":
            assert question["facts"]["question"].startswith("full("), question
            orders[question["facts"]["answer"], facts["order"]] += 1
    return orders


def test_live(guest: Guest) -> None:
    """`policy show --live` prints the answers of a BPF policy that led to folios, each after the
    kfunc calls that the policy made for it.

    It does not print answers of another BPF policy, which is the shadow policy in this test.
    """
    must(guest, f"{load(example('block'))}; {load(answering('2'))}")
    must(guest, f"echo answering >{POINT}/shadow")
    switch(guest, "block")
    job = guest.start(f"{WITH_CTRL_C} mmpolicy policy show block --live --json >/run/told")
    must(guest, f"until grep -q 1 {WATCHED}; do sleep 0.1; done")
    (found,) = folios(guest, DENSE)
    for _ in range(600):  # on a busy host, the command may get a CPU only after some time
        if answers_of_dense(guest)["1", "4"] << 4 >= found[4]:
            break
        time.sleep(0.1)
    must(guest, "pkill -INT -f 'policy show block'")
    assert not job.wait().rc
    assert guest.run(f"ls -d {INSTANCE}").rc
    orders = answers_of_dense(guest)
    assert orders["1", "4"] << 4 == found[4] and found[4] >= 4096 - 32
    assert set(orders) <= {("0", "0"), ("1", "4")}


# Events that end a BPF policy: a shell command for each


ENDS = {
    "the pin goes": f"rm {PINS}/anon_order/fixed64",
    "reset": f"echo 1 >{ROOT}/reset",
    "lease": f"echo 100 >{ROOT}/lease_ms; until grep -q expired {ROOT}/state; do :; done",
}


@pytest.mark.parametrize("end", ENDS)
def test_ends(guest: Guest, end: str) -> None:
    """However a BPF policy ends, its hook point is at stock afterwards. The module can be unloaded
    only if no BPF policy is loaded.
    """
    must(guest, load(example("fixed")))
    switch(guest, "fixed64")
    must(guest, f"{ENDS[end]}; until grep -q '.stock.' {POINT}/policy; do :; done")
    assert folios(guest, DENSE) == [SINGLE]
    if end != "the pin goes":
        assert slot(guest, "name") == "fixed64"
        assert guest.run("rmmod mmpolicy").rc
    if end == "lease":
        assert b"refused register 16" in guest.run(load(answering("2"))).data
    must(
        guest,
        f"{UNLOAD}; i=0; until rmmod mmpolicy; do i=$((i + 1)); [ $i -lt 50 ]; sleep 0.1; done",
    )
    must(guest, "modprobe mmpolicy")


@pytest.mark.full
def test_loader_ends(guest: Guest) -> None:
    """If the pin of a BPF policy is removed, the policy stays in force as long as a process keeps
    its link open.
    """
    must(guest, load(example("fixed")))
    switch(guest, "fixed64")
    job = guest.start(f"python3 -c {shlex.quote(HOLD)}")
    must(guest, f"until [ ! -e {PINS}/anon_order/fixed64 ]; do sleep 0.1; done")
    assert folios(guest, DENSE) == [KB64]
    must(
        guest,
        "touch /run/over; until grep -q '.stock.' {POINT}/policy; do :; done".replace(
            "{POINT}", POINT
        ),
    )
    assert not job.wait().rc
    must(guest, GONE)
    assert folios(guest, DENSE) == [SINGLE]


def test_error(guest: Guest) -> None:
    """A BPF policy that reports an error is not called again, and the error is kept. It can be
    chosen again only after it was replaced.
    """
    text = 'static const char text[] = "I give up\\n"; mmp_bpf_error(fault, text);'
    must(guest, load(answering("4", body=text)))
    switch(guest, "answering")
    folios(guest, DENSE)
    must(guest, f"until grep -q '.stock.' {POINT}/policy; do :; done")
    assert folios(guest, DENSE) == [SINGLE]
    assert slot(guest, "error") == "I give up"
    assert guest.run(f"echo answering >{POINT}/policy").rc
    must(guest, load(answering("4"), "replace"))
    assert slot(guest, "error") == ""
    switch(guest, "answering")
    assert folios(guest, DENSE) == [KB64]


def test_replace(guest: Guest) -> None:
    """If a BPF policy is replaced, the new program takes effect at once in all profiles that have
    the policy.
    """
    must(guest, load(answering("4")))
    switch(guest, "answering")
    before = slot(guest, "program")
    must(guest, load(answering("2"), "replace"))
    assert folios(guest, DENSE) == [KB16]
    assert slot(guest, "program") != before
    assert b"refused find" in guest.run(load(example("fixed"), "replace")).data
    assert folios(guest, DENSE) == [KB16]


LINK_CREATE, LINK_UPDATE = 28, 29  # values of enum bpf_cmd in the kernel


def test_a_loader_that_is_stopped_for_seconds(guest: Guest) -> None:
    """A loader succeeds even if it does not run for 5 s just before it registers its BPF policy, as
    may happen on a busy host.
    """
    late = f"{workload('late')} {{}} 5000 "
    must(guest, late.format(LINK_CREATE) + load(answering("4")))
    switch(guest, "answering")
    must(guest, late.format(LINK_UPDATE) + load(answering("2"), "replace"))
    assert folios(guest, DENSE) == [KB16]


def test_a_loader_that_ends_before_it_registers(guest: Guest) -> None:
    """If a loader is killed before it registers its BPF policy, the module can soon be unloaded."""
    late = f"{workload('late')} {LINK_CREATE} 600000 {load(answering('4'))}"
    must(
        guest,
        f"""{late} 2>/run/said & until grep -q stopped /run/said; do sleep 0.1; done
        rmmod mmpolicy 2>/run/why && exit 1; kill -KILL $!
        until rmmod mmpolicy 2>/run/why; do sleep 0.1; done""",
        timeout=120,
    )
    must(guest, "modprobe mmpolicy")


@pytest.mark.full
def test_slots(guest: Guest) -> None:
    """There are four slots for BPF policies, so a fifth one is refused. A freed slot can be used
    again, and no two policies have the same name.
    """
    for name in "abcd":
        must(guest, load(answering("4", name)))
    assert "refused register 28" in guest.run(load(answering("4", "e"))).out
    gone = f'until [ -z "$(cat {ROOT}/bpf/slot1/name)" ]; do :; done; sleep 0.5'
    must(guest, f"rm {PINS}/anon_order/b; {gone}")
    assert "refused register 17" in guest.run(load(answering("2", "a"))).out
    must(guest, load(answering("4", "e")))
    assert must(guest, f"cat {ROOT}/bpf/slot*/name").split() == ["a", "e", "c", "d"]


# Storms: BPF policies are loaded, replaced and ended again and again, while programs touch memory

ROUNDS, PIECES = 50, 20
GIVES_UP = 'static const char t[] = "x"; if (fault->address >> 12 & 1) mmp_bpf_error(fault, t);'
HERE = "/run/storm"  # in memory, as small reads from the host's files are slow under KASAN
BTF = "/sys/kernel/btf/vmlinux"


def at_hand(guest: Guest, objects: dict[str, Path]) -> None:
    """Copy all files that a round of the storm reads into memory, also the BTF of the kernel, which
    the loader then reads in one piece.
    """
    copies = "\n".join(f"cp {path} {HERE}/{name}" for name, path in objects.items())
    must(
        guest,
        f"""mkdir -p {HERE}; {copies}
        cp {BTF} {HERE}/types; mount --bind {HERE}/types {BTF}
        cp {helper()} {HERE}/helper; cp {workload("touch")} {HERE}/touch
        objcopy --strip-debug "$(modinfo -n mmpolicy)" {HERE}/module.ko""",
    )


def storm(guest: Guest, rounds: int) -> None:
    """Load, replace and unload BPF policies while programs touch memory. No data may be wrong, and
    the kernel must log no bug. Each fourth round unloads the module.

    Two policies take turns, so that one is loaded while the kernel still frees the other. Grace
    periods are expedited, so that a use after free shows sooner.
    """
    objects = {"fixed64": example("fixed")}
    for name in "odd", "even":
        objects |= {f"{name}1": answering("4", name), f"{name}2": answering("2", name)}
        objects |= {f"{name}3": answering("3", name, GIVES_UP)}
    at_hand(guest, objects)
    touch = f"{HERE}/touch forward 16 || exit; sleep 0.$((RANDOM % 10))"
    touching = guest.start(f"until [ -e {HERE}/over ]; do {touch}; done")
    must(
        guest,
        f"""
        echo 1 >/sys/kernel/rcu_expedited; cd {HERE}; exec /run/vm/busybox sh <<'END'
        set -e
        for i in $(seq {rounds}); do
            name=odd; [ $((i % 2)) != 0 ] || name=even
            ./helper load $name {PINS} <${{name}}1; echo $name >{POINT}/policy
            if [ $((i % 4)) = 0 ]; then
                ./helper load fixed64 {PINS} <fixed64; echo fixed64 >{POINT}/shadow
            fi
            ./helper replace $name {PINS} <${{name}}2
            if [ $((i % 3)) = 0 ]; then
                ./helper replace $name {PINS} <${{name}}3
                until read policies <{POINT}/policy && [ "${{policies%\\[stock]*}}" != "$policies" ]
                do :; done
                [ $((i % 2)) = 0 ] || ./helper replace $name {PINS} <${{name}}2
            fi
            rm -rf /sys/fs/bpf/mmpolicy
            [ $((i % 4)) = 0 ] || continue
            for file in {ROOT}/bpf/slot*/name; do
                while read loaded <$file && [ "$loaded" ]; do sleep 0.1; done
            done
            until rmmod mmpolicy 2>why; do sleep 0.1; done
            insmod module.ko $(grep -o untested=1 /proc/cmdline)
        done
END""",
        timeout=60 + 60 * rounds,
    )
    must(guest, f"touch {HERE}/over; echo 0 >/sys/kernel/rcu_expedited")
    assert not touching.wait().rc
    must(guest, f"umount {BTF}; rm -r {HERE}")
    guest.check()


@pytest.mark.long
def test_storm(guest: Guest) -> None:
    """The storm passes for eight rounds."""
    storm(guest, 8)


@pytest.mark.full
@pytest.mark.parametrize("piece", range(PIECES))
def test_long_storm(checked: Guest, piece: int) -> None:
    """The storm of BPF policies passes for a thousand rounds. They are divided into several tests,
    so that a failure shows early.
    """
    print(f"rounds from {piece * ROUNDS} on")
    storm(checked, ROUNDS)


# Refused programs


def test_hostile(guest: Guest) -> None:
    """Each BPF policy of HOSTILE is refused with a reason of one line, and leaves nothing
    behind.
    """
    objects = {name: policy_object(name, each.source()) for name, each in HOSTILE.items()}
    wrong = []
    for name, path in objects.items():
        result = guest.run(load(path))
        text = str(why(Done(result.rc, "", result.out), name, 30).message)
        if not result.rc or HOSTILE[name].why not in text or "\n" in text:
            wrong.append(f"{name}: {result.rc} {text}\n{result.out[-2000:]}")
    assert not wrong, "\n".join(wrong)
    assert must(guest, f"cat {ROOT}/bpf/slot*/name; find {PINS} -type f").split() == []
    assert must(guest, f"cat {ROOT}/state").strip() == "stock"
    assert folios(guest, DENSE) == [SINGLE]


@pytest.mark.full
def test_no_object(guest: Guest) -> None:
    """A text file is refused with the reason that it is not a BPF object file."""
    result = guest.run(load(Path("/etc/passwd")))
    assert "is not a BPF object" in why(Done(result.rc, "", result.out), "passwd", 30).message


@pytest.mark.full
def test_no_jit(guest: Guest) -> None:
    """If the JIT of BPF is off, a BPF policy is refused, by the kernel or by the module, with a
    reason that names the JIT.
    """
    must(guest, "echo 0 >/proc/sys/net/core/bpf_jit_enable")
    results = [guest.run(load(example(name))) for name in ("fixed", "block")]
    must(guest, "echo 1 >/proc/sys/net/core/bpf_jit_enable")
    lines = [why(Done(found.rc, "", found.out), "x", 30).message for found in results]
    assert "JIT" in lines[0] and "JIT" in lines[1], lines
    must(guest, load(example("fixed")))


# A kernel on which no BPF policy can be loaded


@pytest.mark.flavor("patched")
def test_kernel_without(machines: Machines) -> None:
    """On a kernel without BTF of modules, the file bpf/available in sysfs says why BPF policies are
    unavailable, and policies in C work.
    """
    guest = machines.get(mem="2G", cpus=2, swap="1G")
    must(guest, "modprobe mmpolicy")
    assert must(guest, f"cat {ROOT}/bpf/available").startswith("unavailable: ")
    switch(guest, "fixed", max_order=4)
    assert folios(guest, DENSE) == [KB64]


# The command

PAGE = "docs/writing-a-policy.md"
# options of the shortest experiment that can show an effect in one of two metrics
SHORT = "--block 1s --washout 0.2s --pairs 7 --aa-pairs 1"
REDIS = "/sys/fs/cgroup/system.slice/redis-server.service"


def author(*lines: str) -> str:
    """Return shell commands as a user types them who has installed the packages mmpolicy-bpf and
    libbpf-dev.
    """
    built = helper().parent
    start = f"export CPATH={HEADERS}:{built}/include PATH={built}:$PATH; mkdir -p /run/author"
    return "\n".join([start, 'sudo() { "$@"; }', "cd /run/author || exit; set -e", *lines])


@pytest.mark.full
def test_an_author(guest: Guest) -> None:
    """The commands of docs/writing-a-policy.md lead a new user from an empty folder to a report on
    a policy of his own.
    """
    (first, look, (revert, *compare), replace, keep) = readme("From nothing to a report", PAGE)
    must(
        guest,
        f"""
        mkdir -p {REDIS}
        for folder in /sys/fs/cgroup /sys/fs/cgroup/system.slice; do
            echo +memory >$folder/cgroup.subtree_control || exit
        done""",
    )
    must(guest, author(*first, *look[:3]))
    in_redis = f"echo 0 >{REDIS}/cgroup.procs; exec {ops_command(DENSE)}"
    (found,) = histograms(must(guest, f"sh -c {shlex.quote(in_redis)}"))
    assert found[4] >= 4096 - 64
    assert "requested_order_4" in must(guest, author(look[3]))
    touch = f"until [ -e /run/over ]; do {workload('touch')} forward 16; done"
    busy = shlex.quote(f"echo 0 >{REDIS}/cgroup.procs; {touch}")
    job = guest.start(f"sh -c {busy}")
    short = [line.replace("--out", f"{SHORT} --out") for line in compare]
    result = guest.run(author(revert, *short), 900)
    must(guest, "touch /run/over")
    assert not job.wait().rc
    assert "verdict: " in result.out, result.out
    must(guest, "mkdir -p /etc/mmpolicy")
    must(guest, author("rm /run/over", *replace, "mmpolicy set anon_order mine", *keep))
    must(guest, author("mmpolicy reset", "mmpolicy policy unload --all", "rm mine.bpf.o"))
    must(guest, author("mmpolicy apply /etc/mmpolicy/50-try.toml; rm -r /etc/mmpolicy"))
    (found,) = folios(guest, DENSE)
    assert found[4] >= 4096 - 64


def test_command(guest: Guest) -> None:
    """A BPF policy can be loaded, set, listed and unloaded by the commands in
    docs/writing-a-policy.md.
    """

    def mmpolicy(words: str) -> dict[str, Any]:
        return ran(guest, f"PATH={helper().parent}:$PATH mmpolicy {words} --json")

    assert mmpolicy(f"policy load {example('fixed')}")["name"] == "fixed64"
    mmpolicy("set anon_order fixed64")
    assert folios(guest, DENSE) == [KB64]
    (found,) = mmpolicy("policy list")["policies"]
    assert found["profiles"] == ["default"]
    assert guest.run("mmpolicy policy unload fixed64").rc == 5
    assert mmpolicy("policy unload --all")["unloaded"] == ["fixed64"]
    assert folios(guest, DENSE) == [SINGLE]


@pytest.mark.full
def test_more_of_the_command(guest: Guest) -> None:
    """A loaded BPF policy keeps the module from being unloaded, and can be replaced. A policy for
    which the verifier takes too long is refused.
    """
    path = f"PATH={helper().parent}:$PATH"
    must(guest, f"{path} mmpolicy policy load --dry-run {example('fixed')}")
    assert slot(guest, "name") == ""
    must(guest, f"{path} mmpolicy policy load {example('fixed')}")
    assert f"{PINS}/anon_order/fixed64" in must(guest, "mmpolicy policy show fixed64")
    assert guest.run("mmpolicy unload").rc == 5
    must(guest, f"{path} mmpolicy policy replace {example('fixed')}")
    assert "still loaded" in must(guest, "mmpolicy reset")
    must(guest, "mmpolicy policy unload fixed64")
    took_long = policy_object("long", TAKES_LONG.source())
    result = guest.run(f"{path} mmpolicy policy load --timeout 2s {took_long}")
    assert "not done after 2 s" in result.out
    must(guest, "mmpolicy unload; modprobe mmpolicy")
