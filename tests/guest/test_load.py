# SPDX-License-Identifier: GPL-2.0
"""The module is loaded and unloaded, by modprobe and by mmpolicy, while programs run."""

from __future__ import annotations

import pytest

from lab.guest import Guest
from lab.programs import ran, workload

from .conftest import Machines
from .tools import POINT, ROOT, counters, folios, must, switch, touch

POINTS = ("anon_order", "thp_gfp", "compact", "bulk", "madv_free")
DENSE = "map 4096 touch 0 4096 folios 0 4096"
LOG = "dmesg | tail -n 20"


def cli(guest: Guest, words: str, expected: int = 0) -> str:
    """Run mmpolicy with these words, and return its output. Its exit code must be the
    expected one.
    """
    result = guest.run(f"mmpolicy {words}", 120)
    assert result.rc == expected, result.out
    return result.out


# modprobe


def test_parameter_sets_the_policy(guest: Guest) -> None:
    """If modprobe gets a policy as a parameter, the policy decides from the first fault after the
    load.
    """
    assert folios(guest, DENSE) == [{0: 4096}]
    must(guest, "modprobe mmpolicy anon_order=fixed")
    assert "[fixed]" in must(guest, f"cat {POINT}/policy")
    assert must(guest, f"cat {ROOT}/state") == "active\n"
    assert folios(guest, DENSE) == [{4: 4096}]


def test_adaptive_from_the_start(guest: Guest) -> None:
    """`adaptive` can be the policy that modprobe gets as a parameter, and gives large folios at
    once.
    """
    must(guest, "modprobe mmpolicy anon_order=adaptive")
    assert int(touch(guest, "forward")["pages"]["4"]) > 4000
    assert counters(guest)["requested_order_4"] > 200


@pytest.mark.parametrize("point", POINTS)
def test_stock_is_a_parameter_too(guest: Guest, point: str) -> None:
    """At each hook point, "stock" is a valid policy in the parameter of modprobe."""
    must(guest, f"modprobe mmpolicy {point}=stock")
    assert must(guest, f"cat {ROOT}/state") == "stock\n"
    assert must(guest, f"cat /sys/module/mmpolicy/parameters/{point}") == "stock\n"


@pytest.mark.parametrize("point", POINTS)
def test_wrong_parameter_fails(guest: Guest, point: str) -> None:
    """If modprobe gets an invalid policy as a parameter, the module is not loaded, and the kernel
    log lists the valid policies.
    """
    must(guest, "modprobe mmpolicy")
    active = must(guest, f"cat {ROOT}/profiles/default/{point}/policy")
    must(guest, "rmmod mmpolicy")
    assert guest.run(f"modprobe mmpolicy {point}=nonsense").rc
    (line,) = [line for line in must(guest, LOG).splitlines() if f"{point}=nonsense" in line][-1:]
    assert set(active.replace("[", "").replace("]", "").split()) <= set(line.split())
    assert guest.run(f"test -e {ROOT}").rc == 1
    assert "mmpolicy" not in must(guest, "cat /proc/modules")
    must(guest, f"modprobe mmpolicy {point}=stock")


def test_wrong_parameter_takes_nothing(guest: Guest) -> None:
    """If one of two parameters of modprobe is invalid, the module is not loaded, so that the valid
    one has no effect either.
    """
    assert guest.run("modprobe mmpolicy anon_order=fixed compact=nonsense").rc
    assert folios(guest, DENSE) == [{0: 4096}]


def test_load_and_unload_again(guest: Guest) -> None:
    """The module can be loaded and unloaded repeatedly while policies are active."""
    for policy in ("fixed", "adaptive", "never", "vma_size", "stock") * 4:
        must(guest, f"modprobe mmpolicy anon_order={policy} && sleep 0.1 && rmmod mmpolicy")
    assert folios(guest, DENSE) == [{0: 4096}]


def test_unload_while_a_process_faults(guest: Guest) -> None:
    """If the module is unloaded while a process faults, the process goes on with correct data, and
    no fault runs code that was freed.
    """
    program = f"{workload('touch')} threads 16 40"
    job = guest.start(f"until [ -e /tmp/end ]; do {program} >/dev/null || exit; done")
    try:
        for _ in range(15):
            must(guest, "modprobe mmpolicy anon_order=adaptive && sleep 0.1")
            assert counters(guest)["requested_order_4"] > 0
            must(guest, "rmmod mmpolicy")
    finally:
        must(guest, "touch /tmp/end")
        result = job.wait(120)
        must(guest, "rm /tmp/end")
    assert result.rc == 0, result.out


def test_unload_while_files_are_open(guest: Guest) -> None:
    """If the module is unloaded while a process has one of its files open, the process gets an
    error when it uses the file.
    """
    must(guest, "modprobe mmpolicy")
    script = f"exec 3<>{POINT}/policy; rmmod mmpolicy; echo never >&3; cat <&3"
    result = guest.run(script, 60)
    assert result.rc, result.out
    assert guest.run(f"test -e {ROOT}").rc == 1


# The command


def test_doctor(guest: Guest) -> None:
    """`doctor` exits with 3 while the module is not loaded, and with 0 while it is loaded."""
    assert "next: " in cli(guest, "doctor", 3)
    cli(guest, "load")
    cli(guest, "doctor", 0)
    cli(guest, "unload")
    cli(guest, "doctor", 3)


@pytest.mark.flavor("unpatched")
def test_doctor_names_missing_hooks(machines: Machines) -> None:
    """On a kernel without hooks, `doctor` names the missing kernel option, and reports no other
    error.
    """
    guest = machines.get("unpatched", mem="1G")
    result = guest.run("mmpolicy doctor", 120)
    assert result.rc == 3
    assert "CONFIG_MM_POLICY" in result.out


def test_commands(guest: Guest) -> None:
    """Each of the verbs load, set, show, list, stats and unload has its effect."""
    cli(guest, "load anon_order=fixed")
    assert folios(guest, DENSE) == [{4: 4096}]
    cli(guest, "set anon_order fixed max_order=3")
    assert folios(guest, DENSE) == [{3: 4096}]
    listed = ran(guest, "mmpolicy list --json")
    assert listed["version"] == 1
    assert "max_order" in cli(guest, "show anon_order")
    assert "allocated_order_3" in cli(guest, "stats anon_order")
    cli(guest, "set anon_order never")
    assert folios(guest, DENSE) == [{0: 4096}]
    cli(guest, "unload")
    assert guest.run(f"test -e {ROOT}").rc == 1


def test_command_fails_with_a_reason(guest: Guest) -> None:
    """A verb that fails prints the reason. It exits with 3 if the module is not loaded, with 2 for
    wrong usage, and with 5 if the kernel refuses the change.
    """
    cli(guest, "set anon_order never", 3)
    cli(guest, "load anon_order=nonsense", 5)
    cli(guest, "load")
    cli(guest, "set anon_order nonsense", 2)
    cli(guest, "set nonsense never", 2)
    refused = cli(guest, "set anon_order fixed max_order=10", 5)
    assert "ERANGE" in refused and f"{POINT}/fixed/max_order" in refused
    assert "[stock]" in must(guest, f"cat {POINT}/policy")
    assert must(guest, f"cat {POINT}/fixed/max_order") == "4\n"


def test_dry_run_changes_nothing(loaded: Guest) -> None:
    """With --dry-run, a verb prints the writes that it would make, and changes nothing."""
    assert f"{POINT}/policy <- never" in cli(loaded, "set anon_order never --dry-run")
    assert "[stock]" in must(loaded, f"cat {POINT}/policy")
    cli(loaded, "unload --dry-run")
    must(loaded, f"test -e {ROOT}")


def test_reset_restores_stock(loaded: Guest) -> None:
    """After `reset`, the next fault gets a folio size that sysfs enables, and all knobs have their
    defaults.
    """
    switch(loaded, "fixed", max_order=6)
    must(loaded, f"echo 1 >{POINT}/override_madvise")
    assert folios(loaded, DENSE) == [{6: 4096}]
    cli(loaded, "reset")
    assert folios(loaded, DENSE) == [{0: 4096}]
    assert must(loaded, f"cat {ROOT}/state") == "stock\n"
    assert must(loaded, f"cat {POINT}/override_madvise") == "0\n"
    switch(loaded, "fixed")
    assert folios(loaded, DENSE) == [{4: 4096}]


def test_others_may_look(loaded: Guest) -> None:
    """A user without permission can read the files of the module, but write to none of them."""
    nobody = "setpriv --reuid=65534 --clear-groups"
    assert loaded.run(f"{nobody} cat {POINT}/policy").rc == 0
    assert loaded.run(f"{nobody} sh -c 'echo never >{POINT}/policy'").rc
    assert "[stock]" in must(loaded, f"cat {POINT}/policy")
