# SPDX-License-Identifier: GPL-2.0
"""While processes fault and exit, profiles, bindings, cgroups and experiments are created and
removed at random.
"""

from __future__ import annotations

from lab.programs import ran, workload

from .conftest import Machines
from .tools import ROOT, checkers, must

SECONDS = 20.0  # rough duration of each test, for the schedule
CGROUPS = "/sys/fs/cgroup/storm"
MEASURES = (
    "created",
    "deleted",
    "bound",
    "unbound",
    "enabled",
    "resets",
    "expired",
    "born",
    "moved",
)


@checkers("seconds", 20, 600, kasan=600, kcsan=300)
def test_binding_storm(machines: Machines, flavor: str, seconds: int) -> None:
    """After many random changes to bindings while programs fault, no page has had data of another
    process, no binding is left, and the kernel's checkers report no bug.
    """
    guest = machines.get(flavor, mem="2G", cpus=2)
    must(guest, "modprobe mmpolicy")
    found = ran(guest, f"{workload('bindstorm')} {seconds}", timeout=seconds * 2 + 300)
    print(found)
    assert not found["mismatches"]
    assert all(found[measure] for measure in MEASURES), found
    must(guest, f"echo 1 >{ROOT}/reset")
    assert must(guest, f"cat {ROOT}/state; cd {ROOT}/profiles && ls -d */") == "stock\ndefault/\n"
    assert not must(guest, f"cat {ROOT}/profiles/default/pids {ROOT}/profiles/default/cgroups")
    must(guest, f"find {CGROUPS} -depth -type d -exec rmdir {{}} +")
    must(guest, "rmmod mmpolicy")
    guest.check()
    guest.scan_leaks()
