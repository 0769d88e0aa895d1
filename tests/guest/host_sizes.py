# SPDX-License-Identifier: GPL-2.0
"""`try --host` where systemd runs: trials that are killed while their sizes are in force, and
trials that run to their end.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy

from lab.guest import Guest
from lab.programs import must, workload

from .system import HOST
from .tools import THP

NAMES = [f"{THP}/hugepages-{kb}kB/enabled" for kb in (16, 32, 64)]
SIZES = f"cat {THP}/hugepages-*/enabled"
RECOVERY = "/run/mmpolicy/knobs.json"
BOOT_FILE = "/etc/tmpfiles.d/mmpolicy-sizes.conf"
TRY = "mmpolicy try --host --candidate thp-sizes --yes --lease 1h --block"
GROUP = "/sys/fs/cgroup/system.slice/mmpolicy-try.service"
RESTORE = "mmpolicy-restore.path mmpolicy-restore.service"
LOAD = f"while :; do {HOST}{workload('touch')} forward 8 >/dev/null; done"


def give_libraries(guest: Guest) -> None:
    """Give the guest the Python libraries that a report needs, as links to those of this
    machine.
    """
    found, place = Path(numpy.__file__).parents[1], "/usr/local/lib/python3.11/dist-packages"
    names = " ".join(f"{HOST}{path}" for name in ("numpy*", "scipy*") for path in found.glob(name))
    must(guest, f"mkdir -p {place} && ln -s {names} {place}")


def status(guest: Guest, code: int) -> Any:
    """Return the output of `try --status`, and check that it exits with this code."""
    result = guest.run("mmpolicy try --status --json 2>/dev/null", 300)
    assert result.rc == code, result.out
    return json.loads(result.out)


def begin(guest: Guest) -> None:
    """Begin a trial of folio sizes that would last for hours, and wait until a block has the sizes
    in force.
    """
    must(guest, f"{TRY} 3 --pairs 500", timeout=600)
    in_force = f"grep -q '.always' {NAMES[-1]} && [ -e {RECOVERY} ]"
    must(guest, f"until {in_force}; do sleep 0.1; done", 300)


def kill(guest: Guest) -> None:
    """Kill the trial and its watchdog at the same moment, while the sizes of the trial are in
    force. The cgroup of both is frozen to see whether they are; if so, it is killed as a whole.
    """
    freeze = f"echo 1 >{GROUP}/cgroup.freeze; until grep -q 'frozen 1' {GROUP}/cgroup.events; do :"
    in_force = f"done; grep -q '.always' {NAMES[-1]}"
    thaw = f"echo 0 >{GROUP}/cgroup.freeze; sleep 0.2"
    must(guest, f"until {freeze}; {in_force}; do {thaw}; done; echo 1 >{GROUP}/cgroup.kill", 300)


def check_killed(guest: Guest) -> None:
    """Check that systemd restores the folio sizes after a trial was killed. If the systemd unit
    that does this is stopped as well, three commands must report the sizes that are left.
    """
    before = must(guest, SIZES)
    begin(guest)
    kill(guest)
    must(guest, f"while [ -e {RECOVERY} ]; do sleep 0.1; done", 300)
    assert must(guest, SIZES) == before
    assert status(guest, 0)["standing"] == "cut off"
    begin(guest)
    must(guest, f"systemctl stop {RESTORE}", timeout=300)
    kill(guest)
    assert must(guest, SIZES) != before
    assert status(guest, 6)["standing"] == "not put back"
    for command in "mmpolicy", "mmpolicy verify":
        result = guest.run(command, 300)
        assert (result.rc, "mmpolicy ab restore" in result.out) == (6, True), result.out
    must(guest, "mmpolicy ab restore; rm -r /var/lib/mmpolicy/try", timeout=300)
    assert must(guest, SIZES) == before


def check_worse(guest: Guest, unit: str) -> None:
    """Check a trial of folio sizes for a service that uses one page in 64 kB. With the sizes it
    needs more memory, so the trial must end as worse and restore all sizes.
    """
    before = must(guest, SIZES)
    words = (
        f"--unit {unit} --candidate thp-sizes --yes --foreground --block 4 --pairs 12 --lease 1h"
    )
    result = guest.run(f"mmpolicy try {words}", 900)
    found = status(guest, 0)
    assert (result.rc, found["standing"]) == (8, "back"), result.out
    (memory,) = (line for line in found["trial"]["page"] if line.startswith("metric     memory: "))
    assert float(memory.split()[2]) > 50 and "worse" in memory, memory
    assert must(guest, SIZES) == before
    must(guest, f"[ ! -e {RECOVERY} ] && [ ! -e {BOOT_FILE} ]")


def check_end(guest: Guest) -> None:
    """Run a trial under load as a systemd unit to its end, and check that its exit code says
    whether the sizes are kept or restored.

    CPU time in an emulated guest proves nothing, so the test accepts either end. If the sizes are
    kept, the lines that systemd-tmpfiles would run at a boot must set them again, and the commands
    in the report must undo both.
    """
    before = must(guest, SIZES)
    must(guest, f"systemd-run --unit=load sh -c '{LOAD}'")
    must(guest, f"{TRY} 4 --pairs 8", timeout=600)
    must(guest, "while systemctl -q is-active mmpolicy-try; do sleep 1; done", timeout=900)
    must(guest, "systemctl stop load", timeout=300)
    report = guest.run("mmpolicy try --report", 300)
    kept = report.rc == 0
    assert report.rc in (0, 7, 8), report.out
    assert status(guest, 0)["standing"] == ("kept" if kept else "back")
    after = must(guest, SIZES)
    assert (after != before, guest.run(f"[ -e {BOOT_FILE} ]").rc == 0) == (kept, kept)
    must(guest, f"[ ! -e {RECOVERY} ]")
    if kept:
        must(guest, f"for file in {' '.join(NAMES)}; do echo never >$file; done")
        must(guest, f"systemd-tmpfiles --create --boot {BOOT_FILE}")
        assert must(guest, SIZES) == after
        must(guest, status(guest, 0)["trial"]["undo"])
        assert must(guest, SIZES) == before
