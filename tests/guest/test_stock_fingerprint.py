# SPDX-License-Identifier: GPL-2.0
"""The module recognises a build of Debian's kernel on each machine, and does not accept another."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from lab import guest as vm
from lab.guest import Guest
from lab.machine import accelerator as usual

from .conftest import Machines
from .tools import POINT, ROOT, TRACING, Poke, must, poke, refused

pytestmark = pytest.mark.flavor("cloud")

BY_BUILD_ID = pytest.mark.amd64(
    "the fingerprint of arm64 has no code, and no build of it is tested"
)
FINGERPRINT = f"cat {ROOT}/kernel_fingerprint"
FUNCTIONS = (
    "do_anonymous_page",
    "__handle_mm_fault",
    "__thp_vma_allowable_orders",
    "do_swap_page",
)
TRACED = "; ".join(f"echo {name} >>{TRACING}/set_ftrace_filter" for name in FUNCTIONS)
MACHINES: dict[str, tuple[str, dict[str, Any]]] = {
    "usual": ("max", {}),
    "two": ("max", {"cpus": 2}),
    "old": ("qemu64", {}),
    "few": ("max,-erms,-fsrm,-popcnt,-smap,-smep", {"cpus": 2}),
    "unsafe": ("max", {"append": "mitigations=off"}),
    "safe": (
        "max,-hypervisor",
        {"append": "mitigations=auto,nosmt spectre_v2=retpoline"},
    ),
}


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return what to request for a guest with another CPU model, whose kernel patches its own code
    differently at boot.
    """
    model, needs = MACHINES[request.param]

    def accelerator(*args: Any) -> str:
        return re.sub("-cpu .*", f"-cpu {model}", usual(*args))

    monkeypatch.setattr(vm, "accelerator", accelerator)
    return needs


def known(guest: Guest) -> None:
    """Check that the module recognises the running kernel as a build that was tested."""
    release = must(guest, "uname -r")
    assert must(guest, f"cat {ROOT}/kernel_tested") == release
    assert must(guest, f"cat {ROOT}/points/anon_order") == "available\n"


@BY_BUILD_ID
def test_each_machine(machines: Machines, stock: str, machine: dict[str, Any]) -> None:
    """The module recognises the kernel by its fingerprint however the kernel patches its own code
    at boot, and while its functions are traced.
    """
    machines.end()  # a guest that runs may have another CPU
    guest = machines.get(stock, accel="tcg", **machine)
    must(guest, "modprobe mmpolicy")
    known(guest)
    before = must(guest, FINGERPRINT)
    trace = f"{TRACED}; echo function >{TRACING}/current_tracer"
    must(guest, f"rmmod mmpolicy; {trace}; modprobe mmpolicy")
    try:
        known(guest)
        assert must(guest, FINGERPRINT) == before
    finally:
        must(
            guest,
            f"echo nop >{TRACING}/current_tracer; echo >{TRACING}/set_ftrace_filter",
        )
        machines.end()


@pytest.fixture
def alone(machines: Machines, stock: str) -> Iterator[Guest]:
    """Yield a guest that only this test uses, as the test may leave its kernel changed."""
    machines.end()
    yield machines.get(stock, cpus=2)
    machines.end()


@pytest.fixture
def changed(alone: Guest) -> Guest:
    """Return a guest in whose kernel one instruction was changed, in a function that nothing calls
    during the test.
    """
    must(alone, "modprobe mmpolicy_meddle change=madvise_collapse")
    return alone


@BY_BUILD_ID
def test_a_function_that_is_another_one(changed: Guest) -> None:
    """If a function of the kernel is not that of the tested build, policies of anon_order are
    refused, except with untested=1, and each report says so.
    """
    must(changed, "modprobe mmpolicy")
    fingerprint = must(changed, FINGERPRINT).strip()
    assert must(changed, f"cat {ROOT}/kernel_tested") == "no\n"
    reason = must(changed, f"cat {ROOT}/points/anon_order")
    assert fingerprint in reason and "untested=1" in reason
    refused(poke(changed, [Poke(f"{POINT}/policy", "fixed", 1, ("ENOTSUP",))]))
    for command in ("mmpolicy list", "mmpolicy doctor"):
        text = changed.run(command).out
        assert fingerprint in text and "untested=1" in text
    error = changed.run("mmpolicy set anon_order fixed")
    assert error.rc and "mmpolicy list says" in error.out
    must(changed, f"echo relaxed >{ROOT}/profiles/default/thp_gfp/policy")
    hooked = must(changed, "mmpolicy list --hooks")
    assert "vma_thp_gfp_mask" in hooked and "anon_order" not in hooked
    must(changed, "rmmod mmpolicy; modprobe mmpolicy untested=1")
    assert must(changed, f"cat {ROOT}/kernel_tested") == "no\n"
    assert must(changed, FINGERPRINT).strip() == fingerprint
    must(changed, f"echo fixed >{POINT}/policy")
    assert "untested=1, which permits it" in changed.run("mmpolicy doctor").out
    must(changed, "rmmod mmpolicy; rmmod mmpolicy_meddle; modprobe mmpolicy")
    known(changed)


POLICIES = {"anon_order": "fixed", "thp_gfp": "light", "compact": "budget", "madv_free": "cap"}
RENAMED = {
    "do_anonymous_page": ("anon_order", "the kernel has no function do_anonymous_page"),
    "kobj_attribute": ("anon_order", "anon_enabled_show has become"),
    "zonelist": ("thp_gfp", "try_to_free_pages has become"),
    "capture_control": ("compact", "compact_zone has become"),
    "whole_zone": ("compact", "compact_control has no bool whole_zone"),
    "zap_details": ("madv_free", "has become"),
}


# The module file without its BTF types. With them, the kernel would compare them with its own
# types, of which the test changes one, and refuse the module.
PLAIN = "/run/plain/mmpolicy.ko"
MAKE_PLAIN = f"mkdir /run/plain; objcopy -R .BTF -R .BTF.base $(modinfo -n mmpolicy) {PLAIN}"


def test_a_prototype_or_a_member_that_is_another_one(alone: Guest) -> None:
    """If one letter in a name of the kernel's types is changed, the hook point that needs the name
    is refused, with the reason.
    """
    files = f"grep . {ROOT}/points/*"
    must(alone, f"{MAKE_PLAIN}; modprobe mmpolicy")
    before = must(alone, files).splitlines()
    assert sum(line.endswith(":available") for line in before) == 4
    for name, (point, reason) in RENAMED.items():
        must(alone, "rmmod mmpolicy; modprobe mmpolicy_meddle rename=" + name)
        must(alone, f"insmod {PLAIN} $(grep -o untested=1 /proc/cmdline)")
        found = must(alone, files).splitlines()
        (line,) = set(found) - set(before)
        assert f"points/{point}:unavailable: " in line and reason in line
        refused(poke(alone, [Poke(f"{ROOT}/profiles/default/{point}/policy", POLICIES[point], 1,
                                  ("ENOTSUP",))]))  # fmt: skip
        must(alone, "rmmod mmpolicy mmpolicy_meddle; modprobe mmpolicy")
        assert must(alone, files).splitlines() == before


def test_types_of_a_newer_kind(machines: Machines, stock: str) -> None:
    """If one of the kernel's types is of an unknown kind, the types behind it cannot be read, so
    each hook point is refused with this reason.
    """
    guest = machines.get(stock, cpus=2)
    must(guest, "modprobe mmpolicy_meddle newer=1; modprobe mmpolicy")
    points = must(guest, f"grep -h . {ROOT}/points/*").splitlines()
    reason = "the kernel's BTF has a type of unknown kind"
    assert sum(reason in line for line in points) == 4 and "available" not in points
    must(guest, "rmmod mmpolicy mmpolicy_meddle; modprobe mmpolicy")
    assert must(guest, f"cat {ROOT}/points/anon_order") == "available\n"
